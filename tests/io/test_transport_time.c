/* SPDX-License-Identifier: Apache-2.0 */
/* The transport and the time: who says nothing for long and lives, and who stood still himself. Peers that
 * are late: test_transport_peers.c. */
#include "io/transport_local.h"
#include "tests/io/stopped.h"

/* Whether the link has lived for three times its timeout with nothing to say. *stood_ms_out: the longest time
 * that this thread was kept from looking. */
static bool idles(struct pair *pair, uint64_t *stood_ms_out)
{
    uint64_t looked = now_ms(), until = looked + 3 * SHORT_MS;

    *stood_ms_out = 0;
    while (looked < until) {
        gaia_transport_poll(pair->client.transport, 100);
        nap_ms(20);
        uint64_t now = now_ms();
        if (now - looked > *stood_ms_out)
            *stood_ms_out = now - looked;
        looked = now;
    }
    return !gaia_link_error(pair->link) && !gaia_link_error(pair->server.links[0]);
}

/* A link that is idle for longer than its timeout lives: both say that they do. A machine that stands still
 * for most of that time keeps both from saying it, which is no fault of theirs: once more, then. */
static void test_idle(void **state)
{
    static struct pair pair;
    bool lived = false;

    (void)state;
    for (unsigned tries = 0; tries < 10 && !lived; tries++) {
        uint64_t stood_ms;

        pair_open(&pair, 1, 1, SHORT_MS);
        lived = idles(&pair, &stood_ms);
        if (lived) {
            pair.server.echo = true;
            must(gaia_link_send(pair.link, "x", 1));
            await(&pair.client, &pair.client.messages, 1);
        }
        pair_close(&pair);
        assert_true(lived || stood_ms > SHORT_MS / 2);
    }
    assert_true(lived);
}

/* Who has far more patience says that it lives as often as its peer needs it, whoever of them has connected.
 */
static void test_idle_beside_the_patient(void **state)
{
    static struct pair pair;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        side_open(&pair.server, true, i ? SHORT_MS : 60000);
        side_open(&pair.client, false, i ? 60000 : SHORT_MS);
        pair.link = connect_to(&pair.client, &pair.server, 2, 1);
        await(&pair.server, &pair.server.arrived, 1);
        side_start(&pair.client);
        nap_ms(SHORT_MS + SHORT_MS / 2);
        assert_int_equal(gaia_link_error(pair.link), 0);
        assert_int_equal(gaia_link_error(pair.server.links[0]), 0);
        pair_close(&pair);
    }
}

/* Nobody has polled for longer than the timeout, as of a process that gets no processor. What the peers have
 * said meanwhile is here, and they live. */
