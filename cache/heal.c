/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/heal_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/kernel.h"
#include "cache/home.h"
#include "cache/home_bytes.h"

/* Write-backs that a kernel before Linux 6.16 may have on their way are awaited for so many WRITEs of a file,
 * the newest ones, and for so much memory that these take. They come when the daemon has answered what came
 * before them. */
#define LINGER_MOST 64u
#define LINGER_BYTES ((size_t)4 << 20)
/* How long an opener may need to drop the file's pages after its OPEN was answered. */
#define OPEN_NS 1000000000u

static const struct heal_dropped NOTHING = {.first = 1, .last = 0};

void heal_window_init(struct heal_window *window)
{
    *window = (struct heal_window){.open = 0};
    LIST_INIT(&window->heals);
    for (unsigned node = 0; node <= MEMBERS_MAX; node++)
        window->dropped[node] = NOTHING;
}

static void may_drop(struct heal_window *window, unsigned node, uint64_t first, uint64_t last)
{
    struct heal_dropped *dropped = &window->dropped[node];
    bool none = dropped->first > dropped->last;

    dropped->first = none || first < dropped->first ? first : dropped->first;
    dropped->last = none || last > dropped->last ? last : dropped->last;
}

void heal_window_open(struct cache_file *file, uint64_t first, uint64_t last)
{
    file->window.open++;
    for (uint64_t kernels = home_kernels(file); kernels; kernels &= kernels - 1)
        may_drop(&file->window, (unsigned)__builtin_ctzll(kernels), first, last);
}

void heal_window_open_node(struct cache_file *file, unsigned node, uint64_t first, uint64_t last)
{
    file->window.open++;
    may_drop(&file->window, node, first, last);
}

void heal_window_close(struct cache_file *file)
{
    file->window.open--;
}

