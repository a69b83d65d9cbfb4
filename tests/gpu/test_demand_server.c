/* SPDX-License-Identifier: Apache-2.0 */
/* Who answers a demand mapping's ring: many requests at a time, each unit by one of them, and bytes that are
 * those of the soft mapping. The test is the GPU: it writes requests, pulls from the arena and gives back. A
 * soft mapping that has to bring its bytes first is memory whose faults the test answers by userfaultfd. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cache/replica.h"
#include "gpu/uffd.h"
#include "tests/gpu/demand_ring.h"

#define UNITS 64u
#define SLOTS 32u
#define A_MOMENT_US 100000u

/* In any thread. */
#define ENSURE(condition)                                                  \
    do {                                                                   \
        if (!(condition)) {                                                \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            fflush(stdout);                                                \
            _exit(1);                                                      \
        }                                                                  \
    } while (0)

struct world {
    struct ring ring;
    uint8_t *home;
    _Atomic bool taken[SLOTS]; /* by a ticket that is under way */
    pthread_mutex_t lock;      /* one asks at a time */

    int uffd; /* -1: the home is there */
    pthread_t holder;
    _Atomic unsigned held_back; /* faults that are answered when so many are there */
    _Atomic unsigned faults;    /* that are not answered yet */
    _Atomic bool stop;
};

/* What the file has, before anybody stores to it. */
static void fill(uint8_t *bytes, uint32_t unit)
{
    for (uint32_t i = 0; i < UNIT; i++)
        bytes[i] = (uint8_t)(unit * 7 + i / 16);
}

static bool is_unit(const uint8_t *bytes, uint32_t unit)
{
    uint8_t expected[UNIT];

    fill(expected, unit);
    return !memcmp(bytes, expected, UNIT);
}

/* ---- a home whose bytes come when so many wait for them ---- */

static void answer_fault(const struct world *world, uint64_t address)
{
    uint8_t bytes[UNIT];
    struct uffdio_copy copy = {.dst = address & ~(uint64_t)(UNIT - 1), .src = (uintptr_t)bytes, .len = UNIT};

    fill(bytes, (uint32_t)((copy.dst - (uintptr_t)world->home) / UNIT));
    ENSURE(!ioctl(world->uffd, UFFDIO_COPY, &copy));
}

static void *hold(void *argument)
{
    struct world *world = argument;
    uint64_t waits[UNITS];
    struct uffd_msg message;

    while (!world->stop) {
        struct pollfd ready = {.fd = world->uffd, .events = POLLIN};

        if (poll(&ready, 1, 1) == 1 && read(world->uffd, &message, sizeof message) == sizeof message)
            waits[world->faults++] = message.arg.pagefault.address;
        if (world->faults < world->held_back)
            continue;
        unsigned count = world->faults;
        world->faults = 0;
        while (count)
            answer_fault(world, waits[--count]);
    }
    return NULL;
}

static void hold_faults(struct world *world)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {(uintptr_t)world->home, (uint64_t)UNITS * UNIT},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};

    world->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    assert_return_code(world->uffd, errno);
    assert_return_code(ioctl(world->uffd, UFFDIO_API, &api), errno);
    assert_return_code(ioctl(world->uffd, UFFDIO_REGISTER, &range), errno);
    assert_int_equal(pthread_create(&world->holder, NULL, hold, world), 0);
}

static bool come_to(_Atomic unsigned *count, unsigned wanted)
{
    for (uint64_t end = clock_now_ns() + RING_LIMIT_NS; *count < wanted; usleep(1000))
        if (clock_now_ns() > end)
            return false;
    return true;
}

/* ---- a mapping ---- */

static struct world *make_world(uint32_t arena_slots, bool writable, bool holds)
{
    struct world *world = calloc(1, sizeof *world);
    int fd = memfd_create("a file", MFD_CLOEXEC);

