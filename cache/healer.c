/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/heal_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/kernel.h"
#include "cache/home.h"

/* How long an answer waits for its pages to be dropped. When it comes earlier a read may be stale until they
 * are, but none of the WRITE's bytes is lost: write-backs are merged under it until then. Short where the
 * page may be locked until the answer, and where many handlers wait already: the write-backs that an
 * invalidation causes need some that do not. Long where the kernel shows a page that is stale: nobody keeps
 * that locked. */
#define WAIT_MS 100u
#define WAIT_SHORT_MS 10u
#define WAIT_STALE_MS 2000u
#define WAITING_MAX 6u
/* How long a reader may need to unlock a page after its READ was answered. Longer would cost those WRITEs
 * more whose own page it is; and a reader that gets no processor for longer has a stale page there until it
 * does. (That our own naps end on time says nothing about it: tried.) */
#define READER_MS 5u

void heal_put(struct healer *healer, struct heal *heal)
{
    pthread_mutex_lock(&healer->lock);
    unsigned left = --heal->references;
    pthread_mutex_unlock(&healer->lock);
    if (!left)
        free(heal);
}

/* Mark the leaves of a heal as being invalidated: a bit for each that exists. Lock held. */
static void drop_begin(struct heal *heal)
{
    uint64_t first = (uint64_t)heal->offset / GAIA_PAGE_SIZE;
    uint64_t last = ((uint64_t)heal->offset + heal->dropped - 1) / GAIA_PAGE_SIZE;

    heal_window_open_node(heal->file, heal->node, first, last);
    heal->drop_reads = heal->file->reads.number;
    for (uint64_t i = 0; i <= (last >> LEAF_SHIFT) - (first >> LEAF_SHIFT) && i < 64; i++) {
        struct leaf *leaf = index_find(&heal->file->index, (first >> LEAF_SHIFT) + i);
        if (!leaf)
            continue;
        heal_drop_begin(leaf, page_range_mask(leaf->number, first, last - first + 1));
        heal->leaves |= UINT64_C(1) << i;
    }
}

static void drop_end(struct heal *heal, bool done)
{
    uint64_t first = (uint64_t)heal->offset / GAIA_PAGE_SIZE;
    uint64_t last = ((uint64_t)heal->offset + heal->dropped - 1) / GAIA_PAGE_SIZE;

    for (uint64_t left = heal->leaves; left; left &= left - 1) {
        uint64_t number = (first >> LEAF_SHIFT) + (uint64_t)__builtin_ctzll(left);
        struct leaf *leaf = index_find(&heal->file->index, number);
        heal_drop_end(heal->file, leaf, page_range_mask(number, first, last - first + 1), heal->drop_reads,
                      done);
        leaf_settle(leaf);
    }
    heal_window_close(heal->file);
}

/* The pages are healed, or not (done): mark it, and put the healer's reference. */
static void heal_end(struct cache *cache, struct heal *heal, bool done)
{
    struct cache_file *file = heal->file;

    pthread_mutex_lock(&file->lock);
    heal_over(file, heal, done);
    if (heal->dropped) /* what other kernels have of it nobody has dropped: as if all had read it again */
        drop_end(heal, done && home_kernels(file) == UINT64_C(1) << heal->node);
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
    pthread_mutex_lock(&cache->healer.lock);
    heal->done = true;
    pthread_cond_broadcast(&cache->healer.healed);
    pthread_mutex_unlock(&cache->healer.lock);
    heal_put(&cache->healer, heal);
}

enum last_page { LAST_FINE, LAST_NOTHING, LAST_STALE, LAST_OWN_OR_READ, LAST_UNKNOWN };

/* The offset of the last page that was written. */
static off_t last_page_start(const struct heal *heal)
{
    return (heal->offset + (off_t)heal->cut - 1) & ~(off_t)(GAIA_PAGE_SIZE - 1);
}

static enum last_page look_at_last_page(struct heal *heal)
{
    struct cache_file *file = heal->file;
    off_t end = heal->offset + (off_t)heal->cut, page = last_page_start(heal);
    off_t start = page < heal->offset ? heal->offset : page;
    ssize_t length = (ssize_t)(end - start), before = (ssize_t)(start - page);
    uint8_t bytes[GAIA_PAGE_SIZE];

    if (length == (ssize_t)GAIA_PAGE_SIZE) /* a whole page is up to date at once */
        return LAST_STALE;
    pthread_mutex_lock(&file->lock);
    int recent =
        reads_wait(file, heal->node, (uint64_t)page / GAIA_PAGE_SIZE, heal->reads, READER_MS * 1000000u);
    pthread_mutex_unlock(&file->lock);
    if (recent < 0)
        return LAST_UNKNOWN;
    lock_none("cache_host.peek");
    ssize_t n = home_peek(file, heal->node, page, (size_t)(before + length), bytes);
    if (!n)
        return recent ? LAST_OWN_OR_READ : LAST_NOTHING;
    if (n <= before) /* an error, or the kernel takes the file to end here: it shows nothing of ours */
        return LAST_UNKNOWN;
    /* A newer change of these bytes is put into the heal meanwhile: overwrite(), heal_changed(). */
    pthread_mutex_lock(&file->lock);
    bool stale = memcmp(bytes + before, heal->bytes + (start - heal->offset), (size_t)(n - before));
    bool fine = !stale && n == before + length;
    if (fine)
        heal_set_current(heal, heal_page_of(heal, page));
    pthread_mutex_unlock(&file->lock);
    if (stale)
        return LAST_STALE;
    return fine ? LAST_FINE : LAST_UNKNOWN;
}

