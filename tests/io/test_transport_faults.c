/* SPDX-License-Identifier: Apache-2.0 */
/* The transport under bad input: peers of another version, malformed messages, keys that are another's,
 * lengths past the frame; and queue pairs in error. Each ends in an error within the set time, and for the
 * link concerned only. */
#include "tests/io/transport_fixture.h"

/* ---- hello ---- */

static uint32_t hello_case;

static void bend_hello(struct gaia_wire_hello *hello, size_t *length)
{
    switch (hello_case) {
    case 0:
        hello->head.version++;
        break;
    case 1:
        *length = 20;
        break;
    case 2:
        hello->head.op = GAIA_WIRE_KEEPALIVE;
        break;
    case 3:
        hello->queues = 0;
        break;
    case 4:
        hello->queues = GAIA_LINK_QUEUES_MAX + 1;
        break;
    case 5:
        hello->depth = GAIA_LINK_DEPTH_MAX + 1;
        break;
    case 6:
        hello->timeout_ms = 0;
        break;
    case 7: /* a second queue of a session that nobody began */
        hello->queues = 2;
        hello->queue = 1;
        break;
    case 8:
        hello->head.length = 57;
        break;
    case 9:
        hello->head.op = GAIA_WIRE_REFUSED;
        break;
    case 10:
        memset(hello, 0xff, sizeof *hello);
        hello->head.length = sizeof *hello;
        hello->head.version = GAIA_WIRE_VERSION;
        break;
    }
}

static void test_hello(void **state)
{
    static struct pair pair;
    struct gaia_link_options options = {.queues = 1, .depth = 1};
    struct gaia_link *link = NULL;

    (void)state;
    pair_open(&pair, 1, 1, TIMEOUT_MS);
    pair.server.echo = true;
    for (hello_case = 0; hello_case <= 10; hello_case++) {
        transport_test.hello = bend_hello;
        int error = gaia_link_connect(pair.client.transport, pair.server.address, &options, &link);
        transport_test.hello = NULL;
        if (error != (hello_case ? -EPROTO : -EPROTONOSUPPORT))
            print_error("hello %u: error %d: %s\n", hello_case, error, gaia_transport_why());
        assert_int_equal(error, hello_case ? -EPROTO : -EPROTONOSUPPORT);
    }
    must(gaia_link_send(pair.link, "still here", 10));
    await(&pair.client, &pair.client.messages, 1);
    assert_int_equal(pair.server.arrived, 1);
    pair_close(&pair);
}

/* ---- messages ---- */

struct bad_message {
    const char *what;
    bool from_server;
    uint8_t op;
    uint16_t version; /* 0: this one */
    uint32_t length;  /* sent */
    uint32_t said;    /* in the head; 0: the same */
    uint8_t credits;
    uint64_t words[4]; /* what follows */
    int repeat;        /* sent so often besides */
};

