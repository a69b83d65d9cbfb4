/* SPDX-License-Identifier: Apache-2.0 */
/* What a race or an accident rarely brings about, in the order that it takes: each test is one such order,
 * here of releases, collects, reads, writes and drops. Those that need something to happen inside a release
 * use the fixture's once_invalidated. */
#include "tests/cache/corners.inc"

#include <signal.h>
#include <sys/resource.h>

#include "cache/evict.h"
#include "cache/stat.h"
#include "gpu/gaia.h"

static struct device_map other;

/* The mark of a collect that a READ caused is gone: else the next WRITE would bring a store to the home that
 * was not released, beside a page that the kernel holds, and the release that follows would find nothing to
 * tell. */
static void test_store_after_a_collecting_read(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    map.bytes[10] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    map.bytes[11] = 2; /* pending, and not sealed */
    assert_int_equal(kernel_byte(&f, 0, 10), 1);
    map.bytes[12] = 3;
    kernel_write(&f, 0, 100, (const uint8_t *)"w", 1);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 0, 12), 3);
    assert_int_equal(kernel_byte(&f, 0, 11), 2);
    assert_int_equal(kernel_byte(&f, 0, 100), 'w');
    fixture_stop(&f);
}

/* What one device has released every other one that holds the page drops at its acquire. */
static void test_a_release_reaches_other_devices(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    other = device_map(&f, 1);
    for (uint8_t value = 1; value < 4; value++) {
        map.bytes[10] = value;
        assert_int_equal(device_release(&f, &map), 0);
        assert_int_equal(device_acquire(&f, &other), 0);
        assert_int_equal(((volatile uint8_t *)other.bytes)[10], value);
    }
    fixture_stop(&f);
}

static void read_page_0(void)
{
    (void)kernel_byte(&f, 0, 0);
}

/* A READ that is faster than the release collects, and so releases: other devices must hear of it. */
static void test_a_read_overtakes_a_release(void **state)
{
    volatile uint8_t *stale;

    (void)state;
    if (!start(1 << 20))
        skip();
    other = device_map(&f, 1);
    stale = other.bytes;
    assert_int_equal(device_acquire(&f, &other), 0);
    assert_int_equal(stale[10], 0);
    assert_int_equal(kernel_byte(&f, 0, 10), 0); /* the kernel holds it: there will be an invalidation */
    map.bytes[10] = 7;
    f.once_invalidated = read_page_0;
    assert_int_equal(device_release(&f, &map), 0);
    assert_null(f.once_invalidated);
    assert_int_equal(device_acquire(&f, &other), 0);
    assert_int_equal(stale[10], 7);
    fixture_stop(&f);
}

static uint8_t released_before, released_now;

static void read_both(void)
{
    released_before = kernel_byte(&f, 1, 10);
    released_now = kernel_byte(&f, 0, 10);
}

/* Collecting what was released before must not hide what is being released beside it. */
static void test_reads_of_a_page_before_and_of_one_inside_a_release(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    map.bytes[4096 + 10] = 6;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 0, 10), 0);
    map.bytes[10] = 7;
    f.once_invalidated = read_both;
    assert_int_equal(device_release(&f, &map), 0);
    assert_null(f.once_invalidated);
    assert_int_equal(released_before, 6);
    assert_int_equal(released_now, 7); /* the READ overtakes the release, and collects */
    fixture_stop(&f);
}

static void write_page_0(void)
{
    struct kernel_page *k = &f.kernel[0];

    /* Of a whole page: the kernel holds it from then on without a READ. */
    memset(k->bytes, 'w', 4096);
    assert_int_equal(cache_file_write(f.file, f.fd, k->bytes, 4096, 0, 0), 4096);
    k->cached = true;
}

/* A WRITE beside a release puts the page into the kernel's cache again: it is dropped once more, so that
 * everybody agrees which of the racing bytes is kept. */
static void test_a_write_beside_a_release(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    assert_int_equal(kernel_byte(&f, 0, 10), 0);
    map.bytes[10] = 7;
    f.once_invalidated = write_page_0;
    assert_int_equal(device_release(&f, &map), 0);
    assert_null(f.once_invalidated);
    uint8_t read = kernel_byte(&f, 0, 10);
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], read);
    assert_int_equal(((volatile uint8_t *)map.bytes)[11], 'w');
    fixture_stop(&f);
}

static unsigned direct_flags;

static void read_page_0_directly(void)
{
    struct cache_read read;
    uint8_t bytes[4096];

    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, 0, direct_flags, &read), 4096);
    cache_file_read_end(f.file, &read);
}

