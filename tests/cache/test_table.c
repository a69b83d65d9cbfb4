/* SPDX-License-Identifier: Apache-2.0 */
/* A table of what has a number, against an array; and at how many entries a search looks. Seed:
 * tests/consistency/seed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "cache/table.h"
#include "tests/consistency/seed.h"

#define ENTRIES 50000u

static struct table_entry all[ENTRIES];
static struct table table;

/* To find each entry once. */
static uint64_t looks_for_all(void)
{
    uint64_t looks = 0;

    for (uint64_t i = 0; i < table.size; i++) {
        unsigned place = 0;
        for (const struct table_entry *entry = table.buckets[i]; entry; entry = entry->chain)
            looks += ++place;
    }
    return looks;
}

/* Numbers as they are given one after the other, and those of a kernel's leaves: two at a search on average,
 * however many there are. */
static void test_few_are_looked_at(void **state)
{
    (void)state;
    for (uint64_t step = 1; step <= 64; step *= 2) {
        for (unsigned i = 0; i < ENTRIES; i++)
            assert_int_equal(table_add(&table, &all[i], i * step), 0);
        for (unsigned i = 0; i < ENTRIES; i++)
            assert_ptr_equal(table_find(&table, i * step), &all[i]);
        assert_true(looks_for_all() < 2 * ENTRIES);
        table_free(&table);
    }
}

static void test_come_and_go(void **state)
{
    static bool there[ENTRIES];
    uint64_t count = 0;

    (void)state;
    for (unsigned turn = 0; turn < 10 * ENTRIES; turn++) {
        unsigned i = seed_below(ENTRIES);
        assert_ptr_equal(table_find(&table, i), there[i] ? &all[i] : NULL);
        if (there[i])
            table_remove(&table, &all[i]);
        else
            assert_int_equal(table_add(&table, &all[i], i), 0);
        there[i] = !there[i];
        count += there[i] ? 1 : UINT64_MAX;
        assert_int_equal(table.count, count);
    }
    table_free(&table);
}

/* A member may name two files alike: each is removed as itself. */
static void test_two_of_one_number(void **state)
{
    (void)state;
    assert_null(table_find(&table, 7));
    assert_int_equal(table_add(&table, &all[0], 7), 0);
    assert_int_equal(table_add(&table, &all[1], 7), 0);
    assert_ptr_equal(table_find(&table, 7), &all[1]);
    table_remove(&table, &all[0]);
    assert_ptr_equal(table_find(&table, 7), &all[1]);
    table_remove(&table, &all[1]);
    assert_null(table_find(&table, 7));
    table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_are_looked_at),
        cmocka_unit_test(test_come_and_go),
        cmocka_unit_test(test_two_of_one_number),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
