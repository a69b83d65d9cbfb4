/* SPDX-License-Identifier: Apache-2.0 */
/* A file that CPUs have open in passthrough (cache/passed.h): what CPUs do is done to the backing file
 * itself, here by a mapping of it and by pwrite(), and the cache is told nothing. Seed: GAIA_TEST_SEED. */
#include "tests/cache/fixture.inc"

#include "cache/stat.h"
#include "tests/gate.h"

#define PAGE 4096u

static uint8_t *cpu; /* a CPU's mapping */

static bool start(struct fixture *f, uint64_t capacity, bool written)
{
    if (!fixture_start(f, capacity))
        return false;
    cache_file_pass(f->file, &(struct cache_passed){.passed = true, .written = written});
    cpu = mmap(NULL, FIXTURE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    assert_true(cpu != MAP_FAILED);
    return true;
}

static void stop(struct fixture *f, const struct device_map *map)
{
    munmap(map->bytes, FIXTURE_PAGES * PAGE);
    munmap(cpu, FIXTURE_PAGES * PAGE);
    fixture_stop(f);
}

static void test_an_acquire_compares(void **state)
{
    static struct fixture f;

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = device_map(&f, 0);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        assert_int_equal(map.bytes[page * PAGE], 0);
    cpu[5] = 1;
    cpu[70 * PAGE + 4095] = 2; /* of another leaf */
    assert_int_equal(pwrite(f.fd, "\3", 1, (FIXTURE_PAGES - 1) * PAGE + 9), 1);
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(map.bytes[5], 1);
    assert_int_equal(map.bytes[70 * PAGE + 4095], 2);
    assert_int_equal(map.bytes[(FIXTURE_PAGES - 1) * PAGE + 9], 3);
    assert_int_equal(device_stat(&f, 0).stat.drops, 3); /* and not a page more */
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(device_stat(&f, 0).stat.drops, 3);
    map.bytes[6] = 7; /* beside what the CPU stored, and stores now */
    cpu[5] = 8;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(map.bytes[5], 8);
    assert_int_equal(map.bytes[6], 7);
    assert_int_equal(cpu[6], 7);
    stop(&f, &map);
}

/* The device has its page. */
static struct device_map map_of_100_bytes(struct fixture *f)
{
    assert_int_equal(ftruncate(f->fd, 100), 0);
    struct device_map map = device_map(f, 0);
    assert_int_equal(device_acquire(f, &map), 0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[0], 0);
    return map;
}

/* What was stored behind the end is no part of a later store's twin, or bytes that are the same in both would
 * be lost once the file has grown over them. */
static void test_a_twin_of_what_was_stored_behind_the_end(void **state)
{
    static struct fixture f;
    const uint64_t behind = UINT64_C(0x1111111111111111), again = behind ^ 0xbb, inside = behind ^ 0x33;
    uint64_t seen;

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = map_of_100_bytes(&f);
    memcpy(map.bytes + 2000, &behind, sizeof behind);
    assert_int_equal(device_release(&f, &map), 0);
    memcpy(map.bytes + 2000, &again, sizeof again);
    assert_int_equal(ftruncate(f.fd, PAGE), 0);
    memcpy(map.bytes + 2000, &inside, sizeof inside);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(pread(f.fd, &seen, sizeof seen, 2000), sizeof seen);
    assert_true(seen == inside);
    assert_int_equal(ftruncate(f.fd, FIXTURE_PAGES * PAGE), 0);
    stop(&f, &map);
}

/* A page is brought from storage, as the host's memory does not have it, and the file is longer there than
 * the cache knows. What a device gets behind the end that is known is none of its stores when that is found.
 */
static void test_a_page_that_is_longer_on_storage(void **state)
{
    static struct fixture f;
    uint8_t bytes[200];

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    assert_int_equal(ftruncate(f.fd, 100), 0);
    struct device_map map = device_map(&f, 0);
    memset(bytes, 'a', sizeof bytes);
    assert_int_equal(pwrite(f.fd, bytes, sizeof bytes, 100), sizeof bytes);
    assert_int_equal(fsync(f.fd), 0);
    munmap(cpu, FIXTURE_PAGES * PAGE);
    assert_int_equal(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    cpu = mmap(NULL, FIXTURE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    map.bytes[5] = 1;
    memset(bytes, 'b', sizeof bytes);
    assert_int_equal(pwrite(f.fd, bytes, sizeof bytes, 100), sizeof bytes);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(pread(f.fd, bytes, sizeof bytes, 100), sizeof bytes);
    for (unsigned i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], 'b');
    assert_int_equal(pread(f.fd, bytes, 1, 5), 1);
    assert_int_equal(bytes[0], 1);
    assert_int_equal(ftruncate(f.fd, FIXTURE_PAGES * PAGE), 0);
    stop(&f, &map);
}

/* The file has grown unseen, a device has stored there, and then it is cut: what is cut off does not come
 * back when it has grown again. */
static void test_a_cut_behind_a_growth(void **state)
{
    static struct fixture f;
    uint8_t seen[2];

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = map_of_100_bytes(&f);
    assert_int_equal(ftruncate(f.fd, PAGE), 0);
    map.bytes[900] = 6;
    map.bytes[2000] = 7;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 1000), 0);
    assert_int_equal(ftruncate(f.fd, PAGE), 0);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(pread(f.fd, seen, 1, 900), 1);
    assert_int_equal(pread(f.fd, seen + 1, 1, 2000), 1);
    assert_int_equal(seen[0], 6);
    assert_int_equal(seen[1], 0);
    assert_int_equal(ftruncate(f.fd, FIXTURE_PAGES * PAGE), 0);
    stop(&f, &map);
}

