/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/home_open.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/fit.h"
#include "cache/internal.h"
#include "cache/odds.h"
#include "cache/sure.h"

struct home_read {
    LIST_ENTRY(home_read) link;
    uint64_t number;
    struct cache_read read;
};

/* ---- what an agent has open ---- */

/* The session's lock is held. */
static struct home_open *find_open(struct home_session *agent, uint32_t number)
{
    return (struct home_open *)table_find(&agent->opens_by_number, number);
}

struct home_open *home_open_get(struct home_session *agent, uint32_t number)
{
    struct home_open *open;

    pthread_mutex_lock(&agent->lock);
    open = find_open(agent, number);
    if (open)
        open->references++;
    pthread_mutex_unlock(&agent->lock);
    return open;
}

void home_open_put(struct home_open *open)
{
    struct home_session *agent = open->session;
    struct cache_file *file = open->file;
    struct home_read *read;

    pthread_mutex_lock(&agent->lock);
    bool last = --open->references == 0;
    pthread_mutex_unlock(&agent->lock);
    if (!last)
        return;
    while ((read = LIST_FIRST(&open->reads))) { /* the agent's kernel will never have them */
        LIST_REMOVE(read, link);
        cache_file_read_end(file, &read->read);
        free(read);
    }
    pthread_mutex_lock(&file->lock);
    LIST_REMOVE(open, file_link);
    writers_changed(file);
    pthread_mutex_unlock(&file->lock);
    durable_close(file->durable);
    file_unuse(file);
    if (open->fd >= 0)
        close(open->fd);
    free(open);
}

int home_open_close(struct home_session *agent, uint32_t number)
{
    struct home_open *open;

    pthread_mutex_lock(&agent->lock);
    open = find_open(agent, number);
    if (open) {
        table_remove(&agent->opens_by_number, &open->by_number);
        LIST_REMOVE(open, link);
    }
    pthread_mutex_unlock(&agent->lock);
    if (!open)
        return -ENOENT;
    home_open_put(open);
    return 0;
}

/* Each is a kernel that releases tell, and for them there is room (cache/home_kernels.c). */
static bool enter_file(struct home_open *open)
{
    struct cache_file *file = open->file;
    const struct home_open *other;
    unsigned count = 0;

    pthread_mutex_lock(&file->lock);
    LIST_FOREACH (other, &file->opens, file_link)
        count += other->session == open->session;
    if (count < HOME_OPENS_MAX)
        LIST_INSERT_HEAD(&file->opens, open, file_link);
    pthread_mutex_unlock(&file->lock);
    return count < HOME_OPENS_MAX;
}

int home_open_make(struct home_session *agent, const struct node_request *request, struct node_reply *reply)
{
    struct cache *cache = agent->nodes->cache;
    struct cache_file *file;
    struct home_open *open;

    if (!request->file)
        return -EINVAL;
    open = home_open_get(agent, request->file);
    if (open) {
        home_open_put(open);
        return -EEXIST;
    }
    open = calloc(1, sizeof *open);
    if (!open)
        return -ENOMEM;
    int error = cache->host.find(cache->host.context, &request->name, &file); /* in use */
    if (error) {
        if (error == -ESTALE)
            nodes_say_home(agent->nodes, &request->name, reply);
        free(open);
        return error;
    }
    *open = (struct home_open){
        .session = agent, .number = request->file, .file = file, .fd = -1, .references = 1};
    LIST_INIT(&open->reads);
    if (!enter_file(open)) {
        file_unuse(file);
        free(open);
        return -EMFILE;
    }
    durable_open_elsewhere(file->durable, &open->seen);
    uint64_t truncations;
    reply->value[1] = (uint64_t)home_size(file, &truncations); /* from here on it is told of others */
    pthread_mutex_lock(&agent->lock);
    error = table_add(&agent->opens_by_number, &open->by_number, open->number);
    if (!error)
        LIST_INSERT_HEAD(&agent->opens, open, link);
    pthread_mutex_unlock(&agent->lock);
    if (error) {
        home_open_put(open);
        return error;
    }
    bool handed = agent->nodes->settles; /* else who leaves finds it in the file's list */
    reply->value[0] = truncations << 1 | handed;
    return 0;
}

/* ---- its programs' reads and writes ---- */

/* Of a file, at most so many bytes, and with an end. */
static bool is_range(const struct node_request *request, uint64_t most)
{
    return request->offset >= 0 && request->length <= most &&
           request->length <= (uint64_t)(INT64_MAX - request->offset);
}

static int do_read(struct home_session *agent, struct home_open *open, const struct node_request *request)
{
    struct home_read *read;
    uint8_t *slot;

    if (!is_range(request, CALL_SLOT_BYTES))
        return -EINVAL;
    read = calloc(1, sizeof *read);
    if (!read)
        return -ENOMEM;
    slot = call_slot_serve(agent->session, request->slot);
    if (!slot) {
        free(read);
        return -EINVAL;
    }
    read->number = request->value;
    ssize_t n =
        cache_file_read(open->file, open->file->fd, slot, request->length, request->offset,
                        (request->flags & CACHE_IO_FLAGS) | CACHE_IO_NODE(agent->member + 1), &read->read);
    call_slot_served(agent->session, request->slot);
    pthread_mutex_lock(&agent->lock);
    LIST_INSERT_HEAD(&open->reads, read, link);
    pthread_mutex_unlock(&agent->lock);
    return (int)n;
}