    assert_non_null(world);
    assert_return_code(fd, errno);
    assert_return_code(ftruncate(fd, (off_t)UNITS * UNIT), errno);
    world->home =
        mmap(NULL, (size_t)UNITS * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(world->home != MAP_FAILED);
    world->uffd = -1;
    pthread_mutex_init(&world->lock, NULL);
    if (holds)
        hold_faults(world);
    else
        for (uint32_t unit = 0; unit < UNITS; unit++)
            fill(world->home + (size_t)unit * UNIT, unit);
    world->ring.server =
        (struct demand_server){.home = world->home,
                               .fd = fd,
                               .writable = writable,
                               .host = {.units = UNITS, .slots = SLOTS, .arena_slots = arena_slots}};
    assert_true(ring_start(&world->ring, 0));
    return world;
}

static void end_world(struct world *world)
{
    ring_stop(&world->ring);
    world->stop = true;
    if (world->uffd >= 0) {
        pthread_join(world->holder, NULL);
        close(world->uffd);
    }
    close(world->ring.server.fd);
    munmap(world->home, (size_t)UNITS * UNIT);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

/* ---- the GPU ---- */

static uint32_t ask(struct world *world, uint32_t operation, uint32_t unit, uint32_t grant,
                    const uint8_t *bytes)
{
    pthread_mutex_lock(&world->lock);
    uint32_t next = world->ring.head;
    while (world->taken[next % SLOTS])
        sched_yield();
    world->taken[next % SLOTS] = true;
    if (bytes)
        memcpy(gaia_demand_stage(&world->ring.server.host, next), bytes, UNIT);
    uint32_t ticket = ring_ask(&world->ring, operation, unit, grant);
    pthread_mutex_unlock(&world->lock);
    return ticket;
}

static bool is_answered(const struct world *world, uint32_t ticket, uint32_t *status_out, uint32_t *grant_out)
{
    uint64_t status, grant;

    ring_look(&world->ring, ticket, &status, &grant);
    *status_out = (uint32_t)status;
    *grant_out = (uint32_t)grant;
    return status >> 32 == ticket && grant >> 32 == ticket;
}

/* bytes_out: the stage's; or NULL. */
static uint32_t await(struct world *world, uint32_t ticket, uint8_t *bytes_out, uint32_t *grant_out)
{
    uint32_t status;

    for (uint64_t end = clock_now_ns() + RING_LIMIT_NS; !is_answered(world, ticket, &status, grant_out);
         sched_yield())
        ENSURE(clock_now_ns() < end);
    if (bytes_out)
        memcpy(bytes_out, gaia_demand_stage(&world->ring.server.host, ticket), UNIT);
    world->taken[ticket % SLOTS] = false;
    return status;
}

/* As gaia_warp_pull() does. */
static bool pull(const struct world *world, uint32_t unit, uint8_t *bytes, uint32_t *grant_out)
{
    const struct gaia_demand_host *host = &world->ring.server.host;
    uint64_t word = __atomic_load_n(&host->arena_state[unit], __ATOMIC_ACQUIRE);
    uint32_t slot = GAIA_DEMAND_ARENA_SLOT(word);

    if (!slot)
        return false;
    const uint64_t *from = (const void *)(host->arena + (size_t)(slot - 1) * UNIT);
    for (size_t i = 0; i < UNIT / 8; i++) {
        uint64_t eight = __atomic_load_n(from + i, __ATOMIC_ACQUIRE);
        memcpy(bytes + i * 8, &eight, 8);
    }
    *grant_out = GAIA_DEMAND_ARENA_SEQUENCE(word);
    return __atomic_load_n(&host->arena_state[unit], __ATOMIC_ACQUIRE) == word;
}

/* As gaia_warp_bring() does. */
static uint32_t bring(struct world *world, uint32_t unit, uint8_t *bytes)
{
    uint32_t grant = 0, status;

    if (pull(world, unit, bytes, &grant))
        return grant;
    status = await(world, ask(world, GAIA_DEMAND_FETCH, unit, 0, NULL), NULL, &grant);
    ENSURE(status == GAIA_DEMAND_PULL);
    if (pull(world, unit, bytes, &grant))
        return grant;
    status = await(world, ask(world, GAIA_DEMAND_FETCH_HERE, unit, 0, NULL), bytes, &grant);
    ENSURE(status == 0);
    return grant;
}

/* ---- tests ---- */

/* The bytes of none of them come before all are asked for. */
static void test_many_are_under_way(void **state)
{
    (void)state;
    for (unsigned writable = 0; writable < 2; writable++) {
        struct world *world = make_world(UNITS, writable, true);
        uint32_t tickets[DEMAND_SERVERS_MAX], grant;
        uint8_t bytes[UNIT];

        world->held_back = DEMAND_SERVERS_MAX;
        for (uint32_t i = 0; i < DEMAND_SERVERS_MAX; i++)
            tickets[i] = ask(world, i % 2 ? GAIA_DEMAND_FETCH : GAIA_DEMAND_FETCH_HERE, i, 0, NULL);
        for (uint32_t i = 0; i < DEMAND_SERVERS_MAX; i++) {
            assert_int_equal(await(world, tickets[i], bytes, &grant), i % 2 ? GAIA_DEMAND_PULL : 0);
            if (i % 2)
                assert_true(pull(world, i, bytes, &grant));
            assert_true(is_unit(bytes, i));
        }
        end_world(world);
    }
}

/* A ring that a kernel has written over may ask for a unit twice. */
static void test_a_unit_is_answered_once_at_a_time(void **state)
{
    struct world *world = make_world(UNITS, true, true);
    uint32_t tickets[3], grant;
    uint8_t bytes[UNIT];

    (void)state;
    world->held_back = UNITS;
    tickets[0] = ask(world, GAIA_DEMAND_FETCH_HERE, 5, 0, NULL);
    assert_true(come_to(&world->faults, 1));
    tickets[1] = ask(world, GAIA_DEMAND_FETCH_HERE, 5, 0, NULL);
    tickets[2] = ask(world, GAIA_DEMAND_FETCH_HERE, 6, 0, NULL);
    assert_true(come_to(&world->faults, 2)); /* of 5 and 6 */
    usleep(A_MOMENT_US);
    assert_int_equal(world->faults, 2);
    world->held_back = 0;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(await(world, tickets[i], bytes, &grant), 0);
        assert_true(is_unit(bytes, i == 2 ? 6 : 5));
    }
    end_world(world);
}

static void *forget_some(void *argument)
{
    struct world *world = argument;

    demand_server_forget(&world->ring.server, 4, 4);
    world->held_back = UNITS + 1; /* has ended */
    return NULL;
}

/* An acquire's: bytes that were read before it must not be granted after it. */
static void test_what_is_forgotten_is_not_under_way(void **state)
{
    struct world *world = make_world(UNITS, true, true);
    uint32_t ticket, other, grant;
    uint8_t bytes[UNIT];
    pthread_t thread;

    (void)state;
    world->held_back = UNITS;
    ticket = ask(world, GAIA_DEMAND_FETCH, 7, 0, NULL);
    other = ask(world, GAIA_DEMAND_FETCH, 8, 0, NULL);
    assert_true(come_to(&world->faults, 2));
    assert_int_equal(pthread_create(&thread, NULL, forget_some, world), 0);
    usleep(A_MOMENT_US);
    assert_int_equal(world->held_back, UNITS);
    world->held_back = 0;
    assert_int_equal(await(world, ticket, NULL, &grant), GAIA_DEMAND_PULL);
    assert_int_equal(await(world, other, NULL, &grant), GAIA_DEMAND_PULL);
    pthread_join(thread, NULL);
    assert_false(pull(world, 7, bytes, &grant));
    assert_true(pull(world, 8, bytes, &grant));
    assert_true(is_unit(bytes, 8));
    end_world(world);
}

/* Slots of the arena that are all being written to. */
static void test_an_arena_smaller_than_what_is_under_way(void **state)
{
    struct world *world = make_world(1, true, true);
    uint32_t tickets[DEMAND_SERVERS_MAX], grant;

    (void)state;
    for (unsigned round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < DEMAND_SERVERS_MAX; i++)
            tickets[i] = ask(world, GAIA_DEMAND_FETCH, i, 0, NULL);
        for (uint32_t i = 0; i < DEMAND_SERVERS_MAX; i++)
            assert_int_equal(await(world, tickets[i], NULL, &grant), GAIA_DEMAND_PULL);
        unsigned there = 0;
        for (uint32_t i = 0; i < DEMAND_SERVERS_MAX; i++) {
            uint8_t bytes[UNIT];

            there += pull(world, i, bytes, &grant) && is_unit(bytes, i);
        }
        assert_int_equal(there, 1);
        demand_server_forget(&world->ring.server, 0, UNITS);
    }
    end_world(world);
}