/* A direct READ says nothing of what the kernel holds: did it collect, the page that a CPU stores to would be
 * written back over what it has collected. */
static unsigned invalidations_beside_a_direct_read(unsigned flags)
{
    direct_flags = flags;
    if (!start(1 << 20))
        skip();
    kernel_store(&f, 0, 20, 's');
    map.bytes[10] = 7;
    f.once_invalidating = read_page_0_directly;
    unsigned before = f.invalidations;
    assert_int_equal(device_release(&f, &map), 0);
    unsigned after = f.invalidations;
    assert_null(f.once_invalidating);
    assert_int_equal(kernel_byte(&f, 0, 10), 7);
    assert_int_equal(kernel_byte(&f, 0, 20), 's');
    fixture_stop(&f);
    return after - before;
}

/* One that may have been a read for the kernel's cache costs a round more, one that surely was not does not:
 * or who reads without a pause would keep the release from its end. */
static void test_a_direct_read_beside_a_release(void **state)
{
    (void)state;
    unsigned maybe = invalidations_beside_a_direct_read(CACHE_IO_DIRECT);
    assert_int_equal(invalidations_beside_a_direct_read(CACHE_IO_DIRECT | CACHE_IO_UNCACHED), maybe - 1);
}

/* --- reads that devices answer --- */

static uint8_t whole[16 * 4096];

static ssize_t read_from_devices(uint64_t *peers_out)
{
    struct cache_device_stat before, after;
    struct cache_read read;

    assert_int_equal(fsync(f.fd), 0);
    assert_int_equal(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    before = device_stat(&f, 0);
    ssize_t n = cache_file_read(f.file, f.fd, whole, sizeof whole, 0, 0, &read);
    cache_file_read_end(f.file, &read);
    after = device_stat(&f, 0);
    *peers_out = after.stat.peer_reads - before.stat.peer_reads;
    return n;
}

/* Pages that the home has too, and no others, and no further than the file goes. */
static void test_what_devices_answer(void **state)
{
    volatile uint8_t *device;
    uint64_t peers;

    (void)state;
    if (!start(1 << 20))
        skip();
    device = map.bytes;
    memset(whole, 'o', sizeof whole);
    assert_int_equal(cache_file_write(f.file, f.fd, whole, sizeof whole, 0, 0), sizeof whole);
    for (unsigned page = 0; page < 16; page++)
        assert_int_equal(device[page * 4096], 'o');
    device[1 * 4096 + 10] = 's';                                                   /* not released */
    assert_int_equal(cache_file_write(f.file, f.fd, "w", 1, 2 * 4096 + 10, 0), 1); /* not acquired */
    assert_int_equal(read_from_devices(&peers), sizeof whole);
    assert_int_equal(whole[1 * 4096 + 10], 'o');
    assert_int_equal(whole[2 * 4096 + 10], 'w');
    assert_int_equal(whole[3 * 4096 + 10], 'o');
    if (!peers) /* a folder in memory, perhaps */
        skip();
    assert_int_equal(peers, 14);
    assert_int_equal(cache_file_truncate(f.file, f.fd, 5 * 4096 + 100), 0);
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(device[5 * 4096 + 10], 'o'); /* its last page, as it is now */
    assert_int_equal(read_from_devices(&peers), 5 * 4096 + 100);
    assert_true(peers > 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fixture_stop(&f);
}

/* A write() counts once: an acquire that has seen it leaves its page alone from then on. */
static void test_a_write_is_seen_once(void **state)
{
    struct cache_device_stat stat;

    (void)state;
    if (!start(1 << 20))
        skip();
    for (unsigned page = 0; page < 3; page++) {
        (void)((volatile uint8_t *)map.bytes)[page * 4096];
        kernel_write(&f, page, 10, (const uint8_t *)"w", 1);
        assert_int_equal(device_acquire(&f, &map), 0);
        assert_int_equal(((volatile uint8_t *)map.bytes)[page * 4096 + 10], 'w');
        stat = device_stat(&f, 0);
        assert_int_equal(stat.stat.drops, page + 1);
        assert_int_equal(stat.unchanged_pages, 0); /* nothing else was even looked at */
    }
    fixture_stop(&f);
}

/* All of a device, and nothing but it: a file as large as the device has room, one page more pushes one out.
 */
static void test_exactly_full(void **state)
{
    struct cache_device_stat stat;
    uint64_t room = 64;

    (void)state;
    if (!start(room * 4096))
        skip();
    for (uint64_t page = 0; page < room; page++)
        assert_int_equal(cache_map_advise(f.client, map.id, page * 4096, 4096, GAIA_ADV_WILLNEED), 0);
    stat = device_stat(&f, 0);
    assert_int_equal(stat.stat.resident_bytes, room * 4096);
    assert_int_equal(stat.stat.evictions, 0);
    assert_int_equal(cache_map_advise(f.client, map.id, room * 4096, 4096, GAIA_ADV_WILLNEED), 0);
    stat = device_stat(&f, 0);
    assert_true(stat.stat.evictions > 0);
    assert_true(stat.stat.resident_bytes <= room * 4096);
    fixture_stop(&f);
}

/* A release that the kernel did not hear of has not happened, and the next one does it all. */
static void test_a_release_that_failed(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    assert_int_equal(kernel_byte(&f, 0, 10), 0);
    map.bytes[10] = 7;
    f.invalidate_error = -EIO;
    assert_int_equal(device_release(&f, &map), -EIO);
    f.invalidate_error = 0;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 0, 10), 7);
    fixture_stop(&f);
}

