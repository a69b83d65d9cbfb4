/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with a peer that is written by hand: what makes no sense ends its session, and no other; what it
 * takes late, or not at all, holds nobody else up. */
#include "tests/io/call_fixture.h"

/* ---- a link to a node, by hand ---- */

struct stranger {
    struct side side;
    struct gaia_link *link;
};

struct words {
    struct call_head head;
    uint8_t payload[GAIA_LINK_MESSAGE_MAX - sizeof(struct call_head)];
};

static struct words request(unsigned class, unsigned op, uint64_t number, size_t payload)
{
    struct words words = {.head = {.length = (uint32_t)(sizeof words.head + payload),
                                   .kind = CALL_KIND_REQUEST,
                                   .class = (uint8_t) class,
                                   .op = (uint16_t)op,
                                   .number = number}};

    return words;
}

static void say(struct stranger *s, const void *bytes, size_t length)
{
    int error;

    while ((error = gaia_link_send(s->link, bytes, length)) == -EAGAIN)
        gaia_transport_poll(s->side.transport, 10);
    assert_int_equal(error, 0);
}

static void say_words(struct stranger *s, const struct words *words)
{
    say(s, words, words->head.length);
}

static void stranger_open(struct stranger *s, struct node *server, bool begin)
{
    struct words words = {
        .head = {.length = sizeof words.head, .kind = CALL_KIND_BEGIN, .number = CALL_BEGIN}};

    side_open(&s->side, false, TIMEOUT_MS);
    s->link = NULL;
    must(gaia_link_connect(s->side.transport, server->address, &(struct gaia_link_options){1, 8}, &s->link));
    if (!begin)
        return;
    say_words(s, &words);
    await(&s->side, &s->side.exposed, 1);
    assert_int_equal(s->side.region_length, CALL_MEMORY);
    /* it is served like anybody */
    words = request(1, OP_HIGHEST, 4711, 0);
    say_words(s, &words);
    await(&s->side, &s->side.messages, 1);
    memcpy(&words, s->side.message, sizeof words.head);
    assert_int_equal(s->side.message_length, sizeof words.head);
    assert_int_equal(words.head.kind, CALL_KIND_REPLY);
    assert_int_equal(words.head.number, 4711);
    assert_int_equal(words.head.result, OP_HIGHEST);
}

/* Its session has ended, with this, and no other has. */
static void stranger_is_out(struct stranger *s, struct couple *c, unsigned ended)
{
    await(&s->side, &s->side.closed, 1);
    node_await(&c->server, &c->server.ended, ended);
    assert_int_equal(c->server.ended, ended);
    assert_int_equal(c->server.ended_error, -EPROTO);
    assert_int_equal(ask(c->session, 0, OP_HIGHEST), OP_HIGHEST);
    gaia_link_close(s->link);
    side_close(&s->side);
}

/* ---- what it says ---- */

