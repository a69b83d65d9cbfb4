/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/server.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alive.h"
#include "base/thread.h"
#include "cache/client.h"
#include "fs/client.h"
#include "fs/follow.h"
#include "fs/fs.h"
#include "fs/listener.h"
#include "fs/log.h"
#include "fs/token.h"
#include "fs/trouble.h"
#include "io/message.h"
#include "io/reach.h"

#define CLIENTS_MAX 256u
/* Limits, so that nobody keeps everybody else out: of a user here, with all that he can be, of another
 * network namespace, of all of those, and what only this one's root may have. A user who can make network
 * namespaces can make many. */
#define CLIENTS_OF_USER_MAX 64u
#define CLIENTS_OF_NETWORK_MAX 64u
#define CLIENTS_FAR_MAX 128u
#define CLIENTS_OF_ROOT 16u
/* Those that are turned away, each by a thread that closes its socket: see fs/client.h. */
#define REFUSED_MAX CLIENTS_MAX
/* How long clients' threads are waited for, all together, when the server stops and their sockets are shut
 * down; and then, to close those that are outside. */
#define LATE_MS 5000u
#define CLOSE_MS 1000u
#define JOIN_MS 100u
/* A program that wants to be listened for must connect within the first; whether it lives is looked at as
 * often as the second says; so many others may connect before it. */
#define MEETING_MS 3000
#define ASKER_MS 200
#define STRANGERS_MAX 8u

/* A program in another network namespace that has asked where it can find us (GAIA_IOCTL_MEET). */
struct meeting {
    fuse_req_t req;
    pid_t asker; /* a thread of it */
    int listener;
    unsigned strangers; /* who came instead: they are turned away */
};

struct served {
    LIST_ENTRY(served) link; /* server->clients */
    struct server *server;
    struct client client; /* its socket, and the meeting's listener, are set and closed under server->lock */
    struct meeting *meeting; /* NULL: it has come to us */
    bool refused; /* one too many: it is not a client, and its socket only closed; or not one any more */
    bool surplus; /* of those: it never was to be one */
    bool done;    /* its thread is about to end: joined by the next to look, under server->lock */
    pthread_t thread;
};

struct server {
    struct fs *fs;
    char name[LISTENER_NAME];
    int socket;
    uint64_t network; /* our namespace, as client.network */
    pthread_t thread, programs_thread;
    bool hears_programs; /* the second is there */
    struct token_table tokens;
    struct alive *alive; /* the thread that starts and stops the server, which is the main one */
    int alive_fd;
    pthread_mutex_t lock; /* guards what follows; nothing of a client's is closed with it held */
    LIST_HEAD(, served) clients;
    unsigned count, refused; /* threads of clients, and of those turned away */
    bool stopping;
    time_t told; /* when somebody was turned away last, and it was logged */
};

/* ---- a client's thread ---- */

static int take_client(struct server *server, int socket, bool refused);

/* The program itself, and not a process that has seen the name in a list of sockets. If too many of these
 * come, the others are left in the queue: the name stays ours until the time is over, so that nobody else can
 * have it meanwhile. */
static int accept_asker(struct served *served, struct ucred *peer_out)
{
    struct meeting *meeting = served->meeting;
    struct timespec until = lock_wait_until(MEETING_MS);
    socklen_t length = sizeof *peer_out;

    while (!lock_is_past(&until) && thread_is_of(meeting->asker, meeting->asker)) {
        bool full = meeting->strangers == STRANGERS_MAX;
        struct pollfd wait = {.fd = meeting->listener, .events = full ? 0 : POLLIN};
        if (poll(&wait, 1, ASKER_MS) < 0 && errno != EINTR)
            return -errno;
        if (wait.revents & (POLLHUP | POLLERR)) /* server_stop() */
            return -ENOTCONN;
        int fd = full ? -1 : accept4(meeting->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && (full || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ||
                       descriptors_shed(served->client.fs, errno)))
            continue;
        if (fd < 0)
            return -errno;
        int error = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer_out, &length) ? -errno : 0;
        if (!error && thread_is_of(peer_out->pid, meeting->asker))
            return fd;
        meeting->strangers++;
        if (take_client(served->server, fd, true)) { /* no room for a thread that closes it */
            client_go_outside(&served->client);
            close(fd);
            if (!client_come_back(&served->client))
                return -ECANCELED;
        }
        if (error)
            return error;
    }
    return -ETIMEDOUT;
}

