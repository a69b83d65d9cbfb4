/* SPDX-License-Identifier: Apache-2.0 */
/* call_start(): calls that nobody waits for, and that somebody is told the end of; also of a session's. */
#include "tests/io/call_fixture.h"

#define STARTS 400u
#define CHAIN 5u

/* A call that was started. done() checks what it can, and notes it: cmocka's assertions are for the main
 * thread. */
struct started {
    struct call_answer answer; /* first */
    struct call_session *session;
    unsigned class;
    uint8_t request[16];
    int wanted, got;
    unsigned left;    /* calls that follow it, each started by the one before */
    unsigned times;   /* that done() was called */
    bool calls;       /* done() itself calls, and waits */
    int called;       /* what that gave */
    bool after_ended; /* the session's ended() was called before */
    struct node *node;
};

static pthread_mutex_t told_lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and all of struct started */
static unsigned told;
static pthread_t starter;
static bool in_starter;

static void start(struct started *s);

static void on_done(struct call_answer *answer, int result)
{
    struct started *s = (struct started *)answer;

    if (s->calls)
        s->called = call(s->session, (s->class + 1) % CALL_CLASSES, OP_ECHO, "abcd", 4, NULL, NULL, LONG_MS);
    pthread_mutex_lock(&s->node->lock);
    unsigned ended = s->node->ended;
    pthread_mutex_unlock(&s->node->lock);
    pthread_mutex_lock(&told_lock);
    in_starter |= pthread_equal(pthread_self(), starter);
    s->got = result;
    s->times++;
    s->after_ended = ended;
    bool more = s->left;
    if (more)
        s->left--;
    else
        told++;
    pthread_mutex_unlock(&told_lock);
    if (more)
        start(s);
}

static void start(struct started *s)
{
    int error = call_start(s->session, s->class, OP_ECHO, s->request, sizeof s->request, &s->answer, 0);

    if (!error)
        return;
    pthread_mutex_lock(&told_lock); /* only from done(), of a session that ends */
    s->got = error;
    told++;
    pthread_mutex_unlock(&told_lock);
}

static void prepare(struct started *s, struct couple *c, unsigned number)
{
    *s = (struct started){.answer.done = on_done,
                          .session = number % 2 ? c->other : c->session,
                          .node = number % 2 ? &c->server : &c->client,
                          .class = number % CALL_CLASSES,
                          .calls = number % 7 == 3,
                          .left = number % 11 == 5 ? CHAIN : 0};
    fill(s->request, sizeof s->request, seed + number);
    s->wanted = echo_result(s->request, sizeof s->request);
}

static void await_told(unsigned count)
{
    for (unsigned pauses = 0; pauses < TIME_LIMIT_S * 1000; pauses++) {
        pthread_mutex_lock(&told_lock);
        bool all = told >= count;
        pthread_mutex_unlock(&told_lock);
        if (all)
            return;
        nap_ms(1);
    }
    fail_msg("%u of %u answers", told, count);
}

static void test_answers(void **state)
{
    static struct couple c;
    static struct started starts[STARTS];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    told = 0;
    in_starter = false;
    starter = pthread_self();
    for (unsigned i = 0; i < STARTS; i++) {
        prepare(&starts[i], &c, i);
        assert_int_equal(call_start(starts[i].session, starts[i].class, OP_ECHO, starts[i].request,
                                    sizeof starts[i].request, &starts[i].answer, 0),
                         0);
    }
    await_told(STARTS);
    for (unsigned i = 0; i < STARTS; i++) {
        assert_int_equal(starts[i].got, starts[i].wanted);
        assert_int_equal(starts[i].times, i % 11 == 5 ? 1 + CHAIN : 1);
        if (starts[i].calls)
            assert_int_equal(starts[i].called, echo_result("abcd", 4));
    }
    assert_false(in_starter);
    couple_close(&c);
}