#define W(a, b) ((uint64_t)(a) | (uint64_t)(b) << 32)
static const struct bad_message bad_messages[] = {
    {.what = "half a head", .op = GAIA_WIRE_USER, .length = 4, .said = 4},
    {.what = "one byte", .op = GAIA_WIRE_USER, .length = 1},
    {.what = "says more than it has", .op = GAIA_WIRE_USER, .length = 16, .said = 24},
    {.what = "says less", .op = GAIA_WIRE_USER, .length = 24, .said = 16},
    {.what = "says a huge length", .op = GAIA_WIRE_USER, .length = 16, .said = UINT32_MAX},
    {.what = "says no length", .op = GAIA_WIRE_USER, .length = 16, .said = 1},
    {.what = "another version", .op = GAIA_WIRE_USER, .version = 9, .length = 16},
    {.what = "operation 0", .op = 0, .length = 16},
    {.what = "operation 5", .op = 5, .length = 16},
    {.what = "operation 6, of who exposes", .from_server = true, .op = 6, .length = 16},
    {.what = "operation 200", .op = 200, .length = 16},
    {.what = "a user's message without bytes", .op = GAIA_WIRE_USER, .length = 8},
    {.what = "a second HELLO", .op = GAIA_WIRE_HELLO, .length = 40},
    {.what = "a KEEPALIVE of the wrong length", .op = GAIA_WIRE_KEEPALIVE, .length = 24},
    {.what = "credits that nobody spent", .op = GAIA_WIRE_KEEPALIVE, .length = 16, .credits = 200},
    {.what = "EXPOSE of who connected", .op = GAIA_WIRE_EXPOSE, .length = 40, .words = {0, 0x1000, 4096, 1}},
    {.what = "a BYE of no errno", .op = GAIA_WIRE_BYE, .length = 16, .words = {99999}},
    {.what = "EXPOSE of no length",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 40,
     .words = {0, 0x1000, 0, 1}},
    {.what = "EXPOSE of too much",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 40,
     .words = {0, 0x1000, UINT64_MAX, 1}},
    {.what = "EXPOSE beyond the end of memory",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 40,
     .words = {0, UINT64_MAX - 100, 4096, 1}},
    {.what = "EXPOSE of region 5000",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 40,
     .words = {5000, 0x1000, 4096, 1}},
    {.what = "EXPOSE that is half writable",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 40,
     .words = {W(7, 2), 0x1000, 4096, 1}},
    {.what = "EXPOSE twice",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 40,
     .words = {7, 0x1000, 4096, 1},
     .repeat = 1},
    {.what = "a truncated EXPOSE",
     .from_server = true,
     .op = GAIA_WIRE_EXPOSE,
     .length = 32,
     .words = {7, 0x1000, 4096}},
    {.what = "transfers done that nobody asked for",
     .from_server = true,
     .op = GAIA_WIRE_DONE,
     .length = 16,
     .words = {5}},
    {.what = "half a transfer", .op = GAIA_WIRE_TRANSFERS, .length = 24, .words = {1, 2}},
    {.what = "a transfer past the stage",
     .op = GAIA_WIRE_TRANSFERS,
     .length = 40,
     .words = {1, 0, W(4096, UINT32_MAX), 0}},
    {.what = "a transfer across the end of the stage",
     .op = GAIA_WIRE_TRANSFERS,
     .length = 40,
     .words = {1, 0, W(4096, (4u << 20) - 16), 0}},
    {.what = "a transfer of no bytes", .op = GAIA_WIRE_TRANSFERS, .length = 40, .words = {1, 0, 0, 0}},
};

static void send_bad(struct gaia_link *link, const struct bad_message *bad)
{
    struct {
        struct gaia_wire_head head;
        uint64_t words[4];
    } message = {.head = {bad->said ? bad->said : bad->length,
                          bad->version ? bad->version : GAIA_WIRE_VERSION, bad->op, bad->credits}};

    memcpy(message.words, bad->words, sizeof message.words);
    for (int i = 0; i <= bad->repeat; i++)
        assert_int_equal(transport_test_send(link, &message, bad->length), 0);
}

static void test_malformed(void **state)
{
    static struct pair pair;
    unsigned links = 1, closed[2] = {0, 0};

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    pair.server.echo = true;
    for (unsigned i = 0; i < sizeof bad_messages / sizeof *bad_messages; i++, links++) {
        const struct bad_message *bad = &bad_messages[i];
        struct gaia_link *link = connect_to(&pair.client, &pair.server, 1, 4);
        struct side *victim = bad->from_server ? &pair.client : &pair.server;

        await(&pair.server, &pair.server.arrived, links + 1);
        send_bad(bad->from_server ? pair.server.links[links] : link, bad);
        closed[0]++;
        closed[1]++;
        if (!await_ms(victim, &victim->closed, closed[bad->from_server], 20000) ||
            victim->closed_error != -EPROTO)
            print_error("%s: closed %u, error %d: %s\n", bad->what, victim->closed, victim->closed_error,
                        victim->closed_why);
        assert_int_equal(victim->closed, closed[bad->from_server]);
        assert_int_equal(victim->closed_error, -EPROTO);
        await(&pair.server, &pair.server.closed, closed[0]);
        await(&pair.client, &pair.client.closed, closed[1]);
        gaia_link_close(link);
    }
    must(gaia_link_send(pair.link, "still here", 10));
    await(&pair.client, &pair.client.messages, 1);
    pair_close(&pair);
}

