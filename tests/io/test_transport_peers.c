/* SPDX-License-Identifier: Apache-2.0 */
/* The transport and peers that are killed, stop, or do not do what they should. Each ends in an error within
 * the set time. */
#include "tests/io/peer.h"

struct parent {
    struct peer peer;
    struct side client;
    struct gaia_link *link;
    uint8_t *local;
    struct gaia_memory *memory;
    struct shot shots[8];
};

static void parent_open(struct parent *p)
{
    struct gaia_link_options options = {.queues = 1, .depth = 8};

    memset(p, 0, sizeof *p);
    peer_start(&p->peer, SHORT_MS);
    side_open(&p->client, false, SHORT_MS);
    p->local = new_frames(PEER_FRAMES);
    p->memory = new_memory(&p->client, p->local, PEER_FRAMES);
    must(gaia_link_connect(p->client.transport, p->peer.shared->address, &options, &p->link));
    await(&p->client, &p->client.exposed, 1);
    struct shot first = new_shot(p->memory, 0, p->client.region, 0, 4096, false);
    assert_int_equal(shoot(&p->client, p->link, &first), 0);
    assert_true(matches(p->local, 4096, 10, 0));
}

static void parent_close(struct parent *p)
{
    gaia_link_close(p->link);
    gaia_memory_release(p->memory);
    side_close(&p->client);
    peer_end(&p->peer);
    munmap(p->local, PEER_FRAMES);
}

/* Reads without pause until the link ends: each ends once, well or with EIO, and all in time. */
static void read_until_end(struct parent *p, unsigned limit_ms)
{
    uint64_t began = now_ms();
    unsigned good = 0, bad = 0;

    while (!p->client.closed && now_ms() - began < limit_ms) {
        unsigned posted = 0;

        for (; posted < 8; posted++) {
            p->shots[posted] =
                new_shot(p->memory, posted * 64 * KIB, p->client.region, posted * 64 * KIB, 64 * KIB, false);
            if (post_one(p->link, 0, &p->shots[posted]) != 1)
                break;
        }
        for (unsigned i = posted; i < 8; i++)
            p->shots[i].calls = 1;
        assert_true(gaia_transport_wait(p->client.transport, all_shots_done, p->shots, limit_ms));
        for (unsigned i = 0; i < posted; i++) {
            assert_int_equal(p->shots[i].calls, 1);
            assert_true(!p->shots[i].error || p->shots[i].error == -EIO);
            good += !p->shots[i].error;
            bad += p->shots[i].error != 0;
        }
        if (!posted)
            gaia_transport_poll(p->client.transport, 10);
    }
    print_message("%u reads went well, %u failed, %u ms: %s\n", good, bad, (unsigned)(now_ms() - began),
                  p->client.closed_why);
    assert_int_equal(p->client.closed, 1);
    assert_int_equal(p->client.closed_error, -EIO);
    assert_in_range(now_ms() - began, 0, limit_ms);
}

static void test_peer_killed(void **state)
{
    static struct parent p;

    (void)state;
    parent_open(&p);
    for (unsigned i = 0; i < 8; i++) {
        p.shots[i] = new_shot(p.memory, i * 64 * KIB, p.client.region, i * 64 * KIB, 64 * KIB, false);
        assert_int_equal(post_one(p.link, 0, &p.shots[i]), 1);
    }
    peer_signal(&p.peer, SIGKILL);
    assert_true(gaia_transport_wait(p.client.transport, all_shots_done, p.shots, SHORT_MS + SLACK_MS));
    read_until_end(&p, SHORT_MS + SLACK_MS);
    parent_close(&p);
}

static char why[300];

static void *connect_in_vain(void *argument)
{
    struct parent *p = argument;
    struct gaia_link_options options = {.queues = 1, .depth = 8};

    int error = gaia_link_connect(p->client.transport, p->peer.shared->address, &options, &p->link);

    snprintf(why, sizeof why, "%s", gaia_transport_why());
    return (void *)(intptr_t)error;
}

/* A peer dies with a request to connect that it has not looked at: its kernel rejects, and nobody is known to
 * listen there or not. The next attempt tells. (iWARP's connection is TCP's, and was reset: some devices say
 * the same where nobody listens.) */
static void test_rejected_by_a_kernel(void **state)
{
    static struct parent p;
    struct gaia_link_options options = {.queues = 1, .depth = 8};
    pthread_t thread;
    void *result;

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip();
    memset(&p, 0, sizeof p);
    peer_start(&p.peer, TIMEOUT_MS);
    side_open(&p.client, false, TIMEOUT_MS);
    peer_signal(&p.peer, SIGSTOP);
    assert_int_equal(pthread_create(&thread, NULL, connect_in_vain, &p), 0);
    nap_ms(500);
    peer_signal(&p.peer, SIGKILL);
    pthread_join(thread, &result);
    print_message("%s: %s\n", strerror(-(int)(intptr_t)result), why);
    assert_int_equal((int)(intptr_t)result, is_iwarp() ? -ECONNREFUSED : -EAGAIN);
    assert_int_equal(gaia_link_connect(p.client.transport, p.peer.shared->address, &options, &p.link),
                     -ECONNREFUSED);
    side_close(&p.client);
    peer_end(&p.peer);
}

static void test_peer_stops(void **state)
{
    static struct parent p;

    (void)state;
    parent_open(&p);
    peer_signal(&p.peer, SIGSTOP);
    read_until_end(&p, SHORT_MS + SLACK_MS);
    parent_close(&p);
}

/* The same, and nothing is asked of it. */
static void test_idle_peer_stops(void **state)
{
    static struct parent p;

    (void)state;
    parent_open(&p);
    peer_signal(&p.peer, SIGSTOP);
    assert_true(await_ms(&p.client, &p.client.closed, 1, SHORT_MS + SLACK_MS));
    assert_int_equal(p.client.closed_error, -EIO);
    assert_non_null(strstr(p.client.closed_why, "has said nothing"));
    parent_close(&p);
}

/* It lives and says so, but does not do what it is asked. (On RDMA the NIC does.) */
static void test_peer_ignores_transfers(void **state)
{
    static struct parent p;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA)
        skip();
    parent_open(&p);
    p.peer.shared->deaf = true;
    nap_ms(200);
    gaia_transport_poll(p.client.transport, 0);
    read_until_end(&p, SHORT_MS + SLACK_MS);
    assert_non_null(strstr(p.client.closed_why, "has not answered a transfer"));
    parent_close(&p);
}

static void test_connect_to_stopped_peer(void **state)
{
    struct peer peer;
    static struct side client;
    struct gaia_link_options options = {.queues = 1, .depth = 8};
    struct gaia_link *link = NULL;

    (void)state;
    peer_start(&peer, SHORT_MS);
    peer_signal(&peer, SIGSTOP);
    side_open(&client, false, SHORT_MS);
    uint64_t began = now_ms();
    assert_int_equal(gaia_link_connect(client.transport, peer.shared->address, &options, &link), -ETIMEDOUT);
    assert_in_range(now_ms() - began, SHORT_MS - 100, SHORT_MS + SLACK_MS);
    side_close(&client);
    peer_end(&peer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_peer_killed),     CASE(test_rejected_by_a_kernel),   CASE(test_peer_stops),
        CASE(test_idle_peer_stops), CASE(test_peer_ignores_transfers), CASE(test_connect_to_stopped_peer),
    };

    take_arguments(argc, argv);
    peer_run(argc, argv, peer_serve);
    return cmocka_run_group_tests_name("transport and its peers", tests, NULL, NULL);
}
