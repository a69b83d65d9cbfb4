/* SPDX-License-Identifier: Apache-2.0 */
/* A device of another node, the home's half: what the cache does to its frames is asked of the agent there,
 * which has them (cache/agent_frames.c). Bytes go through slots of the session, which are memory of this
 * side: what is placed the agent reads from there, straight into a GPU's frames, or into its own slot; what
 * is fetched it writes there. One page that is placed on a soft device goes along with the request: that
 * saves a round trip, and two threads' being woken. */
#include "gpu/home_node.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/home_untrapped.h"

_Static_assert(NODE_PAGE_BYTES == GAIA_PAGE_SIZE && sizeof(struct node_page_request) <= CALL_BYTES_MAX,
               "a page goes along");

/* So many calls of NODE_HOLDS may take as long as clients like. With more under way the agent is given up as
 * for any other: else one client could take all places of the class, for good. */
#define PATIENT_CALLS 4u
static unsigned limit_ms(const struct node_frames *frames, enum node_class class)
{
    bool many = class == NODE_HOLDS && call_session_calling(frames->session, NODE_HOLDS) >= PATIENT_CALLS;

    return node_class_ms(many ? NODE_FRAMES : class);
}

int node_ask(const struct node_frames *frames, enum node_class class, enum node_op op,
             struct node_request *request)
{
    if ((class == NODE_FRAMES || class == NODE_HOLDS) && frames->base.ops->scans)
        class = NODE_SCANS;
    request->frames = frames->base.node_number;
    int result =
        call(frames->session, class, op, request, sizeof *request, NULL, NULL, limit_ms(frames, class));
    return result > 0 ? -EIO : node_result(result);
}

static int ask_client(const struct gaia_frames_map *map, enum node_op op, struct node_request *request)
{
    request->client = map->client;
    request->address = map->address;
    int error = node_ask(map->frames, NODE_CLIENTS, op, request);
    return error == -ENOENT ? 0 : error; /* the client has gone: it waits for nothing */
}

static int node_share(struct gaia_frames *frames, bool writable, uint64_t chunk, int *fd_out)
{
    (void)frames;
    (void)writable;
    (void)chunk;
    (void)fd_out;
    return -EXDEV;
}

static int node_attach(struct gaia_frames *frames, const struct gaia_process *process, uint64_t address,
                       uint64_t first, uint64_t count, bool writable, bool can_trap,
                       struct gaia_frames_map **map_out)
{
    struct gaia_frames_map *map = calloc(1, sizeof *map);

    (void)first; /* the agent knows the rest */
    (void)count;
    (void)writable;
    (void)can_trap;
    if (!map)
        return -ENOMEM;
    *map = (struct gaia_frames_map){
        .frames = node_frames_of(frames), .client = (uint32_t)process->faults, .address = address};
    *map_out = map;
    return 0;
}

static void node_detach(struct gaia_frames_map *map)
{
    free(map);
}

static int node_resize(struct gaia_frames *frames, uint64_t pages)
{
    return node_ask(node_frames_of(frames), NODE_HOLDS, NODE_RESIZE, &(struct node_request){.length = pages});
}

static int node_place(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes)
{
    const uint64_t most = CALL_SLOT_BYTES / GAIA_PAGE_SIZE;
    int error = 0;

    for (uint64_t done = 0; done < count && !error;) {
        uint64_t n = count - done < most ? count - done : most;
        int slot = call_slot_get(node_frames_of(frames)->session);
        if (slot < 0)
            return slot;
        memcpy(call_slot(node_frames_of(frames)->session, (unsigned)slot),
               (const uint8_t *)bytes + done * GAIA_PAGE_SIZE, n * GAIA_PAGE_SIZE);
        error = node_ask(
            node_frames_of(frames), NODE_FRAMES, NODE_PLACE,
            &(struct node_request){.offset = (int64_t)(page + done), .length = n, .slot = (uint32_t)slot});
        call_slot_put(node_frames_of(frames)->session, (unsigned)slot);
        done += n;
    }
    return error;
}

/* Pages on their way to the frames, in pieces of a slot. */
struct placing {
    struct gaia_placing *told;
    atomic_uint left; /* pieces, and who begins them */
    atomic_int error; /* the first */
    struct piece {
        struct call_answer answer; /* first */
        struct placing *placing;
    } pieces[];
};

static void placing_end(struct placing *placing, int error)
{
    int none = 0;

    if (error)
        atomic_compare_exchange_strong(&placing->error, &none, error);
    if (atomic_fetch_sub(&placing->left, 1) > 1)
        return;
    struct gaia_placing *told = placing->told;
    error = placing->error;
    free(placing);
    told->done(told, error);
}

