/* SPDX-License-Identifier: Apache-2.0 */
/* Calls between nodes that do what they should: every length, both directions at once, classes that do not
 * wait for each other, slots. What happens when a node does not: test_call_ends.c. */
#include "tests/io/call_fixture.h"

/* ---- requests and replies ---- */

#define ECHOERS 20u /* of an end, four of a class: more than there are credits */
#define ECHOES 60u

struct echoer {
    struct call_session *session;
    unsigned number;
    unsigned wrong, negative, positive;
    pthread_t thread;
};

static bool echo(struct echoer *e, size_t length, uint64_t salt)
{
    uint8_t request[CALL_BYTES_MAX], reply[CALL_BYTES_MAX + 1];
    size_t reply_length = sizeof reply;

    fill(request, length, salt);
    memset(reply, 0xaa, sizeof reply);
    int result =
        call(e->session, e->number % CALL_CLASSES, OP_ECHO, request, length, reply, &reply_length, LONG_MS);
    e->negative += result < 0;
    e->positive += result > 0;
    return result == echo_result(request, length) && reply_length == length &&
           !memcmp(reply, request, length) && reply[length] == 0xaa;
}

static void *run_echoer(void *argument)
{
    struct echoer *e = argument;
    uint64_t random = seed + e->number;

    for (unsigned i = 0; i < ECHOES; i++) {
        size_t length = (size_t)draw(&random, i % 2 ? CALL_BYTES_MAX + 1 : 9);

        if (i == 0)
            length = e->number % 2 ? 0 : CALL_BYTES_MAX;
        e->wrong += !echo(e, length, mix(random));
    }
    return NULL;
}

static void test_echo(void **state)
{
    static struct couple c;
    static struct echoer echoers[2 * ECHOERS];
    unsigned negative = 0, positive = 0;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < 2 * ECHOERS; i++) {
        echoers[i] = (struct echoer){.session = i % 2 ? c.session : c.other, .number = i};
        assert_int_equal(pthread_create(&echoers[i].thread, NULL, run_echoer, &echoers[i]), 0);
    }
    for (unsigned i = 0; i < 2 * ECHOERS; i++) {
        pthread_join(echoers[i].thread, NULL);
        assert_int_equal(echoers[i].wrong, 0);
        negative += echoers[i].negative;
        positive += echoers[i].positive;
    }
    assert_true(negative > 100 && positive > 100);
    assert_int_equal(call_session_error(c.session), 0);
    assert_int_equal(call_session_error(c.other), 0);
    couple_close(&c);
}

static void test_every_length(void **state)
{
    static struct couple c;
    struct echoer e = {0};

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (size_t length = 0; length <= CALL_BYTES_MAX; length += length < 64 || length > 3800 ? 1 : 97) {
        e.session = length % 2 ? c.session : c.other;
        assert_true(echo(&e, length, seed + length));
    }
    couple_close(&c);
}

static void test_arguments(void **state)
{
    static struct couple c;
    uint8_t bytes[CALL_BYTES_MAX + 1] = {1, 0, 0, 0}, reply[8];
    size_t length = sizeof reply;
    int dummy;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    assert_true(call_session_connected(c.session));
    assert_false(call_session_connected(c.other));
    assert_null(call_session_user(c.session));
    call_session_set_user(c.session, &dummy);
    assert_ptr_equal(call_session_user(c.session), &dummy);
    assert_int_equal(ask(c.session, CALL_CLASSES, OP_ECHO), -EINVAL);
    assert_int_equal(ask(c.session, 0, UINT16_MAX + 1), -EINVAL);
    assert_int_equal(ask_with(c.session, 0, OP_ECHO, bytes, sizeof bytes), -EINVAL);
    assert_int_equal(call_post(c.session, 0, OP_ECHO, bytes, sizeof bytes), -EINVAL);
    assert_int_equal(ask(c.session, 0, OP_HIGHEST), OP_HIGHEST);
    assert_int_equal(ask(c.session, 0, 77), -ENOSYS);
    /* a reply that nobody wants; one that is too long; one that just fits */
    assert_int_equal(ask_with(c.session, 0, OP_ECHO, bytes, 9), 1);
    assert_int_equal(call(c.session, 0, OP_ECHO, bytes, 9, reply, &length, 0), -EPROTO);
    assert_int_equal(length, 0);
    length = sizeof reply;
    assert_int_equal(call(c.session, 0, OP_ECHO, bytes, 8, reply, &length, 0), 1);
    assert_int_equal(length, 8);
    couple_close(&c);
}