/* The socket, or the listener, is the server's to shut down from now on. peer: who it is; NULL: as before.
 * -ENOTCONN: it stops. */
static int enter(struct served *served, int *place, int fd, const struct ucred *peer)
{
    struct server *server = served->server;
    int error = 0;

    pthread_mutex_lock(&server->lock);
    *place = fd;
    if (peer)
        served->client.peer = *peer;
    if (server->stopping)
        error = -ENOTCONN;
    pthread_mutex_unlock(&server->lock);
    return error;
}

/* Listen where the program is, tell it, and wait for it; what it gets first is the secret that it was told.
 */
static int meet(struct served *served)
{
    struct gaia_ioctl_meet answer = {.version = GAIA_PROTOCOL_VERSION};
    struct gaia_message message = {.op = GAIA_OP_HELLO};
    struct meeting *meeting = served->meeting;
    struct ucred peer;
    int error = 0;

    if (getrandom(answer.secret, sizeof answer.secret, 0) != (ssize_t)sizeof answer.secret)
        error = -EIO;
    int fd = error ? error : listener_open_for(meeting->asker, answer.socket);
    if (fd < 0 && descriptors_shed(served->client.fs, -fd))
        fd = listener_open_for(meeting->asker, answer.socket);
    error = fd < 0 ? fd : enter(served, &meeting->listener, fd, NULL);
    if (error)
        fuse_reply_err(meeting->req, -error);
    else
        fuse_reply_ioctl(meeting->req, 0, &answer, sizeof answer);
    if (error)
        return error;
    fd = accept_asker(served, &peer);
    if (fd == -ECANCELED)
        return fd;
    shutdown(meeting->listener, SHUT_RDWR);
    if (fd < 0)
        return fd;
    error = enter(served, &served->client.socket, fd, &peer);
    memcpy(message.token, answer.secret, sizeof message.token);
    return error ? error : gaia_message_send(fd, &message, NULL, 0);
}

/* Whether the thread may go on. */
static bool close_all(struct served *served)
{
    struct server *server = served->server;
    struct meeting *meeting = served->meeting;
    int listener = -1;

    pthread_mutex_lock(&server->lock);
    int socket = served->client.socket;
    served->client.socket = -1;
    if (meeting) {
        listener = meeting->listener;
        meeting->listener = -1;
    }
    pthread_mutex_unlock(&server->lock);
    client_go_outside(&served->client);
    if (socket >= 0)
        close(socket);
    if (listener >= 0)
        close(listener);
    if (served->client.faults >= 0)
        close(served->client.faults);
    if (served->client.lives >= 0)
        close(served->client.lives);
    return client_come_back(&served->client);
}

/* Says why the connection ends, to a client that will ask: the queue of a socket that nobody has written to
 * has room for it, and nobody waits here until it is read. */
static void turn_away(const struct served *served)
{
    struct gaia_message message = {.op = GAIA_OP_HELLO, .error = -EUSERS};

    if (!served->surplus)
        gaia_message_send(served->client.socket, &message, NULL, 0);
}

static void *serve_client(void *argument)
{
    struct served *served = argument;
    struct server *server = served->server;
    struct client *client = &served->client;
    int error = served->refused ? -EUSERS : served->meeting ? meet(served) : 0;

    if (served->refused)
        turn_away(served);
    while (!error)
        error = client_serve(client);
    if (error == -ECANCELED)
        return NULL;
    if (error == -EPROTO)
        trouble_of_a_message(&client->peer);
    cache_client_close(client->cache);
    client->cache = NULL;
    trouble_of_frames(server->fs);
    trouble_of_reach(server->fs);
    if (!close_all(served))
        return NULL;
    pthread_mutex_lock(&server->lock);
    served->done = true;
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* ---- all of them ---- */

static void served_free(struct served *served)
{
    free(served->meeting);
    free(served);
}

/* Clients whose threads were not joined in time. */
struct late {
    struct timespec until; /* that they are waited for, and */
    struct timespec last;  /* that they are closed by somebody else */
    unsigned abandoned;    /* those that were outside: they touch nothing any more */
    unsigned left;         /* the others */
};

static void *close_client(void *client)
{
    cache_client_close(client);
    return NULL;
}

/* What an abandoned thread would have done when it comes back. A client that is waited for outside may be
 * waited for here, too. */
static bool close_within(struct cache_client *client, const struct timespec *last)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, close_client, client))
        return false;
    while (!lock_join_within(thread, JOIN_MS))
        if (lock_is_past(last))
            return false;
    return true;
}

