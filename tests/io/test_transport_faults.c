/* SPDX-License-Identifier: Apache-2.0 */
/* The transport under bad input and faults: peers of another version, malformed messages, keys that are
 * another's, lengths past the frame, queue pairs in error, peers that are killed, or stop. Each ends in an
 * error within the set time, and for the link concerned only. */
#include "tests/io/transport_fixture.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define SLACK_MS 4000u /* for a machine under load, or under emulation */

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
    struct pair pair;
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
    {.what = "operation 200", .op = 200, .length = 16},
    {.what = "a user's message without bytes", .op = GAIA_WIRE_USER, .length = 8},
    {.what = "a second HELLO", .op = GAIA_WIRE_HELLO, .length = 40},
    {.what = "a KEEPALIVE of the wrong length", .op = GAIA_WIRE_KEEPALIVE, .length = 24},
    {.what = "credits that nobody spent", .op = GAIA_WIRE_KEEPALIVE, .length = 16, .credits = 200},
    {.what = "EXPOSE of who connected", .op = GAIA_WIRE_EXPOSE, .length = 40, .words = {0, 0x1000, 4096, 1}},
    {.what = "DROP of who connected", .op = GAIA_WIRE_DROP, .length = 16},
    {.what = "DROPPED that nobody asked for", .op = GAIA_WIRE_DROPPED, .length = 16},
    {.what = "DROPPED of no region", .op = GAIA_WIRE_DROPPED, .length = 16, .words = {UINT32_MAX}},
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
    {.what = "DROP of no region", .from_server = true, .op = GAIA_WIRE_DROP, .length = 16, .words = {3}},
    {.what = "DROP of region 4 billion",
     .from_server = true,
     .op = GAIA_WIRE_DROP,
     .length = 16,
     .words = {UINT32_MAX}},
    {.what = "DROPPED from who exposes", .from_server = true, .op = GAIA_WIRE_DROPPED, .length = 16},
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
    struct pair pair;
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
    struct pair pair;
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
    uint8_t *secret, *local;
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
    fill(k->secret, 64 * KIB, 8);
    memset(k->local, 0xee, 64 * KIB);
    k->memory = new_memory(&k->pair.client, k->local, 64 * KIB);
    k->region = expose_to(&k->pair, 0, k->secret + 16 * KIB, 16 * KIB, writable);
    k->named = *transport_test_region(k->pair.link, k->region);
}

static void keys_close(struct keys *k)
{
    test_as_usual();
    gaia_memory_release(k->memory);
    pair_close(&k->pair);
    munmap(k->secret, 64 * KIB);
    munmap(k->local, 64 * KIB);
}

/* A transfer with a key and an address as they are, through a link: it must fail, and nothing may come of it.
 */
static void must_be_refused(struct keys *k, struct gaia_link *link, uint64_t offset, uint32_t length,
                            bool write)
{
    unsigned closed = k->pair.client.closed;
    struct shot shot = new_shot(k->memory, 0, UINT16_MAX, offset, length, write);

    test_unchecked(k->named.key, k->named.address);
    assert_int_equal(shoot(&k->pair.client, link, &shot), -EIO);
    test_as_usual();
    await(&k->pair.client, &k->pair.client.closed, closed + 1);
    assert_int_equal(k->pair.client.closed_error, -EIO);
    assert_true(strlen(k->pair.client.closed_why) > 10);
    if (!write)
        for (size_t i = 0; i < 64 * KIB; i++)
            assert_int_equal(k->local[i], 0xee);
    assert_true(matches(k->secret, 64 * KIB, 8, 0));
    struct shot after = new_shot(k->memory, 0, k->region, 0, 4096, false);
    assert_int_equal(post_one(link, 0, &after), -EIO);
}

static void test_key_of_another_session(void **state)
{
    struct keys k;

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
    struct keys k;

    (void)state;
    keys_open(&k, true);
    must_be_refused(&k, k.other, 0, 4096, true);
    keys_close(&k);
}

static void test_key_of_closed_session(void **state)
{
    struct keys k;

    (void)state;
    keys_open(&k, true);
    gaia_link_close(k.pair.link);
    await(&k.pair.server, &k.pair.server.closed, 1);
    must_be_refused(&k, k.other, 0, 4096, false);
    keys_close(&k);
}

