/* SPDX-License-Identifier: Apache-2.0 */
/* Version vectors: for each replica, how many intervals of its writes a copy of a page includes.
 * Parker et al., "Detection of Mutual Inconsistency in Distributed Systems" (1983); GAIA, section 4.1.
 * Entries start at the CPU: storage's entry is always 0 and is not stored. Entry e belongs to replica e + 1.
 * Plain data: the caller locks. A vector that is shorter than another is read as if it went on with zeros. */
#ifndef GAIAFS_CONSISTENCY_VERSION_H
#define GAIAFS_CONSISTENCY_VERSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "consistency/page.h"

typedef uint32_t gaia_version; /* counts intervals; compared modulo 2^32, so it may wrap (see version.c) */

/* Entry of a replica in a vector. replica must not be GAIA_REPLICA_STORAGE. */
static inline size_t gaia_version_entry(uint32_t replica)
{
    return replica - 1u;
}

/* Whether the copy with vector v includes everything released so far: v[j] >= r[j] for each of n entries.
 * This is rule "current" of docs/design.md, section 5. */
bool gaia_version_current(const gaia_version *v, const gaia_version *r, size_t n);

/* Like gaia_version_current(), but entry `skip` is not compared (a replica is always current in its own
 * writes). */
bool gaia_version_current_but(const gaia_version *v, const gaia_version *r, size_t n, size_t skip);

#endif