/* ---- classes ---- */

/* A class that is full of calls which wait for one of another class. */
static void test_classes_do_not_wait(void **state)
{
    static struct couple c;
    static struct caller callers[CALL_WIDTH];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned round = 0; round < 6; round++) {
        struct call_session *session = round % 2 ? c.other : c.session;
        struct node *node = round % 2 ? &c.client : &c.server;
        unsigned class = round % CALL_CLASSES;

        node_open_gate(node, false);
        for (unsigned i = 0; i < CALL_WIDTH; i++)
            caller_start(&callers[i], session, class, OP_WAIT, 0);
        node_await(node, &node->waiting, CALL_WIDTH);
        assert_int_equal(callers_back(callers, CALL_WIDTH), 0);
        for (unsigned other = 0; other < CALL_CLASSES; other++)
            if (other != class)
                assert_int_equal(ask_with(session, other, OP_ECHO, "abcd", 4), echo_result("abcd", 4));
        assert_int_equal(ask(session, (class + 1) % CALL_CLASSES, OP_OPEN), 0);
        for (unsigned i = 0; i < CALL_WIDTH; i++)
            assert_int_equal(caller_join(&callers[i]), 0);
    }
    couple_close(&c);
}

/* Who has one more than CALL_WIDTH waits here, and the peer never sees it. */
static void test_more_than_the_width(void **state)
{
    enum { MORE = 9, ALL = CALL_WIDTH + MORE };
    static struct couple c;
    static struct caller callers[ALL];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < ALL; i++)
        caller_start(&callers[i], c.session, 2, OP_WAIT, 0);
    node_await(&c.server, &c.server.waiting, CALL_WIDTH);
    nap_ms(100);
    assert_int_equal(callers_back(callers, ALL), 0);
    assert_int_equal(ask(c.session, 0, OP_OPEN), 0);
    for (unsigned i = 0; i < ALL; i++)
        assert_int_equal(caller_join(&callers[i]), 0);
    assert_int_equal(c.server.waiting_most, CALL_WIDTH);
    couple_close(&c);
}

/* One thread has a class full of calls under way with each of two sessions, hears of them in another order,
 * and each has its own reply. */
