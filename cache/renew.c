/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/renew.h"

#include <string.h>

#include "cache/fit.h"
#include "cache/hosted.h"
#include "cache/trace.h"

/* Not where nothing can be taken away (cache/refresh.c), nor over the way to another node, nor past what
 * `fault=` has chosen for bytes to come by. */
static bool is_renewed(const struct replica *replica)
{
    return !replica->scans && !replica->device->node && !replica->file->cache->path;
}

int renew_grant(struct leaf_copy *copy, page_mask pages)
{
    if (!is_renewed(copy->replica))
        return 0;
    if (kernels_behind(copy->replica->file)) /* as of what a touch brings: cache/fill.c */
        replica_changed(copy->replica);
    return replica_grant(copy, pages);
}

struct renew_granted renew_begin(const struct cache_file *file)
{
    return (struct renew_granted){.truncations = file->truncations};
}

void renew_granted_all(struct renew_granted *granted, const struct cache_file *file)
{
    granted->size = file->size;
}

#define RUN_MOST (GAIA_UNIT_PAGES / 2) /* from more pages on, bringing them again is cheap */

/* A run of pages. What lies behind the end of the file as it was known is zeros: see cache/fill.c. */
static bool renew_run(struct replica *replica, uint64_t page, unsigned count, off_t size)
{
    const struct cache_file *file = replica->file;
    uint8_t bytes[RUN_MOST * GAIA_PAGE_SIZE];
    off_t offset = (off_t)(page * GAIA_PAGE_SIZE);
    size_t all = count * GAIA_PAGE_SIZE, length = all;

    if (offset >= size)
        return false;
    if (size - offset < (off_t)length)
        length = (size_t)(size - offset);
    if (!hosted_all(file->fd, file->hosted, offset, length) ||
        hosted_read(file->fd, file->hosted, bytes, length, offset) < 0)
        return false;
    memset(bytes + length, 0, all - length);
    if (replica->frames->ops->place(replica->frames, page, count, bytes))
        return false;
    trace_renewed(replica, page, count);
    return true;
}

/* The frames have the bytes, unless the file was cut meanwhile: what was read may be what was cut off. */
static page_mask settle(struct replica *replica, struct leaf_copy *copy, page_mask renewed,
                        const struct renew_granted *granted)
{
    unsigned pages = (unsigned)__builtin_popcountll(renewed);

    pthread_mutex_lock(&replica->file->lock);
    if (replica->file->truncations != granted->truncations) {
        fit_again(replica); /* place() may have made them longer */
        renewed = 0;
    } else {
        replica_add_present(copy, renewed);
        replica_resident(replica, pages);
        replica_count(replica, pages_in, pages);
    }
    pthread_mutex_unlock(&replica->file->lock);
    return renewed;
}

page_mask renew_pages(struct replica *replica, const struct copy_pages *entry,
                      const struct renew_granted *granted)
{
    page_mask renewed = 0;

    for (page_mask left = is_renewed(replica) ? entry->pages : 0; left;) {
        unsigned length, first = page_mask_run(&left, &length);
        if (length <= RUN_MOST &&
            renew_run(replica, (entry->leaf << LEAF_SHIFT) + first, length, granted->size))
            renewed |= page_range_mask(0, first, length);
    }
    return renewed ? settle(replica, entry->copy, renewed, granted) : 0;
}
