/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction from a full device where some pages can't be written, and so can't go. */
#include "tests/cache/evict_world.inc"

static double seconds(void)
{
    return (double)clock_now_ns() / 1e9;
}

/* One page is refused; those of its unit, and of its leaf, go all the same. */
static void test_neighbours(void **state)
{
    (void)state;
    start("lra", false, LEAF_PAGES);
    place(0, 0, UINT64_MAX);
    refused_first = 5;
    refused_end = 6;
    assert_int_equal(evict_and_charge(&device, UNIT, 0), 0);
    assert_int_equal(evict_and_charge(&device, LEAF_PAGES - UNIT - 1, 0), 0);
    assert_int_equal(worlds[0].replica.resident, 1);
    assert_int_equal(device.resident, 1);
    double start = seconds();
    assert_int_equal(evict_some_of(&device, 1), 0);
    assert_true(seconds() - start < 30);
    cache_device_uncharge(&device, LEAF_PAGES - 1);
    stop(1);
}

/* A device of so many leaves with one page each, of which only the last one can go: longer than one look. */
static void test_the_last_of_many(void **state)
{
    const unsigned leaves = 2 * BATCH_MAX + 5;

    (void)state;
    start("fifo", false, leaves);
    for (unsigned leaf = 0; leaf < leaves; leaf++)
        place(0, leaf, 1);
    refused_end = (uint64_t)(leaves - 1) << LEAF_SHIFT;
    assert_int_equal(evict_and_charge(&device, 1, 0), 0);
    assert_int_equal(drop_count, 1);
    assert_int_equal(drops[0].page, (uint64_t)(leaves - 1) << LEAF_SHIFT);
    cache_device_uncharge(&device, 1);
    stop(leaves);
}

static _Atomic bool ends;

/* Wakes whoever waits, as faults elsewhere do, which free nothing. */
static void *notify(void *argument)
{
    (void)argument;
    while (!ends) {
        cache_device_notify(&device);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return NULL;
}

/* What is on its way to the device when nothing can go will be there, and can go then. */
static void *arrive(void *argument)
{
    (void)argument;
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 500000000}, NULL);
    settle(0, 1, 1);
    cache_device_notify(&device);
    return NULL;
}

static void test_what_is_under_way(void **state)
{
    pthread_t threads[2];

    (void)state;
    start("lra", false, LEAF_PAGES);
    place(0, 0, UINT64_MAX >> 1);
    refused_end = LEAF_PAGES;
    assert_int_equal(evict_and_charge(&device, 1, 0), 0); /* the last frame, for a page that is being read */
    ends = false;
    pthread_create(&threads[0], NULL, notify, NULL);
    pthread_create(&threads[1], NULL, arrive, NULL);
    assert_int_equal(evict_and_charge(&device, 1, 0), 0);
    pthread_join(threads[1], NULL);
    ends = true;
    pthread_join(threads[0], NULL);
    cache_device_uncharge(&device, 1); /* the one that was asked for */
    stop(2);
}

/* Where nothing is, the error is told, however often others are woken. */
static void test_nothing_can_go(void **state)
{
    pthread_t thread;

    (void)state;
    start("lra", false, LEAF_PAGES);
    place(0, 0, UINT64_MAX);
    refused_end = LEAF_PAGES;
    ends = false;
    pthread_create(&thread, NULL, notify, NULL);
    double start = seconds();
    assert_int_equal(evict_and_charge(&device, 1, 0), -ENOSPC);
    double took = seconds() - start;
    assert_true(took >= 1 && took < 30);
    ends = true;
    pthread_join(thread, NULL);
    assert_int_equal(worlds[0].replica.resident, LEAF_PAGES);
    stop(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_the_last_of_many),
        cmocka_unit_test(test_what_is_under_way),
        cmocka_unit_test(test_nothing_can_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
