/* SPDX-License-Identifier: Apache-2.0 */
/* What the RDMA carrier hands to the verbs: small messages inline, one doorbell for a batch, a completion for
 * each fourth transfer and the last; and that its rings go on where their counts wrap. The verbs' function
 * that posts is led through a counter. Skipped without an RDMA device (--carrier rdma). */
#include "tests/io/transport_fixture.h"

#include "io/transport_rdma.h"

#define QUEUE 1u /* has no messages */
#define DEPTH 32u
#define PAGE 4096u

static int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static _Atomic unsigned doorbells, reads, signalled; /* of QUEUE */
static _Atomic unsigned long_sends, small_sends, inlined;
static struct ibv_qp *watched; /* of QUEUE */

/* Keepalives come and go: messages of the tests are longer. */
static void count_send(const struct ibv_send_wr *request)
{
    bool is_inline = request->send_flags & IBV_SEND_INLINE;

    if (request->sg_list->length > RDMA_INLINE)
        long_sends++;
    else if (request->sg_list->length >= 100)
        small_sends++;
    else
        return;
    inlined += is_inline;
}

static int count_and_post(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    doorbells += qp == watched;
    for (const struct ibv_send_wr *each = request; each; each = each->next) {
        if (each->opcode == IBV_WR_SEND)
            count_send(each);
        if (qp == watched && each->opcode == IBV_WR_RDMA_READ) {
            reads++;
            signalled += each->send_flags & IBV_SEND_SIGNALED ? 1 : 0;
        }
    }
    return post_send(qp, request, bad);
}

struct posting {
    struct pair pair;
    struct gaia_memory *memory;
    uint8_t *remote, *local;
    uint32_t region;
    struct rdma_queue *queue;
};

static void posting_open(struct posting *p)
{
    pair_open(&p->pair, QUEUE + 1, DEPTH, TIMEOUT_MS);
    p->remote = new_frames(DEPTH * PAGE);
    p->local = new_frames(DEPTH * PAGE);
    fill(p->remote, DEPTH * PAGE, 3);
    p->memory = new_memory(&p->pair.client, p->local, DEPTH * PAGE);
    p->region = expose_to(&p->pair, 0, p->remote, DEPTH * PAGE, false);
    p->queue = p->pair.link->queues[QUEUE].own;
    watched = p->queue->qp;
    post_send = watched->context->ops.post_send;
    watched->context->ops.post_send = count_and_post;
    doorbells = reads = signalled = long_sends = small_sends = inlined = 0;
}

static void posting_close(struct posting *p)
{
    watched->context->ops.post_send = post_send;
    gaia_link_close(p->pair.link);
    gaia_memory_release(p->memory);
    pair_close(&p->pair);
    munmap(p->remote, DEPTH * PAGE);
    munmap(p->local, DEPTH * PAGE);
}

/* ---- times ---- */

/* What a NIC does not acknowledge is sent again after half a second, whichever end has sent it. */
static void test_both_ends_send_again(void **state)
{
    static struct posting p;
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr ignored;

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA || is_iwarp()) /* TCP has its own time */
        skip();
    posting_open(&p);
    for (unsigned i = 0; i <= QUEUE; i++) {
        const struct rdma_queue *ends[] = {p.pair.link->queues[i].own, p.pair.server.links[0]->queues[i].own};

        for (unsigned end = 0; end < 2; end++) {
            assert_int_equal(ibv_query_qp(ends[end]->qp, &attributes, IBV_QP_TIMEOUT, &ignored), 0);
            print_message("queue %u, end %u: acknowledged within 4.096 us * 2^%u\n", i, end,
                          attributes.timeout);
            assert_int_equal(attributes.timeout, 17);
        }
    }
    posting_close(&p);
}

/* ---- messages ---- */

static void test_small_messages_go_inline(void **state)
{
    static struct posting p;
    uint8_t bytes[1000];
    const struct rdma_queue *first;

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA ||
        is_iwarp()) /* siw takes 80 bytes at most, and none if asked for more */
        skip();
    posting_open(&p);
    first = p.pair.link->queues[0].own;
    assert_true(first->inline_max >= RDMA_INLINE);
    fill(bytes, sizeof bytes, 7);
    must(gaia_link_send(p.pair.link, bytes, 150));
    await(&p.pair.server, &p.pair.server.messages, 1);
    assert_int_equal(small_sends, 1);
    assert_int_equal(inlined, 1);
    must(gaia_link_send(p.pair.link, bytes, sizeof bytes));
    await(&p.pair.server, &p.pair.server.messages, 2);
    assert_int_equal(long_sends, 1);
    assert_int_equal(inlined, 1);
    assert_int_equal(p.pair.server.message_length, sizeof bytes);
    assert_memory_equal(p.pair.server.message, bytes, sizeof bytes);
    posting_close(&p);
}

