/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of this node's devices that homes elsewhere fill: what gpu/home_node.c asks for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/shared_page.h"
#include "cache/agent.h"
#include "cache/client.h"
#include "cache/replica.h"
#include "cache/window.h"
#include "io/protocol.h"

/* nodes->lock is held. */
static struct agent_frames *find(struct nodes *nodes, const struct call_session *session, uint32_t number)
{
    struct agent_frames *frames;

    LIST_FOREACH (frames, &nodes->frames, link)
        if (frames->number == number && frames->session == session)
            return frames;
    return NULL;
}

struct agent_frames *agent_frames_get(struct nodes *nodes, const struct call_session *session,
                                      uint32_t number)
{
    pthread_mutex_lock(&nodes->lock);
    struct agent_frames *frames = find(nodes, session, number);
    if (frames)
        frames->references++;
    pthread_mutex_unlock(&nodes->lock);
    return frames;
}

static void free_frames(struct agent_frames *frames)
{
    munmap(frames->state, SHARED_PAGE_SIZE);
    close(frames->state_fd);
    free(frames);
}

void agent_frames_put(struct nodes *nodes, struct agent_frames *frames)
{
    pthread_mutex_lock(&nodes->lock);
    bool last = --frames->references == 0;
    pthread_mutex_unlock(&nodes->lock);
    if (!last)
        return;
    frames->frames->ops->close(frames->frames);
    call_session_put(frames->session);
    free_frames(frames);
}

/* An acquire and a release of a map always come to the daemon, which asks the home. */
static int alloc_frames(struct agent_frames **frames_out)
{
    struct agent_frames *frames = calloc(1, sizeof *frames);
    void *state;

    int error = frames ? shared_page_make("gaiafs:state", &state, &frames->state_fd) : -ENOMEM;
    if (error) {
        free(frames);
        return error;
    }
    frames->state = state;
    atomic_store(&frames->state->stored, 1);
    atomic_store(&frames->state->changes, 1);
    *frames_out = frames;
    return 0;
}

static int do_open(struct nodes *nodes, struct call_session *session, const struct node_request *request)
{
    struct agent_frames *frames;
    struct cache_device *device;

    if (!request->frames || request->device >= GAIA_NODE_FIRST ||
        request->length > INT64_MAX / GAIA_PAGE_SIZE)
        return -EINVAL;
    int error = cache_get_device(nodes->cache, request->device, &device);
    if (!error)
        error = alloc_frames(&frames);
    if (error)
        return error;
    frames->read_only = device->scans && request->flags & NODE_FRAMES_READ_ONLY;
    error = device->gpu
                ? gaia_cuda_frames_open(device->gpu, request->length, frames->read_only, &frames->frames)
                : gaia_soft_frames_open(request->length, &frames->frames);
    if (error) {
        free_frames(frames);
        return error;
    }
    frames->session = session;
    frames->number = request->frames;
    frames->references = 1;
    call_session_get(session);
    pthread_mutex_lock(&nodes->lock);
    bool known = find(nodes, session, request->frames);
    if (known)
        frames->number = 0; /* nobody finds it */
    LIST_INSERT_HEAD(&nodes->frames, frames, link);
    if (known)
        LIST_REMOVE(frames, link);
    pthread_mutex_unlock(&nodes->lock);
    if (known)
        agent_frames_put(nodes, frames);
    return known ? -EEXIST : 0;
}

static int do_close(struct nodes *nodes, const struct call_session *session, uint32_t number)
{
    pthread_mutex_lock(&nodes->lock);
    struct agent_frames *frames = find(nodes, session, number);
    if (frames)
        LIST_REMOVE(frames, link);
    pthread_mutex_unlock(&nodes->lock);
    if (!frames)
        return -ENOENT;
    agent_frames_put(nodes, frames);
    return 0;
}

