/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/demand_map.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/size.h"
#include "gpu/demand_host.h"
#include "gpu/kernels.h"
#include "gpu/touch.h"

#define PAGE 4096u
#define SLOTS 256u                     /* of the ring: so many faults are on their way */
#define ARENA_BYTES ((size_t)64 << 20) /* unless the environment says otherwise */
#define FRAMES_LEAST 64u
#define NO_UNIT UINT32_MAX
#define WAIT_NS (UINT64_C(60) * 1000000000u)
#define SPINS 2000u /* looks at an empty ring before the thread sleeps */

struct demand_map {
    struct demand_map_request asked;
    size_t unit;   /* bytes */
    size_t wished; /* bytes of the GPU's memory; 0: nobody has said */
    struct gaia_demand demand;

    CUmodule module;
    CUfunction flush, drop;
    CUstream stream;
    CUdeviceptr device;    /* all of its memory, and in it: */
    CUdeviceptr on_device; /* a copy of demand */
    CUdeviceptr list;      /* of units */
    uint8_t *pinned;       /* all of the host's */

    pthread_mutex_t calls; /* guards list and stream, and what control counts of one flush or drop */
    pthread_mutex_t lock;  /* guards all below, but for the ring's words; a leaf */
    struct gaia_demand_host host;
    uint8_t *twins;       /* what was granted: address space for the mapping; for reading, one unit */
    uint32_t *twin_grant; /* of each unit: the grant that its twin is of; 0: none */
    uint32_t *arena_unit; /* of each slot */
    uint32_t *arena_free; /* slots without a unit, and how many of them there are */
    uint32_t free_slots;
    uint32_t hand; /* the next slot to give away, when none is free */

    pthread_t thread;
    _Atomic bool stop;
};

/* --- answers --- */

/* Bytes of a unit that lie in pages before the end of the file: touching those past it is an error. -EIO:
 * nobody says where that is (the daemon is gone). */
static int readable(const struct demand_map *map, uint32_t unit, size_t *bytes_out)
{
    uint64_t from = (uint64_t)unit * map->unit;
    struct stat st;

    if (fstat(map->asked.fd, &st))
        return -EIO;
    uint64_t end = st.st_size > map->asked.offset ? (uint64_t)(st.st_size - map->asked.offset) : 0;
    end = (end + PAGE - 1) / PAGE * PAGE;
    end = end < map->asked.length ? end : map->asked.length;
    *bytes_out = end <= from ? 0 : end - from < map->unit ? (size_t)(end - from) : map->unit;
    return 0;
}

/* What is only read is never given back: its bytes are here on their way, and nothing is kept, so that data
 * that is larger than the host's memory can be read. */
static uint8_t *twin_of(const struct demand_map *map, uint32_t unit)
{
    return map->twins + (map->asked.writable ? (uint64_t)unit * map->unit : 0);
}

static size_t twin_bytes(const struct demand_map *map)
{
    return (map->asked.writable ? (size_t)map->demand.units : 1) * map->unit;
}

/* The unit's twin becomes what the soft mapping has now. */
static int read_home(struct demand_map *map, uint32_t unit)
{
    size_t n;

    int error = readable(map, unit, &n);
    if (error)
        return error;
    memset(twin_of(map, unit) + n, 0, map->unit - n);
    return n ? touch_copy(twin_of(map, unit), map->asked.home + (uint64_t)unit * map->unit, n) : 0;
}

/* The unit is not in the arena, and its number has counted up. */
static void take(struct demand_map *map, uint32_t unit)
{
    uint32_t slot = gaia_demand_arena_take(&map->host, unit);

    if (slot < map->host.arena_slots) {
        map->arena_unit[slot] = NO_UNIT;
        map->arena_free[map->free_slots++] = slot;
    }
}

/* The twin goes into the arena: where it was, into a free slot, or, in turn, in place of another unit. The
 * grant. */
static uint32_t put(struct demand_map *map, uint32_t unit)
{
    take(map, unit);
    if (map->free_slots == 0) {
        take(map, map->arena_unit[map->hand]);
        map->hand = (map->hand + 1) % map->host.arena_slots;
    }
    uint32_t slot = map->arena_free[--map->free_slots];
    gaia_demand_arena_write(&map->host, slot, 0, twin_of(map, unit), map->unit);
    map->arena_unit[slot] = unit;
    return gaia_demand_arena_put(&map->host, unit, slot);
}

static uint32_t number_of(const struct demand_map *map, uint32_t unit)
{
    return GAIA_DEMAND_ARENA_SEQUENCE(map->host.arena_state[unit]);
}

