/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's maps, of files whose home is another node on this node's devices: what clients do with them,
 * the room that they need, and their end. */
#include "cache/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/client.h"
#include "cache/meet.h"

/* The device's capacity is shared out evenly: homes don't know how much of it the others fill. A soft device
 * that nobody has given a capacity counts with its even part of what all such devices may have together
 * (struct cache_pool). Of a device whose mapped pages stay each home may have all, as nothing else would
 * bring large files there: what all homes' files have mapped on it is bounded by its memory. */
static uint64_t share_of_device(const struct cache *cache, const struct cache_device *device)
{
    if (device->scans)
        return device->capacity < NODE_DEVICE_PAGES_MIN ? NODE_DEVICE_PAGES_MIN : device->capacity;
    const struct cache_config *config = &cache->config;
    uint64_t pages =
        device->pool ? 2 * config->soft_pool / GAIA_PAGE_SIZE / config->soft_devices : device->capacity;
    uint64_t share = pages / nodes_count(cache->nodes);

    return share < NODE_DEVICE_PAGES_MIN ? NODE_DEVICE_PAGES_MIN
                                         : share; /* many nodes, a small device: more */
}

static int map_there(struct cache_map *map, const struct cache_map_request *request, struct agent_map *far)
{
    struct cache_file *file = request->file;
    struct nodes *nodes = file->cache->nodes;
    struct cache_device *device;
    struct node_reply reply;

    int error = cache_get_device(file->cache, request->device, &device);
    if (!error && cache_client_process(map->client)->faults < 0 && !device->scans)
        error = -EPERM;
    if (error)
        return error;
    struct node_request wish = {.file = file->far->number,
                                .client = cache_client_number(map->client),
                                .device = request->device,
                                .offset = (int64_t)(request->first * GAIA_PAGE_SIZE),
                                .length = request->count * GAIA_PAGE_SIZE,
                                .flags = (request->writable ? NODE_MAP_WRITABLE : 0) |
                                         (request->resident ? NODE_MAP_RESIDENT : 0),
                                .value = share_of_device(file->cache, device)};
    error = nodes_ask(file->far->session, NODE_CALLS, NODE_MAP, &wish, &reply);
    if (error == NODE_GAVE_UP) { /* to be asked again, of the next home */
        file->given_up = true;
        error = -EINPROGRESS;
    }
    if (error)
        return error;
    far->file = file->far;
    far->device = request->device;
    far->id = (uint32_t)reply.value[0];
    far->frames = agent_frames_get(nodes, file->far->session, (uint32_t)reply.value[1]);
    /* What a home answers is not believed: memory that others can store to is not for who may not. */
    bool fits = far->frames && far->frames->frames->ops->scans == device->scans &&
                (!device->scans || far->frames->read_only == !map->writable);
    if (fits)
        return 0;
    if (far->frames)
        agent_frames_put(nodes, far->frames);
    nodes_ask(file->far->session, NODE_CALLS, NODE_UNMAP,
              &(struct node_request){.file = wish.file, .client = wish.client, .map = far->id}, NULL);
    return -EIO;
}

int agent_map_open(struct cache_map *map, const struct cache_map_request *request, int *frames_fd_out,
                   int *state_fd_out)
{
    struct agent_map *far = calloc(1, sizeof *far);

    if (!far)
        return -ENOMEM;
    int error = map_there(map, request, far);
    if (error) {
        free(far);
        return error;
    }
    map->far = far;
    struct gaia_frames *frames = far->frames->frames;
    frames->clients++;
    *frames_fd_out = -1;
    error = frames->chunk_pages ? 0 : frames->ops->share(frames, map->writable, 0, frames_fd_out);
    if (!error) {
        *state_fd_out = dup(far->frames->state_fd);
        error = *state_fd_out < 0 ? -errno : 0;
        if (error && *frames_fd_out >= 0)
            close(*frames_fd_out);
    }
    if (error)
        agent_map_end(map);
    return error;
}

int agent_map_attach(struct cache_map *map, uint64_t address, struct gaia_frames_map **frames_out)
{
    struct gaia_frames *frames = map->far->frames->frames;

    int error = frames->ops->attach(frames, cache_client_process(map->client), address, map->first,
                                    map->count, map->writable, map->can_trap, frames_out);
    if (error)
        return error;
    error = nodes_ask(map->far->file->session, NODE_CALLS, NODE_ATTACH,
                      &(struct node_request){.client = cache_client_number(map->client),
                                             .map = map->far->id,
                                             .address = address,
                                             .flags = map->can_trap ? NODE_TRAPS : 0},
                      NULL);
    if (error)
        frames->ops->detach(*frames_out);
    return error == -ENOENT ? -EIO : error; /* the map is known here */
}