static int grow_by_a_cut(struct fixture *f)
{
    return cache_file_truncate(f->file, f->fd, 2 * PAGE);
}

static int grow_by_a_write(struct fixture *f)
{
    return cache_file_write(f->file, f->fd, "w", 1, 2 * PAGE, 0) == 1 ? 0 : -1;
}

static int grow_by_fallocate(struct fixture *f)
{
    return cache_file_fallocate(f->file, f->fd, 0, 0, 2 * PAGE, NULL);
}

static int grow_by_a_copy(struct fixture *f)
{
    return cache_file_copy_range(NULL, f->fd, 0, f->file, f->fd, 2 * PAGE, 1, 0, NULL) == 1 ? 0 : -1;
}

/* Another mount has made the file longer, a device has stored there, and then this mount makes it longer:
 * what the device has stored lies behind no end that there was. */
static void test_a_growth_behind_another_mounts(void **state)
{
    int (*const grow[])(struct fixture *) = {grow_by_a_cut, grow_by_a_write, grow_by_fallocate,
                                             grow_by_a_copy};
    static struct fixture f;

    (void)state;
    fixture_shared = true;
    for (unsigned i = 0; i < sizeof grow / sizeof grow[0]; i++) {
        if (!fixture_start(&f, 4 << 20))
            skip();
        struct device_map map = map_of_100_bytes(&f);
        assert_int_equal(ftruncate(f.fd, PAGE), 0);
        map.bytes[2000] = 7;
        assert_int_equal(grow[i](&f), 0);
        assert_int_equal(device_release(&f, &map), 0);
        assert_int_equal(home_byte(&f, 2000), 7);
        assert_int_equal(ftruncate(f.fd, FIXTURE_PAGES * PAGE), 0);
        munmap(map.bytes, FIXTURE_PAGES * PAGE);
        fixture_stop(&f);
    }
    fixture_shared = false;
}

