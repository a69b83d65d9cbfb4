/* SPDX-License-Identifier: Apache-2.0 */
/* A client's map of a file on a device, inside the cache. */
#ifndef GAIAFS_CACHE_MAP_H
#define GAIAFS_CACHE_MAP_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "cache/density.h"
#include "cache/fault_threads.h"
#include "cache/internal.h"
#include "cache/maps.h"
#include "cache/readahead.h"
#include "cache/placed.h"

struct agent_map;

/* Its functions are in cache/client.h. */
struct cache_client {
    struct cache *cache;
    LIST_ENTRY(cache_client) link; /* nodes->clients, where there are nodes */
    uint32_t number;               /* as homes know it; or of a client of an agent's, there */
    unsigned far;                  /* an agent's: 1 + its member's number */
    unsigned finders;              /* under nodes->lock: it is not freed meanwhile */
    struct gaia_process process;
    int stop;
    uint64_t id; /* not 0; no other ever has it */
    bool can_trap;
    struct fault_threads threads; /* if it has a descriptor for faults */
    pthread_mutex_t lock;         /* guards maps; taken before any other */
    pthread_cond_t idle;          /* the last other reference of a map that is being closed has gone */
    struct maps maps;
    _Atomic uint64_t blocks; /* of its maps' density */
};

struct cache_map {
    struct cache_client *client;
    uint32_t id;
    struct cache_file *file;        /* in use */
    struct replica *replica;        /* NULL where the file's home is elsewhere; */
    struct agent_map *far;          /* then this */
    struct gaia_frames_map *frames; /* NULL until attached; set once, under client->lock */
    uint64_t address;               /* in the client; 0 until attached: with it */
    uint64_t first, count;          /* pages of the file */
    bool writable, resident, can_trap;
    bool attaching, closing; /* under client->lock */
    /* Counts touches that could not be served: these are SIGBUS until the client refreshes its pages, which
     * it does when an acquire tells it a higher count than it knew. An agent's client is told by NODE_POISON:
     * for it, this is how many since the last acquire. */
    _Atomic uint64_t poisonings;
    _Atomic unsigned careful;    /* so many touches are served one page at a time, after an error */
    _Atomic unsigned references; /* the client's maps, and operations under way */
    struct durable_seen seen;
    uint64_t failures;    /* kernels_failures() that its acquires have told of; under the file's lock */
    struct placed placed; /* on a device that scans; under the file's lock */
    /* Of touches of missing pages, and of first stores. Used by the client's fault threads and by advice,
     * each under its own lock. */
    struct readahead readahead, stores;
    struct density density; /* of touches of what the device has */
};

/* The last reference detaches the frames and lets the file go. No lock is held. */
void cache_map_put(struct cache_map *map);
/* Before anything is done by a map of this node's to pages of a file of this home, which may have others
 * collected: nodes_be_sure(). No lock is held. */
void cache_map_be_sure(const struct cache_map *map);
static inline struct cache_map *cache_map_get(struct cache_map *map)
{
    map->references++;
    return map;
}

/* The map that an address of its client's lies in, with a reference, or NULL. No lock is held. */
struct cache_map *client_find_map(struct cache_client *client, uint64_t address);

/* Serve one fault of a client. Called from one of its fault threads: several may be served at a time, of a
 * page, too. */
struct gaia_fault;
void fault_serve(struct cache_map *map, const struct gaia_fault *fault);

#endif
