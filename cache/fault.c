/* SPDX-License-Identifier: Apache-2.0 */
/* Serving faults: a touch of a page that the device lacks (rule 3), a touch of a page that it has and this
 * client has not seen, and the first store to a page (rule 7: the twin is taken then).
 *
 * A fault thread never waits for a page that somebody else has busy: it leaves a mark, and the thread that
 * ends the page's being busy wakes the touch, which then faults again and finds the page as it is. */
#include <errno.h>

#include "cache/drop.h"
#include "cache/evict.h"
#include "cache/fill.h"
#include "cache/fit.h"
#include "cache/map.h"
#include "cache/trace.h"

/* Pages whose twins are taken at once: at most a leaf, which the file's lock is held for. */
#define STORES_AHEAD_MAX LEAF_PAGES
/* Pages that are shown ahead of the touches, of those that the device has: other touches wait for this thread
 * meanwhile. */
#define SHOWN_AHEAD_MAX 512u

/* The page can't be shown: a program that may write the file has taken its frame away (MADV_REMOVE). What is
 * there is zeros, for all. Dropped, it is placed anew by the next touch. */
static void drop_emptied(struct replica *replica, uint64_t page)
{
    uint64_t dropped;

    drop_pages(replica, &(struct copy_pages){.leaf = page >> LEAF_SHIFT, .pages = page_bit(page)}, 1,
               DROP_EVICT, &dropped);
}

/* Several faults of a map are served at a time. */
static bool is_careful(struct cache_map *map)
{
    unsigned left = atomic_load(&map->careful);

    while (left && !atomic_compare_exchange_weak(&map->careful, &left, left - 1))
        ;
    return left;
}

/* Show the client what the device has of a leaf, of pages that nobody has touched. Whether that went well:
 * what can't be shown is found out when it is touched. */
static bool show_leaf_ahead(struct cache_map *map, uint64_t number, page_mask pages)
{
    struct replica *replica = map->replica;
    struct fill_store none = {.page = FILL_NO_PAGE};

    pthread_mutex_lock(&replica->file->lock);
    struct leaf_copy *copy = pages ? replica_find_copy(replica, number) : NULL;
    pages &= copy ? copy->present & ~copy->busy : 0;
    if (pages)
        copy->busy |= pages;
    pthread_mutex_unlock(&replica->file->lock);
    if (!pages)
        return true;
    int error = fill_expose(map, copy, pages, &none);
    pthread_mutex_lock(&replica->file->lock);
    page_mask wake = replica_unbusy(copy, pages);
    pthread_mutex_unlock(&replica->file->lock);
    if (wake)
        replica_wake(replica, number, wake);
    return !error;
}

/* What is shown for a touch of a page that the device has. */
struct shown {
    struct readahead_window window; /* that of a stream, or the page's unit */
    uint64_t page;                  /* the touched one: in its block, besides, */
    uint32_t cells;                 /* these */
};

/* Not for a client that can't trap stores: it would have twins of all that it is shown. For a client of
 * another node that is known since it has attached the map. (Which maps have no blocks at all: cache/map.c.)
 */
static bool goes_by_blocks(const struct cache_map *map)
{
    return map->density.count && (!map->writable || map->can_trap);
}

/* A program that touches page after page is not stopped at each, nor is one that touches many pages of a
 * block in no order. The windows are those of reads, as a stream may come from the one to the other. */
static struct shown choose_shown(struct cache_map *map, uint64_t page)
{
    uint64_t unit_pages = map->replica->file->cache->config.unit_pages;
    struct readahead_window unit = {.first = page & ~(unit_pages - 1), .count = unit_pages};
    struct shown shown = {.window = unit, .page = page};

    if (is_careful(map))
        return shown;
    struct readahead_window window =
        readahead_next(&map->readahead, page, map->first + map->count, SHOWN_AHEAD_MAX);
    if (window.count > unit_pages)
        shown.window = window;
    else if (window.count == unit_pages && goes_by_blocks(map)) /* less is what ADV_RANDOM is for */
        shown.cells = density_touch(&map->density, page, DENSITY_TO_SHOW);
    return shown;
}

static page_mask shown_pages(const struct cache_map *map, const struct shown *shown, uint64_t number)
{
    return (page_range_mask(number, shown->window.first, shown->window.count) |
            density_pages(shown->page, shown->cells, number)) &
           page_range_mask(number, map->first, map->count);
}

