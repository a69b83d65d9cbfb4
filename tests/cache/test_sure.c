/* SPDX-License-Identifier: Apache-2.0 */
/* That a node notices that it has stood still for as long as the least patient of the others waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cache/sure.h"
#include "io/call_internal.h"

#define OWN_MS 20000u
#define ITS_MS 10000u
#define MS 1000000u
#define HALF_NS ((uint64_t)ITS_MS / 2 * MS)

static struct nodes nodes;
static struct call_session session = {.timeout_ms = ITS_MS};

/* No thread beats here: it is as if it got no processor. before_ns: when it has last. */
static void begin(uint64_t before_ns)
{
    nodes = (struct nodes){.timeout_ms = OWN_MS, .beat_ms = OWN_MS, .numbers = 2};
    lock_init(&nodes.lock, LOCK_NODES);
    lock_condition_init(&nodes.stopped);
    nodes.homes[0].listed = nodes.homes[1].listed = true;
    nodes.beat_ns = clock_read_ns(CLOCK_BOOTTIME) - before_ns;
}

static void heed(void)
{
    pthread_mutex_lock(&nodes.lock);
    sure_heed(&nodes, 1, &session);
    pthread_mutex_unlock(&nodes.lock);
}

static void end(void)
{
    pthread_cond_destroy(&nodes.stopped);
    pthread_mutex_destroy(&nodes.lock);
}

/* It has a session with who gives it up sooner than others do, and stands still before its beater knows. */
static void test_it_stands_still_just_when_it_has_met_one(void **state)
{
    (void)state;
    begin(0);
    heed();
    assert_true(nodes_are_sure(&nodes));
    nodes.beat_ns -= HALF_NS; /* so long it stands still */
    assert_false(nodes_are_sure(&nodes));
    end();
}

/* Until then nobody has taken it to be dead who waits for less. */
static void test_what_was_no_stall_before(void **state)
{
    (void)state;
    begin(HALF_NS);
    heed();
    assert_true(nodes_are_sure(&nodes));
    assert_int_equal(nodes.stalls, 0);
    end();
}

static void test_what_was_a_stall_before(void **state)
{
    (void)state;
    begin((uint64_t)OWN_MS / 2 * MS);
    heed();
    assert_false(nodes_are_sure(&nodes));
    assert_int_equal(nodes.stalls, 1);
    end();
}

/* The mount ends, or has not begun. */
static void test_nobody_beats(void **state)
{
    (void)state;
    begin(0);
    nodes.beat_ns = 0;
    heed();
    assert_int_equal(nodes.beat_ns, 0);
    assert_true(nodes_are_sure(&nodes));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_stands_still_just_when_it_has_met_one),
        cmocka_unit_test(test_what_was_no_stall_before),
        cmocka_unit_test(test_what_was_a_stall_before),
        cmocka_unit_test(test_nobody_beats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
