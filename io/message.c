/* SPDX-License-Identifier: Apache-2.0 */
#include "io/message.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"

int gaia_message_send(int socket, struct gaia_message *message, const int *fds, unsigned fd_count)
{
    char control[CMSG_SPACE(sizeof(int) * GAIA_MESSAGE_FDS)] = {0};
    struct iovec io = {.iov_base = message, .iov_len = sizeof *message};
    struct msghdr header = {.msg_iov = &io, .msg_iovlen = 1};

    assert(fd_count <= GAIA_MESSAGE_FDS);
    message->length = sizeof *message;
    message->version = GAIA_PROTOCOL_VERSION;
    if (fd_count) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    for (;;) {
        ssize_t n = sendmsg(socket, &header, MSG_NOSIGNAL);
        if (n == (ssize_t)sizeof *message)
            return 0;
        if (n >= 0)
            return -EPROTO;
        if (errno != EINTR)
            return -errno;
    }
}

#define FDS_LOOKED_AT 8u /* what a peer sends more than that the kernel closes */

size_t gaia_message_take_fds(struct msghdr *header, int *fds_out, unsigned most, bool *lost_out)
{
    unsigned kept = 0;
    size_t came = 0;

    *lost_out = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        came += count;
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (kept == most)
                close(fd);
            else if ((fds_out[kept] = above_standard(fd)) >= 0)
                kept++;
            else
                *lost_out = true;
        }
    }
    return came;
}

/* n: how long it is. */
static bool is_message(const struct gaia_message *message, ssize_t n)
{
    return n == (ssize_t)sizeof *message && message->length == sizeof *message &&
           message->version == GAIA_PROTOCOL_VERSION && message->op && message->op <= GAIA_OP_LAST &&
           !message->device[sizeof message->device - 1];
}

static int receive(int socket, int flags, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS])
{
    struct gaia_message message;
    char control[CMSG_SPACE(sizeof(int) * FDS_LOOKED_AT)];
    struct iovec io = {.iov_base = &message, .iov_len = sizeof message};
    ssize_t n;
    struct msghdr header;

    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        fds_out[i] = -1;
    do {
        header = (struct msghdr){
            .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | flags);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == ECONNRESET ? -ENOTCONN : -errno;
    /* An empty packet, which looks like the end, may have some, too. */
    bool lost;
    size_t came = gaia_message_take_fds(&header, fds_out, GAIA_MESSAGE_FDS, &lost);
    bool cut = header.msg_flags & MSG_CTRUNC;
    /* Cut off before there are as many as we look at: there was no room among our own. */
    bool good = is_message(&message, n) && !(header.msg_flags & MSG_TRUNC) && (!cut || came < FDS_LOOKED_AT);
    if (good)
        *message_out = message;
    if (good && !cut && !lost)
        return 0;
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++) {
        if (fds_out[i] >= 0)
            close(fds_out[i]);
        fds_out[i] = -1;
    }
    return good ? -EMFILE : n ? -EPROTO : -ENOTCONN;
}

int gaia_message_receive(int socket, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS])
{
    return receive(socket, 0, message_out, fds_out);
}

int gaia_message_receive_now(int socket, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS])
{
    return receive(socket, MSG_DONTWAIT, message_out, fds_out);
}
