/* SPDX-License-Identifier: Apache-2.0 */
/* First stores to page after page: the next ones' twins are taken before anybody stores to them. Nobody may
 * see that, but for the number of traps. */
#include "tests/cache/fixture.inc"

#include "cache/internal.h"
#include "cache/stat.h"
#include "gpu/gaia.h"
#include "tests/gate.h"

#define PAGES 150u /* of three leaves */

static struct fixture f;
static struct device_map map;

/* All pages are there, and no store is let through. */
static bool start(void)
{
    if (!fixture_start(&f, 4 << 20) || !f.can_trap)
        return false;
    map = device_map(&f, 0);
    for (unsigned page = 0; page < PAGES; page++)
        (void)((volatile uint8_t *)map.bytes)[page * 4096];
    assert_int_equal(device_stat(&f, 0).stat.write_faults, 0);
    assert_int_equal(device_stat(&f, 0).stat.twins, 0);
    return true;
}

static void test_one_page_after_the_other(void **state)
{
    (void)state;
    if (!start())
        skip();
    for (unsigned page = 0; page < PAGES; page++)
        map.bytes[page * 4096 + 10] = (uint8_t)(page + 1);
    /* 8 to 12; on a busy machine under ThreadSanitizer up to 30, as windows are still in hand when the next
     * store comes. Without windows: PAGES. */
    assert_in_range(device_stat(&f, 0).stat.write_faults, 1, PAGES / 2);
    assert_in_range(device_stat(&f, 0).stat.twins, PAGES, 2 * PAGES);
    assert_int_equal(device_release(&f, &map), 0);
    for (unsigned page = 0; page < PAGES; page++)
        assert_int_equal(kernel_byte(&f, page, 10), page + 1);
    assert_int_equal(device_stat(&f, 0).stat.collects, PAGES);
    fixture_stop(&f);
}

/* Eight stores: a window of eight was open at the end. What nobody stored to is not released, and CPUs that
 * write to it write to what they see. */
static void test_pages_that_nobody_stores_to(void **state)
{
    (void)state;
    if (!start())
        skip();
    for (unsigned page = 60; page < 68; page++)
        map.bytes[page * 4096 + 10] = 1;
    uint64_t twins = device_stat(&f, 0).stat.twins;
    assert_in_range(twins, 9, 16);
    for (unsigned page = 60; page < 60 + twins; page++)
        kernel_write(&f, page, 20, (const uint8_t *)"w", 1);
    assert_int_equal(device_release(&f, &map), 0);
    for (unsigned page = 60; page < 60 + twins; page++) {
        assert_int_equal(kernel_byte(&f, page, 10), page < 68);
        assert_int_equal(kernel_byte(&f, page, 20), 'w');
    }
    assert_int_equal(device_stat(&f, 0).stat.collects, 8);
    assert_int_equal(device_acquire(&f, &map), 0);
    for (unsigned page = 60; page < 60 + twins; page++)
        assert_int_equal(((volatile uint8_t *)map.bytes)[page * 4096 + 20], 'w');
    fixture_stop(&f);
}

/* A store that no window has opened is trapped; so is the next one to a page whose stores were released. */
static void test_stores_here_and_there(void **state)
{
    (void)state;
    if (!start())
        skip();
    for (unsigned page = 0; page < PAGES; page += 7)
        map.bytes[page * 4096 + 10] = 1;
    unsigned stores = (PAGES + 6) / 7;
    assert_int_equal(device_stat(&f, 0).stat.write_faults, stores);
    assert_int_equal(device_stat(&f, 0).stat.twins, stores);
    assert_int_equal(device_release(&f, &map), 0);
    map.bytes[7 * 4096 + 11] = 2;
    assert_int_equal(device_stat(&f, 0).stat.write_faults, stores + 1);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 7, 11), 2);
    fixture_stop(&f);
}

static void test_advice_against_it(void **state)
{
    (void)state;
    if (!start())
        skip();
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 4096, GAIA_ADV_RANDOM), 0);
    for (unsigned page = 0; page < 20; page++)
        map.bytes[page * 4096 + 10] = 1;
    assert_int_equal(device_stat(&f, 0).stat.write_faults, 20);
    assert_int_equal(device_stat(&f, 0).stat.twins, 20);
    fixture_stop(&f);
}

/* Somebody is doing something with a page of the window: it is his until he says so. */
static void test_a_busy_page_in_the_window(void **state)
{
    (void)state;
    if (!start())
        skip();
    pthread_mutex_lock(&f.file->lock);
    struct leaf_copy *copy = SLIST_FIRST(&index_find(&f.file->index, 0)->copies);
    copy->busy |= page_bit(6);
    pthread_mutex_unlock(&f.file->lock);
    for (unsigned page = 0; page < 6; page++) /* windows of 1, 2 and 4 pages: 3 to 6 is the last */
        map.bytes[page * 4096 + 10] = 1;
    pthread_mutex_lock(&f.file->lock);
    bool busy = copy->busy & page_bit(6), twin = copy->twin & page_bit(6), before = copy->twin & page_bit(5);
    page_mask wake = replica_unbusy(copy, page_bit(6));
    pthread_mutex_unlock(&f.file->lock);
    assert_true(busy);
    assert_true(before);
    assert_false(twin);
    assert_false(wake);
    map.bytes[6 * 4096 + 10] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 6, 10), 1);
    fixture_stop(&f);
}

static void *grow(void *argument)
{
    (void)argument;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 4096), 0);
    return NULL;
}

static void *append(void *argument)
{
    (void)argument;
    assert_int_equal(cache_file_write(f.file, f.fd, "w", 1, 4095, 0), 1);
    return NULL;
}

/* Who sees that a file has grown may store there, though who makes it grow has not returned yet. What was
 * stored there before is no part of it. */
static void test_stores_to_what_a_file_grows_by(void **state)
{
    struct stat st;
    pthread_t thread;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    for (unsigned round = 0; round < so_many(600); round++) {
        assert_int_equal(cache_file_truncate(f.file, f.fd, 100), 0);
        map.bytes[0] = (uint8_t)round;
        map.bytes[1999] = 'b';
        pthread_create(&thread, NULL, round % 2 ? grow : append, NULL);
        do
            assert_int_equal(fstat(f.fd, &st), 0);
        while (st.st_size != 4096);
        map.bytes[2000] = (uint8_t)(1 + round % 250);
        pthread_join(thread, NULL);
        assert_int_equal(device_release(&f, &map), 0);
        f.kernel[0].cached = false; /* the kernel cuts its own pages off */
        if (kernel_byte(&f, 0, 1999) || kernel_byte(&f, 0, 2000) != 1 + round % 250)
            fail_msg("round %u: %u and %u, not 0 and %u", round, kernel_byte(&f, 0, 1999),
                     kernel_byte(&f, 0, 2000), 1 + round % 250);
    }
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_page_after_the_other),
        cmocka_unit_test(test_pages_that_nobody_stores_to),
        cmocka_unit_test(test_stores_here_and_there),
        cmocka_unit_test(test_advice_against_it),
        cmocka_unit_test(test_a_busy_page_in_the_window),
        cmocka_unit_test(test_stores_to_what_a_file_grows_by),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
