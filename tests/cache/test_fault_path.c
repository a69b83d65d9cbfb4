/* SPDX-License-Identifier: Apache-2.0 */
/* The fault path by the transport, with frames that are a memfd as those of the soft device are: that bytes
 * arrive, that strangers get none, and what happens when frames or the path go away under it.
 *
 * Local without arguments; `--carrier rdma HERE THERE` as the tests of the transport (tests/io). */
#include "tests/cache/fault_path.inc"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define THREADS 4u
#define READS 400u

struct reader {
    struct world *w;
    unsigned number, wrong;
};

/* Each has a share of the frames for itself, so that it can look at what it has read. */
static void *read_at_random(void *argument)
{
    struct reader *r = argument;
    uint64_t state = seed + r->number, share = PAGES / THREADS;

    for (unsigned i = 0; i < READS; i++) {
        uint64_t count = 1 + draw(&state, READ_PAGES_MAX), from = draw(&state, PAGES - count + 1);
        uint64_t first = r->number * share + draw(&state, share - count + 1);
        r->wrong += read_one(r->w, first, count, from) || !frames_have(r->w, first, count, from);
    }
    return NULL;
}

static void test_bytes(void **state)
{
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    struct fault_path_stat s;
    struct world w;

    (void)state;
    world_open(&w, TIMEOUT_MS);
    for (unsigned i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){&w, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, read_at_random, &readers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
    fault_path_stat(w.path, &s);
    assert_true(s.connected);
    assert_int_equal(s.connects, 1);
    assert_int_equal(s.pull.reads, THREADS * READS);
    assert_int_equal(s.pull.queues, 2);
    assert_int_equal(s.failed + s.refused, 0);
    assert_int_equal(s.bounced, s.pull.reads);
    assert_string_equal(s.pull.path, carrier == GAIA_CARRIER_RDMA ? "rdma" : "local");
    world_close(&w);
}

/* Somebody who has found the address, connects, and guesses the token: nothing is exposed to it. */
static void test_strangers(void **state)
{
    static struct side stranger;
    struct gaia_link_options options = {1, 1};
    uint8_t guess[TOKEN_BYTES] = {0};
    struct gaia_link *link;
    struct world w;

    (void)state;
    world_open(&w, TIMEOUT_MS);
    side_init(&stranger, false);
    struct gaia_transport_config config = side_config(&stranger, false, TIMEOUT_MS);
    assert_int_equal(gaia_transport_open(&config, &stranger.transport), 0);
    int error = gaia_link_connect(stranger.transport, w.path->address, &options, &link);
    uint64_t until = now_ms() + 500;
    if (!error) {
        gaia_link_send(link, guess, sizeof guess);
        while (now_ms() < until && !gaia_link_error(link))
            gaia_transport_poll(stranger.transport, 50);
        gaia_link_close(link);
    }
    assert_int_equal(stranger.exposed, 0);
    gaia_transport_close(stranger.transport);
    assert_int_equal(read_one(&w, 0, 4, 8), 0);
    assert_true(frames_have(&w, 0, 4, 8));
    world_close(&w);
}

/* While it connects anew, strangers are let in, but the wrong word gets them nothing. */
static void test_wrong_token(void **state)
{
    static struct side stranger;
    struct gaia_link_options options = {1, 1};
    uint8_t guess[TOKEN_BYTES];
    struct gaia_link *link;
    struct world w;

    (void)state;
    world_open(&w, TIMEOUT_MS);
    memcpy(guess, w.path->token, sizeof guess);
    guess[TOKEN_BYTES - 1] ^= 1;
    w.path->exposed = false; /* as if it were connecting */
    side_init(&stranger, false);
    struct gaia_transport_config config = side_config(&stranger, false, TIMEOUT_MS);
    assert_int_equal(gaia_transport_open(&config, &stranger.transport), 0);
    assert_int_equal(gaia_link_connect(stranger.transport, w.path->address, &options, &link), 0);
    assert_int_equal(gaia_link_send(link, guess, sizeof guess), 0);
    for (uint64_t until = now_ms() + 500; now_ms() < until;)
        gaia_transport_poll(stranger.transport, 50);
    assert_int_equal(stranger.exposed, 0);
    guess[TOKEN_BYTES - 1] ^= 1; /* that the right one would have, is what makes this a test */
    assert_int_equal(gaia_link_send(link, guess, sizeof guess), 0);
    for (uint64_t until = now_ms() + SLACK_MS; now_ms() < until && !stranger.exposed;)
        gaia_transport_poll(stranger.transport, 50);
    assert_int_equal(stranger.exposed, 1);
    gaia_transport_close(stranger.transport);
    world_close(&w);
}

static const struct gaia_frames_ops ops_without;

static void test_no_windows(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, TIMEOUT_MS);
    w.frames.base.ops = &ops_without;
    assert_int_equal(read_one(&w, 0, 1, 0), -EOPNOTSUPP);
    world_close(&w);
}

