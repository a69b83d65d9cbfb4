/* SPDX-License-Identifier: Apache-2.0 */
/* The cache itself, and the order of its locks. */
#ifndef GAIAFS_CACHE_INTERNAL_H
#define GAIAFS_CACHE_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/device.h"
#include "cache/file.h"
#include "cache/filler.h"
#include "cache/frame.h"
#include "cache/replica.h"
#include "io/engine.h"

/*
 * Lock order, outermost first:
 *
 *   cache_client.lock (cache/client.c)
 *     cache.lock             the list of files
 *       cache_file.lock      everything about one file; two files' locks are never held at once
 *         cache.devices_lock the table of devices
 *         cache_device.lock  the eviction list and the charge
 *         frame_pool.lock, stage_pool.lock, readahead.lock, fill_group.lock, healer.lock, filler.lock
 *   frames.maps_lock (gpu/)   held over userfaultfd calls, so never inside any of the above
 *
 * No lock at all is held over: cache_host.invalidate(), cache_host.pin(), and the calls of gpu/device.h
 * marked [client]. What has to stand still over such a call is marked busy, releasing or invalidating in the
 * index, and others wait for it on cache_file.changed. FUSE handlers wait for none of the three, but for
 * that of a WRITE that may be stale in the kernel: for at most 100 ms, for healers to invalidate, and for
 * READ handlers on cache_file.changed (cache/heal.h, cache/reads.h).
 */
struct cache {
    struct cache_config config;
    struct cache_host host;
    struct gaia_io *io;
    struct frame_pool twins;
    struct stage_pool stages;
    struct healer healer;
    struct filler filler;
    bool stopped; /* both */

    pthread_mutex_t lock; /* guards files */
    LIST_HEAD(, cache_file) files;
    pthread_mutex_t devices_lock;                   /* guards devices */
    struct cache_device *devices[GAIA_DEVICES_MAX]; /* opened at first use, never closed */
};

/* The device, opened if need be. -ENODEV, -ENOMEM. */
int cache_get_device(struct cache *cache, unsigned number, struct cache_device **device_out);

/* Call fn for each file that holds anything or is mapped; it is in use meanwhile. The first error or 0. No
 * lock held. */
int cache_each_file(struct cache *cache, int (*fn)(struct cache_file *file, void *context), void *context);

/* A set of pages of one replica, by copies: what an operation works on. Copies stay while a bit of theirs is
 * busy, releasing, or present under the file's lock. */
struct copy_pages {
    struct leaf_copy *copy;
    uint64_t leaf;
    page_mask pages;
};

/* How many copies an operation takes at once: 256 MiB of the file. */
#define BATCH_MAX 1024u

#endif
