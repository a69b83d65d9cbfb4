/* SPDX-License-Identifier: Apache-2.0 */
/* The transport as it should be used: messages, transfers against an oracle, regions that come and go, links
 * that are closed. Bad input and faults: test_transport_faults.c; who is late: test_transport_time.c. */
#include "tests/io/transport_fixture.h"

/* ---- messages ---- */

static void test_messages(void **state)
{
    static struct pair pair;
    uint8_t bytes[GAIA_LINK_MESSAGE_MAX];
    uint64_t random = seed;

    (void)state;
    pair_open(&pair, 1, 8, TIMEOUT_MS);
    pair.server.echo = true;
    for (unsigned i = 0; i < 60; i++) {
        size_t length = i == 0 ? 1 : i == 1 ? sizeof bytes : 1 + draw(&random, sizeof bytes);

        fill(bytes, length, random);
        must(gaia_link_send(pair.link, bytes, length));
        await(&pair.client, &pair.client.messages, i + 1);
        assert_int_equal(pair.client.message_length, length);
        assert_memory_equal(pair.client.message, bytes, length);
    }
    assert_int_equal(gaia_link_send(pair.link, bytes, 0), -EINVAL);
    assert_int_equal(gaia_link_send(pair.link, bytes, GAIA_LINK_MESSAGE_MAX + 1), -EINVAL);
    assert_int_equal(gaia_link_error(pair.link), 0);
    pair_close(&pair);
}

/* More than the peer has taken: EAGAIN, and it goes on when it has. Its thread must not run meanwhile. */
static void test_credits(void **state)
{
    static struct pair pair;
    uint8_t bytes[2000];
    unsigned sent = 0;
    int error;

    (void)state;
    pair_open(&pair, 1, 8, TIMEOUT_MS);
    pair.server.stop = true;
    gaia_transport_wake(pair.server.transport);
    pthread_join(pair.server.thread, NULL);
    pair.server.threaded = false;
    fill(bytes, sizeof bytes, seed);
    while (!(error = gaia_link_send(pair.link, bytes, sizeof bytes)))
        sent++;
    assert_int_equal(error, -EAGAIN);
    assert_int_equal(sent, GAIA_LINK_CREDITS);
    pair.server.stop = false;
    side_start(&pair.server);
    uint64_t began = now_ms();
    while (sent < 2000) {
        error = gaia_link_send(pair.link, bytes, sizeof bytes);
        if (error == -EAGAIN)
            gaia_transport_poll(pair.client.transport, 10);
        else
            must(error);
        sent += !error;
    }
    await(&pair.server, &pair.server.messages, sent);
    /* What was taken is told when half of it is gone; by the keepalives alone it would take 45 seconds. */
    assert_in_range(now_ms() - began, 0, 25 * SHORT_MS);
    assert_memory_equal(pair.server.message, bytes, sizeof bytes);
    pair_close(&pair);
}

/* ---- transfers ---- */

#define AREA (2 * MIB)
#define SHOTS 48

struct oracle {
    struct pair pair;
    uint8_t *remote, *local, *remote_copy, *local_copy;
    struct gaia_memory *memory;
    struct shot shots[SHOTS];
    uint64_t random;
    uint32_t region;
};

static void oracle_open(struct oracle *o, unsigned queues, unsigned depth)
{
    o->random = seed;
    pair_open(&o->pair, queues, depth, TIMEOUT_MS);
    o->remote = new_frames(AREA);
    o->local = new_frames(AREA);
    o->remote_copy = malloc(AREA);
    o->local_copy = malloc(AREA);
    assert_true(o->remote_copy && o->local_copy);
    fill(o->remote, AREA, 1);
    fill(o->local, AREA, 2);
    memcpy(o->remote_copy, o->remote, AREA);
    memcpy(o->local_copy, o->local, AREA);
    o->memory = new_memory(&o->pair.client, o->local, AREA);
    o->region = expose_to(&o->pair, 0, o->remote, AREA, true);
}

static void oracle_close(struct oracle *o)
{
    gaia_link_close(o->pair.link);
    gaia_memory_release(o->memory);
    pair_close(&o->pair);
    munmap(o->remote, AREA);
    munmap(o->local, AREA);
    free(o->remote_copy);
    free(o->local_copy);
}