static void test_several_of_one_thread(void **state)
{
    enum { ALL = 2 * CALL_WIDTH };
    static struct couple c;
    struct call_session *second;
    struct call_asked asked[ALL], waits, wrong;
    uint8_t request[ALL][64], reply[ALL][64], little[4];
    struct caller one_more;
    size_t length;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    second = join_to(&c.client, &c.server);
    call_ask(c.session, 1, OP_WAIT, NULL, 0, NULL, 0, &waits);
    for (unsigned i = 0; i < ALL; i++) {
        fill(request[i], i, seed + i);
        call_ask(i % 2 ? c.session : second, 3, OP_ECHO, request[i], i, reply[i], sizeof reply[i], &asked[i]);
    }
    /* Their places are theirs until they are heard. */
    caller_start(&one_more, c.session, 3, OP_HIGHEST, LONG_MS);
    nap_ms(100);
    assert_false(one_more.back);
    for (unsigned i = ALL; i-- > 0;) {
        length = 777;
        assert_int_equal(call_hear(&asked[i], &length, LONG_MS), echo_result(request[i], i));
        assert_int_equal(length, i);
        assert_memory_equal(reply[i], request[i], i);
    }
    assert_int_equal(caller_join(&one_more), OP_HIGHEST);
    call_ask(second, 3, OP_ECHO, request[9], 9, little, sizeof little, &wrong);
    assert_int_equal(call_hear(&wrong, &length, LONG_MS), -EPROTO);
    assert_int_equal(length, 0);
    call_ask(second, CALL_CLASSES, OP_ECHO, NULL, 0, NULL, 0, &wrong);
    assert_int_equal(call_hear(&wrong, NULL, LONG_MS), -EINVAL);
    node_open_gate(&c.server, true);
    assert_int_equal(call_hear(&waits, NULL, LONG_MS), 0);
    /* A session that ends between the two; and one that has ended. */
    node_open_gate(&c.server, false);
    call_ask(second, 1, OP_WAIT, NULL, 0, little, sizeof little, &waits);
    call_session_abort(second);
    assert_int_equal(call_hear(&waits, &length, LONG_MS), -EIO);
    call_ask(second, 1, OP_ECHO, NULL, 0, NULL, 0, &wrong);
    assert_int_equal(call_hear(&wrong, NULL, LONG_MS), -EIO);
    node_open_gate(&c.server, true);
    call_session_put(second);
    couple_close(&c);
}

/* serve() calls who has called it, on the same session, class by class; from both ends at once. */
static void test_nested(void **state)
{
    static struct couple c;
    static struct caller callers[2 * CALL_WIDTH];
    const uint8_t first = 0;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    assert_int_equal(ask_with(c.session, 0, OP_NEST, &first, 1), CALL_CLASSES - 1);
    assert_int_equal(ask_with(c.other, 0, OP_NEST, &first, 1), CALL_CLASSES - 1);
    for (unsigned turn = 0; turn < 5; turn++) {
        for (unsigned i = 0; i < 2 * CALL_WIDTH; i++)
            caller_start(&callers[i], i % 2 ? c.session : c.other, 4, OP_COUNT, LONG_MS);
        assert_int_equal(ask_with(c.session, 0, OP_NEST, &first, 1), CALL_CLASSES - 1);
        for (unsigned i = 0; i < 2 * CALL_WIDTH; i++)
            assert_int_equal(caller_join(&callers[i]), -EDOM);
    }
    couple_close(&c);
}

static void test_posts(void **state)
{
    enum { POSTS = 300 };
    static struct couple c;
    struct caller one_more;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < POSTS; i++)
        assert_int_equal(call_post(i % 2 ? c.session : c.other, i % CALL_CLASSES, OP_COUNT, NULL, 0), 0);
    node_await(&c.server, &c.server.counted, POSTS / 2);
    node_await(&c.client, &c.client.counted, POSTS / 2);
    /* CALL_WIDTH of them are under way until they were served */
    for (unsigned i = 0; i < CALL_WIDTH; i++)
        assert_int_equal(call_post(c.session, 1, OP_WAIT, NULL, 0), 0);
    node_await(&c.server, &c.server.waiting, CALL_WIDTH);
    one_more = (struct caller){.session = c.session, .class = 1, .op = OP_COUNT, .post = true};
    assert_int_equal(pthread_create(&one_more.thread, NULL, run_caller, &one_more), 0);
    nap_ms(100);
    assert_false(one_more.back);
    node_open_gate(&c.server, true);
    assert_int_equal(caller_join(&one_more), 0);
    node_await(&c.server, &c.server.counted, POSTS / 2 + 1);
    assert_int_equal(c.client.counted, POSTS / 2);
    couple_close(&c);
}

/* ---- slots ---- */

#define MOVERS 6u
#define MOVES 25u

struct mover {
    struct couple *c;
    unsigned number;
    unsigned wrong;
    pthread_t thread;
};

