/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/filler.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/client.h"
#include "cache/fill.h"
#include "cache/fit.h"

/* Where all stages are alike, a thread takes two of a range that several place, which are read in order. */
#define SHARE_PAGES (2 * STAGE_PAGES)
/* Of wide ones so many for each thread at least, so that nobody is left with much at the end. */
#define SHARES_LEAST 4u
/* Pieces that one call may put into the queue: half of it, and more than a window of readahead has. */
#define AHEAD_MAX (FILLER_QUEUE_MAX / 2)

/* A range that several threads place, or some leaves of it. It lies in the stack frame of the thread that
 * waits for it. */
struct filler_range {
    struct cache_map *map;
    struct fill_group *group;
    struct gaia_run run;
    const uint64_t *leaves; /* ascending; NULL: all of the run */
    size_t leaf_count;
    uint64_t step; /* pages of a share, or leaves */
    uint64_t wide; /* fill_request.wide */
    uint64_t shares;
    atomic_uint_fast64_t next; /* the first share that nobody has taken */
    atomic_bool failed;        /* the rest is not begun */
    unsigned helpers;          /* threads that are at it, besides who waits; filler->lock */
};

struct filler_piece {
    TAILQ_ENTRY(filler_piece) link;
    struct filler_range *range; /* a call for help with it; else NULL, and: */
    struct cache_map *map;      /* a reference */
    uint64_t first, count;
    uint64_t wide; /* fill_request.wide */
};

/* Of [from, end) what lies in the range. */
static int place_pages(const struct filler_range *range, uint64_t from, uint64_t end)
{
    uint64_t first = from > range->run.page ? from : range->run.page,
             all = range->run.page + range->run.count;

    return fill_range(range->map, &(struct fill_request){.first = first,
                                                         .count = (end < all ? end : all) - first,
                                                         .touched = FILL_NO_PAGE,
                                                         .group = range->group,
                                                         .patient = true,
                                                         .wide = range->wide});
}

/* Leaves behind each other at once. */
static int place_leaves(const struct filler_range *range, uint64_t share)
{
    size_t at = share * range->step, left = range->leaf_count - at;
    size_t end = at + (left < range->step ? left : range->step);
    int error = 0;

    while (at < end && !error) {
        uint64_t first = range->leaves[at], behind = first;
        while (at < end && range->leaves[at] == behind) {
            at++;
            behind++;
        }
        error = place_pages(range, first << LEAF_SHIFT, behind << LEAF_SHIFT);
    }
    return error;
}

static int place_share(const struct filler_range *range, uint64_t share)
{
    uint64_t from = range->run.page + share * range->step;

    return range->leaves ? place_leaves(range, share) : place_pages(range, from, from + range->step);
}

/* Share by share, until nothing is left of the range. */
static void place_shares(struct filler_range *range)
{
    for (;;) {
        uint64_t share = atomic_fetch_add(&range->next, 1);

        if (share >= range->shares || atomic_load(&range->failed))
            return;
        if (place_share(range, share))
            atomic_store(&range->failed, true);
    }
}

/* filler->lock held; let go for as long as it takes. */
static void help(struct filler *filler, struct filler_range *range)
{
    range->helpers++;
    pthread_mutex_unlock(&filler->lock);
    place_shares(range);
    pthread_mutex_lock(&filler->lock);
    if (--range->helpers == 0)
        pthread_cond_broadcast(&filler->helped);
}

/* Whether the map is being closed, which waits for all that is under way for it. */
static bool is_over(const struct cache_map *map)
{
    pthread_mutex_lock(&map->client->lock);
    bool over = map->closing;
    pthread_mutex_unlock(&map->client->lock);
    return over;
}

/* filler->lock held; let go for as long as it takes. */
static void place_piece(struct filler *filler, struct filler_piece *piece)
{
    bool stop = filler->stop;

    filler->length--;
    pthread_mutex_unlock(&filler->lock);
    /* What was queued as this node stood still: to make room for it something older may be collected. */
    if (!stop && !is_over(piece->map) && cache_is_sure(piece->map->file->cache))
        fill_range(piece->map, &(struct fill_request){.first = piece->first,
                                                      .count = piece->count,
                                                      .touched = FILL_NO_PAGE,
                                                      .wide = piece->wide});
    cache_map_put(piece->map);
    free(piece);
    pthread_mutex_lock(&filler->lock);
}

/* filler->lock held; let go for as long as it takes. */
static void answer(struct filler *filler, struct filler_piece *call)
{
    struct filler_range *range = call->range;

    TAILQ_REMOVE(&filler->calls, call, link);
    call->range = NULL; /* answered */
    help(filler, range);
}

/* Calls come first, as somebody waits for these; but between two of them a piece, however many call. */
static void *fill_pieces(void *argument)
{
    struct filler *filler = argument;
    bool helped = false;

    pthread_mutex_lock(&filler->lock);
    for (;;) {
        struct filler_piece *piece = TAILQ_FIRST(&filler->queue), *call = TAILQ_FIRST(&filler->calls);
        if (call && !(helped && piece)) {
            answer(filler, call);
            helped = true;
        } else if (piece) {
            TAILQ_REMOVE(&filler->queue, piece, link);
            place_piece(filler, piece);
            helped = false;
        } else if (filler->stop) {
            break;
        } else {
            pthread_cond_wait(&filler->queued, &filler->lock);
        }
    }
    pthread_mutex_unlock(&filler->lock);
    return NULL;
}

