/* SPDX-License-Identifier: Apache-2.0 */
/* Bounce buffers: memory that is registered once. Reads whose frames come and go (gaia_frames_ops.bounces) go
 * into it, as those frames would have to be registered for each read; from there the bytes are placed. A copy
 * costs less than pinning and unpinning pages.
 *
 * Thread safety: get and put may be called from any thread; neither waits. */
#ifndef GAIAFS_CACHE_BOUNCE_H
#define GAIAFS_CACHE_BOUNCE_H

#include <stdatomic.h>
#include <stdint.h>

#include "cache/frame.h"
#include "io/transport.h"

/* Each read has a stage, too, and gives it back a moment before the buffer. */
#define BOUNCE_PAGES STAGE_PAGES
#define BOUNCE_COUNT (STAGE_COUNT + 8u)

struct bounce_pool {
    uint8_t *area; /* constant, as is the next */
    struct gaia_memory *memory;
    _Atomic uint64_t taken; /* bit i: the buffer i */
};

/* 0, -ENOMEM (then there is no area), or what gaia_memory_register() says. After an error bounce_pool_free()
 * is due. A pool that was not made, all zeros, has no buffers. */
int bounce_pool_init(struct bounce_pool *pool, struct gaia_transport *transport);
/* Every buffer was put back. Before the transport is closed. A pool that was not made is allowed. */
void bounce_pool_free(struct bounce_pool *pool);
/* A buffer of BOUNCE_PAGES, anything in it; NULL: there is none left. */
uint8_t *bounce_get(struct bounce_pool *pool);
void bounce_put(struct bounce_pool *pool, const uint8_t *buffer);

#endif
