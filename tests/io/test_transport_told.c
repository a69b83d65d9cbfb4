/* SPDX-License-Identifier: Apache-2.0 */
/* What a device and its kernel tell: completions, events of connections, and what goes wrong besides. The
 * device is none, and says what a test has put there. */
#include "io/call_internal.h"
#include "io/members.h"
#include "io/transport_rdma.h"
#include "tests/io/transport_fixture.h"

#include <dlfcn.h>

/* ---- completions of a queue pair that is in error, from a device that is none ---- */

static struct ibv_wc told[4];
static int told_count;

/* Entries that are there besides, of queue pairs that have gone; less than 0: it can't be read. */
static int stale;

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *entries)
{
    int count = told_count < most ? told_count : most;

    (void)cq;
    if (stale < 0)
        return -1;
    if (stale) {
        count = stale < most ? stale : most;
        memset(entries, 0, (size_t)count * sizeof *entries);
        stale -= count;
        return count;
    }
    memcpy(entries, told, (size_t)count * sizeof *told);
    told_count = 0;
    return count;
}

static void cut(struct gaia_link *link)
{
    for (unsigned i = 0; i < GAIA_LINK_QUEUES_MAX; i++)
        if (link->queues[i].own)
            queue_leave(link->transport, &link->queues[i]);
}

/* Three reads under way, of which only the last asked for a completion. */
struct flushed {
    struct gaia_transport transport;
    struct rdma rdma;
    struct rdma_link link_own;
    struct rdma_queue own;
    struct rdma_sent sent[4];
    struct gaia_memory memory;
    struct gaia_transfer reads[3];
    struct ibv_context context;
    struct ibv_cq cq;
    struct gaia_link *link;
};

static void flushed_open(struct flushed *f)
{
    static const struct carrier carrier_of_test = {.cut = cut};

    *f = (struct flushed){.transport = {.carrier = &carrier_of_test, .config = {.timeout_ms = TIMEOUT_MS}}};
    f->transport.own = &f->rdma;
    LIST_INIT(&f->transport.links);
    TAILQ_INIT(&f->transport.ready);
    f->context.ops.poll_cq = poll_cq;
    f->cq.context = &f->context;
    f->rdma.cq = &f->cq;
    f->link = link_new(&f->transport, true);
    assert_non_null(f->link);
    f->link->state = LINK_OPEN;
    f->link->own = &f->link_own;
    must(queue_enter(&f->transport, &f->link->queues[0]));
    f->link->queues[0].own = &f->own;
    f->own = (struct rdma_queue){.posted = 3, .ring = 4, .sent = f->sent};
    for (unsigned i = 0; i < 3; i++) {
        f->sent[i].kind = RDMA_READ;
        f->reads[i] = (struct gaia_transfer){.memory = &f->memory, .region = UINT32_MAX, .length = 4096};
        queue_push(&f->link->queues[0], &f->reads[i]);
    }
}

static void flushed_close(struct flushed *f)
{
    f->link->done = NULL;
    link_free(f->link);
}

/* Of a kernel without connections, as this machine's: that is no sign that the peer does not run. */
static void test_no_connections_here(void **state)
{
    static struct flushed f;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA)
        skip(); /* there are some */
    flushed_open(&f);
    must(rdma_parse("10.0.0.1:0", &f.rdma.address));
    assert_true(call_is_short(rdma_begin(f.link, 1, "10.0.0.2:1")));
    print_message("%s\n", gaia_transport_why());
    rdma_queue_free(&f.link->queues[1]);
    f.link->state = LINK_ENDED;
    flushed_close(&f);
}

/* What a kernel says that is none: an event for rdma_get_cm_event(), once, and what rdma_connect() fails
 * with. 0: the one that is here is asked. */
static struct rdma_cm_event happened;
static int connecting_fails;

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event_out)
{
    int (*real)(struct rdma_event_channel *, struct rdma_cm_event **) = dlsym(RTLD_NEXT, "rdma_get_cm_event");

    if (channel)
        return real(channel, event_out);
    *event_out = &happened;
    return happened.id ? 0 : -1;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    int (*real)(struct rdma_cm_event *) = dlsym(RTLD_NEXT, "rdma_ack_cm_event");

    if (event != &happened)
        return real(event);
    happened.id = NULL;
    return 0;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    int (*real)(struct rdma_cm_id *, struct rdma_conn_param *) = dlsym(RTLD_NEXT, "rdma_connect");

    if (!connecting_fails)
        return real(id, param);
    errno = connecting_fails;
    return -1;
}