/* One one-sided read from the home's slot, straight into the frames. */
static int place_by_window(struct call_session *session, struct gaia_frames *frames,
                           const struct node_request *request, const void *slot)
{
    size_t length = request->length * GAIA_PAGE_SIZE;
    struct gaia_window window;

    if (!frames->ops->open_window)
        return -EOPNOTSUPP;
    int error = frames->ops->open_window(frames, (uint64_t)request->offset, request->length, &window);
    if (error)
        return error;
    error = call_slot_register(session, window.standing, &window.registered);
    if (!error && gaia_window_is_doubted(&window)) { /* as it comes otherwise */
        error = call_slot_read(session, request->slot, 0, length);
        if (!error)
            error = gaia_window_look(frames, &window, slot);
    }
    if (!error)
        error = call_slot_read_into(session, request->slot, 0, length, window.memory, window.standing);
    return gaia_window_end(frames, &window, GAIA_PATH_CALLS, error);
}

/* Bytes that have come, for a client that may see them: how many pages of them it sees. */
static uint64_t place_exposed(struct nodes *nodes, struct agent_frames *agent,
                              const struct node_request *request, const uint8_t *bytes)
{
    const struct gaia_frames_ops *ops = agent->frames->ops;
    struct cache_map *map = NULL;
    uint64_t done = 0;

    if (ops->place_exposed && request->flags & NODE_PLACE_EXPOSES)
        map = cache_client_find_far(nodes, request->client, request->address, agent);
    if (map) {
        done = ops->place_exposed(map->frames, (uint64_t)request->offset, request->length, bytes);
        cache_map_put(map);
    }
    return done;
}

/* seen_out: the client that waits has been shown all of it. */
static int place_copy(struct nodes *nodes, struct agent_frames *agent, const struct node_request *request,
                      const uint8_t *bytes, bool *seen_out)
{
    const struct gaia_frames_ops *ops = agent->frames->ops;
    uint64_t page = (uint64_t)request->offset, count = request->length;
    int error = 0;

    uint64_t done = place_exposed(nodes, agent, request, bytes);
    *seen_out = done == count;
    if (!*seen_out) /* a client that holds the frames' memory holds up nobody's faults */
        error = (ops->place_unheld ? ops->place_unheld : ops->place)(agent->frames, page + done, count - done,
                                                                     bytes + done * GAIA_PAGE_SIZE);
    if (!error)
        atomic_fetch_add(&nodes->placed_by_copy, count);
    return error;
}

/* A page that has come along; else from the home's slot, straight into the frames, or by way of this side's
 * slot. */
static int do_place(struct nodes *nodes, struct call_session *session, struct agent_frames *agent,
                    const struct node_request *request, const uint8_t *along, bool *seen_out)
{
    uint64_t count = request->length;

    if (!count || count > (along ? 1 : CALL_SLOT_BYTES / GAIA_PAGE_SIZE))
        return -EINVAL;
    if (along)
        return place_copy(nodes, agent, request, along, seen_out);
    const void *slot = call_slot_serve(session, request->slot);
    if (!slot)
        return -EINVAL;
    int error = place_by_window(session, agent->frames, request, slot);
    if (!error)
        atomic_fetch_add(&nodes->placed, count);
    else if (error != -EIO && !(error = call_slot_read(session, request->slot, 0, count * GAIA_PAGE_SIZE)))
        error = place_copy(nodes, agent, request, slot, seen_out);
    call_slot_served(session, request->slot);
    return error;
}

/* FETCH and DIGESTS: the pages' bytes, or digests of what stays here. */
static int do_fetch(struct call_session *session, struct gaia_frames *frames, enum node_op op,
                    const struct node_request *request)
{
    struct gaia_digest digests[GAIA_FETCH_MAX];
    void *pages[GAIA_FETCH_MAX];
    uint64_t count = request->length;
    size_t bytes = count * (op == NODE_DIGESTS ? sizeof *digests : GAIA_PAGE_SIZE);

    if (!count || count > GAIA_FETCH_MAX)
        return -EINVAL;
    uint8_t *slot = call_slot_serve(session, request->slot);
    if (!slot)
        return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        pages[i] = slot + (size_t)i * GAIA_PAGE_SIZE;
    int error = frames->ops->fetch(frames, (uint64_t)request->offset, (unsigned)count, pages);
    if (!error && op == NODE_DIGESTS) {
        for (unsigned i = 0; i < count; i++)
            digests[i] = gaia_digest_of(pages[i], GAIA_PAGE_SIZE);
        memcpy(slot, digests, bytes);
    }
    if (!error)
        error = call_slot_write(session, request->slot, 0, bytes);
    call_slot_served(session, request->slot);
    return error;
}

