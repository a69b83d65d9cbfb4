/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/surplus.h"

#include "cache/internal.h"
#include "cache/runs.h"

/* Looked at with the file's lock held, for which FUSE handlers wait: 64 MiB, which take some ms to free. */
#define STEP_PAGES 16384u

static uint64_t taken(const struct replica *replica, uint64_t *length_out)
{
    uint64_t pages = 0, length = 0;

    if (replica->frames->ops->extent(replica->frames, &length, &pages))
        return 0;
    if (length_out)
        *length_out = length;
    return pages;
}

/* The pages of a leaf that nobody has placed, and nobody is about to. Lock held. */
static page_mask absent(const struct replica *replica, uint64_t number)
{
    const struct leaf *leaf = index_find(&replica->file->index, number);
    const struct leaf_copy *copy = leaf ? leaf_find_copy(leaf, replica) : NULL;

    return copy ? ~(copy->present | copy->busy) : ~UINT64_C(0);
}

/* Lock held: who wants to place a page there marks it busy first. What can't be freed stays. */
static void free_step(struct replica *replica, uint64_t first, uint64_t count)
{
    struct gaia_frames *frames = replica->frames;
    struct runs runs = runs_start(1);
    uint64_t last = (first + count - 1) >> LEAF_SHIFT;
    struct gaia_run run;

    for (uint64_t leaf = first >> LEAF_SHIFT; leaf <= last; leaf++) {
        page_mask pages = absent(replica, leaf) & page_range_mask(leaf, first, count);
        do
            if (runs_take(&runs, leaf, &pages, false, &run))
                frames->ops->drop(frames, run.page, run.count);
        while (pages);
    }
    if (runs_end(&runs, &run))
        frames->ops->drop(frames, run.page, run.count);
}

void surplus_free(struct replica *replica)
{
    struct cache_file *file = replica->file;
    uint64_t length = 0, before, pages, after;
    bool more;

    if (!replica->frames->ops->extent)
        return;
    pthread_mutex_lock(&file->lock);
    before = taken(replica, &length);
    pages = file_pages(file->size);
    if (length > pages)
        replica->frames->ops->resize(replica->frames, pages);
    pthread_mutex_unlock(&file->lock);
    for (uint64_t first = 0; first < pages; first += STEP_PAGES) {
        pthread_mutex_lock(&file->lock);
        more = taken(replica, NULL) > replica->resident; /* else all that there is was placed */
        if (more)
            free_step(replica, first, pages - first < STEP_PAGES ? pages - first : STEP_PAGES);
        pthread_mutex_unlock(&file->lock);
        if (!more)
            break;
    }
    after = taken(replica, NULL);
    if (after < before)
        atomic_fetch_add(&file->cache->surplus, (before - after) * GAIA_PAGE_SIZE);
}
