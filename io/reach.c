/* SPDX-License-Identifier: Apache-2.0 */
#include "io/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/lock.h"
#include "base/thread.h"
#include "io/message.h"

#define MEETING_MS 10000 /* until the daemon has said who it is, all tries together */
#define TRY_MS 3500      /* one of them, longer than the daemon waits for us: somebody else may say nothing */
#define TRIES 3u

int reach_address(const char *name, struct sockaddr_un *address_out, socklen_t *length_out)
{
    size_t length = strlen(name);

    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (!length || length >= sizeof address_out->sun_path - 1)
        return -EINVAL;
    memcpy(address_out->sun_path + 1, name, length);
    *length_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    return 0;
}

uint32_t reach_network(int socket)
{
    uint64_t cookie;
    socklen_t length = sizeof cookie;

    if (getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length))
        return 0;
    uint32_t folded = (uint32_t)(cookie ^ cookie >> 32);
    return folded ? folded : 1;
}

/* A socket that no fork sees before it is noted. */
static int make_socket(const struct reach_note *note, int flags)
{
    if (note)
        pthread_mutex_lock(note->lock);
    int fd = above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
    int error = fd < 0 ? -errno : 0;
    if (note) {
        *note->socket = fd;
        pthread_mutex_unlock(note->lock);
    }
    return error ? error : fd;
}

/* It is about to be closed: from then on its number may be another's. */
static void forget_socket(const struct reach_note *note)
{
    if (!note)
        return;
    pthread_mutex_lock(note->lock);
    *note->socket = -1;
    pthread_mutex_unlock(note->lock);
}

static int connect_to(int socket_fd, const char *name)
{
    struct sockaddr_un address;
    socklen_t length;
    int error = reach_address(name, &address, &length);

    while (!error &&
           connect(socket_fd, (struct sockaddr *)&address, length)) /* may wait for room in its queue */
        if (errno != EINTR)
            error = -errno;
    return error;
}

static int left_ms(const struct timespec *until)
{
    struct timespec now = lock_wait_until(0);
    long long left = (until->tv_sec - now.tv_sec) * 1000LL + (until->tv_nsec - now.tv_nsec) / 1000000;

    return left > 0 ? (int)left : 0;
}

/* Whether it is the daemon that listens: a process that has taken the daemon's name after it does not know
 * the secret. Nothing is taken from such a process: a descriptor that came with its message could keep us
 * from going on (fs/client.h). */
static bool is_daemon(int socket, const struct gaia_ioctl_meet *meeting, const struct timespec *until)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    struct gaia_message message;
    int fds[GAIA_MESSAGE_FDS], n;

    while ((n = poll(&wait, 1, left_ms(until))) < 0 && errno == EINTR)
        ;
    if (n != 1 || recv(socket, &message, sizeof message, MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof message)
        return false;
    return message.op == GAIA_OP_HELLO && !memcmp(message.token, meeting->secret, sizeof meeting->secret) &&
           !gaia_message_receive(socket, &message, fds);
}

static void *close_it(void *argument)
{
    close((int)(intptr_t)argument);
    return NULL;
}

/* What somebody may have sent to is closed by a thread that nobody waits for. */
static void close_apart(int fd)
{
    pthread_t thread;

    if (!thread_start(&thread, close_it, (void *)(intptr_t)fd))
        pthread_detach(thread);
    /* else it stays open: to close it here may take for ever */
}

/* What of the daemon's errors says something to a program that wants a device. */
static int meeting_error(int error)
{
    switch (error) {
    case ENOMEM:
    case EAGAIN:
    case ENOBUFS:
        return -ENOMEM;
    case EMFILE:
    case ENFILE:
        return -EMFILE;
    case EUSERS:
        return -EUSERS;
    case ECONNABORTED: /* of a request that was under way when the daemon ended */
    case ENOTCONN:
        return -ENOTCONN;
    default:
        return -ENETUNREACH;
    }
}

/* Connect where the daemon listens for us; again where it has given us up, as it took us long, or others have
 * kept it from us: those who fill its queue are gone after a moment. */
static int meet(int fd, const struct reach_note *note)
{
    static const unsigned pauses_ms[TRIES] = {0, 20, 300};
    struct timespec until = lock_wait_until(MEETING_MS);
    struct gaia_ioctl_meet meeting = {0};

    for (unsigned i = 0; i < TRIES && !lock_is_past(&until); i++) {
        usleep(pauses_ms[i] * 1000);
        int socket_fd = make_socket(note, SOCK_NONBLOCK);
        int error = socket_fd < 0                          ? meeting_error(-socket_fd)
                    : ioctl(fd, GAIA_IOCTL_MEET, &meeting) ? meeting_error(errno)
                                                           : 0;
        meeting.socket[sizeof meeting.socket - 1] = '\0';
        /* It does not wait for room: whoever has the name could leave none. */
        bool connected =
            !error && meeting.version == GAIA_PROTOCOL_VERSION && !connect_to(socket_fd, meeting.socket);
        struct timespec soon = lock_wait_until(TRY_MS);
        if (left_ms(&until) < left_ms(&soon))
            soon = until;
        if (connected && is_daemon(socket_fd, &meeting, &soon) && !fcntl(socket_fd, F_SETFL, 0))
            return socket_fd;
        forget_socket(note);
        if (connected)
            close_apart(socket_fd);
        else if (socket_fd >= 0)
            close(socket_fd);
        if (error)
            return error;
    }
    return -ENETUNREACH;
}

int reach_daemon(int fd, const struct gaia_ioctl_token *token, const struct reach_note *note)
{
    int error, socket_fd = make_socket(note, 0);

    if (socket_fd < 0)
        return socket_fd;
    bool far = token->network && reach_network(socket_fd) != token->network;
    if (!far && !(error = connect_to(socket_fd, token->socket)))
        return socket_fd;
    forget_socket(note);
    close(socket_fd);
    return far ? meet(fd, note) : error;
}
