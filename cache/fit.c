/* SPDX-License-Identifier: Apache-2.0 */
/* Three things may be due for the frames of a replica. Whoever finds one notes it, under the file's lock:
 *
 *   unfit     their length is not the file's. Until it is, nothing is placed from page `fits` on. `cut`: what
 *             is there goes first, as the file may have grown again since (resize());
 *   drops     pages that somebody wants freed (drop_first());
 *   overfull  they have more memory than what was placed: the rest is freed (sweep()).
 *
 * One thread at a time, which has set `fitting`, does all of this until nothing is due any more (work()): one
 * that is made for it, or, for frames that no client can hold up, the one that has come (start()). It lets go
 * of the lock over each call of the driver; `resizing` and `swept` tell others which one that is.
 *
 * Who waits for a replica in vain leaves it `restless`: until it fits, handlers of FUSE and fills then wait
 * for a moment only. A replica is a `misfit` when its driver has failed: the next acquire, map or placing
 * tries again. file->unfit and file->misfit say that some replica may be one: else nobody need take the lock.
 */
#include "cache/fit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "cache/internal.h"

#define PATIENCE_MS 2000u /* how long a change of the size waits */
#define RESTLESS_MS 20u   /* and for frames that were waited for in vain */
#define WAITS_MOST 4u     /* handlers of FUSE, of 8 threads or more, that may wait for frames of any files */
#define DEVICES_MS 30000u /* how long those wait who are about to touch: freeing many GiB takes its time */
#define END_MS 5000u      /* how long the end of the mount waits for the threads */

static bool has_work(const struct replica *replica)
{
    return replica->unfit || replica->overfull || !STAILQ_EMPTY(&replica->drops);
}

/* Lock held. */
static void is_unfit(struct replica *replica)
{
    replica->unfit = true;
    replica->file->unfit = true;
}

void fit_later(struct replica *replica)
{
    uint64_t pages = file_pages(replica->file->size);

    if (pages < replica->fits) {
        replica->fits = pages;
        replica->cut = true;
    }
    is_unfit(replica);
}

void fit_again(struct replica *replica)
{
    replica->cut = true;
    is_unfit(replica);
}

uint64_t fit_pages(const struct replica *replica)
{
    uint64_t pages = file_pages(replica->file->size);

    return replica->swept ? 0 : replica->fits < pages ? replica->fits : pages;
}

/* Nothing is placed at or behind replica->fits: what is there goes, however short the file was in between,
 * and nothing else does. Lock held, let go meanwhile. */
static void resize(struct replica *replica)
{
    struct gaia_frames *frames = replica->frames;
    uint64_t low = replica->fits, pages = file_pages(replica->file->size);
    bool cut = replica->cut;

    replica->unfit = replica->cut = false;
    replica->resizing = true;
    pthread_cond_broadcast(&replica->file->changed); /* see fit_sweep() */
    pthread_mutex_unlock(&replica->file->lock);
    lock_none("resize");
    /* A growth that was under way may have made them longer, for a size that is no more. */
    int error = cut || pages == low ? frames->ops->resize(frames, low) : 0;
    bool uncut = error;
    if (!error && pages > low)
        error = frames->ops->resize(frames, pages);
    pthread_mutex_lock(&replica->file->lock);
    replica->resizing = false;
    replica->misfit = error && !gaia_node_frames_gone(frames);
    if (replica->misfit)
        replica->file->misfit = true;
    if (replica->misfit && uncut) /* what was cut off is there yet, however long the file becomes */
        replica->cut = true;
    else if (!replica->unfit) /* else it may be shorter by now */
        replica->fits = pages;
}

struct kept {
    const struct replica *replica;
    struct copy_pages *list;
    size_t n;
    uint64_t pages;
};

/* What is placed, or is about to be: its frames stay. Lock held. */
static void keep_leaf(struct leaf *leaf, void *context)
{
    struct kept *kept = context;
    const struct leaf_copy *copy = leaf_find_copy(leaf, kept->replica);
    page_mask pages = copy ? copy->present | copy->busy : 0;

    if (!pages)
        return;
    kept->list[kept->n++] = (struct copy_pages){.leaf = leaf->number, .pages = pages};
    kept->pages += (uint64_t)__builtin_popcountll(pages);
}

