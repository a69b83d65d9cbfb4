/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's files: what programs here do to them becomes requests to the home, and what the home asks for
 * is done to this node's kernel. */
#include "cache/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/client.h"
#include "cache/meet.h"
#include "cache/sure.h"

static struct nodes *nodes_of(const struct cache_file *file)
{
    return file->cache->nodes;
}

/* ---- files ---- */

#define HOPS_MAX 3u /* from one that is not the home (any more) to the one that it names */

/* *elsewhere_out: it is not the home, and another one is taken for it now. */
static int track_there(struct nodes *nodes, const struct node_name *name, bool *elsewhere_out)
{
    struct call_session *session;
    struct node_reply reply;
    uint64_t told = 0;

    *elsewhere_out = false;
    nodes_follows(nodes, name, &told);
    unsigned member = nodes_home_of(nodes, name);
    /* This node itself, as whom the caller took for it has gone meanwhile: he looks once more. */
    int error = member == nodes->self ? -ESTALE : nodes_get_home(nodes, member, &session);
    if (error)
        return error;
    error = nodes_ask(session, NODE_CALLS, NODE_TRACK, &(struct node_request){.name = *name}, &reply);
    call_session_put(session);
    if (error == -ESTALE) {
        nodes_hear_home(nodes, name, told, &reply);
        unsigned next = nodes_home_of(nodes, name);
        *elsewhere_out = next != member && next != nodes->self;
    }
    return error;
}

int agent_track(struct nodes *nodes, const struct node_name *name)
{
    unsigned hops = 0;
    bool elsewhere;
    int error;

    do
        error = track_there(nodes, name, &elsewhere);
    while (elsewhere && hops++ < HOPS_MAX);
    return error;
}

static int link_file(struct nodes *nodes, struct agent_file *far)
{
    pthread_mutex_lock(&nodes->lock);
    int error = table_add(&nodes->files_by_number, &far->by_number, far->number);
    if (!error)
        LIST_INSERT_HEAD(&nodes->files, far, link);
    pthread_mutex_unlock(&nodes->lock);
    return error;
}

static void unlink_file(struct nodes *nodes, struct agent_file *far)
{
    pthread_mutex_lock(&nodes->lock);
    table_remove(&nodes->files_by_number, &far->by_number);
    LIST_REMOVE(far, link);
    while (far->users) /* requests of the home, which wait for this node's kernel at most */
        pthread_cond_wait(&nodes->changed, &nodes->lock);
    pthread_mutex_unlock(&nodes->lock);
    call_session_put(far->session);
    free(far);
}

#define LATE_MS 60000u /* acregmax of NFS clients, when nobody has said anything else */

/* The home has said the size. Whether that is no older than what is known. */
static bool note_size(struct nodes *nodes, struct agent_file *far, uint64_t size, uint64_t truncations)
{
    pthread_mutex_lock(&nodes->lock);
    bool current = size <= INT64_MAX && truncations >= far->truncations;
    if (current && (truncations > far->truncations || (off_t)size > far->size))
        far->size = (off_t)size;
    if (current && truncations > far->truncations && far->said)
        far->cut_known = lock_wait_until(LATE_MS);
    if (current)
        far->truncations = truncations;
    far->said = true;
    pthread_mutex_unlock(&nodes->lock);
    return current;
}

/* *elsewhere_out: it is not the home, and another one is followed now. */
static int open_there(struct cache *cache, const struct node_name *name, struct cache_file *file,
                      bool *elsewhere_out)
{
    struct nodes *nodes = cache->nodes;
    struct agent_file *far = calloc(1, sizeof *far);
    uint64_t told = 0;

    *elsewhere_out = false;
    if (!far)
        return -ENOMEM;
    nodes_follows(nodes, name, &told);
    far->file = file;
    far->member = nodes_home_of(nodes, name);
    far->number = nodes_number(nodes);
    /* This node itself: who had told of the file has gone meanwhile. */
    int error = far->member == nodes->self ? -ESTALE : nodes_get_teller(nodes, far->member, &far->session);
    if (error)
        goto out_free;
    error = link_file(nodes, far); /* first: the home may ask before it has answered */
    if (error)
        goto out_session;
    struct node_reply reply;
    error = nodes_ask(far->session, NODE_IO, NODE_OPEN,
                      &(struct node_request){.file = far->number, .name = *name}, &reply);
    if (error) {
        if (error == -ESTALE)
            *elsewhere_out = nodes_hear_home(nodes, name, told, &reply);
        unlink_file(nodes, far);
        return error;
    }
    if (reply.value[0] & 1)
        far->handed = true;
    file->far = far;
    note_size(nodes, far, reply.value[1], reply.value[0] >> 1);
    return 0;

out_session:
    call_session_put(far->session);
out_free:
    free(far);
    return error;
}