/* A collect ends in the middle of a page. What the home has got of it the twin knows, so that a store that
 * takes it back is one; what it has not is collected later. */
static void test_a_collect_of_a_part(void **state)
{
    const struct rlimit part = {.rlim_cur = 5 * 4096 + 100, .rlim_max = RLIM_INFINITY},
                        all = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    uint8_t bytes[3 * 4096];

    (void)state;
    if (!start(1 << 20))
        skip();
    signal(SIGXFSZ, SIG_IGN);
    map.bytes[4 * 4096] = 1;
    map.bytes[5 * 4096 + 50] = 2;
    map.bytes[5 * 4096 + 200] = 3;
    map.bytes[6 * 4096] = 4;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &part), 0);
    assert_int_equal(cache_file_collect(f.file), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_int_equal(pread(f.fd, bytes, sizeof bytes, 4 * 4096), sizeof bytes);
    assert_int_equal(bytes[0], 1);
    assert_int_equal(bytes[4096 + 50], 2);
    assert_int_equal(bytes[4096 + 200], 0);
    map.bytes[4 * 4096] = 0;
    map.bytes[5 * 4096 + 50] = 0;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(cache_file_collect(f.file), 0);
    assert_int_equal(pread(f.fd, bytes, sizeof bytes, 4 * 4096), sizeof bytes);
    assert_int_equal(bytes[0], 0);
    assert_int_equal(bytes[4096 + 50], 0);
    assert_int_equal(bytes[4096 + 200], 3);
    assert_int_equal(bytes[2 * 4096], 4);
    fixture_stop(&f);
}

/* And of a page that was taken, and that the home had as it is: by a CPU. */
static void test_a_collect_beside_one_that_fails(void **state)
{
    const struct rlimit part = {.rlim_cur = 5 * 4096, .rlim_max = RLIM_INFINITY},
                        all = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    uint8_t byte = 1;

    (void)state;
    if (!start(1 << 20))
        skip();
    signal(SIGXFSZ, SIG_IGN);
    map.bytes[4 * 4096] = 1;
    map.bytes[5 * 4096] = 2;
    kernel_write(&f, 4, 0, &byte, 1);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &part), 0);
    assert_int_equal(cache_file_collect(f.file), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    map.bytes[4 * 4096] = 0;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(cache_file_collect(f.file), 0);
    assert_int_equal(kernel_byte(&f, 4, 0), 0);
    assert_int_equal(kernel_byte(&f, 5, 0), 2);
    fixture_stop(&f);
}

/* Nor has the kernel dropped the pages: the next release of another device does not take it that it has. */
static void test_another_devices_release_after_one_that_failed(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    other = device_map(&f, 1);
    assert_int_equal(kernel_byte(&f, 0, 11), 0);
    map.bytes[10] = 7;
    f.invalidate_error = -EIO;
    assert_int_equal(device_release(&f, &map), -EIO);
    f.invalidate_error = 0;
    other.bytes[11] = 8;
    assert_int_equal(device_release(&f, &other), 0);
    assert_int_equal(kernel_byte(&f, 0, 11), 8);
    fixture_stop(&f);
}

