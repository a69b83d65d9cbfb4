/* SPDX-License-Identifier: Apache-2.0 */
/* Host frames: where bytes are on their way between storage and devices (stages, registered with the storage
 * engine), and where twins stay. The host's cache of whole files is the kernel's page cache of the backing
 * file. */
#ifndef GAIAFS_CACHE_FRAME_H
#define GAIAFS_CACHE_FRAME_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <time.h>

#include "base/lock.h"
#include "consistency/page.h"

#define STAGE_PAGES 128u /* pages: 512 KiB, the smallest read after a sequential hint */
#define STAGE_COUNT 40u  /* in flight at once: a readahead window of 16 MiB, and what is lent */
#define WIDE_PAGES 1024u /* 4 MiB: a GPU's bus takes 3 us more for each copy, a quarter for 512 KiB */
#define WIDE_COUNT 24u   /* a thread that reads may have one, and as many are on their way as are lent */

/* Twins: frames of one page in one area of address space; a frame is named by its number. Frames come in
 * chunks, and memory goes back to the kernel by the chunk: empty chunks do, except a few that are kept warm
 * for the next twins. A thread of the pool does that, as it takes the time of a page fault for each page, for
 * which nobody must wait: neither the thread that puts the last frame of many, nor one that needs the lock
 * meanwhile. One frame that stays out keeps its chunk. */
#define FRAME_CHUNK 512u     /* frames: 2 MiB */
#define FRAME_CHUNKS_WARM 8u /* empty chunks whose memory stays, */
#define FRAME_WARM_MS 1000u  /* and for how long that of more does: programs that share go on sharing */

struct frame_chunk {
    /* The pool's open, warm or cold ones; none while all frames are out, and while memory is given back. */
    TAILQ_ENTRY(frame_chunk) link;
    uint64_t out[FRAME_CHUNK / 64]; /* frames that are handed out */
    unsigned count;                 /* of them */
    struct timespec until;          /* of a warm one: its memory stays */
};
TAILQ_HEAD(frame_chunks, frame_chunk);

struct frame_pool {
    uint8_t *area;              /* address space for `max` chunks; constant, as are the next two */
    struct frame_chunk *chunks; /* that are in `area`; address space, too, until they are used */
    uint32_t max;
    pthread_t trimmer;
    pthread_mutex_t lock;     /* guards all below; a leaf: nothing is locked inside it */
    pthread_cond_t excess;    /* more than FRAME_CHUNKS_WARM are warm, or the pool ends */
    uint32_t used;            /* chunks that ever had a frame out: [0, used) */
    uint64_t held;            /* frames that are out */
    struct frame_chunks open; /* some frames are out, some free; first the one that was used last */
    struct frame_chunks warm; /* no frame is out, the memory is there; the first was emptied last */
    struct frame_chunks cold; /* no frame is out, the memory was given back */
    uint32_t warm_count;
    bool ends;
};

/* 0, -ENOMEM, or -EAGAIN: no thread. frame_pool_free() of a pool that was not made, all zeros, does nothing.
 */
int frame_pool_init(struct frame_pool *pool, uint64_t max_bytes);
/* Every frame was put back. */
void frame_pool_free(struct frame_pool *pool);
/* 0 or -ENOMEM. The frame's bytes are anything: the caller overwrites all of them. */
int frame_get(struct frame_pool *pool, uint32_t *frame_out);
void frame_put(struct frame_pool *pool, uint32_t frame);
static inline uint8_t *frame_bytes(const struct frame_pool *pool, uint32_t frame)
{
    return pool->area + (uint64_t)frame * GAIA_PAGE_SIZE;
}
/* Frames handed out now: for the tests. */
uint64_t frame_pool_held(struct frame_pool *pool);

/* Stages of one size that nobody has. */
struct stage_list {
    pthread_cond_t freed;
    uint8_t *free_list[STAGE_COUNT];
    unsigned count;
};

/* Stages: STAGE_COUNT buffers of STAGE_PAGES pages, and behind them WIDE_COUNT of WIDE_PAGES, which are
 * address space until a GPU is opened. */
struct stage_pool {
    pthread_mutex_t lock; /* guards the rest but area; a leaf */
    uint8_t *area;
    struct stage_list plain, wide;
    unsigned lent; /* stage_lend() */
};

int stage_pool_init(struct stage_pool *pool);
void stage_pool_free(struct stage_pool *pool);
/* Bytes of those of STAGE_PAGES, from `area` on; and of all. */
static inline size_t stage_pool_length(void)
{
    return (size_t)STAGE_COUNT * STAGE_PAGES * GAIA_PAGE_SIZE;
}
static inline size_t stage_pool_extent(void)
{
    return stage_pool_length() + (size_t)WIDE_COUNT * WIDE_PAGES * GAIA_PAGE_SIZE;
}
/* One for so many pages, at most WIDE_PAGES. Waits until one is free (they come back when reads complete). */
uint8_t *stage_get(struct stage_pool *pool, uint64_t pages);
void stage_put(struct stage_pool *pool, uint8_t *stage);
/* Whether fewer are left of those of STAGE_PAGES than others may need, so that who has one must not wait for
 * a client with it: no more than half of them are ever kept by those who do. */
bool stage_is_scarce(struct stage_pool *pool);
/* Whether one more stage may be on its way to a device while its reader goes on: `most` at a time. If so
 * stage_lent_back() must follow. */
bool stage_lend(struct stage_pool *pool, unsigned most);
void stage_lent_back(struct stage_pool *pool);

#endif