static void test_key_of_dropped_region(void **state)
{
    struct keys k;

    (void)state;
    keys_open(&k, true);
    must(gaia_link_drop(k.pair.server.links[0], k.region));
    await(&k.pair.client, &k.pair.client.dropped, 1);
    await(&k.pair.server, &k.pair.server.concealed, 1);
    must_be_refused(&k, k.pair.link, 0, 4096, false);
    keys_close(&k);
}

static void test_past_the_frame(void **state)
{
    struct keys k;

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
    struct keys k;

    (void)state;
    keys_open(&k, true);
    must_be_refused(&k, k.pair.link, (uint64_t)0 - 4096, 8192, false);
    keys_close(&k);
}

static void test_write_to_read_only(void **state)
{
    struct keys k;

    (void)state;
    keys_open(&k, false);
    struct shot polite = new_shot(k.memory, 0, k.region, 0, 4096, true);
    assert_int_equal(post_one(k.pair.link, 0, &polite), -EACCES);
    must_be_refused(&k, k.pair.link, 0, 4096, true);
    keys_close(&k);
}

/* ---- queues in error ---- */

static bool all_shots_done(void *context)
{
    struct shot *shots = context;

    for (unsigned i = 0; i < 8; i++)
        if (!shots[i].calls)
            return false;
    return true;
}

static void break_one(bool at_server, unsigned queue)
{
    struct pair pair;
    uint8_t *remote = new_frames(8 * MIB), *local = new_frames(8 * MIB);
    struct shot shots[8];
    /* So much that a NIC is not done with it before the queue is broken. */
    const size_t piece = carrier == GAIA_CARRIER_RDMA ? MIB : 64 * KIB;

    pair_open(&pair, 2, 8, TIMEOUT_MS);
    fill(remote, 8 * piece, 9);
    struct gaia_memory *memory = new_memory(&pair.client, local, 8 * MIB);
    uint32_t region = expose_to(&pair, 0, remote, 8 * MIB, false);
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
    assert_int_equal(post_one(pair.link, 1 - queue, &after), -EIO);
    assert_int_equal(gaia_link_send(pair.link, "x", 1), -EIO);
    gaia_link_close(pair.link);
    /* Another session of the same two does its work. */
    struct gaia_link *link = connect_to(&pair.client, &pair.server, 1, 8);
    await(&pair.server, &pair.server.arrived, 2);
    region = expose_to(&pair, 1, remote, 8 * MIB, false);
    struct shot again = new_shot(memory, 0, region, 4096, 4096, false);
    assert_int_equal(shoot(&pair.client, link, &again), 0);
    assert_true(matches(local, 4096, 9, 4096));
    gaia_link_close(link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, 8 * MIB);
    munmap(local, 8 * MIB);
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

/* ---- a peer in another process ---- */

enum { FRAMES = 1 << 20 };

struct child {
    pid_t pid;
    struct shared {
        char address[128];
        unsigned timeout_ms;
        _Atomic bool ready, deaf;
    } * shared;
};

/* Listens, and exposes its frames to whoever comes; until it is killed. */
static void child_main(int shared_fd)
{
    static struct side side;
    struct gaia_transport_config config;
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    uint8_t *frames = new_frames(FRAMES);
    unsigned exposed = 0;
    uint32_t region;

    alarm(TIME_LIMIT_S);
    fill(frames, FRAMES, 10);
    side_init(&side, true);
    memcpy(side.address, shared->address, sizeof side.address);
    config = side_config(&side, true, shared->timeout_ms);
    if (gaia_transport_open(&config, &side.transport)) {
        print_error("child: %s\n", gaia_transport_why());
        _exit(3);
    }
    shared->ready = true;
    for (;;) {
        gaia_transport_poll(side.transport, 50);
        for (; exposed < side.arrived; exposed++)
            gaia_link_expose(side.links[exposed], &(struct gaia_span){frames, FRAMES, -1}, false, &region);
        transport_test.deaf = shared->deaf;
    }
}

/* The same program anew: the kernel lets no child use a device that its parent has opened. */
static void child_start(struct child *child, unsigned timeout_ms)
{
    const struct timespec nap = {.tv_nsec = 5000000};
    int fd = memfd_create("shared", 0);
    char number[16];

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof *child->shared), 0);
    child->shared = mmap(NULL, sizeof *child->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(child->shared, MAP_FAILED);
    new_address(child->shared->address, true);
    child->shared->timeout_ms = timeout_ms;
    snprintf(number, sizeof number, "%d", fd);
    child->pid = fork();
    assert_true(child->pid >= 0);
    if (!child->pid && carrier == GAIA_CARRIER_RDMA)
        execl("/proc/self/exe", "child", "--carrier", "rdma", here, there, "--child", number, NULL);
    else if (!child->pid)
        execl("/proc/self/exe", "child", "--child", number, NULL);
    if (!child->pid)
        _exit(4);
    close(fd);
    while (!child->shared->ready) {
        assert_int_equal(waitpid(child->pid, NULL, WNOHANG), 0);
        nanosleep(&nap, NULL);
    }
}

