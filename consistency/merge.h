/* SPDX-License-Identifier: Apache-2.0 */
/* Twins' diffs and the 3-way merge, at the grain of one byte (GAIA, section 4.1.1; Keleher et al., "Lazy
 * Release Consistency for Software Distributed Shared Memory", 1992, for twins). Pure functions: no locks, no
 * allocation. */
#ifndef GAIAFS_CONSISTENCY_MERGE_H
#define GAIAFS_CONSISTENCY_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "consistency/page.h"

/* Apply to home[0..n) the bytes of mine that differ from twin: for each i < n with mine[i] != twin[i],
 * home[i] := mine[i]. All other bytes of home stay. The three areas must not overlap; n <= GAIA_PAGE_SIZE
 * (bytes past the end of a file are cut off by a smaller n); no alignment is needed. Returns the number of
 * bytes of home[] that were changed (a byte of mine that equals home's is not counted). */
size_t gaia_merge(uint8_t *home, const uint8_t *twin, const uint8_t *mine, size_t n);

/* Whether the two differ at all; n <= GAIA_PAGE_SIZE. Stops at the first difference. */
bool gaia_differs(const uint8_t *a, const uint8_t *b, size_t n);

/* One run of bytes that differ. */
struct gaia_diff_run {
    uint16_t offset; /* bytes from the start of the page */
    uint16_t length; /* bytes, at least 1 */
};

/* The runs of bytes in which mine differs from twin, ascending, never touching each other. Writes at most max
 * runs; returns the number there are (which may be more than max: then the caller takes the whole page). n as
 * above. */
size_t gaia_diff_runs(const uint8_t *twin, const uint8_t *mine, size_t n, struct gaia_diff_run *runs,
                      size_t max);

#endif