static void test_a_release_collects(void **state)
{
    static struct fixture f;

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = device_map(&f, 0);
    map.bytes[3 * PAGE] = 1;
    for (unsigned i = 1; i < PAGE; i += 2) /* many runs */
        map.bytes[4 * PAGE + i] = (uint8_t)(i / 2 + 1);
    cpu[3 * PAGE + 1] = 9; /* since the twins were taken */
    cpu[4 * PAGE] = 9;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(cpu[3 * PAGE], 1);
    assert_int_equal(cpu[3 * PAGE + 1], 9);
    assert_int_equal(cpu[4 * PAGE], 9);
    for (unsigned i = 1; i < PAGE; i++)
        assert_int_equal(cpu[4 * PAGE + i], i % 2 ? (uint8_t)(i / 2 + 1) : 0);
    assert_int_equal(f.invalidations, 0);
    assert_int_equal(device_stat(&f, 0).stat.collects, 2);
    assert_int_equal(device_stat(&f, 0).stat.merges, 2);
    stop(&f, &map);
}

struct storer {
    _Atomic bool stop;
    unsigned lost, turns;
};

/* Stores to every second byte of two pages without pause, and sees to it that they stay. */
static void *store(void *argument)
{
    struct storer *s = argument;
    volatile uint8_t *bytes = cpu;

    for (uint8_t value = 1; !s->stop; value++, s->turns++) {
        for (unsigned i = 0; i < 2 * PAGE; i += 2)
            bytes[i] = value;
        for (unsigned i = 0; i < 2 * PAGE; i += 2)
            s->lost += bytes[i] != value;
    }
    return NULL;
}

static void test_nobody_loses_a_byte(void **state)
{
    static struct fixture f;
    struct storer storer = {.stop = false};
    pthread_t thread;

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = device_map(&f, 0);
    pthread_create(&thread, NULL, store, &storer);
    for (unsigned round = 1; round <= so_many(2000); round++) {
        unsigned step = round % 5 ? 2 : 512; /* many runs, or few */
        for (unsigned i = 1; i < 2 * PAGE; i += step)
            map.bytes[i] = (uint8_t)round;
        assert_int_equal(round % 7 ? device_release(&f, &map) : device_acquire(&f, &map), 0);
        for (unsigned i = 1; i < 2 * PAGE; i += step)
            if (cpu[i] != (uint8_t)round || map.bytes[i] != (uint8_t)round)
                fail_msg("round %u, byte %u: %u in the file, %u on the device", round, i, cpu[i],
                         map.bytes[i]);
    }
    storer.stop = true;
    pthread_join(thread, NULL);
    printf("%u turns of the storing mapping\n", storer.turns);
    assert_int_equal(storer.lost, 0);
    assert_true(storer.turns > 0);
    stop(&f, &map);
}

static void test_a_small_device(void **state)
{
    static struct fixture f;
    static uint8_t want[FIXTURE_PAGES][2];
    const char *given = getenv("GAIA_TEST_SEED");
    unsigned seed = given && atoi(given) ? (unsigned)atoi(given) : (unsigned)getpid();

    (void)state;
    printf("GAIA_TEST_SEED=%u\n", seed);
    srand(seed);
    if (!start(&f, 256 << 10, true))
        skip();
    struct device_map map = device_map(&f, 0);
    memset(want, 0, sizeof want);
    for (unsigned step = 0; step < so_many(20000); step++) {
        unsigned page = (unsigned)rand() % FIXTURE_PAGES, mine = (unsigned)rand() % 2;
        uint8_t value = want[page][mine] = (uint8_t)rand();
        (mine ? map.bytes : cpu)[page * PAGE + mine * 4095] = value;
        if (step % 1000 == 999)
            assert_int_equal(device_acquire(&f, &map), 0);
        if (step % 1000 == 999)
            for (page = 0; page < FIXTURE_PAGES; page++)
                for (mine = 0; mine < 2; mine++)
                    if (map.bytes[page * PAGE + mine * 4095] != want[page][mine])
                        fail_msg("step %u, page %u, byte %u", step, page, mine);
    }
    assert_int_equal(device_release(&f, &map), 0);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        for (unsigned mine = 0; mine < 2; mine++)
            assert_int_equal(cpu[page * PAGE + mine * 4095], want[page][mine]);
    assert_true(device_stat(&f, 0).stat.evictions > 1000);
    stop(&f, &map);
}

