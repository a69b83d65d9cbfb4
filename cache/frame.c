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

int frame_pool_init(struct frame_pool *pool, uint64_t max_bytes)
{
    uint64_t frames = max_bytes / GAIA_PAGE_SIZE;

    *pool = (struct frame_pool){.max = frames < UINT32_MAX ? (uint32_t)frames : UINT32_MAX};
    pool->area = area_map((size_t)pool->max * GAIA_PAGE_SIZE);
    /* The list is address space too until frames come back. */
    pool->free_list = (uint32_t *)area_map((size_t)pool->max * sizeof *pool->free_list);
    if (!pool->area || !pool->free_list) {
        frame_pool_free(pool);
        return -ENOMEM;
    }
    lock_init(&pool->lock, LOCK_TWINS);
    return 0;
}

void frame_pool_free(struct frame_pool *pool)
{
    assert(pool->free_count == pool->used); /* every twin was given back */
    if (pool->area)
        munmap(pool->area, (size_t)pool->max * GAIA_PAGE_SIZE);
    if (pool->free_list)
        munmap(pool->free_list, (size_t)pool->max * sizeof *pool->free_list);
    pool->area = NULL;
    pool->free_list = NULL;
}

int frame_get(struct frame_pool *pool, uint32_t *frame_out)
{
    int error = 0;

    pthread_mutex_lock(&pool->lock);
    if (pool->free_count)
        *frame_out = pool->free_list[--pool->free_count];
    else if (pool->used < pool->max)
        *frame_out = pool->used++;
    else
        error = -ENOMEM;
    pthread_mutex_unlock(&pool->lock);
    return error;
}

void frame_put(struct frame_pool *pool, uint32_t frame)
{
    pthread_mutex_lock(&pool->lock);
    assert(frame < pool->used && pool->free_count < pool->used);
    pool->free_list[pool->free_count++] = frame;
    /* All are back: give the memory back too, and start anew from the front; not for a handful, over and
     * over. */
    if (pool->free_count == pool->used && pool->used >= 1024) {
        madvise(pool->area, (size_t)pool->used * GAIA_PAGE_SIZE, MADV_DONTNEED);
        pool->used = 0;
        pool->free_count = 0;
    }
    pthread_mutex_unlock(&pool->lock);
}

uint64_t frame_pool_held(struct frame_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    uint64_t held = pool->used - pool->free_count;
    pthread_mutex_unlock(&pool->lock);
    return held;
}

int stage_pool_init(struct stage_pool *pool)
{
    *pool = (struct stage_pool){0};
    pool->area = area_map(stage_pool_length());
    if (!pool->area)
        return -ENOMEM;
    lock_init(&pool->lock, LOCK_STAGES);
    pthread_cond_init(&pool->freed, NULL);
    for (unsigned i = 0; i < STAGE_COUNT; i++)
        pool->free_list[pool->free_count++] = pool->area + (size_t)i * STAGE_PAGES * GAIA_PAGE_SIZE;
    return 0;
}

void stage_pool_free(struct stage_pool *pool)
{
    if (!pool->area)
        return;
    assert(pool->free_count == STAGE_COUNT);
    munmap(pool->area, stage_pool_length());
    pthread_cond_destroy(&pool->freed);
    pthread_mutex_destroy(&pool->lock);
}

uint8_t *stage_get(struct stage_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (!pool->free_count)
        pthread_cond_wait(&pool->freed, &pool->lock);
    /* The one that came back last is still in the CPU's cache. */
    uint8_t *stage = pool->free_list[--pool->free_count];
    pthread_mutex_unlock(&pool->lock);
    return stage;
}

void stage_put(struct stage_pool *pool, uint8_t *stage)
{
    pthread_mutex_lock(&pool->lock);
    assert(pool->free_count < STAGE_COUNT);
    pool->free_list[pool->free_count++] = stage;
    pthread_cond_signal(&pool->freed);
    pthread_mutex_unlock(&pool->lock);
}
