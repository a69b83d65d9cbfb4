/* SPDX-License-Identifier: Apache-2.0 */
/* What is known to be all there, or all but a few leaves, so that an acquire need not look at each page of
 * it: cache/placed.h. (On a soft device, of which it is not asked otherwise.) */
#include "tests/cache/fixture.inc"

#include "cache/drop.h"
#include "cache/file.h"
#include "cache/placed.h"
#include "cache/replica.h"
#include "gpu/gaia.h"

static struct fixture f;
static struct device_map map;
static struct replica *replica;

/* Without readahead: what it has queued would bring back pages that were dropped, whenever its threads come
 * to it. */
static bool start(void)
{
    if (!fixture_start(&f, FIXTURE_PAGES * 4096))
        return false;
    map = device_map(&f, 0);
    assert_int_equal(cache_map_advise(f.client, map.id, 0, FIXTURE_PAGES * 4096, GAIA_ADV_RANDOM), 0);
    replica = SLIST_FIRST(&f.file->replicas);
    return true;
}

static void stop(void)
{
    fixture_stop(&f);
    munmap(map.bytes, FIXTURE_PAGES * 4096);
}

/* Whether it is known that the range is all there. */
static bool still(uint64_t first, uint64_t count, struct placed *placed)
{
    struct lacking *lacking;
    bool known = placed_lacks(replica, first, count, placed, &lacking);

    free(lacking);
    return known && !lacking;
}

/* Whether it is known that these leaves alone lack pages. */
static bool lacks(uint64_t first, uint64_t count, struct placed *placed, size_t n, const uint64_t *leaves)
{
    struct lacking *lacking;
    bool known = placed_lacks(replica, first, count, placed, &lacking);
    bool same =
        known && lacking && lacking->count == n && !memcmp(lacking->leaves, leaves, n * sizeof leaves[0]);

    free(lacking);
    return same;
}

static void load(unsigned first, unsigned count)
{
    for (unsigned page = first; page < first + count; page++)
        (void)*(volatile uint8_t *)(map.bytes + (size_t)page * 4096);
}

static void note(unsigned page)
{
    pthread_mutex_lock(&f.file->lock);
    departures_add(&replica->departures, page / LEAF_PAGES, FIXTURE_PAGES / LEAF_PAGES);
    pthread_mutex_unlock(&f.file->lock);
}

/* Of a device that scans it would be noted by itself. */
static void drop(unsigned page)
{
    assert_int_equal(drop_range(replica, page, 1), 0);
    note(page);
}

static void test_ranges_beside_each_other_are_one(void **state)
{
    struct placed placed = {0};

    (void)state;
    if (!start())
        skip();
    assert_false(still(0, 1, &placed));
    load(0, 300);
    assert_true(placed_look(replica, 100, 50, &placed));
    assert_true(still(100, 50, &placed));
    assert_false(still(99, 2, &placed));
    assert_false(still(149, 2, &placed));
    assert_true(placed_look(replica, 150, 50, &placed));
    assert_true(placed_look(replica, 90, 20, &placed));
    assert_true(still(90, 110, &placed));
    assert_true(placed_look(replica, 120, 5, &placed)); /* inside of it */
    assert_true(still(90, 110, &placed));
    assert_true(placed_look(replica, 201, 9, &placed)); /* page 200 is between */
    assert_false(still(90, 120, &placed));
    assert_false(still(90, 110, &placed));
    assert_true(still(201, 9, &placed));
    stop();
}

/* What was known of a range is not carried over to one beside it once a page has left, wherever. */
static void test_a_page_that_leaves(void **state)
{
    struct placed placed = {0};

    (void)state;
    if (!start())
        skip();
    load(0, 300);
    assert_true(placed_look(replica, 0, 100, &placed));
    drop(50);
    assert_false(still(0, 100, &placed));
    assert_true(still(64, 36, &placed)); /* the other leaf */
    assert_true(placed_look(replica, 100, 100, &placed));
    assert_true(still(100, 100, &placed));
    assert_false(still(0, 200, &placed));
    assert_false(placed_look(replica, 0, 200, &placed));
    load(50, 1);
    assert_true(placed_look(replica, 0, 200, &placed));
    assert_true(still(0, 200, &placed));
    stop();
}

