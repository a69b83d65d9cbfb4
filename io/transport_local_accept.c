/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that connect to the local carrier, until they have said HELLO and have a queue. */
#include "io/transport_local.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define DEAF_NS                                                                                        \
    UINT64_C(10000000) /* until who connects is looked at again: the next poll comes before peers lose \
                          patience */

static void drop_half(struct half *half)
{
    close(half->fd);
    half->fd = -1;
}

/* This side can't give the peer what it has asked for. The peer is told why, as it would take this side for
 * one that is down otherwise. */
static void refuse(int fd, int error)
{
    struct gaia_wire_hello answer = link_refusal(error);

    datagram_send(fd, &answer, sizeof answer, -1);
}

/* A queue that has been promised: it comes up, or its link ends. */
static void answer(struct link_queue *queue, const struct gaia_wire_hello *hello)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = queue->id};
    struct local_queue *local = queue->own;
    int stage = -1, error = stage_new(&stage, &local->stage);

    if (!error && epoll_ctl(queue->link->transport->epoll, EPOLL_CTL_MOD, local->fd, &event))
        error = transport_say(-errno, "epoll_ctl: %s", strerror(errno));
    if (error)
        refuse(local->fd, error);
    else
        error = datagram_send(local->fd, hello, sizeof *hello, stage);
    if (stage >= 0)
        close(stage);
    if (error)
        link_end(queue->link, error, "%s", gaia_transport_why());
    else
        link_queue_up(queue);
}

static int greet(struct gaia_transport *transport, struct half *half, const void *bytes, size_t length)
{
    struct link_queue *queue = NULL;
    struct gaia_wire_hello hello;
    char peer[64];
    int error = local_check_peer(half->fd, peer, sizeof peer);

    if (error)
        return error;
    error = link_greeted(transport, peer, bytes, length, &queue, &hello);
    if (error) {
        datagram_send(half->fd, &hello, sizeof hello, -1);
        return error;
    }
    error = local_new_queue(queue, half->fd);
    if (error) {
        refuse(half->fd, error);
        link_end(queue->link, error, "%s", gaia_transport_why());
        return error;
    }
    half->fd = -1;
    answer(queue, &hello);
    return 0;
}

void local_read_half(struct gaia_transport *transport, struct half *half)
{
    unsigned char bytes[GAIA_WIRE_MAX + 1];
    int extra;
    ssize_t n;

    if (half->fd < 0)
        return;
    n = datagram_receive(half->fd, bytes, &extra);
    if (extra >= 0)
        close(extra);
    if (n == -EAGAIN)
        return;
    if (n <= 0 || greet(transport, half, bytes, (size_t)n))
        drop_half(half);
}

static struct half *free_half(struct gaia_transport *transport)
{
    struct local *local = transport->own;
    struct half *oldest = &local->halves[0];

    for (unsigned i = 0; i < HALF_MAX; i++) {
        if (local->halves[i].fd < 0)
            return &local->halves[i];
        if (local->halves[i].since_ns < oldest->since_ns)
            oldest = &local->halves[i];
    }
    local_read_half(transport, oldest); /* it may have a queue now */
    if (oldest->fd >= 0)
        drop_half(oldest); /* who connects and says nothing keeps nobody out */
    return oldest;
}

/* Whether epoll reports peers that connect: it would go on for ever about one that can't be let in. */
static void hear(struct gaia_transport *transport, bool hears)
{
    struct local *local = transport->own;
    struct epoll_event event = {.events = hears ? EPOLLIN : 0, .data.u64 = QUEUE_LISTEN};

    if (!epoll_ctl(transport->epoll, EPOLL_CTL_MOD, local->listening, &event))
        local->deaf_until_ns = hears ? 0 : clock_now_ns() + DEAF_NS;
}

static void keep_one(struct gaia_transport *transport)
{
    struct local *local = transport->own;

    if (local->kept < 0)
        local->kept = eventfd(0, EFD_CLOEXEC); /* a file of its own: a copy would leave no room in the
                                                * system's table of them */
}

/* No descriptor is left but the one that is kept for this. Whether somebody was there. */
static bool turn_away(struct gaia_transport *transport)
{
    struct local *local = transport->own;
    char peer[64];

    if (local->kept < 0)
        return false;
    close(local->kept);
    local->kept = -1;
    int fd = accept4(local->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0 && !local_check_peer(fd, peer, sizeof peer))
        refuse(fd, -EMFILE);
    if (fd >= 0)
        close(fd);
    keep_one(transport);
    return fd >= 0;
}

void local_accept_all(struct gaia_transport *transport)
{
    struct local *local = transport->own;
    char peer[64];
    int fd;

    keep_one(transport);
    for (int n = 0; n < DATAGRAMS_MAX; n++) {
        fd = accept4(local->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int error = fd < 0 ? errno : 0;
        if ((error == EMFILE || error == ENFILE) && turn_away(transport))
            continue;
        if (error) {
            if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)
                hear(transport, false); /* somebody will close something */
            return;
        }
        if (local_check_peer(fd, peer, sizeof peer)) { /* a crowd of strangers takes no node's place */
            close(fd);
            continue;
        }
        struct half *half = free_half(transport);
        half->fd = fd;
        half->since_ns = transport_time(transport);
        error = transport_watch(transport, fd, QUEUE_HALF + (uint64_t)(half - local->halves));
        if (error) {
            refuse(fd, error);
            drop_half(half);
        } else {
            local_read_half(transport, half); /* mostly HELLO is there: of a link that is not late then */
        }
    }
}

/* Drops peers that say no HELLO in time; one that has come after now_ns is not late. */
void local_tick(struct gaia_transport *transport, uint64_t now_ns)
{
    struct local *local = transport->own;
    uint64_t limit_ns = (uint64_t)transport->config.timeout_ms * 1000000;

    for (struct half *half = local->halves; half < local->halves + HALF_MAX; half++)
        if (half->fd >= 0 && now_ns > half->since_ns && now_ns - half->since_ns > limit_ns)
            drop_half(half);
}

/* Epoll reports what comes; only the time has to be looked at. */
void local_glance(struct gaia_transport *transport)
{
    const struct local *local = transport->own;

    if (local->deaf_until_ns && clock_now_ns() >= local->deaf_until_ns)
        hear(transport, true);
}

/* ---- begin and end ---- */

void local_listen_not_yet(struct local *local)
{
    local->listening = local->kept = -1;
    for (unsigned i = 0; i < HALF_MAX; i++)
        local->halves[i].fd = -1;
}

int local_listen(struct gaia_transport *transport)
{
    struct local *local = transport->own;
    struct sockaddr_un address;
    socklen_t length;
    int error = local_address(transport->address, &address, &length);

    if (!error)
        error = local_socket(&local->listening);
    if (error)
        return error;
    if (bind(local->listening, (struct sockaddr *)&address, length) || listen(local->listening, 128))
        return transport_say(-errno, "%s: %s", transport->address, strerror(errno));
    keep_one(transport);
    return transport_watch(transport, local->listening, QUEUE_LISTEN);
}

void local_listen_no_more(struct local *local)
{
    for (unsigned i = 0; i < HALF_MAX; i++)
        if (local->halves[i].fd >= 0)
            drop_half(&local->halves[i]);
    if (local->listening >= 0)
        close(local->listening);
    if (local->kept >= 0)
        close(local->kept);
}
