/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/filler.h"

#include <stdlib.h>
#include <unistd.h>

#include "cache/fill.h"

struct filler_piece {
    STAILQ_ENTRY(filler_piece) link;
    struct cache_map *map; /* a reference */
    uint64_t first, count;
};

static void *fill_pieces(void *argument)
{
    struct filler *filler = argument;
    struct filler_piece *piece;

    pthread_mutex_lock(&filler->lock);
    for (;;) {
        while (!(piece = STAILQ_FIRST(&filler->queue)) && !filler->stop)
            pthread_cond_wait(&filler->queued, &filler->lock);
        if (!piece)
            break;
        STAILQ_REMOVE_HEAD(&filler->queue, link);
        filler->length--;
        bool stop = filler->stop;
        pthread_mutex_unlock(&filler->lock);
        if (!stop)
            fill_range(piece->map, &(struct fill_request){.first = piece->first,
                                                          .count = piece->count,
                                                          .touched = FILL_NO_PAGE});
        cache_map_put(piece->map);
        free(piece);
        pthread_mutex_lock(&filler->lock);
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
    STAILQ_INIT(&filler->queue);
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
            STAILQ_INSERT_TAIL(&filler->queue, piece, link);
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
