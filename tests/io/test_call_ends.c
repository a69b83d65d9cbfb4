/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that end: aborted, closed, refused, by a peer that dies, stops or does not answer (one that
 * says what makes no sense: test_call_words.c). Every call that is under way gives -EIO, ended() is called
 * once, and others live on. */
#include <semaphore.h>
#include <sys/prctl.h>

#include "tests/io/call_fixture.h"
#include "tests/io/peer.h"

/* A second session of the same two nodes goes on as if nothing had happened. */
static void others_live(struct couple *c)
{
    struct call_session *session = join_to(&c->client, &c->server);

    assert_int_equal(ask(session, 0, OP_HIGHEST), OP_HIGHEST);
    session_close(session);
    call_session_put(session);
}

/* ---- ended by one of the two ---- */

struct getter {
    struct call_session *session;
    int result;
    pthread_t thread;
};

static void *run_getter(void *argument)
{
    struct getter *getter = argument;

    getter->result = call_slot_get(getter->session);
    return NULL;
}

/* Bytes on their way until the session ends. */
static void *run_reader(void *argument)
{
    struct getter *reader = argument;

    while (!(reader->result = call_slot_read(reader->session, 1, 0, CALL_SLOT_BYTES)))
        ;
    return NULL;
}

enum { CALLERS = CALL_WIDTH + 3, READERS = 3 };

/* Both ends wait for calls, for room for more, for a slot, for bytes. */
struct busy {
    struct caller callers[2 * CALLERS];
    struct getter getter, readers[READERS];
};

static void busy_start(struct busy *b, struct couple *c)
{
    for (unsigned i = 0; i < CALLERS; i++) {
        caller_start(&b->callers[2 * i], c->session, 1, OP_WAIT, 0);
        caller_start(&b->callers[2 * i + 1], c->other, 1, OP_WAIT, LONG_MS);
    }
    for (unsigned i = 0; i < CALL_SLOTS; i++)
        assert_true(call_slot_get(c->session) >= 0);
    b->getter = (struct getter){.session = c->session};
    assert_int_equal(pthread_create(&b->getter.thread, NULL, run_getter, &b->getter), 0);
    for (unsigned i = 0; i < READERS; i++) {
        b->readers[i] = (struct getter){.session = c->session};
        assert_int_equal(pthread_create(&b->readers[i].thread, NULL, run_reader, &b->readers[i]), 0);
    }
    node_await(&c->server, &c->server.waiting, CALL_WIDTH);
    node_await(&c->client, &c->client.waiting, CALL_WIDTH);
}

static void busy_end(struct busy *b)
{
    for (unsigned i = 0; i < 2 * CALLERS; i++)
        assert_int_equal(caller_join(&b->callers[i]), -EIO);
    pthread_join(b->getter.thread, NULL);
    assert_int_equal(b->getter.result, -EIO);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(b->readers[i].thread, NULL);
        assert_int_equal(b->readers[i].result, -EIO);
    }
}

static void nothing_goes(struct call_session *session)
{
    assert_int_equal(ask(session, 0, OP_HIGHEST), -EIO);
    assert_int_equal(call_post(session, 0, OP_HIGHEST, NULL, 0), -EIO);
    assert_int_equal(call_slot_get(session), -EIO);
    if (call_session_connected(session))
        assert_int_equal(call_slot_write(session, 0, 0, 1), -EIO);
    memset(call_slot(session, 0), 1, CALL_SLOT_BYTES); /* still there */
}

static void abort_by(bool server)
{
    static struct couple c;
    static struct busy b;

    couple_open(&c, TIMEOUT_MS);
    busy_start(&b, &c);
    call_session_abort(server ? c.other : c.session);
    busy_end(&b); /* though those who serve are still at it: */
    assert_int_equal(c.server.waiting, CALL_WIDTH);
    assert_int_equal(c.client.waiting, CALL_WIDTH);
    node_await(&c.server, &c.server.lost, 1); /* which is told at once */
    node_await(&c.client, &c.client.lost, 1);
    nap_ms(100);
    assert_int_equal(c.server.ended + c.client.ended, 0);
    node_open_gate(&c.server, true);
    node_open_gate(&c.client, true);
    node_await(&c.server, &c.server.ended, 1);
    node_await(&c.client, &c.client.ended, 1);
    assert_int_equal(c.server.ended_error, server ? -ECANCELED : -ESHUTDOWN);
    assert_int_equal(c.client.ended_error, server ? -ESHUTDOWN : -ECANCELED);
    assert_ptr_equal(c.server.ended_last, c.other);
    assert_ptr_equal(c.client.ended_last, c.session);
    assert_int_equal(call_session_error(c.session), c.client.ended_error);
    nothing_goes(c.session);
    nothing_goes(c.other);
    call_session_abort(c.session); /* again: nothing */
    others_live(&c);
    couple_close(&c);
    assert_int_equal(c.client.ended, 1);
    assert_int_equal(c.server.ended, 2); /* and the second session's */
    assert_int_equal(c.client.ended_while_served + c.server.ended_while_served, 0);
    assert_int_equal(c.client.ended_before_lost + c.server.ended_before_lost, 0);
    assert_int_equal(c.client.lost, c.client.ended);
    assert_int_equal(c.server.lost, c.server.ended);
}

