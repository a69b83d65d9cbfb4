/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/acquire.h"
#include "cache/agent.h"
#include "cache/client.h"
#include "cache/collect.h"
#include "cache/drop.h"
#include "cache/evict.h"
#include "cache/fill.h"
#include "cache/filler.h"
#include "cache/fit.h"
#include "cache/home.h"
#include "cache/release.h"
#include "cache/scan.h"
#include "cache/sure.h"
#include "cache/tail.h"
#include "gpu/gaia.h"
#include "io/protocol.h"

static void end_here(struct cache_map *map)
{
    assert(map->replica); /* a map is far, or has one */
    struct gaia_frames *frames = map->replica->frames;
    assert(frames);
    if (map->frames)
        frames->ops->detach(map->frames);
    /* Frames of another node, which have neither, may be renewed as soon as they have no client. */
    const struct gaia_frames_ops *ops = frames->ops;
    bool last = evict_unmapped(map->replica);
    if (last && ops->extent)
        fit_sweep(map->replica);
    if (ops->trim)
        ops->trim(frames);
}

static void free_density(struct cache_map *map)
{
    atomic_fetch_sub(&map->client->blocks, map->density.count);
    density_free(&map->density);
    map->density = (struct density){0};
}

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
    if (map->far)
        agent_map_end(map);
    else
        end_here(map);
    durable_close(map->file->durable);
    file_unuse(map->file);
    readahead_free(&map->readahead);
    readahead_free(&map->stores);
    free_density(map);
    free(map);
}

/* Whether the touches of a map that has blocks go by these is known when they come: cache/fault.c. A client
 * with very many maps of very large files, which may be sparse, gets no more memory for it than one with
 * eight. */
static void init_density(struct cache_map *map)
{
    bool is_kept = !map->far && !map->resident && map->file->cache->config.unit_pages == DENSITY_CELL_PAGES;

    density_init(&map->density, is_kept ? map->count : 0);
    uint64_t before = atomic_fetch_add(&map->client->blocks, map->density.count);
    if (before + map->density.count > DENSITY_BLOCKS_OF_CLIENT)
        free_density(map);
}

static int open_replica(const struct cache_map_request *request, struct cache_map *map)
{
    pthread_mutex_lock(&request->file->lock);
    /* What it was when it was tracked first may be long ago. */
    int error = file_check_behind(request->file);
    if (!error)
        error = file_get_replica(request->file, request->device, !request->writable, &map->replica);
    if (!error)
        error = tail_wipe(map->replica);
    map->failures = kernels_failures(request->file, map->client->far);
    pthread_mutex_unlock(&request->file->lock);
    fit_frames_for_device(request->file);
    if (!error && map->replica->misfit)
        error = -EIO;
    if (!error && map->client->process.faults < 0 && !map->client->far && !map->replica->scans)
        error = -EPERM;
    if (!error && request->resident && request->count > map->replica->device->capacity)
        error = -ENOMEM;
    return error;
}

