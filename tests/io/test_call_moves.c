/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes between the slots of a session: how many transfers are under way, by which queues, and what becomes
 * of them when the kernel has no memory for a message of the carrier's. */
#include <dlfcn.h>
#include <sys/socket.h>

#include "tests/io/call_fixture.h"

/* ---- a kernel without memory for one socket ---- */

static _Atomic int starved = -1;
static _Atomic unsigned refusals;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*send)(int, const struct msghdr *, int) =
        (ssize_t(*)(int, const struct msghdr *, int))(uintptr_t)dlsym(RTLD_NEXT, "sendmsg");

    if (fd != starved)
        return send(fd, message, flags);
    refusals++;
    errno = ENOBUFS;
    return -1;
}

/* The local carrier's. */
static int socket_of(struct call_session *session, unsigned queue)
{
    pthread_mutex_lock(&session->lock);
    int fd = *(const int *)session->link->queues[queue].own;
    pthread_mutex_unlock(&session->lock);
    return fd;
}

static void open_with(struct couple *c, unsigned queues, unsigned depth)
{
    struct calls_config config;
    char why[CALL_WHY];

    memset(c, 0, sizeof *c);
    node_open(&c->server, true, TIMEOUT_MS);
    node_init(&c->client);
    new_address(c->client.address, false);
    config = node_config(&c->client, TIMEOUT_MS);
    config.queues = queues;
    config.depth = depth;
    assert_int_equal(calls_open(&config, &c->client.calls, why), 0);
    c->session = join_to(&c->client, &c->server);
    node_await(&c->server, &c->server.arrived, 1);
    c->other = c->server.sessions[0];
}

/* ---- reads at the same time ---- */

#define READERS 8u
#define READINGS 60u

struct reader {
    struct call_session *session;
    unsigned number, wrong, failed;
    pthread_t thread;
};

/* Of the peer's half, which the server has filled: into memory of this thread's, and into the slot. */
static void *run_reader(void *argument)
{
    struct reader *reader = argument;
    unsigned slot = CALL_SLOTS + reader->number;
    uint64_t random = seed + reader->number;
    uint8_t *frames = new_frames(CALL_SLOT_BYTES);
    struct gaia_reaches reaches = {0};
    struct gaia_standing standing = {.address = frames, .length = CALL_SLOT_BYTES, .reaches = &reaches};

    for (unsigned i = 0; i < READINGS && !reader->failed; i++) {
        uint32_t length = 1 + (uint32_t)draw(&random, i % 4 ? 9000 : CALL_SLOT_BYTES);
        uint32_t at = (uint32_t)draw(&random, CALL_SLOT_BYTES - length + 1);
        bool into = i % 2;
        int error = into ? call_slot_read_into(reader->session, slot, at, length, frames, &standing)
                         : call_slot_read(reader->session, slot, at, length);
        const uint8_t *bytes = into ? frames : (uint8_t *)call_slot(reader->session, slot) + at;

        reader->failed += error != 0;
        reader->wrong += !error && !matches(bytes, length, seed + reader->number, at);
    }
    gaia_standing_end(&standing);
    munmap(frames, CALL_SLOT_BYTES);
    return NULL;
}

static void start_readers(struct reader *readers, struct call_session *session)
{
    for (unsigned i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.session = session, .number = i};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, run_reader, &readers[i]), 0);
    }
}

/* Reads have queues of their own, so many and so deep as was asked for; writes and messages go by another. */
static void test_reads_have_their_queues(void **state)
{
    enum { QUEUES = 2, DEPTH = 3 };
    static struct couple c;
    static struct reader readers[READERS];
    struct gaia_pull_stat s;
    struct calls_stat stat;

    (void)state;
    open_with(&c, QUEUES, DEPTH);
    pthread_mutex_lock(&c.session->lock);
    struct gaia_link *link = c.session->link;
    struct gaia_pull *pull = c.session->pull;
    c.session->inside++; /* it stays */
    pthread_mutex_unlock(&c.session->lock);
    calls_stat(c.client.calls, &stat);
    assert_int_equal(stat.queues, QUEUES);
    assert_int_equal(stat.depth, DEPTH);
    for (unsigned i = 0; i < READERS; i++) {
        struct piece piece = {.salt = seed + i, .slot = CALL_SLOTS + i, .length = CALL_SLOT_BYTES};
        assert_int_equal(ask_with(c.session, 0, OP_FILL, &piece, sizeof piece), 0);
    }
    start_readers(readers, c.session);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        assert_int_equal(readers[i].wrong + readers[i].failed, 0);
    }
    gaia_pull_stat(pull, &s);
    assert_int_equal(s.reads, READERS * READINGS);
    assert_in_range(s.doorbells, 1, s.reads);
    assert_in_range(s.outstanding_max, 1, QUEUES * DEPTH);
    if (carrier == GAIA_CARRIER_LOCAL) { /* whose peer answers itself */
        transport_test.deaf = true;
        start_readers(readers, c.session);
        for (unsigned ms = 0; ms < LONG_MS; ms++) {
            gaia_pull_stat(pull, &s);
            if (s.outstanding == QUEUES * DEPTH && s.waiting == READERS - QUEUES * DEPTH)
                break;
            nap_ms(1);
        }
        assert_int_equal(s.outstanding, QUEUES * DEPTH);
        assert_int_equal(s.waiting, READERS - QUEUES * DEPTH);
        pthread_mutex_lock(&c.client.calls->transport->lock);
        assert_false(call_session_error(c.session)); /* so the link is there */
        assert_int_equal(link->queues[CALL_QUEUE_MESSAGES].busy, 0);
        pthread_mutex_unlock(&c.client.calls->transport->lock);
        for (unsigned i = 0; i < READERS; i++) { /* until the time is over */
            pthread_join(readers[i].thread, NULL);
            assert_int_equal(readers[i].failed, 1);
        }
        transport_test.deaf = false;
        assert_true(call_session_error(c.session) < 0);
    }
    pthread_mutex_lock(&c.session->lock);
    c.session->inside--;
    pthread_cond_broadcast(&c.session->changed);
    pthread_mutex_unlock(&c.session->lock);
    couple_close(&c);
}