static struct piece random_piece(uint64_t *random, unsigned slot)
{
    uint32_t offset = (uint32_t)draw(random, CALL_SLOT_BYTES),
             length = (uint32_t)draw(random, CALL_SLOT_BYTES - offset) + 1;

    if (!draw(random, 4))
        offset = 0, length = CALL_SLOT_BYTES;
    return (struct piece){.salt = mix(*random), .slot = slot, .offset = offset, .length = length};
}

/* Bytes there, and bytes back, of a slot that is this thread's. */
static bool move_both_ways(struct couple *c, unsigned slot, uint64_t *random)
{
    struct piece written = random_piece(random, slot), back = random_piece(random, slot);
    uint8_t *mine = call_slot(c->session, slot);

    fill_at(mine + written.offset, written.length, written.salt, written.offset);
    if (call_slot_write(c->session, slot, written.offset, written.length) ||
        ask_with(c->session, 3, OP_CHECK, &written, sizeof written) != 1)
        return false;
    if (ask_with(c->session, 3, OP_FILL, &back, sizeof back))
        return false;
    memset(mine, 0, CALL_SLOT_BYTES);
    if (call_slot_read(c->session, slot, back.offset, back.length) ||
        !matches(mine + back.offset, back.length, back.salt, back.offset))
        return false;
    /* and no byte more */
    return (!back.offset || !mine[back.offset - 1]) &&
           (back.offset + back.length == CALL_SLOT_BYTES || !mine[back.offset + back.length]);
}

static void *run_mover(void *argument)
{
    struct mover *m = argument;
    uint64_t random = seed + 1000 + m->number;

    for (unsigned i = 0; i < MOVES; i++) {
        int slot = call_slot_get(m->c->session);

        m->wrong += slot < 0 || slot >= (int)CALL_SLOTS || !move_both_ways(m->c, (unsigned)slot, &random);
        if (slot >= 0)
            call_slot_put(m->c->session, (unsigned)slot);
    }
    return NULL;
}

static void test_slots(void **state)
{
    static struct couple c;
    static struct mover movers[MOVERS];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < MOVERS; i++) {
        movers[i] = (struct mover){.c = &c, .number = i};
        assert_int_equal(pthread_create(&movers[i].thread, NULL, run_mover, &movers[i]), 0);
    }
    for (unsigned i = 0; i < MOVERS; i++) {
        pthread_join(movers[i].thread, NULL);
        assert_int_equal(movers[i].wrong, 0);
    }
    assert_int_equal(call_session_error(c.session), 0);
    couple_close(&c);
}

static void test_slot_arguments(void **state)
{
    static struct couple c;
    uint8_t *page = new_frames(4096);
    struct gaia_reaches reaches = {0};
    struct gaia_standing standing = {.address = page, .length = 4096, .reaches = &reaches};

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    assert_int_equal(call_slot_read(c.session, 0, CALL_SLOT_BYTES, 1), -EINVAL);
    assert_int_equal(call_slot_read(c.session, 0, 1, CALL_SLOT_BYTES), -EINVAL);
    assert_int_equal(call_slot_write(c.session, 31, CALL_SLOT_BYTES - 1, 2), -EINVAL);
    assert_int_equal(call_slot_write(c.session, 0, SIZE_MAX, 2), -EINVAL);
    assert_int_equal(call_slot_write(c.session, 0, 2, SIZE_MAX), -EINVAL);
    assert_int_equal(call_slot_read(c.session, 2 * CALL_SLOTS, 0, 1), -EINVAL);
    assert_int_equal(call_slot_read_into(c.session, UINT32_MAX, 0, 4096, page, &standing), -EINVAL);
    assert_int_equal(call_slot_read_into(c.session, 1, CALL_SLOT_BYTES - 4095, 4096, page, &standing),
                     -EINVAL);
    assert_int_equal(call_slot_read(c.session, 0, CALL_SLOT_BYTES, 0), 0);
    assert_int_equal(call_slot_read(c.session, 31, CALL_SLOT_BYTES - 1, 1), 0);
    assert_int_equal(call_slot_read(c.other, 0, 0, 1), -EINVAL);
    assert_int_equal(call_slot_write(c.other, 0, 0, 1), -EINVAL);
    assert_int_equal(call_slot_read_into(c.other, 0, 0, 4096, page, &standing), -EINVAL);
    assert_null(call_slot(c.session, 2 * CALL_SLOTS));
    assert_null(call_slot(c.other, UINT32_MAX));
    assert_non_null(call_slot(c.other, 2 * CALL_SLOTS - 1));
    assert_int_equal(call_session_error(c.session), 0);
    couple_close(&c);
    munmap(page, 4096);
}