/* Nobody has the unit in a frame, so its last twin is not needed any more. */
static uint32_t fetch(struct demand_map *map, const struct gaia_demand_asked *asked, uint32_t *grant)
{
    if (asked->operation == GAIA_DEMAND_FETCH && GAIA_DEMAND_ARENA_SLOT(map->host.arena_state[asked->unit]))
        return GAIA_DEMAND_PULL; /* it has come meanwhile */
    take(map, asked->unit);
    map->twin_grant[asked->unit] = 0;
    int error = read_home(map, asked->unit);
    if (error)
        return (uint32_t)-error;
    if (asked->operation == GAIA_DEMAND_FETCH) {
        map->twin_grant[asked->unit] = put(map, asked->unit);
        return GAIA_DEMAND_PULL;
    }
    *grant = map->twin_grant[asked->unit] = number_of(map, asked->unit);
    memcpy(gaia_demand_stage(&map->host, asked->ticket), twin_of(map, asked->unit), map->unit);
    return 0;
}

/* Store the bytes that differ from the twin, and no others, to the soft mapping. */
static int store_home(struct demand_map *map, uint32_t unit, const uint8_t *bytes)
{
    size_t n;

    int error = readable(map, unit, &n);
    return error ? error
                 : touch_store_changed(map->asked.home + (uint64_t)unit * map->unit, bytes,
                                       twin_of(map, unit), n);
}

static uint32_t give(struct demand_map *map, const struct gaia_demand_asked *asked, uint32_t *grant)
{
    const uint8_t *stage = gaia_demand_stage(&map->host, asked->ticket);
    uint32_t unit = asked->unit;

    if (!map->asked.writable)
        return EACCES;
    if (!map->twin_grant[unit] || map->twin_grant[unit] != asked->grant)
        return EINVAL; /* no grant of ours */
    bool was_there = GAIA_DEMAND_ARENA_SLOT(map->host.arena_state[unit]);
    int error = store_home(map, unit, stage);
    if (error)
        return (uint32_t)-error;
    take(map, unit);
    memcpy(twin_of(map, unit), stage, map->unit);
    *grant = map->twin_grant[unit] = was_there ? put(map, unit) : number_of(map, unit);
    return 0;
}

static void answer(struct demand_map *map, const struct gaia_demand_asked *asked)
{
    uint32_t grant = 0;

    pthread_mutex_lock(&map->lock);
    uint32_t status =
        asked->operation == GAIA_DEMAND_GIVE ? give(map, asked, &grant) : fetch(map, asked, &grant);
    pthread_mutex_unlock(&map->lock);
    gaia_demand_reply(&map->host, asked->ticket, status, grant);
}

/* The driver takes its memory back when the process ends, while threads run yet. */
#define ENDING_MS 1000u

static _Atomic bool ending;
static _Atomic unsigned serving; /* threads */
static pid_t owner;              /* of them: a child of fork() has none */

static void end_serving(void)
{
    if (getpid() != owner)
        return;
    atomic_store(&ending, true);
    for (unsigned ms = 0; ms < ENDING_MS && atomic_load(&serving); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* After the driver has begun, so that it is called before the driver's own end. */
static void expect_the_end(void)
{
    owner = getpid();
    atexit(end_serving);
}

/* Looks at the ring without pause while there is something to do, and less often the longer there is nothing.
 */
static void *serve(void *argument)
{
    struct demand_map *map = argument;
    struct gaia_demand_asked asked;
    unsigned idle = 0;

    while (!atomic_load(&map->stop) && !atomic_load(&ending)) {
        if (gaia_demand_next(&map->host, &asked)) {
            answer(map, &asked);
            idle = 0;
            continue;
        }
        if (++idle < SPINS) {
            sched_yield();
            continue;
        }
        unsigned sleeps = idle - SPINS;
        struct timespec pause = {.tv_nsec = sleeps < 20 ? 50000 : sleeps < 200 ? 200000 : 1000000};
        nanosleep(&pause, NULL);
    }
    atomic_fetch_sub(&serving, 1);
    return NULL;
}

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
    map->list = base + part(used, d->units * sizeof(uint32_t));
    d->frames = (void *)(uintptr_t)(base + part(used, (size_t)d->frames_count * map->unit));
}

static void lay_out_host(struct demand_map *map, uint8_t *base, size_t *used)
{
    struct gaia_demand *d = &map->demand;
    struct gaia_demand_host *h = &map->host;

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
        gaia_demand_host_start(&map->host, map->demand.requests, 0);
    }
    return error;
}

static CUresult prepare(struct demand_map *map)
{
    const struct cuda_api *api = map->asked.cuda->api;

    CUresult error = api->cuModuleLoadData(&map->module, gaia_kernels_ptx);
    if (error != CUDA_SUCCESS) {
        map->module = NULL;
        return error;
    }
    error = api->cuModuleGetFunction(&map->flush, map->module, "gaia_demand_flush");
    if (error == CUDA_SUCCESS)
        error = api->cuModuleGetFunction(&map->drop, map->module, "gaia_demand_drop");
    if (error == CUDA_SUCCESS)
        error = api->cuStreamCreate(&map->stream, CU_STREAM_NON_BLOCKING);
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
    if (map->module)
        api->cuModuleUnload(map->module);
    if (map->device)
        api->cuMemFree(map->device);
    if (map->pinned)
        api->cuMemFreeHost(map->pinned);
}

