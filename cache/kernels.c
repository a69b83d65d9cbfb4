/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/collect.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "consistency/merge.h"

/* What one kernel may hold of a leaf. */
struct kernel_leaf {
    struct table_entry entry;           /* first */
    LIST_ENTRY(kernel_leaf) link;       /* of all */
    TAILQ_ENTRY(kernel_leaf) droppable; /* of the node's with old pages */
    unsigned node;
    uint64_t leaf;
    page_mask given;    /* it may hold the page */
    page_mask old;      /* of given: with a twin; the home copy has changed since */
    uint64_t round;     /* of the dropper, in which it was looked at last */
    page_mask dropping; /* of old: it is being told to, and was not given the page since */
    page_mask late;     /* not old, with a twin: dropped, but a write-back of it may be on its way yet */
    uint32_t twins[LEAF_PAGES];
};

struct dropper_work {
    STAILQ_ENTRY(dropper_work) link;
    struct cache_file *file; /* in use */
};

#define NODES (MEMBERS_MAX + 1) /* this one is 0 */
#define FLUSH_MS 30000u
#define AGAIN_US 100000u

static uint64_t key_of(unsigned node, uint64_t leaf)
{
    return leaf * NODES + node;
}

static struct kernel_leaf *find(struct kernels *kernels, unsigned node, uint64_t leaf)
{
    return (struct kernel_leaf *)table_find(&kernels->leaves, key_of(node, leaf));
}

static int make_droppable(struct kernels *kernels)
{
    struct kernel_leaves *droppable = calloc(NODES, sizeof *droppable);

    if (!droppable)
        return -ENOMEM;
    for (unsigned node = 0; node < NODES; node++)
        TAILQ_INIT(&droppable[node]);
    kernels->droppable = droppable;
    return 0;
}

static struct kernel_leaf *get(struct kernels *kernels, unsigned node, uint64_t leaf)
{
    struct kernel_leaf *k = find(kernels, node, leaf);

    if (k)
        return k;
    if (!kernels->droppable && make_droppable(kernels))
        return NULL;
    k = calloc(1, sizeof *k);
    if (!k || table_add(&kernels->leaves, &k->entry, key_of(node, leaf))) {
        free(k);
        return NULL;
    }
    k->node = node;
    k->leaf = leaf;
    LIST_INSERT_HEAD(&kernels->all, k, link);
    return k;
}

/* The dropper looks at who has any: behind the others of the node, as it has looked at the first last. */
static void set_old(struct kernels *kernels, struct kernel_leaf *k, page_mask old)
{
    if (old && !k->old)
        TAILQ_INSERT_TAIL(&kernels->droppable[k->node], k, droppable);
    if (!old && k->old)
        TAILQ_REMOVE(&kernels->droppable[k->node], k, droppable);
    kernels->old += (uint64_t)__builtin_popcountll(old);
    kernels->old -= (uint64_t)__builtin_popcountll(k->old);
    k->old = old;
}

static void drop_twins(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    for (page_mask left = (k->old | k->late) & pages; left; left &= left - 1)
        frame_put(&file->cache->twins, k->twins[__builtin_ctzll(left)]);
    file->kernels.late -= (unsigned)__builtin_popcountll(k->late & pages);
    set_old(&file->kernels, k, k->old & ~pages);
    k->late &= ~pages;
    k->dropping &= ~pages;
}

/* The kernel has dropped the pages. Before Linux 6.16 that may be before what it has written back of them has
 * come: then the twins stay, until it asks for the page again (for which it waits) or the file is closed. */
static void dropped(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    k->given &= ~pages;
    if (!(file->cache->nodes->late_kernels >> k->node & 1)) {
        drop_twins(file, k, pages);
        return;
    }
    file->kernels.late += (unsigned)__builtin_popcountll(pages);
    k->late |= pages;
    set_old(&file->kernels, k, k->old & ~pages);
    k->dropping &= ~pages;
}

void kernels_free(struct cache_file *file)
{
    struct kernels *kernels = &file->kernels;
    struct kernel_leaf *k;

    while ((k = LIST_FIRST(&kernels->all))) {
        drop_twins(file, k, k->old | k->late);
        LIST_REMOVE(k, link);
        free(k);
    }
    table_free(&kernels->leaves);
    free(kernels->droppable);
    kernels->droppable = NULL;
}

/* Pages of a range of bytes. */
struct span {
    uint64_t first, count;
};

