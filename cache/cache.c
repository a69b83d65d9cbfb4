/* SPDX-License-Identifier: Apache-2.0 */
/* The cache as a whole: its start and end, its devices, its list of files. And the locks of the whole
 * project.
 *
 * The order of locks, outermost first: a thread that holds one may take those further down in its part, and
 * no other of the same class. Builds with DEBUG=1 or a sanitizer end at the first step out of order
 * (base/lock.h, whose classes these are).
 *
 * libgaia:
 *   LOCK_SESSIONS      the list of sessions; held over no wait for a daemon, but over a fork, with
 *   LOCK_SESSION       one request at a time: held while the daemon answers, so only with no other before
 *     LOCK_DESCRIPTORS the list of other descriptors: taken when those of a reply come; over a fork, with
 *     LOCK_TABLE       the table of mappings, held over mmap and userfaultfd calls on itself; a leaf
 *   LOCK_DEMAND_CALLS  one flush or drop of a demand mapping at a time: held while its kernel runs
 *   LOCK_DEMAND_RING   who looks for what its kernels ask next, and waits for it
 *   LOCK_DEMAND        what a GPU was granted of it; held over no touch of its soft mapping; a leaf
 *   LOCK_SEARCH        one search of a GPU's memory at a time: held while its kernel runs
 *     LOCK_MODULE      the device kernels, which a search or a demand mapping has compiled first; a leaf
 *
 * The daemon:
 *   LOCK_HANDLE        the position in an open directory; held while names are looked up
 *   LOCK_GATE          an inode: shared by the I/O of an untracked file, exclusively to track it; of two, the
 *                      lower address first (a copy from one file to another)
 *   LOCK_PASSTHROUGH   how the kernel has each file open; held over ioctls that register backing files
 *   LOCK_GPUS          the opening of GPUs, which may take seconds
 *   LOCK_CLIENT        a client's maps
 *     LOCK_CACHE       the list of files
 *       LOCK_FILE      everything about one file: what a handler of FUSE waits for, so never held for long
 *         LOCK_DEVICES the table of devices
 *         LOCK_SHARD   a part of the table of inodes, and of their open descriptors
 *         leaves, inside which nothing is taken:
 *         LOCK_CLAIM   which mount has the file on its devices
 *         LOCK_DEVICE  the order of eviction, and what is charged
 *         LOCK_DURABLE what of a file is on its way to storage, and what was lost
 *         LOCK_TWINS, LOCK_STAGES      host frames
 *         LOCK_READAHEAD, LOCK_GROUP   of a map; of the fills that one waits for
 *         LOCK_HEALER, LOCK_DROPPER    the queues of the cache's threads
 *         LOCK_NODES, LOCK_HOME_SESSION    the other nodes, and what an agent of this one has here
 *         LOCK_FILLER      the queue of those that place ahead
 *         LOCK_EVICTOR     of those that make room in others' frames
 *         LOCK_IO, LOCK_URING, LOCK_URING_FILES, LOCK_POOL    the storage engine
 *         LOCK_FAULT_PATH  whether reads may go by the transport
 *         LOCK_FAULT_THREADS    which threads serve a client's touches
 *         LOCK_CUDA_CHUNKS   who makes a chunk of a file's frames on a GPU, with
 *           LOCK_CUDA_FRAMES the chunks that there are, with
 *             LOCK_STANDING  its registrations with transports (io/), each held while it is made, with
 *               LOCK_GPU     one thing at a time on a GPU; held until it has done it
 *         LOCK_GPU_LANES     which of a GPU's streams for placing are taken
 *         LOCK_GPU_TURN      who waits for one of them
 *         LOCK_CALLS, LOCK_CALL_SESSION    calls to other nodes (io/); none is held over a wait for one
 *         LOCK_PULL, LOCK_TRANSPORT    reads from peers (io/)
 *         LOCK_SERVER, LOCK_TOKENS, LOCK_PROGRAMS, LOCK_HANDLES, LOCK_VOLUMES    of fs/
 *         LOCK_PRUNER, LOCK_PEEK, LOCK_FLUSHER, LOCK_ANSWERS, LOCK_TROUBLE, LOCK_DROPS    the same
 *         LOCK_COPIES  the windows through which soft devices' frames are filled (gpu/)
 *         LOCK_CUDA_LOAD   the driver of GPUs, while it is opened (gpu/); libgaia's, too
 *   LOCK_LOOP          which threads wait for requests, and which sleep (fs/loop.c)
 *   LOCK_NOTIFY        the gate of notifications: held over those to the kernel
 *   LOCK_MAPS          the maps of a file's frames (gpu/): held over userfaultfd calls on clients
 *
 * The last two wait for programs that may wait for a FUSE handler: they are taken with no other lock held (or
 * tried only). For the same reason no lock is held over cache_host.invalidate(), cache_host.pin() and
 * cache_host.peek(), over the calls of gpu/device.h marked [client], and while a thread is joined; and a
 * thread that waits on a condition holds that condition's lock and no other. The exception is a wait for the
 * answer of a peer, over which a file's lock may be held: what is asked then (NODE_FRAMES of io/node.h) waits
 * for nobody there. What has to stand still over such a call is marked busy, releasing or invalidating in the
 * index, and others wait for it on cache_file.changed. FUSE handlers wait for none of the three, with two
 * exceptions. The handler of a WRITE that may be stale in the kernel waits for healers to invalidate, and for
 * READ handlers on cache_file.changed, a moment, or some seconds where the kernel is seen to have something
 * stale (cache/heal.h, cache/reads.h). The handler of a request that changes a file's size waits for the
 * thread that changes the length of the file's frames, seconds at most (cache/fit.h): that call waits for
 * clients, too, so no lock is held over it. A file's lock may be held while another mount of the data
 * directory has the file's end, two seconds at most (cache/claim.h): it has that over calls to the filesystem
 * only, and while it notes what came of them.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/evict.h"
#include "cache/fit.h"
#include "cache/internal.h"
#include "cache/nodes.h"

#define FLUSH_NS INT64_C(5000000000)

static int open_engine(struct cache *cache)
{
    struct gaia_io_config config = {
        .kind = cache->config.io_threads ? GAIA_IO_THREADS : GAIA_IO_URING,
        .depth = 128,
        .buffers = cache->stages.area,
        .buffers_length = stage_pool_length(),
        .files = 1024,
    };

    return gaia_io_open(&config, &cache->io);
}

/* The path of faults, where one was asked for. */
static int open_path(struct cache *cache, char why_out[CACHE_WHY])
{
    const struct cache_config *config = &cache->config;
    char why[FAULT_PATH_WHY];

    if (config->fault.carrier == FAULT_COPY)
        return 0;
    int error = fault_path_open(&config->fault, cache->stages.area, stage_pool_length(),
                                (uint32_t)(config->unit_pages * GAIA_PAGE_SIZE), &cache->path, why);
    if (error)
        snprintf(why_out, CACHE_WHY, "-o fault=%s: %s",
                 config->fault.carrier == FAULT_RDMA ? "rdma" : "local", why);
    return error;
}