static void free_tables(struct demand_map *map)
{
    if (map->twins)
        munmap(map->twins, twin_bytes(map));
    free(map->twin_grant);
    free(map->arena_unit);
    free(map->arena_free);
}

static int make_tables(struct demand_map *map)
{
    struct gaia_demand *d = &map->demand;
    void *twins = mmap(NULL, twin_bytes(map), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    map->twins = twins == MAP_FAILED ? NULL : twins;
    map->twin_grant = calloc(d->units, sizeof *map->twin_grant);
    map->arena_unit = malloc(d->arena_slots * sizeof *map->arena_unit);
    map->arena_free = malloc(d->arena_slots * sizeof *map->arena_free);
    if (!map->twins || !map->twin_grant || !map->arena_unit || !map->arena_free)
        return -ENOMEM;
    memset(map->arena_unit, 0xff, d->arena_slots * sizeof *map->arena_unit);
    while (map->free_slots < d->arena_slots) {
        map->arena_free[map->free_slots] = d->arena_slots - 1 - map->free_slots;
        map->free_slots++;
    }
    return 0;
}

static int start_thread(struct demand_map *map)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, old;

    /* The program's signal handlers are for the program's threads; SIGBUS is for what this one touches. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_once(&once, expect_the_end);
    atomic_fetch_add(&serving, 1);
    int error = -pthread_create(&map->thread, NULL, serve, map);
    if (error)
        atomic_fetch_sub(&serving, 1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
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
    map->host = (struct gaia_demand_host){
        .unit_shift = d->unit_shift, .units = d->units, .slots = d->slots, .arena_slots = d->arena_slots};
    return 0;
}

int demand_map_open(const struct demand_map_request *request, struct demand_map **map_out)
{
    struct demand_map *map = calloc(1, sizeof *map);

    if (!map)
        return -ENOMEM;
    touch_begin();
    map->asked = *request;
    lock_init(&map->calls, LOCK_DEMAND_CALLS);
    lock_init(&map->lock, LOCK_DEMAND);
    int error = choose_sizes(map);
    if (!error)
        error = make_tables(map);
    if (!error)
        error = cuda_enter(request->cuda);
    if (error)
        goto out_free;
    error = cuda_errno(prepare(map));
    if (!error)
        error = start_thread(map);
    if (error)
        undo(map);
    cuda_leave(request->cuda);
    if (!error) {
        *map_out = map;
        return 0;
    }
out_free:
    free_tables(map);
    pthread_mutex_destroy(&map->lock);
    pthread_mutex_destroy(&map->calls);
    free(map);
    return error;
}

void demand_map_close(struct demand_map *map)
{
    atomic_store(&map->stop, true);
    pthread_join(map->thread, NULL);
    if (!cuda_enter(map->asked.cuda)) {
        undo(map);
        cuda_leave(map->asked.cuda);
    }
    free_tables(map);
    pthread_mutex_destroy(&map->lock);
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

    int error = cuda_enter(map->asked.cuda);
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
        return -EIO;
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

/* The GPU drops units [first, first + count). Calls held. */
static int drop(struct demand_map *map, uint64_t first, uint64_t count)
{
    uint32_t *units = malloc(count * sizeof *units);
    int error = units ? cuda_enter(map->asked.cuda) : -ENOMEM;

    if (!error) {
        for (uint64_t i = 0; i < count; i++)
            units[i] = (uint32_t)(first + i);
        const struct cuda_api *api = map->asked.cuda->api;
        CUresult result = api->cuMemcpyHtoDAsync(map->list, units, count * sizeof *units, map->stream);
        CUresult ended = api->cuStreamSynchronize(map->stream);
        error = result == CUDA_SUCCESS && ended == CUDA_SUCCESS ? 0 : -EIO;
        cuda_leave(map->asked.cuda);
    }
    free(units);
    return error ? error : run(map, map->drop, count, (void *[]){&map->on_device, &map->list, &count});
}

int demand_map_forget(struct demand_map *map, uint64_t offset, uint64_t length)
{
    uint64_t first = offset / map->unit, end = (offset + length + map->unit - 1) / map->unit;
    uint64_t count = (end < map->demand.units ? end : map->demand.units) - first;

    pthread_mutex_lock(&map->calls);
    int error = drop(map, first, count);
    pthread_mutex_unlock(&map->calls);
    if (error)
        return error;
    pthread_mutex_lock(&map->lock);
    for (uint64_t unit = first; unit < first + count; unit++) {
        take(map, (uint32_t)unit);
        map->twin_grant[unit] = 0;
    }
    if (map->asked.writable)
        madvise(twin_of(map, (uint32_t)first), count * map->unit, MADV_DONTNEED);
    pthread_mutex_unlock(&map->lock);
    return 0;
}

const struct gaia_demand *demand_map_parameters(const struct demand_map *map,
                                                const struct gaia_demand **on_device_out)
{
    *on_device_out = (const struct gaia_demand *)(uintptr_t)map->on_device;
    return &map->demand;
}
