/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/stat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/internal.h"

static void read_counters(struct cache_counters *count, struct cache_device_stat *out)
{
    out->stat.faults = count_get(&count->faults);
    out->stat.write_faults = count_get(&count->write_faults);
    out->stat.bytes_in = count_get(&count->pages_in) * GAIA_PAGE_SIZE;
    out->stat.bytes_out = count_get(&count->pages_out) * GAIA_PAGE_SIZE;
    out->stat.collects = count_get(&count->collects);
    out->stat.merges = count_get(&count->merges);
    out->stat.pages_merged = count_get(&count->pages_merged);
    out->stat.peer_reads = count_get(&count->peer_reads);
    out->stat.evictions = count_get(&count->evictions);
    out->stat.drops = count_get(&count->drops);
    out->readahead_pages = count_get(&count->readahead);
    out->unchanged_pages = count_get(&count->unchanged);
}

struct twins_of {
    unsigned device;
    uint64_t twins;
};

static int count_twins(struct cache_file *file, void *context)
{
    struct twins_of *of = context;
    struct replica *replica;

    pthread_mutex_lock(&file->lock);
    SLIST_FOREACH (replica, &file->replicas, link)
        if (replica->device->number == of->device)
            of->twins += replica->twins;
    pthread_mutex_unlock(&file->lock);
    return 0;
}

const char *cache_device_failure(struct cache *cache, unsigned number)
{
    struct cache_device *device;

    return cache_get_device(cache, number, &device) || !device->gpu ? NULL : gaia_cuda_failure(device->gpu);
}

/* Several threads may have met it at once, and the one that reports it comes a moment later. */
#define RECENT_NS UINT64_C(1000000000)

static bool is_recent(uint64_t then_ns)
{
    return then_ns && clock_now_ns() - then_ns < RECENT_NS;
}

const char *cache_device_shortage(struct cache *cache, unsigned number)
{
    struct cache_device *device;

    if (cache_get_device(cache, number, &device) || !device->gpu)
        return NULL;
    uint64_t driver_ns = gaia_cuda_short_ns(device->gpu), full_ns = device->full_ns;
    if (!is_recent(driver_ns) && !is_recent(full_ns))
        return NULL;
    if (driver_ns > full_ns)
        return "its driver has none left: other programs use it, too (nvidia-smi), and device_cache= says "
               "what files may";
    return "what is mapped there is all that device_cache= lets files have";
}

const char *cache_device_reach(struct cache *cache, unsigned number, enum gaia_path path)
{
    bool there = path == GAIA_PATH_FAULTS ? cache->path != NULL : cache->nodes != NULL;
    struct cache_device *device;

    if (!there || cache_get_device(cache, number, &device) || !device->gpu)
        return NULL;
    return gaia_cuda_reach(device->gpu, path);
}

uint64_t cache_surplus(struct cache *cache)
{
    return atomic_exchange(&cache->surplus, 0);
}

int cache_stat_device(struct cache *cache, unsigned number, struct cache_device_stat *stat_out)
{
    struct cache_device *device;
    struct twins_of of = {.device = number};

    int error = cache_get_device(cache, number, &device);
    if (error)
        return error;
    *stat_out = (struct cache_device_stat){.device = number};
    read_counters(&device->count, stat_out);
    cache_each_file(cache, count_twins, &of);
    stat_out->stat.capacity_bytes = device->capacity * GAIA_PAGE_SIZE;
    stat_out->stat.resident_bytes = cache_device_charged(device) * GAIA_PAGE_SIZE;
    stat_out->stat.twins = of.twins;
    return 0;
}

struct files_walk {
    cache_file_stat_fn *fn;
    void *context;
};

static int stat_file(struct cache_file *file, void *context)
{
    const struct files_walk *walk = context;
    struct replica *replica;
    struct cache_file_stat *stat = calloc(1, sizeof *stat);

    if (!stat)
        return -ENOMEM;
    pthread_mutex_lock(&file->lock);
    stat->size = file->size;
    stat->leaves = file->index.leaves.count;
    stat->metadata_bytes = index_bytes(&file->index);
    SLIST_FOREACH (replica, &file->replicas, link) {
        struct cache_device_stat *d = &stat->device[stat->devices++];
        d->device = replica->device->number;
        d->read_only = replica->read_only;
        read_counters(&replica->count, d);
        d->stat.capacity_bytes = replica->device->capacity * GAIA_PAGE_SIZE;
        d->stat.resident_bytes = replica->resident * GAIA_PAGE_SIZE;
        d->stat.twins = replica->twins;
    }
    pthread_mutex_unlock(&file->lock);
    walk->fn(walk->context, file->context, stat);
    free(stat);
    return 0;
}

void cache_stat_files(struct cache *cache, cache_file_stat_fn *fn, void *context)
{
    cache_each_file(cache, stat_file, &(struct files_walk){fn, context});
}

void cache_device_name(unsigned number, char name_out[32])
{
    bool cuda = number >= GAIA_SOFT_MAX;

    if (number >= GAIA_NODE_FIRST) {
        snprintf(name_out, 32, "node:%u", number - GAIA_NODE_FIRST);
        return;
    }
    snprintf(name_out, 32, "%s:%u", cuda ? "cuda" : "soft", cuda ? number - GAIA_SOFT_MAX : number);
}

void cache_stat_io(const struct cache *cache, struct gaia_io_stat *stat_out, bool *registered_out)
{
    gaia_io_stat(cache->io, stat_out);
    *registered_out = gaia_io_registered(cache->io);
}

bool cache_stat_path(struct cache *cache, struct fault_path_stat *stat_out)
{
    if (cache->path)
        fault_path_stat(cache->path, stat_out);
    return cache->path;
}

void cache_stat_heals(struct cache *cache, uint64_t *heals_out, uint64_t *late_out)
{
    pthread_mutex_lock(&cache->healer.lock);
    *heals_out = cache->healer.heals;
    *late_out = cache->healer.late;
    pthread_mutex_unlock(&cache->healer.lock);
}