/* An id of iWARP's, of which a kernel lets nobody go while this is so. */
static struct rdma_cm_id held_id;
static _Atomic bool held;

int rdma_destroy_id(struct rdma_cm_id *id)
{
    int (*real)(struct rdma_cm_id *) = dlsym(RTLD_NEXT, "rdma_destroy_id");

    if (id != &held_id)
        return real(id);
    while (held)
        nap_ms(1);
    return 0;
}

/* Who gives a connection up that was asked for does not wait for that; its room is free once it is gone. */
static void test_a_connection_that_is_not_let_go(void **state)
{
    static struct flushed f;
    struct rdma_queue *own = calloc(1, sizeof *own);

    (void)state;
    flushed_open(&f);
    assert_non_null(own);
    *own = (struct rdma_queue){.id = &held_id, .asking = true, .room = 5, .receives = 2};
    f.link->queues[0].own = own;
    held = true;
    rdma_queue_free(&f.link->queues[0]);
    assert_null(f.link->queues[0].own);
    rdma_look_at_parting(&f.rdma, false);
    assert_int_equal(f.rdma.cq_room, 0);
    held = false;
    rdma_look_at_parting(&f.rdma, true);
    assert_int_equal(f.rdma.cq_room, 7);
    assert_true(LIST_EMPTY(&f.rdma.parting));
    f.link->state = LINK_ENDED;
    flushed_close(&f);
}

/* What a link ends with whose connection fails, at once or by an event. */
static int connection_ends_with(enum ibv_transport_type type, enum rdma_cm_event_type event, int error)
{
    static struct flushed f;
    struct ibv_device device = {.transport_type = type};

    flushed_open(&f);
    f.link->state = LINK_CONNECTING;
    f.link->options = (struct gaia_link_options){1, 4};
    f.context.device = &device;
    f.rdma.verbs = &f.context;
    struct rdma_cm_id id = {.verbs = &f.context, .context = (void *)(uintptr_t)f.link->queues[0].id};
    f.own.id = &id;
    happened = (struct rdma_cm_event){.id = &id, .event = event, .status = -error};
    connecting_fails = error;
    rdma_take_cm_events(&f.transport);
    connecting_fails = 0;
    assert_int_equal(f.link->state, LINK_ENDED);
    int ended = f.link->error;
    flushed_close(&f);
    return ended;
}

/* iWARP's are TCP's, and some drivers say in this way that the peer does not run, or its machine: it must not
 * be taken for one that lives, without which nobody can be mounted. Of other errors, and with InfiniBand and
 * RoCE, it is this end's device that refuses. */
static void test_connections_that_fail(void **state)
{
    static const struct {
        int error, iwarp;
    } errors[] = {{ECONNREFUSED, -ECONNREFUSED},
                  {ECONNRESET, -ECONNREFUSED},
                  {EHOSTUNREACH, -EHOSTUNREACH},
                  {ENETUNREACH, -ENETUNREACH},
                  {ETIMEDOUT, -ETIMEDOUT},
                  {EBUSY, -ETIMEDOUT},
                  {ENOMEM, -ENOMEM},
                  {EINVAL, -EAGAIN},
                  {EIO, -EAGAIN},
                  {EPERM, -EAGAIN}};
    static const enum rdma_cm_event_type events[] = {RDMA_CM_EVENT_ROUTE_RESOLVED,
                                                     RDMA_CM_EVENT_CONNECT_ERROR};

    (void)state;
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        for (unsigned e = 0; e < 2; e++) {
            int error = errors[i].error;
            assert_int_equal(connection_ends_with(IBV_TRANSPORT_IWARP, events[e], error), errors[i].iwarp);
            assert_true(call_is_short(connection_ends_with(IBV_TRANSPORT_IB, events[e], error)));
        }
}

static void tell(const struct flushed *f, uint32_t number, enum ibv_wc_status status)
{
    told[told_count++] =
        (struct ibv_wc){.wr_id = (uint64_t)f->link->queues[0].id << 32 | number, .status = status};
}

/* The end of one that was flushed says nothing of those before it, which asked for no completion: their bytes
 * may not have come. */
