/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/heal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/internal.h"
#include "consistency/merge.h"

/* How long an answer waits for its pages to be dropped. When it comes earlier a read may be stale until they
 * are, but none of the WRITE's bytes is lost: write-backs are merged under it until then. Short where the
 * page may be locked until the answer, and where many handlers wait already: the write-backs that an
 * invalidation causes need some that do not. */
#define WAIT_MS 100
#define WAIT_SHORT_MS 10
#define WAITING_MAX 6u

struct heal {
    LIST_ENTRY(heal) link;    /* window->heals */
    STAILQ_ENTRY(heal) queue; /* healer->queue */
    struct cache_file *file;  /* in use */
    off_t offset;
    size_t length, cut;  /* bytes of the request, and those that were applied */
    uint64_t leaves;     /* bit i: the i-th leaf of the range is marked as being invalidated */
    bool linked;         /* in window->heals; under the file's lock */
    bool done;           /* under healer->lock */
    unsigned references; /* the WRITE's handler and the healer; under healer->lock */
    uint8_t bytes[];     /* of the WRITE, and behind them what the home had there before */
};

static uint8_t *old_bytes(struct heal *heal)
{
    return heal->bytes + heal->length;
}

void heal_window_init(struct heal_window *window)
{
    *window = (struct heal_window){.first = 1, .last = 0};
    LIST_INIT(&window->heals);
}

void heal_window_open(struct cache_file *file, uint64_t first, uint64_t last)
{
    struct heal_window *window = &file->window;

    window->open++;
    if (window->first > window->last) {
        window->first = first;
        window->last = last;
        return;
    }
    window->first = first < window->first ? first : window->first;
    window->last = last > window->last ? last : window->last;
}

void heal_window_close(struct cache_file *file)
{
    file->window.open--;
}

void heal_drop_begin(struct leaf *leaf, page_mask pages)
{
    if (!leaf->invalidations++) {
        leaf->reread = 0;
        leaf->dropped = 0;
    }
    leaf->dropped |= pages;
}

void heal_drop_end(struct leaf *leaf)
{
    /* While another one is under way it is not known which of the pages are still held. */
    if (!--leaf->invalidations)
        leaf->refilled = (leaf->refilled & ~leaf->dropped) | leaf->reread;
}

void heal_refilled(struct leaf *leaf, page_mask pages)
{
    leaf->refilled |= pages;
    leaf->reread |= pages;
}

/* Whether the kernel has read one of the pages since it dropped it: else what it holds, if anything, is the
 * WRITE's own (which may then be locked until the answer). A page that no device holds any more has nobody to
 * remember it by. */
static bool was_refilled(struct cache_file *file, uint64_t first, uint64_t last)
{
    for (uint64_t number = first >> LEAF_SHIFT; number <= last >> LEAF_SHIFT; number++) {
        struct leaf *leaf = index_find(&file->index, number);
        if (!leaf || leaf->refilled & page_range_mask(number, first, last - first + 1))
            return true;
    }
    return false;
}

/* Mark the leaves of a heal as being invalidated: a bit for each that exists. Lock held. */
static void drop_begin(struct heal *heal)
{
    uint64_t first = (uint64_t)heal->offset / GAIA_PAGE_SIZE;
    uint64_t last = ((uint64_t)heal->offset + heal->length - 1) / GAIA_PAGE_SIZE;

    for (uint64_t i = 0; i <= (last >> LEAF_SHIFT) - (first >> LEAF_SHIFT) && i < 64; i++) {
        struct leaf *leaf = index_find(&heal->file->index, (first >> LEAF_SHIFT) + i);
        if (!leaf)
            continue;
        heal_drop_begin(leaf, page_range_mask(leaf->number, first, last - first + 1));
        heal->leaves |= UINT64_C(1) << i;
    }
}

static void drop_end(struct heal *heal)
{
    uint64_t first = (uint64_t)heal->offset / GAIA_PAGE_SIZE >> LEAF_SHIFT;

    for (uint64_t left = heal->leaves; left; left &= left - 1) {
        struct leaf *leaf = index_find(&heal->file->index, first + (uint64_t)__builtin_ctzll(left));
        heal_drop_end(leaf);
        leaf_settle(leaf);
    }
}