/* ---- writes ---- */

static unsigned took_ms(struct call_session *session, unsigned slot, int *error_out)
{
    uint64_t before = now_ms();

    *error_out = call_slot_write(session, slot, 0, 4096);
    return (unsigned)(now_ms() - before);
}

/* Who hears of it hears of it by a message that comes later, so the thread need not wait for its end. A
 * second one of the same slot waits. */
static void test_a_write_is_not_waited_for(void **state)
{
    static struct couple c;
    int error;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL) /* whose peer answers itself */
        skip();
    couple_open(&c, SHORT_MS);
    transport_test.deaf = true;
    for (unsigned slot = 0; slot < CALL_SLOTS; slot++) {
        assert_in_range(took_ms(c.session, slot, &error), 0, SHORT_MS / 2);
        assert_int_equal(error, 0);
    }
    assert_int_equal(call_session_error(c.session), 0);
    assert_true(took_ms(c.session, 0, &error) >= SHORT_MS / 5);
    assert_int_equal(error, -EIO);
    transport_test.deaf = false;
    assert_true(call_session_error(c.session) < 0);
    couple_close(&c);
}

/* ---- without room ---- */

struct mover {
    struct call_session *session;
    bool writes;
    int error;
    _Atomic bool back;
    pthread_t thread;
};

static void *run_mover(void *argument)
{
    struct mover *mover = argument;

    mover->error = mover->writes ? call_slot_write(mover->session, 1, 0, 4096)
                                 : call_slot_read(mover->session, 1, 0, 4096);
    mover->back = true;
    return NULL;
}

static void start_without_room(struct mover *mover, struct couple *c, bool writes)
{
    *mover = (struct mover){.session = c->session, .writes = writes};
    refusals = 0;
    starved = socket_of(c->session, writes ? CALL_QUEUE_MESSAGES : CALL_QUEUE_MESSAGES + 1);
    assert_int_equal(pthread_create(&mover->thread, NULL, run_mover, mover), 0);
    nap_ms(300 * PATIENCE);
    assert_true(refusals > 3);
    assert_false(mover->back);
}

/* It is tried again for as long as the session lives, which goes on meanwhile, by other queues and with other
 * sessions. */
static void test_no_room_for_some_time(void **state)
{
    static struct couple c;
    static struct node third;
    static struct mover mover;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    for (unsigned writes = 0; writes < 2; writes++) {
        open_with(&c, 1, 16);
        node_open(&third, true, TIMEOUT_MS);
        struct call_session *other = join_to(&c.client, &third);
        start_without_room(&mover, &c, writes);
        uint64_t before = now_ms();
        for (unsigned i = 0; i < 20; i++)
            assert_int_equal(ask(other, 0, OP_HIGHEST), OP_HIGHEST);
        assert_true(now_ms() - before < SHORT_MS);
        starved = -1;
        pthread_join(mover.thread, NULL);
        assert_int_equal(mover.error, 0);
        assert_int_equal(call_session_error(c.session), 0);
        session_close(other);
        call_session_put(other);
        couple_close(&c);
        node_close(&third);
    }
}

static void test_no_room_until_the_end(void **state)
{
    static struct couple c;
    static struct mover mover;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    for (unsigned writes = 0; writes < 2; writes++) {
        open_with(&c, 1, 16);
        start_without_room(&mover, &c, writes);
        uint64_t before = now_ms();
        session_close(c.session);
        starved = -1;
        pthread_join(mover.thread, NULL);
        assert_int_equal(mover.error, -EIO);
        assert_true(now_ms() - before < TIMEOUT_MS - SHORT_MS / 2);
        couple_close(&c);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_reads_have_their_queues),
        CASE(test_a_write_is_not_waited_for),
        CASE(test_no_room_for_some_time),
        CASE(test_no_room_until_the_end),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("moves", tests, NULL, NULL);
}