static int do_read_end(struct home_session *agent, struct home_open *open, const struct node_request *request)
{
    LIST_HEAD(, home_read) ended = LIST_HEAD_INITIALIZER(ended);
    struct home_read *read, *next;

    pthread_mutex_lock(&agent->lock);
    for (read = LIST_FIRST(&open->reads); read; read = next) {
        next = LIST_NEXT(read, link);
        if (read->number == request->value) {
            LIST_REMOVE(read, link);
            LIST_INSERT_HEAD(&ended, read, link);
        }
    }
    pthread_mutex_unlock(&agent->lock);
    for (read = LIST_FIRST(&ended); read; read = next) {
        next = LIST_NEXT(read, link);
        cache_file_read_end(open->file, &read->read);
        free(read);
    }
    return 0;
}

/* What could not be opened for writing when it was tracked (it was immutable, say) may be by now, and
 * programs of this node then have descriptors of their own. Not file_make_writable(): who moves the claim
 * meanwhile may wait for the agent's kernel, which writes back before. */
static int fd_to_write(struct home_open *open)
{
    int own = open->fd, none = -1;

    if (open->file->writable || own >= 0)
        return open->file->writable ? open->file->fd : own;
    own = file_open_to_write(open->file);
    if (own < 0)
        return own == -EACCES ? -EROFS : own;
    if (atomic_compare_exchange_strong(&open->fd, &none, own))
        return own;
    close(own); /* another request was first */
    return none;
}

/* A home that leaves syncs its files once more, for programs that sync elsewhere after it; what it does to a
 * file after that is on storage before it is acknowledged. Called with the result of what was done, after
 * durable_wrote() and the like: that last sync begins after `settles` was set. */
static ssize_t sync_if_leaving(const struct home_session *agent, const struct cache_file *file,
                               ssize_t result)
{
    int error = result >= 0 && agent->nodes->settles ? durable_store(file->durable, file->fd) : 0;

    return error ? error : result;
}

/* The same of bytes, which another one's sync may have lost before this one's. */
static ssize_t sync_bytes_if_leaving(const struct home_session *agent, const struct cache_file *file,
                                     off_t offset, ssize_t result)
{
    bool stored = result > 0 && agent->nodes->settles;

    result = sync_if_leaving(agent, file, result);
    return stored && result > 0 && durable_is_lost_in(file->durable, offset, result) ? -EIO : result;
}

/* What the agent tells its programs of the size, where its filesystem knows it late. */
static void say_size(struct cache_file *file, struct node_reply *reply)
{
    reply->value[1] = (uint64_t)home_size(file, &reply->value[0]);
}

static int do_write(struct home_session *agent, struct home_open *open, const struct node_request *request,
                    struct node_reply *reply)
{
    struct cache_file *file = open->file;

    if (!is_range(request, CALL_SLOT_BYTES))
        return -EINVAL;
    const uint8_t *slot = call_slot_serve(agent->session, request->slot);
    if (!slot)
        return -EINVAL;
    int fd = fd_to_write(open);
    unsigned begun = durable_begin(file->durable, fd < 0 ? file->fd : fd);
    ssize_t n = nodes_at_odds(agent->nodes) ? -EIO : fd;
    if (n >= 0)
        n = cache_file_write(file, fd, slot, request->length, request->offset,
                             (request->flags & CACHE_IO_FLAGS) | CACHE_IO_NODE(agent->member + 1));
    call_slot_served(agent->session, request->slot);
    say_size(file, reply);
    if (request->flags & CACHE_IO_APPEND && !(request->flags & CACHE_IO_WRITEBACK))
        durable_appended(file->durable, begun, file->fd, request->offset, n);
    else
        durable_wrote(file->durable, begun, request->offset, n,
                      request->flags & CACHE_IO_WRITEBACK ? DURABLE_WRITTEN_BACK : DURABLE_STORED);
    n = sync_bytes_if_leaving(agent, file, request->offset, n);
    if (n < (ssize_t)request->length && request->flags & CACHE_IO_WRITEBACK) {
        off_t done = n > 0 ? n : 0; /* its kernel has let go of the rest */
        durable_lose(file->durable, request->offset + done, (off_t)request->length - done,
                     n < 0 ? (int)n : -EIO);
    } else if (n < (ssize_t)request->length) {
        durable_tried(file->durable, request->offset, (off_t)request->length);
    }
    return (int)n;
}

static int do_truncate(struct home_session *agent, struct home_open *open, const struct node_request *request,
                       struct node_reply *reply)
{
    struct cache_file *file = open->file;

