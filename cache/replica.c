/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/replica.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/shared_page.h"
#include "cache/evict.h"
#include "cache/home_device.h"
#include "cache/internal.h"
#include "cache/passed.h"
#include "cache/tail.h"
#include "io/protocol.h"

int replica_open(struct cache_file *file, struct cache_device *device, uint64_t pages, uint32_t entry,
                 bool read_only, struct replica **replica_out)
{
    struct replica *replica = calloc(1, sizeof *replica);

    if (!replica)
        return -ENOMEM;
    replica->file = file;
    replica->device = device;
    replica->entry = entry;
    replica->fits = pages;
    LIST_INIT(&replica->handings);
    STAILQ_INIT(&replica->drops);
    TAILQ_INIT(&replica->stored);
    TAILQ_INIT(&replica->suspects);
    void *state;
    int error = shared_page_make("gaiafs:state", &state, &replica->state_fd);
    if (error)
        goto out_free;
    replica->state = state;
    error = device->node  ? home_device_frames(file->cache, device, pages, read_only, &replica->frames)
            : device->gpu ? gaia_cuda_frames_open(device->gpu, pages, read_only, &replica->frames)
                          : gaia_soft_frames_open(pages, &replica->frames);
    if (error)
        goto out_state;
    replica->scans = replica->frames->ops->scans;
    replica->read_only = read_only;
    replica->frames->unfound = &replica->state->unfound;
    atomic_store(&replica->state->changes, 1);
    *replica_out = replica;
    return 0;

out_state:
    munmap(replica->state, SHARED_PAGE_SIZE);
    close(replica->state_fd);
out_free:
    free(replica);
    return error;
}

void replica_close(struct replica *replica)
{
    assert(!replica->resident && !replica->twins);
    replica->frames->ops->close(replica->frames);
    munmap(replica->state, SHARED_PAGE_SIZE);
    close(replica->state_fd);
    free(replica->found);
    departures_free(&replica->departures);
    free(replica);
}

struct leaf_copy *replica_find_copy(const struct replica *replica, uint64_t leaf_number)
{
    const struct leaf *leaf = index_find(&replica->file->index, leaf_number);

    return leaf ? leaf_find_copy(leaf, replica) : NULL;
}

void replica_update(struct leaf_copy *copy, page_mask stored_before)
{
    struct replica *replica = copy->replica;
    page_mask stored = copy_stored(copy);
    int delta = __builtin_popcountll(stored) - __builtin_popcountll(stored_before);

    if (delta > 0)
        atomic_fetch_add(&replica->state->stored, (uint64_t)delta);
    else if (delta < 0)
        atomic_fetch_sub(&replica->state->stored, (uint64_t)-delta);
    if ((copy->twin || stored) && !copy->in_stored) {
        TAILQ_INSERT_TAIL(&replica->stored, copy, stored);
        copy->in_stored = true;
    }
}

void replica_changed(struct replica *replica)
{
    atomic_fetch_add(&replica->state->changes, 1);
}

void replica_state_cut(struct gaia_shared_state *state, uint64_t size)
{
    uint64_t cuts = atomic_load(&state->cuts);

    atomic_store(&state->cut_ends[cuts % GAIA_CUTS_KEPT], size);
    if (!cuts || size < atomic_load(&state->cut_most))
        atomic_store(&state->cut_most, size);
    atomic_store(&state->cuts, cuts + 1); /* after what it counts */
}

void replica_cut(struct replica *replica, uint64_t size)
{
    replica_state_cut(replica->state, size);
    if (replica->frames->ops->cut)
        replica->frames->ops->cut(replica->frames, size);
}

void replica_give_up(struct replica *replica)
{
    replica_owes(replica, 1);
}

void replica_owes(struct replica *replica, int more)
{
    atomic_fetch_add(&replica->state->stored, (uint64_t)(int64_t)more);
    atomic_fetch_add(&replica->state->unfound, (uint64_t)(int64_t)more);
}

void replica_checked(struct replica *replica)
{
    atomic_store(&replica->state->checked_ns, clock_now_ns());
    replica_set_timeout(replica);
}

void replica_set_timeout(struct replica *replica)
{
    const struct cache_file *file = replica->file;
    bool asks = passed_is_compared(file) || writers_elsewhere(file); /* an acquire has to, every time */

    atomic_store(&replica->state->timeout_ns, asks ? 0 : file->cache->config.behind_timeout_ns);
}

