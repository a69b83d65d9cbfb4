/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/visit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "io/message.h"
#include "io/reach.h"

struct visit {
    pid_t thread;
    const struct gaia_ioctl_invite *invitation;
    int network; /* a descriptor of the namespace */
    int result;
};

/* The one who listens has not proved anything by being there: the name may be of somebody else's. */
static int check_listener(int socket, pid_t thread)
{
    struct ucred peer;
    socklen_t length = sizeof peer;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length))
        return -errno;
    return thread_is_of(peer.pid, thread) ? 0 : -ECONNREFUSED;
}

/* Not waiting: somebody who listens and accepts nobody keeps nobody. */
static int connect_to(pid_t thread, const struct gaia_ioctl_invite *invitation)
{
    struct gaia_message message = {.op = GAIA_OP_HELLO};
    struct sockaddr_un address;
    socklen_t length;
    int error = reach_address(invitation->socket, &address, &length);

    if (error)
        return error;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, length))
        error = -errno;
    if (!error)
        error = check_listener(fd, thread);
    if (!error) {
        memcpy(message.token, invitation->secret, sizeof message.token);
        error = gaia_message_send(fd, &message, NULL, 0);
    }
    if (!error && fcntl(fd, F_SETFL, 0)) /* from here on it is as one that came to us */
        error = -errno;
    if (!error)
        return fd;
    close(fd);
    return error;
}

/* A thread of its own, which ends: one that could not go back would serve others from there. */
static void *go(void *argument)
{
    struct visit *visit = argument;

    visit->result =
        setns(visit->network, CLONE_NEWNET) ? -errno : connect_to(visit->thread, visit->invitation);
    return NULL;
}

int visit_client(pid_t thread, const struct gaia_ioctl_invite *invitation)
{
    struct visit visit = {.thread = thread, .invitation = invitation};
    pthread_t visitor;
    char path[40];

    if (invitation->version != GAIA_PROTOCOL_VERSION || invitation->reserved ||
        invitation->socket[sizeof invitation->socket - 1] ||
        strncmp(invitation->socket, GAIA_INVITE_NAME, strlen(GAIA_INVITE_NAME)) != 0)
        return -EINVAL;
    if (thread <= 0)
        return -ESRCH;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)thread);
    visit.network = open(path, O_RDONLY | O_CLOEXEC);
    if (visit.network < 0)
        return errno == ENOENT ? -ESRCH : errno == EACCES ? -EPERM : -errno;
    int error = -pthread_create(&visitor, NULL, go, &visit);
    if (!error)
        error = -pthread_join(visitor, NULL);
    close(visit.network);
    return error ? error : visit.result;
}
