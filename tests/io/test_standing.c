/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that stands, over the transport: that it is registered once and let go of when it or the transport
 * ends, by a dma-buf or by its address; what is learnt of it when it can't be reached, or not now, or when a
 * transfer fails, and that this is kept by path.
 *
 * Local without arguments; `--carrier rdma HERE THERE` as the tests of the transport. */
#include "tests/io/transport_fixture.h"

#include "io/standing.h"

#define AREA (2 * MIB)

struct world {
    struct pair pair;
    struct gaia_standing standing;
    struct gaia_reaches reaches;
    uint8_t *memory, *remote;
    uint32_t region;
};

static unsigned shared; /* how often a dma-buf was asked for */
static int share_fd;    /* the descriptor that it was */
static int refusal;     /* instead of one */

static int share(struct gaia_standing *standing)
{
    (void)standing;
    shared++;
    if (refusal)
        return refusal;
    share_fd = memfd_create("test-dma-buf", MFD_CLOEXEC); /* which is none */
    return share_fd;
}

static void world_open(struct world *w)
{
    pair_open(&w->pair, 2, 8, TIMEOUT_MS);
    w->memory = new_frames(AREA);
    w->remote = new_frames(AREA);
    fill(w->remote, AREA, seed);
    w->region = expose_to(&w->pair, 0, w->remote, AREA, false);
    memset(&w->reaches, 0, sizeof w->reaches);
    w->standing =
        (struct gaia_standing){.address = w->memory, .length = AREA, .share = share, .reaches = &w->reaches};
    shared = 0;
    refusal = 0;
}

static enum gaia_reach reach_of(const struct world *w)
{
    return gaia_standing_reach(&w->standing, GAIA_PATH_CALLS);
}

static void world_close(struct world *w)
{
    pair_close(&w->pair);
    munmap(w->memory, AREA);
    munmap(w->remote, AREA);
}

static unsigned registrations(const struct side *side)
{
    struct gaia_memory *memory;
    unsigned n = 0;

    LIST_FOREACH (memory, &side->transport->memories, entry)
        n++;
    return n;
}

/* Read a piece of the peer's into a place of the standing memory. 0, or why not. */
static int read_piece(struct world *w, uint64_t at, uint64_t from, uint32_t length)
{
    struct gaia_memory *memory;
    int error = gaia_standing_register(&w->standing, w->pair.client.transport, &memory);

    if (error)
        return error;
    struct shot shot = new_shot(memory, at, w->region, from, length, false);
    shot.transfer.cuttable = true;
    return shoot(&w->pair.client, w->pair.link, &shot);
}

static void test_pieces(void **state)
{
    static struct world w;
    uint64_t random = seed;

    (void)state;
    world_open(&w);
    unsigned before = registrations(&w.pair.client);
    for (unsigned i = 0; i < 50; i++) {
        uint32_t length = 1 + (uint32_t)draw(&random, 64 * KIB);
        uint64_t at = draw(&random, AREA - length), from = draw(&random, AREA - length);

        must(read_piece(&w, at, from, length));
        assert_true(matches(w.memory + at, length, seed, from));
    }
    assert_int_equal(registrations(&w.pair.client), before + 1);
    struct gaia_memory *memory;
    must(gaia_standing_register(&w.standing, w.pair.client.transport, &memory));
    struct shot past = new_shot(memory, AREA - 4095, w.region, 0, 4096, false);
    assert_int_equal(post_one(w.pair.link, 0, &past), -EINVAL); /* past its end, though not the region's */
    gaia_standing_end(&w.standing);
    assert_int_equal(registrations(&w.pair.client), before);
    must(read_piece(&w, 0, 8, 4096)); /* there again: a new registration */
    assert_int_equal(registrations(&w.pair.client), before + 1);
    gaia_link_close(w.pair.link);
    world_close(&w); /* the transport goes first */
    assert_true(LIST_EMPTY(&w.standing.registered));
    gaia_standing_end(&w.standing);
    assert_int_equal(reach_of(&w), GAIA_REACH_UNKNOWN); /* it is not for this to say that it works */
}

/* Two transports: what one lets go of, the other has. */
static void test_two_transports(void **state)
{
    static struct world w;
    static struct side other;
    struct gaia_memory *one, *two, *again;

    (void)state;
    world_open(&w);
    side_open(&other, false, TIMEOUT_MS);
    must(gaia_standing_register(&w.standing, w.pair.client.transport, &one));
    must(gaia_standing_register(&w.standing, other.transport, &two));
    assert_ptr_not_equal(one, two);
    must(gaia_standing_register(&w.standing, other.transport, &again));
    assert_ptr_equal(two, again);
    side_close(&other);
    must(gaia_standing_register(&w.standing, w.pair.client.transport, &again));
    assert_ptr_equal(one, again);
    must(read_piece(&w, 100, 200, 5000));
    assert_true(matches(w.memory + 100, 5000, seed, 200));
    gaia_standing_end(&w.standing);
    world_close(&w);
}