/* Random bytes: whatever they are, the other links live. */
static void test_noise(void **state)
{
    static struct pair pair;
    uint64_t random = seed;
    uint8_t bytes[256];

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    pair.server.echo = true;
    for (unsigned i = 0; i < 30; i++) {
        struct gaia_link *link = connect_to(&pair.client, &pair.server, 1, 4);
        struct gaia_wire_head head = {1 + (uint32_t)draw(&random, sizeof bytes), GAIA_WIRE_VERSION,
                                      (uint8_t)draw(&random, GAIA_WIRE_DONE + 2), (uint8_t)draw(&random, 3)};

        for (unsigned k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)draw(&random, draw(&random, 2) ? 256 : 2);
        if (draw(&random, 4))
            memcpy(bytes, &head, sizeof head);
        for (unsigned k = 0; k < 4; k++)
            transport_test_send(link, bytes, head.length);
        gaia_transport_poll(pair.client.transport, 5);
        gaia_link_close(link);
    }
    must(gaia_link_send(pair.link, "still here", 10));
    await(&pair.client, &pair.client.messages, 1);
    pair_close(&pair);
}

/* ---- keys ---- */

struct keys {
    struct pair pair;
    struct gaia_link *other; /* another session of the client's */
    uint8_t *secret, *local, *decoy;
    struct gaia_memory *memory;
    uint32_t region; /* of pair.link: the second 16 KiB of 64 KiB of secrets */
    struct link_region named;
};

static void keys_open(struct keys *k, bool writable)
{
    pair_open(&k->pair, 1, 8, TIMEOUT_MS);
    k->other = connect_to(&k->pair.client, &k->pair.server, 1, 8);
    await(&k->pair.server, &k->pair.server.arrived, 2);
    k->secret = new_frames(64 * KIB);
    k->local = new_frames(64 * KIB);
    k->decoy = new_frames(16 * KIB);
    fill(k->secret, 64 * KIB, 8);
    memset(k->local, 0xee, 64 * KIB);
    k->memory = new_memory(&k->pair.client, k->local, 64 * KIB);
    k->region = expose_to(&k->pair, 0, k->secret + 16 * KIB, 16 * KIB, writable);
    /* The other session has a region of the same number, so that it is the key that is refused. */
    assert_int_equal(expose_to(&k->pair, 1, k->decoy, 16 * KIB, true), k->region);
    k->named = *transport_test_region(k->pair.link, k->region);
}

static void keys_close(struct keys *k)
{
    test_as_usual();
    gaia_memory_release(k->memory);
    pair_close(&k->pair);
    munmap(k->secret, 64 * KIB);
    munmap(k->decoy, 16 * KIB);
    munmap(k->local, 64 * KIB);
}

/* A transfer with a key and an address as they are, through a link: it must fail, and nothing may come of it.
 * (Over iWARP a write has ended when TCP has it; the link ends when the peer refuses it.) */
static void must_be_refused(struct keys *k, struct gaia_link *link, uint64_t offset, uint32_t length,
                            bool write)
{
    unsigned closed = k->pair.client.closed;
    struct shot shot = new_shot(k->memory, 0, UINT16_MAX, offset, length, write);

    test_unchecked(k->named.key, k->named.address);
    int error = shoot(&k->pair.client, link, &shot);
    if (!write || !is_iwarp())
        assert_int_equal(error, -EIO);
    test_as_usual();
    await(&k->pair.client, &k->pair.client.closed, closed + 1);
    assert_int_equal(k->pair.client.closed_error, -EIO);
    assert_true(strlen(k->pair.client.closed_why) > 10);
    if (!write)
        for (size_t i = 0; i < 64 * KIB; i++)
            assert_int_equal(k->local[i], 0xee);
    assert_true(matches(k->secret, 64 * KIB, 8, 0));
    struct shot after = new_shot(k->memory, 0, k->region, 0, 4096, false);
    assert_int_equal(post_one(link, 0, &after), -ESHUTDOWN);
}

