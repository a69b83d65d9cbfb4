/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of byte ranges against an array of flags, and what cache/durable.h says to descriptors. Failing syncs
 * are tested through a real mount (tests/mount/test_durability.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>

#include <cmocka.h>

#include "cache/durable.h"
#include "tests/consistency/seed.h"

#define SIZE 4096

static void check_form(const struct ranges *ranges)
{
    const struct range *at = ranges->many ? ranges->many : ranges->few;

    assert_true(ranges->count <= RANGES_MAX);
    for (unsigned i = 0; i < ranges->count; i++) {
        assert_true(at[i].start < at[i].end);
        assert_true(i == 0 || at[i - 1].end < at[i].start);
    }
}

static void fill_flags(const struct ranges *ranges, uint8_t flags[SIZE])
{
    const struct range *at = ranges->many ? ranges->many : ranges->few;

    memset(flags, 0, SIZE);
    for (unsigned i = 0; i < ranges->count; i++)
        memset(flags + at[i].start, 1, (size_t)(at[i].end - at[i].start));
}

static void test_ranges(void **state)
{
    struct ranges ranges = {.count = 0}, copy = {.count = 0};
    uint8_t want[SIZE] = {0}, found[SIZE];

    (void)state;
    for (unsigned round = 0; round < 20000; round++) {
        unsigned start = (unsigned)(seed_next() % SIZE);
        unsigned length = 1 + (unsigned)(seed_next() % (round % 3 ? 8 : 200));
        unsigned end = start + length < SIZE ? start + length : SIZE;
        bool add = seed_next() % 2;
        memset(want + start, add, end - start);
        if (add)
            ranges_add(&ranges, start, end);
        else
            ranges_remove(&ranges, start, end);
        check_form(&ranges);
        fill_flags(&ranges, found);
        assert_memory_equal(found, want, SIZE);
    }
    ranges_add_all(&copy, &ranges);
    fill_flags(&copy, found);
    assert_memory_equal(found, want, SIZE);
    ranges_clear(&copy);
    ranges_clear(&ranges);
    assert_true(ranges_empty(&ranges));
}

/* More than fit: nothing is missing. */
static void test_too_many(void **state)
{
    struct ranges ranges = {.count = 0};
    uint8_t want[SIZE] = {0}, found[SIZE];

    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        unsigned at = (unsigned)(seed_next() % (SIZE / 2)) * 2;
        want[at] = 1;
        ranges_add(&ranges, at, at + 1);
        check_form(&ranges);
    }
    assert_int_equal(ranges.count, RANGES_MAX);
    fill_flags(&ranges, found);
    for (unsigned i = 0; i < SIZE; i++)
        assert_true(found[i] || !want[i]);
    ranges_remove(&ranges, 0, SIZE);
    assert_true(ranges_empty(&ranges));
    ranges_clear(&ranges);
}

static void test_who_is_told(void **state)
{
    char path[] = "/var/tmp/gaiafs-durable-XXXXXX";
    struct durable durable;
    struct durable_seen first, second, late, map;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    durable_init(&durable);
    durable_open(&durable, false, &first);
    durable_open(&durable, false, &second);
    durable_fail(&durable, -ENOSPC);
    durable_open(&durable, false, &late); /* nobody was told yet */
    assert_int_equal(durable_sync(&durable, fd, true, &first), -ENOSPC);
    assert_int_equal(durable_sync(&durable, fd, true, &first), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &late), -ENOSPC);
    durable_open(&durable, true, &map); /* by now somebody was */
    assert_int_equal(durable_sync(&durable, fd, false, &map), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &second), -ENOSPC);

    /* What the kernel's write-backs have lost is lost for all; maps must be told of it by us, too. */
    durable_lose(&durable, 100, 10, -EIO);
    assert_true(durable_is_lost(&durable));
    assert_int_equal(durable_sync(&durable, fd, false, &first), -EIO);
    assert_int_equal(durable_sync(&durable, fd, false, &first), -EIO);
    durable_wrote(&durable, durable_begin(&durable, fd), 100, 10);
    assert_false(durable_is_lost(&durable));
    assert_int_equal(durable_sync(&durable, fd, false, &second), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &map), -EIO);
    assert_int_equal(durable_sync(&durable, fd, false, &map), 0);

    /* Begun before a sync has failed: it may be lost with the rest. */
    unsigned begun = durable_begin(&durable, fd);
    atomic_fetch_add(&durable.failures, 1);
    durable_wrote(&durable, begun, 0, 10);
    assert_true(durable_is_lost(&durable));
    durable_cut(&durable, 0);
    assert_false(durable_is_lost(&durable));
    for (unsigned i = 0; i < 4; i++)
        durable_close(&durable);
    durable_destroy(&durable);
    close(fd);
}

int main(void)
{
    seed_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_who_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