/* More than there are at once: each that was begun has a buffer to itself, also the one that is being placed,
 * and the others are told so. */
static void test_all_buffers(void **state)
{
    enum { MANY = BOUNCE_COUNT + 4 };
    static struct one ones[MANY];
    struct fault_path_stat s;
    unsigned begun = 0;
    struct world w;

    (void)state;
    world_open(&w, TIMEOUT_MS);
    hold_done = true;
    for (unsigned i = 0; i < MANY; i++) {
        one_init(&ones[i]);
        int error = begin_one(&w, &ones[i], i * 8, 8, i * 16);
        begun += !error;
        assert_int_equal(error, i < BOUNCE_COUNT ? 0 : -EAGAIN);
        for (uint64_t until = now_ms() + SLACK_MS; !held_up && now_ms() < until;)
            usleep(1000);
    }
    hold_done = false;
    for (unsigned i = 0; i < begun; i++) {
        assert_int_equal(one_wait(&ones[i]), 0);
        assert_true(frames_have(&w, i * 8, 8, i * 16));
    }
    fault_path_stat(w.path, &s);
    assert_int_equal(s.refused, MANY - begun);
    assert_int_equal(s.bounced, begun);
    for (unsigned i = 0; i < MANY; i++) /* all have come back */
        assert_int_equal(read_one(&w, 0, 1, i), 0);
    world_close(&w);
}

/* A queue in error, again and again, with reads under way: each ends, none has a wrong answer, and the path
 * comes back. */
static void test_broken(void **state)
{
    enum { MANY = 32 };
    static struct one ones[MANY];
    unsigned failed = 0;
    struct world w;

    (void)state;
    for (unsigned i = 0; i < MANY; i++)
        one_init(&ones[i]);
    world_open(&w, TIMEOUT_MS);
    for (unsigned round = 0; round < 5; round++) {
        bool begun[MANY];
        for (unsigned i = 0; i < MANY; i++) {
            if (i == MANY / 2)
                assert_int_equal(transport_test_break(w.path->agent, round % 2), 0);
            begun[i] = !begin_one(&w, &ones[i], i * 8, 8, i * 8 + round);
            failed += !begun[i];
        }
        for (unsigned i = 0; i < MANY; i++)
            if (begun[i] && one_wait(&ones[i]))
                failed++;
            else if (begun[i])
                assert_true(frames_have(&w, i * 8, 8, i * 8 + round));
        wait_connects(&w, round + 2);
        assert_int_equal(read_one(&w, 0, 8, 99), 0);
        assert_true(frames_have(&w, 0, 8, 99));
    }
    print_message("%u of %u reads failed\n", failed, 5 * MANY);
    assert_true(failed);
    world_close(&w);
}

/* A peer that stops answering: the reads end within the set time, and nothing is written to frames then. */
static void test_deaf(void **state)
{
    struct one one;
    struct world w;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA) {
        print_message("a NIC answers by itself\n");
        skip();
    }
    world_open(&w, SHORT_MS);
    one_init(&one);
    transport_test.deaf = true;
    uint64_t since = now_ms();
    assert_int_equal(begin_one(&w, &one, 0, 4, 0), 0);
    assert_int_equal(one_wait(&one), -EIO);
    assert_true(now_ms() - since < SHORT_MS + SLACK_MS);
    transport_test.deaf = false;
    wait_connects(&w, 2);
    assert_false(frames_have(&w, 0, 4, 0));
    assert_int_equal(read_one(&w, 0, 4, 0), 0);
    assert_true(frames_have(&w, 0, 4, 0));
    world_close(&w);
}

