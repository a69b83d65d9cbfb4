/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/server.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alive.h"
#include "base/thread.h"
#include "cache/client.h"
#include "cache/stat.h"
#include "fs/fs.h"
#include "fs/log.h"
#include "fs/stat_json.h"
#include "fs/token.h"
#include "fs/visit.h"
#include "gpu/gaia.h"
#include "io/message.h"
#include "io/reach.h"

#define CLIENTS_MAX 256u
#define CLIENTS_OF_USER_MAX 64u /* so that nobody keeps everybody else out */

struct client {
    LIST_ENTRY(client) link; /* server->clients */
    struct server *server;
    int socket;
    struct ucred peer;
    struct cache_client *cache; /* NULL: it has not said hello with a descriptor for faults */
    pthread_t thread;
    bool done; /* its thread is about to end: joined by the next to look, under server->lock */
};

struct server {
    struct fs *fs;
    char name[64]; /* of the socket */
    int socket;
    pthread_t thread;
    struct token_table tokens;
    struct alive *alive; /* the thread that starts and stops the server, which is the main one */
    int alive_fd;
    pthread_mutex_t lock; /* guards clients and stopping */
    LIST_HEAD(, client) clients;
    unsigned count;
    bool stopping;
};

/* Another descriptor of what fd is. */
static int copy_of(struct fs *fs, int fd)
{
    int copy = dup(fd);

    if (copy < 0 && descriptors_shed(fs, errno))
        copy = dup(fd);
    return copy < 0 ? -errno : copy;
}

static int do_hello(struct client *client, struct gaia_message *message, int *fds, int *alive_fd_out)
{
    if (fds[0] < 0 && !(message->flags & GAIA_HELLO_MAPS))
        return 0; /* a client that only asks: gaiactl */
    if (client->cache)
        return -EBUSY;
    int alive_fd = copy_of(client->server->fs, client->server->alive_fd), faults = fds[0];
    if (alive_fd < 0)
        return alive_fd;
    int room = copy_of(client->server->fs, alive_fd); /* for the descriptor that the cache wants */
    if (room >= 0)
        close(room);
    fds[0] = -1;
    int error = cache_client_open(client->server->fs->cache,
                                  &(struct gaia_process){.faults = faults,
                                                         .pid = client->peer.pid,
                                                         .apart = thread_is_apart(client->peer.pid)},
                                  message->flags & GAIA_HELLO_TRAPS, &client->cache);
    if (error)
        close(alive_fd);
    else
        *alive_fd_out = alive_fd;
    return error;
}

/* The device that a message names. open: a GPU that nobody has used yet is opened. */
static int find_device(struct client *client, const struct gaia_message *message, bool open,
                       unsigned *device_out)
{
    struct fs *fs = client->server->fs;
    uint8_t uuid[16];
    char why[GAIA_CUDA_WHY];

    memcpy(uuid, message->value, sizeof uuid);
    int error = cache_device_parse(fs->cache, message->device, uuid, open, device_out, why);
    if (error && why[0])
        fs_log(LOG_WARNING, "a client (process %d) wants device %s: %s", (int)client->peer.pid,
               message->device, why);
    return error;
}