/* One call for all that lies between two pages that are kept: whoever has the frames looks for those with
 * memory there, so the cost is that of what is there, however far apart it lies. What can't be freed stays.
 * No lock held. */
static void free_others(struct gaia_frames *frames, const struct kept *kept, uint64_t pages)
{
    uint64_t done = 0;

    qsort(kept->list, kept->n, sizeof *kept->list, copy_pages_order);
    for (size_t i = 0; i < kept->n; i++) {
        for (page_mask left = kept->list[i].pages; left;) {
            unsigned length, at = page_mask_run(&left, &length);
            uint64_t first = (kept->list[i].leaf << LEAF_SHIFT) + at;
            if (first > done)
                frames->ops->drop(frames, done, first - done);
            done = first + length;
        }
    }
    if (pages > done)
        frames->ops->drop(frames, done, pages - done);
}

/* Whatever is there and is neither placed nor about to be was filled by somebody else: both are looked at
 * under one hold of the lock, when the frames fit, so that nothing that was dropped or cut off is among it.
 * Nobody places anything until all of it is freed. Lock held, let go meanwhile. */
static void sweep(struct replica *replica)
{
    struct cache_file *file = replica->file;
    struct kept kept = {.replica = replica};
    uint64_t length, taken, pages = file_pages(file->size);

    assert(replica->frames->ops->extent); /* by which it was seen to be overfull */
    replica->overfull = false;
    if (replica->frames->ops->extent(replica->frames, &length, &taken))
        return;
    if (length > pages)
        fit_again(replica);
    kept.list = calloc(file->index.leaves.count + 1, sizeof *kept.list);
    if (!kept.list)
        return;
    index_each(&file->index, keep_leaf, &kept);
    if (taken > kept.pages) {
        replica->swept = true;
        file->unfit = true;
        atomic_fetch_add(&file->cache->surplus, (taken - kept.pages) * GAIA_PAGE_SIZE);
        pthread_cond_broadcast(&file->changed);
        pthread_mutex_unlock(&file->lock);
        lock_none("drop");
        free_others(replica->frames, &kept, pages);
        pthread_mutex_lock(&file->lock);
        replica->swept = false;
    }
    free(kept.list);
}

/* For who has a map, so nobody waits in fit_sweep(). Lock held, let go meanwhile. */
static void drop_first(struct replica *replica)
{
    struct fit_drop *drop = STAILQ_FIRST(&replica->drops);

    STAILQ_REMOVE_HEAD(&replica->drops, link);
    pthread_mutex_unlock(&replica->file->lock);
    lock_none("fit_drop");
    replica->frames->ops->drop(replica->frames, drop->first, drop->count);
    drop->done(drop);
    pthread_mutex_lock(&replica->file->lock);
}

/* Lock held. */
static void look_whether_all_fit(struct cache_file *file)
{
    struct replica *replica;
    bool unfit = false;

    SLIST_FOREACH (replica, &file->replicas, link)
        unfit |= replica->unfit || replica->fitting;
    file->unfit = unfit;
}

/* replica->fitting is the caller's. Lock held, let go meanwhile. */
static void work(struct replica *replica)
{
    while (has_work(replica)) {
        if (replica->unfit)
            resize(replica);
        else if (!STAILQ_EMPTY(&replica->drops))
            drop_first(replica);
        else
            sweep(replica);
    }
    replica->fitting = replica->restless = false;
    look_whether_all_fit(replica->file);
    pthread_cond_broadcast(&replica->file->changed);
}

static void *work_apart(void *argument)
{
    struct replica *replica = argument;
    struct cache_file *file = replica->file;
    struct cache *cache = file->cache;

    pthread_mutex_lock(&file->lock);
    work(replica);
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
    cache->fitters--;
    return NULL;
}

/* A thread that has a use of the file. Lock held. */
static int begin(struct replica *replica)
{
    struct cache *cache = replica->file->cache;
    pthread_t thread;

    if (cache->unfitted)
        return -ESHUTDOWN;
    cache->fitters++;
    replica->file->uses++;
    int error = thread_start(&thread, work_apart, replica);
    if (!error) {
        pthread_detach(thread);
        return 0;
    }
    replica->file->uses--;
    cache->fitters--;
    return error;
}