static void piece_arrived(struct call_answer *answer, int result)
{
    struct piece *piece = (struct piece *)answer;

    placing_end(piece->placing, result > 0 ? -EIO : node_result(result));
}

/* Returns an error, and nobody is told; or 0. */
static int piece_send(struct gaia_frames_map *map, struct piece *piece, uint64_t page, uint64_t count,
                      const void *bytes, bool exposes)
{
    struct call_session *session = map->frames->session;
    struct node_page_request message;
    struct node_request *request = &message.request;
    bool scans = map->frames->base.ops->scans, along = count == 1 && !scans;
    /* What exposes waits for the client's mmap lock, and who has that may wait for who holds a file's lock
     * and wants a slot. For the same reason no slot waits for done(), which takes such locks. A GPU's memory
     * is filled as fast as the GPU takes it, all that there is to fill: others' faults come in between. (A
     * page that goes along takes one, too, so that no more of them are under way.) */
    int slot = exposes || scans ? call_slot_get_long(session) : call_slot_get(session);

    if (slot < 0)
        return slot;
    *request = (struct node_request){.frames = map->frames->base.node_number,
                                     .client = map->client,
                                     .address = map->address,
                                     .offset = (int64_t)page,
                                     .length = count,
                                     .slot = (unsigned)slot,
                                     .flags = exposes ? NODE_PLACE_EXPOSES : 0};
    piece->answer = (struct call_answer){.done = piece_arrived, .has_slot = true, .slot = (unsigned)slot};
    memcpy(along ? message.bytes : call_slot(session, (unsigned)slot), bytes, count * GAIA_PAGE_SIZE);
    enum node_class class = exposes ? NODE_CLIENTS : scans ? NODE_SCANS : NODE_FRAMES;
    int error = call_start(session, class, NODE_PLACE, request, along ? sizeof message : sizeof *request,
                           &piece->answer, node_class_ms(class));
    if (error)
        call_slot_put(session, (unsigned)slot);
    return error;
}

static int node_place_later(struct gaia_frames *base, struct gaia_frames_map *map, uint64_t page,
                            uint64_t count, const void *bytes, bool exposes, struct gaia_placing *told)
{
    const uint64_t most = CALL_SLOT_BYTES / GAIA_PAGE_SIZE, pieces = (count + most - 1) / most;
    struct placing *placing = calloc(1, sizeof *placing + pieces * sizeof *placing->pieces);
    int error = 0;

    (void)base; /* the map's */
    if (!placing)
        return -ENOMEM;
    placing->told = told;
    placing->left = 1;
    for (uint64_t i = 0; i < pieces && !error; i++) {
        uint64_t done = i * most;
        placing->pieces[i].placing = placing;
        placing->left++;
        error = piece_send(map, &placing->pieces[i], page + done, count - done < most ? count - done : most,
                           (const uint8_t *)bytes + done * GAIA_PAGE_SIZE, exposes);
        if (error)
            placing->left--;
    }
    placing_end(placing, error);
    return 0;
}

static int node_expose(struct gaia_frames_map *map, uint64_t page, uint64_t count, bool trap_stores)
{
    return ask_client(
        map, NODE_EXPOSE,
        &(struct node_request){.offset = (int64_t)page, .length = count, .flags = trap_stores ? 1 : 0});
}

static int node_protect(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    return node_ask(node_frames_of(frames), NODE_CLIENTS, NODE_PROTECT,
                    &(struct node_request){.offset = (int64_t)page, .length = count});
}

static int node_unprotect(struct gaia_frames_map *map, uint64_t page, uint64_t count)
{
    return ask_client(map, NODE_UNPROTECT, &(struct node_request){.offset = (int64_t)page, .length = count});
}

/* The agent has not heard what it was to be told, and nobody would tell it again: a touch waits for it. */
static int must_hear(const struct node_frames *frames, int error)
{
    if (error == -ENOMEM)
        call_session_abort(frames->session);
    return error;
}

static void node_wake(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    must_hear(node_frames_of(frames),
              node_ask(node_frames_of(frames), NODE_CLIENTS, NODE_WAKE,
                       &(struct node_request){.offset = (int64_t)page, .length = count}));
}

static int node_poison(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint32_t thread)
{
    return must_hear(
        map->frames,
        ask_client(map, NODE_POISON,
                   &(struct node_request){.offset = (int64_t)page, .length = count, .thread = thread}));
}

static void node_refuse(struct gaia_frames_map *map, uint64_t page, uint32_t thread)
{
    must_hear(map->frames, ask_client(map, NODE_REFUSE,
                                      &(struct node_request){.offset = (int64_t)page, .thread = thread}));
}