/* ---- transfers ---- */

static struct shot shots[DEPTH];
static unsigned shot_count;

static bool batch_is_done(void *context)
{
    (void)context;
    for (unsigned i = 0; i < shot_count; i++)
        if (!shots[i].calls)
            return false;
    return true;
}

/* So many reads, with one post. */
static void post_batch(struct posting *p, unsigned queue, unsigned count)
{
    struct gaia_transfer *batch[DEPTH] = {NULL};

    memset(p->local, 0, DEPTH * PAGE);
    shot_count = count;
    for (unsigned i = 0; i < count; i++) {
        uint64_t from = (uint64_t)(count - 1 - i) * PAGE;
        shots[i] = new_shot(p->memory, (uint64_t)i * PAGE, p->region, from, PAGE, false);
        batch[i] = &shots[i].transfer;
    }
    assert_int_equal(gaia_link_post(p->pair.link, queue, batch, count), count);
}

static void await_batch(struct posting *p)
{
    assert_true(gaia_transport_wait(p->pair.client.transport, batch_is_done, NULL, TIME_LIMIT_S * 1000));
    for (unsigned i = 0; i < shot_count; i++) {
        assert_int_equal(shots[i].calls, 1);
        assert_int_equal(shots[i].error, 0);
        assert_true(matches(p->local + i * PAGE, PAGE, 3, (uint64_t)(shot_count - 1 - i) * PAGE));
    }
}

static void read_batch(struct posting *p, unsigned count)
{
    post_batch(p, QUEUE, count);
    await_batch(p);
}

static void test_a_batch_is_one_doorbell(void **state)
{
    static struct posting p;
    static const unsigned counts[] = {1, 3, 4, 5, 16, DEPTH};

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip();
    posting_open(&p);
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        doorbells = reads = signalled = 0;
        read_batch(&p, counts[i]);
        assert_int_equal(doorbells, 1);
        assert_int_equal(reads, counts[i]);
        assert_int_equal(signalled, (counts[i] + 3) / 4);
    }
    posting_close(&p);
}

/* ---- counts that wrap ---- */

#define LEAD 20u /* requests before the wrap */

/* The next requests of queue 0, and messages, have these numbers; nothing is on its way. */
static bool start_from(struct posting *p, uint32_t number)
{
    struct rdma_link *link = p->pair.link->own;
    struct rdma_queue *queue = p->pair.link->queues[0].own;

    pthread_mutex_lock(&p->pair.client.transport->lock);
    bool idle = queue->posted == queue->done && link->sent == link->sent_done;
    if (idle) {
        queue->posted = queue->done = number;
        link->sent = link->sent_done = number;
    }
    pthread_mutex_unlock(&p->pair.client.transport->lock);
    return idle;
}

/* Transfers and messages, so many that what is under way is on both sides of the wrap: nobody polls before
 * all are posted. */
static void cross(struct posting *p, uint32_t wraps_at)
{
    unsigned before = p->pair.server.messages, sent = 0;
    uint8_t bytes[600];

    while (p->pair.link->credits < GAIA_LINK_CREDITS - 4 || !start_from(p, wraps_at - LEAD))
        gaia_transport_poll(p->pair.client.transport, 10);
    post_batch(p, 0, DEPTH);
    fill(bytes, sizeof bytes, wraps_at);
    while (!gaia_link_send(p->pair.link, bytes, sent % 2 ? sizeof bytes : 100)) /* until there is no credit */
        sent++;
    assert_true(sent > LEAD);
    await_batch(p);
    await(&p->pair.server, &p->pair.server.messages, before + sent);
    assert_memory_equal(p->pair.server.message, bytes, 100);
    while (!start_from(p, 0)) /* all that was sent is known to be */
        gaia_transport_poll(p->pair.client.transport, 10);
}

/* At 2^31 the number wraps that a completion has, at 2^32 the count. */
static void test_counts_wrap(void **state)
{
    static struct posting p;

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip();
    posting_open(&p);
    for (unsigned round = 0; round < 3; round++) {
        cross(&p, (uint32_t)1 << 31);
        cross(&p, 0);
    }
    read_batch(&p, DEPTH);
    assert_int_equal(gaia_link_error(p.pair.link), 0);
    posting_close(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_both_ends_send_again),
        CASE(test_small_messages_go_inline),
        CASE(test_a_batch_is_one_doorbell),
        CASE(test_counts_wrap),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("posts", tests, NULL, NULL);
}