int agent_file_open(struct cache *cache, const struct node_name *name, struct cache_file *file)
{
    unsigned hops = 0;
    bool elsewhere;
    int error;

    do
        error = open_there(cache, name, file, &elsewhere);
    while (elsewhere && hops++ < HOPS_MAX);
    return error;
}

void agent_file_close(struct cache_file *file)
{
    struct node_request request = {.file = file->far->number};

    call_post(file->far->session, NODE_IO, NODE_CLOSE, &request, sizeof request);
    unlink_file(nodes_of(file), file->far);
}

/* A home that has given the file up would answer so for ever, and the next one may not have told this node.
 */
static int ask(struct cache_file *file, enum node_class class, enum node_op op, struct node_request *request,
               struct node_reply *reply_out)
{
    request->file = file->far->number;
    int result = nodes_ask(file->far->session, class, op, request, reply_out);
    if (result != NODE_GAVE_UP)
        return result;
    file->given_up = true;
    return -EIO;
}

/* ---- what programs do ---- */

/* A piece of a READ or a WRITE, as much as a slot has room for. */
static ssize_t read_piece(struct cache_file *file, unsigned slot, uint8_t *buffer, size_t length,
                          off_t offset, unsigned flags, uint64_t number)
{
    struct call_session *session = file->far->session;
    ssize_t n = ask(file, NODE_IO, NODE_READ,
                    &(struct node_request){.offset = offset,
                                           .length = length,
                                           .slot = slot,
                                           .flags = flags & CACHE_IO_FLAGS,
                                           .value = number},
                    NULL);

    if (n <= 0)
        return n;
    if (n > (ssize_t)length)
        return -EIO;
    int error = call_slot_read(session, slot, 0, (size_t)n);
    if (error)
        return error;
    memcpy(buffer, call_slot(session, slot), (size_t)n);
    return n;
}

ssize_t agent_read(struct cache_file *file, void *buffer, size_t length, off_t offset, unsigned flags,
                   struct cache_read *read_out)
{
    struct call_session *session = file->far->session;
    size_t done = 0;
    ssize_t n = 0;

    read_out->number = atomic_fetch_add(&nodes_of(file)->reads, 1) + 1; /* its end is told in any case */
    if (file->given_up)
        return -EIO;
    int slot = call_slot_get(session);
    if (slot < 0)
        return slot;
    while (done < length) {
        size_t want = length - done < CALL_SLOT_BYTES ? length - done : CALL_SLOT_BYTES;
        n = read_piece(file, (unsigned)slot, (uint8_t *)buffer + done, want, offset + (off_t)done, flags,
                       read_out->number);
        if (n > 0)
            done += (size_t)n;
        if (n < (ssize_t)want)
            break;
    }
    call_slot_put(session, (unsigned)slot);
    return n < 0 ? n : (ssize_t)done; /* a short read would be the end of the file to the kernel */
}

void agent_read_end(struct cache_file *file, const struct cache_read *read)
{
    struct node_request request = {.file = file->far->number, .value = read->number};

    call_post(file->far->session, NODE_HEALS, NODE_READ_END, &request, sizeof request);
}

static ssize_t write_piece(struct cache_file *file, unsigned slot, const uint8_t *buffer, size_t length,
                           off_t offset, unsigned flags)
{
    struct call_session *session = file->far->session;
    struct node_reply reply;

    memcpy(call_slot(session, slot), buffer, length);
    int error = call_slot_write(session, slot, 0, length);
    if (error)
        return error;
    ssize_t n = ask(file, NODE_IO, NODE_WRITE,
                    &(struct node_request){
                        .offset = offset, .length = length, .slot = slot, .flags = flags & CACHE_IO_FLAGS},
                    &reply);
    if (n > (ssize_t)length)
        return -EIO;
    if (n > 0)
        note_size(nodes_of(file), file->far, reply.value[1], reply.value[0]);
    return n;
}