static void test_key_of_another_session(void **state)
{
    static struct keys k;

    (void)state;
    keys_open(&k, true);
    /* It works through its own link: what fails below fails for the key. */
    struct shot own = new_shot(k.memory, 0, UINT16_MAX, 0, 4096, false);
    test_unchecked(k.named.key, k.named.address);
    assert_int_equal(shoot(&k.pair.client, k.pair.link, &own), 0);
    assert_true(matches(k.local, 4096, 8, 16 * KIB));
    memset(k.local, 0xee, 4096);
    must_be_refused(&k, k.other, 0, 4096, false);
    struct shot still = new_shot(k.memory, 0, k.region, 4096, 4096, false);
    assert_int_equal(shoot(&k.pair.client, k.pair.link, &still), 0);
    assert_true(matches(k.local, 4096, 8, 20 * KIB));
    keys_close(&k);
}

static void test_write_with_key_of_another_session(void **state)
{
    static struct keys k;

    (void)state;
    keys_open(&k, true);
    must_be_refused(&k, k.other, 0, 4096, true);
    keys_close(&k);
}

static void test_key_of_closed_session(void **state)
{
    static struct keys k;

    (void)state;
    keys_open(&k, true);
    gaia_link_close(k.pair.link);
    await(&k.pair.server, &k.pair.server.closed, 1);
    must_be_refused(&k, k.other, 0, 4096, false);
    keys_close(&k);
}

static void test_past_the_frame(void **state)
{
    static struct keys k;

    (void)state;
    keys_open(&k, true);
    struct shot shots[] = {new_shot(k.memory, 0, k.region, 0, 16 * KIB + 1, false),
                           new_shot(k.memory, 0, k.region, 16 * KIB, 1, false),
                           new_shot(k.memory, 0, k.region, UINT64_MAX - 10, 4096, false),
                           new_shot(k.memory, 64 * KIB - 4095, k.region, 0, 4096, false),
                           new_shot(k.memory, UINT64_MAX - 10, k.region, 0, 4096, false),
                           new_shot(k.memory, 0, k.region + 1, 0, 4096, false),
                           new_shot(k.memory, 0, k.region, 0, 0, false),
                           new_shot(k.memory, 0, k.region, 0, GAIA_LINK_TRANSFER_MAX + 1, false),
                           new_shot(NULL, 0, k.region, 0, 4096, false)};
    for (unsigned i = 0; i < sizeof shots / sizeof *shots; i++)
        assert_int_equal(post_one(k.pair.link, 0, &shots[i]), -EINVAL);
    assert_int_equal(post_one(k.pair.link, 1, &shots[0]), -EINVAL);
    assert_int_equal(post_one(k.pair.server.links[0], 0, &shots[0]), -EINVAL);
    assert_int_equal(gaia_link_error(k.pair.link), 0);
    /* And when this side does not look, the other does: past the end, and before the begin. */
    must_be_refused(&k, k.pair.link, 8 * KIB, 16 * KIB, false);
    keys_close(&k);
}

static void test_before_the_frame(void **state)
{
    static struct keys k;

    (void)state;
    keys_open(&k, true);
    must_be_refused(&k, k.pair.link, (uint64_t)0 - 4096, 8192, false);
    keys_close(&k);
}

static void test_write_to_read_only(void **state)
{
    static struct keys k;

    (void)state;
    keys_open(&k, false);
    struct shot polite = new_shot(k.memory, 0, k.region, 0, 4096, true);
    assert_int_equal(post_one(k.pair.link, 0, &polite), -EACCES);
    must_be_refused(&k, k.pair.link, 0, 4096, true);
    keys_close(&k);
}