static int share(struct cache_map *map, int *frames_fd_out, int *state_fd_out)
{
    struct gaia_frames *frames = map->replica->frames;
    int frames_fd = -1, state_fd;

    *frames_fd_out = *state_fd_out = -1;
    if (map->client->far)
        return 0;
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

static int open_here(struct cache_map *map, const struct cache_map_request *request, int *frames_fd_out,
                     int *state_fd_out)
{
    int error = request->writable ? file_make_writable(request->file) : 0;

    if (!error)
        error = claim_take(request->file);
    if (error)
        return error;
    error = open_replica(request, map);
    if (!error)
        evict_shared(map->replica, map->client->id);
    if (!error)
        error = share(map, frames_fd_out, state_fd_out);
    if (error) {
        claim_put(request->file);
        return error;
    }
    map->resident |= map->replica->scans; /* no touch would bring a page */
    evict_mapped(map->replica);
    return 0;
}

/* The last reference goes, and the claim with it. */
static void end_last(struct cache_map *map)
{
    struct cache_file *file = map->file;
    bool far = map->far;

    file_use(file);
    cache_map_put(map);
    if (!far)
        claim_put(file);
    file_unuse(file);
}

int cache_map_open(struct cache_client *client, const struct cache_map_request *request, uint32_t *id_out,
                   int *frames_fd_out, int *state_fd_out, uint64_t *chunk_pages_out)
{
    struct cache_map *map = calloc(1, sizeof *map);
    if (!map)
        return -ENOMEM;
    *map = (struct cache_map){.client = client,
                              .file = request->file,
                              .first = request->first,
                              .count = request->count,
                              .writable = request->writable,
                              .resident = request->resident,
                              .can_trap = client->can_trap,
                              .references = 1};
    int frames_fd = -1, state_fd = -1;
    file_use(request->file);
    request->file->recent = true;
    request->file->let_go = false;
    int error = request->file->far ? agent_map_open(map, request, &frames_fd, &state_fd)
                                   : open_here(map, request, &frames_fd, &state_fd);
    if (error) {
        file_unuse(request->file);
        free(map);
        return error;
    }
    readahead_init(&map->readahead, request->file->cache->config.unit_pages);
    readahead_init(&map->stores, 1);
    init_density(map);
    durable_open(request->file->durable, true, &map->seen);
    *chunk_pages_out = map->far      ? map->far->frames->frames->chunk_pages
                       : client->far ? map->replica->frames->node_number
                                     : map->replica->frames->chunk_pages;
    pthread_mutex_lock(&client->lock); /* from here on a client that guesses its number may close it */
    error = maps_add(&client->maps, map);
    if (!error)
        *id_out = map->id;
    pthread_mutex_unlock(&client->lock);
    if (!error) {
        *frames_fd_out = frames_fd;
        *state_fd_out = state_fd;
        return 0;
    }
    if (frames_fd >= 0)
        close(frames_fd);
    if (state_fd >= 0)
        close(state_fd);
    end_last(map);
    return error;
}

static struct gaia_frames *frames_of(const struct cache_map *map)
{
    return map->far ? map->far->frames->frames : map->replica->frames;
}

/* How often each other home is asked for a chunk's room, in turn: all that we know of a home is that it says
 * it gave some up, and one that only says so must not be asked without end. Each time for twice as much: a
 * GPU's memory comes back in the chunks of the file that gives it up, which may be larger. */
#define ROOMS_OF_OTHERS 24u

struct room {
    unsigned asked, next; /* others; the member whose turn it is */
};

/* Files that nobody maps there any more give up memory of a GPU of this node's: those of this home, else
 * those of others. */
static bool make_room(struct cache *cache, unsigned number, uint64_t pages, struct room *room)
{
    struct cache_device *device;

    if (cache_get_device(cache, number, &device))
        return false;
    if (evict_some_of(device, pages))
        return true;
    unsigned turn = cache->nodes ? room->asked++ / nodes_count(cache->nodes) : ROOMS_OF_OTHERS;
    return turn < ROOMS_OF_OTHERS && agent_room(cache->nodes, number, pages << turn, &room->next);
}

/* A chunk's descriptor. What several homes have mapped on a GPU is bounded by its memory alone. */
static int share_chunk(struct cache_map *map, uint64_t chunk, int *fd_out)
{
    struct gaia_frames *frames = frames_of(map);
    unsigned number = map->far ? map->far->device : map->replica->device->number;
    struct room room = {0};

    for (;;) {
        int error = frames->ops->share(frames, map->writable, chunk, fd_out);
        if (error != -ENOMEM || !make_room(map->file->cache, number, frames->chunk_pages, &room))
            return error;
    }
}

/* What a client needs to look for stores by itself. A release that finds none does nothing else, but for what
 * gaia_shared_state counts as unfound; nor does an acquire, but for what the rest of that state tells. Of a
 * file whose home is elsewhere that state is not shared. No failure: it asks us then. */
static void share_digests(const struct cache_map *map, uint64_t chunk, int *fd_out, uint64_t *bytes_out)
{
    struct gaia_frames *frames = frames_of(map);

    if (!map->far && map->writable && frames->ops->share_digests &&
        !frames->ops->share_digests(frames, chunk, fd_out, bytes_out))
        return;
    *fd_out = -1;
    *bytes_out = 0;
}

/* The client can't acquire what it maps before it has all of its chunks, each of which takes it and the
 * driver a while; but then it does, and what it asks for is on its way meanwhile. Not more: to place pages
 * makes their chunk, and the GPU may have no memory for all. */
static void place_ahead(struct cache_map *map, uint64_t chunk)
{
    uint64_t pages = frames_of(map)->chunk_pages, first = chunk * pages, end = first + pages;

    if (map->far)
        return; /* its home does not hear of chunks */
    if (first < map->first)
        first = map->first;
    if (end > map->first + map->count)
        end = map->first + map->count;
    /* Who waits is not to find room taken, for a moment, by who places the same. */
    struct cache_device *device = map->replica->device;
    if (cache_device_charged(device) + map->count + device->capacity / 4 <= device->capacity)
        filler_ahead(map, first, end - first);
}

int cache_map_chunk(struct cache_client *client, uint32_t id, uint64_t chunk, bool searches, int *fd_out,
                    int *digests_fd_out, uint64_t *digests_bytes_out)
{
    int error = -EINVAL;

    *digests_fd_out = -1;
    *digests_bytes_out = 0;
    pthread_mutex_lock(&client->lock);
    struct cache_map *map = maps_by_id(&client->maps, id);
    if (map)
        cache_map_get(map);
    pthread_mutex_unlock(&client->lock);
    if (!map)
        return error;
    cache_map_be_sure(map);
    uint64_t pages = frames_of(map)->chunk_pages;
    if (pages && chunk >= map->first / pages && chunk <= (map->first + map->count - 1) / pages) {
        place_ahead(map, chunk); /* before the driver makes a descriptor, which takes it a millisecond */
        error = share_chunk(map, chunk, fd_out);
    }
    if (!error && searches)
        share_digests(map, chunk, digests_fd_out, digests_bytes_out);
    cache_map_put(map);
    return error;
}

/* A map that is to be attached now, with a reference: nobody else may attach it until `attaching` falls. */
static int begin_attach(struct cache_client *client, uint32_t id, uint64_t address,
                        struct cache_map **map_out)
{
    int error = -ENOENT;

    pthread_mutex_lock(&client->lock);
    struct cache_map *map = maps_by_id(&client->maps, id);
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

static int attach_here(struct cache_map *map, uint64_t address, struct gaia_frames_map **frames_out)
{
    struct gaia_frames *frames = map->replica->frames;
    struct gaia_process process = map->client->process;

    if (map->client->far)
        process.faults = (int)map->client->number;
    return frames->ops->attach(frames, &process, address, map->first, map->count, map->writable,
                               map->can_trap, frames_out);
}

int cache_map_attach_far(struct cache_client *client, uint32_t id, uint64_t address, bool can_trap)
{
    pthread_mutex_lock(&client->lock);
    struct cache_map *map = maps_by_id(&client->maps, id);
    if (map && !map->frames && !map->attaching)
        map->can_trap = can_trap;
    pthread_mutex_unlock(&client->lock);
    return cache_map_attach(client, id, address);
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
    error = map->far ? agent_map_attach(map, address, &frames) : attach_here(map, address, &frames);
    pthread_mutex_lock(&client->lock);
    map->attaching = false;
    if (!error) {
        map->address = address;
        map->frames = frames;
        if (!map->closing) /* else it is not among them any more */
            maps_attach(&client->maps, map);
    }
    pthread_mutex_unlock(&client->lock);
    if (error && cache_file_is_lost(map->file)) /* since it was mapped */
        error = -ESTALE;
    cache_map_put(map);
    return error;
}

int cache_map_close(struct cache_client *client, uint32_t id)
{
    pthread_mutex_lock(&client->lock);
    struct cache_map *map = maps_by_id(&client->maps, id);
    if (map) {
        maps_remove(&client->maps, map);
        map->closing = true;
        pthread_mutex_unlock(&client->lock);
        filler_forget(map);
        pthread_mutex_lock(&client->lock);
        /* Once this returns the client may map something else at the address: nobody may expose pages there
         * any more. */
        while (map->references > 1)
            pthread_cond_wait(&client->idle, &client->lock);
    }
    pthread_mutex_unlock(&client->lock);
    if (!map)
        return -ENOENT;
    end_last(map);
    return 0;
}

void cache_map_be_sure(const struct cache_map *map)
{
    if (map->file->cache->nodes && !map->far && !map->client->far)
        nodes_be_sure(map->file, KERNELS_NOBODY, NULL);
}

/* The map, and the pages of it that [offset, offset + bytes) covers. */
static int find_range(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                      struct cache_map **map_out, struct gaia_run *run_out)
{
    struct gaia_run run = {.page = offset / GAIA_PAGE_SIZE,
                           .count = bytes / GAIA_PAGE_SIZE + (bytes % GAIA_PAGE_SIZE != 0)};

    pthread_mutex_lock(&client->lock);
    struct cache_map *map = maps_by_id(&client->maps, id);
    bool attached = map && map->frames;
    if (attached)
        cache_map_get(map);
    pthread_mutex_unlock(&client->lock);
    if (!attached)
        return -EINVAL;
    cache_map_be_sure(map);
    if (map->file->given_up) {
        cache_map_put(map);
        return -EIO;
    }
    if (offset % GAIA_PAGE_SIZE || !run.count || run.page < map->first || run.count > map->count ||
        run.page - map->first > map->count - run.count) {
        cache_map_put(map);
        return -EINVAL;
    }
    *map_out = map;
    *run_out = run;
    return 0;
}

/* What of a range the file has: a map may be longer than any file, and to go through the rest, where there is
 * nothing to place, would take all fillers years. */
static struct gaia_run up_to_end(struct cache_map *map, struct gaia_run run)
{
    pthread_mutex_lock(&map->file->lock);
    uint64_t pages = file_pages(map->file->size), left = run.page < pages ? pages - run.page : 0;
    pthread_mutex_unlock(&map->file->lock);
    run.count = run.count < left ? run.count : left;
    return run;
}

/* Place what is missing of a range. What is placed last may push out what was placed first when the device is
 * full of others' pages too: a few rounds settle it. */
static int place_all(struct cache_map *map, struct gaia_run run, bool all)
{
    int error = 0;

    for (unsigned round = 0; round < (all ? 4u : 1u) && !error; round++) {
        struct gaia_run there = up_to_end(map, run);
        struct fill_group group;
        fill_group_init(&group);
        filler_place(map, there.page, there.count, &group);
        error = fill_group_finish(&group);
    }
    return error;
}

static int place_leaves(struct cache_map *map, struct gaia_run run, const struct lacking *lacking)
{
    struct fill_group group;

    fill_group_init(&group);
    filler_place_leaves(map, run, lacking->leaves, lacking->count, &group);
    return fill_group_finish(&group);
}

/* Place what is missing where no touch would bring it, and nothing stops stores to what somebody else is
 * placing: until all of it is there. Others' truncations may undo a round. */
static int place_whole(struct cache_map *map, struct gaia_run run)
{
    struct lacking *lacking;
    int error = 0;

    for (unsigned round = 0; round < 1000 && !error; round++) {
        if (placed_lacks(map->replica, run.page, run.count, &map->placed, &lacking)) {
            if (!lacking)
                return 0;
            error = place_leaves(map, run, lacking);
            free(lacking);
            continue;
        }
        error = place_all(map, run, false);
        if (!error && placed_look(map->replica, run.page, run.count, &map->placed))
            return 0;
    }
    return error ? error : -EIO;
}

/* At the home; the reference goes. */
static int do_far(struct cache_map *map, enum node_op op, uint64_t offset, uint64_t bytes, unsigned advice,
                  uint64_t *changes_out, uint64_t *poisonings_out)
{
    int error = agent_map_do(map, op, offset, bytes, advice, changes_out, poisonings_out);

    cache_map_put(map);
    return error;
}

static bool kernels_are_behind(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    bool behind = kernels_behind(file);
    pthread_mutex_unlock(&file->lock);
    return behind;
}

/* What programs of other nodes have stored through mappings comes to the home. If some could not be stored
 * there, each map is told so once, whoever had it written back; fsync() says that it is lost on the node
 * where it was stored. The stores of its own node the client has seen to. */
static int take_in_stores(struct cache_map *map, off_t offset, off_t length)
{
    struct cache_file *file = map->file;
    unsigned node = map->client->far;
    int error = home_write_back(file, node, offset, length);

    pthread_mutex_lock(&file->lock);
    uint64_t failures = kernels_failures(file, node);
    if (failures != map->failures)
        error = file->kernels.failure;
    map->failures = failures;
    pthread_mutex_unlock(&file->lock);
    return error;
}

int cache_map_acquire(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                      uint64_t *changes_out, uint64_t *poisonings_out)
{
    struct cache_map *map;
    struct gaia_run run;

    *changes_out = 0;
    int error = find_range(client, id, offset, bytes, &map, &run);
    if (error)
        return error;
    if (map->far) /* the state of a far map is such that the next acquire comes, too */
        return do_far(map, NODE_ACQUIRE, offset, bytes, 0, changes_out, poisonings_out);
    error = take_in_stores(map, (off_t)offset, (off_t)bytes);
    if (error) {
        cache_map_put(map);
        return error;
    }
    *poisonings_out = client->far ? atomic_exchange(&map->poisonings, 0) : atomic_load(&map->poisonings);
    error = acquire_range(map->replica, run.page, run.count, changes_out);
    if (client->far) /* who has bytes above the device's copy (GAIA_DEMAND) sees no state that counts them */
        *changes_out += atomic_load(&map->replica->state->releases);
    if (!error && map->replica->scans)
        error = place_whole(map, run);
    else if (!error && map->resident)
        error = place_all(map, run, true);
    /* What a CPU of some node has written, and a device has now, no kernel holds older: else who hears of it
     * from what the device stores next could read what was before. */
    if (!error)
        error = client->far ? kernels_are_behind(map->file) : kernels_flush(map->file);
    if (error < 0 && client->far) /* the client refreshes only after a success: tell it next time */
        atomic_fetch_add(&map->poisonings, *poisonings_out);
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
    if (map->far)
        error = agent_map_do(map, NODE_RELEASE, offset, bytes, 0, NULL, NULL);
    else
        error = map->writable ? release_range(map->replica, run.page, run.count) : -EACCES;
    if (!error && map->file->given_up) /* what was released may have been dropped before */
        error = -EIO;
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
    struct cache_file *file = map->file;
    error = cache_file_sync(file, file->fd, false, &map->seen);
    cache_map_put(map);
    return error;
}

/* Let pages leave the device: what is stored there is released and collected first. */
static int let_leave(struct replica *replica, struct gaia_run run)
{
    if (replica->scans) /* what is mapped stays */
        return replica->read_only ? 0 : release_range(replica, run.page, run.count);
    return drop_range(replica, run.page, run.count);
}

int cache_map_advise(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                     unsigned advice)
{
    struct cache_map *map;
    struct gaia_run run;

    int error = find_range(client, id, offset, bytes, &map, &run);
    if (error)
        return error;
    if (map->far)
        return do_far(map, NODE_ADVISE, offset, bytes, advice, NULL, NULL);
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
        density_forget(&map->density, run.page, run.count);
        break;
    default:
        error = -EINVAL;
    }
    cache_map_put(map);
    return error;
}
