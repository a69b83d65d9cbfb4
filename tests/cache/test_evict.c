/* SPDX-License-Identifier: Apache-2.0 */
/* More data than the device holds, several threads that store, CPUs that write, truncations: nothing is lost,
 * nothing hangs. Seed: GAIA_TEST_SEED. */
#include "tests/cache/fixture.inc"

#include "cache/stat.h"
#include "tests/gate.h"

#define SHARES 4u /* byte b belongs to writer b % SHARES: 0 and 1 are threads of the device, 2 is a CPU */

static unsigned base_seed;

struct worker {
    struct fixture *f;
    struct device_map map;
    unsigned share, steps;
    uint8_t want[FIXTURE_PAGES][4096 / SHARES]; /* what this writer stored last */
};

static unsigned next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void *store(void *argument)
{
    struct worker *w = argument;
    unsigned state = base_seed + w->share;

    for (unsigned step = 0; step < w->steps; step++) {
        unsigned page = next(&state) % FIXTURE_PAGES, at = next(&state) % (4096 / SHARES);
        uint8_t value = (uint8_t)(w->want[page][at] + 1 + next(&state) % 200);
        volatile uint8_t *bytes = w->map.bytes + page * 4096;
        if (bytes[at * SHARES + w->share] != w->want[page][at])
            fail_msg("share %u, page %u, byte %u: %u, stored %u", w->share, page, at,
                     bytes[at * SHARES + w->share], w->want[page][at]);
        bytes[at * SHARES + w->share] = value;
        w->want[page][at] = value;
        if (step % 500 == 499)
            assert_int_equal(device_release(w->f, &w->map), 0);
        if (step % 2000 == 1999)
            assert_int_equal(device_acquire(w->f, &w->map), 0);
    }
    assert_int_equal(device_release(w->f, &w->map), 0);
    return NULL;
}

static void *cpu(void *argument)
{
    struct worker *w = argument;
    unsigned state = base_seed + w->share;

    for (unsigned step = 0; step < w->steps; step++) {
        unsigned page = next(&state) % FIXTURE_PAGES, at = next(&state) % (4096 / SHARES);
        uint8_t value = (uint8_t)(w->want[page][at] + 1 + next(&state) % 200);
        w->want[page][at] = value;
        if (step % 2)
            kernel_write(w->f, page, at * SHARES + w->share, &value, 1);
        else
            kernel_store(w->f, page, at * SHARES + w->share, value);
    }
    return NULL;
}

