/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's counters, for gaia_stat() and `gaiactl stat`. */
#ifndef GAIAFS_CACHE_STAT_H
#define GAIAFS_CACHE_STAT_H

#include "cache/cache.h"
#include "gpu/gaia.h"
#include "io/engine.h"

/* A device's counters, and a file's share of them. */
struct cache_device_stat {
    unsigned device;
    bool read_only; /* of a file: the GPU's copy that clients can't write to */
    struct gaia_stat stat;
    uint64_t readahead_pages, unchanged_pages;
};

/* What the driver of a GPU has reported last, or NULL (there is no such GPU, or it works); the text stays
 * valid. */
const char *cache_device_failure(struct cache *cache, unsigned device);
/* Why there was no memory of a GPU for something a moment ago: words for the log; or NULL. */
const char *cache_device_shortage(struct cache *cache, unsigned device);
/* Whether bytes come straight into a GPU's memory by this path: gaia_cuda_reach(); NULL: there is no such
 * GPU, or no such path. */
const char *cache_device_reach(struct cache *cache, unsigned device, enum gaia_path path);

/* Bytes that clients had put into devices beside what was placed, and that were freed since the last call
 * (cache/fit.h). */
uint64_t cache_surplus(struct cache *cache);

/* -ENODEV: no such device. A device that nobody has used yet has zeros. */
int cache_stat_device(struct cache *cache, unsigned device, struct cache_device_stat *stat_out);

struct cache_file_stat {
    off_t size;
    uint64_t leaves, metadata_bytes;
    unsigned devices;
    struct cache_device_stat device[GAIA_REPLICAS_MAX];
};
typedef void cache_file_stat_fn(void *context, void *file_context, const struct cache_file_stat *stat);
void cache_stat_files(struct cache *cache, cache_file_stat_fn *fn, void *context);

/* "soft:N" or "cuda:N"; "node:N": the N-th place for other nodes' devices (cache/home_device.h), whose
 * counters are those of all that have had it. */
void cache_device_name(unsigned number, char name_out[32]);
/* WRITEs that were healed, and those that were answered before they were (cache/heal.h). */
void cache_stat_heals(struct cache *cache, uint64_t *heals_out, uint64_t *late_out);
/* False: there is no fault path. */
bool cache_stat_path(struct cache *cache, struct fault_path_stat *stat_out);
void cache_stat_io(const struct cache *cache, struct gaia_io_stat *stat_out, bool *registered_out);

#endif
