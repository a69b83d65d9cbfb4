/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/dropper.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/home.h"
#include "cache/kernels_internal.h"

struct dropper_work {
    STAILQ_ENTRY(dropper_work) link;
    struct cache_file *file; /* in use */
};

#define FLUSH_MS 30000u
#define AGAIN_US 100000u

static void enqueue(struct dropper *dropper, struct dropper_work *work)
{
    pthread_mutex_lock(&dropper->lock);
    STAILQ_INSERT_TAIL(&dropper->queue, work, link);
    pthread_cond_signal(&dropper->queued);
    pthread_mutex_unlock(&dropper->lock);
}

/* 0 or -ENOMEM: whoever asks next tries again. */
static int dropper_request(struct cache_file *file)
{
    struct cache *cache = file->cache;
    struct kernels *kernels = &file->kernels;

    if (!cache->nodes)
        return 0;
    pthread_mutex_lock(&file->lock);
    bool wanted = kernels_are_due(kernels) && !kernels->queued;
    bool running = kernels->running;
    struct dropper_work *work = wanted && !running ? malloc(sizeof *work) : NULL;
    if (work || (wanted && running))
        kernels->queued = true;
    pthread_mutex_unlock(&file->lock);
    if (!work)
        return wanted && !running ? -ENOMEM : 0;
    file_use(file);
    work->file = file;
    enqueue(&cache->dropper, work);
    return 0;
}

void kernels_settle(struct cache_file *file)
{
    dropper_request(file);
}

/* The next leaf of a node with old pages, which are being dropped from now on. A leaf that has become old in
 * this round is behind those that were looked at in it: its turn is in the next one. Lock held. */
static page_mask next_old(struct cache_file *file, unsigned node, uint64_t *leaf_out)
{
    struct kernels *kernels = &file->kernels;
    struct kernel_leaf *k = kernels->nodes ? TAILQ_FIRST(&kernels->nodes[node].droppable) : NULL;

    if (!k || k->round == kernels->rounds)
        return 0;
    TAILQ_REMOVE(&kernels->nodes[node].droppable, k, droppable);
    TAILQ_INSERT_TAIL(&kernels->nodes[node].droppable, k, droppable);
    k->round = kernels->rounds;
    k->dropping = k->old;
    *leaf_out = k->leaf;
    return k->old;
}

static void drop_leaf(struct cache_file *file, unsigned node, uint64_t leaf, page_mask pages)
{
    unsigned length, first = page_mask_run(&pages, &length), end = first + length;

    while (pages) /* one range: a page too many is read again */
        end = page_mask_run(&pages, &length) + length;
    page_mask range = page_range_mask(0, first, end - first);
    pthread_mutex_lock(&file->lock);
    struct leaf *held = index_find(&file->index, leaf);
    heal_window_open_node(file, node, (leaf << LEAF_SHIFT) + first, (leaf << LEAF_SHIFT) + end - 1);
    if (held)
        heal_drop_begin(held, range);
    pthread_mutex_unlock(&file->lock);
    int error = home_invalidate_node(file, node, (off_t)(((leaf << LEAF_SHIFT) + first) * GAIA_PAGE_SIZE),
                                     (off_t)((end - first) * GAIA_PAGE_SIZE));
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    if (held) { /* it has stayed. What other kernels have of it nobody has dropped: as if all had read it
                   again */
        heal_drop_end(file, held, range, 0, false);
        leaf_settle(held);
    }
    struct kernel_leaf *k = kernels_find(&file->kernels, node, leaf);
    if (k && (!error || error == -ENOENT || (node && error == -EIO))) { /* -EIO: that node has gone */
        kernels_dropped(file, k, k->dropping);
    } else if (k) { /* tried again, a little later */
        k->dropping = 0;
        file->kernels.failed = true;
    }
    pthread_mutex_unlock(&file->lock);
}

/* All that a kernel has. What is changed unseen meanwhile it drops once more. */
static void drop_stale(struct cache_file *file, unsigned node)
{
    struct kernels *kernels = &file->kernels;
    uint64_t bit = UINT64_C(1) << node;

    pthread_mutex_lock(&file->lock);
    bool stale = kernels->stale & bit;
    kernels->stale &= ~bit;
    if (stale)
        heal_window_open_node(file, node, 0, UINT64_MAX);
    pthread_mutex_unlock(&file->lock);
    if (!stale)
        return;
    int error = home_invalidate_node(file, node, 0, 0);
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    if (error && error != -ENOENT && !(node && error == -EIO)) {
        kernels->stale |= bit;
        kernels->failed = true;
    }
    kernels->refused &= kernels->stale | ~bit;
    pthread_mutex_unlock(&file->lock);
}