/* Join its thread. late: NULL: it is done. false: it is late, and its memory its own. */
static bool join(struct served *served, struct late *late)
{
    struct client *client = &served->client;
    enum client_state outside = CLIENT_OUTSIDE;

    for (bool past = false; !lock_join_within(served->thread, past ? 0 : JOIN_MS);) {
        if (!past) {
            past = late && lock_is_past(&late->until);
            continue;
        }
        bool abandoned = atomic_compare_exchange_strong(&client->state, &outside, CLIENT_ABANDONED) &&
                         close_within(client->cache, &late->last);
        *(abandoned ? &late->abandoned : &late->left) += 1;
        pthread_detach(served->thread);
        return false;
    }
    return true;
}

/* Join the threads of clients that are gone; with late, of every client. */
static void reap(struct server *server, struct late *late)
{
    pthread_mutex_lock(&server->lock);
    for (struct served *served = LIST_FIRST(&server->clients), *next; served; served = next) {
        next = LIST_NEXT(served, link);
        if (!served->done && !late)
            continue;
        LIST_REMOVE(served, link);
        *(served->refused ? &server->refused : &server->count) -= 1;
        pthread_mutex_unlock(&server->lock);
        if (join(served, late))
            served_free(served);
        pthread_mutex_lock(&server->lock);
        next = LIST_FIRST(&server->clients); /* the list may have changed meanwhile */
    }
    pthread_mutex_unlock(&server->lock);
}

enum limit { ROOM, OF_NETWORK, OF_FAR, OF_USER, OF_ALL };
static const char *const limit_words[] = {
    [OF_NETWORK] = "its network namespace has as many as one may have",
    [OF_FAR] = "other network namespaces have as many as they may have",
    [OF_USER] = "its user has as many as one may have",
    [OF_ALL] = "there are as many as there may be",
};

/* Whether one of the list is among those whose number a limit bounds for the client. Users of other network
 * namespaces are not told apart: root there can be any user. */
static bool is_among(const struct served *served, enum limit limit, const struct client *client)
{
    const struct client *other = &served->client;

    switch (limit) {
    case OF_NETWORK:
        return !served->refused && other->far && other->network == client->network;
    case OF_FAR:
        return !served->refused && other->far;
    case OF_USER:
        return !served->refused && !other->far && other->user == client->user;
    default:
        return !served->refused;
    }
}

static unsigned count_among(struct server *server, enum limit limit, const struct client *client)
{
    struct served *served;
    unsigned count = 0;

    LIST_FOREACH (served, &server->clients, link)
        count += is_among(served, limit, client);
    return count;
}

/* Why there is no room for one more. Root is the one of this network namespace. server->lock is held. */
static enum limit has_no_room(struct server *server, const struct client *client)
{
    bool is_root = !client->far && client->peer.uid == 0;

    if (client->far && count_among(server, OF_NETWORK, client) >= CLIENTS_OF_NETWORK_MAX)
        return OF_NETWORK;
    if (client->far && count_among(server, OF_FAR, client) >= CLIENTS_FAR_MAX)
        return OF_FAR;
    if (!client->far && !is_root && count_among(server, OF_USER, client) >= CLIENTS_OF_USER_MAX)
        return OF_USER;
    return server->count >= CLIENTS_MAX - (is_root ? 0 : CLIENTS_OF_ROOT) ? OF_ALL : ROOM;
}

/* One that has nothing mapped makes room: the one that is idle for longest. From now on it is one of those
 * that are turned away. False: there is none; true: there may be room now. server->lock is held. */
static bool let_idle_go(struct server *server, enum limit limit, const struct client *client)
{
    struct served *served, *oldest = NULL;

    LIST_FOREACH (served, &server->clients, link) {
        uint64_t since = atomic_load(&served->client.idle_since);
        if (since && !atomic_load(&served->client.maps) && is_among(served, limit, client) &&
            (!oldest || since < atomic_load(&oldest->client.idle_since)))
            oldest = served;
    }
    if (!oldest || server->refused >= REFUSED_MAX)
        return false;
    if (!client_let_go(&oldest->client)) /* it maps something again */
        return true;
    oldest->refused = true;
    server->count--;
    server->refused++;
    if (oldest->client.socket >= 0)
        shutdown(oldest->client.socket, SHUT_RDWR);
    return true;
}