ssize_t agent_write(struct cache_file *file, const void *buffer, size_t length, off_t offset, unsigned flags)
{
    struct call_session *session = file->far->session;
    ssize_t put = 0;
    bool whole = true;

    int slot = call_slot_get(session);
    if (slot < 0)
        return slot;
    /* Before, for who finds out that the home has died meanwhile; and after, as a sync may have come between
     * that the bytes came too late for. */
    durable_ask(file->durable);
    /* What of a write-back can't be written the home has to know, all of it: each piece goes there. */
    for (size_t at = 0, want; at < length && (whole || flags & CACHE_IO_WRITEBACK); at += want) {
        want = length - at;
        if (want > CALL_SLOT_BYTES) /* no page is in two: cache/heal.h */
            want = CALL_SLOT_BYTES - (size_t)(offset + (off_t)at) % GAIA_PAGE_SIZE;
        ssize_t n = write_piece(file, (unsigned)slot, (const uint8_t *)buffer + at, want, offset + (off_t)at,
                                at + want < length ? flags | CACHE_IO_MORE : flags);
        if (whole && (n > 0 || !put))
            put = n > 0 ? put + n : n;
        whole &= n == (ssize_t)want;
    }
    durable_ask(file->durable);
    call_slot_put(session, (unsigned)slot);
    return put;
}

/* Counted as a WRITE is. */
static int ask_change(struct cache_file *file, enum node_op op, struct node_request *request)
{
    struct node_reply reply;

    durable_ask(file->durable);
    int error = ask(file, NODE_IO, op, request, &reply);
    durable_ask(file->durable);
    if (!error)
        note_size(nodes_of(file), file->far, reply.value[1], reply.value[0]);
    return error;
}

int agent_truncate(struct cache_file *file, off_t size)
{
    struct nodes *nodes = nodes_of(file);
    int error = ask_change(file, NODE_TRUNCATE, &(struct node_request){.length = (uint64_t)size});

    if (!error) {
        pthread_mutex_lock(&nodes->lock);
        file->far->cut = true;
        pthread_mutex_unlock(&nodes->lock);
    }
    return error;
}

int agent_fallocate(struct cache_file *file, int mode, off_t offset, off_t length)
{
    return ask_change(
        file, NODE_FALLOCATE,
        &(struct node_request){.offset = offset, .length = (uint64_t)length, .flags = (uint32_t)mode});
}

off_t agent_seek(struct cache_file *file, off_t offset, int whence)
{
    struct node_reply reply;
    int error = ask(file, NODE_IO, NODE_SEEK,
                    &(struct node_request){.offset = offset, .flags = (uint32_t)whence}, &reply);

    if (!error && reply.value[0] > INT64_MAX)
        error = -EIO;
    return error ? error : (off_t)reply.value[0];
}

int agent_sync(struct cache_file *file, bool data_only)
{
    return ask(file, NODE_SYNCS, NODE_SYNC, &(struct node_request){.flags = data_only}, NULL);
}

int agent_flush(struct cache_file *file)
{
    return ask(file, NODE_SYNCS, NODE_FLUSH, &(struct node_request){0}, NULL);
}

off_t agent_size(struct cache_file *file, bool *cut_out)
{
    struct nodes *nodes = nodes_of(file);

    pthread_mutex_lock(&nodes->lock);
    off_t size = file->far->size;
    *cut_out = !lock_is_past(&file->far->cut_known);
    pthread_mutex_unlock(&nodes->lock);
    return size;
}

void agent_tell_size(struct cache_file *file)
{
    struct cache_host *host = &file->cache->host;
    struct nodes *nodes = nodes_of(file);

    pthread_mutex_lock(&nodes->lock);
    off_t size = file->far->cut ? 0 : file->far->size;
    pthread_mutex_unlock(&nodes->lock);
    if (!size)
        return;
    host->grow(host->context, file->context, size);
    pthread_mutex_lock(&nodes->lock);
    bool cut = file->far->cut;
    pthread_mutex_unlock(&nodes->lock);
    if (cut) /* meanwhile: the kernel is to ask again */
        host->invalidate(host->context, file->context, -1, 0);
}

void agent_opened(struct cache_file *file)
{
    ask(file, NODE_IO, NODE_OPENED, &(struct node_request){0}, NULL);
}