/* Besides the page's leaf, first what comes behind it. */
static void show_ahead(struct cache_map *map, const struct shown *shown)
{
    uint64_t number = shown->page >> LEAF_SHIFT, block = shown->page - shown->page % DENSITY_BLOCK_PAGES,
             first = (shown->cells ? block : shown->window.first) >> LEAF_SHIFT,
             end = shown->cells ? block + DENSITY_BLOCK_PAGES : shown->window.first + shown->window.count;
    bool went_well = true;

    for (uint64_t next = number + 1; went_well && next << LEAF_SHIFT < end; next++)
        went_well = show_leaf_ahead(map, next, shown_pages(map, shown, next));
    for (uint64_t next = first; went_well && next < number; next++)
        went_well = show_leaf_ahead(map, next, shown_pages(map, shown, next));
}

/* The page is in the device's memory. Show it, and what lies around it, to this client: what is in its leaf
 * at once, so that a program that goes on does not overtake the rest. Lock held; let go. */
static void serve_minor(struct cache_map *map, struct leaf_copy *copy, uint64_t page, bool store)
{
    struct replica *replica = map->replica;
    uint64_t number = page >> LEAF_SHIFT;
    struct shown shown = choose_shown(map, page);
    page_mask pages = copy->present & ~copy->busy & shown_pages(map, &shown, number);

    copy->busy |= pages;
    evict_touched(replica->device, copy);
    pthread_mutex_unlock(&replica->file->lock);
    struct fill_store stored = {.page = store ? page : FILL_NO_PAGE};
    int error = fill_expose(map, copy, pages, &stored);
    if (error && pages != page_bit(page)) /* a neighbour's, perhaps */
        error = fill_expose(map, copy, page_bit(page), &stored);
    pthread_mutex_lock(&replica->file->lock);
    page_mask wake = replica_unbusy(copy, pages);
    pthread_mutex_unlock(&replica->file->lock);
    if (error && error != -ENOMEM)
        drop_emptied(replica, page);
    replica_wake(replica, number, error ? wake | page_bit(page) : wake);
    trace_served(map, page, error ? TRACE_AGAIN : TRACE_SHOWN);
    if (!error)
        show_ahead(map, &shown);
}

/* Take the twins of pages that are present and not busy, and let stores through: to `page` first of all,
 * which a thread waits for, or FILL_NO_PAGE. The error is that of this page. Lock held; let go. */
static int open_pages(struct cache_map *map, struct leaf_copy *copy, page_mask pages, uint64_t page)
{
    struct replica *replica = map->replica;
    uint64_t base = copy->leaf->number << LEAF_SHIFT;
    page_mask waited = page == FILL_NO_PAGE ? 0 : page_bit(page), busy = pages;

    copy->busy |= busy;
    evict_touched(replica->device, copy);
    int error = replica_take_twins(copy, waited);
    /* When there is no room for all of them, each will be asked for by itself. */
    if (!error && replica_take_twins(copy, pages))
        pages &= copy->twin;
    if (!error) {
        page_mask before = copy_stored(copy);
        copy->sealed &= ~pages;
        replica_update(copy, before);
    }
    pthread_mutex_unlock(&replica->file->lock);
    /* First, and by itself: somebody waits. */
    if (!error && waited)
        error = replica->frames->ops->unprotect(map->frames, page, 1);
    if (!error && waited)
        trace_served(map, page, TRACE_LET_THROUGH);
    for (page_mask left = error ? 0 : pages & ~waited; left;) {
        unsigned length, first = page_mask_run(&left, &length);
        replica->frames->ops->unprotect(map->frames, base + first, length);
    }
    pthread_mutex_lock(&replica->file->lock);
    page_mask wake = replica_unbusy(copy, busy);
    pthread_mutex_unlock(&replica->file->lock);
    if (wake)
        replica_wake(replica, base >> LEAF_SHIFT, wake);
    return error;
}

/* The pages of a leaf that a window of stores has. Lock held. */
static page_mask window_pages(const struct cache_map *map, const struct leaf_copy *copy,
                              struct readahead_window window)
{
    uint64_t number = copy->leaf->number;

    return copy->present & ~copy->busy & page_range_mask(number, window.first, window.count) &
           page_range_mask(number, map->first, map->count);
}

/* A first store: take the twin, then let it through. A program that stores to page after page is not stopped
 * at each: the next pages get their twins, too, in windows that grow as those of reads do. A page that is not
 * stored to after all costs a comparison at the release. Lock held; let go. */
static void serve_store(struct cache_map *map, struct leaf_copy *copy, uint64_t page, uint32_t thread)
{
    struct replica *replica = map->replica;
    struct readahead_window window =
        readahead_next(&map->stores, page, map->first + map->count, STORES_AHEAD_MAX);
    uint64_t leaf_end = (page | (LEAF_PAGES - 1)) + 1;

    replica_count(replica, write_faults, 1);
    int error = open_pages(map, copy, page_bit(page) | window_pages(map, copy, window), page);
    if (error == -EIO)
        replica->frames->ops->refuse(map->frames, page, thread);
    else if (error) /* no memory for a twin, say: the store tries again */
        replica->frames->ops->wake(replica->frames, page, 1);
    if (error)
        trace_served(map, page, error == -EIO ? TRACE_REFUSED : TRACE_AGAIN);
    if (error || window.first + window.count <= leaf_end)
        return;
    pthread_mutex_lock(&replica->file->lock);
    copy = replica_find_copy(replica, leaf_end >> LEAF_SHIFT);
    page_mask pages = copy ? window_pages(map, copy, window) : 0;
    if (pages)
        open_pages(map, copy, pages, FILL_NO_PAGE);
    else
        pthread_mutex_unlock(&replica->file->lock);
}