static int open_map(struct client *client, const struct cache_map_request *request,
                    struct gaia_message *message, int reply_fds[GAIA_MESSAGE_FDS])
{
    struct fs *fs = client->server->fs;
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

static int do_map(struct client *client, struct gaia_message *message, int reply_fds[GAIA_MESSAGE_FDS])
{
    struct fs *fs = client->server->fs;
    struct token token;
    struct cache_map_request request = {.writable = message->prot & PROT_WRITE,
                                        .resident = message->flags & GAIA_RESIDENT};

    if (message->offset % GAIA_PAGE_SIZE || !message->bytes || message->bytes > INT64_MAX - GAIA_PAGE_SIZE ||
        message->offset > INT64_MAX - GAIA_PAGE_SIZE - message->bytes)
        return -EINVAL;
    request.first = message->offset / GAIA_PAGE_SIZE;
    request.count = (message->bytes + GAIA_PAGE_SIZE - 1) / GAIA_PAGE_SIZE;
    int error =
        token_take(&client->server->tokens, message->token, client->peer.pid, client->peer.uid, &token);
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
    if (!error)
        error = inode_track(fs, token.inode, &request.file);
    if (!error)
        error = open_map(client, &request, message, reply_fds);
    inode_put(token.inode);
    return error;
}

static int do_stat(struct client *client, struct gaia_message *message)
{
    struct cache_device_stat stat;
    unsigned device;

    int error = find_device(client, message, false, &device);
    if (!error)
        error = cache_stat_device(client->server->fs->cache, device, &stat);
    if (!error)
        memcpy(message->value, &stat.stat, sizeof stat.stat);
    return error;
}

/* What shows the paths of files is for who mounted, and for root. */
static int do_dump(struct client *client, int reply_fds[GAIA_MESSAGE_FDS])
{
    if (client->peer.uid != 0 && client->peer.uid != geteuid())
        return -EPERM;
    struct fs *fs = client->server->fs;
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
    bool poisoned = false;
    uint64_t changes = 0;
    int error;

    switch (message->op) {
    case GAIA_OP_ACQUIRE:
        error = cache_map_acquire(client->cache, message->map, message->offset, message->bytes, &changes,
                                  &poisoned);
        message->value[0] = changes;
        message->value[1] = poisoned;
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
        return do_map(client, message, reply_fds);
    case GAIA_OP_ATTACH:
        return cache_map_attach(client->cache, message->map, message->address);
    case GAIA_OP_UNMAP:
        return cache_map_close(client->cache, message->map);
    case GAIA_OP_CHUNK:
        return cache_map_chunk(client->cache, message->map, message->value[0], &reply_fds[0]);
    default:
        return do_range(client, message);
    }
}

static int serve_one(struct client *client)
{
    struct gaia_message message;
    int fds[GAIA_MESSAGE_FDS], reply_fds[GAIA_MESSAGE_FDS] = {-1, -1};
    unsigned count = 0;

    int error = gaia_message_receive(client->socket, &message, fds);
    if (error)
        return error;
    message.error = dispatch(client, &message, fds, reply_fds);
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (message.error == -EPROTO)
        return -EPROTO;
    while (!message.error && count < GAIA_MESSAGE_FDS && reply_fds[count] >= 0)
        count++;
    error = gaia_message_send(client->socket, &message, reply_fds, count);
    while (count)
        close(reply_fds[--count]);
    return error;
}

static void *serve_client(void *argument)
{
    struct client *client = argument;
    struct server *server = client->server;
    int error;

    while (!(error = serve_one(client)))
        ;
    if (error == -EPROTO)
        fs_log(LOG_WARNING,
               "client %d (uid %d) sent what is no message: disconnected (another version of libgaia?)",
               (int)client->peer.pid, (int)client->peer.uid);
    cache_client_close(client->cache);
    pthread_mutex_lock(&server->lock);
    close(client->socket);
    client->socket = -1;
    client->done = true;
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* Join the threads of clients that are gone; with all, of every client. */
static void reap(struct server *server, bool all)
{
    pthread_mutex_lock(&server->lock);
    for (struct client *client = LIST_FIRST(&server->clients), *next; client; client = next) {
        next = LIST_NEXT(client, link);
        if (!client->done && !all)
            continue;
        LIST_REMOVE(client, link);
        server->count--;
        pthread_mutex_unlock(&server->lock);
        pthread_join(client->thread, NULL);
        free(client);
        pthread_mutex_lock(&server->lock);
        next = LIST_FIRST(&server->clients); /* the list may have changed meanwhile */
    }
    pthread_mutex_unlock(&server->lock);
}

/* How many clients a user has; root has as many as there are. server->lock is held. */
static unsigned clients_of(struct server *server, uid_t uid)
{
    struct client *client;
    unsigned count = 0;

    LIST_FOREACH (client, &server->clients, link)
        count += uid != 0 && client->peer.uid == uid;
    return count;
}

static int add_client(struct server *server, int socket)
{
    socklen_t length = sizeof(struct ucred);
    struct client *client = calloc(1, sizeof *client);

    if (!client)
        return -ENOMEM;
    *client = (struct client){.server = server, .socket = socket};
    int error = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &client->peer, &length) ? -errno : 0;
    pthread_mutex_lock(&server->lock);
    if (!error &&
        (server->count >= CLIENTS_MAX || clients_of(server, client->peer.uid) >= CLIENTS_OF_USER_MAX))
        error = -EMFILE;
    if (!error && server->stopping)
        error = -ENOTCONN;
    if (!error)
        error = -pthread_create(&client->thread, NULL, serve_client, client);
    if (!error) {
        LIST_INSERT_HEAD(&server->clients, client, link);
        server->count++;
    }
    pthread_mutex_unlock(&server->lock);
    if (error)
        free(client);
    return error;
}

/* The socket is the client's, or closed. */
static int take_client(struct server *server, int socket)
{
    reap(server, false);
    int error = add_client(server, socket);
    if (error) {
        fs_log(LOG_WARNING, "a program that wants a device was turned away: %s%s", strerror(-error),
               error == -EMFILE ? ": raise the daemon's limit of open files (LimitNOFILE=)" : "");
        close(socket);
    }
    return error;
}

static void *accept_clients(void *argument)
{
    struct server *server = argument;

    for (;;) {
        int socket = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (socket < 0 && descriptors_shed(server->fs, errno))
            continue;
        if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            usleep(10000); /* somebody will close something */
            continue;
        }
        if (socket < 0) /* shut down */
            return NULL;
        take_client(server, socket);
    }
}