static void test_arguments(void **state)
{
    static struct couple c;
    struct started s;
    uint8_t bytes[CALL_BYTES_MAX + 1] = {0};

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    prepare(&s, &c, 0);
    told = 0;
    assert_int_equal(call_start(c.session, CALL_CLASSES, OP_ECHO, NULL, 0, &s.answer, 0), -EINVAL);
    assert_int_equal(call_start(c.session, 0, UINT16_MAX + 1, NULL, 0, &s.answer, 0), -EINVAL);
    assert_int_equal(call_start(c.session, 0, OP_ECHO, bytes, sizeof bytes, &s.answer, 0), -EINVAL);
    call_session_abort(c.session);
    assert_int_equal(call_start(c.session, 0, OP_ECHO, bytes, 4, &s.answer, 0), -EIO);
    node_await(&c.client, &c.client.ended, 1);
    assert_int_equal(told, 0); /* of none of these */
    couple_close(&c);
}

/* The session ends with calls under way at both ends: each is told so, once, and before the session's end is.
 */
static void end_with_calls(void (*how)(struct couple *c))
{
    enum { WAITING = 2 * CALL_WIDTH };
    static struct couple c;
    static struct started starts[WAITING];

    couple_open(&c, TIMEOUT_MS);
    told = 0;
    for (unsigned i = 0; i < WAITING; i++) {
        prepare(&starts[i], &c, i);
        starts[i].class = 2;
        starts[i].left = 0;
        assert_int_equal(call_start(starts[i].session, 2, OP_WAIT, NULL, 0, &starts[i].answer, 0), 0);
    }
    node_await(&c.server, &c.server.waiting, CALL_WIDTH);
    node_await(&c.client, &c.client.waiting, CALL_WIDTH);
    assert_int_equal(told, 0);
    how(&c);
    await_told(WAITING); /* also of the end whose peer's threads still wait */
    node_open_gate(&c.server, true);
    node_open_gate(&c.client, true);
    node_await(&c.server, &c.server.ended, 1);
    couple_close(&c);
    for (unsigned i = 0; i < WAITING; i++) {
        assert_int_equal(starts[i].got, -EIO);
        assert_int_equal(starts[i].times, 1);
        assert_false(starts[i].after_ended);
        if (starts[i].calls)
            assert_int_equal(starts[i].called, -EIO);
    }
}

static void abort_it(struct couple *c)
{
    call_session_abort(c->session);
}

static void abort_other(struct couple *c)
{
    call_session_abort(c->other);
}

static void test_session_ends(void **state)
{
    (void)state;
    end_with_calls(abort_it);
    end_with_calls(abort_other);
}

/* It ends at any time: what was answered by then is told as it was answered, or not at all. */
static void test_session_ends_at_any_time(void **state)
{
    static struct couple c;
    static struct started starts[STARTS];
    uint64_t random = seed;

    (void)state;
    for (unsigned round = 0; round < 10; round++) {
        unsigned begun = 0, end_at = (unsigned)draw(&random, STARTS);
        couple_open(&c, TIMEOUT_MS);
        told = 0;
        memset(starts, 0, sizeof starts);
        for (unsigned i = 0; i < STARTS; i++) {
            prepare(&starts[i], &c, i);
            starts[i].left = 0;
            if (i == end_at)
                abort_it(&c);
            int error = call_start(starts[i].session, starts[i].class, OP_ECHO, starts[i].request,
                                   sizeof starts[i].request, &starts[i].answer, 0);
            assert_true(!error || error == -EIO);
            begun += !error;
            starts[i].wanted = error ? 0 : starts[i].wanted;
        }
        await_told(begun);
        couple_close(&c);
        assert_int_equal(told, begun);
        for (unsigned i = 0; i < STARTS; i++) {
            assert_in_range(starts[i].times, 0, 1);
            if (starts[i].times)
                assert_true(starts[i].got == starts[i].wanted || starts[i].got == -EIO);
        }
    }
}

/* A peer that does not answer what nobody waits for, and what waits for a place meanwhile. */
static void test_an_answer_that_does_not_come(void **state)
{
    enum { LIMIT_MS = 500 };
    static struct couple c;
    static struct started starts[CALL_WIDTH];
    static struct caller caller;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    told = 0;
    for (unsigned i = 0; i < CALL_WIDTH; i++) {
        prepare(&starts[i], &c, 2 * i);
        starts[i].left = 0;
        starts[i].calls = false;
        assert_int_equal(
            call_start(c.session, 1, OP_WAIT, NULL, 0, &starts[i].answer, i ? LONG_MS : LIMIT_MS), 0);
    }
    caller_start(&caller, c.session, 1, OP_COUNT, 0);
    assert_int_equal(caller_join(&caller), -EIO);
    assert_int_equal(call_session_error(c.session), -ETIMEDOUT);
    await_told(CALL_WIDTH);
    for (unsigned i = 0; i < CALL_WIDTH; i++)
        assert_int_equal(starts[i].got, -EIO);
    couple_close(&c);
}

