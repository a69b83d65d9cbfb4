/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/placed.h"

#include <stdlib.h>

#include "cache/internal.h"

void departures_add(struct departures *departures, uint64_t leaf, uint64_t of_leaves)
{
    if (!departures->leaves) {
        uint64_t room = of_leaves < DEPARTURES_MAX / 2 ? 2 * of_leaves : DEPARTURES_MAX;
        departures->room = room < DEPARTURES_MIN ? DEPARTURES_MIN : (uint32_t)room;
        departures->leaves = malloc(departures->room * sizeof departures->leaves[0]);
    }
    uint64_t number = departures->count++;
    if (departures->leaves)
        departures->leaves[number % departures->room] = leaf;
    else
        departures->since = departures->count;
}

void departures_free(struct departures *departures)
{
    free(departures->leaves);
    *departures = (struct departures){0};
}

/* Whether all that have left from then on are known. */
static bool is_known(const struct departures *departures, uint64_t then)
{
    return then >= departures->since && departures->count - then <= departures->room;
}

/* Whether pages of a leaf in [first, end) are missing. Waits for what is being placed. The lock is held, and
 * let go meanwhile. */
static bool leaf_lacks(struct replica *replica, uint64_t number, uint64_t first, uint64_t end)
{
    struct cache_file *file = replica->file;

    for (;;) {
        struct leaf_copy *copy = replica_find_copy(replica, number);
        uint64_t pages = file_pages(file->size), stop = end < pages ? end : pages;
        page_mask wanted = stop > first ? page_range_mask(number, first, stop - first) : 0;
        page_mask missing = copy ? wanted & ~copy->present : wanted;
        if (!copy || !(missing & copy->busy))
            return missing;
        pthread_cond_wait(&file->changed, &file->lock);
    }
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *one = a, *two = b;

    return (*one > *two) - (*one < *two);
}

/* Of a list, which becomes ascending, each once. */
static size_t sort_leaves(uint64_t *leaves, size_t count)
{
    size_t kept = 0;

    qsort(leaves, count, sizeof leaves[0], by_number);
    for (size_t i = 0; i < count; i++)
        if (!kept || leaves[kept - 1] != leaves[i])
            leaves[kept++] = leaves[i];
    return kept;
}

/* The leaves of the range that have lost pages since it was known to be all there; NULL: no memory. The lock
 * is held. */
static struct lacking *find_departed(const struct replica *replica, const struct placed *placed)
{
    const struct departures *departures = &replica->departures;
    struct lacking *list =
        malloc(sizeof *list + (departures->count - placed->departures) * sizeof list->leaves[0]);

    if (!list)
        return NULL;
    list->count = 0;
    for (uint64_t number = placed->departures; number < departures->count; number++) {
        uint64_t leaf = departures->leaves[number % departures->room];
        if (page_range_mask(leaf, placed->first, placed->end - placed->first))
            list->leaves[list->count++] = leaf;
    }
    list->count = sort_leaves(list->leaves, list->count);
    return list;
}

/* Takes out those that have all their pages again, and those of no page of the range. Whether all have,
 * these, too. The lock is held, and let go meanwhile. */
static bool keep_lacking(struct replica *replica, struct lacking *list, const struct placed *all,
                         uint64_t first, uint64_t end)
{
    size_t kept = 0;
    bool whole = true;

    for (size_t i = 0; i < list->count; i++) {
        uint64_t leaf = list->leaves[i];
        if (!leaf_lacks(replica, leaf, all->first, all->end))
            continue;
        whole = false;
        if (leaf_lacks(replica, leaf, first, end))
            list->leaves[kept++] = leaf;
    }
    list->count = kept;
    return whole;
}

static bool is_same(const struct placed *one, const struct placed *two)
{
    return one->first == two->first && one->end == two->end && one->departures == two->departures &&
           one->pages == two->pages;
}

bool placed_lacks(struct replica *replica, uint64_t first, uint64_t count, struct placed *placed,
                  struct lacking **lacking_out)
{
    struct cache_file *file = replica->file;
    struct lacking *list = NULL;
    bool whole = false;

    pthread_mutex_lock(&file->lock);
    const struct placed then = *placed;
    uint64_t now = replica->departures.count, pages = file_pages(file->size);
    bool known = then.first <= first && first + count <= then.end && first < then.end &&
                 pages <= then.pages && is_known(&replica->departures, then.departures);
    if (known && now != then.departures) {
        list = find_departed(replica, &then);
        known = list;
    }
    if (list)
        whole = keep_lacking(replica, list, &then, first, first + count);
    if (file_pages(file->size) != pages) /* the lock was let go: what was looked at was up to another end */
        known = false;
    else if (whole && is_same(placed, &then))
        *placed = (struct placed){then.first, then.end, now, pages};
    pthread_mutex_unlock(&file->lock);
    if (!known || (list && !list->count)) {
        free(list);
        list = NULL;
    }
    *lacking_out = list;
    return known;
}

/* One more range is all there, at a moment when so many have left. Ranges beside each other become one: a
 * program that works on one part of its mapping after the other acquires each of them by itself. */
static void remember(struct placed *placed, const struct placed *now)
{
    bool joins = placed->departures == now->departures && now->pages <= placed->pages &&
                 placed->first <= now->end && now->first <= placed->end && placed->first < placed->end;

    if (!joins) {
        *placed = *now;
        return;
    }
    placed->first = placed->first < now->first ? placed->first : now->first;
    placed->end = placed->end > now->end ? placed->end : now->end;
    placed->pages = now->pages;
}

bool placed_look(struct replica *replica, uint64_t first, uint64_t count, struct placed *placed)
{
    struct cache_file *file = replica->file;
    uint64_t end = first + count;
    bool whole = true;

    pthread_mutex_lock(&file->lock);
    /* What leaves while the lock is let go was perhaps seen; and pages were looked for up to this end, or a
     * later one. */
    uint64_t departures = replica->departures.count, pages = file_pages(file->size);
    for (uint64_t page = first; page < end && whole && page < file_pages(file->size);) {
        uint64_t number = page >> LEAF_SHIFT;
        whole = !leaf_lacks(replica, number, page, end);
        page = (number + 1) << LEAF_SHIFT;
    }
    if (pages > file_pages(file->size))
        pages = file_pages(file->size);
    if (whole)
        remember(placed, &(struct placed){first, end, departures, pages});
    pthread_mutex_unlock(&file->lock);
    return whole;
}