/* Begin to serve what is filled in; without room for it to be turned away, but where there is a meeting, and
 * nothing to close. 0, or a negative errno: nothing has begun. */
static int start(struct server *server, struct served *served)
{
    struct client *client = &served->client;
    time_t now = lock_wait_until(0).tv_sec;
    int error = 0;

    reap(server, NULL); /* those that are done, which takes no time */
    served->server = server;
    client->fs = server->fs;
    client->faults = client->lives = -1;
    client->tokens = &server->tokens;
    client->alive_fd = server->alive_fd;
    pthread_mutex_lock(&server->lock);
    if (server->stopping)
        error = -ENOTCONN;
    enum limit why = error || served->refused ? ROOM : has_no_room(server, client);
    while (why && let_idle_go(server, why, client))
        why = has_no_room(server, client);
    bool tell = why && now != server->told; /* once a second */
    served->refused |= why != ROOM;
    server->told = why ? now : server->told;
    if (served->refused && served->meeting)
        error = -EUSERS;
    else if (served->refused && server->refused >= REFUSED_MAX / (served->surplus ? 2 : 1))
        error = -EMFILE;
    if (!error)
        error = -follow_create(&served->thread, serve_client, served);
    if (!error) {
        LIST_INSERT_HEAD(&server->clients, served, link);
        *(served->refused ? &server->refused : &server->count) += 1;
    }
    uid_t uid = client->peer.uid;
    pthread_mutex_unlock(&server->lock); /* it may be gone from now on */
    if (tell)
        fs_log(LOG_WARNING, "a program (user %d) that wants a device was turned away: %s", (int)uid,
               limit_words[why]);
    return error;
}

/* refused: only to be closed. Nothing is closed here: without room (-EMFILE) the caller has the socket still.
 */
static int take_client(struct server *server, int socket, bool refused)
{
    socklen_t length = sizeof(struct ucred);
    struct served *served = calloc(1, sizeof *served);

    if (!served)
        return -ENOMEM;
    served->client.socket = socket;
    served->refused = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &served->client.peer, &length) || refused;
    served->client.user = served->refused ? LISTENER_NO_USER : listener_user(&served->client.peer);
    served->surplus = served->refused; /* who it is can't be said: nothing is said to it */
    if (refused)
        shutdown(socket, SHUT_RDWR); /* its end can be told before it can be closed */
    int error = start(server, served);
    if (error)
        free(served);
    return error;
}

static bool is_stopping(struct server *server)
{
    pthread_mutex_lock(&server->lock);
    bool stopping = server->stopping;
    pthread_mutex_unlock(&server->lock);
    return stopping;
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
        if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) &&
            !is_stopping(server)) {
            usleep(10000); /* somebody will close something */
            continue;
        }
        if (socket < 0) /* shut down */
            return NULL;
        /* Without a thread that could wait for its end it is not closed: nobody else is taken until there is
         * one. When the server stops it is left to the end of the process, which waits for nothing. */
        while (take_client(server, socket, false)) {
            if (is_stopping(server))
                return NULL;
            usleep(10000);
        }
    }
}

/* Serves programs that say that they use devices (fs/programs.h). This is a thread of its own: if somebody
 * fills the queue of these with what can't be closed, that keeps no client out. */
static void *accept_programs(void *argument)
{
    struct server *server = argument;
    struct programs *programs = &server->fs->programs;
    struct pollfd wait = {.fd = programs->listener, .events = POLLIN};

    while (!is_stopping(server)) {
        int socket = poll(&wait, 1, -1) < 0 ? -errno : programs_accept(programs);
        while (socket >= 0 && take_client(server, socket, true) && !is_stopping(server))
            usleep(10000);
        if (socket < 0 && socket != -EINTR && socket != -EAGAIN && !descriptors_shed(server->fs, -socket))
            usleep(10000); /* somebody will close something */
    }
    return NULL;
}

