/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA carrier: its device, which is opened, may go while there are links, and may come back. */
#include "io/transport_rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define AGAIN_NS 1000000000u /* between looks for a device that has gone */

/* What is told once to a process, of which the transport that read it may not know whom it concerns. */
static _Atomic unsigned troubles;

bool rdma_is_in_trouble(const struct rdma *rdma)
{
    return rdma->troubles != troubles;
}

/* Not to be heard of again: epoll would tell of the dead device's descriptors without end. */
void rdma_die(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;
    struct gaia_link *link;

    if (rdma->dead)
        return;
    rdma->dead = true;
    epoll_ctl(transport->epoll, EPOLL_CTL_DEL, rdma->completions->fd, NULL);
    epoll_ctl(transport->epoll, EPOLL_CTL_DEL, rdma->verbs->async_fd, NULL);
    /* They stay in the list. Of a peer that is being connected to this says nothing. */
    LIST_FOREACH (link, &transport->links, entry)
        link_end(link, link->state == LINK_CONNECTING ? -ENODEV : -EIO,
                 "the device %s has gone, or works no more", transport->limits.device);
}

/* A completion queue that has failed, and a device that has, look like ones to which nothing happens: all
 * that goes through them would wait for its time limit, and what is begun anew, too. Transports of one device
 * have one descriptor for this, and one of them is told: what is not its own may be any other's, which gives
 * up its links and opens the device anew. What is told of ports and queue pairs their links find out. */
void rdma_take_trouble(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;
    struct ibv_async_event event;

    errno = 0; /* as in rdma_heard() */
    while (!rdma->dead && !ibv_get_async_event(rdma->verbs, &event)) {
        bool device = event.event_type == IBV_EVENT_DEVICE_FATAL;
        bool queue = event.event_type == IBV_EVENT_CQ_ERR, ours = queue && event.element.cq == rdma->cq;
        ibv_ack_async_event(&event); /* before anything of it is destroyed, which would wait for this */
        if (device || (queue && !ours)) {
            troubles++;
            rdma->troubles++;
        }
        if (device || ours)
            rdma_die(transport);
    }
    if (errno != EAGAIN && errno != EINTR)
        rdma_die(transport);
}

static uint64_t bytes_per_second(const struct ibv_port_attr *port)
{
    static const struct {
        uint8_t code;
        unsigned megabits;
    } speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                  {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    static const struct {
        uint8_t code, lanes;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint64_t megabits = 0;

    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        if (speeds[i].code == port->active_speed)
            megabits = speeds[i].megabits;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].code == port->active_width)
            return megabits * widths[i].lanes * 125000;
    return 0;
}

static unsigned least(int64_t a, unsigned b)
{
    return a < 1 ? 1 : a < b ? (unsigned)a : b;
}

static int look_at_device(struct gaia_transport *transport, struct rdma *rdma)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    struct ibv_mr *probe;

    if (ibv_query_device(rdma->verbs, &device) || ibv_query_port(rdma->verbs, rdma->id->port_num, &port))
        return transport_say(-EIO, "%s can't be asked what it can do",
                             ibv_get_device_name(rdma->verbs->device));
    /* A node that mounts before its link is up would take all others to be down. */
    if (port.state != IBV_PORT_ACTIVE && port.state != IBV_PORT_ACTIVE_DEFER)
        return transport_say(-ENETDOWN, "port %u of %s is not up: %s", rdma->id->port_num,
                             ibv_get_device_name(rdma->verbs->device), ibv_port_state_str(port.state));
    rdma->reads_out = least(device.max_qp_init_rd_atom, 255);
    rdma->reads_in = least(device.max_qp_rd_atom, 255);
    rdma->cq_room = least(device.max_cqe, RDMA_CQ_ENTRIES);
    if (transport->limits.queues) /* it was there before: what was said of it stays */
        return 0;
    transport->limits.reads_per_queue = rdma->reads_out < rdma->reads_in ? rdma->reads_out : rdma->reads_in;
    transport->limits.queues = GAIA_LINK_QUEUES_MAX;
    transport->limits.bytes_per_second = bytes_per_second(&port);
    snprintf(transport->limits.device, sizeof transport->limits.device, "%s",
             ibv_get_device_name(rdma->verbs->device));
    /* A descriptor that is none: a device that takes dmabufs looks at it, another does not come so far. */
    probe = ibv_reg_dmabuf_mr(rdma->pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
    transport->limits.dmabuf = !probe && errno == EBADF;
    if (probe)
        ibv_dereg_mr(probe);
    return 0;
}