/* Frames that no client can hold up, a GPU's, are seen to here. Lock held, let go meanwhile. */
static void start(struct replica *replica)
{
    if (replica->fitting || !has_work(replica))
        return;
    replica->fitting = true;
    if (replica->scans || begin(replica))
        work(replica);
}

/* to_place: also for what is being freed, which has nothing to do with the size. Lock held, let go while
 * waiting. */
static void wait_for(struct replica *replica, bool to_place, const struct timespec *until)
{
    struct cache_file *file = replica->file;

    while (replica->unfit || replica->resizing || (to_place && replica->swept)) {
        if (lock_is_past(until)) {
            replica->restless = true;
            break;
        }
        pthread_cond_timedwait(&file->changed, &file->lock, until);
    }
}

void fit_begin(struct cache_file *file)
{
    struct replica *replica;

    if (!file->unfit || file->cache->unfitted)
        return;
    SLIST_FOREACH (replica, &file->replicas, link) /* they are only ever added */
        start(replica);
}

/* What the devices could not do is tried once more. Lock held. */
static void fit_misfits(struct cache_file *file)
{
    struct replica *replica;

    if (!file->misfit)
        return;
    file->misfit = false;
    SLIST_FOREACH (replica, &file->replicas, link)
        if (replica->misfit)
            fit_again(replica);
}

/* All of them have the time once. */
static void fit_within(struct cache_file *file, unsigned patience_ms, bool for_device)
{
    struct cache *cache = file->cache;
    struct replica *replica;

    if (!(file->unfit || (for_device && file->misfit)) || cache->unfitted)
        return;
    bool few = for_device || atomic_fetch_add(&cache->fit_waits, 1) < WAITS_MOST;
    struct timespec soon = lock_wait_until(RESTLESS_MS), until = few ? lock_wait_until(patience_ms) : soon;
    file_use(file);
    pthread_mutex_lock(&file->lock);
    if (for_device)
        fit_misfits(file);
    fit_begin(file);
    SLIST_FOREACH (replica, &file->replicas, link)
        wait_for(replica, false, replica->restless && !for_device ? &soon : &until);
    pthread_mutex_unlock(&file->lock);
    if (!for_device)
        cache->fit_waits--;
    file_unuse(file);
}

void fit_frames(struct cache_file *file)
{
    fit_within(file, PATIENCE_MS, false);
}

void fit_frames_for_device(struct cache_file *file)
{
    fit_within(file, DEVICES_MS, true);
}

void fit_to_place(struct replica *replica)
{
    struct cache_file *file = replica->file;

    if (!file->unfit && !replica->misfit)
        return;
    pthread_mutex_lock(&file->lock);
    struct timespec until = lock_wait_until(replica->restless ? RESTLESS_MS : PATIENCE_MS);
    if (replica->misfit && !file->cache->unfitted)
        fit_again(replica);
    start(replica);
    wait_for(replica, true, &until);
    pthread_mutex_unlock(&file->lock);
    if (replica->misfit) /* the touch comes again at once */
        usleep(RESTLESS_MS * 1000);
}

void fit_drop(struct replica *replica, struct fit_drop *drop)
{
    struct cache_file *file = replica->file;

    file_use(file);
    pthread_mutex_lock(&file->lock);
    STAILQ_INSERT_TAIL(&replica->drops, drop, link);
    start(replica);
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
}

void fit_sweep(struct replica *replica)
{
    struct cache_file *file = replica->file;
    uint64_t length, taken;

    pthread_mutex_lock(&file->lock);
    if (!file->cache->unfitted && !replica->frames->ops->extent(replica->frames, &length, &taken) &&
        (taken > replica->resident || length > file_pages(file->size))) {
        replica->overfull = true;
        start(replica);
    }
    while (replica->overfull && !replica->unfit && !replica->resizing && !replica->swept)
        pthread_cond_wait(&file->changed, &file->lock);
    pthread_mutex_unlock(&file->lock);
}

bool fit_end(struct cache *cache)
{
    struct timespec until = lock_wait_until(END_MS);

    cache->unfitted = true;
    while (cache->fitters && !lock_is_past(&until))
        usleep(1000);
    return !cache->fitters;
}