static void test_the_end_waits_for_what_is_under_way(void **state)
{
    struct world *world = make_world(4, false, true);
    uint32_t ticket, status, grant;

    (void)state;
    world->held_back = UNITS;
    ticket = ask(world, GAIA_DEMAND_FETCH_HERE, 9, 0, NULL);
    assert_true(come_to(&world->faults, 1));
    world->held_back = 0;
    demand_server_stop(&world->ring.server);
    assert_true(is_answered(world, ticket, &status, &grant));
    assert_int_equal(status, 0);
    assert_true(is_unit(gaia_demand_stage(&world->ring.server.host, ticket), 9));
    end_world(world);
}

/* ---- many threads, and what the home has at the end ---- */

#define GPUS 8u
#define ROUNDS 400u

struct gpu {
    struct world *world;
    uint64_t random;
    uint32_t first; /* of the units that nobody else has */
    uint8_t expected[UNITS / GPUS][UNIT];
};

static uint32_t draw(struct gpu *gpu, uint32_t below)
{
    gpu->random = gpu->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(gpu->random >> 33) % below;
}

/* A unit comes into a frame, is stored to, given back, and perhaps stored to and given back once more. */
static void *store_and_give(void *argument)
{
    struct gpu *gpu = argument;
    uint8_t frame[UNIT];

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t own = draw(gpu, UNITS / GPUS), unit = gpu->first + own;
        uint32_t grant = bring(gpu->world, unit, frame);

        ENSURE(!memcmp(frame, gpu->expected[own], UNIT));
        for (unsigned times = draw(gpu, 3); times--;) {
            uint32_t at = draw(gpu, UNIT), length = draw(gpu, UNIT - at);

            for (uint32_t i = 0; i < length; i++)
                frame[at + i] = (uint8_t)draw(gpu, 256);
            ENSURE(!await(gpu->world, ask(gpu->world, GAIA_DEMAND_GIVE, unit, grant, frame), NULL, &grant));
            memcpy(gpu->expected[own], frame, UNIT);
        }
    }
    return NULL;
}

