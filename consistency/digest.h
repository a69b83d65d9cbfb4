/* SPDX-License-Identifier: Apache-2.0 */
/* A page's digest: XXH3-128 of its bytes. Equal digests may skip moving a page; they never discard bytes that
 * are known to have been stored (docs/design.md, section 5, rule 7). */
#ifndef GAIAFS_CONSISTENCY_DIGEST_H
#define GAIAFS_CONSISTENCY_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gaia_digest {
    uint64_t low;
    uint64_t high;
};

struct gaia_digest gaia_digest_of(const void *bytes, size_t n);

static inline bool gaia_digest_equal(struct gaia_digest a, struct gaia_digest b)
{
    return a.low == b.low && a.high == b.high;
}

#endif