static void test_flushed_reads_have_not_come(void **state)
{
    static struct flushed f;

    (void)state;
    flushed_open(&f);
    tell(&f, 2, IBV_WC_WR_FLUSH_ERR);
    rdma_poll_cq(&f.transport);
    assert_int_equal(f.link->state, LINK_ENDED);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(f.reads[i].error, -EIO);
    flushed_close(&f);
}

/* What a completion has vouched for before stays well. */
static void test_completed_reads_have_come(void **state)
{
    static struct flushed f;

    (void)state;
    flushed_open(&f);
    tell(&f, 1, IBV_WC_SUCCESS);
    tell(&f, 2, IBV_WC_REM_ACCESS_ERR);
    rdma_poll_cq(&f.transport);
    assert_int_equal(f.link->state, LINK_ENDED);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(f.reads[i].error, i < 2 ? 0 : -EIO);
    flushed_close(&f);
}

static void complete(struct flushed *f, uint32_t number)
{
    tell(f, number, IBV_WC_SUCCESS);
    rdma_poll_cq(&f->transport);
    assert_int_equal(f->link->state, LINK_OPEN);
}

/* Over iWARP a keepalive between reads has ended before their bytes have come; also where the numbers of
 * requests begin anew. Its buffer is free for the next message. */
static void test_a_message_ends_before_a_read(void **state)
{
    static const uint32_t firsts[] = {0, RDMA_NUMBER - 1, UINT32_MAX - 1};
    static struct flushed f;

    (void)state;
    for (unsigned i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        uint32_t first = firsts[i];

        flushed_open(&f);
        f.own.done = first;
        f.own.posted = first + 4; /* read, message, read, read: only the first read and the last ask for it */
        f.link_own.sent = 1;
        for (unsigned n = 0; n < 4; n++)
            f.sent[(first + n) % 4] = (struct rdma_sent){.kind = n == 1 ? RDMA_MESSAGE : RDMA_READ};
        complete(&f, (first + 1) & RDMA_NUMBER);
        assert_int_equal(f.link_own.sent_done, 1);
        assert_null(f.link->done);
        assert_int_equal(f.own.done, first);
        complete(&f, first & RDMA_NUMBER);
        assert_ptr_equal(f.link->done, &f.reads[0]);
        assert_null(f.reads[0].next);
        assert_int_equal(f.own.done, first + 2);
        complete(&f, (first + 3) & RDMA_NUMBER);
        assert_ptr_equal(f.reads[1].next, &f.reads[2]);
        assert_int_equal(f.own.done, f.own.posted);
        assert_int_equal(f.link_own.sent_done, 1);
        f.link->state = LINK_ENDED;
        flushed_close(&f);
    }
}

static unsigned asked_for; /* of the requests of the last chain, bit by bit, which ask for a completion */

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    (void)qp;
    (void)bad;
    asked_for = 0;
    for (unsigned i = 0; request; request = request->next, i++)
        asked_for |= (request->send_flags & IBV_SEND_SIGNALED ? 1u : 0) << i;
    return 0;
}

/* As the end of a write says nothing of a read, nor that of a read of a write, the last of each is to say so
 * itself: what nothing vouches for would be under way for ever. */