void heal_window_reopen(struct cache_file *file, unsigned node)
{
    may_drop(&file->window, node, 0, UINT64_MAX);
    file->window.dropped[node].until_ns = clock_now_ns() + OPEN_NS;
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

bool heal_overlaps(const struct heal *heal, off_t offset, off_t length, off_t *begin, off_t *end)
{
    off_t heal_end = heal->offset + (off_t)heal->cut;

    *begin = heal->offset > offset ? heal->offset : offset;
    *end = heal_end - offset < length ? heal_end : offset + length;
    return *begin < *end;
}

/* Pages of a heal that a range of bytes has anything of; or only those of which it has all the heal's bytes.
 */
static void set_pages_current(struct heal *heal, off_t offset, off_t length, bool whole_only)
{
    off_t page_size = (off_t)GAIA_PAGE_SIZE, first = offset & ~(page_size - 1), begin, end;
    off_t pages = (offset - first + length + page_size - 1) & ~(page_size - 1);

    if (!heal_overlaps(heal, first, pages, &begin, &end))
        return;
    for (off_t page = begin & ~(page_size - 1), last = end; page < last; page += page_size)
        if (heal_overlaps(heal, page, page_size, &begin, &end) &&
            (!whole_only || (offset <= begin && end <= offset + length)))
            heal_set_current(heal, heal_page_of(heal, page));
}

/* A newer change of bytes that are being healed: for all, but for those of one node, or KERNELS_NOBODY. Lock
 * held. */
static void overwrite(struct heal_window *window, unsigned except, const uint8_t *bytes, size_t length,
                      off_t offset)
{
    struct heal *heal;
    off_t begin, end;

    LIST_FOREACH (heal, &window->heals, link)
        if (heal->node != except && heal_overlaps(heal, offset, (off_t)length, &begin, &end))
            memcpy(heal->bytes + (begin - heal->offset), bytes + (begin - offset), (size_t)(end - begin));
}

void heal_written_back(struct cache_file *file, unsigned node, const uint8_t *bytes, size_t length,
                       off_t offset)
{
    overwrite(&file->window, node, bytes, length, offset);
}

/* After an error it is all zeros. */
static int read_home(struct cache_file *file, uint8_t *bytes, size_t length, off_t offset)
{
    int error = home_read(file, bytes, length, offset);

    if (error)
        memset(bytes, 0, length);
    return error;
}

void heal_changed(struct cache_file *file, off_t offset, off_t length)
{
    struct heal *heal;
    off_t begin, end;

    LIST_FOREACH (heal, &file->window.heals, link)
        if (heal_overlaps(heal, offset, length, &begin, &end)) {
            size_t from = (size_t)(begin - heal->offset), n = (size_t)(end - begin);
            (void)read_home(file, heal->bytes + from, n, begin); /* it was changed: too late to refuse */
            if (!heal->lingers_ns) /* else its kernel has dropped the page, and what may come is as old */
                memcpy(heal_old_bytes(heal) + from, heal->bytes + from, n);
        }
}

/* A direct READ of a page that is being healed may be for the program that has asked, and not for the kernel.
 */
void heal_reread(struct cache_file *file, off_t offset, size_t length, unsigned flags)
{
    struct heal *heal;

    if (LIST_EMPTY(&file->window.heals) || !length || flags & CACHE_IO_UNCACHED)
        return;
    LIST_FOREACH (heal, &file->window.heals, link)
        if (heal->node == flags >> 8 && (heal->lingers_ns || !(flags & CACHE_IO_DIRECT)))
            set_pages_current(heal, offset, (off_t)length, false);
    heal_tidy(file);
}

/* Lock held. */
static void unlink_heal(struct heal *heal)
{
    if (heal->linked)
        LIST_REMOVE(heal, link);
    heal->linked = false;
}

/* ---- write-backs that are late ---- */

static bool all_current(struct heal *heal)
{
    size_t last = heal->cut ? heal_page_of(heal, heal->offset + (off_t)heal->cut - 1) + 1 : 0;

    for (size_t page = 0; page < last; page++)
        if (!heal_is_current(heal, page))
            return false;
    return true;
}

/* The list has the newest first. */
void heal_tidy(struct cache_file *file)
{
    uint64_t now = LIST_EMPTY(&file->window.heals) ? 0 : clock_now_ns();
    struct heal *heal, *next;
    size_t bytes = 0;
    unsigned count = 0;

    for (heal = LIST_FIRST(&file->window.heals); heal; heal = next) {
        next = LIST_NEXT(heal, link);
        if (!heal->lingers_ns)
            continue;
        bool wanted = now < heal->lingers_ns && !all_current(heal);
        count += wanted;
        bytes += wanted ? 2 * heal->length : 0;
        if (wanted && count <= LINGER_MOST && bytes <= LINGER_BYTES)
            continue;
        unlink_heal(heal);
        heal_put(&file->cache->healer, heal);
    }
}

/* The pages are dropped, but what the kernel has written back of them before that may come yet. Lock held. */
static void linger(struct cache_file *file, struct heal *heal)
{
    heal->lingers_ns = clock_now_ns() + KERNEL_LATE_NS;
    pthread_mutex_lock(&file->cache->healer.lock);
    heal->references++;
    pthread_mutex_unlock(&file->cache->healer.lock);
    heal_tidy(file);
}

void heal_over(struct cache_file *file, struct heal *heal, bool done)
{
    if (done && kernels_write_back_late(file, heal->node) && !all_current(heal))
        linger(file, heal);
    else
        unlink_heal(heal);
}

/* The kernel waits for write-backs of a page before it sends a WRITE to it. Those that a WRITE is about which
 * was sent before the heal has dropped its pages may come later; but what has all of the heal's bytes in a
 * page leaves nothing of what they have replaced. */
void heal_written(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    struct heal *heal;

    if (LIST_EMPTY(&file->window.heals) || !length)
        return;
    LIST_FOREACH (heal, &file->window.heals, link)
        if (heal->node == node)
            set_pages_current(heal, offset, (off_t)length, !heal->lingers_ns || heal->answered_early);
    heal_tidy(file);
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

/* ---- WRITEs that are being healed ---- */

static size_t current_size(size_t length)
{
    return (length / GAIA_PAGE_SIZE + 2) / 8 + 1;
}

/* In the file's list. misplaced: what the home has is what belongs there, else it is what the WRITE replaces;
 * the other bytes are the caller's to set. Lock held. */
static int heal_new(struct cache_file *file, size_t length, off_t offset, unsigned node, bool misplaced,
                    struct heal **heal_out)
{
    struct heal *heal = malloc(sizeof *heal + 2 * length + current_size(length));

    if (!heal)
        return -ENOMEM;
    *heal = (struct heal){.file = file,
                          .offset = offset,
                          .length = length,
                          .cut = length,
                          .reads = file->reads.number,
                          .node = node,
                          .misplaced = misplaced,
                          .linked = true,
                          .references = 2};
    int error = read_home(file, misplaced ? heal->bytes : heal_old_bytes(heal), length, offset);
    if (error) { /* what a write-back has could not be told from what the WRITE has replaced */
        free(heal);
        return error;
    }
    memset(heal_current_bits(heal), 0, current_size(length));
    LIST_INSERT_HEAD(&file->window.heals, heal, link);
    *heal_out = heal;
    return 0;
}

int heal_start(struct cache_file *file, const void *bytes, size_t length, off_t offset, unsigned flags,
               struct heal **heal_out)
{
    struct heal_window *window = &file->window;
    unsigned node = flags >> 8;
    struct heal_dropped *dropped = &window->dropped[node];
    uint64_t first = (uint64_t)offset / GAIA_PAGE_SIZE;
    uint64_t last = ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE;

    *heal_out = NULL;
    if (!length || dropped->first > dropped->last)
        return 0;
    bool hit = first <= dropped->last && last >= dropped->first && was_refilled(file, first, last);
    if (hit) {
        int error = heal_new(file, length, offset, node, false, heal_out);
        if (error)
            return error;
        memcpy((*heal_out)->bytes, bytes, length);
    }
    /* The next WRITE is put together after this one is answered: after the invalidations that are over now.
     */
    if (!window->open && !(flags & (CACHE_IO_DIRECT | CACHE_IO_MORE)) && clock_now_ns() >= dropped->until_ns)
        *dropped = NOTHING;
    return 0;
}

int heal_misplaced(struct cache_file *file, const void *bytes, size_t length, off_t offset, unsigned flags,
                   struct heal **heal_out)
{
    *heal_out = NULL;
    if (!length || flags & CACHE_IO_DIRECT)
        return 0;
    int error = heal_new(file, length, offset, flags >> 8, true, heal_out);
    if (!error) /* and heal_applied() puts into its other bytes what the WRITE changes */
        memcpy(heal_old_bytes(*heal_out), bytes, length);
    return error;
}

void heal_applied(struct cache_file *file, struct heal *heal, const void *bytes, size_t done, off_t offset)
{
    overwrite(&file->window, KERNELS_NOBODY, bytes, done, offset);
    if (!heal)
        return;
    heal->cut = done;
    heal->reads = file->reads.number;
    if (!done)
        unlink_heal(heal);
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
        if (heal->node != node || !heal_overlaps(heal, offset, (off_t)length, &begin, &end) ||
            heal_is_current(heal, heal_page_of(heal, begin)))
            continue;
        if (!any)
            memcpy(bytes_out, bytes, length);
        any = true;
        for (off_t at = begin; at < end; at++)
            if (bytes[at - offset] == heal_old_bytes(heal)[at - heal->offset])
                bytes_out[at - offset] = heal->bytes[at - heal->offset];
    }
    return any ? bytes_out : bytes;
}