int agent_writers(struct cache_file *file, bool any, uint64_t number, bool wait)
{
    struct node_request request = {.file = file->far->number, .flags = any, .value = number};

    if (wait)
        return ask(file, NODE_IO, NODE_WRITERS, &request, NULL);
    return call_post(file->far->session, NODE_IO, NODE_WRITERS, &request, sizeof request);
}

/* ---- what homes ask ---- */

static struct agent_file *file_get(struct nodes *nodes, const struct call_session *session, uint32_t number)
{
    pthread_mutex_lock(&nodes->lock);
    struct agent_file *far = (struct agent_file *)table_find(&nodes->files_by_number, number);
    if (far && far->session != session)
        far = NULL;
    if (far)
        far->users++;
    pthread_mutex_unlock(&nodes->lock);
    return far;
}

static void file_put(struct nodes *nodes, struct agent_file *far)
{
    pthread_mutex_lock(&nodes->lock);
    if (--far->users == 0)
        pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock);
}

static int do_peek(struct call_session *session, struct cache_host *host, struct agent_file *far,
                   const struct node_request *request)
{
    if (request->offset < 0 || request->length > GAIA_PAGE_SIZE)
        return -EINVAL;
    void *slot = call_slot_serve(session, request->slot);
    if (!slot)
        return -EINVAL;
    ssize_t n = host->peek(host->context, far->file->context, request->offset, request->length, slot);
    int error = n > 0 ? call_slot_write(session, request->slot, 0, (size_t)n) : 0;
    call_slot_served(session, request->slot);
    return error ? error : (int)n;
}

/* What programs of this node have cut since the home sent this, the kernel knows better. */
static int do_invalidate(struct nodes *nodes, struct agent_file *far, const struct node_request *request)
{
    struct cache_host *host = &nodes->cache->host;
    bool attributes = request->offset == -1;
    off_t length = attributes ? 0 : (off_t)request->length;

    if (request->offset < -1 || request->length > INT64_MAX)
        return -EINVAL;
    if (attributes) /* before: the kernel asks for them */
        note_size(nodes, far, request->length, request->value);
    int error = host->invalidate(host->context, far->file->context, request->offset, length);
    if (!error && attributes && request->length && note_size(nodes, far, request->length, request->value)) {
        error = host->grow(host->context, far->file->context, (off_t)request->length);
        if (!note_size(nodes, far, request->length, request->value)) /* cut meanwhile: it is to ask again */
            host->invalidate(host->context, far->file->context, -1, 0);
    }
    return error;
}

static int do_write_back(struct cache_host *host, struct agent_file *far, const struct node_request *request)
{
    if (request->offset < 0 || request->length > (uint64_t)(INT64_MAX - request->offset))
        return -EINVAL;
    return host->write_back(host->context, far->file->context, request->offset, (off_t)request->length);
}

static int serve_kernel(struct nodes *nodes, struct call_session *session, enum node_op op,
                        const struct node_request *request)
{
    struct cache_host *host = &nodes->cache->host;
    struct agent_file *far = file_get(nodes, session, request->file);
    int result;

    if (!far)
        return -ENOENT;
    if (op == NODE_PEEK)
        result = do_peek(session, host, far, request);
    else if (op == NODE_WRITE_BACK)
        result = do_write_back(host, far, request);
    else
        result = do_invalidate(nodes, far, request);
    file_put(nodes, far);
    return result;
}

/* What could not be stored is told to each descriptor at its next sync, which is at another home, and finds
 * nothing there. */
static int take_over(struct nodes *nodes, const struct call_session *session,
                     const struct node_request *request)
{
    struct agent_file *far = file_get(nodes, session, request->file);

    if (!far)
        return -ENOENT;
    if (request->flags & NODE_HANDED_LOST)
        durable_fail_elsewhere(far->file->durable, -EIO);
    far->handed = true;
    file_put(nodes, far);
    return 0;
}

/* The member whose session it is, as a home. The lock is held. */
static int member_of(struct nodes *nodes, const struct call_session *session, unsigned *member_out)
{
    for (unsigned i = 0; i < nodes->numbers; i++)
        if (nodes->homes[i].session == session || nodes->homes[i].greeting == session) {
            *member_out = i;
            return 0;
        }
    return -EPROTO; /* or not any more */
}