/* A carrier that takes dma-bufs gets one, and only such a one; the descriptor is not kept. */
static void test_dmabuf_first(void **state)
{
    static struct world w;
    bool takes;

    (void)state;
    world_open(&w);
    takes = w.pair.client.transport->limits.dmabuf;
    must(read_piece(&w, 0, 0, 4096));
    assert_int_equal(shared, takes);
    gaia_standing_end(&w.standing);
    /* As if it took them; it refuses this one, which is none, and gets the address. */
    w.pair.client.transport->limits.dmabuf = true;
    must(read_piece(&w, 4096, 77, 4096));
    assert_true(matches(w.memory + 4096, 4096, seed, 77));
    assert_int_equal(shared, takes + 1);
    assert_int_equal(fcntl(share_fd, F_GETFD), -1);
    must(read_piece(&w, 8192, 99, 4096));
    assert_int_equal(shared, takes + 1);
    gaia_standing_end(&w.standing);
    w.standing.share = NULL;
    must(read_piece(&w, 8192, 111, 4096));
    assert_true(matches(w.memory + 8192, 4096, seed, 111));
    gaia_standing_end(&w.standing);
    w.pair.client.transport->limits.dmabuf = takes;
    world_close(&w);
}

/* Not a CPU's: RDMA refuses to register it, the local carrier finds out when it copies. The link goes on. */
static void test_unreachable(void **state)
{
    static struct world w;
    struct gaia_memory *memory = NULL;

    (void)state;
    world_open(&w);
    unsigned before = registrations(&w.pair.client);
    assert_int_equal(mprotect(w.memory, AREA, PROT_NONE), 0);
    int error = read_piece(&w, 0, 0, 4096);
    if (carrier == GAIA_CARRIER_LOCAL) {
        assert_int_equal(error, -EFAULT);
        assert_int_equal(reach_of(&w), GAIA_REACH_UNKNOWN);
        gaia_standing_ended(&w.standing, GAIA_PATH_CALLS, NULL, error);
    } else {
        assert_int_equal(error, -EOPNOTSUPP);
        assert_int_equal(registrations(&w.pair.client), before);
    }
    assert_int_equal(reach_of(&w), GAIA_REACH_NONE);
    assert_int_equal(gaia_standing_reach(&w.standing, GAIA_PATH_FAULTS), GAIA_REACH_UNKNOWN);
    assert_int_equal(mprotect(w.memory, AREA, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(gaia_standing_register(&w.standing, w.pair.client.transport, &memory), -EOPNOTSUPP);
    assert_null(memory);
    assert_int_equal(gaia_link_error(w.pair.link), 0);
    gaia_standing_end(&w.standing);
    assert_int_equal(registrations(&w.pair.client), before);
    /* Other memory of the same GPU's is not asked for either. */
    w.standing = (struct gaia_standing){.address = w.memory, .length = AREA, .reaches = &w.reaches};
    assert_int_equal(read_piece(&w, 0, 5, 4096), -EOPNOTSUPP);
    memset(&w.reaches, 0, sizeof w.reaches);
    must(read_piece(&w, 0, 5, 4096));
    gaia_standing_end(&w.standing);
    world_close(&w);
}

/* Where bytes were seen to arrive, one piece of memory that they do not reach is no sign for the others. */
static void test_one_of_many(void **state)
{
    static struct world w;
    struct gaia_memory *memory;
    struct gaia_standing *many;

    (void)state;
    world_open(&w);
    many = &(struct gaia_standing){.address = w.memory + MIB, .length = MIB, .reaches = &w.reaches};
    must(read_piece(&w, 0, 0, 4096));
    must(gaia_standing_register(&w.standing, w.pair.client.transport, &memory));
    assert_false(gaia_standing_is_proven(memory));
    assert_false(gaia_standing_is_proven(NULL));
    gaia_standing_prove(&w.standing, GAIA_PATH_CALLS, memory);
    assert_true(gaia_standing_is_proven(memory));
    assert_int_equal(reach_of(&w), GAIA_REACH_PROVEN);
    for (unsigned i = 0; i < 5; i++)
        gaia_standing_ended(&w.standing, GAIA_PATH_CALLS, memory, -EIO); /* peers have died */
    must(read_piece(&w, 0, 1, 4096));
    gaia_standing_ended(&w.standing, GAIA_PATH_FAULTS, memory, -ECANCELED);
    gaia_standing_ended(&w.standing, GAIA_PATH_FAULTS, memory, 0);
    assert_int_equal(gaia_standing_reach(&w.standing, GAIA_PATH_FAULTS), GAIA_REACH_UNKNOWN);
    gaia_standing_ended(&w.standing, GAIA_PATH_FAULTS, NULL,
                        -EFAULT); /* another path: not this one's affair */
    assert_int_equal(gaia_standing_reach(&w.standing, GAIA_PATH_FAULTS), GAIA_REACH_NONE);
    must(read_piece(&w, 0, 2, 4096));
    gaia_standing_ended(&w.standing, GAIA_PATH_CALLS, memory, -EFAULT);
    assert_int_equal(read_piece(&w, 0, 3, 4096), -EOPNOTSUPP);
    assert_int_equal(reach_of(&w), GAIA_REACH_PROVEN);
    must(gaia_standing_register(many, w.pair.client.transport, &memory));
    assert_false(gaia_standing_is_proven(memory)); /* it has shown nothing: a peer may die once, not twice */
    gaia_standing_ended(many, GAIA_PATH_CALLS, memory, -EIO);
    must(gaia_standing_register(many, w.pair.client.transport, &memory));
    gaia_standing_ended(many, GAIA_PATH_CALLS, memory, -EIO);
    assert_int_equal(gaia_standing_register(many, w.pair.client.transport, &memory), -EOPNOTSUPP);
    assert_int_equal(reach_of(&w), GAIA_REACH_PROVEN);
    gaia_standing_end(many);
    gaia_standing_end(&w.standing);
    must(read_piece(&w, 0, 4, 4096)); /* as new memory at that place */
    gaia_standing_end(&w.standing);
    /* Nothing was ever seen to arrive by that path: then the first failure is for good. */
    memset(&w.reaches, 0, sizeof w.reaches);
    must(gaia_standing_register(&w.standing, w.pair.client.transport, &memory));
    gaia_standing_ended(&w.standing, GAIA_PATH_CALLS, memory, -EIO);
    assert_int_equal(reach_of(&w), GAIA_REACH_NONE);
    gaia_standing_prove(&w.standing, GAIA_PATH_CALLS, memory); /* by who began before */
    assert_int_equal(reach_of(&w), GAIA_REACH_NONE);
    gaia_standing_end(&w.standing);
    world_close(&w);
}

/* What is refused for now is asked for again after a second, and not before. */
static void test_not_now(void **state)
{
    static struct world w;
    bool takes;

    (void)state;
    world_open(&w);
    takes = w.pair.client.transport->limits.dmabuf;
    w.pair.client.transport->limits.dmabuf = true;
    refusal = -ENOMEM;
    must(read_piece(&w, 0, 1, 4096)); /* its address serves, and so it is not asked again */
    must(read_piece(&w, 0, 2, 4096));
    assert_int_equal(shared, 1);
    gaia_standing_end(&w.standing);
    w.standing.address = NULL; /* which nobody registers */
    uint64_t begun = clock_now_ns();
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(read_piece(&w, 0, 3, 4096), -ENOMEM);
    if (clock_now_ns() - begun < 900 * 1000000u)
        assert_int_equal(shared, 2);
    assert_int_equal(reach_of(&w), GAIA_REACH_UNKNOWN);
    assert_true(w.reaches.refused[GAIA_PATH_CALLS]);
    w.standing.address = w.memory;
    usleep(1100 * 1000);
    must(read_piece(&w, 0, 4, 4096));
    assert_int_equal(shared, 3);
    assert_false(w.reaches.refused[GAIA_PATH_CALLS]);
    gaia_standing_end(&w.standing);
    refusal = -EOPNOTSUPP;
    w.standing.address = NULL;
    assert_int_equal(read_piece(&w, 0, 5, 4096), -EOPNOTSUPP);
    assert_int_equal(reach_of(&w), GAIA_REACH_NONE);
    w.pair.client.transport->limits.dmabuf = takes;
    gaia_standing_end(&w.standing);
    world_close(&w);
}

/* Threads that want it at the same time get one registration; memory and transport may end at the same time.
 */
struct wanter {
    struct world *w;
    struct gaia_memory *memory;
};

static void *want(void *argument)
{
    struct wanter *wanter = argument;

    if (gaia_standing_register(&wanter->w->standing, wanter->w->pair.client.transport, &wanter->memory))
        wanter->memory = NULL;
    return NULL;
}

static void *end_it(void *argument)
{
    gaia_standing_end(argument);
    return NULL;
}

static void test_at_the_same_time(void **state)
{
    enum { THREADS = 8, ROUNDS = 20 };
    static struct world w;

    (void)state;
    for (unsigned round = 0; round < (carrier == GAIA_CARRIER_LOCAL ? ROUNDS : 2); round++) {
        struct wanter wanters[THREADS];
        pthread_t threads[THREADS], ender;

        world_open(&w);
        for (unsigned i = 0; i < THREADS; i++) {
            wanters[i] = (struct wanter){&w, NULL};
            assert_int_equal(pthread_create(&threads[i], NULL, want, &wanters[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (unsigned i = 0; i < THREADS; i++)
            assert_true(wanters[i].memory && wanters[i].memory == wanters[0].memory);
        assert_int_equal(pthread_create(&ender, NULL, end_it, &w.standing), 0);
        world_close(&w);
        pthread_join(ender, NULL);
        assert_true(LIST_EMPTY(&w.standing.registered));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_pieces),           CASE(test_two_transports), CASE(test_dmabuf_first),
        CASE(test_unreachable),      CASE(test_one_of_many),    CASE(test_not_now),
        CASE(test_at_the_same_time),
    };

    take_arguments(argc, argv);
    return cmocka_run_group_tests_name("memory that stands", tests, NULL, NULL);
}