static int node_drop(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    return node_ask(node_frames_of(frames), NODE_HOLDS, NODE_DROP,
                    &(struct node_request){.offset = (int64_t)page, .length = count});
}

#define TRIES 3u

/* Without memory for a moment, here or there. */
static int ask_again(struct gaia_frames *frames, enum node_op op, struct node_request *request)
{
    unsigned tries = 0;
    int error;

    do
        error = node_ask(node_frames_of(frames), NODE_FRAMES, op, request);
    while (error == -ENOMEM && ++tries < TRIES);
    return error;
}

static int node_clear(struct gaia_frames *frames, uint64_t page, size_t from)
{
    return ask_again(frames, NODE_CLEAR, &(struct node_request){.offset = (int64_t)page, .value = from});
}

static void node_cut(struct gaia_frames *frames, uint64_t end)
{
    int error = ask_again(frames, NODE_CUT, &(struct node_request){.value = end});

    must_hear(node_frames_of(frames), error); /* else what was cut off comes back */
}

static int node_fetch(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out)
{
    struct call_session *session = node_frames_of(frames)->session;
    int slot = call_slot_get(session);

    if (slot < 0)
        return slot;
    int error =
        node_ask(node_frames_of(frames), NODE_FRAMES, NODE_FETCH,
                 &(struct node_request){.offset = (int64_t)page, .length = count, .slot = (uint32_t)slot});
    const uint8_t *bytes = call_slot(session, (unsigned)slot);
    for (unsigned i = 0; i < count && !error; i++)
        memcpy(pages_out[i], bytes + (size_t)i * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
    call_slot_put(session, (unsigned)slot);
    return error;
}

static int node_digests(struct gaia_frames *frames, uint64_t page, unsigned count,
                        struct gaia_digest *digests_out)
{
    return node_ask_for(node_frames_of(frames), NODE_DIGESTS, page, count, digests_out,
                        count * sizeof *digests_out);
}

static void node_close(struct gaia_frames *frames)
{
    node_ask(node_frames_of(frames), NODE_FRAMES, NODE_FRAMES_CLOSE, &(struct node_request){0});
    call_session_put(node_frames_of(frames)->session);
    free(frames);
}

static const struct gaia_frames_ops node_ops = {
    .share = node_share,
    .attach = node_attach,
    .detach = node_detach,
    .resize = node_resize,
    .place = node_place,
    .place_later = node_place_later,
    .expose = node_expose,
    .protect = node_protect,
    .unprotect = node_unprotect,
    .wake = node_wake,
    .poison = node_poison,
    .refuse = node_refuse,
    .drop = node_drop,
    .clear = node_clear,
    .cut = node_cut,
    .fetch = node_fetch,
    .digests = node_digests,
    .close = node_close,
};

/* What is mapped there stays, and nobody has to be shown a page. */
static const struct gaia_frames_ops node_scan_ops = {
    .scans = true,
    .share = node_share,
    .attach = node_attach,
    .detach = node_detach,
    .resize = node_resize,
    .place = node_place,
    .place_later = node_place_later,
    .expose = untrapped_expose,
    .protect = untrapped_protect,
    .unprotect = untrapped_unprotect,
    .wake = untrapped_wake,
    .poison = untrapped_poison,
    .refuse = untrapped_refuse,
    .drop = node_drop,
    .clear = node_clear,
    .fetch = node_fetch,
    .close = node_close,
    .modified = node_modified,
    .granted = node_granted,
    .recall = node_recall,
    .gather = node_gather,
    .patch = node_patch,
};

int gaia_node_frames_open(const struct gaia_node_device *there, uint32_t number, uint64_t pages,
                          struct gaia_frames **frames_out)
{
    struct node_frames *frames = calloc(1, sizeof *frames);

    if (!frames)
        return -ENOMEM;
    frames->base.ops = there->scans ? &node_scan_ops : &node_ops;
    frames->base.node_number = number;
    frames->session = there->session;
    int error = node_ask(
        frames, NODE_FRAMES, NODE_FRAMES_OPEN,
        &(struct node_request){.device = there->device,
                               .length = pages,
                               .flags = there->scans && there->read_only ? NODE_FRAMES_READ_ONLY : 0});
    if (error) {
        free(frames);
        return error;
    }
    call_session_get(there->session);
    *frames_out = &frames->base;
    return 0;
}

bool gaia_node_frames_gone(const struct gaia_frames *frames)
{
    return frames->node_number && call_session_error(((const struct node_frames *)frames)->session);
}