/* Whether the home may have begun to track the file without asking this node, which stood still, and has not
 * met the others again yet: the session is none from before. The lock is held. */
static bool is_told_late(const struct nodes *nodes, unsigned member, const struct call_session *session)
{
    const struct nodes_home *home = &nodes->homes[member];

    return !nodes_are_sure(nodes) && !(home->session == session && home->since < nodes_stalls(nodes));
}

/* How the home has told of a file. By a session from before this node stood still it may be one that has
 * given the node up since, of which nothing is known here yet: it waits for this one's answer only if it
 * gives one itself. (Else the session ends, and it tells anew by the next.) */
static int look_when(struct nodes *nodes, struct call_session *session, uint64_t generation,
                     struct cache_told *told_out)
{
    unsigned member;
    bool ask = false;

    pthread_mutex_lock(&nodes->lock);
    if (nodes->generation < generation)
        nodes->generation = generation;
    int error = member_of(nodes, session, &member);
    if (!error) {
        told_out->stalls = nodes_stalls(nodes);
        told_out->late = is_told_late(nodes, member, session);
        ask = !told_out->late && !nodes_are_sure(nodes);
    }
    pthread_mutex_unlock(&nodes->lock);
    if (ask)
        error = nodes_ask(session, NODE_PINGS, NODE_PING, &(struct node_request){0}, NULL);
    return error;
}

/* From now on what this node opens of the name is asked of its home. */
static int follow(struct nodes *nodes, struct call_session *session, const struct node_name *name,
                  uint64_t generation)
{
    struct cache_host *host = &nodes->cache->host;
    struct cache_told how;
    unsigned member;
    uint64_t told;

    if (!generation || generation > INT64_MAX)
        return -EPROTO;
    int error = look_when(nodes, session, generation, &how);
    if (error)
        return error;
    pthread_mutex_lock(&nodes->lock);
    error = member_of(nodes, session, &member);
    if (!error)
        error = followed_add(&nodes->followed, member, name, generation, &told);
    pthread_mutex_unlock(&nodes->lock);
    if (error)
        return error;
    error = host->follow(host->context, name, generation, &how);
    if (error == -EBUSY)
        nodes_unfollow(nodes, name, told);
    return error;
}

/* Nobody has it open there. What this node opens of the name goes to the data directory again. */
static int unfollow(struct nodes *nodes, const struct call_session *session, const struct node_name *name,
                    uint64_t generation)
{
    unsigned member;

    pthread_mutex_lock(&nodes->lock);
    int error = member_of(nodes, session, &member);
    if (!error)
        followed_end(&nodes->followed, member, name, generation);
    pthread_mutex_unlock(&nodes->lock);
    return error;
}

int agent_serve(struct nodes *nodes, struct call_session *session, enum node_op op,
                const struct node_request *request, const uint8_t *along)
{
    if (op == NODE_PING)
        return 0;
    if (op == NODE_INVALIDATE || op == NODE_WRITE_BACK || op == NODE_PEEK)
        return serve_kernel(nodes, session, op, request);
    if (op >= NODE_FRAMES_OPEN && op <= NODE_OP_LAST)
        return agent_frames_serve(nodes, session, op, request, along);
    if (op == NODE_HANDED)
        return take_over(nodes, session, request);
    if (op == NODE_UNFOLLOW)
        return unfollow(nodes, session, &request->name, request->value);
    if (op != NODE_FOLLOW)
        return -EPROTO;
    return follow(nodes, session, &request->name, request->value);
}

/* Others are homes of its files from now on. */
void agent_move_files(struct nodes *nodes, const struct call_session *session)
{
    struct cache_host *host = &nodes->cache->host;
    struct agent_file *far;
    uint32_t last = 0;

    do {
        struct agent_file *next = NULL;
        pthread_mutex_lock(&nodes->lock);
        LIST_FOREACH (far, &nodes->files, link)
            if (far->session == session && far->number > last && (!next || far->number < next->number))
                next = far;
        if (next)
            next->users++;
        pthread_mutex_unlock(&nodes->lock);
        far = next;
        if (far) {
            /* Who closes the file waits for its users: it is let go of first, moved() may be who closes it.
             */
            void *context = far->file->context;
            bool kept = host->keep(host->context, context);
            last = far->number;
            file_put(nodes, far);
            if (kept)
                host->moved(host->context, context);
        }
    } while (far);
}