/* ---- slots ---- */

static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static void on_held(struct call_answer *answer, int result)
{
    (void)answer;
    pthread_mutex_lock(&held_lock); /* as one takes a file's lock */
    pthread_mutex_unlock(&held_lock);
    pthread_mutex_lock(&told_lock);
    told += result == 0;
    pthread_mutex_unlock(&told_lock);
}

/* All threads of the class are in done() and wait for who waits for a slot: those of what has been answered
 * are free. */
static void test_slots_of_what_was_answered(void **state)
{
    enum { ALL = CALL_WIDTH + 2 * CALL_SLOTS };
    static struct couple c;
    static struct call_answer answers[ALL];

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    told = 0;
    pthread_mutex_lock(&held_lock);
    for (unsigned i = 0; i <= ALL; i++) {
        int slot = call_slot_get(c.session);
        assert_true(slot >= 0);
        if (i == ALL) {
            call_slot_put(c.session, (unsigned)slot);
            break;
        }
        answers[i] = (struct call_answer){.done = on_held, .has_slot = true, .slot = (unsigned)slot};
        assert_int_equal(call_start(c.session, 1, OP_ECHO, "\0\0\0\0", 4, &answers[i], 0), 0);
    }
    assert_int_equal(told, 0);
    pthread_mutex_unlock(&held_lock);
    await_told(ALL);
    for (unsigned i = 0; i < CALL_SLOTS; i++) /* each was put once */
        assert_true(call_slot_get(c.session) >= 0);
    for (unsigned i = 0; i < CALL_SLOTS; i++)
        call_slot_put(c.session, (unsigned)(call_session_connected(c.session) ? i : i + CALL_SLOTS));
    couple_close(&c);
}

static void *get_long(void *argument)
{
    struct couple *c = argument;
    int slot = call_slot_get_long(c->session);

    pthread_mutex_lock(&told_lock);
    told += slot >= 0;
    pthread_mutex_unlock(&told_lock);
    return (void *)(intptr_t)slot;
}

/* Who keeps a slot long leaves some to the others, and gets one when it can be spared. */
static void test_slots_that_are_kept(void **state)
{
    static struct couple c;
    pthread_t thread;
    void *slot;
    int taken[CALL_SLOTS], more;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    told = 0;
    for (unsigned i = 0; i < CALL_SLOTS - CALL_SLOTS_KEPT; i++)
        assert_true((taken[i] = call_slot_get_long(c.session)) >= 0);
    assert_int_equal(pthread_create(&thread, NULL, get_long, &c), 0);
    nap_ms(50);
    for (unsigned i = 0; i < CALL_SLOTS_KEPT; i++)
        assert_true((taken[CALL_SLOTS - CALL_SLOTS_KEPT + i] = call_slot_get(c.session)) >= 0);
    for (unsigned i = 0; i < CALL_SLOTS_KEPT; i++) {
        call_slot_put(c.session, (unsigned)taken[CALL_SLOTS - 1 - i]); /* wakes both kinds */
        more = call_slot_get(c.session);
        assert_true(more >= 0);
        call_slot_put(c.session, (unsigned)more);
    }
    nap_ms(50);
    assert_int_equal(told, 0);
    call_slot_put(c.session, (unsigned)taken[0]);
    await_told(1);
    assert_int_equal(pthread_join(thread, &slot), 0);
    call_slot_put(c.session, (unsigned)(intptr_t)slot);
    for (unsigned i = 1; i < CALL_SLOTS - CALL_SLOTS_KEPT; i++)
        call_slot_put(c.session, (unsigned)taken[i]);
    couple_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_answers),
        CASE(test_arguments),
        CASE(test_session_ends),
        CASE(test_session_ends_at_any_time),
        CASE(test_an_answer_that_does_not_come),
        CASE(test_slots_of_what_was_answered),
        CASE(test_slots_that_are_kept),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("answers to calls", tests, NULL, NULL);
}