void agent_map_end(struct cache_map *map)
{
    struct agent_map *far = map->far;
    struct nodes *nodes = map->file->cache->nodes;
    struct gaia_frames *frames = far->frames->frames;

    frames->clients--;
    /* The home ends what it does to the map first. */
    nodes_ask(far->file->session, NODE_CALLS, NODE_UNMAP,
              &(struct node_request){.client = cache_client_number(map->client), .map = far->id}, NULL);
    if (map->frames)
        frames->ops->detach(map->frames);
    if (frames->ops->trim)
        frames->ops->trim(frames);
    agent_frames_put(nodes, far->frames);
    free(far);
    map->far = NULL;
}

/* The home does them one after the other, and one may take as long as a client likes (NODE_HOLDS): those of
 * one file do not take all places of their class. */
#define DROPPING_MAX 2u
static bool may_drop(enum node_op op)
{
    return op == NODE_ACQUIRE || op == NODE_ADVISE;
}

static void begin_dropping(struct nodes *nodes, struct agent_file *far)
{
    pthread_mutex_lock(&nodes->lock);
    while (far->dropping == DROPPING_MAX)
        pthread_cond_wait(&nodes->changed, &nodes->lock);
    far->dropping++;
    pthread_mutex_unlock(&nodes->lock);
}

static void end_dropping(struct nodes *nodes, struct agent_file *far)
{
    pthread_mutex_lock(&nodes->lock);
    far->dropping--;
    pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock);
}

int agent_map_do(struct cache_map *map, enum node_op op, uint64_t offset, uint64_t bytes, unsigned advice,
                 uint64_t *changes_out, uint64_t *poisonings_out)
{
    struct node_request request = {.client = cache_client_number(map->client),
                                   .map = map->far->id,
                                   .offset = (int64_t)offset,
                                   .length = bytes,
                                   .flags = advice};
    struct node_reply reply;

    if (offset > INT64_MAX)
        return -EINVAL;
    uint64_t poisonings = atomic_load(&map->poisonings);
    if (op == NODE_RELEASE) /* before and after, as a WRITE */
        durable_ask(map->file->durable);
    if (may_drop(op))
        begin_dropping(map->file->cache->nodes, map->far->file);
    enum node_class class = op == NODE_ACQUIRE ? NODE_ACQUIRES : NODE_CALLS;
    int error = nodes_ask(map->far->file->session, class, op, &request, &reply);
    if (may_drop(op))
        end_dropping(map->file->cache->nodes, map->far->file);
    if (op == NODE_RELEASE)
        durable_ask(map->file->durable);
    if (op == NODE_ACQUIRE) {
        uint64_t said = error ? 0 : reply.value[0];
        if (said & NODE_ACQUIRE_POISONED)
            poisonings = atomic_fetch_add(&map->poisonings, 1) + 1;
        /* Kernels have something older: who waits for them holds up no map. */
        if (said & NODE_ACQUIRE_FLUSH)
            error = nodes_ask(map->far->file->session, NODE_SYNCS, NODE_FLUSH,
                              &(struct node_request){.file = map->far->file->number}, NULL);
        *poisonings_out = poisonings;
        *changes_out = error ? 0 : reply.value[1];
    }
    return error;
}

bool agent_room(struct nodes *nodes, unsigned device, uint64_t pages, unsigned *next)
{
    struct node_request request = {.device = device, .length = pages};
    bool given = false;

    for (unsigned i = 0; i < MEMBERS_MAX && !given; i++) {
        struct call_session *session = nodes_home_session(nodes, *next);
        struct node_reply reply;
        *next = (*next + 1) % MEMBERS_MAX;
        if (!session)
            continue;
        given = !nodes_ask(session, NODE_CALLS, NODE_ROOM, &request, &reply) && reply.value[0];
        call_session_put(session);
    }
    return given;
}

void agent_fault(struct cache_map *map, const struct gaia_fault *fault)
{
    struct gaia_frames *frames = map->far->frames->frames;
    struct node_request request = {.client = cache_client_number(map->client),
                                   .address = fault->address,
                                   .thread = fault->thread,
                                   .flags = (fault->write ? NODE_FAULT_WRITE : 0) |
                                            (fault->protection ? NODE_FAULT_PROTECTION : 0)};

    if (!call_post(map->far->file->session, NODE_FAULTS, NODE_FAULT, &request, sizeof request))
        return;
    uint64_t page = map->first + (fault->address - map->address) / GAIA_PAGE_SIZE;
    atomic_fetch_add(&map->poisonings, 1);
    if (fault->protection)
        frames->ops->refuse(map->frames, page, fault->thread);
    else
        frames->ops->poison(map->frames, page, 1, fault->thread);
}

void agent_client_gone(struct cache *cache, struct cache_client *client)
{
    struct nodes *nodes = cache->nodes;
    struct node_request request = {.client = cache_client_number(client)};

    for (unsigned i = 0; i < MEMBERS_MAX; i++) {
        struct call_session *session = nodes_home_session(nodes, i);
        if (!session)
            continue;
        call_post(session, NODE_CALLS, NODE_GONE, &request, sizeof request);
        call_session_put(session);
    }
}