/* What a release can't look at it must not take for unmodified: the next one finds it. */
static void test_a_release_that_could_not_look(void **state)
{
    (void)state;
    if (!start(1 << 20))
        skip();
    assert_int_equal(kernel_byte(&f, 0, 10), 0);
    map.bytes[10] = 7;
    f.fetch = fixture_fail_to_fetch;
    assert_int_equal(device_release(&f, &map), -EIO);
    assert_null(f.fetch);
    assert_int_equal(kernel_byte(&f, 0, 10), 0);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 0, 10), 7);
    fixture_stop(&f);
}

/* Frames that could not be freed are still seen by clients: they stay the device's, and stay out of date. */
static void test_a_drop_that_failed(void **state)
{
    struct cache_device_stat stat;

    (void)state;
    if (!start(1 << 20))
        skip();
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 0);
    for (unsigned page = 0; page < GAIA_UNIT_PAGES; page++) /* so many that they are not renewed */
        kernel_write(&f, page, 10, (const uint8_t *)"w", 1);
    f.drop = fixture_refuse_to_drop;
    assert_int_equal(device_acquire(&f, &map), -ENOMEM);
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 0);
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 'w');
    stat = device_stat(&f, 0);
    assert_int_equal(stat.stat.resident_bytes, GAIA_UNIT_PAGES * 4096);
    fixture_stop(&f);
}

static uint64_t drops;
static struct timespec next_drop;

/* Of two leaves one goes when both have been tried for 15 times, and the other one after as many more. */
static int drop_seldom(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    bool goes = lock_is_past(&next_drop);

    f.drop = drop_seldom;
    if (!goes)
        return fixture_refuse_to_drop(frames, page, count);
    next_drop = lock_wait_until(700);
    drops += count;
    return plain_frames->drop(frames, page, count);
}

/* Who wants room gives up when nothing can go for a second, not when that has been so in all. */
static void test_room_that_comes_slowly(void **state)
{
    struct cache_device *device;

    (void)state;
    if (!start(2 * LEAF_PAGES * 4096))
        skip();
    assert_int_equal(cache_map_advise(f.client, map.id, 0, FIXTURE_PAGES * 4096, GAIA_ADV_RANDOM), 0);
    for (unsigned page = 0; page < 2 * LEAF_PAGES; page++)
        assert_int_equal(((volatile uint8_t *)map.bytes)[page * 4096], 0);
    assert_int_equal(cache_get_device(f.cache, 0, &device), 0);
    drops = 0;
    next_drop = lock_wait_until(700);
    f.drop = drop_seldom;
    int error = evict_and_charge(device, 2 * LEAF_PAGES, 0);
    f.drop = NULL;
    if (!error)
        cache_device_uncharge(device, 2 * LEAF_PAGES);
    fixture_stop(&f);
    assert_int_equal(error, 0);
    assert_int_equal(drops, 2 * LEAF_PAGES);
}

/* The range of a release is all of it, and nothing beside it. */
static void test_the_ends_of_a_range(void **state)
{
    const unsigned pages[] = {9, 10, 11, 63, 64, 69, 70};

    (void)state;
    if (!start(1 << 20))
        skip();
    for (unsigned i = 0; i < sizeof pages / sizeof pages[0]; i++)
        map.bytes[pages[i] * 4096] = 1;
    assert_int_equal(cache_map_release(f.client, map.id, 10 * 4096, 60 * 4096), 0);
    for (unsigned i = 0; i < sizeof pages / sizeof pages[0]; i++)
        assert_int_equal(kernel_byte(&f, pages[i], 0), pages[i] >= 10 && pages[i] < 70);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_after_a_collecting_read),
        cmocka_unit_test(test_a_release_reaches_other_devices),
        cmocka_unit_test(test_a_read_overtakes_a_release),
        cmocka_unit_test(test_reads_of_a_page_before_and_of_one_inside_a_release),
        cmocka_unit_test(test_a_write_beside_a_release),
        cmocka_unit_test(test_a_direct_read_beside_a_release),
        cmocka_unit_test(test_what_devices_answer),
        cmocka_unit_test(test_a_write_is_seen_once),
        cmocka_unit_test(test_exactly_full),
        cmocka_unit_test(test_a_release_that_failed),
        cmocka_unit_test(test_a_collect_of_a_part),
        cmocka_unit_test(test_a_collect_beside_one_that_fails),
        cmocka_unit_test(test_another_devices_release_after_one_that_failed),
        cmocka_unit_test(test_a_release_that_could_not_look),
        cmocka_unit_test(test_a_drop_that_failed),
        cmocka_unit_test(test_room_that_comes_slowly),
        cmocka_unit_test(test_the_ends_of_a_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
