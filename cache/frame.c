/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint8_t *area_map(size_t length)
{
    void *area =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return area == MAP_FAILED ? NULL : area;
}

static void give_back(struct frame_pool *pool, const struct frame_chunk *chunk)
{
    /* What it refuses stays there, and is overwritten by the next owner like anything else. */
    madvise(frame_bytes(pool, (uint32_t)(chunk - pool->chunks) * FRAME_CHUNK), FRAME_CHUNK * GAIA_PAGE_SIZE,
            MADV_DONTNEED);
}

/* The trimmer: of the warm chunks the one that was emptied the longest ago, until they are few. */
static void *trim(void *argument)
{
    struct frame_pool *pool = argument;

    pthread_mutex_lock(&pool->lock);
    while (!pool->ends) {
        if (pool->warm_count <= FRAME_CHUNKS_WARM) {
            pthread_cond_wait(&pool->excess, &pool->lock);
            continue;
        }
        struct frame_chunk *chunk = TAILQ_LAST(&pool->warm, frame_chunks);
        struct timespec until = chunk->until;
        if (!lock_is_past(&until)) {
            pthread_cond_timedwait(&pool->excess, &pool->lock, &until);
            continue;
        }
        TAILQ_REMOVE(&pool->warm, chunk, link);
        pool->warm_count--;
        pthread_mutex_unlock(&pool->lock);
        give_back(pool, chunk);
        pthread_mutex_lock(&pool->lock);
        TAILQ_INSERT_HEAD(&pool->cold, chunk, link);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void unmap_pool(struct frame_pool *pool)
{
    if (pool->area)
        munmap(pool->area, (size_t)pool->max * FRAME_CHUNK * GAIA_PAGE_SIZE);
    if (pool->chunks)
        munmap(pool->chunks, (size_t)pool->max * sizeof *pool->chunks);
    *pool = (struct frame_pool){0};
}

int frame_pool_init(struct frame_pool *pool, uint64_t max_bytes)
{
    const uint64_t most = UINT32_MAX / FRAME_CHUNK;
    uint64_t chunks = max_bytes / (FRAME_CHUNK * GAIA_PAGE_SIZE) + 1;

    *pool = (struct frame_pool){.max = (uint32_t)(chunks < most ? chunks : most)};
    pool->area = area_map((size_t)pool->max * FRAME_CHUNK * GAIA_PAGE_SIZE);
    pool->chunks = (struct frame_chunk *)area_map((size_t)pool->max * sizeof *pool->chunks);
    if (!pool->area || !pool->chunks) {
        unmap_pool(pool);
        return -ENOMEM;
    }
    TAILQ_INIT(&pool->open);
    TAILQ_INIT(&pool->warm);
    TAILQ_INIT(&pool->cold);
    lock_init(&pool->lock, LOCK_TWINS);
    lock_condition_init(&pool->excess);
    int error = -pthread_create(&pool->trimmer, NULL, trim, pool);
    if (error) {
        pthread_cond_destroy(&pool->excess);
        pthread_mutex_destroy(&pool->lock);
        unmap_pool(pool);
    }
    return error;
}

void frame_pool_free(struct frame_pool *pool)
{
    if (!pool->area)
        return;
    assert(!pool->held);
    pthread_mutex_lock(&pool->lock);
    pool->ends = true;
    pthread_cond_signal(&pool->excess);
    pthread_mutex_unlock(&pool->lock);
    pthread_join(pool->trimmer, NULL);
    pthread_cond_destroy(&pool->excess);
    pthread_mutex_destroy(&pool->lock);
    unmap_pool(pool);
}

/* A chunk with a free frame, first of the open ones; NULL: there is none. Lock held. */
static struct frame_chunk *open_chunk(struct frame_pool *pool)
{
    struct frame_chunk *chunk = TAILQ_FIRST(&pool->open);

    if (chunk)
        return chunk;
    if ((chunk = TAILQ_FIRST(&pool->warm))) {
        TAILQ_REMOVE(&pool->warm, chunk, link);
        pool->warm_count--;
    } else if ((chunk = TAILQ_FIRST(&pool->cold))) {
        TAILQ_REMOVE(&pool->cold, chunk, link);
    } else if (pool->used < pool->max) {
        chunk = &pool->chunks[pool->used++];
    } else {
        return NULL;
    }
    TAILQ_INSERT_HEAD(&pool->open, chunk, link);
    return chunk;
}

int frame_get(struct frame_pool *pool, uint32_t *frame_out)
{
    pthread_mutex_lock(&pool->lock);
    struct frame_chunk *chunk = open_chunk(pool);
    if (chunk) {
        unsigned word = 0;
        while (chunk->out[word] == UINT64_MAX)
            word++;
        unsigned bit = (unsigned)__builtin_ctzll(~chunk->out[word]);
        chunk->out[word] |= UINT64_C(1) << bit;
        if (++chunk->count == FRAME_CHUNK)
            TAILQ_REMOVE(&pool->open, chunk, link);
        pool->held++;
        *frame_out = (uint32_t)(chunk - pool->chunks) * FRAME_CHUNK + word * 64 + bit;
    }
    pthread_mutex_unlock(&pool->lock);
    return chunk ? 0 : -ENOMEM;
}

void frame_put(struct frame_pool *pool, uint32_t frame)
{
    struct frame_chunk *chunk = &pool->chunks[frame / FRAME_CHUNK];
    uint64_t bit = UINT64_C(1) << frame % 64, *word = &chunk->out[frame % FRAME_CHUNK / 64];

    pthread_mutex_lock(&pool->lock);
    assert(frame / FRAME_CHUNK < pool->used && *word & bit);
    *word &= ~bit;
    pool->held--;
    /* First of the list: its frames are still in the CPU's cache, perhaps. */
    if (chunk->count-- < FRAME_CHUNK)
        TAILQ_REMOVE(&pool->open, chunk, link);
    TAILQ_INSERT_HEAD(chunk->count ? &pool->open : &pool->warm, chunk, link);
    if (!chunk->count) {
        chunk->until = lock_wait_until(FRAME_WARM_MS);
        if (++pool->warm_count == FRAME_CHUNKS_WARM + 1)
            pthread_cond_signal(&pool->excess);
    }
    pthread_mutex_unlock(&pool->lock);
}

uint64_t frame_pool_held(struct frame_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t held = pool->held;
    pthread_mutex_unlock(&pool->lock);
    return held;
}

static void list_init(struct stage_list *list, uint8_t *area, unsigned count, size_t pages)
{
    pthread_cond_init(&list->freed, NULL);
    while (list->count < count) {
        list->free_list[list->count] = area + list->count * pages * GAIA_PAGE_SIZE;
        list->count++;
    }
}

int stage_pool_init(struct stage_pool *pool)
{
    static_assert(WIDE_COUNT <= STAGE_COUNT, "both lists have the same room");

    *pool = (struct stage_pool){0};
    pool->area = area_map(stage_pool_extent());
    if (!pool->area)
        return -ENOMEM;
    lock_init(&pool->lock, LOCK_STAGES);
    list_init(&pool->plain, pool->area, STAGE_COUNT, STAGE_PAGES);
    list_init(&pool->wide, pool->area + stage_pool_length(), WIDE_COUNT, WIDE_PAGES);
    return 0;
}

void stage_pool_free(struct stage_pool *pool)
{
    if (!pool->area)
        return;
    assert(pool->plain.count == STAGE_COUNT && pool->wide.count == WIDE_COUNT);
    munmap(pool->area, stage_pool_extent());
    pthread_cond_destroy(&pool->plain.freed);
    pthread_cond_destroy(&pool->wide.freed);
    pthread_mutex_destroy(&pool->lock);
}

uint8_t *stage_get(struct stage_pool *pool, uint64_t pages)
{
    struct stage_list *list = pages > STAGE_PAGES ? &pool->wide : &pool->plain;

    assert(pages <= WIDE_PAGES);
    pthread_mutex_lock(&pool->lock);
    while (!list->count)
        pthread_cond_wait(&list->freed, &pool->lock);
    /* The one that came back last is still in the CPU's cache. */
    uint8_t *stage = list->free_list[--list->count];
    pthread_mutex_unlock(&pool->lock);
    return stage;
}

void stage_put(struct stage_pool *pool, uint8_t *stage)
{
    bool is_wide = (size_t)(stage - pool->area) >= stage_pool_length();
    struct stage_list *list = is_wide ? &pool->wide : &pool->plain;

    pthread_mutex_lock(&pool->lock);
    assert(list->count < (is_wide ? WIDE_COUNT : STAGE_COUNT));
    list->free_list[list->count++] = stage;
    pthread_cond_signal(&list->freed);
    pthread_mutex_unlock(&pool->lock);
}

bool stage_is_scarce(struct stage_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool scarce = pool->plain.count < STAGE_COUNT / 2;
    pthread_mutex_unlock(&pool->lock);
    return scarce;
}

bool stage_lend(struct stage_pool *pool, unsigned most)
{
    pthread_mutex_lock(&pool->lock);
    bool lent = pool->lent < most;
    pool->lent += lent;
    pthread_mutex_unlock(&pool->lock);
    return lent;
}

void stage_lent_back(struct stage_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->lent--;
    pthread_mutex_unlock(&pool->lock);
}