/* A newer write() to bytes that are being healed. Lock held. */
static void overwrite(struct heal_window *window, const uint8_t *bytes, size_t length, off_t offset)
{
    struct heal *heal;

    LIST_FOREACH (heal, &window->heals, link) {
        off_t begin = heal->offset > offset ? heal->offset : offset;
        off_t heal_end = heal->offset + (off_t)heal->cut, end = offset + (off_t)length;
        if (heal_end < end)
            end = heal_end;
        if (begin < end)
            memcpy(heal->bytes + (begin - heal->offset), bytes + (begin - offset), (size_t)(end - begin));
    }
}

int heal_start(struct cache_file *file, const void *bytes, size_t length, off_t offset,
               struct heal **heal_out)
{
    struct heal_window *window = &file->window;
    uint64_t first = (uint64_t)offset / GAIA_PAGE_SIZE;
    uint64_t last = ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE;

    *heal_out = NULL;
    overwrite(window, bytes, length, offset);
    if (!length || window->first > window->last)
        return 0;
    bool hit =
        file->pinned && first <= window->last && last >= window->first && was_refilled(file, first, last);
    if (hit) {
        struct heal *heal = malloc(sizeof *heal + 2 * length);
        if (!heal)
            return -ENOMEM;
        *heal = (struct heal){
            .file = file, .offset = offset, .length = length, .cut = length, .linked = true, .references = 2};
        memcpy(heal->bytes, bytes, length);
        ssize_t had = pread(file->fd, old_bytes(heal), length, offset);
        memset(old_bytes(heal) + (had > 0 ? had : 0), 0, length - (had > 0 ? (size_t)had : 0));
        LIST_INSERT_HEAD(&window->heals, heal, link);
        *heal_out = heal;
    }
    /* The next WRITE is put together after this one is answered: after the invalidations that are over now.
     */
    if (!window->open) {
        window->first = 1;
        window->last = 0;
    }
    if (hit) {
        heal_window_open(file, first, last);
        drop_begin(*heal_out);
        file->uses++; /* it is pinned, and stays so by this */
    }
    return 0;
}

/* Lock held. */
static void unlink_heal(struct heal *heal)
{
    if (heal->linked)
        LIST_REMOVE(heal, link);
    heal->linked = false;
}

void heal_cut(struct heal *heal, size_t done)
{
    heal->cut = done;
    if (!done)
        unlink_heal(heal);
}

static void heal_put(struct healer *healer, struct heal *heal)
{
    pthread_mutex_lock(&healer->lock);
    unsigned left = --heal->references;
    pthread_mutex_unlock(&healer->lock);
    if (!left)
        free(heal);
}

/* The pages are healed: mark it, and put the healer's reference. */
static void heal_end(struct cache *cache, struct heal *heal)
{
    struct cache_file *file = heal->file;

    pthread_mutex_lock(&file->lock);
    unlink_heal(heal);
    drop_end(heal);
    heal_window_close(file);
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
    pthread_mutex_lock(&cache->healer.lock);
    heal->done = true;
    pthread_cond_broadcast(&cache->healer.changed);
    pthread_mutex_unlock(&cache->healer.lock);
    heal_put(&cache->healer, heal);
}

/* A page that the WRITE has in part may be locked until it is answered: when the page was not up to date, and
 * is the WRITE's own. Such a page holds its bytes, and so does any that is not stale; one that holds others
 * is somebody else's, stale or just being read. A page that is being read has zeros until then (or what its
 * memory held before, on a kernel that does not clear it): it can't be told from one in which zeros were
 * written. */
enum last_page { LAST_FINE, LAST_STALE, LAST_UNKNOWN };

static enum last_page look_at_last_page(struct cache *cache, struct heal *heal)
{
    struct cache_host *host = &cache->host;
    off_t end = heal->offset + (off_t)heal->cut, start = end & ~(off_t)(GAIA_PAGE_SIZE - 1);
    uint8_t bytes[GAIA_PAGE_SIZE];

    if (start < heal->offset)
        start = heal->offset;
    size_t length = (size_t)(end - start);
    ssize_t n = host->peek(host->context, heal->file->context, start, length, bytes);
    const uint8_t *wrote = heal->bytes + (start - heal->offset);
    if (n < 0 || (n && !wrote[0] && !memcmp(wrote, wrote + 1, length - 1)))
        return LAST_UNKNOWN;
    return memcmp(bytes, wrote, (size_t)n) ? LAST_STALE : LAST_FINE;
}

