/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/heal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/kernel.h"
#include "cache/home.h"
#include "cache/internal.h"

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
/* How long, and for how many WRITEs of so many bytes of a file, write-backs are awaited that a kernel before
 * Linux 6.16 may have on their way: the newest. They come when the daemon has answered what came before them.
 */
#define LINGER_NS UINT64_C(60000000000)
#define LINGER_MOST 64u
#define LINGER_BYTES ((size_t)4 << 20)
/* How long an opener may need to drop the file's pages after its OPEN was answered. */
#define OPEN_NS 1000000000u

struct heal {
    LIST_ENTRY(heal) link;    /* window->heals */
    STAILQ_ENTRY(heal) queue; /* healer->queue */
    struct cache_file *file;  /* in use */
    off_t offset;
    size_t length, cut;   /* bytes of the request, and those that were applied */
    size_t dropped;       /* of those, the leading ones whose pages are invalidated */
    uint64_t reads;       /* the last READ that may have read what was there before */
    uint64_t leaves;      /* bit i: the i-th leaf of the range is marked as being invalidated */
    uint64_t drop_reads;  /* the last READ before that */
    unsigned node;        /* whose kernel */
    bool misplaced;       /* heal_misplaced() */
    bool linked;          /* in window->heals; under the file's lock, as is the next */
    uint64_t lingers_ns;  /* not 0: it is done, and write-backs of the pages may come until then */
    bool head_done, done; /* all but the last page, everything; under healer->lock */
    unsigned references;  /* the WRITE's handler and the healer; under healer->lock */
    uint8_t bytes[];      /* of the WRITE, behind them what the home had there before, and current_bits() */
};

static uint8_t *old_bytes(struct heal *heal)
{
    return heal->bytes + heal->length;
}

/* A bit for each page that is known to be as new as the WRITE wherever its kernel has it from here on: it has
 * asked for it since the WRITE was applied, or shown it with nothing in it that the WRITE has replaced. */
static uint8_t *current_bits(struct heal *heal)
{
    return heal->bytes + 2 * heal->length;
}

static bool is_current(struct heal *heal, size_t page)
{
    return current_bits(heal)[page / 8] >> page % 8 & 1;
}

static void set_current(struct heal *heal, size_t page)
{
    current_bits(heal)[page / 8] |= (uint8_t)(1u << page % 8);
}

static size_t current_size(size_t length)
{
    return (length / GAIA_PAGE_SIZE + 2) / 8 + 1;
}