/* Each transfer has a piece of either area of its own: their order is open. */
static void choose(struct oracle *o, unsigned i)
{
    const uint64_t piece = AREA / SHOTS / 64 * 64;
    uint32_t length = 1 + (uint32_t)draw(&o->random, draw(&o->random, 3) ? 4096 : piece / 2);
    uint64_t at = i * piece + draw(&o->random, piece - length),
             from = i * piece + draw(&o->random, piece - length);
    bool write = draw(&o->random, 3) == 0;

    o->shots[i] = new_shot(o->memory, at, o->region, from, length, write);
    if (write)
        memcpy(o->remote_copy + from, o->local_copy + at, length);
    else
        memcpy(o->local_copy + at, o->remote_copy + from, length);
}

static bool all_done(void *context)
{
    struct oracle *o = context;

    for (unsigned i = 0; i < SHOTS; i++)
        if (!o->shots[i].calls)
            return false;
    return true;
}

static void round_of_transfers(struct oracle *o, unsigned queues)
{
    struct gaia_transfer *transfers[SHOTS];
    unsigned first = 0, queue = 0;

    for (unsigned i = 0; i < SHOTS; i++) {
        choose(o, i);
        transfers[i] = &o->shots[i].transfer;
    }
    while (first < SHOTS) {
        unsigned wanted = 1 + (unsigned)draw(&o->random, SHOTS - first);
        int posted = gaia_link_post(o->pair.link, queue++ % queues, transfers + first, wanted);

        if (posted == -EAGAIN)
            gaia_transport_poll(o->pair.client.transport, 10);
        else
            assert_in_range(posted, 1, wanted);
        first += posted > 0 ? (unsigned)posted : 0;
    }
    assert_true(gaia_transport_wait(o->pair.client.transport, all_done, o, TIME_LIMIT_S * 1000));
    for (unsigned i = 0; i < SHOTS; i++) {
        assert_int_equal(o->shots[i].calls, 1);
        assert_int_equal(o->shots[i].error, 0);
    }
    assert_memory_equal(o->local, o->local_copy, AREA);
    /* A write over iWARP has ended when TCP has it. */
    for (unsigned i = 0; is_iwarp() && i < 100 && memcmp(o->remote, o->remote_copy, AREA); i++)
        nap_ms(10);
    assert_memory_equal(o->remote, o->remote_copy, AREA);
}

static void transfers_over(unsigned queues, unsigned depth, unsigned rounds)
{
    struct oracle *o = calloc(1, sizeof *o);

    assert_non_null(o);
    oracle_open(o, queues, depth);
    for (unsigned i = 0; i < rounds; i++)
        round_of_transfers(o, queues);
    oracle_close(o);
    free(o);
}

static void test_transfers_one_queue(void **state)
{
    (void)state;
    transfers_over(1, 16, 8);
}

static void test_transfers_one_at_a_time(void **state)
{
    (void)state;
    transfers_over(1, 1, 2);
}

static void test_transfers_many_queues(void **state)
{
    (void)state;
    transfers_over(4, 7, 8);
}

/* No more are under way than was agreed. */
static void test_depth(void **state)
{
    static struct pair pair;
    uint8_t *remote = new_frames(4 * KIB), *local = new_frames(64 * KIB);
    struct shot shots[6];
    struct gaia_transfer *transfers[6];

    (void)state;
    pair_open(&pair, 2, 4, TIMEOUT_MS);
    struct gaia_memory *memory = new_memory(&pair.client, local, 64 * KIB);
    uint32_t region = expose_to(&pair, 0, remote, 4 * KIB, false);
    for (unsigned i = 0; i < 6; i++) {
        shots[i] = new_shot(memory, i * 4 * KIB, region, 0, 4096, false);
        transfers[i] = &shots[i].transfer;
    }
    assert_int_equal(gaia_link_post(pair.link, 0, transfers, 6), 4); /* nothing ends while nobody polls */
    assert_int_equal(gaia_link_post(pair.link, 0, transfers + 4, 2), -EAGAIN);
    assert_int_equal(gaia_link_post(pair.link, 1, transfers + 4, 2), 2);
    for (unsigned i = 0; i < 6; i++) {
        assert_true(gaia_transport_wait(pair.client.transport, shot_is_done, &shots[i], TIME_LIMIT_S * 1000));
        assert_int_equal(shots[i].error, 0);
    }
    gaia_link_close(pair.link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, 4 * KIB);
    munmap(local, 64 * KIB);
}