int filler_start(struct cache *cache)
{
    struct filler *filler = &cache->filler;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned wanted = processors < 1 ? 2 : (unsigned)processors + 1;
    int error = 0;

    lock_init(&filler->lock, LOCK_FILLER);
    pthread_cond_init(&filler->queued, NULL);
    pthread_cond_init(&filler->helped, NULL);
    TAILQ_INIT(&filler->queue);
    TAILQ_INIT(&filler->calls);
    if (wanted > FILLER_THREADS_MAX)
        wanted = FILLER_THREADS_MAX;
    while (filler->started < wanted && !error) {
        error = -pthread_create(&filler->threads[filler->started], NULL, fill_pieces, filler);
        filler->started += !error;
    }
    if (error)
        filler_stop(cache);
    return error;
}

void filler_stop(struct cache *cache)
{
    struct filler *filler = &cache->filler;

    pthread_mutex_lock(&filler->lock);
    filler->stop = true;
    pthread_cond_broadcast(&filler->queued);
    pthread_mutex_unlock(&filler->lock);
    while (filler->started)
        pthread_join(filler->threads[--filler->started], NULL);
    pthread_cond_destroy(&filler->helped);
    pthread_cond_destroy(&filler->queued);
    pthread_mutex_destroy(&filler->lock);
}

/* How many pages of so many are best read and sent at once: more than a stage has where somebody else takes
 * them from there, unless that leaves threads with nothing to do. 0: no more. */
static uint64_t choose_wide(const struct cache_map *map, uint64_t count)
{
    const struct cache *cache = map->file->cache;
    uint64_t each = count / (SHARES_LEAST * (cache->filler.started + 1)) / STAGE_PAGES * STAGE_PAGES;

    if (!map->replica->frames->ops->later_most || cache->path || each <= STAGE_PAGES)
        return 0;
    return each < WIDE_PAGES ? each : WIDE_PAGES;
}

void filler_ahead(struct cache_map *map, uint64_t first, uint64_t count)
{
    struct filler *filler = &map->file->cache->filler;
    uint64_t wide = choose_wide(map, map->count), step = wide ? wide : STAGE_PAGES;

    if (count > AHEAD_MAX * step) /* others may find room, unless many such calls come */
        count = AHEAD_MAX * step;
    while (count) {
        uint64_t n = count < step ? count : step;
        struct filler_piece *piece = malloc(sizeof *piece);
        if (!piece)
            return;
        *piece = (struct filler_piece){.map = cache_map_get(map), .first = first, .count = n, .wide = wide};
        pthread_mutex_lock(&filler->lock);
        bool room = filler->length < FILLER_QUEUE_MAX && !filler->stop;
        if (room) {
            TAILQ_INSERT_TAIL(&filler->queue, piece, link);
            filler->length++;
            pthread_cond_signal(&filler->queued);
        }
        pthread_mutex_unlock(&filler->lock);
        if (!room) {
            cache_map_put(map);
            free(piece);
            return;
        }
        first += n;
        count -= n;
    }
}

void filler_forget(struct cache_map *map)
{
    struct filler *filler = &map->file->cache->filler;
    TAILQ_HEAD(, filler_piece) gone = TAILQ_HEAD_INITIALIZER(gone);
    struct filler_piece *piece, *next;

    pthread_mutex_lock(&filler->lock);
    for (piece = TAILQ_FIRST(&filler->queue); piece; piece = next) {
        next = TAILQ_NEXT(piece, link);
        if (piece->map != map)
            continue;
        TAILQ_REMOVE(&filler->queue, piece, link);
        TAILQ_INSERT_TAIL(&gone, piece, link);
        filler->length--;
    }
    pthread_mutex_unlock(&filler->lock);
    while ((piece = TAILQ_FIRST(&gone))) {
        TAILQ_REMOVE(&gone, piece, link);
        cache_map_put(map);
        free(piece);
    }
}

/* Calls for help that nobody has answered yet are taken back: there is nothing left to do. */
static void call_off(struct filler *filler, struct filler_range *range, struct filler_piece *calls,
                     unsigned count)
{
    pthread_mutex_lock(&filler->lock);
    for (unsigned i = 0; i < count; i++)
        if (calls[i].range)
            TAILQ_REMOVE(&filler->calls, &calls[i], link);
    while (range->helpers)
        pthread_cond_wait(&filler->helped, &filler->lock);
    pthread_mutex_unlock(&filler->lock);
}

static void place(struct filler_range *range)
{
    struct filler *filler = &range->map->file->cache->filler;
    struct filler_piece calls[FILLER_THREADS_MAX];
    unsigned called = 0;

    fit_to_place(range->map->replica); /* once, and not for each share */
    pthread_mutex_lock(&filler->lock);
    for (; called < filler->started && called + 1 < range->shares && !filler->stop; called++) {
        calls[called] = (struct filler_piece){.range = range};
        TAILQ_INSERT_TAIL(&filler->calls, &calls[called], link);
        pthread_cond_signal(&filler->queued);
    }
    pthread_mutex_unlock(&filler->lock);
    place_shares(range);
    call_off(filler, range, calls, called);
}

void filler_place(struct cache_map *map, uint64_t first, uint64_t count, struct fill_group *group)
{
    uint64_t wide = choose_wide(map, count), step = wide ? wide : SHARE_PAGES;

    place(&(struct filler_range){.map = map,
                                 .group = group,
                                 .run = {first, count},
                                 .step = step,
                                 .wide = wide,
                                 .shares = (count + step - 1) / step});
}

void filler_place_leaves(struct cache_map *map, struct gaia_run run, const uint64_t *leaves, size_t count,
                         struct fill_group *group)
{
    uint64_t wide = choose_wide(map, count * LEAF_PAGES), step = wide ? wide / LEAF_PAGES : 1;

    place(&(struct filler_range){.map = map,
                                 .group = group,
                                 .run = run,
                                 .leaves = leaves,
                                 .leaf_count = count,
                                 .step = step,
                                 .wide = wide,
                                 .shares = (count + step - 1) / step});
}