/* Of a page as the kernel shows it, from its first byte to the WRITE's last one: whether a byte is what the
 * WRITE has replaced. Lock held. */
static bool has_replaced(struct heal *heal, off_t page, const uint8_t *bytes, off_t shown)
{
    off_t begin, end;

    if (heal_overlaps(heal, page, shown, &begin, &end))
        for (off_t at = begin; at < end; at++) {
            uint8_t old = heal_old_bytes(heal)[at - heal->offset];
            if (bytes[at - page] == old && old != heal->bytes[at - heal->offset])
                return true;
        }
    return false;
}

/* A heal is late: look at what it has not dropped yet. A page that the kernel shows with nothing in it that
 * the WRITE has replaced is current. One that it does not show it has to ask for before anybody stores to it.
 * Whether it shows one that is stale. No lock is held. */
static bool look_at_pages(struct heal *heal)
{
    off_t end = heal->offset + (off_t)heal->cut;
    bool any = false;

    for (off_t page = heal->offset & ~(off_t)(GAIA_PAGE_SIZE - 1); page < end; page += GAIA_PAGE_SIZE) {
        size_t length = end - page < (off_t)GAIA_PAGE_SIZE ? (size_t)(end - page) : GAIA_PAGE_SIZE;
        uint8_t bytes[GAIA_PAGE_SIZE];
        /* A kernel that shows pages which are being read shows anything there. Asked before, as a READ may
         * end while the kernel is looked into; one that begins meanwhile brings what the WRITE has written.
         */
        pthread_mutex_lock(&heal->file->lock);
        bool filled = reads_may_fill(heal->file, heal->node, (uint64_t)page / GAIA_PAGE_SIZE, heal->reads,
                                     READER_MS * 1000000u);
        pthread_mutex_unlock(&heal->file->lock);
        lock_none("cache_host.peek");
        ssize_t n = home_peek(heal->file, heal->node, page, length, bytes);
        if (n < 0)
            break; /* it does not answer, or not in time */
        pthread_mutex_lock(&heal->file->lock);
        bool stale = has_replaced(heal, page, bytes, n);
        if (!stale && n == (ssize_t)length && !filled)
            heal_set_current(heal, heal_page_of(heal, page));
        pthread_mutex_unlock(&heal->file->lock);
        any |= stale;
    }
    return any;
}

/* Lock held. Wait for a flag of a heal at most so long; whether it is set. */
static bool wait_for(struct healer *healer, const bool *flag, unsigned wait_ms)
{
    if (healer->waiting > WAITING_MAX && wait_ms > WAIT_SHORT_MS)
        wait_ms = WAIT_SHORT_MS;
    struct timespec until = lock_wait_until(wait_ms);
    while (!*flag && wait_ms && pthread_cond_timedwait(&healer->healed, &healer->lock, &until) != ETIMEDOUT)
        ;
    return *flag;
}

/* Lock held, but not while pages are looked at. */
static bool wait_longer(struct healer *healer, struct heal *heal, const bool *flag)
{
    pthread_mutex_unlock(&healer->lock);
    bool stale = look_at_pages(heal);
    pthread_mutex_lock(&healer->lock);
    return wait_for(healer, flag, stale ? WAIT_STALE_MS : 0);
}

/* Hand the heal to the healers, and wait for it; for its last page at most so long. */
static void wait_for_drop(struct healer *healer, struct heal *heal, unsigned last_ms)
{
    pthread_mutex_lock(&healer->lock);
    STAILQ_INSERT_TAIL(&healer->queue, heal, queue);
    pthread_cond_signal(&healer->queued); /* else one that ends another heal of the file takes it */
    healer->waiting++;
    bool late = !wait_for(healer, &heal->head_done, WAIT_MS) && !wait_longer(healer, heal, &heal->head_done);
    /* What is misplaced is in the last page in any case, also where that is locked until the answer and is
     * shown all the same. */
    if (!late && !wait_for(healer, &heal->done, last_ms) && last_ms > READER_MS)
        late = heal->misplaced || !wait_longer(healer, heal, &heal->done);
    healer->waiting--;
    healer->heals++;
    healer->late += late;
    pthread_mutex_unlock(&healer->lock);
}

