/* SPDX-License-Identifier: Apache-2.0 */
/* The cache itself, as the files of this folder see it. */
#ifndef GAIAFS_CACHE_INTERNAL_H
#define GAIAFS_CACHE_INTERNAL_H

#include <sys/queue.h>

#include "base/lock.h"
#include "cache/cache.h"
#include "cache/device.h"
#include "cache/dropper.h"
#include "cache/evictor.h"
#include "cache/file.h"
#include "cache/filler.h"
#include "cache/frame.h"
#include "cache/replica.h"
#include "io/engine.h"

/* The order of locks, and what none may be held over: at the top of cache/cache.c. */
struct cache {
    struct cache_config config;
    struct cache_host host;
    struct gaia_io *io;
    struct frame_pool twins;
    struct stage_pool stages;
    struct fault_path *path; /* of faults; NULL: they are copied */
    struct nodes *nodes;     /* NULL: there are no members */
    struct healer healer;
    struct filler filler;
    struct dropper dropper;
    struct evictor evictor;
    bool stopped;               /* all of them */
    _Atomic int64_t flush_ns;   /* how long cache/flush.c may yet wait for who has pages busy */
    _Atomic unsigned fitters;   /* threads of cache/fit.h */
    _Atomic unsigned fit_waits; /* who waits for them, but for devices */
    atomic_bool unfitted;       /* none is begun any more */

    pthread_mutex_t lock; /* guards files */
    LIST_HEAD(, cache_file) files;
    atomic_size_t descriptors;                      /* that they cost */
    _Atomic uint64_t clients;                       /* that there ever were */
    struct cache_pool pool;                         /* of soft devices */
    pthread_mutex_t devices_lock;                   /* guards devices */
    struct cache_device *devices[GAIA_DEVICES_MAX]; /* opened at first use, never closed */
    uint8_t gpu_uuids[GAIA_CUDA_MAX][16];           /* of devices from GAIA_SOFT_MAX on */
    pthread_mutex_t gpus_lock;                      /* held while a GPU is opened */
    _Atomic uint64_t surplus;                       /* bytes (cache/fit.h) since somebody asked last */
};

/* The device, opened if need be. -ENODEV, -ENOMEM. */
int cache_get_device(struct cache *cache, unsigned number, struct cache_device **device_out);

/* The device of a GPU; open: opened if need be; why_out: see gaia_cuda_open(). No lock is held. -ENODEV,
 * -ENOMEM, -EIO. */
int cache_open_gpu(struct cache *cache, const uint8_t uuid[16], bool open, unsigned *number_out,
                   char why_out[GAIA_CUDA_WHY]);

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
/* For qsort(): by leaf, ascending. */
int copy_pages_order(const void *a, const void *b);

/* How many copies an operation takes at once: 256 MiB of the file. */
#define BATCH_MAX 1024u

#endif