static void test_abort(void **state)
{
    (void)state;
    abort_by(false);
    abort_by(true);
}

/* Who closes is not told, and waits until nobody serves. */
static void test_close(void **state)
{
    static struct couple c;
    struct caller caller;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    caller_start(&caller, c.session, 0, OP_WAIT, 0);
    node_await(&c.server, &c.server.waiting, 1);
    session_close(c.session); /* the other end is not waited for */
    assert_int_equal(caller_join(&caller), -EIO);
    nothing_goes(c.session);
    assert_int_equal(c.server.waiting, 1);
    node_open_gate(&c.server, true);
    node_await(&c.server, &c.server.ended, 1);
    assert_int_equal(c.server.ended_error, -ESHUTDOWN);
    couple_close(&c);
    assert_int_equal(c.client.ended, 0);
    assert_int_equal(c.server.ended, 1);
    assert_int_equal(c.server.ended_while_served, 0);
}

/* Pages that the slots of a session take. */
static unsigned pages_of_slots(const struct call_session *session)
{
    static unsigned char held[CALL_MEMORY / 4096];
    unsigned pages = 0;

    assert_int_equal(mincore(session->memory, CALL_MEMORY, held), 0);
    for (unsigned i = 0; i < sizeof held; i++)
        pages += held[i] & 1;
    return pages;
}

/* What was asked of a session that has ended is kept for long: by each file whose home has died, until a
 * program closes it. Its slots take no memory then; but as long as somebody has one its bytes stay. */
static void test_slots_of_what_has_ended(void **state)
{
    static struct couple c;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    int slot = call_slot_get(c.session);
    assert_true(slot >= 0);
    for (unsigned i = 0; i < CALL_SLOTS_BOTH; i++)
        memset(call_slot(c.session, i), 7, CALL_SLOT_BYTES);
    session_close(c.session);
    const uint8_t *bytes = call_slot(c.session, (unsigned)slot);
    assert_int_equal(bytes[0], 7);
    assert_int_equal(bytes[CALL_SLOT_BYTES - 1], 7);
    call_slot_put(c.session, (unsigned)slot);
    assert_int_equal(pages_of_slots(c.session), 0);
    assert_int_equal(bytes[0], 0); /* still there */
    struct call_session *second = join_to(&c.client, &c.server);
    memset(call_slot(second, 0), 7, CALL_SLOT_BYTES);
    session_close(second);
    assert_int_equal(pages_of_slots(second), 0);
    call_session_put(second);
    couple_close(&c);
}

/* By who serves: it can't wait for itself. */
static void test_abort_from_serve(void **state)
{
    static struct couple c;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    assert_int_equal(ask(c.session, 0, OP_ABORT), -EIO);
    node_await(&c.server, &c.server.ended, 1);
    node_await(&c.client, &c.client.ended, 1);
    assert_int_equal(c.server.ended_error, -ECANCELED);
    others_live(&c);
    couple_close(&c);
}

/* A node goes away with everything under way. Its sessions stay memory for who has them. */
static void test_node_closes(void **state)
{
    static struct couple c;
    static struct busy b;
    struct call_session *other;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    busy_start(&b, &c);
    other = c.other;
    call_session_get(other);
    call_session_abort(c.session);
    busy_end(&b);
    node_close(&c.server); /* opens its gate */
    assert_int_equal(c.server.ended, 1);
    assert_int_equal(c.server.waiting, 0);
    nothing_goes(other);
    call_session_put(other);
    node_close(&c.client);
    assert_int_equal(c.client.ended, 1);
    nothing_goes(c.session);
    call_session_put(c.session);
}

static void *run_calls_close(void *argument)
{
    calls_close(((struct node *)argument)->calls);
    return NULL;
}