static void drop_old(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    file->kernels.rounds++; /* who writes on and on is looked at once in each */
    file->kernels.failed = false;
    file->kernels.queued = false;
    file->kernels.running = true;
    bool resized = file->kernels.resized;
    file->kernels.resized = false;
    pthread_mutex_unlock(&file->lock);
    for (unsigned node = 0; node < KERNELS_NODES; node++) {
        drop_stale(file, node);
        for (;;) {
            uint64_t leaf;
            pthread_mutex_lock(&file->lock);
            page_mask pages = next_old(file, node, &leaf);
            pthread_mutex_unlock(&file->lock);
            if (!pages)
                break;
            drop_leaf(file, node, leaf, pages);
        }
    }
    /* After what they hold of the page where the file ended, which has zeros past that. */
    int error = resized ? home_tell_size(file) : 0;
    pthread_mutex_lock(&file->lock);
    if (error) {
        file->kernels.resized = true;
        file->kernels.failed = true;
    }
    file->kernels.finished = file->kernels.rounds;
    if (!file->kernels.failed)
        file->kernels.clean = file->kernels.finished;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
}

/* A file's turn is over: whether it wants another one. What could not be dropped is tried a little later. */
static bool end_turn(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    bool failed = file->kernels.failed;
    pthread_mutex_unlock(&file->lock);
    if (failed)
        usleep(AGAIN_US);
    pthread_mutex_lock(&file->lock);
    file->kernels.running = false;
    file->kernels.queued |= kernels_are_due(&file->kernels);
    bool again = file->kernels.queued;
    pthread_mutex_unlock(&file->lock);
    return again;
}

static void *drop_for_all(void *argument);

/* Lock held. */
static int one_more(struct cache *cache)
{
    struct dropper *dropper = &cache->dropper;
    int error = -pthread_create(&dropper->threads[dropper->started], NULL, drop_for_all, cache);

    dropper->started += !error;
    dropper->idle += !error;
    return error;
}

static void *drop_for_all(void *argument)
{
    struct cache *cache = argument;
    struct dropper *dropper = &cache->dropper;
    struct dropper_work *work;

    pthread_mutex_lock(&dropper->lock);
    for (;;) {
        while (!(work = STAILQ_FIRST(&dropper->queue)) && !dropper->stop)
            pthread_cond_wait(&dropper->queued, &dropper->lock);
        if (!work)
            break;
        STAILQ_REMOVE_HEAD(&dropper->queue, link);
        if (!--dropper->idle && !dropper->stop && dropper->started < DROPPERS)
            one_more(cache); /* else the next work waits for one of these */
        pthread_mutex_unlock(&dropper->lock);
        drop_old(work->file);
        if (end_turn(work->file)) {
            enqueue(dropper, work);
        } else {
            file_unuse(work->file);
            free(work);
        }
        pthread_mutex_lock(&dropper->lock);
        dropper->idle++;
    }
    pthread_mutex_unlock(&dropper->lock);
    return NULL;
}

int dropper_start(struct cache *cache)
{
    struct dropper *dropper = &cache->dropper;

    lock_init(&dropper->lock, LOCK_DROPPER);
    pthread_cond_init(&dropper->queued, NULL);
    STAILQ_INIT(&dropper->queue);
    pthread_mutex_lock(&dropper->lock);
    int error = one_more(cache);
    pthread_mutex_unlock(&dropper->lock);
    return error;
}

void dropper_stop(struct cache *cache)
{
    struct dropper *dropper = &cache->dropper;

    pthread_mutex_lock(&dropper->lock);
    dropper->stop = true;
    pthread_cond_broadcast(&dropper->queued);
    pthread_mutex_unlock(&dropper->lock);
    while (dropper->started)
        pthread_join(dropper->threads[--dropper->started], NULL);
    pthread_cond_destroy(&dropper->queued);
    pthread_mutex_destroy(&dropper->lock);
}

int kernels_flush(struct cache_file *file)
{
    struct kernels *kernels = &file->kernels;

    if (!file->cache->nodes)
        return 0;
    int error = dropper_request(file);
    struct timespec until = lock_wait_until(FLUSH_MS);
    pthread_mutex_lock(&file->lock);
    uint64_t round = kernels->queued ? kernels->rounds + 1 : kernels->rounds;
    /* A kernel that did not drop what it was told to is told again, and may do it then. */
    while (!error && (kernels->finished < round || (kernels->clean < round && kernels_are_due(kernels))))
        if (pthread_cond_timedwait(&file->changed, &file->lock, &until) == ETIMEDOUT)
            error = -EIO;
    pthread_mutex_unlock(&file->lock);
    return error;
}