/* The longest ones, more than the local carrier's stage takes at a time. */
static void test_longest(void **state)
{
    static struct pair pair;
    const size_t length = GAIA_LINK_TRANSFER_MAX;
    uint8_t *remote = new_frames(length), *local = new_frames(3 * length);
    struct shot shots[3];

    (void)state;
    pair_open(&pair, 1, 8, TIMEOUT_MS);
    fill(remote, length, 3);
    struct gaia_memory *memory = new_memory(&pair.client, local, 3 * length);
    uint32_t region = expose_to(&pair, 0, remote, length, false);
    for (unsigned i = 0; i < 3; i++) {
        shots[i] = new_shot(memory, i * length, region, 0, (uint32_t)length, false);
        int posted = post_one(pair.link, 0, &shots[i]);
        while (posted == -EAGAIN) {
            gaia_transport_poll(pair.client.transport, 10);
            posted = post_one(pair.link, 0, &shots[i]);
        }
        assert_int_equal(posted, 1);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_true(gaia_transport_wait(pair.client.transport, shot_is_done, &shots[i], TIME_LIMIT_S * 1000));
        assert_int_equal(shots[i].error, 0);
        assert_true(matches(local + i * length, length, 3, 0));
    }
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, length);
    munmap(local, 3 * length);
}

/* ---- regions ---- */

/* More regions than credits, and than the table has at first; all readable. */
static void test_many_regions(void **state)
{
    enum { REGIONS = 100 };
    static struct pair pair;
    uint8_t *remote = new_frames(REGIONS * 4 * KIB), *local = new_frames(4 * KIB);
    uint32_t regions[REGIONS];

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    fill(remote, REGIONS * 4 * KIB, 5);
    struct gaia_memory *memory = new_memory(&pair.client, local, 4 * KIB);
    for (unsigned i = 0; i < REGIONS; i++)
        regions[i] = expose_to(&pair, 0, remote + i * 4 * KIB, 4 * KIB, false);
    for (unsigned i = 0; i < REGIONS; i++) {
        struct shot shot = new_shot(memory, 0, regions[i], 0, 4 * KIB, false);

        assert_int_equal(shoot(&pair.client, pair.link, &shot), 0);
        assert_true(matches(local, 4 * KIB, 5, i * 4 * KIB));
    }
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, REGIONS * 4 * KIB);
    munmap(local, 4 * KIB);
}

/* ---- links ---- */

static void test_many_links(void **state)
{
    enum { MANY = 12 };
    static struct pair pair;
    struct gaia_link *links[MANY];
    uint8_t *remote = new_frames(MANY * 4 * KIB), *local = new_frames(4 * KIB);

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    fill(remote, MANY * 4 * KIB, 6);
    struct gaia_memory *memory = new_memory(&pair.client, local, 4 * KIB);
    for (unsigned i = 0; i < MANY; i++) {
        links[i] = connect_to(&pair.client, &pair.server, 1 + i % 2, 4);
        await(&pair.server, &pair.server.arrived, i + 2);
    }
    for (unsigned i = 0; i < MANY; i++) {
        uint32_t region = expose_to(&pair, i + 1, remote + i * 4 * KIB, 4 * KIB, false);
        struct shot shot = new_shot(memory, 0, region, 0, 4 * KIB, false);

        assert_int_equal(shoot(&pair.client, links[i], &shot), 0);
        assert_true(matches(local, 4 * KIB, 6, i * 4 * KIB));
    }
    for (unsigned i = 0; i < MANY; i++) {
        gaia_link_close(links[i]);
        await(&pair.server, &pair.server.closed, i + 1);
        assert_int_equal(pair.server.closed_error, 0);
    }
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, MANY * 4 * KIB);
    munmap(local, 4 * KIB);
}

/* Transfers under way when their link is closed end once, with ECANCELED or well. */
static void test_close_under_way(void **state)
{
    static struct pair pair;
    uint8_t *remote = new_frames(MIB), *local = new_frames(MIB);
    struct shot shots[16];

    (void)state;
    pair_open(&pair, 2, 8, TIMEOUT_MS);
    struct gaia_memory *memory = new_memory(&pair.client, local, MIB);
    uint32_t region = expose_to(&pair, 0, remote, MIB, false);
    for (unsigned i = 0; i < 16; i++) {
        shots[i] = new_shot(memory, i * 64 * KIB, region, i * 64 * KIB, 64 * KIB, false);
        assert_int_equal(post_one(pair.link, i % 2, &shots[i]), 1);
    }
    gaia_link_close(pair.link);
    unsigned canceled = 0;
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(shots[i].calls, 1);
        assert_true(shots[i].error == 0 || shots[i].error == -ECANCELED);
        canceled += shots[i].error == -ECANCELED;
    }
    assert_true(canceled > 0 || carrier == GAIA_CARRIER_RDMA); /* a NIC goes on while the BYE is on its way */
    assert_int_equal(pair.client.closed, 0);
    await(&pair.server, &pair.server.closed, 1);
    assert_int_equal(pair.server.closed_error, 0);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, MIB);
    munmap(local, MIB);
}

