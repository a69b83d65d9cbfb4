/* SPDX-License-Identifier: Apache-2.0 */
/* What devices hold goes to the data directory before the mount ends: what was released, and then what was
 * only stored. A client can hold up who traps its stores, and who drops what it maps, for as long as it likes
 * (gpu/device.h, cache/fit.h). So nothing of that is done here: what is released is taken as it is, whoever
 * has its page busy; and stores are looked for without trapping them first, so that those which come
 * meanwhile may be missed, which nobody was promised. Only pages that somebody has busy are waited for, and
 * all of them together for some seconds. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/collect.h"
#include "cache/drop.h"
#include "cache/sure.h"

static int collect_each(struct cache_file *file, void *context)
{
    (void)context;
    if (file->given_up)
        return 0;
    pthread_mutex_lock(&file->lock);
    int error = collect_all(file);
    pthread_mutex_unlock(&file->lock);
    return error;
}

/* Whether anything may have changed: else there is no time left. Lock held, let go meanwhile. */
static bool wait_a_little(struct cache_file *file)
{
    _Atomic int64_t *left = &file->cache->flush_ns;
    int64_t now = (int64_t)clock_now_ns(), most = *left;

    if (most <= 0)
        return false;
    struct timespec until = lock_wait_until((unsigned)(most / 1000000) + 1);
    pthread_cond_timedwait(&file->changed, &file->lock, &until);
    *left -= (int64_t)clock_now_ns() - now;
    return true;
}

/* Mark busy what is stored of one copy's pages, as far as nobody else has it busy. -EBUSY: somebody keeps it
 * so. Lock held, let go meanwhile. */
static int take_stored(struct replica *replica, struct copy_pages *entry)
{
    for (;;) {
        struct leaf_copy *copy = entry->copy = replica_find_copy(replica, entry->leaf);
        page_mask stored = copy ? (copy->twin | copy_stored(copy)) & copy->present : 0;
        page_mask others = copy ? copy->busy | copy->releasing | copy->leaf->invalidating : 0;
        if (stored & others && wait_a_little(replica->file))
            continue;
        entry->pages = stored & ~others;
        if (entry->pages)
            copy->busy |= entry->pages;
        return stored & others ? -EBUSY : 0;
    }
}

static int flush_copy(struct replica *replica, uint64_t leaf)
{
    struct cache_file *file = replica->file;
    struct copy_pages busy = {.leaf = leaf};

    pthread_mutex_lock(&file->lock);
    int kept = take_stored(replica, &busy), error = 0;
    pthread_mutex_unlock(&file->lock);
    /* Another node's client is waited for as long as its node may be. */
    if (busy.pages)
        error = release_chosen(replica, &busy, 1, replica->device->node != NULL);
    pthread_mutex_lock(&file->lock);
    if (busy.pages) { /* also what could be released, if not all of it */
        int one = collect_pages(file, busy.copy->leaf, busy.pages & busy.copy->present, COLLECT_PENDING);
        error = error ? error : one;
    }
    page_mask wake = busy.pages ? replica_unbusy(busy.copy, busy.pages) : 0;
    pthread_mutex_unlock(&file->lock);
    replica_wake(replica, leaf, wake);
    return error ? error : kept;
}

static int flush_replica(struct replica *replica)
{
    struct leaf_copy *copy;
    uint64_t *leaves;
    size_t n = 0, max = 0;
    int error = 0;

    pthread_mutex_lock(&replica->file->lock);
    TAILQ_FOREACH (copy, &replica->stored, stored)
        max++;
    leaves = calloc(max + 1, sizeof *leaves);
    if (leaves)
        TAILQ_FOREACH (copy, &replica->stored, stored)
            leaves[n++] = copy->leaf->number;
    pthread_mutex_unlock(&replica->file->lock);
    if (!leaves)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int one = flush_copy(replica, leaves[i]);
        error = error ? error : one;
    }
    free(leaves);
    return error;
}

static int flush_each(struct cache_file *file, void *context)
{
    struct replica *replica = NULL;
    int error = 0;

    (void)context;
    /* What was lost as it was given up was told then. */
    while (!file->given_up && (replica = file_next_replica(file, replica))) {
        int one = flush_replica(replica);
        error = error ? error : one;
    }
    return error;
}

int cache_flush_all(struct cache *cache)
{
    if (cache->nodes) /* who is told to end as it goes on may not be the home any more */
        nodes_be_sure_of_all(cache->nodes, NULL);
    /* What could not be collected stays, is among what is flushed, and is told then. */
    (void)cache_each_file(cache, collect_each, NULL);
    return cache_each_file(cache, flush_each, NULL);
}
