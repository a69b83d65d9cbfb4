/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/client.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "cache/client.h"
#include "cache/stat.h"
#include "fs/content.h"
#include "fs/fs.h"
#include "fs/log.h"
#include "fs/memory.h"
#include "fs/nodes.h"
#include "fs/stat_json.h"
#include "fs/token.h"
#include "fs/trouble.h"
#include "gpu/gaia.h"
#include "io/message.h"

#ifndef SO_PEERPIDFD /* newer than the headers of Debian 12 */
#define SO_PEERPIDFD 77
#endif

/* Another descriptor of what fd is. */
static int copy_of(struct fs *fs, int fd)
{
    int copy = dup(fd);

    if (copy < 0 && descriptors_shed(fs, errno))
        copy = dup(fd);
    return copy < 0 ? -errno : copy;
}

static void close_known(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* A descriptor of the process that has connected, whoever has its number now (before Linux 6.5: of who has it
 * now); or a negative errno, -ESRCH: it has ended. */
static int process_of(const struct client *client)
{
    int fd;
    socklen_t length = sizeof fd;

    if (!getsockopt(client->socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length))
        return fd;
    if (errno == ENOPROTOOPT && (fd = (int)syscall(SYS_pidfd_open, client->peer.pid, 0)) >= 0)
        return fd;
    return errno == EINVAL ? -ESRCH : -errno;
}

static int do_hello(struct client *client, struct gaia_message *message, int *fds, int *alive_fd_out)
{
    if (fds[0] < 0 && !(message->flags & GAIA_HELLO_MAPS))
        return 0; /* a client that only asks: gaiactl */
    if (client->cache)
        return -EBUSY;
    if (fds[0] >= 0 && !gaia_soft_is_faults(fds[0])) /* it is closed as what it may be */
        return -EINVAL;
    int lives = process_of(client);
    if (descriptors_shed(client->fs, -lives))
        lives = process_of(client);
    if (lives == -EMFILE || lives == -ENFILE)
        return lives;
    int alive_fd = copy_of(client->fs, client->alive_fd);
    if (alive_fd < 0) {
        close_known(lives);
        return alive_fd;
    }
    int room = copy_of(client->fs, alive_fd); /* for the descriptor that the cache wants */
    close_known(room);
    int error = cache_client_open(client->fs->cache,
                                  &(struct gaia_process){.faults = fds[0],
                                                         .pid = lives == -ESRCH ? 0 : client->peer.pid,
                                                         .lives = lives,
                                                         .user = client->peer.uid,
                                                         .apart = thread_is_apart(client->peer.pid),
                                                         .charged = memory_may_be_charged(client->peer.pid)},
                                  message->flags & GAIA_HELLO_TRAPS, &client->cache);
    if (error) {
        close(alive_fd);
        close_known(lives);
        return error;
    }
    client->lives = lives;
    programs_add(&client->fs->programs, client->peer.pid, client->user);
    client->faults = fds[0];
    fds[0] = -1;
    *alive_fd_out = alive_fd;
    return 0;
}

/* The device that a message names. open: a GPU that nobody has used yet is opened. */
static int find_device(struct client *client, const struct gaia_message *message, bool open,
                       unsigned *device_out)
{
    struct fs *fs = client->fs;
    uint8_t uuid[16];
    char why[GAIA_CUDA_WHY];

    memcpy(uuid, message->value, sizeof uuid);
    int error = cache_device_parse(fs->cache, message->device, uuid, open, device_out, why);
    if (descriptors_shed(fs, -error))
        error = cache_device_parse(fs->cache, message->device, uuid, open, device_out, why);
    if (error && why[0])
        trouble_of_a_device(&client->peer, message->device, why);
    trouble_of_room(fs, error);
    return error;
}

static int open_map(struct client *client, const struct cache_map_request *request,
                    struct gaia_message *message, int reply_fds[GAIA_MESSAGE_FDS])
{
    struct fs *fs = client->fs;
    uint64_t chunk_pages = 0;

    int error =
        cache_map_open(client->cache, request, &message->map, &reply_fds[0], &reply_fds[1], &chunk_pages);
    if (descriptors_shed(fs, -error))
        error =
            cache_map_open(client->cache, request, &message->map, &reply_fds[0], &reply_fds[1], &chunk_pages);
    message->value[0] = chunk_pages * GAIA_PAGE_SIZE;
    if (!error && chunk_pages) { /* no descriptor of the frames: that of the state is the first */
        reply_fds[0] = reply_fds[1];
        reply_fds[1] = -1;
    }
    return error;
}

/* What the data directory says may be any word, also one that means something else to the client, or ends it.
 * Those that gaia.h has for gaia_mmap(), of what it can be told of: all others are EIO. */
static int said_of_map(int error)
{
    switch (error) {
    case 0:
    case -EACCES:
    case -EAGAIN:
    case -EBUSY:
    case -EDQUOT:
    case -EINVAL:
    case -EMFILE:
    case -ENFILE:
    case -ENODEV:
    case -ENOLCK:
    case -ENOMEM:
    case -ENOSPC:
    case -ENOSYS:
    case -EOPNOTSUPP:
    case -EPERM:
        return error;
    default:
        return -EIO;
    }
}

/* The same for calls on what is mapped. */
static int said_of_range(int error)
{
    switch (error) {
    case 0:
    case -EACCES:
    case -EBUSY:
    case -EDQUOT:
    case -EINVAL:
    case -ENOMEM:
    case -ENOSPC:
        return error;
    default:
        return -EIO;
    }
}

static int track_and_map(struct client *client, struct inode *inode, struct cache_map_request *request,
                         struct gaia_message *message, int reply_fds[GAIA_MESSAGE_FDS])
{
    unsigned waited_ms = 0;
    int error;

    do {
        error = nodes_track_to_map(inode, &request->file);
        if (!error) {
            error = open_map(client, request, message, reply_fds);
            if (error && cache_file_is_lost(request->file)) /* meanwhile: it is asked at the next home */
                error = -EINPROGRESS;
        }
    } while (nodes_map_again(client->fs, error, &waited_ms));
    return error == -EINPROGRESS ? -EBUSY : error;
}

static int do_map(struct client *client, struct gaia_message *message, int reply_fds[GAIA_MESSAGE_FDS])
{
    struct fs *fs = client->fs;
    struct token token;
    struct cache_map_request request = {.writable = message->prot & PROT_WRITE,
                                        .resident = message->flags & GAIA_RESIDENT};

    if (message->offset % GAIA_PAGE_SIZE || !message->bytes || message->bytes > INT64_MAX - GAIA_PAGE_SIZE ||
        message->offset > INT64_MAX - GAIA_PAGE_SIZE - message->bytes)
        return -EINVAL;
    request.first = message->offset / GAIA_PAGE_SIZE;
    request.count = (message->bytes + GAIA_PAGE_SIZE - 1) / GAIA_PAGE_SIZE;
    int error = token_take(client->tokens, message->token, client->peer.pid, client->peer.uid, &token);
    if (error)
        return error;
    error =
        find_device(client, message, true, &request.device); /* only for who has a file: it may take long */
    if (error) {
        inode_put(token.inode);
        return error;
    }
    if (!token.readable || (request.writable && !token.writable))
        error = -EACCES;
    if (!error) {
        shed_make_room(fs);
        error = track_and_map(client, token.inode, &request, message, reply_fds);
    }
    for (unsigned tries = 0; tries < 2 && shed_after(fs, error); tries++)
        error = track_and_map(client, token.inode, &request, message, reply_fds);
    inode_put(token.inode);
    return said_of_map(error);
}

static int do_attach(struct client *client, const struct gaia_message *message)
{
    int error = cache_map_attach(client->cache, message->map, message->address);

    return error == -ENOENT || error == -ESTALE ? error : said_of_map(error);
}

bool client_let_go(struct client *client)
{
    int none = 0;

    return atomic_load(&client->idle_since) &&
           atomic_compare_exchange_strong(&client->maps, &none, CLIENT_LET_GO);
}

/* One is closed, or could not be opened. */
static void uncount_map(struct client *client)
{
    atomic_store(&client->idle_since, clock_now_ns());
    atomic_fetch_sub(&client->maps, 1);
}

static int do_counted_map(struct client *client, struct gaia_message *message,
                          int reply_fds[GAIA_MESSAGE_FDS])
{
    int maps = 0;

    while (maps != CLIENT_LET_GO && !atomic_compare_exchange_weak(&client->maps, &maps, maps + 1))
        ;
    if (maps == CLIENT_LET_GO)
        return -ECONNABORTED;
    int error = do_map(client, message, reply_fds);
    if (error)
        uncount_map(client);
    return error;
}

static int do_unmap(struct client *client, const struct gaia_message *message)
{
    int error = cache_map_close(client->cache, message->map);

    trouble_of_frames(client->fs);
    trouble_of_reach(client->fs);
    if (!error)
        uncount_map(client);
    return error;
}

static int do_stat(struct client *client, struct gaia_message *message)
{
    struct cache_device_stat stat;
    unsigned device;

    int error = find_device(client, message, false, &device);
    if (!error)
        error = cache_stat_device(client->fs->cache, device, &stat);
    if (!error)
        memcpy(message->value, &stat.stat, sizeof stat.stat);
    return error;
}

static int get_chunk(struct client *client, struct gaia_message *message, uint64_t chunk,
                     int reply_fds[GAIA_MESSAGE_FDS])
{
    return cache_map_chunk(client->cache, message->map, chunk, message->flags & GAIA_CHUNK_DIGESTS,
                           &reply_fds[0], &reply_fds[1], &message->value[0]);
}

static int do_chunk(struct client *client, struct gaia_message *message, int reply_fds[GAIA_MESSAGE_FDS])
{
    struct fs *fs = client->fs;
    uint64_t chunk = message->value[0];

    int error = get_chunk(client, message, chunk, reply_fds);
    if (descriptors_shed(fs, -error))
        error = get_chunk(client, message, chunk, reply_fds);
    for (unsigned tries = 0; tries < 2 && shed_after(fs, error); tries++)
        error = get_chunk(client, message, chunk, reply_fds);
    return error;
}

/* The dump shows the paths of files, so it is only for the user who mounted, and for root. */
static int do_dump(struct client *client, int reply_fds[GAIA_MESSAGE_FDS])
{
    if (client->far || (client->peer.uid != 0 && client->peer.uid != geteuid()))
        return -EPERM;
    struct fs *fs = client->fs;
    int fd = stat_json(fs);
    if (descriptors_shed(fs, -fd))
        fd = stat_json(fs);
    if (fd < 0)
        return fd;
    reply_fds[0] = fd;
    return 0;
}

static int do_range(struct client *client, struct gaia_message *message)
{
    uint64_t changes = 0, poisonings = 0;
    int error;

    switch (message->op) {
    case GAIA_OP_ACQUIRE:
        error = cache_map_acquire(client->cache, message->map, message->offset, message->bytes, &changes,
                                  &poisonings);
        message->value[0] = changes;
        message->value[1] = poisonings;
        trouble_of_reach(client->fs);
        return error;
    case GAIA_OP_RELEASE:
        return cache_map_release(client->cache, message->map, message->offset, message->bytes);
    case GAIA_OP_SYNC:
        return cache_map_sync(client->cache, message->map, message->offset, message->bytes);
    default:
        return cache_map_advise(client->cache, message->map, message->offset, message->bytes, message->flags);
    }
}

/* Do what a message asks. fds: its descriptors, taken by setting them to -1. -EPROTO ends the client. */
static int dispatch(struct client *client, struct gaia_message *message, int *fds,
                    int reply_fds[GAIA_MESSAGE_FDS])
{
    if (message->op == GAIA_OP_HELLO)
        return do_hello(client, message, fds, &reply_fds[0]);
    if (message->op == GAIA_OP_STAT)
        return do_stat(client, message);
    if (message->op == GAIA_OP_DUMP)
        return do_dump(client, reply_fds);
    if (!client->cache) /* everything else is about maps */
        return -EPROTO;
    switch (message->op) {
    case GAIA_OP_MAP:
        return do_counted_map(client, message, reply_fds);
    case GAIA_OP_ATTACH:
        return do_attach(client, message);
    case GAIA_OP_UNMAP:
        return do_unmap(client, message);
    case GAIA_OP_CHUNK:
        return do_chunk(client, message, reply_fds);
    default:
        return said_of_range(do_range(client, message));
    }
}

void client_go_outside(struct client *client)
{
    atomic_store(&client->state, CLIENT_OUTSIDE);
}

bool client_come_back(struct client *client)
{
    enum client_state outside = CLIENT_OUTSIDE;

    return atomic_compare_exchange_strong(&client->state, &outside, CLIENT_INSIDE);
}

/* Descriptors that nobody has taken. Whether we may go on. */
static bool close_foreign(struct client *client, const int fds[GAIA_MESSAGE_FDS])
{
    bool any = false;

    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        any |= fds[i] >= 0;
    if (!any)
        return true;
    client_go_outside(client);
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return client_come_back(client);
}

int client_serve(struct client *client)
{
    struct gaia_message message;
    int fds[GAIA_MESSAGE_FDS], reply_fds[GAIA_MESSAGE_FDS] = {-1, -1};
    unsigned count = 0;

    client_go_outside(client); /* surplus ones are closed there */
    int error = gaia_message_receive(client->socket, &message, fds);
    if (!client_come_back(client))
        return -ECANCELED;
    if (error && error != -EMFILE)
        return error;
    if (error) /* its descriptors are lost: it may send them again, to where there is room now */
        (void)descriptors_shed(client->fs, EMFILE);
    message.error = error ? error : dispatch(client, &message, fds, reply_fds);
    if (!close_foreign(client, fds))
        return -ECANCELED;
    if (message.error == -EPROTO)
        return -EPROTO;
    if (message.error == -EIO)
        trouble_of_devices(client->fs);
    if (message.error == -ENOMEM || message.op == GAIA_OP_CHUNK)
        trouble_of_room(client->fs, message.error);
    while (!message.error && count < GAIA_MESSAGE_FDS && reply_fds[count] >= 0)
        count++;
    error = gaia_message_send(client->socket, &message, reply_fds, count);
    while (count)
        close(reply_fds[--count]);
    return error;
}