static void run(unsigned steps)
{
    static struct fixture f;
    static struct worker w[3];
    pthread_t threads[3];
    struct cache_device_stat stat;
    uint8_t bytes[4096];

    if (!fixture_start(&f, 256 << 10)) /* an eighth of the file */
        skip();
    struct device_map map = device_map(&f, 0);
    memset(w, 0, sizeof w);
    for (unsigned i = 0; i < 3; i++) {
        w[i].f = &f;
        w[i].map = map;
        w[i].share = i;
        w[i].steps = steps;
        pthread_create(&threads[i], NULL, i < 2 ? store : cpu, &w[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++) {
        kernel_read(&f, page, bytes);
        for (unsigned b = 0; b < 4096; b++)
            if (b % SHARES < 3 && bytes[b] != w[b % SHARES].want[page][b / SHARES])
                fail_msg("page %u byte %u: %u, stored %u", page, b, bytes[b],
                         w[b % SHARES].want[page][b / SHARES]);
    }
    stat = device_stat(&f, 0);
    printf("faults %llu, evictions %llu, collects %llu, twins %llu\n", (unsigned long long)stat.stat.faults,
           (unsigned long long)stat.stat.evictions, (unsigned long long)stat.stat.collects,
           (unsigned long long)stat.stat.twins);
    assert_true(stat.stat.evictions > FIXTURE_PAGES); /* else this tested nothing */
    assert_true(stat.stat.resident_bytes <= 256 << 10);
    fixture_stop(&f);
}

static void test_oversubscribed(void **state)
{
    (void)state;
    run(so_many(20000));
}

/* Truncation while a device stores: what is cut off stays away, what grows back is zero, everywhere. */
static void test_truncate(void **state)
{
    static struct fixture f;
    unsigned random = base_seed;
    uint8_t bytes[4096];

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    struct device_map map = device_map(&f, 0);
    for (unsigned round = 0; round < so_many(300); round++) {
        off_t cut = (off_t)(next(&random) % (16 * 4096));
        memset(map.bytes, (int)(1 + round % 255), 16 * 4096);
        if (round % 3)
            assert_int_equal(device_release(&f, &map), 0);
        assert_int_equal(cache_file_truncate(f.file, f.fd, cut), 0);
        assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
        for (unsigned page = 0; page < 17; page++) /* the kernel cuts its own pages off */
            f.kernel[page].cached = false;
        /* Releasing after an acquire, or before it, also of what was stored before the truncation. */
        if (round % 2)
            assert_int_equal(device_acquire(&f, &map), 0);
        assert_int_equal(device_release(&f, &map), 0);
        assert_int_equal(device_acquire(&f, &map), 0);
        for (unsigned page = 0; page < 16; page++) {
            kernel_read(&f, page, bytes);
            assert_memory_equal(bytes, map.bytes + page * 4096, 4096);
            for (unsigned b = 0; b < 4096; b++)
                if ((off_t)(page * 4096 + b) >= cut)
                    assert_int_equal(bytes[b], 0);
        }
    }
    fixture_stop(&f);
}

/* What nobody changed does not move: an acquire after a rewrite with the same bytes drops nothing. */
static void test_unchanged(void **state)
{
    static struct fixture f;
    struct cache_device_stat stat;
    uint8_t bytes[4096];

    (void)state;
    if (!fixture_start(&f, 4 << 20))
        skip();
    struct device_map map = device_map(&f, 0);
    memset(bytes, 7, sizeof bytes);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        kernel_write(&f, page, 0, bytes, 4096);
    assert_int_equal(device_acquire(&f, &map), 0);
    volatile uint8_t sum = 0;
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        sum = (uint8_t)(sum + map.bytes[page * 4096]);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        kernel_write(&f, page, 0, bytes, 4096);
    bytes[9] = 8;
    kernel_write(&f, 300, 0, bytes, 4096);
    assert_int_equal(device_acquire(&f, &map), 0);
    stat = device_stat(&f, 0);
    assert_int_equal(stat.stat.drops, 1);
    assert_int_equal(stat.unchanged_pages, FIXTURE_PAGES - 1);
    assert_int_equal(map.bytes[300 * 4096 + 9], 8);
    fixture_stop(&f);
}

/* The same behind so many changed pages that not each page is looked at any more, with or without a changed
 * one at the head of each leaf. */
static void test_unchanged_behind_changed(void **state)
{
    static struct fixture f;
    static uint8_t bytes[FIXTURE_PAGES][4096];
    struct cache_device_stat before, after;
    const unsigned changed = FIXTURE_PAGES / 2;

    (void)state;
    if (!fixture_start(&f, 4 << 20))
        skip();
    struct device_map map = device_map(&f, 0);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        kernel_write(&f, page, 0, bytes[page], 4096);
    for (unsigned heads = 0; heads < 2; heads++) {
        assert_int_equal(device_acquire(&f, &map), 0);
        for (unsigned page = 0; page < FIXTURE_PAGES; page++)
            assert_memory_equal(map.bytes + page * 4096, bytes[page], 4096);
        before = device_stat(&f, 0);
        for (unsigned page = 0; page < FIXTURE_PAGES; page++) {
            if (page < changed || (heads && page % LEAF_PAGES == 0))
                bytes[page][page]++;
            kernel_write(&f, page, 0, bytes[page], 4096);
        }
        assert_int_equal(device_acquire(&f, &map), 0);
        after = device_stat(&f, 0);
        uint64_t kept = after.unchanged_pages - before.unchanged_pages;
        assert_int_equal(after.stat.drops - before.stat.drops + kept, FIXTURE_PAGES);
        if (heads) /* of the first such leaf the head may be what is looked at */
            assert_true(kept >= FIXTURE_PAGES - changed - 2 * LEAF_PAGES);
        else
            assert_int_equal(kept, FIXTURE_PAGES - changed);
    }
    fixture_stop(&f);
}

#define ENDS_AT (FIXTURE_PAGES * 4096 - 1000)

static void write_page(struct fixture *f, unsigned page, const uint8_t *bytes)
{
    kernel_write(f, page, 0, bytes, page == FIXTURE_PAGES - 1 ? ENDS_AT % 4096 : 4096);
}

/* The pages that are looked at together with others are told from these: whichever changed, in whichever
 * byte, are dropped, and no others; also where what is in the host's memory is not all of them. */
static void test_unchanged_beside_changed(void **state)
{
    static struct fixture f;
    static uint8_t expected[FIXTURE_PAGES][4096];
    struct cache_device_stat before, after;
    unsigned random = base_seed;

    (void)state;
    if (!fixture_start(&f, 4 << 20))
        skip();
    struct device_map map = device_map(&f, 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, ENDS_AT), 0);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        write_page(&f, page, expected[page]);
    for (unsigned round = 0; round < so_many(40); round++) {
        unsigned changed = 0, one_of = 1 + next(&random) % 20;
        assert_int_equal(device_acquire(&f, &map), 0);
        for (unsigned page = 0; page < FIXTURE_PAGES; page++)
            assert_memory_equal(map.bytes + page * 4096, expected[page], 4096);
        before = device_stat(&f, 0);
        for (unsigned page = 0; page < FIXTURE_PAGES; page++) {
            unsigned end = page == FIXTURE_PAGES - 1 ? ENDS_AT % 4096 : 4096, at = next(&random) % (end + 64);
            if (!(next(&random) % one_of)) { /* the first and the last byte oftener */
                expected[page][at < end ? at : at % 2 ? 0 : end - 1]++;
                changed++;
            }
            write_page(&f, page, expected[page]);
        }
        bool gone = round % 4 == 3;
        if (gone) {
            assert_int_equal(fsync(f.fd), 0);
            for (unsigned n = 0; n < 8; n++)
                assert_int_equal(posix_fadvise(f.fd, next(&random) % FIXTURE_PAGES * 4096,
                                               (1 + next(&random) % 20) * 4096, POSIX_FADV_DONTNEED),
                                 0);
        }
        assert_int_equal(device_acquire(&f, &map), 0);
        after = device_stat(&f, 0);
        uint64_t drops = after.stat.drops - before.stat.drops,
                 kept = after.unchanged_pages - before.unchanged_pages;
        assert_int_equal(drops + kept, FIXTURE_PAGES);
        assert_true(gone ? drops >= changed : drops == changed);
    }
    fixture_stop(&f);
}

/* Bytes that are not in the host's memory come from storage, many reads at once, and none is waited for
 * twice. */
static void test_uncached(void **state)
{
    static struct fixture f;
    struct gaia_io_stat io;
    bool registered;
    unsigned random = base_seed;
    uint8_t page[4096];

    (void)state;
    if (!fixture_start(&f, 4 << 20))
        skip();
    for (unsigned i = 0; i < FIXTURE_PAGES; i++) {
        memset(page, (int)(1 + i % 251), sizeof page);
        assert_int_equal(pwrite(f.fd, page, sizeof page, (off_t)i * 4096), sizeof page);
    }
    assert_int_equal(fsync(f.fd), 0);
    assert_int_equal(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    struct device_map map = device_map(&f, 0);
    for (unsigned i = 0; i < 2000; i++) {
        unsigned p = i < FIXTURE_PAGES ? i : next(&random) % FIXTURE_PAGES;
        assert_int_equal(((volatile uint8_t *)map.bytes)[p * 4096 + next(&random) % 4096],
                         (uint8_t)(1 + p % 251));
    }
    cache_stat_io(f.cache, &io, &registered);
    printf("reads %u, direct %u, at once %u\n", (unsigned)io.reads, (unsigned)io.direct_reads,
           (unsigned)io.in_flight_max);
    assert_true(io.reads > 0); /* else the file was in memory all the time */
    fixture_stop(&f);
}

static _Atomic bool flushed_enough;

static void *flush_all(void *argument)
{
    struct fixture *f = argument;

    while (!flushed_enough)
        assert_int_equal(cache_flush_all(f->cache), 0);
    return NULL;
}

/* What a daemon that is asked to end does, while clients go on. */
static void test_flush_beside_new_devices(void **state)
{
    static struct fixture f;
    pthread_t thread;

    (void)state;
    if (!fixture_start(&f, 4 << 20))
        skip();
    assert_int_equal(pthread_create(&thread, NULL, flush_all, &f), 0);
    for (unsigned device = 0; device < 8; device++) {
        unsigned number = device * 3 % 8; /* in front of others, and behind them */
        struct device_map map = device_map(&f, number);
        map.bytes[number * 4096] = (uint8_t)(1 + number);
        assert_int_equal(device_release(&f, &map), 0);
    }
    flushed_enough = true;
    pthread_join(thread, NULL);
    for (unsigned number = 0; number < 8; number++) {
        uint8_t bytes[4096];
        kernel_read(&f, number, bytes);
        assert_int_equal(bytes[0], 1 + number);
    }
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oversubscribed),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_unchanged_behind_changed),
        cmocka_unit_test(test_unchanged_beside_changed),
        cmocka_unit_test(test_uncached),
        cmocka_unit_test(test_flush_beside_new_devices),
    };
    const char *seed = getenv("GAIA_TEST_SEED");

    base_seed = seed ? (unsigned)strtoul(seed, NULL, 0) : 977;
    printf("seed %u\n", base_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
