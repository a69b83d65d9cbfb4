/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/kernel.h"
#include "cache/home.h"
#include "cache/home_bytes.h"
#include "cache/kernels_internal.h"
#include "consistency/merge.h"

#define LATE_MOST 4096u /* pages of a file with twins, 16 MiB */

static uint64_t key_of(unsigned node, uint64_t leaf)
{
    return leaf * KERNELS_NODES + node;
}

struct kernel_leaf *kernels_find(struct kernels *kernels, unsigned node, uint64_t leaf)
{
    return (struct kernel_leaf *)table_find(&kernels->leaves, key_of(node, leaf));
}

static int make_nodes(struct kernels *kernels)
{
    struct kernel_node *nodes = calloc(KERNELS_NODES, sizeof *nodes);

    if (!nodes)
        return -ENOMEM;
    for (unsigned node = 0; node < KERNELS_NODES; node++)
        TAILQ_INIT(&nodes[node].droppable);
    kernels->nodes = nodes;
    TAILQ_INIT(&kernels->lates);
    return 0;
}

static struct kernel_leaf *get(struct kernels *kernels, unsigned node, uint64_t leaf)
{
    struct kernel_leaf *k = kernels_find(kernels, node, leaf);

    if (k)
        return k;
    if (!kernels->nodes && make_nodes(kernels))
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

static void give(struct kernels *kernels, struct kernel_leaf *k, page_mask pages)
{
    k->given |= pages;
    kernels->nodes[k->node].given = true;
}

/* The dropper looks at who has any: behind the others of the node, as it has looked at the first last. */
static void set_old(struct kernels *kernels, struct kernel_leaf *k, page_mask old)
{
    if (old && !k->old)
        TAILQ_INSERT_TAIL(&kernels->nodes[k->node].droppable, k, droppable);
    if (!old && k->old)
        TAILQ_REMOVE(&kernels->nodes[k->node].droppable, k, droppable);
    kernels->old += (uint64_t)__builtin_popcountll(old);
    kernels->old -= (uint64_t)__builtin_popcountll(k->old);
    k->old = old;
}

bool kernels_write_back_late(const struct cache_file *file, unsigned node)
{
    const struct nodes *nodes = file->cache->nodes;

    return nodes ? nodes->late_kernels >> node & 1 : file->cache->healer.late_kernel;
}

static void set_late(struct kernels *kernels, struct kernel_leaf *k, page_mask late)
{
    bool newer = late & ~k->late;

    if (k->late && (newer || !late))
        TAILQ_REMOVE(&kernels->lates, k, link_late);
    if (newer)
        TAILQ_INSERT_TAIL(&kernels->lates, k, link_late);
    kernels->late += (uint64_t)__builtin_popcountll(late);
    kernels->late -= (uint64_t)__builtin_popcountll(k->late);
    k->late = late;
}

static void drop_twins(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    for (page_mask left = (k->old | k->late) & pages; left; left &= left - 1)
        frame_put(&file->cache->twins, k->twins[__builtin_ctzll(left)]);
    set_old(&file->kernels, k, k->old & ~pages);
    if (k->late & pages)
        set_late(&file->kernels, k, k->late & ~pages);
    k->dropping &= ~pages;
}

void kernels_tidy(struct cache_file *file)
{
    struct kernels *kernels = &file->kernels;
    uint64_t now = kernels->late ? clock_now_ns() : 0;
    struct kernel_leaf *k;

    while (kernels->late && (k = TAILQ_FIRST(&kernels->lates)) &&
           (kernels->late > LATE_MOST || now - k->late_ns > KERNEL_LATE_NS))
        drop_twins(file, k, k->late);
}

/* Pages with twins. */
static void become_late(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    if (!pages)
        return;
    k->late_ns = clock_now_ns();
    set_late(&file->kernels, k, k->late | pages);
    kernels_tidy(file);
}

void kernels_dropped(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    k->given &= ~pages;
    if (!kernels_write_back_late(file, k->node)) {
        drop_twins(file, k, pages);
        return;
    }
    set_old(&file->kernels, k, k->old & ~pages);
    k->dropping &= ~pages;
    become_late(file, k, pages);
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
    free(kernels->nodes);
    kernels->nodes = NULL;
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

/* Nothing is to be noted of a kernel and a leaf that nothing is known of. */
static bool knows_nothing(const struct cache_file *file)
{
    return !file->cache->nodes && !file->kernels.leaves.count;
}

int kernels_given(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    bool nodes = file->cache->nodes;

    if (knows_nothing(file) || !length)
        return 0;
    struct span span = span_of(offset, length);
    for_each_leaf (leaf, span.first, span.count) {
        struct kernel_leaf *k = (nodes ? get : kernels_find)(&file->kernels, node, leaf);
        if (!k && nodes)
            return -ENOMEM;
        if (!k)
            continue;
        page_mask pages = page_range_mask(leaf, span.first, span.count);
        drop_twins(file, k, pages); /* it asks for what it does not hold, and has written back */
        k->released &= ~pages;
        give(&file->kernels, k, pages);
    }
    return 0;
}

bool kernels_overtaken(struct cache_file *file, unsigned node, off_t offset, size_t length)
{
    if (!file->kernels.old || !length)
        return false;
    struct span span = span_of(offset, length);
    for_each_leaf (leaf, span.first, span.count) {
        struct kernel_leaf *k = kernels_find(&file->kernels, node, leaf);
        if (k && k->old & page_range_mask(leaf, span.first, span.count))
            return true;
    }
    return false;
}

static int read_page(struct cache_file *file, uint64_t page, uint8_t *bytes)
{
    return home_read(file, bytes, GAIA_PAGE_SIZE, (off_t)(page * GAIA_PAGE_SIZE));
}

static int take_twin(struct cache_file *file, struct kernel_leaf *k, unsigned page)
{
    struct frame_pool *pool = &file->cache->twins;
    int error = frame_get(pool, &k->twins[page]);

    if (error)
        return error;
    error = read_page(file, (k->leaf << LEAF_SHIFT) + page, frame_bytes(pool, k->twins[page]));
    if (error)
        frame_put(pool, k->twins[page]);
    return error;
}

static int take_kernel_twins(struct cache_file *file, struct kernel_leaf *k, page_mask pages)
{
    pages &= k->given & ~k->old;
    drop_twins(file, k, pages); /* late: it has been given the page since */
    for (; pages; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        int error = take_twin(file, k, page);
        if (error)
            return error;
        set_old(&file->kernels, k, k->old | UINT64_C(1) << page);
    }
    return 0;
}

/* With nodes there is one for each kernel that was given any of it. */
int kernels_reserve(struct cache_file *file, uint64_t leaf)
{
    if (file->cache->nodes || !kernels_write_back_late(file, 0))
        return 0;
    return get(&file->kernels, 0, leaf) ? 0 : -ENOMEM;
}

void kernels_released(struct cache_file *file, uint64_t leaf, page_mask pages)
{
    bool nodes = file->cache->nodes;

    for (unsigned node = 0; pages && node < (nodes ? KERNELS_NODES : 1); node++) {
        struct kernel_leaf *k = kernels_find(&file->kernels, node, leaf);
        if (!k || !kernels_write_back_late(file, node))
            continue;
        page_mask held = pages & ~k->old; /* old: with a twin already */
        if (nodes)
            held &= k->given;
        k->released |= held & ~k->late;
        k->given &= ~held;
    }
}

int kernels_collect(struct cache_file *file, uint64_t leaf, page_mask collected)
{
    int error = 0;

    if (!file->kernels.leaves.count)
        return 0;
    for (unsigned node = 0; !error && node < (file->cache->nodes ? KERNELS_NODES : 1); node++) {
        struct kernel_leaf *k = kernels_find(&file->kernels, node, leaf);
        page_mask pages = k ? k->released & collected : 0, taken = 0;
        for (page_mask left = pages; left && !error; left &= left - 1) {
            error = take_twin(file, k, (unsigned)__builtin_ctzll(left));
            taken |= error ? 0 : left & -left;
        }
        if (k)
            k->released &= ~taken;
        if (taken)
            become_late(file, k, taken);
    }
    return error;
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
            for (unsigned n = 0; n < KERNELS_NODES && !error; n++)
                if (n != node && (k = kernels_find(kernels, n, leaf)))
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
    bool nodes = file->cache->nodes;

    if (knows_nothing(file) || !length)
        return;
    struct span span = span_of(offset, length);
    for_each_leaf (leaf, span.first, span.count) {
        struct kernel_leaf *k = (nodes ? get : kernels_find)(&file->kernels, node, leaf);
        page_mask pages = page_range_mask(leaf, span.first, span.count);
        if (!k) /* its pages are dropped with everything else of the file's: */
            continue;
        k->released &= ~pages; /* it has waited for what was on its way */
        give(&file->kernels, k, pages);
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
    struct kernel_leaf *k = kernels_find(&file->kernels, node, page >> LEAF_SHIFT);
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

void kernels_failed(struct cache_file *file, unsigned node, int error)
{
    struct kernels *kernels = &file->kernels;

    kernels->failures++;
    kernels->failure = error;
    if (kernels->nodes)
        kernels->nodes[node].failures++;
}

uint64_t kernels_failures(const struct cache_file *file, unsigned except)
{
    const struct kernels *kernels = &file->kernels;

    return kernels->failures - (kernels->nodes ? kernels->nodes[except].failures : 0);
}

bool kernels_held_any(const struct cache_file *file, unsigned node)
{
    return file->kernels.nodes && file->kernels.nodes[node].given;
}

void kernels_stale(struct cache_file *file, uint64_t kernels, bool refuse)
{
    file->kernels.stale |= kernels;
    if (refuse)
        file->kernels.refused |= kernels;
}

bool kernels_refused(const struct cache_file *file, unsigned node)
{
    return file->kernels.refused >> node & 1;
}

bool kernels_refuse(struct cache_file *file, unsigned node)
{
    bool refused = kernels_refused(file, node);

    if (refused)
        kernels_failed(file, node, -EIO);
    return refused;
}

void kernels_resized(struct cache_file *file)
{
    if (file->cache->nodes)
        file->kernels.resized = true;
}

bool kernels_behind(const struct cache_file *file)
{
    const struct kernels *kernels = &file->kernels;

    return kernels_are_due(kernels) || kernels->queued || kernels->running;
}