static void test_bytes_of_many_threads(void **state)
{
    struct timespec now;
    struct gpu *gpus = calloc(GPUS, sizeof *gpus);
    pthread_t threads[GPUS];

    (void)state;
    assert_non_null(gpus);
    clock_gettime(CLOCK_REALTIME, &now);
    printf("seed %lu\n", (unsigned long)now.tv_nsec);
    for (uint32_t arena = 1; arena <= UNITS; arena *= 8) {
        struct world *world = make_world(arena, true, false);

        for (uint32_t i = 0; i < GPUS; i++) {
            gpus[i] = (struct gpu){
                .world = world, .random = (uint64_t)now.tv_nsec * GPUS + i, .first = i * (UNITS / GPUS)};
            for (uint32_t own = 0; own < UNITS / GPUS; own++)
                fill(gpus[i].expected[own], gpus[i].first + own);
            assert_int_equal(pthread_create(&threads[i], NULL, store_and_give, &gpus[i]), 0);
        }
        for (uint32_t i = 0; i < GPUS; i++)
            pthread_join(threads[i], NULL);
        for (uint32_t i = 0; i < GPUS; i++)
            assert_memory_equal(world->home + (size_t)gpus[i].first * UNIT, gpus[i].expected,
                                sizeof gpus[i].expected);
        end_world(world);
    }
    free(gpus);
}

/* A grant that was none, and bytes for a mapping that is for reading, change nothing. */
static void test_what_is_refused(void **state)
{
    struct world *world = make_world(4, true, false), *reading = make_world(4, false, false);
    uint8_t frame[UNIT], other[UNIT] = {0};
    uint32_t grant = bring(world, 3, frame), none;

    (void)state;
    assert_int_equal(await(world, ask(world, GAIA_DEMAND_GIVE, 3, grant + 1, other), NULL, &none), EINVAL);
    assert_int_equal(await(world, ask(world, GAIA_DEMAND_GIVE, 4, 0, other), NULL, &none), EINVAL);
    assert_int_equal(await(world, ask(world, GAIA_DEMAND_FETCH, UNITS, 0, NULL), NULL, &none), EINVAL);
    assert_true(is_unit(world->home + (size_t)3 * UNIT, 3));
    assert_int_equal(await(world, ask(world, GAIA_DEMAND_GIVE, 3, grant, frame), NULL, &none), 0);
    grant = bring(reading, 3, frame);
    assert_int_equal(await(reading, ask(reading, GAIA_DEMAND_GIVE, 3, grant, other), NULL, &none), EACCES);
    assert_true(is_unit(reading->home + (size_t)3 * UNIT, 3));
    end_world(world);
    end_world(reading);
}

/* A kernel that has gone astray may write over the words of the arena, too. */
static void test_an_arena_that_a_kernel_wrote_over(void **state)
{
    enum { ARENA = 4 };
    struct world *world = make_world(ARENA, true, false);
    uint8_t frame[UNIT];

    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t unit = 0; unit < UNITS; unit++) {
            uint64_t word = (uint64_t)(round + unit) << 32 | (1 + (unit + round) % (ARENA + 2));
            __atomic_store_n(&world->ring.server.host.arena_state[unit], word, __ATOMIC_RELEASE);
        }
        for (uint32_t unit = round % 3; unit < UNITS; unit += 3) {
            uint32_t grant;
            (void)await(world, ask(world, GAIA_DEMAND_FETCH_HERE, unit, 0, NULL), frame, &grant);
            assert_true(is_unit(frame, unit));
            (void)await(world, ask(world, GAIA_DEMAND_FETCH, unit, 0, NULL), NULL, &grant);
        }
        demand_server_forget(&world->ring.server, 0, UNITS);
        assert_in_range(world->ring.server.free_slots, 0, ARENA);
    }
    end_world(world);
}

