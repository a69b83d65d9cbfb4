/* SPDX-License-Identifier: Apache-2.0 */
/* Join ascending pieces into runs of pages: two that touch become one. open: the run so far, zeros at first.
 */
#ifndef GAIAFS_CACHE_RUNS_H
#define GAIAFS_CACHE_RUNS_H

#include <stdbool.h>

#include "cache/index.h"
#include "gpu/device.h"

/* Add a piece. True: a run was completed and is in *run_out. */
static inline bool runs_add(struct gaia_run *open, uint64_t page, uint64_t count, struct gaia_run *run_out)
{
    if (open->count && page == open->page + open->count) {
        open->count += count;
        return false;
    }
    *run_out = *open;
    *open = (struct gaia_run){.page = page, .count = count};
    return run_out->count;
}

/* The last run, if there is one. */
static inline bool runs_end(struct gaia_run *open, struct gaia_run *run_out)
{
    *run_out = *open;
    open->count = 0;
    return run_out->count;
}

/* For masks of ascending leaves: add the lowest run of *pages and take it out, or, when there is none and
 * `last`, end. True: a run was completed and is in *run_out. */
static inline bool runs_take(struct gaia_run *open, uint64_t leaf, page_mask *pages, bool last,
                             struct gaia_run *run_out)
{
    unsigned length, first;

    if (!*pages)
        return last && runs_end(open, run_out);
    first = page_mask_run(pages, &length);
    return runs_add(open, (leaf << LEAF_SHIFT) + first, length, run_out);
}

#endif