/* Strangers that come first and say nothing do not keep this process out of its own path. */
static void test_a_crowd(void **state)
{
    static struct side crowd;
    struct gaia_link_options options = {1, 1};
    struct gaia_link *link;
    struct world w;

    (void)state;
    world_open(&w, TIMEOUT_MS);
    pthread_mutex_lock(&w.path->transport->lock);
    w.path->exposed = false; /* as if it were connecting, and its own link had not come yet */
    memset(w.path->strangers, 0, sizeof w.path->strangers);
    pthread_mutex_unlock(&w.path->transport->lock);
    side_init(&crowd, false);
    struct gaia_transport_config config = side_config(&crowd, false, TIMEOUT_MS);
    assert_int_equal(gaia_transport_open(&config, &crowd.transport), 0);
    for (unsigned i = 0; i < STRANGERS_MAX + 3; i++)
        assert_int_equal(gaia_link_connect(crowd.transport, w.path->address, &options, &link), 0);
    assert_int_equal(gaia_link_send(link, w.path->token, TOKEN_BYTES), 0);
    for (uint64_t until = now_ms() + SLACK_MS; now_ms() < until && !crowd.exposed;)
        gaia_transport_poll(crowd.transport, 50);
    assert_int_equal(crowd.exposed, 1);
    gaia_transport_close(crowd.transport);
    assert_int_equal(read_one(&w, 0, 4, 8), 0);
    world_close(&w);
}

/* While the path was broken somebody else has taken its address. */
static void test_address_taken(void **state)
{
    struct rlimit limit, none;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct world w;
    bool gone = false;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA) {
        print_message("its addresses are no sockets\n");
        skip();
    }
    world_open(&w, TIMEOUT_MS);
    size_t length = strlen(w.path->address);
    memcpy(address.sun_path + 1, w.path->address, length);
    int taker = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 3; /* no descriptor for another transport */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(transport_test_break(w.path->agent, 0), 0);
    for (uint64_t until = now_ms() + SLACK_MS; now_ms() < until && !gone; usleep(1000)) {
        pthread_mutex_lock(&w.path->lock);
        gone = !w.path->transport;
        pthread_mutex_unlock(&w.path->lock);
    }
    int error = -1; /* its end has begun: it may still have the address */
    for (uint64_t until = now_ms() + SLACK_MS; gone && error && now_ms() < until; usleep(1000))
        error = bind(taker, (struct sockaddr *)&address,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(gone);
    assert_int_equal(error, 0);
    wait_connects(&w, 2);
    assert_int_equal(read_one(&w, 0, 4, 8), 0);
    assert_true(frames_have(&w, 0, 4, 8));
    world_close(&w);
    close(taker);
}

static void expect_error(enum fault_carrier kind, const char *address, int error, const char *word)
{
    static uint8_t page[PAGE];
    struct fault_path_config config = {.carrier = kind, .timeout_ms = 500};
    struct fault_path *path = NULL;

    snprintf(config.address, sizeof config.address, "%s", address);
    assert_int_equal(fault_path_open(&config, page, sizeof page, PAGE, &path, why), error);
    assert_null(path);
    if (!strstr(why, word))
        fail_msg("%s: \"%s\" does not name \"%s\"", address, why, word);
}

static void test_no_such_device(void **state)
{
    (void)state;
    if (carrier == GAIA_CARRIER_RDMA) {
        expect_error(FAULT_RDMA, "192.0.2.1", -EADDRNOTAVAIL, "192.0.2.1");
        return;
    }
    expect_error(FAULT_RDMA, "127.0.0.1:7471", -ENODEV, "");
    expect_error(FAULT_RDMA, "", -ENODEV, "");
    expect_error(FAULT_RDMA, "nonsense::", -EINVAL, "nonsense");
}

/* Host frames that can't be registered: said at once, with the reason, and not when a peer's time is up. */
static void test_not_exposed(void **state)
{
    static uint8_t page[PAGE];
    struct fault_path_config config = {.carrier = carrier == GAIA_CARRIER_RDMA ? FAULT_RDMA : FAULT_LOCAL,
                                       .timeout_ms = 4 * SLACK_MS};
    struct fault_path *path = NULL;
    uint64_t since = now_ms();

    (void)state;
    snprintf(config.address, sizeof config.address, "%s", here);
    assert_int_equal(fault_path_open(&config, page, (size_t)1 << 41, PAGE, &path, why), -EINVAL);
    assert_null(path);
    assert_non_null(strstr(why, "a span of 2199023255552 bytes"));
    assert_true(now_ms() - since < 2 * SLACK_MS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_bytes),      CASE(test_strangers),     CASE(test_wrong_token), CASE(test_all_buffers),
        CASE(test_no_windows), CASE(test_broken),        CASE(test_deaf),        CASE(test_no_such_device),
        CASE(test_a_crowd),    CASE(test_address_taken), CASE(test_not_exposed),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("the fault path", tests, NULL, NULL);
}