/* Past the end of the file there are zeros, and a file that is gone is an error. */
static void test_the_end_of_the_file(void **state)
{
    struct world *world = make_world(4, true, false);
    uint8_t frame[UNIT], zeros[UNIT] = {0};
    uint32_t none;
    int fd = world->ring.server.fd;

    (void)state;
    assert_return_code(ftruncate(fd, (off_t)10 * UNIT + 1), errno);
    (void)bring(world, 10, frame); /* its page is there */
    assert_true(is_unit(frame, 10));
    (void)bring(world, 11, frame);
    assert_memory_equal(frame, zeros, UNIT);
    close(fd);
    assert_int_equal(await(world, ask(world, GAIA_DEMAND_FETCH, 12, 0, NULL), NULL, &none), EIO);
    world->ring.server.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    end_world(world);
}

/* What was cut off since a unit was granted is no part of the file any more, however long that is, and
 * however often it was cut since. */
static void test_what_was_cut_off(void **state)
{
    struct world *world = make_world(4, true, false);
    uint8_t frame[UNIT];
    uint32_t grant;

    (void)state;
    for (unsigned cuts = 1; cuts < 3 * GAIA_CUTS_KEPT; cuts += cuts < 3 ? 1 : GAIA_CUTS_KEPT / 2 - 1) {
        uint8_t *home = world->home + 5 * UNIT;
        replica_state_cut(&world->ring.state, 5 * UNIT); /* before the grant: it says nothing of it */
        demand_server_forget(&world->ring.server, 0, UNITS);
        grant = bring(world, 5, frame);
        memset(home, 0, UNIT);
        memset(frame, (int)(cuts % 7) + 1, UNIT);
        for (unsigned i = 0; i < cuts; i++)
            replica_state_cut(&world->ring.state,
                              i == cuts / 2 ? 5 * UNIT + 100 : (uint64_t)UNITS * UNIT - 1);
        assert_int_equal(await(world, ask(world, GAIA_DEMAND_GIVE, 5, grant, frame), NULL, &grant), 0);
        assert_int_equal(home[99], cuts > GAIA_CUTS_KEPT ? 0 : frame[99]);
        assert_int_equal(home[100], 0);
        memset(frame, 9, UNIT);
        assert_int_equal(await(world, ask(world, GAIA_DEMAND_GIVE, 5, grant, frame), NULL, &grant), 0);
        assert_int_equal(home[99], cuts > GAIA_CUTS_KEPT ? 0 : 9);
        assert_int_equal(home[100], 0);
        fill(home, 5);
    }
    end_world(world);
}

/* The daemon is telling of one more cut, in the place of the first one since the grant, and has not counted
 * it yet. */
static void test_a_cut_that_is_being_told_of(void **state)
{
    struct world *world = make_world(4, true, false);
    struct gaia_shared_state *shared = &world->ring.state;
    uint8_t frame[UNIT], *home = world->home + 5 * UNIT;
    uint32_t grant = bring(world, 5, frame);

    (void)state;
    memset(home, 0, UNIT);
    memset(frame, 1, UNIT);
    for (unsigned i = 0; i < GAIA_CUTS_KEPT; i++)
        replica_state_cut(&world->ring.state, i == 0 ? 5 * UNIT + 100 : (uint64_t)UNITS * UNIT - 1);
    shared->cut_ends[shared->cuts % GAIA_CUTS_KEPT] = (uint64_t)UNITS * UNIT - 1;
    assert_int_equal(await(world, ask(world, GAIA_DEMAND_GIVE, 5, grant, frame), NULL, &grant), 0);
    assert_int_equal(home[99], 1);
    assert_int_equal(home[100], 0);
    end_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_are_under_way),
        cmocka_unit_test(test_a_unit_is_answered_once_at_a_time),
        cmocka_unit_test(test_what_is_forgotten_is_not_under_way),
        cmocka_unit_test(test_an_arena_smaller_than_what_is_under_way),
        cmocka_unit_test(test_the_end_waits_for_what_is_under_way),
        cmocka_unit_test(test_bytes_of_many_threads),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_the_end_of_the_file),
        cmocka_unit_test(test_what_was_cut_off),
        cmocka_unit_test(test_a_cut_that_is_being_told_of),
        cmocka_unit_test(test_an_arena_that_a_kernel_wrote_over),
    };

    alarm(240);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