/* What other nodes' homes put on this node's soft devices each was offered (cache/agent_map.c): for what is
 * of its own files a node's part of the memory is left. */
static void init_pool(struct cache *cache)
{
    const struct cache_config *config = &cache->config;
    unsigned nodes = config->members ? config->members->count : 1;

    cache->pool.limit = config->soft_pool / GAIA_PAGE_SIZE / nodes;
    cache->pool.share = config->soft_pool ? cache->pool.limit / config->soft_devices : 0;
}

int cache_open(const struct cache_config *config, const struct cache_host *host, struct cache **cache_out,
               char why_out[CACHE_WHY])
{
    struct cache *cache = calloc(1, sizeof *cache);

    why_out[0] = '\0';
    if (!cache)
        return -ENOMEM;
    cache->config = *config;
    cache->host = *host;
    init_pool(cache);
    cache->flush_ns = FLUSH_NS;
    evictor_init(&cache->evictor);
    LIST_INIT(&cache->files);
    lock_init(&cache->lock, LOCK_CACHE);
    lock_init(&cache->devices_lock, LOCK_DEVICES);
    lock_init(&cache->gpus_lock, LOCK_GPUS);
    /* A twin for every page that any device can hold; it is address space until it is used. */
    uint64_t twins = 0;
    for (unsigned i = 0; i < config->soft_devices; i++)
        twins += config->device_capacity_of[i] ? config->device_capacity_of[i] : config->device_capacity;
#ifndef GAIAFS_UNDER_HELGRIND /* where address space costs nearly as much memory, and there are no GPUs */
    twins += (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE); /* for GPUs */
#endif
    int error = frame_pool_init(&cache->twins, twins + (UINT64_C(64) << 20));
    if (error)
        goto out_free;
    error = stage_pool_init(&cache->stages);
    if (error)
        goto out_twins;
    error = open_engine(cache);
    if (error)
        goto out_stages;
    error = open_path(cache, why_out);
    if (error)
        goto out_engine;
    error = healer_start(cache);
    if (error)
        goto out_path;
    error = filler_start(cache);
    if (error)
        goto out_healer;
    error = config->members ? dropper_start(cache) : 0;
    if (error)
        goto out_filler;
    *cache_out = cache;
    return 0;

out_filler:
    filler_stop(cache);
out_healer:
    healer_stop(cache);
out_path:
    fault_path_close(cache->path);
out_engine:
    gaia_io_close(cache->io);
out_stages:
    stage_pool_free(&cache->stages);
out_twins:
    frame_pool_free(&cache->twins);
out_free:
    free(cache);
    return error;
}