/* Its number within the heal. */
static size_t page_of(const struct heal *heal, off_t offset)
{
    return (size_t)(offset / (off_t)GAIA_PAGE_SIZE - heal->offset / (off_t)GAIA_PAGE_SIZE);
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
    window->kernels = home_kernels(file);
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

void heal_window_reopen(struct cache_file *file)
{
    heal_window_open(file, 0, UINT64_MAX);
    heal_window_close(file);
    file->window.until_ns = clock_now_ns() + OPEN_NS;
}

void heal_drop_begin(struct leaf *leaf, page_mask pages)
{
    if (!leaf->invalidations++) {
        leaf->reread = 0;
        leaf->dropped = 0;
    }
    leaf->dropped |= pages;
}

void heal_drop_end(struct cache_file *file, struct leaf *leaf, page_mask pages, uint64_t read_number,
                   bool done)
{
    if (done)
        reads_dropped(file, leaf, pages, read_number);
    else
        leaf->reread |= pages;
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
    uint64_t last = ((uint64_t)heal->offset + heal->dropped - 1) / GAIA_PAGE_SIZE;

    heal_window_open(heal->file, first, last);
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

/* The part of a heal that lies in [offset, offset + length), as [*begin, *end). */
static bool overlap(const struct heal *heal, off_t offset, off_t length, off_t *begin, off_t *end)
{
    off_t heal_end = heal->offset + (off_t)heal->cut;

    *begin = heal->offset > offset ? heal->offset : offset;
    *end = heal_end - offset < length ? heal_end : offset + length;
    return *begin < *end;
}

/* Pages of a heal that lie in a range of bytes, which is not empty. */
static void set_pages_current(struct heal *heal, off_t offset, size_t length)
{
    off_t page_size = (off_t)GAIA_PAGE_SIZE;
    off_t first = offset / page_size, last = (offset + (off_t)length - 1) / page_size,
          heal_first = heal->offset / page_size,
          heal_last = (heal->offset + (off_t)heal->cut - 1) / page_size;

    for (off_t page = first > heal_first ? first : heal_first; page <= last && page <= heal_last; page++)
        set_current(heal, (size_t)(page - heal_first));
}

/* A newer write() to bytes that are being healed. Lock held. */
static void overwrite(struct heal_window *window, const uint8_t *bytes, size_t length, off_t offset)
{
    struct heal *heal;
    off_t begin, end;

    LIST_FOREACH (heal, &window->heals, link)
        if (overlap(heal, offset, (off_t)length, &begin, &end))
            memcpy(heal->bytes + (begin - heal->offset), bytes + (begin - offset), (size_t)(end - begin));
}

static void read_home(struct cache_file *file, uint8_t *bytes, size_t length, off_t offset)
{
    ssize_t n = pread(file->fd, bytes, length, offset);

    memset(bytes + (n > 0 ? n : 0), 0, length - (n > 0 ? (size_t)n : 0));
}

void heal_changed(struct cache_file *file, off_t offset, off_t length)
{
    struct heal *heal;
    off_t begin, end;

    LIST_FOREACH (heal, &file->window.heals, link)
        if (overlap(heal, offset, length, &begin, &end)) {
            size_t from = (size_t)(begin - heal->offset), n = (size_t)(end - begin);
            read_home(file, heal->bytes + from, n, begin);
            memcpy(old_bytes(heal) + from, heal->bytes + from, n);
        }
}

void heal_reread(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    struct heal *heal;

    LIST_FOREACH (heal, &file->window.heals, link)
        if (heal->node == node && length)
            set_pages_current(heal, offset, length);
}

/* Lock held. */
static void unlink_heal(struct heal *heal)
{
    if (heal->linked)
        LIST_REMOVE(heal, link);
    heal->linked = false;
}

static void heal_put(struct healer *healer, struct heal *heal)
{
    pthread_mutex_lock(&healer->lock);
    unsigned left = --heal->references;
    pthread_mutex_unlock(&healer->lock);
    if (!left)
        free(heal);
}

/* ---- write-backs that are late ---- */

static bool writes_back_late(const struct cache_file *file, unsigned node)
{
    const struct nodes *nodes = file->cache->nodes;

    return nodes ? nodes->late_kernels >> node & 1 : file->cache->healer.late_kernel;
}

static bool all_current(struct heal *heal)
{
    size_t last = heal->cut ? page_of(heal, heal->offset + (off_t)heal->cut - 1) + 1 : 0;

    for (size_t page = 0; page < last; page++)
        if (!is_current(heal, page))
            return false;
    return true;
}

/* End those that linger and need not any more, or are too many; the list has the newest first. Lock held. */
static void let_go(struct cache_file *file)
{
    uint64_t now = LIST_EMPTY(&file->window.heals) ? 0 : clock_now_ns();
    struct heal *heal, *next;
    size_t bytes = 0;
    unsigned count = 0;

    for (heal = LIST_FIRST(&file->window.heals); heal; heal = next) {
        next = LIST_NEXT(heal, link);
        if (!heal->lingers_ns)
            continue;
        bytes += heal->length;
        if (now < heal->lingers_ns && ++count <= LINGER_MOST && bytes <= LINGER_BYTES && !all_current(heal))
            continue;
        unlink_heal(heal);
        heal_put(&file->cache->healer, heal);
    }
}

/* The pages are dropped, but what the kernel has written back of them before that may come yet. Lock held. */
static void linger(struct cache_file *file, struct heal *heal)
{
    heal->lingers_ns = clock_now_ns() + LINGER_NS;
    pthread_mutex_lock(&file->cache->healer.lock);
    heal->references++;
    pthread_mutex_unlock(&file->cache->healer.lock);
    let_go(file);
}

/* The kernel has waited for the write-backs of these pages before it sent a WRITE to them. Lock held. */
static void written_anew(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    struct heal *heal;

    LIST_FOREACH (heal, &file->window.heals, link)
        if (heal->lingers_ns && heal->node == node && length)
            set_pages_current(heal, offset, length);
    let_go(file);
}

void heal_window_free(struct cache_file *file)
{
    struct heal *heal;

    /* All linger, and nobody else has a reference: who heals has the file in use. There may be no healer any
     * more. */
    while ((heal = LIST_FIRST(&file->window.heals))) {
        LIST_REMOVE(heal, link);
        free(heal);
    }
}

/* ---- */

/* In the file's list; its bytes are the caller's to set. Lock held. */
static struct heal *heal_new(struct cache_file *file, size_t length, off_t offset, unsigned node)
{
    struct heal *heal = malloc(sizeof *heal + 2 * length + current_size(length));

    if (!heal)
        return NULL;
    *heal = (struct heal){.file = file,
                          .offset = offset,
                          .length = length,
                          .cut = length,
                          .reads = file->reads.number,
                          .node = node,
                          .linked = true,
                          .references = 2};
    memset(current_bits(heal), 0, current_size(length));
    LIST_INSERT_HEAD(&file->window.heals, heal, link);
    return heal;
}

int heal_start(struct cache_file *file, const void *bytes, size_t length, off_t offset, unsigned flags,
               struct heal **heal_out)
{
    struct heal_window *window = &file->window;
    unsigned node = flags >> 8;
    uint64_t first = (uint64_t)offset / GAIA_PAGE_SIZE;
    uint64_t last = ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE;

    *heal_out = NULL;
    if (!(flags & CACHE_IO_DIRECT))
        written_anew(file, node, offset, length);
    if (!length || window->first > window->last)
        return 0;
    bool hit = first <= window->last && last >= window->first && window->kernels >> node & 1 &&
               was_refilled(file, first, last);
    if (hit) {
        struct heal *heal = heal_new(file, length, offset, node);
        if (!heal)
            return -ENOMEM;
        memcpy(heal->bytes, bytes, length);
        read_home(file, old_bytes(heal), length, offset);
        *heal_out = heal;
    }
    /* The next WRITE is put together after this one is answered: after the invalidations that are over now.
     */
    if (!window->open && !(flags & CACHE_IO_DIRECT) && clock_now_ns() >= window->until_ns) {
        window->kernels &= ~(UINT64_C(1) << node);
        if (file->cache->nodes && window->kernels) /* of others it may be the next but one */
            return 0;
        window->first = 1;
        window->last = 0;
    }
    return 0;
}

int heal_misplaced(struct cache_file *file, const void *bytes, size_t length, off_t offset, unsigned flags,
                   struct heal **heal_out)
{
    *heal_out = NULL;
    if (!length || flags & CACHE_IO_DIRECT)
        return 0;
    struct heal *heal = heal_new(file, length, offset, flags >> 8);
    if (!heal)
        return -ENOMEM;
    read_home(file, heal->bytes, length, offset); /* and heal_applied() puts there what the WRITE changes */
    memcpy(old_bytes(heal), bytes, length);
    heal->misplaced = true;
    *heal_out = heal;
    return 0;
}

void heal_applied(struct cache_file *file, struct heal *heal, const void *bytes, size_t done, off_t offset)
{
    overwrite(&file->window, bytes, done, offset);
    if (!heal)
        return;
    heal->cut = done;
    heal->reads = file->reads.number;
    if (!done)
        unlink_heal(heal);
}

/* The pages are healed, or not (done): mark it, and put the healer's reference. */
static void heal_end(struct cache *cache, struct heal *heal, bool done)
{
    struct cache_file *file = heal->file;

    pthread_mutex_lock(&file->lock);
    if (writes_back_late(file, heal->node) && !all_current(heal))
        linger(file, heal);
    else
        unlink_heal(heal);
    if (heal->dropped) /* what other kernels have of it nobody has dropped: as if all had read it again */
        drop_end(heal, done && home_kernels(file) == UINT64_C(1) << heal->node);
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
    pthread_mutex_lock(&cache->healer.lock);
    heal->done = true;
    pthread_cond_broadcast(&cache->healer.changed);
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
        set_current(heal, page_of(heal, page));
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

    if (overlap(heal, page, shown, &begin, &end))
        for (off_t at = begin; at < end; at++) {
            uint8_t old = old_bytes(heal)[at - heal->offset];
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
            set_current(heal, page_of(heal, page));
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
    while (!*flag && wait_ms && pthread_cond_timedwait(&healer->changed, &healer->lock, &until) != ETIMEDOUT)
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
    pthread_cond_broadcast(&healer->changed);
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
    heal_put(healer, heal); /* the second reference; NOLINT(clang-analyzer-unix.Malloc) */
}

/* Each heal has the newest bytes: see overwrite(). A byte is stale when it is what any of them has replaced.
 */
const uint8_t *heal_merge(struct cache_file *file, unsigned node, const uint8_t *bytes, off_t offset,
                          size_t length, uint8_t *bytes_out)
{
    struct heal *heal;
    off_t begin, end;
    bool any = false;

    assert(length <= GAIA_PAGE_SIZE);
    LIST_FOREACH (heal, &file->window.heals, link) {
        if (heal->node != node || !overlap(heal, offset, (off_t)length, &begin, &end) ||
            is_current(heal, page_of(heal, begin)))
            continue;
        if (!any)
            memcpy(bytes_out, bytes, length);
        any = true;
        for (off_t at = begin; at < end; at++)
            if (bytes[at - offset] == old_bytes(heal)[at - heal->offset])
                bytes_out[at - offset] = heal->bytes[at - heal->offset];
    }
    return any ? bytes_out : bytes;
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
    heal->head_done = true;
    pthread_cond_broadcast(&healer->changed);
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
    pthread_cond_broadcast(&healer->changed);
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
            pthread_cond_wait(&healer->changed, &healer->lock);
        if (!heal)
            break;
        heal_next(cache, heal);
    }
    pthread_mutex_unlock(&healer->lock);
    return NULL;
}

int healer_start(struct cache *cache)
{
    struct healer *healer = &cache->healer;
    int error = 0;

    healer->late_kernel = kernel_writes_back_late();
    lock_init(&healer->lock, LOCK_HEALER);
    lock_condition_init(&healer->changed);
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
    pthread_cond_broadcast(&healer->changed);
    pthread_mutex_unlock(&healer->lock);
    while (healer->started)
        pthread_join(healer->threads[--healer->started], NULL);
    pthread_cond_destroy(&healer->changed);
    pthread_mutex_destroy(&healer->lock);
}
