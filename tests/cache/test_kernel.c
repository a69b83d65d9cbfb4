/* SPDX-License-Identifier: Apache-2.0 */
/* The consistency manager under a model of the kernel's page cache: CPUs that write(), CPUs that store
 * through a mapping, and two devices, all at once on the same pages, each at bytes of its own. Nobody may
 * lose a byte (rules 2, 3 and 6). */
#include "tests/cache/fixture.inc"

#include "cache/stat.h"
#include "tests/gate.h"

#define PAGES 6u  /* few, so that everybody meets everybody */
#define SHARES 4u /* byte b of a page belongs to writer b % SHARES */

enum { DEVICE_0, CPU_STORE, CPU_WRITE, DEVICE_1 };

static _Atomic bool stop;
static _Atomic unsigned lost, stale;
/* A write() of a process that reads its page at once may be answered before the page is dropped, where
 * whoever has just read it gets no processor for READER_MS (cache/heal.c): then that read is stale, and the
 * next soon is not. Seen on two processors with six of this test under TSan, in up to one run of five, once
 * or twice in a run. */
#define STALE_MAX 4u
#define STALE_MS 100u

struct worker {
    struct fixture *f;
    unsigned share, rounds;
    struct device_map map;
};

/* Never the same value twice in a row at one byte: a store that changes nothing is no store. */
static uint8_t value_of(unsigned share, unsigned round)
{
    return (uint8_t)(share * 64 + 1 + round % 63);
}

static unsigned count_wrong(struct fixture *f, unsigned page, unsigned share, unsigned step, uint8_t want)
{
    uint8_t bytes[4096];
    unsigned wrong = 0;

    kernel_read(f, page, bytes);
    for (unsigned b = share; b < 4096; b += step)
        wrong += bytes[b] != want;
    return wrong;
}

/* What a writer wrote stays until it writes again. */
static void check_share(struct fixture *f, unsigned share, unsigned step, uint8_t want)
{
    for (unsigned page = 0; page < PAGES; page++)
        lost += count_wrong(f, page, share, step, want);
}

static void check_written(struct fixture *f, unsigned share, unsigned step, uint8_t want)
{
    for (unsigned page = 0; page < PAGES; page++) {
        if (!count_wrong(f, page, share, step, want))
            continue;
        usleep(STALE_MS * 1000);
        unsigned wrong = count_wrong(f, page, share, step, want);
        lost += wrong;
        stale += !wrong;
    }
}

static void *cpu_store(void *argument)
{
    struct worker *w = argument;

    for (w->rounds = 0; !stop; w->rounds++) {
        for (unsigned page = 0; page < PAGES; page++)
            for (unsigned b = w->share; b < 4096; b += SHARES * 64)
                kernel_store(w->f, page, b, value_of(w->share, w->rounds));
        check_share(w->f, w->share, SHARES * 64, value_of(w->share, w->rounds));
    }
    return NULL;
}

static void *cpu_write(void *argument)
{
    struct worker *w = argument;

    for (w->rounds = 0; !stop; w->rounds++) {
        for (unsigned page = 0; page < PAGES; page++)
            for (unsigned b = w->share; b < 4096; b += SHARES * 256)
                kernel_write(w->f, page, b, &(uint8_t){value_of(w->share, w->rounds)}, 1);
        check_written(w->f, w->share, SHARES * 256, value_of(w->share, w->rounds));
    }
    return NULL;
}

/* Somebody who only reads: he brings pages back into the kernel's cache at any moment. */
static void *cpu_read(void *argument)
{
    struct worker *w = argument;
    uint8_t bytes[4096];

    for (unsigned page = 0; !stop; page = (page + 1) % PAGES)
        kernel_read(w->f, page, bytes);
    return NULL;
}

/* Store, release, and see that a CPU read has it; acquire now and then, and see that nothing of ours is gone.
 */
static void *device(void *argument)
{
    struct worker *w = argument;

    for (unsigned round = 0; round < w->rounds; round++) {
        uint8_t value = value_of(w->share, round);
        for (unsigned page = 0; page < PAGES; page++)
            for (unsigned b = w->share; b < 4096; b += SHARES)
                ((volatile uint8_t *)w->map.bytes)[page * 4096 + b] = value;
        if (round % 5 == 4) /* what is not released yet is not lost by an acquire */
            assert_int_equal(device_acquire(w->f, &w->map), 0);
        assert_int_equal(device_release(w->f, &w->map), 0);
        check_share(w->f, w->share, SHARES, value);
        if (round % 7 == 6)
            assert_int_equal(device_acquire(w->f, &w->map), 0);
        for (unsigned page = 0; page < PAGES; page++)
            for (unsigned b = w->share; b < 4096; b += SHARES)
                if (((volatile uint8_t *)w->map.bytes)[page * 4096 + b] != value)
                    lost++;
    }
    return NULL;
}

static bool older; /* the kernel: see fixture.h, shows_locked */