/* The same with nobody who has ended the session before. */
static void test_node_closes_at_work(void **state)
{
    static struct couple c;
    static struct busy b;
    pthread_t closer;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    busy_start(&b, &c);
    assert_int_equal(pthread_create(&closer, NULL, run_calls_close, &c.server), 0);
    busy_end(&b);
    assert_int_equal(c.server.waiting, CALL_WIDTH); /* which is waited for */
    assert_int_equal(pthread_tryjoin_np(closer, NULL), EBUSY);
    node_open_gate(&c.server, true);
    pthread_join(closer, NULL);
    node_free(&c.server);
    assert_int_equal(c.server.ended, 1);
    assert_int_equal(c.server.ended_error, -ECANCELED);
    node_open_gate(&c.client, true);
    node_await(&c.client, &c.client.ended, 1);
    assert_int_equal(c.client.ended_error, -ESHUTDOWN);
    struct call_session *session = NULL;
    assert_int_equal(call_connect(c.client.calls, c.server.address, &session), -ECONNREFUSED);
    call_session_put(c.session);
    node_close(&c.client);
}

/* ---- peers that do not answer ---- */

static void test_timeout(void **state)
{
    static struct couple c;
    struct caller slow, beside;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    caller_start(&beside, c.session, 1, OP_WAIT, 0);
    caller_start(&slow, c.session, 0, OP_WAIT, 300);
    assert_int_equal(caller_join(&slow), -EIO);
    assert_in_range(slow.took_ms, 290, 300 + SLACK_MS);
    assert_int_equal(caller_join(&beside), -EIO);
    node_await(&c.client, &c.client.ended, 1);
    assert_int_equal(c.client.ended_error, -ETIMEDOUT);
    others_live(&c);
    couple_close(&c);
}

/* Fewer milliseconds than it has turns. */
static void test_a_short_limit(void **state)
{
    static struct couple c;
    struct caller caller;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    caller_start(&caller, c.session, 0, OP_WAIT, 3);
    assert_int_equal(caller_join(&caller), -EIO);
    assert_in_range(caller.took_ms, 2, SLACK_MS);
    couple_close(&c);
}

#define STOPPED_CALLERS 6u

/* In a process of its own: how many of some calls with a limit have failed. */
static int calls_that_failed(const char *address, unsigned limit_ms)
{
    static struct node client, server;
    struct caller callers[STOPPED_CALLERS];
    int failed = 0;

    node_open(&client, false, LONG_MS);
    memcpy(server.address, address, sizeof server.address);
    struct call_session *session = join_to(&client, &server);
    for (unsigned i = 0; i < STOPPED_CALLERS; i++)
        caller_start(&callers[i], session, i % 2, OP_WAIT, limit_ms);
    for (unsigned i = 0; i < STOPPED_CALLERS; i++)
        failed += caller_join(&callers[i]) != 0;
    session_close(session);
    call_session_put(session);
    node_close(&client);
    return failed;
}

static atomic_uint started_failed;
static sem_t started_told;

static void on_told(struct call_answer *answer, int result)
{
    (void)answer;
    started_failed += result != 0;
    sem_post(&started_told);
}

/* The same of those that nobody waits for. */
static int starts_that_failed(const char *address, unsigned limit_ms)
{
    static struct node client, server;
    static struct call_answer answers[STOPPED_CALLERS];

    sem_init(&started_told, 0, 0);
    node_open(&client, false, LONG_MS);
    memcpy(server.address, address, sizeof server.address);
    struct call_session *session = join_to(&client, &server);
    for (unsigned i = 0; i < STOPPED_CALLERS; i++) {
        answers[i].done = on_told;
        if (call_start(session, i % 2, OP_WAIT, NULL, 0, &answers[i], limit_ms))
            return 1;
    }
    for (unsigned i = 0; i < STOPPED_CALLERS; i++)
        while (sem_wait(&started_told)) /* a signal */
            ;
    session_close(session);
    call_session_put(session);
    node_close(&client);
    return (int)started_failed;
}

#define STOPPED 4u /* processes: in some of them it is the answers that are looked at first */

static void signal_all(const pid_t *pids, int number)
{
    for (unsigned i = 0; i < STOPPED; i++)
        kill(pids[i], number);
}