static int listen_on(struct server *server)
{
    struct sockaddr_un address;
    socklen_t length;
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EIO;
    snprintf(server->name, sizeof server->name, "gaiafs-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    int error = reach_address(server->name, &address, &length);
    assert(!error);
    server->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (server->socket < 0)
        return -errno;
    if (bind(server->socket, (struct sockaddr *)&address, length) || listen(server->socket, 64)) {
        error = -errno;
        close(server->socket);
        return error;
    }
    return 0;
}

int server_start(struct fs *fs, struct server **server_out)
{
    struct server *server = calloc(1, sizeof *server);

    if (!server)
        return -ENOMEM;
    server->fs = fs;
    LIST_INIT(&server->clients);
    lock_init(&server->lock, LOCK_SERVER);
    token_table_init(&server->tokens);
    int error = alive_begin(&server->alive, &server->alive_fd);
    if (error)
        goto out_free;
    error = listen_on(server);
    if (error)
        goto out_alive;
    error = -pthread_create(&server->thread, NULL, accept_clients, server);
    if (!error) {
        *server_out = server;
        return 0;
    }
    close(server->socket);
out_alive:
    alive_end(server->alive, server->alive_fd);
out_free:
    token_table_free(&server->tokens);
    pthread_mutex_destroy(&server->lock);
    free(server);
    return error;
}

void server_stop(struct server *server)
{
    struct client *client;

    if (!server)
        return;
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    LIST_FOREACH (client, &server->clients, link)
        if (!client->done)
            shutdown(client->socket, SHUT_RDWR);
    pthread_mutex_unlock(&server->lock);
    shutdown(server->socket, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->socket);
    reap(server, true);
    alive_end(server->alive,
              server->alive_fd); /* before the connection ends, after who hands the descriptor out */
    token_table_free(&server->tokens);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

static void tell_token(struct server *server, fuse_req_t req, struct inode *inode, struct handle *handle)
{
    struct gaia_ioctl_token answer = {.version = GAIA_PROTOCOL_VERSION,
                                      .network = reach_network(server->socket)};
    const struct fuse_ctx *context = fuse_req_ctx(req);
    int error = 0;

    memcpy(answer.socket, server->name, sizeof answer.socket);
    if (handle && inode->type == S_IFREG) {
        int mode = handle->flags & O_ACCMODE;
        struct token wish = {.inode = inode,
                             .readable = mode != O_WRONLY,
                             .writable = mode == O_RDWR,
                             .handle = handle,
                             .thread = context->pid,
                             .uid = context->uid};
        atomic_store(&handle->has_tokens, true);
        error = token_make(&server->tokens, &wish, answer.token);
    } else if (handle) {
        error = -ENOTTY;
    }
    if (error)
        fuse_reply_err(req, -error);
    else
        fuse_reply_ioctl(req, 0, &answer, sizeof answer);
}

/* To a program in another network namespace. */
static int visit(struct server *server, pid_t thread, const void *in)
{
    struct gaia_ioctl_invite invitation;

    memcpy(&invitation, in, sizeof invitation);
    int socket = visit_client(thread, &invitation);
    if (descriptors_shed(server->fs, -socket))
        socket = visit_client(thread, &invitation);
    return socket < 0 ? socket : take_client(server, socket);
}

void server_ioctl(struct server *server, fuse_req_t req, struct inode *inode, struct handle *handle,
                  unsigned cmd, const void *in, size_t in_size, size_t out_size)
{
    if (cmd == (unsigned)GAIA_IOCTL_TOKEN && out_size >= sizeof(struct gaia_ioctl_token)) {
        tell_token(server, req, inode, handle);
    } else if (cmd == (unsigned)GAIA_IOCTL_INVITE && in_size >= sizeof(struct gaia_ioctl_invite)) {
        int error = visit(server, fuse_req_ctx(req)->pid, in);
        if (error)
            fuse_reply_err(req, -error);
        else
            fuse_reply_ioctl(req, 0, NULL, 0);
    } else {
        fuse_reply_err(req, ENOTTY);
    }
}

void server_forget(struct server *server, struct handle *handle)
{
    if (atomic_load(&handle->has_tokens))
        token_forget(&server->tokens, handle);
}