static void run(unsigned usual, uint64_t capacity, bool stores, bool writes, bool two)
{
    static struct fixture f;
    unsigned rounds = so_many(usual);
    pthread_t threads[4], reader;
    struct worker w[4];

    if (!fixture_start(&f, capacity))
        skip();
    f.shows_locked = older;
    stop = false;
    lost = stale = 0;
    for (unsigned i = 0; i < 4; i++)
        w[i] = (struct worker){.f = &f, .share = i, .rounds = rounds};
    w[DEVICE_0].map = device_map(&f, 0);
    w[DEVICE_1].map = device_map(&f, 1);
    if (stores)
        pthread_create(&threads[CPU_STORE], NULL, cpu_store, &w[CPU_STORE]);
    if (writes)
        pthread_create(&threads[CPU_WRITE], NULL, cpu_write, &w[CPU_WRITE]);
    pthread_create(&reader, NULL, cpu_read, &w[CPU_WRITE]);
    pthread_create(&threads[DEVICE_0], NULL, device, &w[DEVICE_0]);
    if (two)
        pthread_create(&threads[DEVICE_1], NULL, device, &w[DEVICE_1]);
    pthread_join(threads[DEVICE_0], NULL);
    if (two)
        pthread_join(threads[DEVICE_1], NULL);
    stop = true;
    pthread_join(reader, NULL);
    if (stores)
        pthread_join(threads[CPU_STORE], NULL);
    if (writes)
        pthread_join(threads[CPU_WRITE], NULL);
    /* At the end everybody's last bytes are there, for a CPU and for a device. */
    if (stores && w[CPU_STORE].rounds)
        check_share(&f, CPU_STORE, SHARES * 64, value_of(CPU_STORE, w[CPU_STORE].rounds - 1));
    if (writes && w[CPU_WRITE].rounds)
        check_share(&f, CPU_WRITE, SHARES * 256, value_of(CPU_WRITE, w[CPU_WRITE].rounds - 1));
    check_share(&f, DEVICE_0, SHARES, value_of(DEVICE_0, rounds - 1));
    assert_int_equal(device_acquire(&f, &w[DEVICE_1].map), 0);
    for (unsigned page = 0; page < PAGES; page++) {
        uint8_t bytes[4096];
        kernel_read(&f, page, bytes);
        assert_memory_equal(bytes, w[DEVICE_1].map.bytes + page * 4096, 4096);
    }
    printf("rounds %u, stores %u, writes %u, invalidations %u, write-backs %u, stale %u, lost %u\n", rounds,
           stores ? w[CPU_STORE].rounds : 0, writes ? w[CPU_WRITE].rounds : 0, f.invalidations, f.writebacks,
           stale, lost);
    uint64_t heals, late;
    cache_stat_heals(f.cache, &heals, &late);
    printf("heals %u, late %u\n", (unsigned)heals, (unsigned)late);
    fixture_stop(&f);
    assert_int_equal(lost, 0);
    assert_in_range(stale, 0, STALE_MAX);
}

static void test_device_alone(void **state)
{
    (void)state;
    run(1000, 1 << 20, false, false, false);
}

static void test_two_devices(void **state)
{
    (void)state;
    run(600, 1 << 20, false, false, true);
}

static void test_writer(void **state)
{
    (void)state;
    run(600, 1 << 20, false, true, false);
}

static void test_storing_mapping(void **state)
{
    (void)state;
    run(600, 1 << 20, true, false, false);
}

static void test_everybody(void **state)
{
    (void)state;
    run(600, 1 << 20, true, true, true);
}

static void test_everybody_older_kernel(void **state)
{
    (void)state;
    older = true;
    run(600, 1 << 20, true, true, true);
    run(600, 1 << 20, false, true, false);
    older = false;
}

/* Rule 3: a CPU write over a byte that a device has released is newer than it, also when it covers the whole
 * page. */
static void test_overwrite(void **state)
{
    static struct fixture f;
    uint8_t bytes[4096], page[4096];

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    struct device_map map = device_map(&f, 0);
    for (unsigned round = 1; round < 200; round++) {
        unsigned n = round % 4, length = n == 3 ? 4096 : 1;
        map.bytes[n * 4096 + 7] = (uint8_t)(2 * round);
        assert_int_equal(device_release(&f, &map), 0);
        memset(page, (int)(2 * round + 1), sizeof page);
        kernel_write(&f, n, length == 1 ? 7 : 0, page, length);
        if (round % 2)
            assert_int_equal(device_acquire(&f, &map), 0);
        kernel_read(&f, n, bytes);
        assert_int_equal(bytes[7], (uint8_t)(2 * round + 1));
        assert_int_equal(device_acquire(&f, &map), 0);
        assert_int_equal(map.bytes[n * 4096 + 7], (uint8_t)(2 * round + 1));
    }
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_alone), cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_writer),       cmocka_unit_test(test_storing_mapping),
        cmocka_unit_test(test_everybody),    cmocka_unit_test(test_everybody_older_kernel),
        cmocka_unit_test(test_overwrite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