struct getter {
    struct call_session *session;
    _Atomic bool back;
    int slot;
    pthread_t thread;
};

static void *run_getter(void *argument)
{
    struct getter *getter = argument;

    getter->slot = call_slot_get(getter->session);
    getter->back = true;
    return NULL;
}

/* Each end has a half of them, and waits when all are taken. */
static void test_slots_run_out(void **state)
{
    static struct couple c;
    static struct getter getter;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned end = 0; end < 2; end++) {
        struct call_session *session = end ? c.other : c.session;
        uint32_t taken = 0;

        for (unsigned i = 0; i < CALL_SLOTS; i++) {
            int slot = call_slot_get(session);

            assert_true(slot >= 0 && (unsigned)slot / CALL_SLOTS == end);
            assert_false(taken & 1u << slot);
            taken |= 1u << slot;
        }
        getter = (struct getter){.session = session};
        assert_int_equal(pthread_create(&getter.thread, NULL, run_getter, &getter), 0);
        nap_ms(100);
        assert_false(getter.back);
        call_slot_put(session, end * CALL_SLOTS + 5);
        pthread_join(getter.thread, NULL);
        assert_int_equal(getter.slot, end * CALL_SLOTS + 5);
        for (unsigned i = 0; i < CALL_SLOTS; i++)
            call_slot_put(session, end * CALL_SLOTS + i);
    }
    couple_close(&c);
}

/* A request names a slot of its sender's half, which no other request that is served names: else two threads
 * would fill and store the same bytes. */
static void test_slots_are_served_to_one(void **state)
{
    static struct couple c;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned end = 0; end < 2; end++) {
        struct call_session *session = end ? c.other : c.session;
        unsigned own = end * CALL_SLOTS, peers = CALL_SLOTS - own;

        for (unsigned i = 0; i < CALL_SLOTS; i++) {
            assert_null(call_slot_serve(session, own + i));
            assert_ptr_equal(call_slot_serve(session, peers + i), call_slot(session, peers + i));
        }
        for (unsigned i = 0; i < CALL_SLOTS; i++) {
            assert_null(call_slot_serve(session, peers + i));
            call_slot_served(session, peers + i);
            assert_non_null(call_slot_serve(session, peers + i));
            call_slot_served(session, peers + i);
        }
        assert_null(call_slot_serve(session, 2 * CALL_SLOTS));
        assert_null(call_slot_serve(session, UINT32_MAX));
    }
    couple_close(&c);
}

static void test_read_into_what_is_cut_off(void **state)
{
    enum { LENGTH = 64 * 1024 };
    static struct couple c;
    int fd = memfd_create("cut", MFD_CLOEXEC);
    struct gaia_reaches reaches = {0};
    struct calls_stat s;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, LENGTH), 0);
    uint8_t *frames = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(frames, MAP_FAILED);
    assert_int_equal(ftruncate(fd, LENGTH / 2), 0);
    struct gaia_standing standing = {.address = frames, .length = LENGTH, .reaches = &reaches};
    couple_open(&c, TIMEOUT_MS);
    int error = call_slot_read_into(c.session, 0, 0, LENGTH, frames, &standing);
    assert_int_equal(error, carrier == GAIA_CARRIER_LOCAL ? -EFAULT : -EOPNOTSUPP); /* not registered */
    assert_int_equal(call_session_error(c.session), 0);
    calls_stat(c.client.calls, &s);
    assert_true(!s.reads && !s.bytes_read && !s.latency_max_ns && !s.outstanding);
    if (carrier == GAIA_CARRIER_LOCAL)
        assert_int_equal(s.failed, 1);
    assert_int_equal(ask(c.session, 0, OP_HIGHEST), OP_HIGHEST);
    gaia_standing_end(&standing);
    couple_close(&c);
    munmap(frames, LENGTH);
    close(fd);
}

