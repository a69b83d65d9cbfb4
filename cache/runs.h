/* SPDX-License-Identifier: Apache-2.0 */
/* Join ascending pieces into runs of pages: two pieces that are less than `gap` pages apart become one
 * run. */
#ifndef GAIAFS_CACHE_RUNS_H
#define GAIAFS_CACHE_RUNS_H

#include <stdbool.h>

#include "cache/index.h"
#include "gpu/device.h"

struct runs {
    uint64_t gap;
    struct gaia_run open;
};

/* gap 1: only pieces that touch are joined. */
static inline struct runs runs_start(uint64_t gap)
{
    return (struct runs){.gap = gap};
}

/* Add a piece. True: a run was completed and is in *run_out. */
static inline bool runs_add(struct runs *runs, uint64_t page, uint64_t count, struct gaia_run *run_out)
{
    uint64_t end = runs->open.page + runs->open.count;

    if (runs->open.count && page - end < runs->gap) {
        runs->open.count = page + count - runs->open.page;
        return false;
    }
    *run_out = runs->open;
    runs->open = (struct gaia_run){.page = page, .count = count};
    return run_out->count;
}

/* The last run, if there is one. */
static inline bool runs_end(struct runs *runs, struct gaia_run *run_out)
{
    *run_out = runs->open;
    runs->open.count = 0;
    return run_out->count;
}

/* For masks of ascending leaves: add the lowest run of *pages and take it out, or, when there is none and
 * `last`, end. True: a run was completed and is in *run_out. */
static inline bool runs_take(struct runs *runs, uint64_t leaf, page_mask *pages, bool last,
                             struct gaia_run *run_out)
{
    unsigned length, first;

    if (!*pages)
        return last && runs_end(runs, run_out);
    first = page_mask_run(pages, &length);
    return runs_add(runs, (leaf << LEAF_SHIFT) + first, length, run_out);
}

#endif
