/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA carrier: the device, memory, work requests and their completions.
 *
 * One completion queue for all queue pairs. Of a chain of transfers every SIGNAL_EVERYth asks for a
 * completion, and the last; a queue pair completes in order, so one that went well stands for those before
 * it. A transfer that fails always gets one, and the queue pair is in error then: the link ends, and what no
 * completion has vouched for fails with it. */
#include "io/transport_rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "base/clock.h"

#define SIGNAL_EVERY 4u
#define CQ_ENTRIES 20480u /* of a link with the most queues and depth, both ends, and some strangers */
/* Bytes of an entry of a queue that a device's library has in locked memory, at most: mlx5 has 320 of a
 * request with what is sent inline, and the queue is a power of two. */
#define LOCKED_SEND 512u
#define LOCKED_RECEIVE 64u
#define LOCKED_PAGE 4096u
#define POLL_BATCH 32
#define POLL_BATCHES 16
#define AGAIN_NS 1000000000u /* between looks for a device that has gone */

/* ---- memory ---- */

static int cannot_register(int error, size_t length)
{
    struct rlimit limit;

    if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit))
        return transport_say(error ? -error : -EIO, "registering %zu bytes: %s", length, strerror(error));
    if (limit.rlim_cur == RLIM_INFINITY)
        return transport_say(-ENOMEM, "registering %zu bytes: no memory (RLIMIT_MEMLOCK is unlimited)",
                             length);
    return transport_say(-ENOMEM, "registering %zu bytes: RLIMIT_MEMLOCK allows %llu bytes in all", length,
                         (unsigned long long)limit.rlim_cur);
}

static struct ibv_mr *register_span(struct ibv_pd *pd, const struct gaia_span *span, int access)
{
    if (span->dmabuf < 0)
        return ibv_reg_mr(pd, span->address, span->length, access);
    return ibv_reg_dmabuf_mr(pd, (uintptr_t)span->address, span->length, (uintptr_t)span->address,
                             span->dmabuf, access);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + LOCKED_PAGE - 1) / LOCKED_PAGE * LOCKED_PAGE;
}

static uint32_t power_of_two(uint32_t least)
{
    uint32_t n = 1;

    while (n < least)
        n *= 2;
    return n;
}

/* The buffers of messages, and for each queue its entries and a page of doorbells: as rdma_queue_make() has
 * them. */
static size_t rdma_link_memory(const struct gaia_link_options *options)
{
    size_t bytes = (size_t)RDMA_BUFFERS * 2 * GAIA_WIRE_MAX;

    for (unsigned i = 0; i < options->queues; i++) {
        uint32_t sends = power_of_two(options->depth + (i ? 0 : RDMA_BUFFERS));
        uint32_t receives = power_of_two(i ? 1 : RDMA_BUFFERS);

        bytes += whole_pages(sends * LOCKED_SEND) + whole_pages(receives * LOCKED_RECEIVE) + LOCKED_PAGE;
    }
    return bytes;
}

int rdma_sink_access(enum ibv_transport_type type)
{
    return IBV_ACCESS_LOCAL_WRITE | (type == IBV_TRANSPORT_IWARP ? IBV_ACCESS_REMOTE_WRITE : 0);
}

static int rdma_remember(struct gaia_memory *memory)
{
    struct rdma *rdma = memory->transport->own;

    if (!rdma->verbs)
        return transport_say(-ENODEV, "the device %s has gone", memory->transport->limits.device);
    int access = rdma_sink_access(rdma->verbs->device->transport_type);
    memory->own = register_span(rdma->pd, &memory->span, access);
    return memory->own ? 0 : cannot_register(errno, memory->span.length);
}

static void rdma_forget(struct gaia_memory *memory)
{
    ibv_dereg_mr(memory->own);
}

static int rdma_expose(struct gaia_link *link, const struct gaia_span *span, struct link_region *region)
{
    struct rdma_link *own = link->own;
    struct ibv_mr *mr;
    int access = IBV_ACCESS_REMOTE_READ;

    if (region->writable)
        access |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    mr = register_span(own->pd, span, access);
    if (!mr)
        return cannot_register(errno, span->length);
    region->own = mr;
    region->address = (uintptr_t)span->address;
    region->key = mr->rkey;
    return 0;
}