/* What is changed of a request that is as it should be, or said instead of it. */
static const struct nonsense {
    const char *what;
    bool before_begin;
    size_t length; /* of the message */
    struct call_head head;
} all_nonsense[] = {
    {"a part of a head", false, 23, {24, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"one byte", false, 1, {24, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"longer than it says", false, 25, {24, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"shorter than it says", false, 24, {25, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"no length", false, 24, {0, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"too long", false, 24 + CALL_BYTES_MAX + 1, {24 + CALL_BYTES_MAX + 1, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"no kind", false, 24, {24, 0, 0, 0, 1, 0, 0}},
    {"no such kind", false, 24, {24, CALL_KIND_SERVED + 1, 0, 0, 1, 0, 0}},
    {"no such class", false, 24, {24, CALL_KIND_REQUEST, CALL_CLASSES, 0, 1, 0, 0}},
    {"no such class of a post", false, 24, {24, CALL_KIND_POST, 255, 0, 1, 0, 0}},
    {"a request with a result", false, 24, {24, CALL_KIND_REQUEST, 0, 0, 1, -1, 0}},
    {"bits that are nobody's", false, 24, {24, CALL_KIND_REQUEST, 0, 0, 1, 0, 1}},
    {"a reply to nothing", false, 24, {24, CALL_KIND_REPLY, 0, 0, 256, 0, 0}},
    {"a reply to nothing, numbered 0", false, 24, {24, CALL_KIND_REPLY, 0, 0, 0, 0, 0}},
    {"a reply at no place", false, 24, {24, CALL_KIND_REPLY, 4, 0, 511, 0, 0}},
    {"a reply with an operation", false, 24, {24, CALL_KIND_REPLY, 0, 1, 256, 0, 0}},
    {"nothing was served", false, 24, {24, CALL_KIND_SERVED, 0, 0, 0, 0, 0}},
    {"a part of a number was", false, 28, {28, CALL_KIND_SERVED, 0, 0, 0, 0, 0}},
    {"more than are told at a time were",
     false,
     24 + 8 * (CALL_SERVED_MAX + 1),
     {24 + 8 * (CALL_SERVED_MAX + 1), CALL_KIND_SERVED, 0, 0, 0, 0, 0}},
    {"what was not posted was served", false, 32, {32, CALL_KIND_SERVED, 0, 0, 0, 0, 0}},
    {"served, with a number", false, 32, {32, CALL_KIND_SERVED, 0, 0, 256, 0, 0}},
    {"served, with an operation", false, 32, {32, CALL_KIND_SERVED, 0, 1, 0, 0, 0}},
    {"served, with a result", false, 32, {32, CALL_KIND_SERVED, 0, 0, 0, 1, 0}},
    {"served before BEGIN", true, 32, {32, CALL_KIND_SERVED, 0, 0, 0, 0, 0}},
    {"BEGIN twice", false, 24, {24, CALL_KIND_BEGIN, 0, 0, CALL_BEGIN, 0, 0}},
    {"another BEGIN", true, 24, {24, CALL_KIND_BEGIN, 0, 0, CALL_BEGIN + 1, 0, 0}},
    {"a long BEGIN", true, 25, {25, CALL_KIND_BEGIN, 0, 0, CALL_BEGIN, 0, 0}},
    {"a request before BEGIN", true, 24, {24, CALL_KIND_REQUEST, 0, 0, 1, 0, 0}},
    {"a reply before BEGIN", true, 24, {24, CALL_KIND_REPLY, 0, 0, 1, 0, 0}},
};

static void test_nonsense(void **state)
{
    static struct couple c;
    static struct stranger s;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < sizeof all_nonsense / sizeof *all_nonsense; i++) {
        struct words words = {.head = all_nonsense[i].head};

        stranger_open(&s, &c.server, !all_nonsense[i].before_begin);
        say(&s, &words, all_nonsense[i].length);
        if (!await_ms(&s.side, &s.side.closed, 1, 5 * SHORT_MS))
            fail_msg("%s: is let pass", all_nonsense[i].what);
        stranger_is_out(&s, &c, i + 1);
        if (i % 12 == 11) { /* places of sessions in the fixture */
            for (unsigned j = 1; j < c.server.arrived; j++)
                call_session_put(c.server.sessions[j]);
            c.server.arrived = 1;
        }
    }
    couple_close(&c);
}

/* Random bytes end it, or are served; the node lives. */
static void test_random_words(void **state)
{
    static struct couple c;
    static struct stranger s;
    uint64_t random = seed;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < 12; i++) {
        stranger_open(&s, &c.server, true);
        for (unsigned n = 0; n < 50 && !gaia_link_error(s.link); n++) {
            struct words words = request((unsigned)draw(&random, CALL_CLASSES), OP_HIGHEST, mix(random),
                                         (size_t)draw(&random, 40));
            uint8_t *bytes = (uint8_t *)&words;

            if (!draw(&random, 4))
                bytes[draw(&random, sizeof words.head)] ^= (uint8_t)(1u << draw(&random, 8));
            if (words.head.op != OP_HIGHEST) /* others of the fixture's trust who calls */
                words.head.op = 78;
            gaia_link_send(s.link, &words, sizeof words.head + draw(&random, 40));
            gaia_transport_poll(s.side.transport, 1);
        }
        gaia_link_close(s.link);
        side_close(&s.side);
        node_await(&c.server, &c.server.ended, i + 1);
        assert_int_equal(ask(c.session, 0, OP_HIGHEST), OP_HIGHEST);
    }
    couple_close(&c);
}

/* One more of a class than the width, all at once; so many are fine. */
static void test_too_many_requests(void **state)
{
    static struct couple c;
    static struct stranger s;
    struct words words;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    stranger_open(&s, &c.server, true);
    for (unsigned i = 0; i < 2 * CALL_WIDTH; i++) {
        words = request(i % 2, OP_WAIT, i, 0);
        say_words(&s, &words);
    }
    node_await(&c.server, &c.server.waiting, 2 * CALL_WIDTH);
    words = request(2, OP_HIGHEST, 99, 0);
    say_words(&s, &words);
    await(&s.side, &s.side.messages, 2);
    assert_int_equal(c.server.ended, 0);
    words = request(1, OP_HIGHEST, 100, 0);
    say_words(&s, &words);
    await(&s.side, &s.side.closed, 1);
    node_open_gate(&c.server, true);
    stranger_is_out(&s, &c, 1);
    assert_int_equal(c.server.waiting_most, 2 * CALL_WIDTH);
    couple_close(&c);
}

/* A reply to what was asked, but in another class, or twice. */
static void test_wrong_replies(void **state)
{
    static struct couple c;
    static struct stranger s;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned twice = 0; twice < 2; twice++) {
        struct caller caller;
        struct words words = {0};

        stranger_open(&s, &c.server, true);
        caller_start(&caller, c.server.sessions[1 + twice], 3, 5, 0);
        await(&s.side, &s.side.messages, 2);
        memcpy(&words, s.side.message, sizeof words.head);
        assert_int_equal(words.head.kind, CALL_KIND_REQUEST);
        words.head.kind = CALL_KIND_REPLY;
        words.head.op = 0;
        words.head.class = twice ? 3 : 2;
        words.head.result = 12;
        say_words(&s, &words);
        assert_int_equal(caller_join(&caller), twice ? 12 : -EIO);
        if (twice)
            say_words(&s, &words);
        stranger_is_out(&s, &c, twice + 1);
    }
    couple_close(&c);
}

/* Nobody serves a request of the class any more, and what is to be said of it waits to be sent. */
static void await_served(struct call_session *session, unsigned class)
{
    bool served = false;

    for (uint64_t until = now_ms() + LONG_MS; !served && now_ms() < until; nap_ms(1)) {
        pthread_mutex_lock(&session->lock);
        served = !session->classes[class].under_way;
        pthread_mutex_unlock(&session->lock);
    }
    assert_true(served);
}

/* That POSTs were served is told of CALL_SERVED_MAX together; or before, when who posts may have no place
 * left in the class. */
static void test_posts_are_served(void **state)
{
    static struct couple c;
    static struct stranger s;
    struct words words;
    uint64_t told[CALL_SERVED_MAX];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    stranger_open(&s, &c.server, true);
    for (unsigned i = 0; i < 2 * CALL_SERVED_MAX - 1; i++) {
        words = request(3, OP_COUNT, 100 + i, 0);
        words.head.kind = CALL_KIND_POST;
        say_words(&s, &words);
        node_await(&c.server, &c.server.counted, i + 1);
        await_served(c.server.sessions[1], 3);
    }
    words = request(4, OP_HIGHEST, 99, 0); /* another class; what was said before its answer has come, too */
    say_words(&s, &words);
    await(&s.side, &s.side.messages, 3); /* the first one's of all, that of CALL_SERVED_MAX, and this one's */
    assert_int_equal(s.side.messages, 3);
    memcpy(&words.head, s.side.message, sizeof words.head);
    assert_int_equal(words.head.kind, CALL_KIND_REPLY);
    for (unsigned i = 0; i < CALL_WIDTH - (CALL_SERVED_MAX - 1); i++) {
        words = request(3, OP_WAIT, 200 + i, 0);
        say_words(&s, &words);
    }
    await(&s.side, &s.side.messages, 4);
    memcpy(&words, s.side.message, s.side.message_length);
    assert_int_equal(s.side.message_length, sizeof words.head + (CALL_SERVED_MAX - 1) * sizeof *told);
    assert_int_equal(words.head.kind, CALL_KIND_SERVED);
    assert_int_equal(words.head.class, 3);
    memcpy(told, words.payload, sizeof told);
    for (unsigned i = 0; i < CALL_SERVED_MAX - 1; i++)
        assert_in_range(told[i], 100 + CALL_SERVED_MAX, 100 + 2 * CALL_SERVED_MAX - 2);
    node_open_gate(&c.server, true);
    assert_int_equal(c.server.ended, 0);
    gaia_link_close(s.link);
    side_close(&s.side);
    couple_close(&c);
}

/* Who posts is told that it was served: once, of what it has posted, and not as of a call. */
static void test_told_of_posts(void **state)
{
    enum { WELL, TWICE, OTHER_CLASS, AS_A_REPLY, A_CALL, CASES };
    static struct couple c;
    static struct stranger s;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    for (unsigned i = 0; i < CASES; i++) {
        struct words words = {0};
        struct caller caller;

        stranger_open(&s, &c.server, true);
        if (i == A_CALL)
            caller_start(&caller, c.server.sessions[1 + i], 3, 5, 0);
        else
            assert_int_equal(call_post(c.server.sessions[1 + i], 3, 5, NULL, 0), 0);
        await(&s.side, &s.side.messages, 2);
        memcpy(&words, s.side.message, sizeof words.head);
        assert_int_equal(words.head.kind, i == A_CALL ? CALL_KIND_REQUEST : CALL_KIND_POST);
        uint64_t numbers[] = {words.head.number, words.head.number};
        size_t length = i == AS_A_REPLY ? 0 : i == TWICE ? sizeof numbers : sizeof *numbers;
        words.head = (struct call_head){.length = (uint32_t)(sizeof words.head + length),
                                        .kind = i == AS_A_REPLY ? CALL_KIND_REPLY : CALL_KIND_SERVED,
                                        .class = i == OTHER_CLASS ? 2 : 3,
                                        .number = i == AS_A_REPLY ? numbers[0] : 0};
        memcpy(words.payload, numbers, length);
        say_words(&s, &words);
        if (i == WELL) { /* and its place is free: so many are posted, and one more is not */
            for (unsigned n = 0; n < CALL_WIDTH; n++)
                assert_int_equal(call_post(c.server.sessions[1 + i], 3, 5, NULL, 0), 0);
            await(&s.side, &s.side.messages, 2 + CALL_WIDTH);
            assert_int_equal(c.server.ended, 0);
            call_session_abort(c.server.sessions[1 + i]);
            await(&s.side, &s.side.closed, 1);
            node_await(&c.server, &c.server.ended, 1);
            gaia_link_close(s.link);
            side_close(&s.side);
        } else {
            stranger_is_out(&s, &c, i + 1);
        }
        if (i == A_CALL)
            assert_int_equal(caller_join(&caller), -EIO);
    }
    couple_close(&c);
}

/* A peer that takes nothing any more, until its time is up: what waits to be sent keeps nobody else from it,
 * and ends with the session. */
static void test_peer_that_takes_nothing(void **state)
{
    static struct couple c;
    static struct stranger s;
    static struct caller callers[3 * CALL_WIDTH];

    (void)state;
    couple_open(&c, SHORT_MS);
    stranger_open(&s, &c.server, true);
    for (unsigned i = 0; i < 3 * CALL_WIDTH; i++) /* more than there are credits, and nobody polls there */
        caller_start(&callers[i], c.server.sessions[1], i % 3, OP_WAIT, 0);
    nap_ms(50);
    assert_int_equal(callers_back(callers, 3 * CALL_WIDTH), 0);
    assert_int_equal(ask(c.other, 0, OP_HIGHEST), OP_HIGHEST);
    for (unsigned i = 0; i < 3 * CALL_WIDTH; i++)
        assert_int_equal(caller_join(&callers[i]), -EIO);
    node_await(&c.server, &c.server.ended, 1);
    assert_int_equal(c.server.ended_error, -EIO);
    gaia_link_close(s.link);
    side_close(&s.side);
    couple_close(&c);
}

/* One that takes them late: more than there are credits, and none is lost. */
static void test_peer_that_takes_late(void **state)
{
    static struct couple c;
    static struct stranger s;
    static struct caller callers[3 * CALL_WIDTH];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    stranger_open(&s, &c.server, true);
    for (unsigned i = 0; i < 3 * CALL_WIDTH; i++)
        caller_start(&callers[i], c.server.sessions[1], i % 3, i, 0);
    nap_ms(200);
    await(&s.side, &s.side.messages, 3 * CALL_WIDTH + 1);
    assert_int_equal(s.side.messages, 3 * CALL_WIDTH + 1);
    call_session_abort(c.server.sessions[1]);
    for (unsigned i = 0; i < 3 * CALL_WIDTH; i++)
        assert_int_equal(caller_join(&callers[i]), -EIO);
    gaia_link_close(s.link);
    side_close(&s.side);
    couple_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_nonsense),
        CASE(test_random_words),
        CASE(test_too_many_requests),
        CASE(test_wrong_replies),
        CASE(test_posts_are_served),
        CASE(test_told_of_posts),
        CASE(test_peer_that_takes_nothing),
        CASE(test_peer_that_takes_late),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("calls of strangers", tests, NULL, NULL);
}