static void child_end(struct child *child, bool killed)
{
    int status;

    if (!killed)
        kill(child->pid, SIGKILL);
    if (!killed)
        assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    munmap(child->shared, sizeof *child->shared);
}

struct parent {
    struct child child;
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
    child_start(&p->child, SHORT_MS);
    side_open(&p->client, false, SHORT_MS);
    p->local = new_frames(FRAMES);
    p->memory = new_memory(&p->client, p->local, FRAMES);
    must(gaia_link_connect(p->client.transport, p->child.shared->address, &options, &p->link));
    await(&p->client, &p->client.exposed, 1);
    struct shot first = new_shot(p->memory, 0, p->client.region, 0, 4096, false);
    assert_int_equal(shoot(&p->client, p->link, &first), 0);
    assert_true(matches(p->local, 4096, 10, 0));
}

static void parent_close(struct parent *p, bool killed)
{
    gaia_link_close(p->link);
    gaia_memory_release(p->memory);
    side_close(&p->client);
    child_end(&p->child, killed);
    munmap(p->local, FRAMES);
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
    struct parent p;
    int status;

    (void)state;
    parent_open(&p);
    for (unsigned i = 0; i < 8; i++) {
        p.shots[i] = new_shot(p.memory, i * 64 * KIB, p.client.region, i * 64 * KIB, 64 * KIB, false);
        assert_int_equal(post_one(p.link, 0, &p.shots[i]), 1);
    }
    assert_int_equal(kill(p.child.pid, SIGKILL), 0);
    assert_int_equal(waitpid(p.child.pid, &status, 0), p.child.pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_true(gaia_transport_wait(p.client.transport, all_shots_done, p.shots, SHORT_MS + SLACK_MS));
    read_until_end(&p, SHORT_MS + SLACK_MS);
    parent_close(&p, true);
}

static void test_peer_stops(void **state)
{
    struct parent p;
    int status;

    (void)state;
    parent_open(&p);
    assert_int_equal(kill(p.child.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(p.child.pid, &status, WUNTRACED), p.child.pid);
    assert_true(WIFSTOPPED(status));
    read_until_end(&p, SHORT_MS + SLACK_MS);
    parent_close(&p, false);
}

/* It lives and says so, but does not do what it is asked. (On RDMA the NIC does.) */
static void test_peer_ignores_transfers(void **state)
{
    struct parent p;
    const struct timespec nap = {.tv_nsec = 200000000};

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA)
        skip();
    parent_open(&p);
    p.child.shared->deaf = true;
    nanosleep(&nap, NULL);
    gaia_transport_poll(p.client.transport, 0);
    read_until_end(&p, SHORT_MS + SLACK_MS);
    assert_non_null(strstr(p.client.closed_why, "has not answered a transfer"));
    parent_close(&p, false);
}

/* A region that is not given back: the stopped peer does not answer DROP. Here the test is the server. */
static void test_drop_unanswered(void **state)
{
    struct pair pair;
    uint8_t *remote = new_frames(4 * KIB);

    (void)state;
    pair_open(&pair, 1, 4, SHORT_MS);
    uint32_t region = expose_to(&pair, 0, remote, 4 * KIB, false);
    must(gaia_link_drop(pair.server.links[0], region));
    /* The client, in this thread, does not poll. */
    uint64_t began = now_ms();
    while (!pair.server.closed && now_ms() - began < SHORT_MS + SLACK_MS)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(pair.server.closed, 1);
    assert_int_equal(pair.server.closed_error, -EIO);
    assert_int_equal(pair.server.concealed, 0);
    gaia_link_close(pair.link);
    pair_close(&pair);
    munmap(remote, 4 * KIB);
}

static void test_connect_to_stopped_peer(void **state)
{
    struct child child;
    struct side client;
    struct gaia_link_options options = {.queues = 1, .depth = 8};
    struct gaia_link *link = NULL;
    int status;

    (void)state;
    child_start(&child, SHORT_MS);
    assert_int_equal(kill(child.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(child.pid, &status, WUNTRACED), child.pid);
    side_open(&client, false, SHORT_MS);
    uint64_t began = now_ms();
    assert_int_equal(gaia_link_connect(client.transport, child.shared->address, &options, &link), -ETIMEDOUT);
    assert_in_range(now_ms() - began, SHORT_MS - 100, SHORT_MS + SLACK_MS);
    side_close(&client);
    child_end(&child, false);
}

/* ---- addresses and resources ---- */

static void test_nobody_listens(void **state)
{
    struct side client;
    char address[128];
    struct gaia_link_options options = {.queues = 1, .depth = 8};
    struct gaia_link *link = NULL;

    (void)state;
    side_open(&client, false, TIMEOUT_MS);
    new_address(address, true);
    assert_int_equal(gaia_link_connect(client.transport, address, &options, &link), -ECONNREFUSED);
    assert_non_null(strstr(gaia_transport_why(), address));
    assert_int_equal(gaia_link_connect(client.transport, "", &options, &link), -EINVAL);
    options.queues = GAIA_LINK_QUEUES_MAX + 1;
    assert_int_equal(gaia_link_connect(client.transport, address, &options, &link), -EINVAL);
    options = (struct gaia_link_options){1, GAIA_LINK_DEPTH_MAX + 1};
    assert_int_equal(gaia_link_connect(client.transport, address, &options, &link), -EINVAL);
    side_close(&client);
}

static int open_at(const char *address, bool listen, enum gaia_carrier which)
{
    struct gaia_transport_config config = {
        .carrier = which, .address = address, .listen = listen, .timeout_ms = TIMEOUT_MS};
    struct gaia_transport *transport = NULL;
    int error = gaia_transport_open(&config, &transport);

    if (!error)
        gaia_transport_close(transport);
    return error;
}

static void test_port_in_use(void **state)
{
    struct side server;

    (void)state;
    side_open(&server, true, TIMEOUT_MS);
    assert_int_equal(open_at(server.address, true, carrier), -EADDRINUSE);
    assert_non_null(strstr(gaia_transport_why(), server.address));
    side_close(&server);
}

static void test_bad_addresses(void **state)
{
    static const char *const bad[] = {
        "",       "nonsense",    "10.0.0.1", "10.0.0.1:", "10.0.0.1:99999", "10.0.0.1:1x", "host.example:1",
        "[::1:5", "10.0.0.256:1"};

    (void)state;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(open_at(bad[i], false, GAIA_CARRIER_RDMA), -EINVAL);
    char longest[100];
    memset(longest, 'x', sizeof longest);
    longest[99] = 0;
    assert_int_equal(open_at(longest, true, GAIA_CARRIER_LOCAL), -EINVAL);
    struct gaia_transport_config config = {.carrier = carrier, .address = "x", .timeout_ms = 49};
    struct gaia_transport *transport;
    assert_int_equal(gaia_transport_open(&config, &transport), -EINVAL);
}

/* Where there is none; the machine in which the others run has one, so this one runs before it gets it. */
static void test_no_device(void **state)
{
    (void)state;
    if (carrier == GAIA_CARRIER_RDMA || access("/sys/class/infiniband", F_OK) == 0) {
        DIR *folder = opendir("/sys/class/infiniband");
        int count = 0;
        while (folder && readdir(folder))
            count++;
        if (folder)
            closedir(folder);
        if (count > 2)
            skip();
    }
    assert_int_equal(open_at("127.0.0.1:0", false, GAIA_CARRIER_RDMA), -ENODEV);
    assert_non_null(strstr(gaia_transport_why(), "no RDMA device"));
}

/* Addresses that no RDMA device has: this machine's own, and nobody's. */
static void test_device_without_address(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip();
    assert_int_equal(open_at("127.0.0.1:0", true, carrier), -EADDRNOTAVAIL);
    assert_non_null(strstr(gaia_transport_why(), "127.0.0.1"));
    assert_int_equal(open_at("192.0.2.77:7471", true, carrier), -EADDRNOTAVAIL);
    assert_int_equal(open_at("0.0.0.0:0", true, carrier), -EADDRNOTAVAIL);
}

/* In a process of its own: the kernel lets nobody use a device whose rights have changed since it was opened.
 */
static void limited(void **state)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    struct pair pair;
    const size_t length = 32 * MIB;
    uint8_t *frames = new_frames(length);
    struct gaia_span span = {frames, length, -1};
    struct gaia_memory *memory = NULL;
    uint32_t region;

    (void)state;
    assert_int_equal(syscall(SYS_capget, &head, data), 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    assert_int_equal(syscall(SYS_capset, &head, data), 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){8 * MIB, 8 * MIB}), 0);
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    assert_int_equal(gaia_memory_register(pair.client.transport, &span, &memory), -ENOMEM);
    print_message("%s\n", gaia_transport_why());
    assert_non_null(strstr(gaia_transport_why(), "RLIMIT_MEMLOCK allows 8388608 bytes"));
    assert_int_equal(gaia_link_expose(pair.server.links[0], &span, false, &region), -ENOMEM);
    assert_non_null(strstr(gaia_transport_why(), "RLIMIT_MEMLOCK"));
    /* The link has not noticed. */
    memory = new_memory(&pair.client, frames, MIB);
    region = expose_to(&pair, 0, frames + MIB, MIB, false);
    struct shot shot = new_shot(memory, 0, region, 0, 4096, false);
    assert_int_equal(shoot(&pair.client, pair.link, &shot), 0);
    gaia_link_close(pair.link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(frames, length);
}

static void test_memlock(void **state)
{
    int status;

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip(); /* nothing is locked */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        execl("/proc/self/exe", "limited", "--carrier", "rdma", here, there, "--limited", NULL);
        _exit(4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Another device's memory, where the carrier takes none. */
static void test_dmabuf(void **state)
{
    struct pair pair;
    struct gaia_transport_limits limits;
    struct gaia_memory *memory = NULL;
    uint32_t region;
    struct gaia_span span = {NULL, 4096, 0}; /* standard input is no dmabuf anyway */

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    gaia_transport_limits(pair.client.transport, &limits);
    print_message("device %s, %u reads of a queue, %llu MB/s, dmabuf: %s\n", limits.device,
                  limits.reads_per_queue, (unsigned long long)limits.bytes_per_second / 1000000,
                  limits.dmabuf ? "yes" : "no");
    if (limits.dmabuf)
        skip();
    assert_int_equal(gaia_memory_register(pair.client.transport, &span, &memory), -EOPNOTSUPP);
    assert_int_equal(gaia_link_expose(pair.server.links[0], &span, false, &region), -EOPNOTSUPP);
    span.dmabuf = -1;
    assert_int_equal(gaia_memory_register(pair.client.transport, &span, &memory), -EINVAL);
    pair_close(&pair);
}

/* Who connects and says nothing keeps nobody out. */
static void test_silent_crowd(void **state)
{
    struct pair pair;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int crowd[80];

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    pair_open(&pair, 1, 4, SHORT_MS);
    size_t length = strlen(pair.server.address);
    memcpy(address.sun_path + 1, pair.server.address, length);
    for (unsigned i = 0; i < 80; i++) {
        crowd[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_true(crowd[i] >= 0);
        assert_int_equal(connect(crowd[i], (struct sockaddr *)&address,
                                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)),
                         0);
    }
    struct gaia_link *link = connect_to(&pair.client, &pair.server, 2, 4);
    await(&pair.server, &pair.server.arrived, 2);
    gaia_link_close(link);
    for (unsigned i = 0; i < 80; i++)
        close(crowd[i]);
    pair_close(&pair);
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
        CASE(test_key_of_dropped_region),
        CASE(test_past_the_frame),
        CASE(test_before_the_frame),
        CASE(test_write_to_read_only),
        CASE(test_broken_here),
        CASE(test_broken_here_second_queue),
        CASE(test_broken_there),
        CASE(test_broken_there_second_queue),
        CASE(test_peer_killed),
        CASE(test_peer_stops),
        CASE(test_peer_ignores_transfers),
        CASE(test_drop_unanswered),
        CASE(test_connect_to_stopped_peer),
        CASE(test_nobody_listens),
        CASE(test_port_in_use),
        CASE(test_bad_addresses),
        CASE(test_no_device),
        CASE(test_device_without_address),
        CASE(test_memlock),
        CASE(test_dmabuf),
        CASE(test_silent_crowd),
    };

    const struct CMUnitTest alone[] = {CASE(limited)};

    take_arguments(argc, argv);
    if (argc > 2 && !strcmp(argv[argc - 2], "--child"))
        child_main(atoi(argv[argc - 1]));
    if (!strcmp(argv[argc - 1], "--limited"))
        return cmocka_run_group_tests_name("with little memory to lock", alone, NULL, NULL);
    return cmocka_run_group_tests_name("transport, bad input and faults", tests, NULL, NULL);
}
