/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/filler.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/fill.h"
#include "cache/fit.h"

/* What one thread takes of a range that several place: so much that its stages are read in order, so little
 * that nobody is left with much at the end. */
#define SHARE_PAGES (2 * STAGE_PAGES)

/* A range that several threads place, in the frame of who waits for it; or of it some leaves. */
struct filler_range {
    struct cache_map *map;
    struct fill_group *group;
    struct gaia_run run;
    const uint64_t *leaves; /* ascending; NULL: all of the run */
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
};

/* The pages of a share: of a leaf, those in the range. */
static struct gaia_run pages_of_share(const struct filler_range *range, uint64_t share)
{
    uint64_t step = range->leaves ? LEAF_PAGES : SHARE_PAGES, end = range->run.page + range->run.count;
    uint64_t from = range->leaves ? range->leaves[share] << LEAF_SHIFT : range->run.page + share * step;
    uint64_t first = from > range->run.page ? from : range->run.page;

    return (struct gaia_run){first, (from + step < end ? from + step : end) - first};
}

/* Share by share, until nothing is left of the range. */
static void place_shares(struct filler_range *range)
{
    for (;;) {
        uint64_t share = atomic_fetch_add(&range->next, 1);

        if (share >= range->shares || atomic_load(&range->failed))
            return;
        struct gaia_run pages = pages_of_share(range, share);
        if (fill_range(range->map, &(struct fill_request){.first = pages.page,
                                                          .count = pages.count,
                                                          .touched = FILL_NO_PAGE,
                                                          .group = range->group,
                                                          .patient = true}))
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

/* filler->lock held; let go for as long as it takes. */
static void place_piece(struct filler *filler, struct filler_piece *piece)
{
    bool stop = filler->stop;

    filler->length--;
    pthread_mutex_unlock(&filler->lock);
    if (!stop)
        fill_range(piece->map, &(struct fill_request){
                                   .first = piece->first, .count = piece->count, .touched = FILL_NO_PAGE});
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

void filler_ahead(struct cache_map *map, uint64_t first, uint64_t count)
{
    struct filler *filler = &map->file->cache->filler;

    while (count) {
        uint64_t n = count < STAGE_PAGES ? count : STAGE_PAGES;
        struct filler_piece *piece = malloc(sizeof *piece);
        if (!piece)
            return;
        *piece = (struct filler_piece){.map = cache_map_get(map), .first = first, .count = n};
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
    place(&(struct filler_range){.map = map,
                                 .group = group,
                                 .run = {first, count},
                                 .shares = (count + SHARE_PAGES - 1) / SHARE_PAGES});
}

void filler_place_leaves(struct cache_map *map, struct gaia_run run, const uint64_t *leaves, size_t count,
                         struct fill_group *group)
{
    place(&(struct filler_range){.map = map, .group = group, .run = run, .leaves = leaves, .shares = count});
}