static struct span span_of(off_t offset, uint64_t length)
{
    uint64_t first = (uint64_t)offset / GAIA_PAGE_SIZE, last;

    if (length > (uint64_t)(INT64_MAX - offset))
        length = (uint64_t)(INT64_MAX - offset);
    last = ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE;
    return (struct span){first, last - first + 1};
}

int kernels_given(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    if (!file->cache->nodes || !length)
        return 0;
    struct span span = span_of(offset, length);
    for (uint64_t leaf = span.first >> LEAF_SHIFT; leaf <= (span.first + span.count - 1) >> LEAF_SHIFT;
         leaf++) {
        struct kernel_leaf *k = get(&file->kernels, node, leaf);
        if (!k)
            return -ENOMEM;
        page_mask pages = page_range_mask(leaf, span.first, span.count);
        drop_twins(file, k, pages); /* it asks for what it does not hold, and has written back */
        k->given |= pages;
    }
    return 0;
}

bool kernels_overtaken(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    if (!file->kernels.old || !length)
        return false;
    struct span span = span_of(offset, length);
    for (uint64_t leaf = span.first >> LEAF_SHIFT; leaf <= (span.first + span.count - 1) >> LEAF_SHIFT;
         leaf++) {
        struct kernel_leaf *k = find(&file->kernels, node, leaf);
        if (k && k->old & page_range_mask(leaf, span.first, span.count))
            return true;
    }
    return false;
}

static int read_page(struct cache_file *file, uint64_t page, uint8_t *bytes)
{
    return home_read(file, bytes, GAIA_PAGE_SIZE, (off_t)(page * GAIA_PAGE_SIZE));
}

static int take_kernel_twins(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    struct frame_pool *pool = &file->cache->twins;

    pages &= k->given & ~k->old;
    drop_twins(file, k, pages); /* late: it has been given the page since */
    for (; pages; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        int error = frame_get(pool, &k->twins[page]);
        if (error)
            return error;
        error = read_page(file, (k->leaf << LEAF_SHIFT) + page, frame_bytes(pool, k->twins[page]));
        if (error) {
            frame_put(pool, k->twins[page]);
            return error;
        }
        set_old(&file->kernels, k, k->old | UINT64_C(1) << page);
    }
    return 0;
}

int kernels_change(struct cache_file *file, unsigned node, off_t offset, uint64_t length)
{
    struct kernels *kernels = &file->kernels;
    struct kernel_leaf *k;
    int error = 0;

    if (!file->cache->nodes || !kernels->leaves.count || !length)
        return 0;
    struct span span = span_of(offset, length);
    uint64_t from = span.first >> LEAF_SHIFT, to = (span.first + span.count - 1) >> LEAF_SHIFT;
    if (to - from < 64) {
        for (uint64_t leaf = from; leaf <= to && !error; leaf++)
            for (unsigned n = 0; n < NODES && !error; n++)
                if (n != node && (k = find(kernels, n, leaf)))
                    error = take_kernel_twins(file, k, page_range_mask(leaf, span.first, span.count));
        return error;
    }
    LIST_FOREACH (k, &kernels->all, link)
        if (k->node != node && k->leaf >= from && k->leaf <= to && !error)
            error = take_kernel_twins(file, k, page_range_mask(k->leaf, span.first, span.count));
    return error;
}

/* Bytes of a range that lie in a page, copied to where the page's bytes are. */
static void copy_part(uint8_t *to, uint64_t page, const uint8_t *bytes, size_t length, off_t offset)
{
    off_t start = (off_t)(page * GAIA_PAGE_SIZE), end = start + (off_t)GAIA_PAGE_SIZE;
    off_t from = offset > start ? offset : start,
          until = offset + (off_t)length < end ? offset + (off_t)length : end;

    if (from < until)
        memcpy(to + (from - start), bytes + (from - offset), (size_t)(until - from));
}

void kernels_wrote(struct cache_file *file, unsigned node, const void *bytes, size_t length, off_t offset)
{
    if (!file->cache->nodes || !length)
        return;
    struct span span = span_of(offset, length);
    for (uint64_t leaf = span.first >> LEAF_SHIFT; leaf <= (span.first + span.count - 1) >> LEAF_SHIFT;
         leaf++) {
        struct kernel_leaf *k = get(&file->kernels, node, leaf);
        page_mask pages = page_range_mask(leaf, span.first, span.count);
        if (!k) /* its pages are dropped with everything else of the file's: */
            continue;
        k->given |= pages;
        k->dropping &= ~pages;             /* it may hold them anew */
        if (file->announced == ANNOUNCING) /* without memory for them as without the rule */
            take_kernel_twins(file, k, pages);
        for (page_mask left = (k->old | k->late) & pages; left; left &= left - 1) {
            unsigned page = (unsigned)__builtin_ctzll(left);
            copy_part(frame_bytes(&file->cache->twins, k->twins[page]), (leaf << LEAF_SHIFT) + page, bytes,
                      length, offset);
        }
    }
}