static void rdma_conceal(struct gaia_link *link, struct link_region *region)
{
    (void)link;
    if (region->own)
        ibv_dereg_mr(region->own);
    region->own = NULL;
}

/* ---- queues ---- */

int rdma_link_make(struct gaia_link *link)
{
    struct rdma *rdma = link->transport->own;
    struct rdma_link *own = link->own;
    const size_t length = (size_t)RDMA_BUFFERS * 2 * GAIA_WIRE_MAX;
    void *buffers;

    if (own)
        return 0;
    own = calloc(1, sizeof *own);
    if (!own)
        return transport_say(-ENOMEM, "no memory for a link");
    link->own = own; /* rdma_cut() cleans up */
    own->pd = link->connected_here ? rdma->pd : ibv_alloc_pd(rdma->verbs);
    if (!own->pd)
        return transport_say(-errno, "ibv_alloc_pd: %s", strerror(errno));
    if (posix_memalign(&buffers, 4096, length))
        return transport_say(-ENOMEM, "no memory for buffers");
    memset(buffers, 0, length);
    own->buffers = buffers;
    own->buffers_mr =
        register_span(own->pd, &(struct gaia_span){buffers, length, -1}, IBV_ACCESS_LOCAL_WRITE);
    if (!own->buffers_mr)
        return cannot_register(errno, length);
    own->buffers_lkey = own->buffers_mr->lkey;
    return 0;
}

static int post_receive(struct link_queue *queue, uint32_t index)
{
    struct rdma_queue *own = queue->own;
    struct rdma_link *link = queue->link->own;
    struct ibv_sge piece = {.addr = (uintptr_t)link->buffers + (size_t)index * GAIA_WIRE_MAX,
                            .length = GAIA_WIRE_MAX,
                            .lkey = link->buffers_lkey};
    struct ibv_recv_wr request = {.wr_id = (uint64_t)queue->id << 32 | RDMA_RECEIVE | index,
                                  .sg_list = &piece,
                                  .num_sge = queue->number ? 0 : 1},
                       *bad;
    int error = ibv_post_recv(own->qp, &request, &bad);

    return error ? transport_say(-error, "ibv_post_recv: %s", strerror(error)) : 0;
}

static int make_qp(struct link_queue *queue, struct rdma *rdma)
{
    struct rdma_queue *own = queue->own;
    struct rdma_link *link = queue->link->own;
    struct ibv_qp_init_attr attributes = {
        .send_cq = rdma->cq,
        .recv_cq = rdma->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = own->room,
                .max_recv_wr = own->receives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = RDMA_INLINE},
    };
    struct ibv_qp_init_attr again = attributes;

    if (rdma_create_qp(own->id, link->pd, &attributes)) {
        again.cap.max_inline_data = 0;
        attributes = again;
        if (rdma_create_qp(own->id, link->pd, &attributes))
            return transport_say(-errno, "a queue pair of %u requests: %s", own->room, strerror(errno));
    }
    own->qp = own->id->qp;
    own->inline_max = attributes.cap.max_inline_data;
    return 0;
}

int rdma_queue_make(struct link_queue *queue, struct rdma_cm_id *id)
{
    struct rdma *rdma = queue->link->transport->own;
    struct rdma_queue *own = queue->own;
    unsigned depth = queue->link->options.depth;
    int error = rdma_link_make(queue->link);

    if (error)
        return error;
    own->id = id;
    /* The side that accepts posts no transfers, but a queue pair without a send queue is not had everywhere.
     */
    own->room = (queue->link->connected_here ? depth : 1) + (queue->number ? 0 : RDMA_BUFFERS);
    own->receives = queue->number ? 1 : RDMA_BUFFERS; /* the one: its end tells that of the queue pair */
    if (rdma->cq_room < own->room + own->receives) {
        own->room = own->receives = 0;
        return transport_say(-ENOBUFS, "the completion queue has no room for another %u requests", depth);
    }
    rdma->cq_room -= own->room + own->receives;
    own->ring = power_of_two(own->room);
    own->is_transfer = calloc(own->ring, sizeof *own->is_transfer);
    own->requests = calloc(own->room, sizeof *own->requests);
    own->pieces = calloc(own->room, sizeof *own->pieces);
    if (!own->is_transfer || !own->requests || !own->pieces)
        return transport_say(-ENOMEM, "no memory for a queue");
    error = make_qp(queue, rdma);
    for (uint32_t i = 0; i < own->receives && !error; i++)
        error = post_receive(queue, i);
    return error;
}

