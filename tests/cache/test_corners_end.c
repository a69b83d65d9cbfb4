/* SPDX-License-Identifier: Apache-2.0 */
/* Corners, as in test_corners.c: the end of the file moves beside what a device has stored. */
#include "tests/cache/corners.inc"

#include "cache/fill.h"

static void truncate_to(off_t size)
{
    assert_int_equal(cache_file_truncate(f.file, f.fd, size), 0);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++) /* the kernel cuts its own pages off */
        f.kernel[page].cached = false;
}

/* Where the device was given zeros the twin has zeros: else they look stored, and go over what a CPU appends.
 */
static void test_append_beside_a_store(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(1 << 20))
        skip();
    memset(bytes, 'o', sizeof bytes);
    kernel_write(&f, 0, 0, bytes, 4096);
    assert_int_equal(device_acquire(&f, &map), 0);
    map.bytes[10] = 's'; /* not released: it has a twin */
    truncate_to(100);
    memset(bytes, 'n', sizeof bytes);
    kernel_write(&f, 0, 100, bytes, 3996);
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 0, bytes);
    assert_int_equal(bytes[10], 's');
    assert_int_equal(bytes[99], 'o');
    for (unsigned at = 100; at < 4096; at++)
        assert_int_equal(bytes[at], 'n');
    truncate_to(FIXTURE_PAGES * 4096);
    fixture_stop(&f);
}

/* A page that was cut off and is there again has nothing of what it was: not its twin, not its versions. */
static void test_store_after_a_truncation(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(1 << 20))
        skip();
    memset(bytes, 'o', sizeof bytes);
    for (int released = 0; released < 2; released++) {
        kernel_write(&f, 5, 0, bytes, 4096);
        assert_int_equal(device_acquire(&f, &map), 0);
        map.bytes[5 * 4096 + 10] = 's';
        if (released)
            assert_int_equal(device_release(&f, &map), 0);
        truncate_to(5 * 4096);
        truncate_to(FIXTURE_PAGES * 4096);
        map.bytes[5 * 4096 + 20] = 'o'; /* what was there before */
        assert_int_equal(device_release(&f, &map), 0);
        assert_int_equal(kernel_byte(&f, 5, 20), 'o');
        assert_int_equal(kernel_byte(&f, 5, 10), 0);
    }
    fixture_stop(&f);
}

/* The file was cut behind the mount, and what a device released lies past its end: what is missing are zeros.
 */
static void test_cut_behind(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(1 << 20))
        skip();
    for (unsigned page = 0; page < 16; page++) {
        kernel_read(&f, page, bytes);
        memset(map.bytes + page * 4096, 'X', 4096);
    }
    assert_int_equal(device_release(&f, &map), 0);
    for (unsigned page = 0; page < 16; page++) /* collects leave their bytes on this thread's stack */
        assert_int_equal(kernel_byte(&f, page, 0), 'X');
    map.bytes[20 * 4096 + 10] = 7;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(ftruncate(f.fd, 4096), 0);
    kernel_read(&f, 20, bytes);
    for (unsigned at = 0; at < 4096; at++)
        assert_int_equal(bytes[at], at == 10 ? 7 : 0);
    fixture_stop(&f);
}

/* A file grows behind the mount: what a device had stored behind the old end is no part of it. */
static void test_growth_behind(void **state)
{
    const off_t end = 15 * 4096 + 100;
    uint8_t bytes[4096];

    (void)state;
    for (int released = 0; released < 2; released++) {
        if (!start(1 << 20))
            skip();
        truncate_to(end);
        map.bytes[end - 1] = 's';
        map.bytes[end + 10] = 's';
        if (released)
            assert_int_equal(device_release(&f, &map), 0);
        assert_int_equal(ftruncate(f.fd, 16 * 4096), 0);
        assert_int_equal(device_acquire(&f, &map), 0);
        assert_int_equal(map.bytes[end - 1], 's');
        assert_int_equal(map.bytes[end + 10], 0);
        map.bytes[end + 20] = 't';
        assert_int_equal(device_release(&f, &map), 0);
        kernel_read(&f, 15, bytes);
        assert_int_equal(bytes[99], 's');
        assert_int_equal(bytes[110], 0);
        assert_int_equal(bytes[120], 't');
        truncate_to(FIXTURE_PAGES * 4096);
        fixture_stop(&f);
    }
}

/* A file grows as the page of its end is placed for a store: what was zeroed there is not a store, though the
 * bytes that were read for the page had more. */
static void test_growth_beside_a_store(void **state)
{
    const off_t end = 15 * 4096 + 100;
    uint8_t bytes[4096];

    (void)state;
    if (!start(1 << 20) || !f.can_trap)
        skip();
    assert_int_equal(cache_file_truncate(f.file, f.fd, end), 0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[15 * 4096], 0);
    pthread_mutex_lock(&f.client->lock);
    struct cache_map *cache_map = cache_map_get(maps_by_id(&f.client->maps, map.id));
    pthread_mutex_unlock(&f.client->lock);
    pthread_mutex_lock(&f.file->lock);
    struct leaf_copy *copy = leaf_find_copy(index_find(&f.file->index, 0), cache_map->replica);
    while (copy->busy) /* it was shown before it counts as resident */
        pthread_cond_wait(&f.file->changed, &f.file->lock);
    copy->busy |= UINT64_C(1) << 15;
    struct fill_store store = {
        .page = 15, .bytes = bytes, .truncations = f.file->truncations, .size = f.file->size};
    pthread_mutex_unlock(&f.file->lock);
    assert_int_equal(cache_file_truncate(f.file, f.fd, 16 * 4096), 0);
    memset(bytes, 'D', sizeof bytes); /* of a write() behind the old end, which is not known of yet */
    assert_int_equal(fill_expose(cache_map, copy, UINT64_C(1) << 15, &store), 0);
    pthread_mutex_lock(&f.file->lock);
    replica_unbusy(copy, UINT64_C(1) << 15);
    pthread_mutex_unlock(&f.file->lock);
    cache_map_put(cache_map);
    map.bytes[15 * 4096] = 's';
    kernel_write(&f, 15, 200, (const uint8_t *)"w", 1);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 15, 0), 's');
    assert_int_equal(kernel_byte(&f, 15, 200), 'w');
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_beside_a_store),
        cmocka_unit_test(test_store_after_a_truncation),
        cmocka_unit_test(test_cut_behind),
        cmocka_unit_test(test_growth_behind),
        cmocka_unit_test(test_growth_beside_a_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
