/* SPDX-License-Identifier: Apache-2.0 */
/* Host frames: where bytes are on their way between storage and devices (stages, registered with the storage
 * engine), and where twins stay. The host's cache of whole files is the kernel's page cache of the backing
 * file. */
#ifndef GAIAFS_CACHE_FRAME_H
#define GAIAFS_CACHE_FRAME_H

#include <stdint.h>

#include "base/lock.h"
#include "consistency/page.h"

#define STAGE_PAGES 128u /* pages: 512 KiB, the smallest read after a sequential hint */
#define STAGE_COUNT 32u  /* in flight at once: a readahead window of 16 MiB */

/* Twins: frames of one page in one area that grows; a frame is named by its number. */
struct frame_pool {
    pthread_mutex_t lock; /* guards all below; a leaf: nothing is locked inside it */
    uint8_t *area;        /* address space for max frames */
    uint32_t max;
    uint32_t used;       /* frames that were ever handed out: [0, used) */
    uint32_t *free_list; /* numbers of free frames below used */
    uint32_t free_count;
};

int frame_pool_init(struct frame_pool *pool, uint64_t max_bytes);
void frame_pool_free(struct frame_pool *pool);
/* 0 or -ENOMEM. The frame's bytes are what its last owner left: the caller overwrites all of them. */
int frame_get(struct frame_pool *pool, uint32_t *frame_out);
void frame_put(struct frame_pool *pool, uint32_t frame);
static inline uint8_t *frame_bytes(const struct frame_pool *pool, uint32_t frame)
{
    return pool->area + (uint64_t)frame * GAIA_PAGE_SIZE;
}
uint64_t frame_pool_held(struct frame_pool *pool); /* frames handed out now */

/* Stages: STAGE_COUNT buffers of STAGE_PAGES pages. */
struct stage_pool {
    pthread_mutex_t lock; /* guards free_list, free_count; a leaf */
    pthread_cond_t freed;
    uint8_t *area;
    uint8_t *free_list[STAGE_COUNT];
    unsigned free_count;
};

int stage_pool_init(struct stage_pool *pool);
void stage_pool_free(struct stage_pool *pool);
static inline size_t stage_pool_length(void)
{
    return (size_t)STAGE_COUNT * STAGE_PAGES * GAIA_PAGE_SIZE;
}
/* Waits until one is free (they come back when reads complete). */
uint8_t *stage_get(struct stage_pool *pool);
void stage_put(struct stage_pool *pool, uint8_t *stage);

#endif
