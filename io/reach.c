/* SPDX-License-Identifier: Apache-2.0 */
#include "io/reach.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "io/message.h"

#define MEETING_MS 10000 /* until the daemon has said who it is */
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

static int connect_to(int socket_fd, const char *name)
{
    struct sockaddr_un address;
    socklen_t length;
    int error = reach_address(name, &address, &length);

    return error ? error : connect(socket_fd, (struct sockaddr *)&address, length) ? -errno : 0;
}

/* Whether it was the daemon that listened: who has taken its name after it does not know the secret. */
static bool is_daemon(int socket, const struct gaia_ioctl_meet *meeting)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    struct gaia_message message;
    int fds[GAIA_MESSAGE_FDS], n;

    while ((n = poll(&wait, 1, MEETING_MS)) < 0 && errno == EINTR)
        ;
    if (n != 1 || gaia_message_receive(socket, &message, fds))
        return false;
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return message.op == GAIA_OP_HELLO && !memcmp(message.token, meeting->secret, sizeof meeting->secret);
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
    case ECONNABORTED: /* of a request that was under way when the daemon ended */
    case ENOTCONN:
        return -ENOTCONN;
    default:
        return -ENETUNREACH;
    }
}

/* Connect where the daemon listens for us; again where it has given us up, as it took us long, or others have
 * kept it from us. */
static int meet(int fd)
{
    struct gaia_ioctl_meet meeting = {0};

    for (unsigned i = 0; i < TRIES; i++) {
        int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        int error = socket_fd < 0 || ioctl(fd, GAIA_IOCTL_MEET, &meeting) ? meeting_error(errno) : 0;
        meeting.socket[sizeof meeting.socket - 1] = '\0';
        if (!error && meeting.version == GAIA_PROTOCOL_VERSION && !connect_to(socket_fd, meeting.socket) &&
            is_daemon(socket_fd, &meeting))
            return socket_fd;
        if (socket_fd >= 0)
            close(socket_fd);
        if (error)
            return error;
    }
    return -ENETUNREACH;
}

int reach_daemon(int fd, const struct gaia_ioctl_token *token)
{
    int error, socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (socket_fd < 0)
        return -errno;
    if (token->network && reach_network(socket_fd) != token->network)
        error = meet(fd);
    else if (!(error = connect_to(socket_fd, token->socket)))
        return socket_fd;
    close(socket_fd);
    return error;
}