/* A link is closed while another thread is in a callback of it: the callback ends first. */
static void test_close_beside_callbacks(void **state)
{
    static struct pair pair;

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    pair.server.echo = true;
    pair.server.slow = true;
    for (unsigned i = 0; i < 20; i++) {
        struct gaia_link *link = connect_to(&pair.client, &pair.server, 1, 4);
        unsigned messages = pair.server.messages;

        await(&pair.server, &pair.server.arrived, i + 2);
        for (unsigned k = 0; k < 8; k++)
            must(gaia_link_send(link, "x", 1));
        await(&pair.server, &pair.server.messages, messages + 1); /* it is in the callback now */
        gaia_link_close(pair.server.links[i + 1]);
        gaia_link_close(link);
    }
    pair_close(&pair);
}

static void test_refused(void **state)
{
    static struct pair pair;
    struct gaia_link_options options = {.queues = 1, .depth = 1};
    struct gaia_link *link = NULL;

    (void)state;
    pair_open(&pair, 1, 1, TIMEOUT_MS);
    pair.server.refuse_with = -EACCES;
    int error = gaia_link_connect(pair.client.transport, pair.server.address, &options, &link);
    if (!error) { /* it was told afterwards */
        await(&pair.client, &pair.client.closed, 1);
        assert_int_equal(pair.client.closed_error, -EACCES);
        error = gaia_link_error(link);
        gaia_link_close(link);
    }
    assert_int_equal(error, -EACCES);
    assert_int_equal(pair.server.arrived, 1);
    pair_close(&pair);
}

/* Who connects while another thread polls all the time hears of it. */
static void test_connect_beside_poller(void **state)
{
    enum { TIMES = 200 };
    static struct pair pair;

    (void)state;
    pair_open(&pair, 1, 1, 60000);
    side_start(&pair.client);
    for (unsigned i = 0; i < TIMES; i++) {
        uint64_t begun = now_ms();

        gaia_link_close(connect_to(&pair.client, &pair.server, 2, 1));
        assert_in_range(now_ms() - begun, 0, SLACK_MS / 2); /* a look at the clock is later */
    }
    pair_close(&pair);
}

/* A link that could not be made is let go of once: by who wanted it, and not by the thread that polls as
 * well, whose looks at the clock are frequent here. */
static void test_nobody_there_beside_poller(void **state)
{
    enum { TIMES = 20000 };
    struct gaia_link_options options = {.queues = 1, .depth = 1};
    static struct pair pair;
    char nobody[sizeof pair.server.address + 8];

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    pair_open(&pair, 1, 1, 50);
    snprintf(nobody, sizeof nobody, "%s-nobody", pair.server.address);
    side_start(&pair.client);
    for (unsigned i = 0; i < TIMES; i++) {
        struct gaia_link *link = NULL;
        assert_int_equal(gaia_link_connect(pair.client.transport, nobody, &options, &link), -ECONNREFUSED);
    }
    pair_close(&pair);
}

/* What the peer says as soon as its last queue is up is heard here, too, when that is not known yet. */
static void test_refused_many_queues(void **state)
{
    enum { TIMES = 200 };
    static struct pair pair;
    struct gaia_link_options options = {.queues = 4, .depth = 1};
    unsigned told = 0;

    (void)state;
    pair_open(&pair, 1, 1, TIMEOUT_MS);
    pair.server.refuse_with = -EACCES;
    for (unsigned i = 0; i < TIMES; i++) {
        struct gaia_link *link = NULL;
        int error = gaia_link_connect(pair.client.transport, pair.server.address, &options, &link);

        if (!error) {
            await(&pair.client, &pair.client.closed, ++told);
            error = gaia_link_error(link);
            gaia_link_close(link);
        }
        assert_int_equal(error, -EACCES);
    }
    pair_close(&pair);
}

/* ---- threads ---- */

struct hammer {
    struct pair *pair;
    struct gaia_memory *memory;
    uint8_t *local;
    uint32_t region;
    unsigned number;
    _Atomic unsigned wrong;
};