/* The first byte of a READ of a page that the host's memory has not; CPUs' mapping is gone after it. */
static int read_of_storage(struct fixture *f, off_t offset)
{
    struct cache_read read;
    uint8_t bytes[PAGE];

    munmap(cpu, FIXTURE_PAGES * PAGE);
    assert_int_equal(fsync(f->fd), 0);
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    assert_int_equal(cache_file_read(f->file, f->fd, bytes, PAGE, offset, 0, &read), PAGE);
    cache_file_read_end(f->file, &read);
    return bytes[0];
}

/* A READ comes to the daemon all the same (O_APPEND), and the host's memory has not what it asks for. */
static void test_a_read_leaves_devices_alone(void **state)
{
    static struct fixture f;

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = device_map(&f, 0);
    assert_int_equal(map.bytes[20 * PAGE], 0);
    assert_int_equal(pwrite(f.fd, "\5", 1, 20 * PAGE), 1);
    assert_int_equal(read_of_storage(&f, 20 * PAGE), 5);
    assert_int_equal(device_stat(&f, 0).stat.peer_reads, 0);
    cpu = mmap(NULL, FIXTURE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    stop(&f, &map);
}

/* Nor does such a READ get what a device has had before a store that no date of the file tells of: one to a
 * page that a mapping had stored to before, and that nobody has written back since. */
static void test_a_read_after_a_store_without_a_date(void **state)
{
    static struct fixture f;

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    cpu[20 * PAGE] = 1;
    struct device_map map = device_map(&f, 0);
    assert_int_equal(map.bytes[20 * PAGE], 1);
    cpu[20 * PAGE] = 5;
    assert_int_equal(read_of_storage(&f, 20 * PAGE), 5);
    cpu = mmap(NULL, FIXTURE_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    stop(&f, &map);
}

/* The kernel has forgotten the file; the next open is an ordinary one. */
static void test_the_way_back(void **state)
{
    static struct fixture f;
    uint8_t bytes[PAGE];

    (void)state;
    if (!start(&f, 4 << 20, true))
        skip();
    struct device_map map = device_map(&f, 0);
    map.bytes[0] = 1;
    map.bytes[9 * PAGE] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    cpu[1] = 2;
    cache_file_pass(f.file, &(struct cache_passed){0});
    kernel_read(&f, 9, bytes);
    kernel_write(&f, 9, 5, (const uint8_t *)"\6", 1);
    map.bytes[9 * PAGE + 1] = 7;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(map.bytes[1], 2);
    assert_int_equal(map.bytes[9 * PAGE + 5], 6);
    kernel_read(&f, 9, bytes); /* not what it was given before: the release has had it dropped */
    assert_int_equal(bytes[1], 7);
    assert_true(f.invalidations > 0);
    stop(&f, &map);
}

/* While nobody may write, acquires look at the file's times, as often as others. */
static void test_readers_alone(void **state)
{
    static struct fixture f;

    (void)state;
    if (!start(&f, 4 << 20, false))
        skip();
    struct device_map map = device_map(&f, 0);
    assert_int_equal(map.bytes[7], 0);
    cpu[7] = 1; /* an open for writing is about to be answered: what it stores is found */
    cache_file_pass(f.file, &(struct cache_passed){.passed = true, .written = true});
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(map.bytes[7], 1);
    stop(&f, &map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_acquire_compares),
        cmocka_unit_test(test_a_twin_of_what_was_stored_behind_the_end),
        cmocka_unit_test(test_a_page_that_is_longer_on_storage),
        cmocka_unit_test(test_a_cut_behind_a_growth),
        cmocka_unit_test(test_a_growth_behind_another_mounts),
        cmocka_unit_test(test_a_release_collects),
        cmocka_unit_test(test_nobody_loses_a_byte),
        cmocka_unit_test(test_a_small_device),
        cmocka_unit_test(test_a_read_leaves_devices_alone),
        cmocka_unit_test(test_a_read_after_a_store_without_a_date),
        cmocka_unit_test(test_the_way_back),
        cmocka_unit_test(test_readers_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