/* Callers stand still, so long after they have asked; their answers come later than they go on. */
static void stop_at_work(int (*work)(const char *address, unsigned limit_ms), unsigned limit_ms,
                         unsigned after_ms, unsigned ms, unsigned later_ms)
{
    static struct node server;
    pid_t pids[STOPPED];
    int address[2], status;

    assert_int_equal(pipe(address), 0);
    for (unsigned i = 0; i < STOPPED; i++) {
        pids[i] = fork(); /* before there is a thread */
        assert_true(pids[i] >= 0);
        if (pids[i])
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bool told = read(address[0], server.address, sizeof server.address) == sizeof server.address;
        _exit(told ? work(server.address, limit_ms) : 1);
    }
    node_open(&server, true, LONG_MS);
    for (unsigned i = 0; i < STOPPED; i++)
        assert_int_equal(write(address[1], server.address, sizeof server.address), sizeof server.address);
    node_await(&server, &server.waiting, STOPPED * STOPPED_CALLERS);
    nap_ms(after_ms);
    signal_all(pids, SIGSTOP);
    if (!later_ms)
        node_open_gate(&server, true);
    nap_ms(ms);
    signal_all(pids, SIGCONT);
    nap_ms(later_ms);
    node_open_gate(&server, true);
    for (unsigned i = 0; i < STOPPED; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    close(address[0]);
    close(address[1]);
    node_close(&server);
}

static void callers_stop(unsigned limit_ms, unsigned after_ms, unsigned ms, unsigned later_ms)
{
    stop_at_work(calls_that_failed, PATIENCE * limit_ms, PATIENCE * after_ms, PATIENCE * ms,
                 PATIENCE * later_ms);
}

/* It is not the answers that are late: they wait for a process that stood still. */
static void test_callers_stopped(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();                     /* verbs and fork() don't go together */
    callers_stop(1000, 0, 1300, 0); /* a little longer than the limit */
}

/* Or the peer has stood still as well, and goes on with them: just before they would have been late, or after
 * it. */
static void test_both_stopped(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    callers_stop(1000, 0, 850, 250);
    callers_stop(3000, 2400, 900, 250); /* in the last of their turns */
}

/* For longer than the limit, and the peer goes on some looks after those do that it has to answer. */
static void test_both_stopped_with_calls_that_nobody_waits_for(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    stop_at_work(starts_that_failed, PATIENCE * 4000, 0, PATIENCE * 4200, PATIENCE * 2200);
}

/* A node that nobody's test looks at. */
static void run_peer(struct peer_shared *shared)
{
    static struct node node;
    char why[CALL_WHY];

    node_init(&node);
    memcpy(node.address, shared->address, sizeof node.address);
    struct calls_config config = node_config(&node, shared->timeout_ms);
    if (calls_open(&config, &node.calls, why)) {
        print_error("peer: %s\n", why);
        return;
    }
    shared->ready = true;
    for (;;) {
        pthread_mutex_lock(&node.lock);
        shared->waiting = node.waiting;
        pthread_mutex_unlock(&node.lock);
        nap_ms(5);
    }
}

/* A peer that is killed, and one that has stopped, with calls and transfers under way. */
static void peer_gone(int signal_number)
{
    static struct node client;
    static struct caller callers[CALLERS];
    struct peer peer;
    struct getter reader;
    struct call_session *session = NULL;

    peer_start(&peer, SHORT_MS);
    node_open(&client, false, SHORT_MS);
    assert_int_equal(call_connect(client.calls, peer.shared->address, &session), 0);
    for (unsigned i = 0; i < CALLERS; i++)
        caller_start(&callers[i], session, 0, OP_WAIT, 0);
    while (peer.shared->waiting < CALL_WIDTH)
        nap_ms(5);
    reader = (struct getter){.session = session};
    assert_int_equal(pthread_create(&reader.thread, NULL, run_reader, &reader), 0);
    nap_ms(20);
    uint64_t begun = now_ms();
    peer_signal(&peer, signal_number);
    for (unsigned i = 0; i < CALLERS; i++)
        assert_int_equal(caller_join(&callers[i]), -EIO);
    pthread_join(reader.thread, NULL);
    assert_int_equal(reader.result, -EIO);
    assert_in_range(now_ms() - begun, 0, SHORT_MS + SLACK_MS);
    node_await(&client, &client.ended, 1);
    assert_int_equal(client.ended_error, -EIO);
    nothing_goes(session);
    call_session_put(session);
    node_close(&client);
    assert_int_equal(client.ended, 1);
    peer_end(&peer);
}

static void test_peer_killed(void **state)
{
    (void)state;
    peer_gone(SIGKILL);
}

static void test_peer_stopped(void **state)
{
    (void)state;
    peer_gone(SIGSTOP);
}

/* ---- connecting ---- */

static void refuse_with(struct node *node, int error)
{
    pthread_mutex_lock(&node->lock);
    node->refuse_with = error;
    pthread_mutex_unlock(&node->lock);
}

static void test_refused(void **state)
{
    static struct couple c;
    struct call_session *session = NULL;

    (void)state;
    couple_open(&c, TIMEOUT_MS);
    refuse_with(&c.server, -EACCES);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(call_connect(c.client.calls, c.server.address, &session), -EACCES);
    refuse_with(&c.server, 0);
    assert_int_equal(call_connect(c.client.calls, "", &session), -EINVAL);
    others_live(&c);
    node_await(&c.server, &c.server.ended, 1); /* of the one that was let in */
    couple_close(&c);
    assert_int_equal(c.client.ended, 0);
    assert_int_equal(c.server.ended, 2);
}

static _Atomic(struct gaia_transport *) refusing; /* whose device registers nothing, but says this: */
static _Atomic int refuses_with;
static struct carrier sound, choosy;

static int expose_or_not(struct gaia_link *link, const struct gaia_span *span, struct link_region *region)
{
    return link->transport == refusing ? transport_say(refuses_with, "registering %zu bytes", span->length)
                                       : sound.expose(link, span, region);
}

static int remember_or_not(struct gaia_memory *memory)
{
    return memory->transport == refusing
               ? transport_say(refuses_with, "registering %zu bytes", memory->span.length)
               : sound.remember(memory);
}

static void put_choosy(struct node *node)
{
    struct gaia_transport *transport = node->calls->transport;

    pthread_mutex_lock(&transport->lock);
    transport->carrier = &choosy;
    pthread_mutex_unlock(&transport->lock);
}

/* A device that registers no memory for a session, at either end: whatever it says, that is no sign that the
 * other end does not run. */
static void test_memory_that_cannot_be_registered(void **state)
{
    static const int errors[] = {-EIO, -EINVAL, -EFAULT, -EREMOTEIO, -ENOMEM};
    static struct node server, client;
    struct call_session *session = NULL;

    (void)state;
    node_open(&server, true, TIMEOUT_MS);
    node_open(&client, false, TIMEOUT_MS);
    sound = choosy = *server.calls->transport->carrier;
    choosy.expose = expose_or_not;
    choosy.remember = remember_or_not;
    put_choosy(&server);
    put_choosy(&client);
    for (unsigned i = 0; i < 2 * sizeof errors / sizeof *errors; i++) {
        refuses_with = errors[i / 2];
        refusing = (i % 2 ? &client : &server)->calls->transport;
        assert_true(call_is_short(call_connect(client.calls, server.address, &session)));
    }
    refusing = NULL;
    assert_int_equal(call_connect(client.calls, server.address, &session), 0);
    call_session_put(session);
    node_close(&client);
    node_close(&server);
}

struct connecting {
    struct node *client;
    const char *address;
    int result;
    pthread_t thread;
};

static void *run_connect(void *argument)
{
    struct connecting *connecting = argument;
    struct call_session *session;

    connecting->result = call_connect(connecting->client->calls, connecting->address, &session);
    return NULL;
}

/* Who listens does not serve calls: exposes nothing, or something else. */
static void test_no_slots(void **state)
{
    static struct side side;
    static struct node client;
    static struct connecting connecting;
    uint8_t *frames = new_frames(64 * KIB);
    uint32_t region;

    (void)state;
    side_open(&side, true, SHORT_MS);
    node_open(&client, false, SHORT_MS);
    connecting = (struct connecting){.client = &client, .address = side.address};
    uint64_t begun = now_ms();
    run_connect(&connecting);
    assert_int_equal(connecting.result, -ETIMEDOUT);
    assert_in_range(now_ms() - begun, SHORT_MS - 10, SHORT_MS + SLACK_MS);
    assert_int_equal(pthread_create(&connecting.thread, NULL, run_connect, &connecting), 0);
    await(&side, &side.messages, 2); /* its BEGIN */
    must(gaia_link_expose(side.links[1], &(struct gaia_span){frames, 64 * KIB, -1}, true, &region));
    pthread_join(connecting.thread, NULL);
    assert_int_equal(connecting.result, -EPROTO);
    side_close(&side);
    node_close(&client);
    assert_int_equal(client.ended, 0);
    munmap(frames, 64 * KIB);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_abort),
        CASE(test_close),
        CASE(test_slots_of_what_has_ended),
        CASE(test_abort_from_serve),
        CASE(test_node_closes),
        CASE(test_node_closes_at_work),
        CASE(test_timeout),
        CASE(test_a_short_limit),
        CASE(test_callers_stopped),
        CASE(test_both_stopped),
        CASE(test_both_stopped_with_calls_that_nobody_waits_for),
        CASE(test_peer_killed),
        CASE(test_peer_stopped),
        CASE(test_refused),
        CASE(test_memory_that_cannot_be_registered),
        CASE(test_no_slots),
    };

    take_arguments(argc, argv);
    peer_run(argc, argv, run_peer);
    return cmocka_run_group_tests_name("calls that end", tests, NULL, NULL);
}