/* Reads of its own, waiting for each: some poll, the others sleep. */
static void *hammer(void *argument)
{
    struct hammer *h = argument;
    uint64_t random = seed + h->number, at = h->number * 64 * KIB;

    for (unsigned i = 0; i < 200; i++) {
        uint64_t offset = draw(&random, 60 * KIB);
        struct shot shot = new_shot(h->memory, at, h->region, offset, 4096, false);

        while (post_one(h->pair->link, h->number % 2, &shot) == -EAGAIN)
            gaia_transport_poll(h->pair->client.transport, 1);
        if (!gaia_transport_wait(h->pair->client.transport, shot_is_done, &shot, TIME_LIMIT_S * 1000) ||
            shot.error || !matches(h->local + at, 4096, 7, offset))
            h->wrong++;
    }
    return NULL;
}

/* Of a thread that is about to poll, too: what it was to look at may have come after it last looked. */
static void test_wake_before_poll(void **state)
{
    static struct side side;

    (void)state;
    side_open(&side, false, 60000);
    gaia_transport_poll(side.transport, 0); /* looks at the clock, which cuts a sleep short, too */
    for (unsigned i = 0; i < 20; i++) {
        uint64_t begun = now_ms();

        gaia_transport_wake(side.transport);
        gaia_transport_poll(side.transport, 2 * SHORT_MS);
        assert_in_range(now_ms() - begun, 0, SHORT_MS);
    }
    side_close(&side);
}

struct waiter {
    struct gaia_transport *transport;
    _Atomic bool flag;
};

static bool is_flagged(void *context)
{
    return ((struct waiter *)context)->flag;
}

static void *wait_for_flag(void *argument)
{
    struct waiter *waiter = argument;

    gaia_transport_wait(waiter->transport, is_flagged, waiter, TIME_LIMIT_S * 1000 / 4);
    return NULL;
}

/* Each time until it is woken. */
static void *poll_for_long(void *argument)
{
    struct side *side = argument;

    while (!side->stop)
        if (gaia_transport_poll(side->transport, 60000) == -EBUSY)
            nap_ms(1);
    return NULL;
}

/* Of a thread that polls again at once: who waits meanwhile sees that the poll has ended, though nothing was
 * called back. */
static void test_wake_beside_poller(void **state)
{
    static struct side side;
    static struct waiter waiter;

    (void)state;
    side_open(&side, false, 60000);
    side.threaded = true;
    assert_int_equal(pthread_create(&side.thread, NULL, poll_for_long, &side), 0);
    for (unsigned i = 0; i < 20; i++) {
        pthread_t thread;

        nap_ms(5); /* the other thread polls */
        waiter.transport = side.transport;
        waiter.flag = false;
        assert_int_equal(pthread_create(&thread, NULL, wait_for_flag, &waiter), 0);
        nap_ms(5);
        uint64_t begun = now_ms();
        waiter.flag = true;
        gaia_transport_wake(side.transport);
        pthread_join(thread, NULL);
        assert_in_range(now_ms() - begun, 0, SLACK_MS / 2); /* a look at the clock is later */
    }
    side_close(&side);
}

static void test_threads(void **state)
{
    enum { THREADS = 4 };
    static struct pair pair;
    pthread_t threads[THREADS];
    struct hammer hammers[THREADS];
    uint8_t *remote = new_frames(64 * KIB), *local = new_frames(THREADS * 64 * KIB);

    (void)state;
    pair_open(&pair, 2, 4, TIMEOUT_MS);
    fill(remote, 64 * KIB, 7);
    struct gaia_memory *memory = new_memory(&pair.client, local, THREADS * 64 * KIB);
    uint32_t region = expose_to(&pair, 0, remote, 64 * KIB, false);
    for (unsigned i = 0; i < THREADS; i++) {
        hammers[i] = (struct hammer){&pair, memory, local, region, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, &hammers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(hammers[i].wrong, 0);
    }
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, 64 * KIB);
    munmap(local, THREADS * 64 * KIB);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_messages),
        CASE(test_credits),
        CASE(test_transfers_one_queue),
        CASE(test_transfers_one_at_a_time),
        CASE(test_transfers_many_queues),
        CASE(test_depth),
        CASE(test_longest),
        CASE(test_many_regions),
        CASE(test_many_links),
        CASE(test_close_under_way),
        CASE(test_close_beside_callbacks),
        CASE(test_connect_beside_poller),
        CASE(test_nobody_there_beside_poller),
        CASE(test_refused),
        CASE(test_refused_many_queues),
        CASE(test_wake_before_poll),
        CASE(test_wake_beside_poller),
        CASE(test_threads),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
