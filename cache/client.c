/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "cache/acquire.h"
#include "cache/collect.h"
#include "cache/drop.h"
#include "cache/evict.h"
#include "cache/fill.h"
#include "cache/map.h"
#include "cache/release.h"
#include "cache/scan.h"
#include "gpu/gaia.h"

#define MAPS_MAX 4096u
#define FAULTS_AT_ONCE 32u

struct cache_client {
    struct cache *cache;
    int faults, stop;
    bool can_trap;
    pthread_t thread;
    pthread_mutex_t lock; /* guards maps, next_id and count; taken before any other */
    pthread_cond_t idle;  /* a map that is being closed has no other reference any more */
    LIST_HEAD(, cache_map) maps;
    uint32_t next_id, count;
};

void cache_map_put(struct cache_map *map)
{
    struct cache_client *client = map->client;

    pthread_mutex_lock(&client->lock);
    unsigned left = --map->references;
    if (left == 1 && map->closing)
        pthread_cond_broadcast(&client->idle);
    pthread_mutex_unlock(&client->lock);
    if (left)
        return;
    struct gaia_frames *frames = map->replica->frames;
    if (map->frames)
        frames->ops->detach(map->frames);
    frames->clients--;
    if (frames->ops->trim)
        frames->ops->trim(frames);
    durable_close(map->replica->file->durable);
    file_unuse(map->replica->file);
    readahead_free(&map->readahead);
    readahead_free(&map->stores);
    free(map);
}

static struct cache_map *find_by_address(struct cache_client *client, uint64_t address)
{
    struct cache_map *map;

    pthread_mutex_lock(&client->lock);
    LIST_FOREACH (map, &client->maps, link)
        if (map->frames && address >= map->address && address - map->address < map->count * GAIA_PAGE_SIZE)
            break;
    if (map)
        cache_map_get(map);
    pthread_mutex_unlock(&client->lock);
    return map;
}

static void *serve_faults(void *argument)
{
    struct cache_client *client = argument;
    struct gaia_fault faults[FAULTS_AT_ONCE];
    int count;

    while ((count = gaia_soft_wait(client->faults, client->stop, faults, FAULTS_AT_ONCE)) > 0) {
        for (int i = 0; i < count; i++) {
            struct cache_map *map = find_by_address(client, faults[i].address);
            if (!map) /* unmapped meanwhile: there is nobody to wake any more */
                continue;
            fault_serve(map, &faults[i]);
            cache_map_put(map);
        }
    }
    return NULL;
}

static void interrupt(int signal)
{
    (void)signal; /* only ends a read() */
}

static void install_interrupt(void)
{
    struct sigaction action = {.sa_handler = interrupt};

    sigaction(SIGUSR2, &action, NULL); /* no SA_RESTART */
}

/* The client shares the description of its descriptor, and may have made it one that blocks: then only a
 * signal ends the read that the thread is in, and it may come just before it. */
static void join_faults(struct cache_client *client)
{
    struct timespec until;

    for (;;) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (!pthread_timedjoin_np(client->thread, NULL, &until))
            return;
        pthread_kill(client->thread, SIGUSR2);
    }
}

int cache_client_open(struct cache *cache, int faults, bool can_trap, struct cache_client **client_out)
{
    int error = -EINVAL;
    struct cache_client *client = NULL;

    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, install_interrupt);
    if (faults >= 0 && (!gaia_soft_is_faults(faults) || fcntl(faults, F_SETFL, O_NONBLOCK)))
        goto out;
    error = -ENOMEM;
    client = calloc(1, sizeof *client);
    if (!client)
        goto out;
    *client = (struct cache_client){.cache = cache, .faults = faults, .can_trap = can_trap, .next_id = 1};
    LIST_INIT(&client->maps);
    lock_init(&client->lock, LOCK_CLIENT);
    pthread_cond_init(&client->idle, NULL);
    client->stop = eventfd(0, EFD_CLOEXEC);
    if (client->stop < 0) {
        error = -errno;
        goto out;
    }
    error = faults >= 0 ? -pthread_create(&client->thread, NULL, serve_faults, client) : 0;
    if (error) {
        close(client->stop);
        goto out;
    }
    *client_out = client;
    return 0;

out:
    free(client);
    if (faults >= 0)
        close(faults);
    return error;
}