void heal_finish(struct cache *cache, struct heal *heal)
{
    struct healer *healer = &cache->healer;
    off_t end = heal->offset + (off_t)heal->cut;
    struct timespec until;

    if (!heal->cut) { /* nothing was written: nothing is stale */
        heal_end(cache, heal);
        heal_put(healer, heal);
        return;
    }

    enum last_page last = end & (GAIA_PAGE_SIZE - 1) ? look_at_last_page(cache, heal) : LAST_STALE;
    pthread_mutex_lock(&healer->lock);
    unsigned wait_ms = last == LAST_UNKNOWN || healer->waiting >= WAITING_MAX ? WAIT_SHORT_MS : WAIT_MS;
    if (last == LAST_FINE) /* it is dropped all the same, but nobody waits for that */
        wait_ms = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    until.tv_sec += wait_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    STAILQ_INSERT_TAIL(&healer->queue, heal, queue);
    healer->waiting++;
    pthread_cond_broadcast(&healer->changed);
    while (!heal->done && pthread_cond_timedwait(&healer->changed, &healer->lock, &until) != ETIMEDOUT)
        ;
    healer->waiting--;
    healer->heals++;
    healer->late += !heal->done && wait_ms;
    pthread_mutex_unlock(&healer->lock);
    heal_put(healer, heal);
}

void heal_reapply(struct cache_file *file, int fd, const void *page, off_t offset, size_t length)
{
    struct heal *heal;

    LIST_FOREACH (heal, &file->window.heals, link) {
        off_t begin = heal->offset > offset ? heal->offset : offset;
        off_t heal_end = heal->offset + (off_t)heal->cut, end = offset + (off_t)length;
        uint8_t bytes[GAIA_PAGE_SIZE];
        if (heal_end < end)
            end = heal_end;
        while (begin < end) {
            size_t n = end - begin < (off_t)sizeof bytes ? (size_t)(end - begin) : sizeof bytes;
            memcpy(bytes, heal->bytes + (begin - heal->offset), n);
            gaia_merge(bytes, old_bytes(heal) + (begin - heal->offset),
                       (const uint8_t *)page + (begin - offset), n);
            if (pwrite(fd, bytes, n, begin) != (ssize_t)n)
                break; /* the write-back itself has just been written here: nothing is short of space */
            begin += (off_t)n;
        }
    }
}

static void heal_one(struct cache *cache, struct heal *heal)
{
    off_t first = heal->offset & ~(off_t)(GAIA_PAGE_SIZE - 1);

    cache->host.invalidate(cache->host.context, heal->file->context, first,
                           heal->offset + (off_t)heal->cut - first);
    heal_end(cache, heal);
}

static void *heal_all(void *argument)
{
    struct cache *cache = argument;
    struct healer *healer = &cache->healer;
    struct heal *heal;

    pthread_mutex_lock(&healer->lock);
    for (;;) {
        while (!(heal = STAILQ_FIRST(&healer->queue)) && !healer->stop)
            pthread_cond_wait(&healer->changed, &healer->lock);
        if (!heal)
            break;
        STAILQ_REMOVE_HEAD(&healer->queue, queue);
        pthread_mutex_unlock(&healer->lock);
        heal_one(cache, heal);
        pthread_mutex_lock(&healer->lock);
    }
    pthread_mutex_unlock(&healer->lock);
    return NULL;
}

int healer_start(struct cache *cache)
{
    struct healer *healer = &cache->healer;

    pthread_mutex_init(&healer->lock, NULL);
    pthread_cond_init(&healer->changed, NULL);
    STAILQ_INIT(&healer->queue);
    return -pthread_create(&healer->thread, NULL, heal_all, cache);
}

void healer_stop(struct cache *cache)
{
    struct healer *healer = &cache->healer;

    pthread_mutex_lock(&healer->lock);
    healer->stop = true;
    pthread_cond_broadcast(&healer->changed);
    pthread_mutex_unlock(&healer->lock);
    pthread_join(healer->thread, NULL);
    pthread_cond_destroy(&healer->changed);
    pthread_mutex_destroy(&healer->lock);
}
