/* SPDX-License-Identifier: Apache-2.0 */
/* The policies of eviction: which copy goes when. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "cache/device.h"
#include "cache/evict.h"
#include "cache/replica.h"

#define COPIES 4u

static struct cache_device device;
static struct replica replica;
static struct leaf_copy copies[COPIES];

/* A, B, C, D were placed in this order, each for a touch. */
static void start(const char *policy)
{
    memset(copies, 0, sizeof copies);
    memset(&replica, 0, sizeof replica);
    memset(&device, 0, sizeof device);
    cache_device_init(&device, 0, 1 << 20, evict_policy_find(policy));
    for (unsigned i = 0; i < COPIES; i++) {
        copies[i].replica = &replica;
        evict_placed(&device, &copies[i], true);
    }
}

/* The letter of the next copy to go. */
static char victim(void)
{
    pthread_mutex_lock(&device.lock);
    struct leaf_copy *copy = device.policy->victim(&device);
    pthread_mutex_unlock(&device.lock);
    return (char)('A' + (copy - copies));
}

static void assert_victims(const char *letters)
{
    for (; *letters; letters++)
        assert_int_equal(victim(), *letters);
}

/* A page placed later makes a copy young again, one that is only touched does not. */
static void test_lra(void **state)
{
    (void)state;
    start("lra");
    evict_placed(&device, &copies[0], false);
    evict_touched(&device, &copies[1]);
    assert_victims("BCDABCDA"); /* who was passed (all its pages were in use, say) comes again, at the end */
}

static void test_fifo(void **state)
{
    (void)state;
    start("fifo");
    evict_placed(&device, &copies[0], true);
    evict_touched(&device, &copies[1]);
    assert_victims("ABCDA");
}

static void test_clock(void **state)
{
    (void)state;
    start("clock");
    assert_victims("A"); /* all have been touched: all lose their chance, and it is the first after all */
    evict_touched(&device, &copies[1]);
    evict_placed(&device, &copies[2], false); /* ahead of a touch: no reason to keep it */
    assert_victims("CDAB");
}

/* Also when all are touched again and again the search ends. */
static void test_clock_ends(void **state)
{
    (void)state;
    start("clock");
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < COPIES; i++)
            evict_touched(&device, &copies[i]);
        assert_int_equal(victim(), 'A' + (int)(round % COPIES));
    }
}

static void test_forgotten_copies(void **state)
{
    static const char *const names[] = {"lra", "fifo", "clock"};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        start(names[i]);
        evict_forget(&device, &copies[0]);
        evict_forget(&device, &copies[0]);
        evict_touched(&device, &copies[0]); /* too late: nothing happens */
        evict_forget(&device, &copies[2]);
        assert_victims("BDBD");
        evict_placed(&device, &copies[0], false);
        assert_victims("BDA");
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_null(evict_policy_find("lru"));
    assert_null(evict_policy_find(""));
    assert_string_equal(evict_policy_find("clock")->name, "clock");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lra),
        cmocka_unit_test(test_fifo),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_clock_ends),
        cmocka_unit_test(test_forgotten_copies),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