void replica_suspect(struct leaf_copy *copy)
{
    struct replica *replica = copy->replica;

    if (!copy->in_suspects) {
        TAILQ_INSERT_TAIL(&replica->suspects, copy, suspect);
        copy->in_suspects = true;
    }
    replica_changed(replica);
}

static bool is_listed(const struct leaf_copy *copy, enum replica_list which)
{
    return which == REPLICA_STORED ? copy->in_stored : copy->in_suspects;
}

static struct leaf_copy *listed_first(const struct replica *replica, enum replica_list which)
{
    return which == REPLICA_STORED ? TAILQ_FIRST(&replica->stored) : TAILQ_FIRST(&replica->suspects);
}

static struct leaf_copy *listed_next(const struct leaf_copy *copy, enum replica_list which)
{
    return which == REPLICA_STORED ? TAILQ_NEXT(copy, stored) : TAILQ_NEXT(copy, suspect);
}

static int by_leaf(const void *a, const void *b)
{
    uint64_t x = (*(struct leaf_copy *const *)a)->leaf->number;
    uint64_t y = (*(struct leaf_copy *const *)b)->leaf->number;

    return x < y ? -1 : x > y;
}

ssize_t replica_listed(struct replica *replica, enum replica_list which, uint64_t first, uint64_t count,
                       struct leaf_copy ***copies_out)
{
    uint64_t begin = first >> LEAF_SHIFT, leaves = page_range_leaves(first, count);
    struct leaf_copy *copy = listed_first(replica, which);
    size_t most = 0, n = 0;

    for (; copy && most < leaves; most++)
        copy = listed_next(copy, which);
    struct leaf_copy **list = *copies_out = calloc(most + 1, sizeof(struct leaf_copy *));
    if (!list)
        return -ENOMEM;
    if (copy) { /* there are more of them than leaves in the range */
        for (uint64_t i = 0; i < leaves; i++) {
            copy = replica_find_copy(replica, begin + i);
            if (copy && is_listed(copy, which))
                list[n++] = copy;
        }
        return (ssize_t)n;
    }
    for (copy = listed_first(replica, which); copy; copy = listed_next(copy, which))
        if (page_range_mask(copy->leaf->number, first, count))
            list[n++] = copy;
    qsort(list, n, sizeof(struct leaf_copy *), by_leaf);
    return (ssize_t)n;
}

/* Twins of a run of pages of a leaf, which have none: with so many frames as are to be had. *count: how many.
 * bytes: of the one page; NULL: the frames have them, and are asked once, as they may be another node's. */
static int take_run(struct leaf_copy *copy, unsigned first, unsigned *count, const uint8_t *bytes)
{
    struct replica *replica = copy->replica;
    struct frame_pool *pool = &replica->file->cache->twins;
    uint64_t page = (copy->leaf->number << LEAF_SHIFT) + first;
    void *twins[LEAF_PAGES];
    unsigned got = 0;
    int error = 0;

    for (; got < *count && !error; got += !error) {
        error = frame_get(pool, leaf_copy_twin(copy, first + got));
        if (!error)
            twins[got] = frame_bytes(pool, *leaf_copy_twin(copy, first + got));
    }
    *count = got;
    if (!got)
        return error;
    int fetched = bytes ? 0 : replica_fetch_run(replica, page, got, twins);
    if (bytes)
        memcpy(twins[0], bytes, GAIA_PAGE_SIZE);
    for (unsigned i = 0; i < got && fetched; i++)
        frame_put(pool, *leaf_copy_twin(copy, first + i));
    if (fetched)
        *count = 0;
    for (unsigned i = 0; i < *count; i++) {
        /* Zeros past the end of the file, whatever was stored there: cache/tail.c relies on that. */
        size_t n = file_page_bytes(replica->file->size, page + i);
        memset((uint8_t *)twins[i] + n, 0, GAIA_PAGE_SIZE - n);
    }
    return fetched ? fetched : error;
}

static int take_device_twins(struct leaf_copy *copy, page_mask pages, const uint8_t *bytes)
{
    struct replica *replica = copy->replica;
    struct cache_file *file = replica->file;
    page_mask before = copy_stored(copy);

    /* What a release will need is allocated here, where running out can still be told to the one who stores.
     */
    int error = leaf_copy_twins_reserve(&file->index, copy, pages);
    if (!error)
        error = leaf_versions_reserve(&file->index, copy->leaf, pages, file->entries);
    for (pages &= ~copy->twin; pages && !error;) {
        unsigned count, first = page_mask_run(&pages, &count);
        error = take_run(copy, first, &count, bytes);
        page_mask taken = page_range_mask(0, first, count);
        copy->twin |= taken;
        copy->sealed |= taken;
        replica->twins += count;
    }
    replica_update(copy, before);
    return error;
}