static void test_a_chain_of_reads_and_writes(void **state)
{
    static const bool kinds[] = {true, false, false, true, true, false, true}; /* writes */
    enum { COUNT = sizeof kinds / sizeof *kinds };
    static struct flushed f;
    struct rdma_sent sent[8] = {{0}};
    struct ibv_send_wr requests[8];
    struct ibv_sge pieces[8];
    struct ibv_mr mr = {0};
    struct gaia_transfer transfers[COUNT], *list[COUNT];

    (void)state;
    flushed_open(&f);
    struct ibv_qp qp = {.context = &f.context};
    f.context.ops.post_send = post_send;
    f.memory.own = &mr;
    for (unsigned i = 0; i < 3; i++)
        queue_completed(&f.link->queues[0], 1, 0);
    f.link->done = NULL;
    f.link->done_last = &f.link->done;
    f.own = (struct rdma_queue){
        .qp = &qp, .room = 8, .ring = 8, .sent = sent, .requests = requests, .pieces = pieces};
    for (unsigned i = 0; i < COUNT; i++) {
        transfers[i] = (struct gaia_transfer){
            .memory = &f.memory, .region = UINT32_MAX, .length = 4096, .write = kinds[i]};
        list[i] = &transfers[i];
    }
    assert_int_equal(carrier_rdma.post(&f.link->queues[0], list, COUNT), COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        if (asked_for & 1u << i)
            complete(&f, i);
    assert_int_equal(f.own.done, COUNT);
    assert_int_equal(f.link->queues[0].busy, 0);
    f.link->state = LINK_ENDED;
    flushed_close(&f);
}

/* One that is being connected, with its second queue, too. */
static void connecting_open(struct flushed *f, struct rdma_queue *second, struct rdma_cm_id ids[2],
                            bool connected_here)
{
    flushed_open(f);
    f->own.posted = 0;
    f->link->queues[0].first = NULL;
    f->link->queues[0].last = &f->link->queues[0].first;
    f->link->queues[0].busy = 0;
    f->memory.busy = 0;
    f->link->state = LINK_CONNECTING;
    f->link->connected_here = connected_here;
    f->link->options = (struct gaia_link_options){second ? 2 : 1, 4};
    f->rdma.verbs = &f->context;
    if (second) {
        *second = (struct rdma_queue){.ring = 4, .sent = f->sent};
        must(queue_enter(&f->transport, &f->link->queues[1]));
        f->link->queues[1].own = second;
    }
    for (unsigned i = 0; i < 2; i++)
        ids[i] =
            (struct rdma_cm_id){.verbs = &f->context, .context = (void *)(uintptr_t)f->link->queues[i].id};
}

static void flush_receive(struct flushed *f)
{
    tell(f, RDMA_RECEIVE, IBV_WC_WR_FLUSH_ERR);
    rdma_poll_cq(&f->transport);
}

static void hear_event(struct flushed *f, struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
    happened.id = id;
    happened.event = type;
    rdma_take_cm_events(&f->transport);
    happened = (struct rdma_cm_event){0};
}

/* iWARP's queue pair is flushed before it is told that the peer has refused, and why. */
static void test_a_flush_before_the_refusal(void **state)
{
    static struct flushed f;
    struct rdma_cm_id ids[2];
    struct gaia_wire_hello refusal = link_refusal(-EBUSY);

    (void)state;
    connecting_open(&f, NULL, ids, true);
    flush_receive(&f);
    assert_int_equal(f.link->state, LINK_CONNECTING);
    happened.status = -ECONNRESET;
    happened.param.conn.private_data = &refusal;
    happened.param.conn.private_data_len = sizeof refusal;
    hear_event(&f, &ids[0], RDMA_CM_EVENT_REJECTED);
    assert_int_equal(f.link->state, LINK_ENDED);
    assert_int_equal(f.link->error, -EBUSY);
    flushed_close(&f);
}

/* A link does not stay whose one queue has failed before the other one stood. */
static void test_a_flush_while_the_second_queue_connects(void **state)
{
    static struct flushed f;
    struct rdma_queue second;
    struct rdma_cm_id ids[2];

    (void)state;
    connecting_open(&f, &second, ids, false);
    hear_event(&f, &ids[0], RDMA_CM_EVENT_ESTABLISHED);
    flush_receive(&f);
    assert_int_equal(f.link->state, LINK_CONNECTING);
    hear_event(&f, &ids[1], RDMA_CM_EVENT_ESTABLISHED);
    assert_int_equal(f.link->state, LINK_ENDED);
    assert_int_equal(f.link->error, -EIO);
    flushed_close(&f);
}

/* Nor where a message that has come says that both stand. */
static void test_a_flush_before_the_first_message(void **state)
{
    static struct flushed f;
    struct rdma_queue second;
    struct rdma_cm_id ids[2];

    (void)state;
    connecting_open(&f, &second, ids, false);
    told[told_count++] = (struct ibv_wc){.wr_id = (uint64_t)f.link->queues[1].id << 32 | RDMA_RECEIVE,
                                         .status = IBV_WC_WR_FLUSH_ERR};
    rdma_poll_cq(&f.transport);
    assert_int_equal(f.link->state, LINK_CONNECTING);
    tell(&f, RDMA_RECEIVE, IBV_WC_SUCCESS);
    rdma_poll_cq(&f.transport);
    assert_int_equal(f.link->state, LINK_ENDED);
    assert_int_equal(f.link->error, -EIO);
    flushed_close(&f);
}

/* A completion behind many of queue pairs that have gone: nobody sleeps before it was taken, as the device
 * tells only of what comes later. */
static void test_many_completions(void **state)
{
    static struct flushed f;

    (void)state;
    flushed_open(&f);
    stale = 20480;
    tell(&f, 2, IBV_WC_SUCCESS);
    for (unsigned i = 0; i < 20480 && told_count; i++) {
        f.transport.woken = false;
        rdma_poll_cq(&f.transport);
        assert_true(f.transport.woken || !told_count);
    }
    assert_int_equal(told_count, 0);
    assert_ptr_equal(f.link->done, &f.reads[0]);
    f.link->state = LINK_ENDED;
    flushed_close(&f);
}

/* What a peer says last is not lost because much of others is before it. */
static void test_a_goodbye_behind_many_completions(void **state)
{
    static struct flushed f;
    static struct gaia_wire_short bye = {
        .head = {.length = sizeof bye, .version = GAIA_WIRE_VERSION, .op = GAIA_WIRE_BYE}};

    (void)state;
    flushed_open(&f);
    struct rdma_cm_id id = {.verbs = &f.context, .context = (void *)(uintptr_t)f.link->queues[0].id};
    f.own.id = &id;
    f.link_own.buffers = (unsigned char *)&bye;
    stale = 5120;
    told[told_count++] =
        (struct ibv_wc){.wr_id = (uint64_t)f.link->queues[0].id << 32 | RDMA_RECEIVE, .byte_len = sizeof bye};
    happened = (struct rdma_cm_event){.id = &id, .event = RDMA_CM_EVENT_DISCONNECTED};
    rdma_take_cm_events(&f.transport);
    assert_int_equal(f.link->state, LINK_ENDED);
    assert_int_equal(f.link->error, -ESHUTDOWN);
    flushed_close(&f);
}

/* With so many other nodes as there can be, in the shape that nodes' calls have where reads need the most
 * queues. */
static void test_room_for_all_nodes(void **state)
{
    static struct gaia_link link;
    unsigned sends, receives, entries = 0;

    (void)state;
    link.options = (struct gaia_link_options){GAIA_LINK_QUEUES_MAX, CALL_WRITES};
    for (unsigned end = 0; end < 2; end++)
        for (unsigned i = 0; i < link.options.queues; i++) {
            link.connected_here = end;
            rdma_queue_room(&link, i, &sends, &receives);
            entries += sends + receives;
        }
    print_message("%u entries a node\n", entries);
    assert_in_range(entries * (MEMBERS_MAX - 1), 0, RDMA_CQ_ENTRIES);
}

/* Completions can't be had any more, which ends a link in this state. */
static void broken_open(struct flushed *f, enum link_state state)
{
    static struct ibv_comp_channel channel = {.fd = -1};

    flushed_open(f);
    f->transport.epoll = -1;
    f->rdma.completions = &channel;
    f->rdma.verbs = &f->context;
    f->context.async_fd = -1;
    f->link->state = state;
    stale = -1;
    rdma_poll_cq(&f->transport);
    stale = 0;
    assert_true(f->rdma.dead);
    assert_int_equal(f->link->state, LINK_ENDED);
}

/* That is no matter of one link. */
static void test_broken_completions(void **state)
{
    static struct flushed f;

    (void)state;
    broken_open(&f, LINK_OPEN);
    assert_int_equal(f.link->error, -EIO);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(f.reads[i].error, -EIO);
    flushed_close(&f);
}

/* Nor is it one of a peer that was just being connected to, which may live: it is said what has gone. */
static void test_broken_while_connecting(void **state)
{
    static struct flushed f;

    (void)state;
    broken_open(&f, LINK_CONNECTING);
    assert_int_equal(f.link->error, -ENODEV);
    flushed_close(&f);
}

/* ---- what a device tells besides completions ---- */

static struct ibv_async_event rumours[2];
static unsigned rumour_count, acknowledged;
static int nothing_more; /* what reading fails with then */

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event_out)
{
    int (*real)(struct ibv_context *, struct ibv_async_event *) = dlsym(RTLD_NEXT, "ibv_get_async_event");

    if (context->async_fd != -1)
        return real(context, event_out);
    if (rumour_count) {
        *event_out = rumours[--rumour_count];
        return 0;
    }
    errno = nothing_more;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    void (*real)(struct ibv_async_event *) = dlsym(RTLD_NEXT, "ibv_ack_async_event");
    bool other = event->event_type == IBV_EVENT_PORT_ERR || event->event_type == IBV_EVENT_DEVICE_FATAL;

    if (!other && event->element.cq->context->async_fd != -1)
        real(event);
    else
        acknowledged++;
}

