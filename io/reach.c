/* SPDX-License-Identifier: Apache-2.0 */
#include "io/reach.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "io/message.h"

#define STRANGERS_MAX 16 /* who may have connected to us before the daemon did */

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

    return getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) ? 0 : (uint32_t)cookie;
}

/* Under a name of its own. */
static int listen_for(struct gaia_ioctl_invite *invitation)
{
    struct sockaddr_un address;
    socklen_t length;
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random ||
        getrandom(invitation->secret, sizeof invitation->secret, 0) != (ssize_t)sizeof invitation->secret)
        return -EIO;
    snprintf(invitation->socket, sizeof invitation->socket, GAIA_INVITE_NAME "%016llx%016llx",
             (unsigned long long)random[0], (unsigned long long)random[1]);
    int error = reach_address(invitation->socket, &address, &length);
    assert(!error);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, STRANGERS_MAX)) {
        error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

/* The daemon has spoken before it answered the ioctl; who has not is somebody else. */
static bool is_daemon(int socket, const struct gaia_ioctl_invite *invitation)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    struct gaia_message message;
    int fds[GAIA_MESSAGE_FDS];

    if (poll(&wait, 1, 0) != 1 || !(wait.revents & POLLIN) || gaia_message_receive(socket, &message, fds))
        return false;
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return message.op == GAIA_OP_HELLO &&
           !memcmp(message.token, invitation->secret, sizeof invitation->secret);
}

static int accept_daemon(int listener, const struct gaia_ioctl_invite *invitation)
{
    for (unsigned i = 0; i <= STRANGERS_MAX; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
            return errno == EAGAIN ? -ENETUNREACH : -errno;
        if (fd >= 0 && is_daemon(fd, invitation))
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return -ENETUNREACH;
}

static int invite(int fd)
{
    struct gaia_ioctl_invite invitation = {.version = GAIA_PROTOCOL_VERSION};
    int listener = listen_for(&invitation);

    if (listener < 0)
        return listener;
    int result = ioctl(fd, GAIA_IOCTL_INVITE, &invitation) ? -errno : accept_daemon(listener, &invitation);
    close(listener);
    if (result >= 0 || result == -EMFILE || result == -ENFILE || result == -ENOMEM)
        return result;
    /* Of a request that was under way when the daemon ended; or why it did not come, an older one's ENOTTY
     * among that. */
    return result == -ECONNABORTED || result == -ENOTCONN ? -ENOTCONN : -ENETUNREACH;
}

int reach_daemon(int fd, const struct gaia_ioctl_token *token)
{
    struct sockaddr_un address;
    socklen_t length;
    int error = reach_address(token->socket, &address, &length);

    if (error)
        return error;
    int socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (socket_fd < 0)
        return -errno;
    if (token->network && reach_network(socket_fd) != token->network)
        error = invite(fd);
    else if (connect(socket_fd, (struct sockaddr *)&address, length))
        error = -errno;
    else
        return socket_fd;
    close(socket_fd);
    return error;
}