/* Which leaves, of those that are asked for, and each once; until they are there again. */
static void test_what_has_left_is_known(void **state)
{
    const uint64_t both[] = {0, 3}, one[] = {3};
    struct placed placed = {0};

    (void)state;
    if (!start())
        skip();
    load(0, 300);
    assert_true(placed_look(replica, 10, 250, &placed));
    drop(200);
    drop(20);
    drop(210);
    drop(5); /* not of the range, but of its first leaf */
    drop(280);
    assert_true(lacks(10, 250, &placed, 2, both));
    assert_true(lacks(100, 160, &placed, 1, one));
    assert_true(still(30, 100, &placed));
    assert_int_equal(placed.departures, 0);
    load(200, 1);
    assert_true(lacks(10, 250, &placed, 2, both));
    load(210, 1);
    load(20, 1);
    assert_true(still(30, 100, &placed)); /* and with that the rest is known, too */
    assert_int_equal(placed.departures, 5);
    assert_true(still(10, 250, &placed));
    stop();
}

#define ROOM (2 * FIXTURE_PAGES / LEAF_PAGES) /* 16 */

/* Of more than are remembered nothing is known; of a large file that are more. */
static void test_too_many_have_left(void **state)
{
    struct placed placed = {0};

    (void)state;
    if (!start())
        skip();
    load(0, 300);
    assert_true(placed_look(replica, 0, 300, &placed));
    for (unsigned i = 0; i < ROOM; i++)
        note(i % 300);
    assert_true(still(0, 100, &placed));
    for (unsigned i = 0; i < ROOM; i++)
        note(i % 300);
    assert_true(still(0, 100, &placed)); /* as it was looked at in between */
    for (unsigned i = 0; i <= ROOM; i++)
        note(i % 300);
    assert_false(still(0, 100, &placed));
    assert_true(placed_look(replica, 0, 300, &placed));
    assert_true(still(0, 100, &placed));
    const uint64_t leaves[] = {0, 1, 100, 5000, UINT64_MAX};
    const uint32_t rooms[] = {DEPARTURES_MIN, DEPARTURES_MIN, 200, DEPARTURES_MAX, DEPARTURES_MAX};
    for (unsigned i = 0; i < 5; i++) {
        struct departures departures = {0};
        departures_add(&departures, 7, leaves[i]);
        assert_int_equal(departures.room, rooms[i]);
        departures_free(&departures);
    }
    stop();
}

static void resize(off_t size)
{
    assert_int_equal(cache_file_truncate(f.file, f.fd, size), 0);
}

/* A range may reach past the end: when the file has grown into it, not all of it is there. */
static void test_a_file_that_grows(void **state)
{
    struct placed placed = {0};

    (void)state;
    if (!start())
        skip();
    resize(200 * 4096);
    load(0, 200);
    assert_true(placed_look(replica, 100, 200, &placed));
    resize(250 * 4096);
    assert_false(still(100, 200, &placed));
    assert_true(placed_look(replica, 50, 50, &placed)); /* beside it */
    assert_false(still(50, 250, &placed));
    assert_false(placed_look(replica, 50, 250, &placed));
    load(200, 50);
    assert_true(placed_look(replica, 50, 250, &placed));
    assert_true(still(50, 250, &placed));
    resize(100 * 4096);
    note(100);
    note(200);
    assert_true(still(50, 250, &placed)); /* up to the end that it has */
    resize(200 * 4096);
    assert_false(still(50, 250, &placed));
    assert_false(placed_look(replica, 50, 250, &placed));
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_beside_each_other_are_one),
        cmocka_unit_test(test_a_page_that_leaves),
        cmocka_unit_test(test_what_has_left_is_known),
        cmocka_unit_test(test_too_many_have_left),
        cmocka_unit_test(test_a_file_that_grows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