/* ---- queues in error ---- */

static void break_one(bool at_server, unsigned queue)
{
    static struct pair pair;
    struct shot shots[8];
    /* So much that a NIC is not done with it before the queue is broken. */
    const size_t piece = carrier == GAIA_CARRIER_RDMA ? 2 * MIB : 64 * KIB, bytes = 8 * piece;
    uint8_t *remote = new_frames(bytes), *local = new_frames(bytes);

    pair_open(&pair, 2, 8, TIMEOUT_MS);
    fill(remote, bytes, 9);
    struct gaia_memory *memory = new_memory(&pair.client, local, bytes);
    uint32_t region = expose_to(&pair, 0, remote, bytes, false);
    transport_test.deaf = true; /* on the local carrier all are under way for certain */
    for (unsigned i = 0; i < 8; i++) {
        shots[i] = new_shot(memory, i * piece, region, i * piece, (uint32_t)piece, false);
        assert_int_equal(post_one(pair.link, queue, &shots[i]), 1);
    }
    assert_int_equal(transport_test_break(at_server ? pair.server.links[0] : pair.link, queue), 0);
    uint64_t began = now_ms();
    assert_true(gaia_transport_wait(pair.client.transport, all_shots_done, shots, TIMEOUT_MS + SLACK_MS));
    await(&pair.client, &pair.client.closed, 1);
    await(&pair.server, &pair.server.closed, 1);
    assert_in_range(now_ms() - began, 0, TIMEOUT_MS + SLACK_MS);
    assert_int_equal(pair.client.closed_error, -EIO);
    assert_int_equal(pair.server.closed_error, -EIO);
    assert_int_equal(gaia_link_error(pair.link), -EIO);
    unsigned failed = 0;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(shots[i].calls, 1);
        assert_true(shots[i].error == 0 || shots[i].error == -EIO);
        failed += shots[i].error != 0;
        if (!shots[i].error)
            assert_true(matches(local + i * piece, piece, 9, i * piece));
    }
    print_message("%u of 8 reads failed: %s\n", failed, pair.client.closed_why);
    assert_true(failed > 0);
    transport_test.deaf = false;
    struct shot after = new_shot(memory, 0, region, 0, 4096, false);
    assert_int_equal(post_one(pair.link, 1 - queue, &after), -ESHUTDOWN);
    assert_int_equal(gaia_link_send(pair.link, "x", 1), -EIO);
    gaia_link_close(pair.link);
    /* Another session of the same two does its work. */
    struct gaia_link *link = connect_to(&pair.client, &pair.server, 1, 8);
    await(&pair.server, &pair.server.arrived, 2);
    region = expose_to(&pair, 1, remote, bytes, false);
    struct shot again = new_shot(memory, 0, region, 4096, 4096, false);
    assert_int_equal(shoot(&pair.client, link, &again), 0);
    assert_true(matches(local, 4096, 9, 4096));
    gaia_link_close(link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, bytes);
    munmap(local, bytes);
}

static void test_broken_here(void **state)
{
    (void)state;
    break_one(false, 0);
}

static void test_broken_here_second_queue(void **state)
{
    (void)state;
    break_one(false, 1);
}

static void test_broken_there(void **state)
{
    (void)state;
    break_one(true, 0);
}

static void test_broken_there_second_queue(void **state)
{
    (void)state;
    break_one(true, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_hello),
        CASE(test_malformed),
        CASE(test_noise),
        CASE(test_key_of_another_session),
        CASE(test_write_with_key_of_another_session),
        CASE(test_key_of_closed_session),
        CASE(test_past_the_frame),
        CASE(test_before_the_frame),
        CASE(test_write_to_read_only),
        CASE(test_broken_here),
        CASE(test_broken_here_second_queue),
        CASE(test_broken_there),
        CASE(test_broken_there_second_queue),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("transport, bad input", tests, NULL, NULL);
}