/* Straight to memory that stands, and only there: what a transfer of it shows is learnt, and only of one that
 * began. */
static void test_read_into_what_stands(void **state)
{
    enum { LENGTH = 64 * 1024 };
    static struct couple c;
    uint8_t *frames = new_frames(3 * LENGTH);
    struct piece piece = {.salt = seed, .slot = 20, .offset = 8192, .length = LENGTH};
    struct gaia_reaches reaches = {0};
    struct gaia_standing standing = {.address = frames, .length = (size_t)3 * LENGTH, .reaches = &reaches};

    (void)state;
    couple_open(&c, SHORT_MS / 2);
    assert_int_equal(ask_with(c.session, 0, OP_FILL, &piece, sizeof piece), 0);
    assert_int_equal(call_slot_read_into(c.session, 20, 8192, LENGTH, frames + LENGTH, &standing), 0);
    assert_true(matches(frames + LENGTH, LENGTH, seed, 8192));
    assert_true(!frames[LENGTH - 1] && !frames[2 * LENGTH]);
    assert_int_equal(((uint8_t *)call_slot(c.session, 20))[8192], 0); /* its own copy is as it was */
    assert_int_equal(gaia_standing_reach(&standing, GAIA_PATH_CALLS), GAIA_REACH_UNKNOWN);
    if (carrier == GAIA_CARRIER_LOCAL) { /* whose peer answers itself: a NIC needs nobody for it */
        transport_test.deaf = true;
        assert_int_equal(call_slot_read_into(c.session, 20, 8192, LENGTH, frames, &standing), -EIO);
        transport_test.deaf = false;
        assert_int_equal(gaia_standing_reach(&standing, GAIA_PATH_CALLS), GAIA_REACH_NONE);
    }
    assert_int_equal(gaia_standing_reach(&standing, GAIA_PATH_FAULTS), GAIA_REACH_UNKNOWN);
    reaches = (struct gaia_reaches){0};
    session_close(c.session); /* no transfer begins any more */
    assert_int_equal(call_slot_read_into(c.session, 20, 8192, LENGTH, frames, &standing), -EIO);
    assert_int_equal(gaia_standing_reach(&standing, GAIA_PATH_CALLS), GAIA_REACH_UNKNOWN);
    gaia_standing_end(&standing);
    couple_close(&c);
    munmap(frames, 3 * LENGTH);
}