static void listen_for_programs(struct server *server)
{
    struct fs *fs = server->fs;
    int error = programs_listen(&fs->programs);

    if (!error)
        error = -pthread_create(&server->programs_thread, NULL, accept_programs, server);
    server->hears_programs = !error;
    if (error && fs->programs.listener >= 0) { /* nobody would accept, and opens wait for him */
        close(fs->programs.listener);
        fs->programs.listener = -1;
    }
    if (error)
        fs_log(LOG_NOTICE,
               "programs can't tell that they use devices, so that what they open is passed through: %s",
               error == -EADDRINUSE ? "all names for that are taken, by mounts of gaiafs or by others"
                                    : strerror(-error));
}

int server_start(struct fs *fs, struct server **server_out)
{
    struct server *server = calloc(1, sizeof *server);

    if (!server)
        return -ENOMEM;
    server->fs = fs;
    server->network = listener_network(getpid());
    LIST_INIT(&server->clients);
    lock_init(&server->lock, LOCK_SERVER);
    token_table_init(&server->tokens);
    int error = alive_begin(&server->alive, &server->alive_fd);
    if (error)
        goto out_free;
    error = server->socket = listener_open(server->name);
    if (error < 0)
        goto out_alive;
    error = -pthread_create(&server->thread, NULL, accept_clients, server);
    if (!error) {
        if (fs->options.passthrough && !fs->options.passthrough_all && fs->as_root)
            listen_for_programs(server);
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

bool server_stop(struct server *server)
{
    struct served *served;

    if (!server)
        return true;
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    LIST_FOREACH (served, &server->clients, link) {
        if (served->client.socket >= 0)
            shutdown(served->client.socket, SHUT_RDWR);
        if (served->meeting && served->meeting->listener >= 0)
            shutdown(served->meeting->listener, SHUT_RDWR);
    }
    pthread_mutex_unlock(&server->lock);
    shutdown(server->socket, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    if (server->hears_programs) {
        shutdown(server->fs->programs.listener, SHUT_RDWR);
        pthread_join(server->programs_thread, NULL);
    }
    /* Its socket is left to the end of the process: in its queue may lie what can't be closed. */
    struct late late = {.until = lock_wait_until(LATE_MS), .last = lock_wait_until(LATE_MS + CLOSE_MS)};
    reap(server, &late);
    if (late.abandoned)
        fs_log(LOG_WARNING, "%u clients have sent descriptors that can't be closed: not waited for",
               late.abandoned);
    if (late.left) { /* the end of this thread will say that nobody is alive here */
        fs_log(LOG_WARNING, "%u threads of clients have not ended: not waited for", late.left);
        return false;
    }
    alive_end(server->alive,
              server->alive_fd); /* before the connection ends, after who hands the descriptor out */
    token_table_free(&server->tokens);
    if (late.abandoned) /* the process ends soon */
        return true;
    pthread_mutex_destroy(&server->lock);
    free(server);
    return true;
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

/* Its client's thread answers: what it does may take as long as the program likes. */
static void begin_meeting(struct server *server, fuse_req_t req)
{
    const struct fuse_ctx *context = fuse_req_ctx(req);
    struct served *served = calloc(1, sizeof *served);
    struct meeting *meeting = calloc(1, sizeof *meeting);
    int error = -ENOMEM;

    if (served && meeting) {
        *meeting = (struct meeting){.req = req, .asker = context->pid, .listener = -1};
        served->meeting = meeting;
        served->client.socket = -1;
        served->client.network = listener_network(context->pid);
        served->client.far = !served->client.network || served->client.network != server->network;
        served->client.peer = (struct ucred){.pid = context->pid, .uid = context->uid, .gid = context->gid};
        served->client.user = listener_user(&served->client.peer);
        error = start(server, served);
    }
    if (!error)
        return;
    fuse_reply_err(req, error == -EAGAIN ? ENOMEM : -error);
    free(served);
    free(meeting);
}

void server_ioctl(struct server *server, fuse_req_t req, struct inode *inode, struct handle *handle,
                  unsigned cmd, const void *in, size_t in_size, size_t out_size)
{
    (void)in;
    (void)in_size;
    if (cmd == (unsigned)GAIA_IOCTL_TOKEN && out_size >= sizeof(struct gaia_ioctl_token))
        tell_token(server, req, inode, handle);
    else if (cmd == (unsigned)GAIA_IOCTL_MEET && out_size >= sizeof(struct gaia_ioctl_meet))
        begin_meeting(server, req);
    else
        fuse_reply_err(req, ENOTTY);
}

void server_forget(struct server *server, struct handle *handle)
{
    if (atomic_load(&handle->has_tokens))
        token_forget(&server->tokens, handle);
}
