/* SPDX-License-Identifier: Apache-2.0 */
/* The transport and the time: who says nothing for long and lives, and who stood still himself. Peers that
 * are late: test_transport_peers.c. */
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
 * said meanwhile is here, and they live: more of them than are heard at a time, too. */
static void test_who_stood_still(void **state)
{
    enum { MANY = 40 };
    static struct pair pair;
    struct gaia_link *links[MANY];
    unsigned count = carrier == GAIA_CARRIER_LOCAL ? MANY : 2;

    (void)state;
    side_open(&pair.server, true, 60000);
    side_open(&pair.client, false, SHORT_MS);
    for (unsigned i = 0; i < count; i++)
        links[i] = connect_to(&pair.client, &pair.server, 1, 1);
    nap_ms(SHORT_MS + SHORT_MS / 4);
    gaia_transport_poll(pair.client.transport, 0);
    for (unsigned i = 0; i < count; i++)
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

/* Whether one poll has so many looks; the link outlives a stop after this one. */
static bool stops_after(int look)
{
    static struct pair pair;

    side_open(&pair.server, true, 60000);
    side_open(&pair.client, false, SHORT_MS);
    pair.link = connect_to(&pair.client, &pair.server, 1, 1);
    stop_after(&pair.client, look, NULL);
    nap_ms(SHORT_MS / 3); /* the clock is to be looked at, and something to be heard */
    gaia_transport_poll(pair.client.transport, 0);
    assert_int_equal(gaia_link_error(pair.link), 0);
    pair_close(&pair);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_idle),
        CASE(test_idle_beside_the_patient),
        CASE(test_who_stood_still),
        CASE(test_who_was_stopped),
        CASE(test_who_is_stopped_in_a_poll),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("transport and the time", tests, NULL, NULL);
}
