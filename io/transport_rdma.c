/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA carrier: queues, work requests and their completions.
 *
 * One completion queue for all queue pairs. Of a chain of transfers every SIGNAL_EVERYth asks for a
 * completion, and the last of reads, or of writes, in a row. Reads complete in order, so one that went well
 * stands for those before it, and so do writes and messages. But none of these stands for a read: with iWARP
 * they end when TCP has their bytes, and siw says so at once, though a read before them still waits for its
 * own. A transfer that fails always gets a completion, and the queue pair is in error then: the link ends,
 * and what no completion has vouched for fails with it. */
#include "io/transport_rdma.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define SIGNAL_EVERY 4u
#define POLL_BATCH 32
#define POLL_BATCHES 16

/* Of what a device's library returns: an errno, which is negative in siw's. */
static int errno_of(int result)
{
    return result < 0 ? -result : result;
}

/* On a queue without messages none is to come: there is a byte for it, as siw takes no request without room.
 */
static int post_receive(struct link_queue *queue, uint32_t index)
{
    struct rdma_queue *own = queue->own;
    struct rdma_link *link = queue->link->own;
    uint32_t place = queue->number ? 2 * RDMA_BUFFERS : index;
    struct ibv_sge piece = {.addr = (uintptr_t)link->buffers + (size_t)place * GAIA_WIRE_MAX,
                            .length = queue->number ? 1 : GAIA_WIRE_MAX,
                            .lkey = link->buffers_lkey};
    struct ibv_recv_wr request = {.wr_id = (uint64_t)queue->id << 32 | RDMA_RECEIVE | index,
                                  .sg_list = &piece,
                                  .num_sge = 1},
                       *bad;
    int error = errno_of(ibv_post_recv(own->qp, &request, &bad));

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

/* The side that accepts posts no transfers, but a queue pair without a send queue is not had everywhere. */
void rdma_queue_room(const struct gaia_link *link, unsigned number, unsigned *sends_out,
                     unsigned *receives_out)
{
    *sends_out = (link->connected_here ? link->options.depth : 1) + (number ? 0 : RDMA_BUFFERS);
    *receives_out = number ? 1 : RDMA_BUFFERS; /* the one: its end tells that of the queue pair */
}

int rdma_queue_make(struct link_queue *queue, struct rdma_cm_id *id)
{
    struct rdma *rdma = queue->link->transport->own;
    struct rdma_queue *own = queue->own;
    int error = rdma_link_make(queue->link);

    if (error)
        return error;
    own->id = id;
    rdma_queue_room(queue->link, queue->number, &own->room, &own->receives);
    if (rdma->cq_room < own->room + own->receives) {
        own->room = own->receives = 0;
        return transport_say(-ENOBUFS, "the completion queue has no room for another %u requests",
                             queue->link->options.depth);
    }
    rdma->cq_room -= own->room + own->receives;
    own->ring = rdma_ring(own->room);
    own->sent = calloc(own->ring, sizeof *own->sent);
    own->requests = calloc(own->room, sizeof *own->requests);
    own->pieces = calloc(own->room, sizeof *own->pieces);
    if (!own->sent || !own->requests || !own->pieces)
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
    if (!own->asking || !rdma_part(rdma, own->id, own->room + own->receives)) {
        if (own->id)
            rdma_end_connection(own->id);
        rdma->cq_room += own->room + own->receives;
    }
    free(own->sent);
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

static uint64_t next_request(struct link_queue *queue, enum rdma_kind kind)
{
    struct rdma_queue *own = queue->own;
    uint32_t number = own->posted++ & RDMA_NUMBER;

    own->sent[number % own->ring] = (struct rdma_sent){.kind = kind};
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
        .wr_id = next_request(queue, t->write ? RDMA_WRITE : RDMA_READ),
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
        if ((i + 1) % SIGNAL_EVERY == 0 || i + 1 == count || transfers[i + 1]->write != transfers[i]->write)
            own->requests[i].send_flags = IBV_SEND_SIGNALED;
    }
    int error = errno_of(ibv_post_send(own->qp, own->requests, &bad));
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
    request.wr_id = next_request(queue, RDMA_MESSAGE);
    int error = errno_of(ibv_post_send(own->qp, &request, &bad));
    if (error) {
        own->posted--;
        return -error;
    }
    ours->sent++;
    ours->next_buffer = (ours->next_buffer + 1) % RDMA_BUFFERS;
    return 0;
}

/* ---- completions ---- */

/* While a connection is being made, an event says why it is not, or the time limit ends it: iWARP's queue
 * pairs are flushed before it is told that the peer has refused. */
void rdma_end_broken(struct gaia_link *link)
{
    for (unsigned i = 0; link->state == LINK_OPEN && i < link->options.queues; i++) {
        const struct rdma_queue *own = link->queues[i].own;

        if (own && own->broken)
            link_end(link, -EIO, "%s: queue pair in error: %s", link->peer, ibv_wc_status_str(own->broken));
    }
}

static void take_receive(struct link_queue *queue, const struct ibv_wc *wc)
{
    struct gaia_link *link = queue->link;
    struct rdma_link *own = link->own;
    uint32_t index = (uint32_t)wc->wr_id & RDMA_NUMBER, id = queue->id;

    if (wc->status != IBV_WC_SUCCESS) {
        ((struct rdma_queue *)queue->own)->broken = wc->status;
        rdma_end_broken(link);
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
    rdma_end_broken(link);
    if (queue_find(link->transport, id) != queue) /* it has ended over that, and its buffers are gone */
        return;
    link_received(link, own->buffers + (size_t)index * GAIA_WIRE_MAX, wc->byte_len);
    if (queue_find(link->transport, id) != queue)
        return;
    int error = post_receive(queue, index);
    if (error)
        link_end(link, -EIO, "%s: %s", link->peer, gaia_transport_why());
}

static struct rdma_sent *sent_of(const struct rdma_queue *own, uint32_t number)
{
    return &own->sent[(number & RDMA_NUMBER) % own->ring];
}

/* The last of `count` work requests has ended, and those of its kind before it. */
static void mark_ended(struct link_queue *queue, uint32_t count)
{
    struct rdma_queue *own = queue->own;
    struct rdma_link *link = queue->link->own;
    bool is_read = sent_of(own, own->done + count - 1)->kind == RDMA_READ;

    for (uint32_t i = 0; i < count; i++) {
        struct rdma_sent *sent = sent_of(own, own->done + i);
        if (sent->ended || (sent->kind == RDMA_READ) != is_read)
            continue;
        sent->ended = true;
        if (sent->kind == RDMA_MESSAGE)
            link->sent_done++;
    }
}

/* A work request has ended. Its place is free when those before it have ended, too, and transfers are told of
 * in that order. */
static void take_sent(struct link_queue *queue, const struct ibv_wc *wc)
{
    struct rdma_queue *own = queue->own;
    uint32_t count = (((uint32_t)wc->wr_id - own->done) & RDMA_NUMBER) + 1;
    unsigned transfers = 0;

    if (count > own->posted - own->done)
        return;
    /* Of those before it, which asked for no completion, it says nothing that could be relied on: one of a
     * queue pair that was flushed stands for requests whose bytes have not moved. All of them fail. */
    if (wc->status != IBV_WC_SUCCESS) {
        link_end(queue->link, -EIO, "%s: a %s failed: %s", queue->link->peer,
                 sent_of(own, (uint32_t)wc->wr_id)->kind == RDMA_MESSAGE ? "message" : "transfer",
                 ibv_wc_status_str(wc->status));
        return;
    }
    mark_ended(queue, count);
    while (own->done != own->posted && sent_of(own, own->done)->ended)
        transfers += sent_of(own, own->done++)->kind != RDMA_MESSAGE;
    queue_completed(queue, transfers, 0);
}

static void take_completion(struct gaia_transport *transport, const struct ibv_wc *wc)
{
    struct link_queue *queue = queue_find(transport, (uint32_t)(wc->wr_id >> 32));

    if (!queue) /* of a link that has ended */
        return;
    if (wc->wr_id & RDMA_RECEIVE)
        take_receive(queue, wc);
    else
        take_sent(queue, wc);
}

/* Whether there may be more. */
static bool poll_some(struct gaia_transport *transport)
{
    struct rdma *rdma = transport->own;
    struct ibv_wc entries[POLL_BATCH];
    int count = rdma->cq ? POLL_BATCH : 0;

    for (int batch = 0; batch < POLL_BATCHES && count == POLL_BATCH; batch++) {
        count = ibv_poll_cq(rdma->cq, POLL_BATCH, entries);
        for (int i = 0; i < count; i++)
            take_completion(transport, &entries[i]);
    }
    if (count < 0) /* what it has taken from the queue is lost */
        rdma_die(transport);
    return count == POLL_BATCH;
}

void rdma_poll_cq(struct gaia_transport *transport)
{
    if (rdma_is_in_trouble(transport->own))
        rdma_die(transport);
    if (poll_some(transport)) /* nothing tells of what is there already: nobody is to sleep */
        transport->woken = true;
}

void rdma_drain_cq(struct gaia_transport *transport)
{
    for (unsigned left = RDMA_CQ_ENTRIES; left && poll_some(transport);
         left -= left < POLL_BATCH * POLL_BATCHES ? left : POLL_BATCH * POLL_BATCHES)
        ;
}

static void rdma_heard(struct gaia_transport *transport, uint64_t id)
{
    struct rdma *rdma = transport->own;
    struct ibv_cq *cq;
    void *context;

    errno = 0; /* it says none when it has read nothing */
    if (id == QUEUE_LISTEN)
        rdma_take_cm_events(transport);
    else if (id == QUEUE_TROUBLE)
        rdma_take_trouble(transport);
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
