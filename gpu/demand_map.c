/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/demand_map.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/size.h"
#include "gpu/demand_server.h"
#include "gpu/kernels.h"
#include "gpu/touch.h"

#define PAGE 4096u
#define SLOTS 256u                     /* of the ring: so many faults are on their way */
#define ARENA_BYTES ((size_t)64 << 20) /* unless the environment says otherwise */
#define FRAMES_LEAST 64u
#define WAIT_NS (UINT64_C(60) * 1000000000u)

struct demand_map {
    struct demand_map_request asked;
    size_t unit;   /* bytes */
    size_t wished; /* bytes of the GPU's memory; 0: nobody has said */
    struct gaia_demand demand;

    CUfunction flush, drop;
    CUstream stream;
    CUdeviceptr device;    /* all of its memory, and in it: */
    CUdeviceptr on_device; /* a copy of demand */
    uint8_t *pinned;       /* all of the host's */

    pthread_mutex_t calls; /* guards stream, and what control counts of one flush or drop */
    struct demand_server server;
};

/* --- beginning and end --- */

/* Parts of one allocation, each aligned as a page is. */
static size_t part(size_t *used, size_t bytes)
{
    size_t at = *used;

    *used += (bytes + PAGE - 1) / PAGE * PAGE;
    return at;
}

static uint32_t choose_frames(const struct demand_map *map, size_t free_bytes)
{
    uint64_t frames = (map->wished ? map->wished : free_bytes / 4) / map->unit;

    if (frames > map->demand.units)
        frames = map->demand.units;
    return frames > FRAMES_LEAST ? (uint32_t)frames : FRAMES_LEAST;
}

/* The GPU's memory: addresses into demand. *used: of it all. */
static void lay_out_device(struct demand_map *map, CUdeviceptr base, size_t *used)
{
    struct gaia_demand *d = &map->demand;

    *used = 0;
    d->table = (void *)(uintptr_t)(base + part(used, d->units * sizeof *d->table));
    d->owner = (void *)(uintptr_t)(base + part(used, d->frames_count * sizeof *d->owner));
    d->grant = (void *)(uintptr_t)(base + part(used, d->frames_count * sizeof *d->grant));
    d->turn = (void *)(uintptr_t)(base + part(used, d->slots * sizeof *d->turn));
    d->control = (void *)(uintptr_t)(base + part(used, sizeof *d->control));
    map->on_device = base + part(used, sizeof *d);
    d->frames = (void *)(uintptr_t)(base + part(used, (size_t)d->frames_count * map->unit));
}

static void lay_out_host(struct demand_map *map, uint8_t *base, size_t *used)
{
    struct gaia_demand *d = &map->demand;
    struct gaia_demand_host *h = &map->server.host;

    *used = 0;
    h->arena_state = (void *)(base + part(used, d->units * sizeof *h->arena_state));
    h->answers = (void *)(base + part(used, d->slots * sizeof *h->answers));
    d->requests = (void *)(base + part(used, d->slots * sizeof *d->requests));
    h->stages = base + part(used, d->slots * map->unit);
    h->arena = base + part(used, (size_t)d->arena_slots * map->unit);
    d->arena_state = h->arena_state;
    d->answers = h->answers;
    d->stages = h->stages;
    d->arena = h->arena;
}

/* The GPU's memory as it is before the first kernel. */
static CUresult start_device(struct demand_map *map)
{
    const struct cuda_api *api = map->asked.cuda->api;
    struct gaia_demand *d = &map->demand;
    uint32_t turns[SLOTS];
    CUdeviceptr end = (uintptr_t)d->frames;

    for (uint32_t i = 0; i < SLOTS; i++)
        turns[i] = i;
    CUresult error = api->cuMemsetD8Async(map->device, 0, end - map->device, map->stream);
    if (error == CUDA_SUCCESS)
        error =
            api->cuMemsetD8Async((uintptr_t)d->owner, 0xff, d->frames_count * sizeof *d->owner, map->stream);
    if (error == CUDA_SUCCESS) /* what its last owner left */
        error =
            api->cuMemsetD8Async((uintptr_t)d->frames, 0, (size_t)d->frames_count * map->unit, map->stream);
    if (error == CUDA_SUCCESS)
        error = api->cuMemcpyHtoDAsync((uintptr_t)d->turn, turns, sizeof turns, map->stream);
    if (error == CUDA_SUCCESS)
        error = api->cuMemcpyHtoDAsync(map->on_device, d, sizeof *d, map->stream);
    CUresult ended = api->cuStreamSynchronize(map->stream);
    return error == CUDA_SUCCESS ? ended : error;
}