/* One that has seen what there was. */
static void told_open(struct flushed *f)
{
    static struct ibv_comp_channel channel = {.fd = -1};

    flushed_open(f);
    f->transport.epoll = -1;
    f->context.async_fd = -1;
    f->rdma.verbs = &f->context;
    f->rdma.completions = &channel;
    while (rdma_is_in_trouble(&f->rdma))
        f->rdma.troubles++;
    acknowledged = 0;
    nothing_more = EAGAIN;
}

static void hear_of(struct flushed *f, enum ibv_event_type type, struct ibv_cq *cq)
{
    rumours[rumour_count++] = (struct ibv_async_event){.event_type = type, .element = {.cq = cq}};
    carrier_rdma.heard(&f->transport, QUEUE_TROUBLE);
    carrier_rdma.glance(&f->transport);
    assert_int_equal(rumour_count, 0);
}

static void told_close(struct flushed *f)
{
    f->link->state = LINK_ENDED;
    flushed_close(f);
}

/* What goes through a queue that has failed, or a device, does not wait for its time limit. */
static void test_a_failed_queue(void **state)
{
    static const enum ibv_event_type types[] = {IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL};
    static struct flushed f;

    (void)state;
    for (unsigned t = 0; t < 2; t++) {
        told_open(&f);
        hear_of(&f, IBV_EVENT_PORT_ERR, NULL);
        assert_false(f.rdma.dead);
        assert_int_equal(acknowledged, 1);
        hear_of(&f, types[t], &f.cq);
        assert_true(f.rdma.dead);
        assert_int_equal(acknowledged, 2); /* else to destroy it would wait */
        assert_int_equal(f.link->state, LINK_ENDED);
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(f.reads[i].error, -EIO);
        told_close(&f);
    }
}