/* ---- devices that scan ---- */

static int do_modified(struct call_session *session, struct gaia_frames *frames,
                       const struct node_request *request)
{
    uint64_t *bits = call_slot_serve(session, request->slot);

    if (!bits)
        return -EINVAL;
    int error = request->length <= CALL_SLOT_BYTES * 8
                    ? frames->ops->modified(frames, (uint64_t)request->offset, request->length, bits)
                    : -EINVAL;
    if (!error)
        error = call_slot_write(session, request->slot, 0, (request->length + 63) / 64 * 8);
    call_slot_served(session, request->slot);
    return error;
}

/* GRANTED and RECALL: a digest for each page. */
static int do_digests(struct call_session *session, struct gaia_frames *frames, enum node_op op,
                      const struct node_request *request)
{
    struct gaia_digest *digests = call_slot_serve(session, request->slot);
    uint64_t page = (uint64_t)request->offset, count = request->length;
    size_t bytes = count * sizeof *digests;
    bool known = !(request->flags & NODE_NOT_KNOWN);

    if (!digests)
        return -EINVAL;
    int error = count <= CALL_SLOT_BYTES / sizeof *digests ? 0 : -EINVAL;
    if (!error && op == NODE_GRANTED && known)
        error = call_slot_read(session, request->slot, 0, bytes);
    /* A driver that fails knows that it does not know: -EIO, whatever it was. */
    if (!error && op == NODE_GRANTED)
        error = frames->ops->granted(frames, page, count, known ? digests : NULL) ? -EIO : 0;
    else if (!error)
        error = frames->ops->recall(frames, page, count, digests);
    if (!error && op == NODE_RECALL)
        error = call_slot_write(session, request->slot, 0, bytes);
    call_slot_served(session, request->slot);
    return error;
}

/* old, and behind it fresh, of count pages. */
static int patch(struct gaia_frames *frames, const uint64_t *pages, size_t count, const uint8_t *bytes)
{
    const void *old[CALL_SLOT_BYTES / GAIA_PAGE_SIZE / 2];

    for (size_t i = 0; i < count; i++)
        old[i] = bytes + i * GAIA_PAGE_SIZE;
    return frames->ops->patch(frames, pages, count, old, bytes + count * GAIA_PAGE_SIZE);
}

/* GATHER and PATCH: the numbers of the pages, and behind them one or two times their bytes. */
static int do_listed(struct call_session *session, struct gaia_frames *frames, enum node_op op,
                     const struct node_request *request)
{
    uint8_t *slot = call_slot_serve(session, request->slot);
    size_t count = request->length, copies = op == NODE_PATCH ? 2 : 1, bytes = count * GAIA_PAGE_SIZE;

    if (!slot)
        return -EINVAL;
    const uint64_t *pages = (const uint64_t *)(const void *)slot;
    int error = count && request->length <= (CALL_SLOT_BYTES - NODE_LIST_BYTES) / GAIA_PAGE_SIZE / copies
                    ? 0
                    : -EINVAL;
    if (!error)
        error = call_slot_read(session, request->slot, 0,
                               op == NODE_PATCH ? NODE_LIST_BYTES + copies * bytes : count * sizeof *pages);
    if (!error && op == NODE_PATCH)
        error = patch(frames, pages, count, slot + NODE_LIST_BYTES);
    else if (!error)
        error = frames->ops->gather(frames, pages, count, slot + NODE_LIST_BYTES);
    if (!error && op == NODE_GATHER)
        error = call_slot_write(session, request->slot, NODE_LIST_BYTES, bytes);
    call_slot_served(session, request->slot);
    return error;
}

static int do_scan(struct call_session *session, struct gaia_frames *frames, enum node_op op,
                   const struct node_request *request)
{
    if (!frames->ops->scans)
        return -EINVAL;
    if (op == NODE_MODIFIED)
        return do_modified(session, frames, request);
    return op == NODE_GRANTED || op == NODE_RECALL ? do_digests(session, frames, op, request)
                                                   : do_listed(session, frames, op, request);
}