void cache_client_close(struct cache_client *client)
{
    struct cache_map *map;
    uint64_t one = 1;

    if (!client)
        return;
    while (write(client->stop, &one, sizeof one) < 0 && errno == EINTR)
        ;
    if (client->faults >= 0)
        join_faults(client);
    while ((map = LIST_FIRST(&client->maps))) {
        uint32_t id = map->id;
        cache_map_close(client, id);
    }
    close(client->stop);
    if (client->faults >= 0)
        close(client->faults);
    pthread_cond_destroy(&client->idle);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

int cache_device_parse(struct cache *cache, const char *name, const uint8_t uuid[16], bool open,
                       unsigned *device_out, char why_out[GAIA_CUDA_WHY])
{
    bool soft = !strncmp(name, "soft:", 5);
    char *end;

    why_out[0] = '\0';
    if ((!soft && strncmp(name, "cuda:", 5)) || name[5] < '0' || name[5] > '9')
        return -EINVAL;
    unsigned long number = strtoul(name + 5, &end, 10);
    if (*end)
        return -EINVAL;
    if (!soft)
        return cache_open_gpu(cache, uuid, open, device_out, why_out);
    if (number >= cache->config.soft_devices)
        return -ENODEV;
    *device_out = (unsigned)number;
    return 0;
}

static int open_replica(const struct cache_map_request *request, struct cache_map *map)
{
    pthread_mutex_lock(&request->file->lock);
    /* What it was when it was tracked first may be long ago. */
    int error = file_check_behind(request->file);
    if (!error)
        error = file_get_replica(request->file, request->device, !request->writable, &map->replica);
    pthread_mutex_unlock(&request->file->lock);
    if (!error && map->client->faults < 0 && !map->replica->scans)
        error = -EPERM;
    if (!error && request->resident && request->count > map->replica->device->capacity)
        error = -ENOMEM;
    return error;
}

static int share(struct cache_map *map, int *frames_fd_out, int *state_fd_out)
{
    struct gaia_frames *frames = map->replica->frames;
    int frames_fd = -1, state_fd;

    int error = frames->chunk_pages ? 0 : frames->ops->share(frames, map->writable, 0, &frames_fd);
    if (error)
        return error;
    state_fd = dup(map->replica->state_fd);
    if (state_fd < 0) {
        error = -errno;
        if (frames_fd >= 0)
            close(frames_fd);
        return error;
    }
    *frames_fd_out = frames_fd;
    *state_fd_out = state_fd;
    return 0;
}

int cache_map_open(struct cache_client *client, const struct cache_map_request *request, uint32_t *id_out,
                   int *frames_fd_out, int *state_fd_out, uint64_t *chunk_pages_out)
{
    if (request->writable && !request->file->writable)
        return -EACCES;
    struct cache_map *map = calloc(1, sizeof *map);
    if (!map)
        return -ENOMEM;
    *map = (struct cache_map){.client = client,
                              .first = request->first,
                              .count = request->count,
                              .writable = request->writable,
                              .resident = request->resident,
                              .can_trap = client->can_trap,
                              .references = 1};
    int frames_fd = -1, state_fd = -1;
    file_use(request->file);
    int error = claim_take(request->file);
    if (error)
        goto out_unuse;
    error = open_replica(request, map);
    if (!error)
        error = share(map, &frames_fd, &state_fd);
    if (error)
        goto out_claim;
    map->resident |= map->replica->scans; /* no touch would bring a page */
    map->replica->frames->clients++;
    readahead_init(&map->readahead, map->replica->file->cache->config.unit_pages);
    readahead_init(&map->stores, 1);
    durable_open(request->file->durable, true, &map->seen);
    pthread_mutex_lock(&client->lock);
    if (client->count < MAPS_MAX) {
        map->id = client->next_id++;
        client->count++;
        *id_out = map->id;
        LIST_INSERT_HEAD(&client->maps, map, link);
    } else {
        error = -EMFILE;
    }
    pthread_mutex_unlock(&client->lock);
    if (!error) {
        *frames_fd_out = frames_fd;
        *state_fd_out = state_fd;
        *chunk_pages_out = map->replica->frames->chunk_pages;
        return 0;
    }
    map->replica->frames->clients--;
    durable_close(request->file->durable);
    readahead_free(&map->readahead);
    readahead_free(&map->stores);
    if (frames_fd >= 0)
        close(frames_fd);
    close(state_fd);
out_claim:
    claim_put(request->file);
out_unuse:
    file_unuse(request->file);
    free(map);
    return error;
}

static struct cache_map *find_by_id(struct cache_client *client, uint32_t id);

/* A chunk's descriptor. Memory that files hold which nobody has mapped any more is given up for it. */
static int make_room(struct cache_map *map, uint64_t chunk, int *fd_out)
{
    struct gaia_frames *frames = map->replica->frames;
    struct cache_device *device = map->replica->device;

    for (;;) {
        int error = frames->ops->share(frames, map->writable, chunk, fd_out);
        if (error != -ENOMEM || !evict_some_of(device, frames->chunk_pages))
            return error;
    }
}

int cache_map_chunk(struct cache_client *client, uint32_t id, uint64_t chunk, int *fd_out)
{
    int error = -EINVAL;

    pthread_mutex_lock(&client->lock);
    struct cache_map *map = find_by_id(client, id);
    if (map)
        cache_map_get(map);
    pthread_mutex_unlock(&client->lock);
    if (!map)
        return error;
    struct gaia_frames *frames = map->replica->frames;
    uint64_t pages = frames->chunk_pages;
    if (pages && chunk >= map->first / pages && chunk <= (map->first + map->count - 1) / pages)
        error = make_room(map, chunk, fd_out);
    cache_map_put(map);
    return error;
}

/* Lock held. */
static struct cache_map *find_by_id(struct cache_client *client, uint32_t id)
{
    struct cache_map *map;

    LIST_FOREACH (map, &client->maps, link)
        if (map->id == id)
            return map;
    return NULL;
}

/* A map that is to be attached now, with a reference: nobody else may attach it until `attaching` falls. */
static int begin_attach(struct cache_client *client, uint32_t id, uint64_t address,
                        struct cache_map **map_out)
{
    int error = -ENOENT;

    pthread_mutex_lock(&client->lock);
    struct cache_map *map = find_by_id(client, id);
    if (map && (map->frames || map->attaching))
        error = -EBUSY;
    else if (map && address > UINT64_MAX - map->count * GAIA_PAGE_SIZE)
        error = -EINVAL;
    else if (map)
        error = 0;
    if (!error) {
        map->attaching = true;
        *map_out = cache_map_get(map);
    }
    pthread_mutex_unlock(&client->lock);
    return error;
}

int cache_map_attach(struct cache_client *client, uint32_t id, uint64_t address)
{
    struct gaia_frames_map *frames = NULL;
    struct cache_map *map;

    if (address % GAIA_PAGE_SIZE)
        return -EINVAL;
    int error = begin_attach(client, id, address, &map);
    if (error)
        return error;
    error = map->replica->frames->ops->attach(map->replica->frames, client->faults, address, map->first,
                                              map->count, map->writable, map->can_trap, &frames);
    pthread_mutex_lock(&client->lock);
    map->attaching = false;
    if (!error) {
        map->address = address;
        map->frames = frames;
    }
    pthread_mutex_unlock(&client->lock);
    cache_map_put(map);
    return error;
}

int cache_map_close(struct cache_client *client, uint32_t id)
{
    pthread_mutex_lock(&client->lock);
    struct cache_map *map = find_by_id(client, id);
    if (map) {
        LIST_REMOVE(map, link);
        client->count--;
        map->closing = true;
        /* Once this returns the client may map something else at the address: nobody may expose pages there
         * any more. */
        while (map->references > 1)
            pthread_cond_wait(&client->idle, &client->lock);
    }
    pthread_mutex_unlock(&client->lock);
    if (!map)
        return -ENOENT;
    struct cache_file *file = map->replica->file;
    file_use(file);
    cache_map_put(map);
    claim_put(file);
    file_unuse(file);
    return 0;
}

/* The map, and the pages of it that [offset, offset + bytes) covers. */
static int find_range(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                      struct cache_map **map_out, struct gaia_run *run_out)
{
    struct gaia_run run = {.page = offset / GAIA_PAGE_SIZE,
                           .count = bytes / GAIA_PAGE_SIZE + (bytes % GAIA_PAGE_SIZE != 0)};

    pthread_mutex_lock(&client->lock);
    struct cache_map *map = find_by_id(client, id);
    bool attached = map && map->frames;
    if (attached)
        cache_map_get(map);
    pthread_mutex_unlock(&client->lock);
    if (!attached)
        return -EINVAL;
    if (offset % GAIA_PAGE_SIZE || !run.count || run.page < map->first || run.count > map->count ||
        run.page - map->first > map->count - run.count) {
        cache_map_put(map);
        return -EINVAL;
    }
    *map_out = map;
    *run_out = run;
    return 0;
}

/* Place what is missing of a range. What is placed last may push out what was placed first when the device is
 * full of others' pages too: a few rounds settle it. */
static int place_all(struct cache_map *map, struct gaia_run run, bool all)
{
    int error = 0;

    for (unsigned round = 0; round < (all ? 4u : 1u) && !error; round++) {
        struct fill_group group;
        fill_group_init(&group);
        fill_range(map, &(struct fill_request){
                            .first = run.page, .count = run.count, .touched = FILL_NO_PAGE, .group = &group});
        error = fill_group_finish(&group);
    }
    return error;
}

/* The same, where no touch would bring what is missing, and nothing stops stores to what somebody else is
 * placing: until all of it is there. Others' truncations may undo a round. */
static int place_for_kernels(struct cache_map *map, struct gaia_run run)
{
    int error = 0;

    for (unsigned round = 0; round < 1000 && !error; round++) {
        error = place_all(map, run, false);
        if (!error && scan_is_placed(map->replica, run.page, run.count))
            return 0;
    }
    return error ? error : -EIO;
}

int cache_map_acquire(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                      uint64_t *changes_out, bool *poisoned_out)
{
    struct cache_map *map;
    struct gaia_run run;

    int error = find_range(client, id, offset, bytes, &map, &run);
    if (error)
        return error;
    *poisoned_out = atomic_exchange(&map->poisoned, false);
    error = acquire_range(map->replica, run.page, run.count, changes_out);
    if (!error && map->replica->scans)
        error = place_for_kernels(map, run);
    else if (!error && map->resident)
        error = place_all(map, run, true);
    if (error && *poisoned_out) /* the client refreshes only after a success: tell it next time */
        map->poisoned = true;
    cache_map_put(map);
    return error;
}

int cache_map_release(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes)
{
    struct cache_map *map;
    struct gaia_run run;

    int error = find_range(client, id, offset, bytes, &map, &run);
    if (error)
        return error;
    error = map->writable ? release_range(map->replica, run.page, run.count) : -EACCES;
    cache_map_put(map);
    return error;
}

int cache_map_sync(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes)
{
    struct cache_map *map;
    struct gaia_run run;

    int error = find_range(client, id, offset, bytes, &map, &run);
    if (error)
        return error;
    struct cache_file *file = map->replica->file;
    error = cache_file_sync(file, file->fd, false, &map->seen);
    cache_map_put(map);
    return error;
}

/* Let pages leave the device: what is stored there is released and collected first. */
static int let_leave(struct replica *replica, struct gaia_run run)
{
    int error = 0;

    if (replica->scans) /* what is mapped stays */
        return replica->read_only ? 0 : release_range(replica, run.page, run.count);
    pthread_mutex_lock(&replica->file->lock);
    uint64_t pages_now = file_pages(replica->file->size);
    pthread_mutex_unlock(&replica->file->lock);
    if (run.page >= pages_now)
        return 0;
    if (run.count > pages_now - run.page)
        run.count = pages_now - run.page;
    for (uint64_t leaf = run.page >> LEAF_SHIFT; !error && leaf <= (run.page + run.count - 1) >> LEAF_SHIFT;
         leaf++) {
        struct copy_pages pages = {.leaf = leaf, .pages = page_range_mask(leaf, run.page, run.count)};
        uint64_t dropped;
        error = drop_pages(replica, &pages, 1, DROP_ADVISED, &dropped);
    }
    return error;
}

int cache_map_advise(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                     unsigned advice)
{
    struct cache_map *map;
    struct gaia_run run;

    int error = find_range(client, id, offset, bytes, &map, &run);
    if (error)
        return error;
    switch (advice) {
    case GAIA_ADV_NORMAL:
        readahead_set_mode(&map->readahead, READAHEAD_NORMAL);
        readahead_set_mode(&map->stores, READAHEAD_NORMAL);
        break;
    case GAIA_ADV_RANDOM:
        readahead_set_mode(&map->readahead, READAHEAD_RANDOM);
        readahead_set_mode(&map->stores, READAHEAD_RANDOM);
        break;
    case GAIA_ADV_SEQUENTIAL:
        readahead_set_mode(&map->readahead, READAHEAD_SEQUENTIAL);
        readahead_set_mode(&map->stores, READAHEAD_NORMAL);
        break;
    case GAIA_ADV_WILLNEED:
        if (run.count > map->replica->device->capacity)
            run.count = map->replica->device->capacity;
        error = place_all(map, run, false);
        break;
    case GAIA_ADV_DONTNEED:
        error = let_leave(map->replica, run);
        break;
    default:
        error = -EINVAL;
    }
    cache_map_put(map);
    return error;
}