bool cache_stop(struct cache *cache)
{
    if (cache->stopped)
        return true;
    cache->stopped = true;
    nodes_stop(cache);
    if (cache->config.members)
        dropper_stop(cache);
    filler_stop(cache);
    healer_stop(cache);
    bool ended = evictor_end(&cache->evictor);
    return fit_end(cache) && ended;
}

void cache_close(struct cache *cache)
{
    struct cache_file *file;

    if (!cache)
        return;
    if (!cache_stop(cache)) /* the process ends soon */
        return;
    /* What the host did not close itself: nobody uses it any more. */
    while ((file = LIST_FIRST(&cache->files)))
        cache_file_close(file);
    nodes_free(cache);
    gaia_io_close(cache->io);
    fault_path_close(cache->path);
    for (unsigned i = 0; i < GAIA_DEVICES_MAX; i++) {
        assert(!cache->devices[i] || !cache_device_charged(cache->devices[i]));
        if (cache->devices[i] && cache->devices[i]->gpu)
            gaia_cuda_close(cache->devices[i]->gpu);
        if (cache->devices[i])
            free(cache->devices[i]->node);
        free(cache->devices[i]);
    }
    stage_pool_free(&cache->stages);
    frame_pool_free(&cache->twins);
    pthread_mutex_destroy(&cache->gpus_lock);
    pthread_mutex_destroy(&cache->devices_lock);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

int cache_get_device(struct cache *cache, unsigned number, struct cache_device **device_out)
{
    int error = 0;

    if (number < GAIA_SOFT_MAX && number >= cache->config.soft_devices)
        return -ENODEV;
    pthread_mutex_lock(&cache->devices_lock);
    if (number >= GAIA_SOFT_MAX) { /* opened by cache_open_gpu(), or not there */
        error = number < GAIA_DEVICES_MAX && cache->devices[number] ? 0 : -ENODEV;
    } else if (!cache->devices[number]) {
        struct cache_device *device = calloc(1, sizeof *device);
        uint64_t own = cache->config.device_capacity_of[number];
        if (device) {
            cache_device_init(device, number, own ? own : cache->config.device_capacity,
                              evict_policy_find(cache->config.evict));
            device->pool = cache->pool.limit && !own ? &cache->pool : NULL;
        } else {
            error = -ENOMEM;
        }
        cache->devices[number] = device;
    }
    *device_out = error ? NULL : cache->devices[number];
    pthread_mutex_unlock(&cache->devices_lock);
    return error;
}

/* The GPU that is open already, or none. */
static bool find_gpu(struct cache *cache, const uint8_t uuid[16], unsigned *number_out)
{
    bool found = false;

    pthread_mutex_lock(&cache->devices_lock);
    for (unsigned i = GAIA_SOFT_MAX; i < GAIA_NODE_FIRST && !found; i++) {
        found = cache->devices[i] && !memcmp(cache->gpu_uuids[i - GAIA_SOFT_MAX], uuid, 16);
        *number_out = i;
    }
    pthread_mutex_unlock(&cache->devices_lock);
    return found;
}

static int open_gpu(struct cache *cache, const uint8_t uuid[16], unsigned *number_out,
                    char why_out[GAIA_CUDA_WHY])
{
    struct cache_device *device = calloc(1, sizeof *device);
    struct home_gpu *gpu;
    unsigned ordinal;

    if (!device)
        return -ENOMEM;
    int error = gaia_cuda_open(uuid, cache->stages.area, stage_pool_extent(), !cache->config.no_gpudirect,
                               &gpu, &ordinal, why_out);
    if (!error && ordinal >= GAIA_CUDA_MAX) {
        snprintf(why_out, GAIA_CUDA_WHY, "there are more than %u GPUs", GAIA_CUDA_MAX);
        gaia_cuda_close(gpu);
        error = -ENODEV;
    }
    if (error) {
        free(device);
        return error;
    }
    *number_out = GAIA_SOFT_MAX + ordinal;
    uint64_t own = cache->config.device_capacity_of[*number_out];
    if (!own)
        own = cache->config.gpu_capacity ? cache->config.gpu_capacity : gaia_cuda_bytes(gpu) / 8 * 7;
    cache_device_init(device, *number_out, own, evict_policy_find(cache->config.evict));
    device->gpu = gpu;
    device->scans = true;
    pthread_mutex_lock(&cache->devices_lock);
    memcpy(cache->gpu_uuids[ordinal], uuid, 16);
    cache->devices[*number_out] = device;
    pthread_mutex_unlock(&cache->devices_lock);
    return 0;
}

int cache_open_gpu(struct cache *cache, const uint8_t uuid[16], bool open, unsigned *number_out,
                   char why_out[GAIA_CUDA_WHY])
{
    why_out[0] = '\0';
    /* Before the lock: another one may take long to open, or wait for whoever asks now. */
    if (find_gpu(cache, uuid, number_out))
        return 0;
    if (!open)
        return -ENODEV;
    pthread_mutex_lock(&cache->gpus_lock);
    int error = find_gpu(cache, uuid, number_out) ? 0 : open_gpu(cache, uuid, number_out, why_out);
    pthread_mutex_unlock(&cache->gpus_lock);
    return error;
}

/* The next file after `file` (the first, when NULL) that holds anything, in use; NULL: none. */
static struct cache_file *next_in_use(struct cache *cache, struct cache_file *file)
{
    bool found = false;

    pthread_mutex_lock(&cache->lock);
    for (file = file ? LIST_NEXT(file, link) : LIST_FIRST(&cache->files); file && !found;) {
        pthread_mutex_lock(&file->lock);
        found = file->pinned; /* one that is not pinned may be about to be closed, and holds nothing */
        if (found)
            file->uses++;
        pthread_mutex_unlock(&file->lock);
        if (!found)
            file = LIST_NEXT(file, link);
    }
    pthread_mutex_unlock(&cache->lock);
    return file;
}

int cache_each_file(struct cache *cache, int (*fn)(struct cache_file *file, void *context), void *context)
{
    struct cache_file *file = next_in_use(cache, NULL);
    int error = 0;

    while (file) {
        int one = fn(file, context);
        error = error ? error : one;
        struct cache_file *next = next_in_use(cache, file);
        file_unuse(file);
        file = next;
    }
    return error;
}