/* What is done to a map of a client of this node's. */
static int do_client(struct nodes *nodes, struct agent_frames *frames, enum node_op op,
                     const struct node_request *request)
{
    const struct gaia_frames_ops *ops = frames->frames->ops;
    uint64_t page = (uint64_t)request->offset, count = request->length;
    int error = 0;

    struct cache_map *map = cache_client_find_far(nodes, request->client, request->address, frames);
    if (!map)
        return -ENOENT;
    switch (op) {
    case NODE_PLACE: /* what it exposes */
        error = ops->expose(map->frames, page, count, true);
        break;
    case NODE_EXPOSE:
        error = ops->expose(map->frames, page, count, request->flags & 1);
        break;
    case NODE_UNPROTECT:
        error = ops->unprotect(map->frames, page, count);
        break;
    case NODE_POISON:
        atomic_fetch_add(&map->poisonings, 1);
        error = ops->poison(map->frames, page, count, request->thread);
        break;
    default: /* NODE_REFUSE */
        ops->refuse(map->frames, page, request->thread);
    }
    cache_map_put(map);
    return error;
}

static int do_frames(struct nodes *nodes, struct call_session *session, struct agent_frames *agent,
                     enum node_op op, const struct node_request *request, const uint8_t *along,
                     bool *seen_out)
{
    struct gaia_frames *frames = agent->frames;
    uint64_t page = (uint64_t)request->offset, count = request->length;

    switch (op) {
    case NODE_RESIZE:
        return frames->ops->resize(frames, count);
    case NODE_PLACE:
        return do_place(nodes, session, agent, request, along, seen_out);
    case NODE_FETCH:
    case NODE_DIGESTS:
        return do_fetch(session, frames, op, request);
    case NODE_DROP:
        return frames->ops->drop(frames, page, count);
    case NODE_CLEAR:
        return frames->ops->clear(frames, page, request->value);
    case NODE_CUT:
        replica_state_cut(agent->state, request->value);
        return 0;
    case NODE_MODIFIED:
    case NODE_GRANTED:
    case NODE_RECALL:
    case NODE_GATHER:
    case NODE_PATCH:
        return do_scan(session, frames, op, request);
    case NODE_PROTECT:
        return frames->ops->protect(frames, page, count);
    default: /* NODE_WAKE */
        frames->ops->wake(frames, page, count);
        return 0;
    }
}

int agent_frames_serve(struct nodes *nodes, struct call_session *session, enum node_op op,
                       const struct node_request *request, const uint8_t *along)
{
    const uint64_t most = INT64_MAX / GAIA_PAGE_SIZE;

    if (op == NODE_FRAMES_OPEN)
        return do_open(nodes, session, request);
    if (op == NODE_FRAMES_CLOSE)
        return do_close(nodes, session, request->frames);
    if (request->offset < 0 || (uint64_t)request->offset > most || request->length > most ||
        (op == NODE_CLEAR && request->value >= GAIA_PAGE_SIZE))
        return -EINVAL;
    struct agent_frames *frames = agent_frames_get(nodes, session, request->frames);
    if (!frames)
        return -ENOENT;
    bool of_client = op >= NODE_EXPOSE, seen = false;
    int error = of_client ? 0 : do_frames(nodes, session, frames, op, request, along, &seen);
    if (!error && (of_client || (op == NODE_PLACE && request->flags & NODE_PLACE_EXPOSES && !seen)))
        error = do_client(nodes, frames, op, request);
    if (op == NODE_PLACE && error == -ENOENT) /* the client has gone: the bytes are there */
        error = 0;
    agent_frames_put(nodes, frames);
    return error;
}

void agent_frames_end(struct nodes *nodes, const struct call_session *session)
{
    struct agent_frames *frames;

    do {
        pthread_mutex_lock(&nodes->lock);
        LIST_FOREACH (frames, &nodes->frames, link)
            if (frames->session == session)
                break;
        if (frames)
            LIST_REMOVE(frames, link);
        pthread_mutex_unlock(&nodes->lock);
        if (frames) {
            /* Touches that wait come again, and find nobody to ask. */
            frames->frames->ops->wake(frames->frames, 0, INT64_MAX / GAIA_PAGE_SIZE);
            agent_frames_put(nodes, frames);
        }
    } while (frames);
}
