/* SPDX-License-Identifier: Apache-2.0 */
/* What a node remembers of files that others track, as what they say may come in another order than they said
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "cache/followed.h"

static const struct node_name name = {.type = 1, .length = 4, .bytes = "name"};
static const struct node_name other = {.type = 2, .length = 4, .bytes = "name"};
static struct followed_table table;
static uint64_t told;

static int clear(void **state)
{
    (void)state;
    followed_clear(&table);
    return 0;
}

/* -1: nobody. */
static int home_of(const struct node_name *of)
{
    const struct followed *followed = followed_find(&table, of);

    return followed ? (int)followed->member : -1;
}

static void test_the_end_ends_what_was_said_before(void **state)
{
    (void)state;
    assert_int_equal(followed_add(&table, 3, &name, 7, &told), 0);
    assert_int_equal(followed_add(&table, 3, &other, 7, &told), 0);
    followed_end(&table, 3, &name, 7);
    assert_int_equal(home_of(&name), -1);
    assert_int_equal(home_of(&other), 3);
    followed_end(&table, 3, &name, 7); /* again */
    followed_end(&table, 3, &other, 8);
    assert_int_equal(table.count, 0);
}

static void test_an_old_end_ends_nothing(void **state)
{
    (void)state;
    assert_int_equal(followed_add(&table, 3, &name, 8, &told), 0);
    followed_end(&table, 3, &name, 7);
    assert_int_equal(home_of(&name), 3);
}

static void test_one_does_not_end_what_another_tracks(void **state)
{
    (void)state;
    assert_int_equal(followed_add(&table, 3, &name, 7, &told), 0);
    followed_end(&table, 4, &name, 9);
    assert_int_equal(home_of(&name), 3);
    assert_int_equal(followed_add(&table, 4, &name, 6, &told), -EBUSY);
    assert_int_equal(followed_add(&table, 4, &name, 9, &told), 0);
    followed_end(&table, 3, &name, 9);
    assert_int_equal(home_of(&name), 4);
}

static void test_what_was_said_since_stays(void **state)
{
    (void)state;
    assert_int_equal(followed_add(&table, 3, &name, 7, &told), 0);
    uint64_t before = told;
    assert_int_equal(followed_add(&table, 3, &name, 7, &told), 0);
    followed_remove(&table, &name, before);
    assert_int_equal(home_of(&name), 3);
    followed_remove(&table, &name, told);
    assert_int_equal(home_of(&name), -1);
}

static void test_a_member_goes_with_all_that_it_said(void **state)
{
    (void)state;
    assert_int_equal(followed_add(&table, 3, &name, 7, &told), 0);
    assert_int_equal(followed_add(&table, 4, &other, 7, &told), 0);
    followed_remove_member(&table, 3);
    assert_int_equal(home_of(&name), -1);
    assert_int_equal(home_of(&other), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_the_end_ends_what_was_said_before, clear),
        cmocka_unit_test_teardown(test_an_old_end_ends_nothing, clear),
        cmocka_unit_test_teardown(test_one_does_not_end_what_another_tracks, clear),
        cmocka_unit_test_teardown(test_what_was_said_since_stays, clear),
        cmocka_unit_test_teardown(test_a_member_goes_with_all_that_it_said, clear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