/* The twin of the page that has this byte, where its write-backs are merged; else NULL. */
static uint8_t *twin_of(struct cache_file *file, unsigned node, off_t offset)
{
    uint64_t page = (uint64_t)offset / GAIA_PAGE_SIZE;

    if (!file->kernels.old && !file->kernels.late)
        return NULL;
    struct kernel_leaf *k = find(&file->kernels, node, page >> LEAF_SHIFT);
    if (!k || !((k->old | k->late) & page_bit(page)))
        return NULL;
    return frame_bytes(&file->cache->twins, k->twins[page & (LEAF_PAGES - 1)]);
}

int kernels_merge(struct cache_file *file, unsigned node, const uint8_t *bytes, off_t offset, size_t length,
                  uint8_t *room, const uint8_t **merged_out)
{
    size_t within = (size_t)offset % GAIA_PAGE_SIZE;
    const uint8_t *twin = twin_of(file, node, offset);
    uint8_t home[GAIA_PAGE_SIZE];

    *merged_out = bytes;
    if (!twin)
        return 0;
    int error = read_page(file, (uint64_t)offset / GAIA_PAGE_SIZE, home);
    if (error)
        return error;
    memcpy(room, home + within, length);
    gaia_merge(room, twin + within, bytes, length);
    *merged_out = room;
    return 0;
}

void kernels_wrote_back(struct cache_file *file, unsigned node, const uint8_t *bytes, size_t length,
                        off_t offset)
{
    uint8_t *twin = twin_of(file, node, offset);

    if (twin)
        memcpy(twin + (size_t)offset % GAIA_PAGE_SIZE, bytes, length);
}

void kernels_resized(struct cache_file *file)
{
    if (file->cache->nodes)
        file->kernels.resized = true;
}

bool kernels_behind(const struct cache_file *file)
{
    const struct kernels *kernels = &file->kernels;

    return kernels->old || kernels->resized || kernels->queued || kernels->running;
}

/* ---- the dropper ---- */

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
    bool wanted = (kernels->old || kernels->resized) && !kernels->queued;
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

/* The next leaf of a node with old pages, which are being dropped from now on. What has become old in this
 * round is behind what was looked at in it: its turn is the next one. Lock held. */
static page_mask next_old(struct cache_file *file, unsigned node, uint64_t *leaf_out)
{
    struct kernels *kernels = &file->kernels;
    struct kernel_leaf *k = kernels->droppable ? TAILQ_FIRST(&kernels->droppable[node]) : NULL;

    if (!k || k->round == kernels->rounds)
        return 0;
    TAILQ_REMOVE(&kernels->droppable[node], k, droppable);
    TAILQ_INSERT_TAIL(&kernels->droppable[node], k, droppable);
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
    heal_window_open(file, (leaf << LEAF_SHIFT) + first, (leaf << LEAF_SHIFT) + end - 1);
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
    struct kernel_leaf *k = find(&file->kernels, node, leaf);
    if (k && (!error || error == -ENOENT || error == -EIO)) { /* -EIO: the node has gone */
        dropped(file, k, k->dropping);
    } else if (k) { /* tried again, a little later */
        k->dropping = 0;
        file->kernels.failed = true;
    }
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
    for (unsigned node = 0; node < NODES; node++)
        for (;;) {
            uint64_t leaf;
            pthread_mutex_lock(&file->lock);
            page_mask pages = next_old(file, node, &leaf);
            pthread_mutex_unlock(&file->lock);
            if (!pages)
                break;
            drop_leaf(file, node, leaf, pages);
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
    file->kernels.queued |= file->kernels.old || file->kernels.resized;
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
    while (!error &&
           (kernels->finished < round || (kernels->clean < round && (kernels->old || kernels->resized))))
        if (pthread_cond_timedwait(&file->changed, &file->lock, &until) == ETIMEDOUT)
            error = -EIO;
    pthread_mutex_unlock(&file->lock);
    return error;
}
