/* SPDX-License-Identifier: Apache-2.0 */
#include "io/transport_stage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "io/message.h"
#include "io/reach.h"

#define NAME_MAX_BYTES 80u
#define STAGE_ALIGN 64u
#define STAGE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* ---- sockets ---- */

int local_address(const char *name, struct sockaddr_un *address_out, socklen_t *length_out)
{
    if (strlen(name) > NAME_MAX_BYTES)
        return transport_say(-EINVAL, "%s: longer than %u bytes", name, NAME_MAX_BYTES);
    return reach_address(name, address_out, length_out);
}

int local_socket(int *fd_out)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), room = 1 << 20;

    if (fd < 0)
        return transport_say(-errno, "socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room); /* less will do */
    *fd_out = fd;
    return 0;
}

int datagram_send(int fd, const void *bytes, size_t length, int fd_to_send)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {.iov_base = (void *)bytes, .iov_len = length};
    struct msghdr header = {.msg_iov = &io, .msg_iovlen = 1};
    ssize_t n;

    if (fd_to_send >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd_to_send, sizeof(int));
    }
    do
        n = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)length)
        return 0;
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)) {
        shutdown(fd, SHUT_WR); /* nothing may follow what is lost */
        return 0;
    }
    if (n >= 0)
        return transport_say(-EIO, "sendmsg: %zd of %zu bytes", n, length);
    return transport_say(errno == EWOULDBLOCK || errno == ENOBUFS ? -EAGAIN : -errno, "sendmsg: %s",
                         strerror(errno));
}

ssize_t datagram_receive(int fd, unsigned char bytes[GAIA_WIRE_MAX + 1], int *fd_out)
{
    char control[CMSG_SPACE(sizeof(int) * 8)];
    struct iovec io = {.iov_base = bytes, .iov_len = GAIA_WIRE_MAX + 1};
    struct msghdr header;
    bool lost = false;
    ssize_t n;

    do {
        header = (struct msghdr){
            .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        n = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && (errno == EINTR || errno == ECONNRESET)); /* after a reset: what was sent before it */
    *fd_out = -1;
    if (n >= 0)
        gaia_message_take_fds(&header, fd_out, 1, &lost);
    if (n >= 0 && *fd_out < 0 && (lost || header.msg_flags & MSG_CTRUNC))
        *fd_out = -EMFILE;
    return n >= 0 ? n : errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

/* ---- the stage ---- */

static int map_stage(int fd, unsigned char **stage_out)
{
    void *stage = mmap(NULL, STAGE_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (stage == MAP_FAILED)
        return transport_say(-errno, "mmap of %u bytes: %s", STAGE_LENGTH, strerror(errno));
    *stage_out = stage;
    return 0;
}

int stage_new(int *fd_out, unsigned char **stage_out)
{
    int fd = memory_file("gaiafs-stage", MFD_ALLOW_SEALING), error = 0;

    if (fd < 0)
        return transport_say(-errno, "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, STAGE_LENGTH) || fcntl(fd, F_ADD_SEALS, STAGE_SEALS))
        error = transport_say(-errno, "a stage: %s", strerror(errno));
    if (!error)
        error = map_stage(fd, stage_out);
    if (error)
        close(fd);
    else
        *fd_out = fd;
    return error;
}

/* The peer's: is it what it should be? */
int stage_from(int fd, unsigned char **stage_out)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & STAGE_SEALS) != STAGE_SEALS || fstat(fd, &status) ||
        status.st_size != STAGE_LENGTH)
        return transport_say(-EPROTO, "the peer's shared memory is not sealed");
    return map_stage(fd, stage_out);
}

static uint32_t stage_size(uint32_t length)
{
    return (length + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
}

bool stage_take(struct stage_ring *ring, bool empty, uint32_t length, uint32_t *place_out)
{
    uint32_t size = stage_size(length);

    if (empty)
        ring->begin = ring->end = 0;
    if (ring->end >= ring->begin) {
        if (STAGE_LENGTH - ring->end >= size) {
            *place_out = ring->end;
            ring->end += size;
            return true;
        }
        if (empty || ring->begin <= size)
            return false;
        *place_out = 0;
        ring->end = size;
        return true;
    }
    if (ring->begin - ring->end <= size)
        return false;
    *place_out = ring->end;
    ring->end += size;
    return true;
}

void stage_give_back(struct stage_ring *ring, uint32_t place, uint32_t length)
{
    ring->begin = place + stage_size(length);
}