/* What has moved is counted at the end that has posted it, for all sessions. */
static void test_transfers_are_counted(void **state)
{
    enum { READS = 40, WRITES = 7, LENGTH = 10000 };
    static struct couple c;
    uint8_t *frames = new_frames(LENGTH);
    struct gaia_reaches reaches = {0};
    struct gaia_standing standing = {.address = frames, .length = LENGTH, .reaches = &reaches};
    struct calls_stat s;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    calls_stat(c.client.calls, &s);
    assert_string_equal(s.path, carrier == GAIA_CARRIER_RDMA ? "rdma" : "local");
    assert_true(*s.device);
    assert_true(!s.outstanding_max && !s.reads && !s.writes && !s.failed && !s.latency_max_ns);
    for (unsigned i = 0; i < READS; i++)
        if (i % 2)
            assert_int_equal(call_slot_read(c.session, i % CALL_SLOTS, i, LENGTH), 0);
        else
            assert_int_equal(call_slot_read_into(c.session, 3, i, LENGTH, frames, &standing), 0);
    for (unsigned i = 0; i < WRITES; i++)
        assert_int_equal(call_slot_write(c.session, i, 0, 2 * LENGTH), 0);
    assert_int_equal(ask(c.session, 0, OP_HIGHEST), OP_HIGHEST); /* they have ended by then */
    session_close(c.session); /* what it has counted stays; and what it does not try is not counted */
    assert_int_equal(call_slot_read(c.session, 0, 0, 1), -EIO);
    calls_stat(c.client.calls, &s);
    assert_int_equal(s.outstanding, 0);
    assert_in_range(s.outstanding_max, 1, WRITES);
    assert_int_equal(s.reads, READS);
    assert_int_equal(s.writes, WRITES);
    assert_int_equal(s.bytes_read, READS * LENGTH);
    assert_int_equal(s.bytes_written, WRITES * 2 * LENGTH);
    assert_int_equal(s.failed, 0);
    assert_true(s.latency_p50_ns > 0 && s.latency_p50_ns <= s.latency_p99_ns);
    assert_true(s.latency_p99_ns <= s.latency_max_ns);
    calls_stat(c.server.calls, &s);
    assert_true(!s.outstanding_max && !s.reads && !s.writes && !s.failed && !s.latency_max_ns);
    gaia_standing_end(&standing);
    couple_close(&c);
    munmap(frames, LENGTH);
}

static bool is_zero(const uint8_t *bytes, size_t length)
{
    return !bytes[0] && !memcmp(bytes, bytes + 1, length - 1);
}

/* What one session writes no other sees: neither the same client's nor another's. */
static void test_slots_are_of_one_session(void **state)
{
    static struct couple c;
    static struct node third;
    struct call_session *sessions[3];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    node_open(&third, false, TIMEOUT_MS);
    sessions[0] = c.session;
    sessions[1] = join_to(&c.client, &c.server);
    node_await(&c.server, &c.server.arrived, 2);
    sessions[2] = join_to(&third, &c.server);
    node_await(&c.server, &c.server.arrived, 3);
    for (unsigned slot = 0; slot < 2 * CALL_SLOTS; slot++) {
        fill(call_slot(sessions[1], slot), CALL_SLOT_BYTES, slot + 1);
        assert_int_equal(call_slot_write(sessions[1], slot, 0, CALL_SLOT_BYTES), 0);
    }
    assert_int_equal(ask(sessions[1], 0, OP_HIGHEST), OP_HIGHEST);
    for (unsigned slot = 0; slot < 2 * CALL_SLOTS; slot++)
        for (unsigned i = 0; i < 3; i++) {
            const uint8_t *bytes = call_slot(c.server.sessions[i], slot);
            const uint8_t *copy = call_slot(sessions[i], slot);

            assert_true(i == 1 ? matches(bytes, CALL_SLOT_BYTES, slot + 1, 0)
                               : is_zero(bytes, CALL_SLOT_BYTES) && is_zero(copy, CALL_SLOT_BYTES));
        }
    session_close(sessions[1]);
    call_session_put(sessions[1]);
    session_close(sessions[2]);
    call_session_put(sessions[2]);
    node_close(&third);
    couple_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_echo),
        CASE(test_every_length),
        CASE(test_arguments),
        CASE(test_classes_do_not_wait),
        CASE(test_more_than_the_width),
        CASE(test_several_of_one_thread),
        CASE(test_nested),
        CASE(test_posts),
        CASE(test_slots),
        CASE(test_slot_arguments),
        CASE(test_read_into_what_stands),
        CASE(test_slots_run_out),
        CASE(test_slots_are_served_to_one),
        CASE(test_read_into_what_is_cut_off),
        CASE(test_transfers_are_counted),
        CASE(test_slots_are_of_one_session),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("calls", tests, NULL, NULL);
}