static int open_queues(struct gaia_transport *transport, struct rdma *rdma)
{
    int error;

    rdma->pd = ibv_alloc_pd(rdma->verbs);
    if (!rdma->pd)
        return transport_say(-errno, "ibv_alloc_pd: %s", strerror(errno));
    error = look_at_device(transport, rdma);
    if (error)
        return error;
    rdma->completions = ibv_create_comp_channel(rdma->verbs);
    if (!rdma->completions)
        return transport_say(-errno, "ibv_create_comp_channel: %s", strerror(errno));
    rdma->cq = ibv_create_cq(rdma->verbs, (int)rdma->cq_room, NULL, rdma->completions, 0);
    if (!rdma->cq)
        return transport_say(-errno, "a completion queue of %u: %s", rdma->cq_room, strerror(errno));
    if (fcntl(rdma->completions->fd, F_SETFL, O_NONBLOCK) ||
        fcntl(rdma->verbs->async_fd, F_SETFL, O_NONBLOCK))
        return transport_say(-errno, "fcntl: %s", strerror(errno));
    rdma->troubles = troubles;
    error = transport_watch(transport, rdma->completions->fd, QUEUE_EVENTS);
    if (!error)
        error = transport_watch(transport, rdma->verbs->async_fd, QUEUE_TROUBLE);
    if (!error)
        error = transport_watch(transport, rdma->channel->fd, QUEUE_LISTEN);
    if (!error && (error = ibv_req_notify_cq(rdma->cq, 0)))
        error = transport_say(-error, "ibv_req_notify_cq: %s", strerror(error));
    return error;
}

/* When the kernel has taken a device away (drivers of NICs do; rxe waits until nobody uses it), it refuses to
 * destroy what it has destroyed already, and libibverbs keeps all that it has of that (queues, the descriptor
 * of completions), unless it is told otherwise before its first use. It asks that events are not read
 * meanwhile by another thread: a transport's lock sees to it. Before there are threads, which may look at the
 * environment. */
__attribute__((constructor)) static void let_go_of_what_was_taken_away(void)
{
    setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 0);
}

/* Nobody uses it. */
static void let_go(struct gaia_transport *transport, struct rdma *rdma)
{
    rdma_look_at_parting(rdma, true);
    if (rdma->verbs) /* librdmacm's, which may stay */
        epoll_ctl(transport->epoll, EPOLL_CTL_DEL, rdma->verbs->async_fd, NULL);
    if (rdma->id)
        rdma_destroy_id(rdma->id);
    if (rdma->cq)
        ibv_destroy_cq(rdma->cq);
    if (rdma->completions) {
        epoll_ctl(transport->epoll, EPOLL_CTL_DEL, rdma->completions->fd, NULL);
        ibv_destroy_comp_channel(rdma->completions);
    }
    if (rdma->pd)
        ibv_dealloc_pd(rdma->pd);
    if (rdma->channel) {
        epoll_ctl(transport->epoll, EPOLL_CTL_DEL, rdma->channel->fd, NULL);
        rdma_destroy_event_channel(rdma->channel);
    }
    *rdma = (struct rdma){.dead = true};
}

void rdma_close(struct gaia_transport *transport)
{
    let_go(transport, transport->own);
    free(transport->own);
}

static int start(struct gaia_transport *transport, struct rdma *rdma)
{
    int error = rdma_bind(transport, rdma);

    if (!error)
        error = open_queues(transport, rdma);
    if (!error && transport->config.listen && rdma_listen(rdma->id, 64))
        error = transport_say(-errno, "%s: %s", transport->address, strerror(errno));
    return error;
}

int rdma_open(struct gaia_transport *transport)
{
    struct rdma *rdma = calloc(1, sizeof *rdma);

    if (!rdma)
        return transport_say(-ENOMEM, "no memory for a carrier");
    transport->own = rdma;
    int error = start(transport, rdma);
    if (error)
        rdma_close(transport);
    return error;
}

/* librdmacm closes what is gone, and finds what is new, when it is asked what there is. Some drivers wait for
 * that: their device does not come back before. */
static void look_for_devices(void)
{
    struct ibv_context **devices = rdma_get_devices(NULL);

    if (devices)
        rdma_free_devices(devices);
}

/* A NIC that was reset comes back. */
void rdma_tick(struct gaia_transport *transport, uint64_t now_ns)
{
    struct rdma *rdma = transport->own;

    rdma_look_at_parting(rdma, false);
    if (!rdma->dead || now_ns < rdma->again_ns || !LIST_EMPTY(&transport->links) ||
        !LIST_EMPTY(&transport->memories) || transport->registering)
        return;
    let_go(transport, rdma);
    look_for_devices();
    rdma->dead = false;
    if (start(transport, rdma))
        let_go(transport, rdma);
    rdma->again_ns = now_ns + AGAIN_NS;
}