void heal_finish(struct cache *cache, struct heal *heal)
{
    static const unsigned wait_ms[] = {[LAST_FINE] = WAIT_MS, /* for the pages before it */
                                       [LAST_NOTHING] = 0,
                                       [LAST_STALE] = WAIT_MS,
                                       [LAST_OWN_OR_READ] = READER_MS,
                                       [LAST_UNKNOWN] = WAIT_SHORT_MS};
    struct healer *healer = &cache->healer;

    file_use(heal->file); /* the WRITE's handle has kept it till here */
    enum last_page last = heal->cut ? look_at_last_page(heal) : LAST_FINE;

    heal->head_done = !heal->cut || last_page_start(heal) <= heal->offset;
    heal->dropped = heal->cut;
    if (last == LAST_FINE)
        heal->dropped =
            last_page_start(heal) > heal->offset ? (size_t)(last_page_start(heal) - heal->offset) : 0;
    if (heal->dropped) {
        pthread_mutex_lock(&heal->file->lock);
        drop_begin(heal);
        pthread_mutex_unlock(&heal->file->lock);
        wait_for_drop(healer, heal, wait_ms[last]);
    } else {
        heal_end(cache, heal, true);
    }
    /* By the second reference: NOLINTBEGIN(clang-analyzer-unix.Malloc) */
    pthread_mutex_lock(&heal->file->lock);
    heal->answered_early = !heal->lingers_ns; /* or has ended */
    pthread_mutex_unlock(&heal->file->lock);
    heal_put(healer, heal); /* NOLINTEND(clang-analyzer-unix.Malloc) */
}

/* Of the kernel that the WRITE came from: what others hold they are told by the dropper (cache/kernels.h). */
static int drop_range(const struct heal *heal, off_t from, off_t end)
{
    int error = from < end ? home_invalidate_node(heal->file, heal->node, from, end - from) : 0;

    return error == -ENOENT ? 0 : error;
}

/* The last page by itself: it may be locked until the answer, which waits for the others. */
static void heal_one(struct cache *cache, struct heal *heal)
{
    struct healer *healer = &cache->healer;
    off_t first = heal->offset & ~(off_t)(GAIA_PAGE_SIZE - 1), end = heal->offset + (off_t)heal->dropped;
    off_t last = (end - 1) & ~(off_t)(GAIA_PAGE_SIZE - 1);
    int error = drop_range(heal, first, last);

    pthread_mutex_lock(&healer->lock);
    if (!heal->head_done)
        pthread_cond_broadcast(&healer->healed);
    heal->head_done = true;
    pthread_mutex_unlock(&healer->lock);
    int one = drop_range(heal, last, end);
    heal_end(cache, heal, !error && !one);
}

/* One may wait for a page that the next WRITE, which waits for the other, keeps locked; more would wait for
 * the same pages. */
#define HEALERS_PER_FILE 2u

/* The first whose file has not got its healers yet. Lock held. */
static struct heal *next_heal(struct healer *healer)
{
    struct heal *heal;

    for (heal = STAILQ_FIRST(&healer->queue); heal; heal = STAILQ_NEXT(heal, queue))
        if (heal->file->window.healers < HEALERS_PER_FILE)
            break;
    if (heal)
        STAILQ_REMOVE(&healer->queue, heal, heal, queue);
    return heal;
}

/* Lock held on entry and exit, not in between. */
static void heal_next(struct cache *cache, struct heal *heal)
{
    struct healer *healer = &cache->healer;
    struct cache_file *file = heal->file;

    file->window.healers++;
    pthread_mutex_unlock(&healer->lock);
    file_use(file); /* the heal's own use ends with it */
    heal_one(cache, heal);
    pthread_mutex_lock(&healer->lock);
    file->window.healers--;
    pthread_mutex_unlock(&healer->lock);
    file_unuse(file);
    pthread_mutex_lock(&healer->lock);
}

static void *heal_all(void *argument)
{
    struct cache *cache = argument;
    struct healer *healer = &cache->healer;
    struct heal *heal;

    pthread_mutex_lock(&healer->lock);
    for (;;) {
        while (!(heal = next_heal(healer)) && !(healer->stop && STAILQ_EMPTY(&healer->queue)))
            pthread_cond_wait(&healer->queued, &healer->lock);
        if (!heal)
            break;
        heal_next(cache, heal);
    }
    pthread_cond_broadcast(&healer->queued); /* who waited for what others were doing */
    pthread_mutex_unlock(&healer->lock);
    return NULL;
}

int healer_start(struct cache *cache)
{
    struct healer *healer = &cache->healer;
    int error = 0;

    healer->late_kernel = kernel_writes_back_late();
    lock_init(&healer->lock, LOCK_HEALER);
    lock_condition_init(&healer->queued);
    lock_condition_init(&healer->healed);
    STAILQ_INIT(&healer->queue);
    while (healer->started < HEALER_THREADS && !error) {
        error = -pthread_create(&healer->threads[healer->started], NULL, heal_all, cache);
        healer->started += !error;
    }
    if (error)
        healer_stop(cache);
    return error;
}

void healer_stop(struct cache *cache)
{
    struct healer *healer = &cache->healer;

    pthread_mutex_lock(&healer->lock);
    healer->stop = true;
    pthread_cond_broadcast(&healer->queued);
    pthread_mutex_unlock(&healer->lock);
    while (healer->started)
        pthread_join(healer->threads[--healer->started], NULL);
    pthread_cond_destroy(&healer->queued);
    pthread_cond_destroy(&healer->healed);
    pthread_mutex_destroy(&healer->lock);
}