/* Where touches come in no order, but thick, the filler's threads place what else of the block is to be
 * shown. Nothing has to go for it: of what is larger than the device as much would be read in vain. */
static void place_block_ahead(struct cache_map *map, uint64_t page, uint64_t limit)
{
    uint32_t cells = density_touch(&map->density, page, DENSITY_TO_PLACE) & ~density_cell(page);

    while (cells) {
        struct gaia_run run = density_run(page, &cells);
        uint64_t first = run.page > map->first ? run.page : map->first,
                 end = run.page + run.count < limit ? run.page + run.count : limit;
        if (first < end) {
            replica_count(map->replica, readahead, end - first);
            trace_ahead(map->replica, first, end - first);
            filler_ahead(map, first, end - first);
        }
    }
}

static void serve_missing(struct cache_map *map, uint64_t page, const struct gaia_fault *fault)
{
    struct replica *replica = map->replica;
    struct readahead_window window = {.first = page, .count = 1};

    pthread_mutex_lock(&replica->file->lock);
    uint64_t limit = file_pages(replica->file->size);
    pthread_mutex_unlock(&replica->file->lock);
    if (limit > map->first + map->count)
        limit = map->first + map->count;
    if (page >= limit) { /* cut off meanwhile: the touch will find the end of the file by itself */
        fit_frames(replica->file);
        replica->frames->ops->wake(replica->frames, page, 1);
        trace_served(map, page, TRACE_AGAIN);
        return;
    }
    if (!is_careful(map))
        window = readahead_next(&map->readahead, page, limit, replica->device->capacity / 4);
    if (window.first < map->first) {
        window.count -= map->first - window.first;
        window.first = map->first;
    }
    /* First what is waited for, then what may be wanted next. */
    uint64_t unit_pages = replica->file->cache->config.unit_pages, unit_end = (page | (unit_pages - 1)) + 1,
             end = window.first + window.count;
    struct fill_request now = {.first = window.first,
                               .count = (unit_end < end ? unit_end : end) - window.first,
                               .touched = page,
                               .store = fault->write,
                               .thread = fault->thread};
    fill_range(map, &now);
    if (end > unit_end) {
        replica_count(replica, readahead, end - unit_end);
        trace_ahead(replica, unit_end, end - unit_end);
        filler_ahead(map, unit_end, end - unit_end);
    } else if (window.count == unit_pages && goes_by_blocks(map) &&
               cache_device_has_room(replica->device, DENSITY_BLOCK_PAGES)) {
        place_block_ahead(map, page, limit);
    }
}

void fault_serve(struct cache_map *map, const struct gaia_fault *fault)
{
    struct replica *replica = map->replica;
    uint64_t page = map->first + (fault->address - map->address) / GAIA_PAGE_SIZE;

    trace_fault(map, page, fault);
    cache_map_be_sure(map);
    if (replica->file->given_up || replica->scans) { /* a node can say anything: there are none of a GPU */
        atomic_fetch_add(&map->poisonings, 1);
        replica->frames->ops->poison(map->frames, page, 1, fault->thread);
        trace_served(map, page, TRACE_REFUSED);
        return;
    }
    if (!fault->protection)
        replica_count(replica, faults, 1);
    pthread_mutex_lock(&replica->file->lock);
    struct leaf_copy *copy = replica_find_copy(replica, page >> LEAF_SHIFT);
    if (copy && copy->busy & page_bit(page)) {
        trace_served(map, page, TRACE_LEFT);
        copy->waited |= page_bit(page);
        pthread_mutex_unlock(&replica->file->lock);
    } else if (copy && copy->present & page_bit(page) && fault->protection) {
        serve_store(map, copy, page, fault->thread);
    } else if (copy && copy->present & page_bit(page)) {
        serve_minor(map, copy, page, fault->write);
    } else {
        pthread_mutex_unlock(&replica->file->lock);
        if (!fault->protection) {
            serve_missing(map, page, fault);
            return;
        }
        /* Dropped since: the store comes back as a touch of a missing page. */
        replica->frames->ops->wake(replica->frames, page, 1);
        trace_served(map, page, TRACE_AGAIN);
    }
}