/* Of another transport of this process: which reads it is chance, and each is told. */
static void test_a_failed_queue_of_another(void **state)
{
    static struct flushed reads, fails;

    (void)state;
    told_open(&reads);
    told_open(&fails);
    hear_of(&reads, IBV_EVENT_CQ_ERR, &fails.cq);
    assert_false(reads.rdma.dead);
    assert_false(fails.rdma.dead);
    carrier_rdma.glance(&fails.transport);
    assert_true(fails.rdma.dead);
    told_close(&fails);
    told_open(&fails);
    hear_of(&reads, IBV_EVENT_DEVICE_FATAL, NULL);
    assert_true(reads.rdma.dead);
    carrier_rdma.glance(&fails.transport);
    assert_true(fails.rdma.dead);
    told_close(&fails);
    told_close(&reads);
}

/* Which a kernel does that has cut this process off. */
static void test_a_device_that_tells_nothing_more(void **state)
{
    static struct flushed f;

    (void)state;
    told_open(&f);
    nothing_more = EIO;
    carrier_rdma.heard(&f.transport, QUEUE_TROUBLE);
    assert_true(f.rdma.dead);
    told_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_no_connections_here),
        CASE(test_a_connection_that_is_not_let_go),
        CASE(test_connections_that_fail),
        CASE(test_flushed_reads_have_not_come),
        CASE(test_completed_reads_have_come),
        CASE(test_a_message_ends_before_a_read),
        CASE(test_a_chain_of_reads_and_writes),
        CASE(test_a_flush_before_the_refusal),
        CASE(test_a_flush_while_the_second_queue_connects),
        CASE(test_a_flush_before_the_first_message),
        CASE(test_many_completions),
        CASE(test_a_goodbye_behind_many_completions),
        CASE(test_room_for_all_nodes),
        CASE(test_broken_completions),
        CASE(test_broken_while_connecting),
        CASE(test_a_failed_queue),
        CASE(test_a_failed_queue_of_another),
        CASE(test_a_device_that_tells_nothing_more),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("transport, what devices tell", tests, NULL, NULL);
}