static CUresult allocate(struct demand_map *map)
{
    const struct cuda_api *api = map->asked.cuda->api;
    size_t free_bytes = 0, total, device_bytes, host_bytes;
    void *pinned;

    CUresult error = api->cuMemGetInfo(&free_bytes, &total);
    map->demand.frames_count = choose_frames(map, free_bytes);
    map->demand.frame_mask = gaia_demand_frame_mask(map->demand.frames_count);
    lay_out_device(map, 0, &device_bytes);
    lay_out_host(map, NULL, &host_bytes);
    if (error == CUDA_SUCCESS)
        error = api->cuMemAlloc(&map->device, device_bytes);
    if (error == CUDA_SUCCESS) {
        lay_out_device(map, map->device, &device_bytes);
        error =
            api->cuMemHostAlloc(&pinned, host_bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    } else {
        map->device = 0;
    }
    if (error == CUDA_SUCCESS) {
        map->pinned = pinned;
        lay_out_host(map, map->pinned, &host_bytes);
        gaia_demand_host_start(&map->server.host, map->demand.requests, 0);
    }
    return error;
}

static CUresult prepare(struct demand_map *map)
{
    const struct cuda_api *api = map->asked.cuda->api;
    CUmodule module;

    CUresult error = cuda_module_get(map->asked.cuda, map->asked.module, &module);
    if (error == CUDA_SUCCESS)
        error = api->cuModuleGetFunction(&map->flush, module, "gaia_demand_flush");
    if (error == CUDA_SUCCESS)
        error = api->cuModuleGetFunction(&map->drop, module, "gaia_demand_drop");
    if (error == CUDA_SUCCESS) {
        error = api->cuStreamCreate(&map->stream, CU_STREAM_NON_BLOCKING);
        if (error != CUDA_SUCCESS)
            map->stream = NULL;
    }
    if (error == CUDA_SUCCESS)
        error = allocate(map);
    return error == CUDA_SUCCESS ? start_device(map) : error;
}

/* The context is entered. */
static void undo(struct demand_map *map)
{
    const struct cuda_api *api = map->asked.cuda->api;

    if (map->stream)
        api->cuStreamDestroy(map->stream);
    if (map->device)
        api->cuMemFree(map->device);
    if (map->pinned)
        api->cuMemFreeHost(map->pinned);
}

/* What the environment says; as it is where that is nothing. */
static int wish(const char *name, size_t *bytes)
{
    const char *text = getenv(name);

    if (!text)
        return 0;
    *bytes = size_parse(text);
    return *bytes ? 0 : -EINVAL;
}

static uint32_t choose_arena(const struct demand_map *map, size_t bytes)
{
    uint64_t slots = bytes / map->unit;

    if (slots > map->demand.units)
        slots = map->demand.units;
    return slots ? (uint32_t)slots : 1;
}

static int choose_sizes(struct demand_map *map)
{
    struct gaia_demand *d = &map->demand;
    size_t arena_bytes = ARENA_BYTES;

    int error = wish("GAIA_DEMAND_BYTES", &map->wished);
    if (!error)
        error = wish("GAIA_DEMAND_ARENA_BYTES", &arena_bytes);
    if (error)
        return error;
    d->unit_shift = map->asked.small_units ? GAIA_DEMAND_UNIT_SHIFT_SMALL : GAIA_DEMAND_UNIT_SHIFT_LARGE;
    map->unit = (size_t)1 << d->unit_shift;
    uint64_t units = (map->asked.length + map->unit - 1) / map->unit;
    if (units > GAIA_DEMAND_UNITS_MAX)
        return -ENOMEM;
    d->units = (uint32_t)units;
    d->bytes = map->asked.bytes;
    d->slots = SLOTS;
    d->arena_slots = choose_arena(map, arena_bytes);
    d->is_writable = map->asked.writable;
    d->wait_ns = WAIT_NS;
    d->answer_ns = WAIT_NS;
    return 0;
}

/* Of the sizes that were chosen. */
static int open_server(struct demand_map *map)
{
    const struct gaia_demand *d = &map->demand;

    map->server = (struct demand_server){.home = map->asked.home,
                                         .state = map->asked.state,
                                         .length = map->asked.length,
                                         .fd = map->asked.fd,
                                         .offset = map->asked.offset,
                                         .writable = map->asked.writable,
                                         .host = {.unit_shift = d->unit_shift,
                                                  .units = d->units,
                                                  .slots = d->slots,
                                                  .arena_slots = d->arena_slots}};
    return demand_server_open(&map->server);
}

int demand_map_open(const struct demand_map_request *request, struct demand_map **map_out)
{
    struct demand_map *map = calloc(1, sizeof *map);

    if (!map)
        return -ENOMEM;
    touch_begin();
    map->asked = *request;
    lock_init(&map->calls, LOCK_DEMAND_CALLS);
    int error = choose_sizes(map);
    if (!error)
        error = open_server(map);
    if (error)
        goto out_free;
    error = cuda_enter(request->cuda);
    if (error)
        goto out_close;
    error = cuda_opening_errno(prepare(map));
    if (!error)
        error = demand_server_start(&map->server);
    if (error)
        undo(map);
    cuda_leave(request->cuda);
    if (!error) {
        *map_out = map;
        return 0;
    }
out_close:
    demand_server_close(&map->server);
out_free:
    pthread_mutex_destroy(&map->calls);
    free(map);
    return error;
}

void demand_map_close(struct demand_map *map)
{
    demand_server_stop(&map->server);
    if (!cuda_enter(map->asked.cuda)) {
        undo(map);
        cuda_leave(map->asked.cuda);
    }
    demand_server_close(&map->server);
    pthread_mutex_destroy(&map->calls);
    free(map);
}

/* --- acquire and release --- */

/* Runs a kernel of ours to its end, and says whether units have stayed that should not. Calls held. */
static int run(struct demand_map *map, CUfunction kernel, uint64_t warps, void **parameters)
{
    const struct cuda_api *api = map->asked.cuda->api;
    struct gaia_demand_control before, after;
    unsigned blocks = warps / 8 + 1 > 256 ? 256 : (unsigned)(warps / 8 + 1);

    /* The kernel would wait for answers. */
    int error = demand_servers_are_ending() ? -EIO : cuda_enter(map->asked.cuda);
    if (error)
        return error;
    CUdeviceptr control = (uintptr_t)map->demand.control;
    CUresult result = api->cuMemcpyDtoHAsync(&before, control, sizeof before, map->stream);
    if (result == CUDA_SUCCESS)
        result = api->cuStreamSynchronize(map->stream);
    if (result == CUDA_SUCCESS)
        result = api->cuLaunchKernel(kernel, blocks, 1, 1, GAIA_KERNEL_THREADS, 1, 1, 0, map->stream,
                                     parameters, NULL);
    if (result == CUDA_SUCCESS)
        result = api->cuMemcpyDtoHAsync(&after, control, sizeof after, map->stream);
    CUresult ended = api->cuStreamSynchronize(map->stream);
    result = result == CUDA_SUCCESS ? ended : result;
    cuda_leave(map->asked.cuda);
    if (result != CUDA_SUCCESS)
        return cuda_errno(result);
    return after.kept != before.kept || after.held != before.held || after.failures != before.failures ? -EIO
                                                                                                       : 0;
}

int demand_map_collect(struct demand_map *map)
{
    if (!map->asked.writable)
        return 0;
    pthread_mutex_lock(&map->calls);
    int error = run(map, map->flush, map->demand.frames_count, (void *[]){&map->on_device});
    pthread_mutex_unlock(&map->calls);
    return error;
}

int demand_map_forget(struct demand_map *map, uint64_t offset, uint64_t length)
{
    uint64_t first = offset / map->unit, end = (offset + length + map->unit - 1) / map->unit;
    uint64_t count = (end < map->demand.units ? end : map->demand.units) - first;

    pthread_mutex_lock(&map->calls);
    int error = run(map, map->drop, count / 32, (void *[]){&map->on_device, &first, &count});
    pthread_mutex_unlock(&map->calls);
    if (!error)
        demand_server_forget(&map->server, first, count);
    return error;
}

const struct gaia_demand *demand_map_parameters(const struct demand_map *map,
                                                const struct gaia_demand **on_device_out)
{
    *on_device_out = (const struct gaia_demand *)(uintptr_t)map->on_device;
    return &map->demand;
}