    if (request->length > INT64_MAX)
        return -EINVAL;
    durable_begin(file->durable, file->fd);
    int error = nodes_at_odds(agent->nodes) ? -EIO : cache_file_truncate(file, -1, (off_t)request->length);
    if (!error)
        durable_cut(file->durable, (off_t)request->length);
    say_size(file, reply);
    return (int)sync_if_leaving(agent, file, error);
}

static int do_fallocate(struct home_session *agent, struct home_open *open,
                        const struct node_request *request, struct node_reply *reply)
{
    const uint32_t modes = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    struct cache_file *file = open->file;

    if (!is_range(request, INT64_MAX))
        return -EINVAL;
    if (request->flags & ~modes) /* as FUSE: what is on devices can't be moved along */
        return -EOPNOTSUPP;
    int fd = fd_to_write(open);
    if (fd < 0)
        return fd;
    unsigned begun = durable_begin(file->durable, fd);
    int error = nodes_at_odds(agent->nodes)
                    ? -EIO
                    : cache_file_fallocate(file, fd, (int)request->flags, request->offset,
                                           (off_t)request->length, NULL);
    say_size(file, reply);
    if (!error && request->flags & ~(uint32_t)FALLOC_FL_KEEP_SIZE) /* zeros were written */
        durable_wrote(file->durable, begun, request->offset, (off_t)request->length, DURABLE_STORED);
    return (int)sync_if_leaving(agent, file, error);
}

/* As cache_file_opened() does for this node's programs. A change of the file behind the mounts is still news
 * to the agent's kernel. */
static int do_opened(struct home_open *open)
{
    struct cache_file *file = open->file;

    pthread_mutex_lock(&file->lock);
    int error = file_check_behind(file);
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
    pthread_mutex_lock(&file->lock);
    heal_window_reopen(file, open->session->member + 1);
    pthread_mutex_unlock(&file->lock);
    return error;
}

static int do_writers(struct home_open *open, const struct node_request *request)
{
    struct cache_file *file = open->file;

    pthread_mutex_lock(&file->lock);
    writers_told(file, &open->writers, request->flags & 1, request->value);
    pthread_mutex_unlock(&file->lock);
    return 0;
}

static int do_seek(struct home_open *open, const struct node_request *request, struct node_reply *reply)
{
    off_t found = cache_file_seek(open->file, open->file->fd, request->offset, (int)request->flags);

    if (found < 0)
        return (int)found;
    reply->value[0] = (uint64_t)found;
    return 0;
}

/* An agent that has met this node since this node last stood still knows by now, when it asks, whose the file
 * is, and what it writes is new. It may do so before it answers FOLLOW, for which this node waits before it
 * is sure. False: the agent's session has ended meanwhile. */
static bool be_sure(const struct home_session *agent, struct cache_file *file, enum node_op op,
                    unsigned flags)
{
    bool write_back = op == NODE_WRITE && flags & CACHE_IO_WRITEBACK;
    unsigned change = KERNELS_NOBODY;

    if (agent->since >= nodes_stalls(agent->nodes) && !nodes_at_odds(agent->nodes))
        return true;
    if (write_back)
        change = agent->member + 1;
    else if (op == NODE_READ || op == NODE_SEEK || op == NODE_SYNC)
        change = SURE_COLLECTS;
    else if (op != NODE_WRITE && op != NODE_TRUNCATE && op != NODE_FALLOCATE)
        return true;
    return nodes_be_sure(file, change, agent->session);
}

int home_open_said(const struct home_open *open, int result)
{
    if (result < 0 && open->file->given_up)
        return NODE_GAVE_UP;
    return result == NODE_GAVE_UP ? -EIO : result;
}

int home_open_serve(struct home_session *agent, enum node_op op, const struct node_request *request,
                    struct node_reply *reply)
{
    struct home_open *open = home_open_get(agent, request->file);
    int result;

    if (!open)
        return -EBADF;
    if (!be_sure(agent, open->file, op, request->flags)) {
        home_open_put(open);
        return -EIO;
    }
    switch (op) {
    case NODE_READ:
        result = do_read(agent, open, request);
        break;
    case NODE_READ_END:
        result = do_read_end(agent, open, request);
        break;
    case NODE_WRITE:
        result = do_write(agent, open, request, reply);
        break;
    case NODE_TRUNCATE:
        result = do_truncate(agent, open, request, reply);
        break;
    case NODE_FALLOCATE:
        result = do_fallocate(agent, open, request, reply);
        break;
    case NODE_SEEK:
        result = do_seek(open, request, reply);
        break;
    case NODE_OPENED:
        result = do_opened(open);
        break;
    case NODE_WRITERS:
        result = do_writers(open, request);
        break;
    case NODE_FLUSH:
        result = cache_file_flush(open->file);
        break;
    default: /* NODE_SYNC */
        result = cache_file_sync(open->file, open->file->fd, request->flags & 1, &open->seen);
    }
    result = home_open_said(open, result);
    home_open_put(open);
    return result;
}