void rdma_queue_free(struct link_queue *queue)
{
    struct rdma *rdma = queue->link->transport->own;
    struct rdma_queue *own = queue->own;

    if (!own)
        return;
    queue_leave(queue->link->transport, queue);
    if (own->qp) {
        rdma_disconnect(own->id); /* tells the peer; it fails when there is no connection */
        rdma_destroy_qp(own->id); /* from here on nothing reaches memory */
    }
    if (own->id)
        rdma_destroy_id(own->id);
    rdma->cq_room += own->room + own->receives;
    free(own->is_transfer);
    free(own->requests);
    free(own->pieces);
    free(own);
    queue->own = NULL;
}

static void rdma_cut(struct gaia_link *link)
{
    struct rdma_link *own = link->own;

    for (unsigned i = 0; i < GAIA_LINK_QUEUES_MAX; i++)
        rdma_queue_free(&link->queues[i]);
    if (!own)
        return;
    if (!link->connected_here)
        for (uint32_t i = 0; i < link->region_count; i++)
            rdma_conceal(link, &link->regions[i]);
    if (own->buffers_mr)
        ibv_dereg_mr(own->buffers_mr);
    free(own->buffers);
    if (!link->connected_here && own->pd)
        ibv_dealloc_pd(own->pd);
    free(own);
    link->own = NULL;
}

/* ---- work requests ---- */

static uint64_t next_request(struct link_queue *queue, bool is_transfer)
{
    struct rdma_queue *own = queue->own;
    uint32_t number = own->posted++ & RDMA_NUMBER;

    own->is_transfer[number % own->ring] = is_transfer;
    return (uint64_t)queue->id << 32 | number;
}

static void fill_request(struct link_queue *queue, const struct gaia_transfer *t, struct ibv_send_wr *request,
                         struct ibv_sge *piece)
{
    const struct gaia_link *link = queue->link;
    const struct link_region *region = t->region < link->region_count ? &link->regions[t->region] : NULL;
    const struct ibv_mr *mr = t->memory->own;

    *piece = (struct ibv_sge){
        .addr = (uintptr_t)t->memory->span.address + t->memory_offset, .length = t->length, .lkey = mr->lkey};
    *request = (struct ibv_send_wr){
        .wr_id = next_request(queue, true),
        .sg_list = piece,
        .num_sge = 1,
        .opcode = t->write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
        .wr.rdma = {.remote_addr = t->offset + (region ? region->address : 0),
                    .rkey = (uint32_t)(region ? region->key : 0)},
    };
    if (transport_test.unchecked) {
        request->wr.rdma.remote_addr = t->offset + transport_test.address;
        request->wr.rdma.rkey = (uint32_t)transport_test.key;
    }
}

static int rdma_post(struct link_queue *queue, struct gaia_transfer *const *transfers, unsigned count)
{
    struct rdma_queue *own = queue->own;
    unsigned room = own->room - (own->posted - own->done), posted = count;
    struct ibv_send_wr *bad = NULL;

    if (!room)
        return -EAGAIN;
    if (count > room)
        posted = count = room;
    for (unsigned i = 0; i < count; i++) {
        fill_request(queue, transfers[i], &own->requests[i], &own->pieces[i]);
        own->requests[i].next = i + 1 < count ? &own->requests[i + 1] : NULL;
        if ((i + 1) % SIGNAL_EVERY == 0 || i + 1 == count)
            own->requests[i].send_flags = IBV_SEND_SIGNALED;
    }
    int error = ibv_post_send(own->qp, own->requests, &bad);
    if (error && bad)
        posted = (unsigned)(bad - own->requests);
    for (unsigned i = 0; i < posted; i++)
        queue_push(queue, transfers[i]);
    own->posted -= count - posted;
    if (error) { /* what was posted may have asked for no completion */
        link_end(queue->link, -EIO, "%s: ibv_post_send: %s", queue->link->peer, strerror(error));
        return posted ? (int)posted : transport_say(-EIO, "%s", queue->link->why);
    }
    return (int)posted;
}

