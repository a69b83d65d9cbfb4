/* SPDX-License-Identifier: Apache-2.0 */
/* A device of the cache: its capacity, what is resident on it over all files, the order of eviction, and its
 * counters. */
#ifndef GAIAFS_CACHE_DEVICE_H
#define GAIAFS_CACHE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"

struct evict_policy;
struct home_gpu;
struct leaf_copy;
struct node_device;

struct cache_counters {
    _Atomic uint64_t faults, write_faults, pages_in, pages_out, collects, merges, pages_merged, peer_reads,
        evictions, drops, unchanged, readahead;
};

/* What soft devices may hold together where no option says how much each may: they all use the same memory.
 * Each has a share that no other takes from it; what they hold beyond their shares must fit in here. So one
 * device alone may have its whole capacity, and none waits for another to let go. */
struct cache_pool {
    uint64_t share, limit;   /* pages; constant */
    _Atomic uint64_t beyond; /* pages that devices have charged beyond their shares */
};

struct cache_device {
    unsigned number;           /* soft:number, or cuda:(number - GAIA_SOFT_MAX) */
    bool scans;                /* as its frames (gpu/device.h) */
    struct home_gpu *gpu;      /* of cuda */
    struct node_device *node;  /* of another node (cache/home_device.h) */
    _Atomic uint64_t capacity; /* pages; constant, but of another node's: as that has said last */
    struct cache_pool *pool;   /* or NULL: nothing but the capacity counts */
    const struct evict_policy *policy;

    pthread_mutex_t lock;          /* guards all below; taken inside a file's lock, nothing inside it */
    pthread_cond_t changed;        /* pages were uncharged, or stopped being busy */
    TAILQ_HEAD(, leaf_copy) order; /* of eviction: the next to go is first */
    uint64_t ordered;              /* copies on it */
    uint64_t staying;              /* of these: of replicas that stay */
    uint64_t charged;              /* pages resident, or about to be, or about to be free */
    uint64_t freed;                /* how often pages were uncharged */

    _Atomic uint64_t full_ns;  /* when a page had no room last; 0: never */
    _Atomic uint64_t resident; /* pages that its replicas count as theirs: replica_resident() */

    struct cache_counters count;
};

void cache_device_init(struct cache_device *device, unsigned number, uint64_t capacity_bytes,
                       const struct evict_policy *policy);

/* What has become of a device that is full. */
struct cache_progress {
    uint64_t freed; /* how often pages were uncharged */
    bool under_way; /* some are on their way to the device, or about to be free */
};

/* Charge pages if they fit; else *progress_out. */
bool cache_device_try_charge(struct cache_device *device, uint64_t pages,
                             struct cache_progress *progress_out);
void cache_device_uncharge(struct cache_device *device, uint64_t pages);
uint64_t cache_device_charged(struct cache_device *device);
/* Whether so many more pages fit now without evictions, also for what others want then. Nothing is
 * charged. */
bool cache_device_has_room(struct cache_device *device, uint64_t pages);

/* Wait until something changes, or pages were uncharged after *since, at most timeout_ms. No lock is held. */
void cache_device_wait(struct cache_device *device, const struct cache_progress *since, unsigned timeout_ms);
void cache_device_notify(struct cache_device *device);

static inline void count_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static inline uint64_t count_get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