static void test_who_stood_still(void **state)
{
    static struct pair pair;
    struct gaia_link *links[2];

    (void)state;
    side_open(&pair.server, true, 60000);
    side_open(&pair.client, false, SHORT_MS);
    for (unsigned i = 0; i < 2; i++)
        links[i] = connect_to(&pair.client, &pair.server, 1, 1);
    nap_ms(SHORT_MS + SHORT_MS / 4);
    gaia_transport_poll(pair.client.transport, 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(gaia_link_error(links[i]), 0);
    pair_close(&pair);
}

/* Likewise a process that was stopped while it slept, or whatever it was at. */
static void test_who_was_stopped(void **state)
{
    const struct sigaction action = {.sa_handler = stand_still};
    static struct pair pair;

    (void)state;
    side_open(&pair.server, true, 60000);
    side_open(&pair.client, false, SHORT_MS);
    pair.link = connect_to(&pair.client, &pair.server, 1, 1);
    side_start(&pair.client);
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    nap_ms(SHORT_MS / 8);
    assert_int_equal(pthread_kill(pair.client.thread, SIGUSR1), 0);
    nap_ms(SHORT_MS + SHORT_MS / 2);
    assert_int_equal(gaia_link_error(pair.link), 0);
    pair_close(&pair);
}

/* That it lives, past its transport: the other one's lock is held. */
static void say_so(const struct gaia_link *link)
{
    const struct gaia_wire_short lives = {.head = {sizeof lives, GAIA_WIRE_VERSION, GAIA_WIRE_KEEPALIVE, 0}};
    const struct local_queue *queue = link->queues[0].own;

    assert_int_equal(send(queue->fd, &lives, sizeof lives, 0), sizeof lives);
}

static struct pair heard;

static void server_speaks(void)
{
    say_so(heard.server.links[0]);
}

/* Whether one poll has so many looks; a link whose peer is almost late outlives a stop after this one, in
 * which the peer speaks. */
static bool stops_after(int look)
{
    pair_open(&heard, 1, 1, LONG_MS);
    side_pause(&heard.server);
    look_on(&heard.client, 14);
    clock_on(LONG_MS / 16 + 1); /* it is to be looked at */
    stop_after(&heard.client, look, server_speaks);
    gaia_transport_poll(heard.client.transport, 0);
    assert_int_equal(gaia_link_error(heard.link), 0);
    pair_close(&heard);
    return stopped.looks < 0;
}

/* And in a poll, wherever that is: also when it has just heard, and is about to look at the clock. */
static void test_who_is_stopped_in_a_poll(void **state)
{
    int look = 0;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip(); /* the polls are the same, and the emulated machine has little time */
    while (stops_after(look))
        look++;
    print_message("%d looks\n", look);
    assert_in_range(look, 3, 10); /* before all, of the hearing, and of the one before the clock counts */
}

enum { MANY = 40 }; /* more than epoll tells of at a time */

static struct gaia_link *arrived[MANY];

static void all_speak(void)
{
    for (unsigned i = 0; i < MANY; i++)
        say_so(arrived[i]);
}

/* All peers are heard before one of them is late. */
static void test_many_to_who_stood_still(void **state)
{
    static struct pair pair;
    struct gaia_link *links[MANY];

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    side_open(&pair.server, true, LONG_MS);
    side_open(&pair.client, false, LONG_MS);
    for (unsigned i = 0; i < MANY; i++)
        links[i] = connect_to(&pair.client, &pair.server, 1, 1);
    await(&pair.server, &pair.server.arrived, MANY);
    memcpy(arrived, pair.server.links, sizeof arrived);
    side_pause(&pair.server);
    look_on(&pair.client, 15);
    stop_after(&pair.client, 1, all_speak);
    gaia_transport_poll(pair.client.transport, 0);
    assert_true(stopped.looks < 0);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(gaia_link_error(links[i]), 0);
    pair_close(&pair);
}

/* ---- both stand still ---- */

/* Two that nobody polls but the test. */
static void still_open(struct pair *pair)
{
    pair_open(pair, 2, 4, LONG_MS);
    side_pause(&pair->server);
}

/* What either says the other hears. (A NIC takes its time for it.) */
static void both_look(struct pair *pair)
{
    for (unsigned i = 0; i < (carrier == GAIA_CARRIER_LOCAL ? 2 : 5); i++) {
        gaia_transport_poll(pair->client.transport, 0);
        gaia_transport_poll(pair->server.transport, 0);
        if (carrier != GAIA_CARRIER_LOCAL)
            nap_ms(1);
    }
}

static void both_look_on(struct pair *pair, unsigned sixteenths)
{
    for (unsigned i = 0; i < sixteenths; i++) {
        clock_on(LONG_MS / 16 + 1);
        both_look(pair);
    }
}

static void both_live(const struct pair *pair)
{
    assert_int_equal(gaia_link_error(pair->link), 0);
    assert_int_equal(gaia_link_error(pair->server.links[0]), 0);
}

/* Both stand still for ms, when so much of their time has gone by; first goes on a third of the timeout
 * before the other does. */
static void both_stand_still(unsigned after, uint64_t ms, bool client_first)
{
    static struct pair pair;

    still_open(&pair);
    both_look_on(&pair, after);
    clock_on(ms);
    look_on(client_first ? &pair.client : &pair.server, 5);
    both_look(&pair);
    both_live(&pair);
    both_look_on(&pair, 20);
    both_live(&pair);
    pair.server.echo = true;
    must(gaia_link_send(pair.link, "x", 1));
    for (unsigned i = 0; i < 100 && !pair.client.messages; i++)
        both_look(&pair);
    assert_int_equal(pair.client.messages, 1);
    pair_close(&pair);
}

/* Two that stand still together, as in a machine that is stopped, take each other for dead neither when they
 * go on nor later. */
static void test_both_stand_still(void **state)
{
    const uint64_t still_ms[] = {LONG_MS / 4, LONG_MS + LONG_MS / 4, 1000 * LONG_MS};

    (void)state;
    for (unsigned i = carrier == GAIA_CARRIER_LOCAL ? 0 : 2; i < 3;
         i++) /* an emulated machine has little time */
        for (unsigned after = 0; after < (carrier == GAIA_CARRIER_LOCAL ? 6 : 1); after++) {
            both_stand_still(after, still_ms[i], false);
            both_stand_still(after, still_ms[i], true);
        }
}

/* However often that is. */
static void test_both_stand_still_often(void **state)
{
    static struct pair pair;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip(); /* what is said is to be heard at once */
    still_open(&pair);
    for (unsigned i = 0; i < 40; i++) {
        clock_on(2 * LONG_MS);
        both_look(&pair);
        both_live(&pair);
    }
    pair_close(&pair);
}

/* One who has died is found when so much of this side's time has gone by, whenever that stands still. */
static void test_dead_while_both_stood_still(void **state)
{
    static struct pair pair;

    (void)state;
    for (unsigned after = 0; after < (carrier == GAIA_CARRIER_LOCAL ? 17 : 1); after++) {
        unsigned looks = after;

        still_open(&pair);
        look_on(&pair.client, after);
        clock_on(1000 * LONG_MS);
        for (; !pair.client.closed && looks < 100; looks++)
            look_on(&pair.client, 1);
        assert_int_equal(pair.client.closed_error, -EIO);
        assert_non_null(strstr(pair.client.closed_why, "has said nothing"));
        assert_in_range(looks, 13,
                        17); /* up to a quarter of the timeout counts of a stop, and one look is due */
        pair_close(&pair);
    }
}

/* Who is slow all the time, so that each look is late, finds who is dead all the same. */
static void test_dead_for_who_looks_seldom(void **state)
{
    static struct pair pair;
    unsigned looks = 0;

    (void)state;
    still_open(&pair);
    for (; !pair.client.closed && looks < 100; looks++) {
        clock_on(10 * LONG_MS);
        gaia_transport_poll(pair.client.transport, 0);
    }
    assert_int_equal(pair.client.closed_error, -EIO);
    assert_in_range(looks, 4, 5);
    pair_close(&pair);
}

/* A transfer's time does not go by while both stand still, */
static void transfer_beside_stop(bool answered)
{
    static struct pair pair;
    uint8_t *remote = new_frames(4 * KIB), *local = new_frames(4 * KIB);
    unsigned looks = 0;

    pair_open(&pair, 2, 4, LONG_MS);
    fill(remote, 4 * KIB, 8);
    struct gaia_memory *memory = new_memory(&pair.client, local, 4 * KIB);
    uint32_t region = expose_to(&pair, 0, remote, 4 * KIB, false);
    struct shot shot = new_shot(memory, 0, region, 0, 4096, false);
    side_pause(&pair.server);
    transport_test.deaf = !answered;
    assert_int_equal(post_one(pair.link, 1, &shot), 1);
    clock_on(2 * LONG_MS);
    look_on(&pair.client, 5);
    assert_int_equal(shot.calls, 0);
    for (; !shot.calls && looks < 100; looks++)
        both_look_on(&pair, 1);
    assert_int_equal(shot.error, answered ? 0 : -EIO);
    assert_int_equal(pair.client.closed, !answered);
    assert_true(answered ? matches(local, 4 * KIB, 8, 0)
                         : looks <= 17 && strstr(pair.client.closed_why, "not answered"));
    gaia_link_close(pair.link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, 4 * KIB);
    munmap(local, 4 * KIB);
}

/* and afterwards it does. */
static void test_transfer_while_both_stood_still(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip(); /* a NIC answers for who stands still */
    transfer_beside_stop(true);
    transfer_beside_stop(false);
}

/* How far apart this side's looks are. */
static uint64_t pause_of(struct side *side)
{
    clock_on(LONG_MS / 16 + 1);
    gaia_transport_poll(side->transport, 0);
    pthread_mutex_lock(&side->transport->lock);
    uint64_t pause_ms = (side->transport->tick_ns - side->transport->looked_ns) / 1000000;
    pthread_mutex_unlock(&side->transport->lock);
    return pause_ms;
}

/* A peer without patience has this side look often, for as long as it is there: not until who has the link
 * closes it.
 */
static void test_an_ended_link_has_nobody_look(void **state)
{
    static struct pair pair;

    (void)state;
    side_open(&pair.server, true, SHORT_MS);
    side_open(&pair.client, false, LONG_MS);
    pair.link = connect_to(&pair.client, &pair.server, 1, 1);
    await(&pair.server, &pair.server.arrived, 1);
    assert_int_equal(pause_of(&pair.client), SHORT_MS / 16);
    gaia_link_close(pair.server.links[0]);
    await(&pair.client, &pair.client.closed, 1);
    assert_int_equal(pause_of(&pair.client), LONG_MS / 16);
    pair_close(&pair);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_idle),
        CASE(test_idle_beside_the_patient),
        CASE(test_who_stood_still),
        CASE(test_who_was_stopped),
        CASE(test_who_is_stopped_in_a_poll),
        CASE(test_many_to_who_stood_still),
        CASE(test_both_stand_still),
        CASE(test_both_stand_still_often),
        CASE(test_dead_while_both_stood_still),
        CASE(test_dead_for_who_looks_seldom),
        CASE(test_transfer_while_both_stood_still),
        CASE(test_an_ended_link_has_nobody_look),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("transport and the time", tests, NULL, NULL);
}