static int rdma_send(struct gaia_link *link, const void *bytes, size_t length)
{
    struct link_queue *queue = &link->queues[0];
    struct rdma_queue *own = queue->own;
    struct rdma_link *ours = link->own;
    unsigned char *buffer;
    struct ibv_sge piece = {.addr = (uintptr_t)bytes, .length = (uint32_t)length};
    struct ibv_send_wr request = {.sg_list = &piece,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND,
                                  .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    if (ours->sent - ours->sent_done == RDMA_BUFFERS || own->posted - own->done == own->room)
        return -EAGAIN;
    if (length <= own->inline_max) {
        request.send_flags |= IBV_SEND_INLINE;
    } else {
        buffer = ours->buffers + (size_t)(RDMA_BUFFERS + ours->next_buffer) * GAIA_WIRE_MAX;
        memcpy(buffer, bytes, length);
        piece.addr = (uintptr_t)buffer;
        piece.lkey = ours->buffers_lkey;
    }
    request.wr_id = next_request(queue, false);
    int error = ibv_post_send(own->qp, &request, &bad);
    if (error) {
        own->posted--;
        return -error;
    }
    ours->sent++;
    ours->next_buffer = (ours->next_buffer + 1) % RDMA_BUFFERS;
    return 0;
}

/* ---- completions ---- */

static void take_receive(struct link_queue *queue, const struct ibv_wc *wc)
{
    struct gaia_link *link = queue->link;
    struct rdma_link *own = link->own;
    uint32_t index = (uint32_t)wc->wr_id & RDMA_NUMBER, id = queue->id;

    if (wc->status != IBV_WC_SUCCESS) {
        link_end(link, -EIO, "%s: queue pair in error: %s", link->peer, ibv_wc_status_str(wc->status));
        return;
    }
    if (queue->number || index >= RDMA_BUFFERS || wc->byte_len > GAIA_WIRE_MAX) {
        link_end(link, -EPROTO, "%s: a message on queue %u", link->peer, queue->number);
        return;
    }
    /* What has come may be told before that the connection stands. */
    for (unsigned i = 0; link->state == LINK_CONNECTING && i < link->options.queues; i++)
        if (link->queues[i].own)
            link_queue_up(&link->queues[i]);
    if (queue_find(link->transport, id) != queue) /* it has ended over that, and its buffers are gone */
        return;
    link_received(link, own->buffers + (size_t)index * GAIA_WIRE_MAX, wc->byte_len);
    if (queue_find(link->transport, id) != queue)
        return;
    int error = post_receive(queue, index);
    if (error)
        link_end(link, -EIO, "%s: %s", link->peer, gaia_transport_why());
}

/* All work requests up to this one have ended. */
static void take_sent(struct link_queue *queue, const struct ibv_wc *wc)
{
    struct rdma_queue *own = queue->own;
    struct rdma_link *link = queue->link->own;
    uint32_t number = (uint32_t)wc->wr_id & RDMA_NUMBER;
    uint32_t ended = ((number - own->done) & RDMA_NUMBER) + 1;
    unsigned transfers = 0;
    bool last_is_transfer = false;

    if (ended > own->posted - own->done)
        return;
    for (; ended; ended--) {
        last_is_transfer = own->is_transfer[(own->done & RDMA_NUMBER) % own->ring];
        own->done++;
        if (last_is_transfer)
            transfers++;
        else
            link->sent_done++;
    }
    if (wc->status == IBV_WC_SUCCESS) {
        queue_completed(queue, transfers, 0);
        return;
    }
    /* Of those before it, which asked for no completion, it says nothing that could be relied on: one of a
     * queue pair that was flushed stands for requests whose bytes have not moved. All of them fail. */
    link_end(queue->link, -EIO, "%s: a %s failed: %s", queue->link->peer,
             last_is_transfer ? "transfer" : "message", ibv_wc_status_str(wc->status));
}

void rdma_poll_cq(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;
    struct ibv_wc entries[POLL_BATCH];
    int count = rdma->cq ? POLL_BATCH : 0;

    for (int batch = 0; batch < POLL_BATCHES && count == POLL_BATCH; batch++) {
        count = ibv_poll_cq(rdma->cq, POLL_BATCH, entries);
        for (int i = 0; i < count; i++) {
            struct link_queue *queue = queue_find(transport, (uint32_t)(entries[i].wr_id >> 32));

            if (!queue) /* of a link that has ended */
                continue;
            if (entries[i].wr_id & RDMA_RECEIVE)
                take_receive(queue, &entries[i]);
            else
                take_sent(queue, &entries[i]);
        }
    }
    if (count < 0) /* what it has taken from the queue is lost */
        rdma_die(transport);
    if (count == POLL_BATCH) /* nothing tells of what is there already: nobody is to sleep */
        transport->woken = true;
}

/* Not to be heard of again: epoll would tell of the dead device's descriptor without end. */
void rdma_die(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;
    struct gaia_link *link;

    if (rdma->dead)
        return;
    rdma->dead = true;
    epoll_ctl(transport->epoll, EPOLL_CTL_DEL, rdma->completions->fd, NULL);
    /* They stay in the list. Of a peer that is being connected to this says nothing. */
    LIST_FOREACH (link, &transport->links, entry)
        link_end(link, link->state == LINK_CONNECTING ? -ENODEV : -EIO, "the device %s has gone",
                 transport->limits.device);
}

static void rdma_heard(struct gaia_transport *transport, uint64_t id)
{
    struct rdma *rdma = transport->own;
    struct ibv_cq *cq;
    void *context;

    errno = 0; /* it says none when it has read nothing */
    if (id == QUEUE_LISTEN)
        rdma_take_cm_events(transport);
    else if (!ibv_get_cq_event(rdma->completions, &cq, &context))
        ibv_ack_cq_events(cq, 1);
    else if (errno != EAGAIN && errno != EINTR)
        rdma_die(transport);
}

/* Of a dead one nothing comes, and it is waited for like that of others. */
static int rdma_arm(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;

    if (!rdma->dead && ibv_req_notify_cq(rdma->cq, 0))
        rdma_die(transport);
    return 0;
}

/* Only queue 0 has messages. */
static void rdma_flush(struct gaia_link *link)
{
    uint64_t until = clock_now_ns() + BYE_WAIT_MS * UINT64_C(1000000);
    const struct timespec nap = {.tv_nsec = 100000};
    struct rdma_link *own;

    while ((own = link->own) && own->sent != own->sent_done && clock_now_ns() < until) {
        rdma_poll_cq(link->transport);
        nanosleep(&nap, NULL);
    }
}

static int rdma_break(struct link_queue *queue)
{
    struct rdma_queue *own = queue->own;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};

    return own ? -ibv_modify_qp(own->qp, &attributes, IBV_QP_STATE) : -EIO;
}

/* ---- begin and end ---- */

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
    rdma->cq_room = least(device.max_cqe, CQ_ENTRIES);
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
    if (fcntl(rdma->completions->fd, F_SETFL, O_NONBLOCK))
        return transport_say(-errno, "fcntl: %s", strerror(errno));
    error = transport_watch(transport, rdma->completions->fd, QUEUE_EVENTS);
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

static void rdma_close(struct gaia_transport *transport)
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

static int rdma_open(struct gaia_transport *transport)
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
static void rdma_tick(struct gaia_transport *transport, uint64_t now_ns)
{
    struct rdma *rdma = transport->own;

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

const struct carrier carrier_rdma = {
    .open = rdma_open,
    .close = rdma_close,
    .connect = rdma_begin,
    .send = rdma_send,
    .flush = rdma_flush,
    .post = rdma_post,
    .link_memory = rdma_link_memory,
    .remember = rdma_remember,
    .forget = rdma_forget,
    .expose = rdma_expose,
    .conceal = rdma_conceal,
    .cut = rdma_cut,
    .heard = rdma_heard,
    .glance = rdma_poll_cq,
    .tick = rdma_tick,
    .arm = rdma_arm,
    .break_queue = rdma_break,
};