int replica_take_twins(struct leaf_copy *copy, page_mask pages)
{
    return take_device_twins(copy, pages, NULL);
}

int replica_take_twin(struct leaf_copy *copy, unsigned page, const uint8_t *bytes)
{
    return take_device_twins(copy, UINT64_C(1) << page, bytes);
}

void replica_drop_twins(struct leaf_copy *copy, page_mask pages)
{
    page_mask before = copy_stored(copy);

    for (page_mask left = pages & copy->twin; left; left &= left - 1) {
        frame_put(&copy->replica->file->cache->twins, *leaf_copy_twin(copy, (unsigned)__builtin_ctzll(left)));
        copy->replica->twins--;
    }
    copy->twin &= ~pages;
    copy->sealed &= ~pages;
    copy->releasing &= ~pages;
    copy->touched &= ~pages;
    copy->pending &= ~pages;
    replica_update(copy, before);
}

int replica_grant(struct leaf_copy *copy, page_mask pages)
{
    struct cache_file *file = copy->replica->file;

    for (; pages; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        if (!leaf_has_versions(copy->leaf, page))
            continue;
        int error = leaf_versions_reserve(&file->index, copy->leaf, UINT64_C(1) << page, file->entries);
        if (error)
            return error;
        struct gaia_page_versions versions = leaf_page_versions(copy->leaf, page);
        gaia_rule_grant(&versions, leaf_copy_page_vector(copy, page));
    }
    return 0;
}

unsigned replica_forget(struct leaf_copy *copy, page_mask pages)
{
    unsigned gone = (unsigned)__builtin_popcountll(copy->present & pages);

    /* Pending bytes that a truncation cut off: there is nothing left to collect. */
    for (page_mask left = copy->pending & pages; left; left &= left - 1) {
        struct gaia_page_versions versions = leaf_page_versions(copy->leaf, (unsigned)__builtin_ctzll(left));
        gaia_rule_collected(&versions, copy->replica->entry);
    }
    replica_drop_twins(copy, pages);
    page_mask before = copy_stored(copy);
    copy->present &= ~pages;
    if (gone && copy->replica->scans)
        departures_add(&copy->replica->departures, copy->leaf->number,
                       (file_pages(copy->replica->file->size) >> LEAF_SHIFT) + 1);
    copy->blind &= ~pages;
    tail_left(copy, pages);
    replica_update(copy, before);
    replica_resident(copy->replica, -(int64_t)gone);
    return gone;
}

void replica_settle(struct leaf_copy *copy)
{
    struct replica *replica = copy->replica;

    if (copy->in_stored && !copy->twin && !copy_stored(copy)) {
        TAILQ_REMOVE(&replica->stored, copy, stored);
        copy->in_stored = false;
    }
    if (copy->present | copy->busy | copy->twin)
        return;
    if (copy->in_suspects) {
        TAILQ_REMOVE(&replica->suspects, copy, suspect);
        copy->in_suspects = false;
    }
    evict_forget(replica->device, copy);
    index_put_copy(&replica->file->index, copy);
}

void leaf_settle(struct leaf *leaf)
{
    for (struct leaf_copy *copy = SLIST_FIRST(&leaf->copies), *next; copy; copy = next) {
        next = SLIST_NEXT(copy, link);
        replica_settle(copy);
    }
}

page_mask replica_unbusy(struct leaf_copy *copy, page_mask pages)
{
    page_mask wake = copy->waited & pages;

    assert((copy->busy & pages) == pages);
    copy->busy &= ~pages;
    copy->waited &= ~pages;
    copy->raced &= ~pages;
    pthread_cond_broadcast(&copy->replica->file->changed);
    replica_settle(copy);
    return wake;
}

void replica_wake(struct replica *replica, uint64_t leaf, page_mask pages)
{
    while (pages) {
        unsigned length, first = page_mask_run(&pages, &length);
        replica->frames->ops->wake(replica->frames, (leaf << LEAF_SHIFT) + first, length);
    }
    cache_device_notify(replica->device);
}
