/* SPDX-License-Identifier: Apache-2.0 */
/* The places that a home has for other nodes' devices, as nodes come and go. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cache/device.h"
#include "cache/home.h"
#include "cache/home_device.h"
#include "cache/internal.h"
#include "io/call_internal.h"

enum { PAGES = 1000, GPU = GAIA_SOFT_MAX };

static struct cache cache;
static struct nodes nodes;

static int begin(void **state)
{
    (void)state;
    cache = (struct cache){.nodes = &nodes, .config = {.evict = "lra"}};
    nodes = (struct nodes){.cache = &cache};
    lock_init(&cache.lock, LOCK_CACHE);
    lock_init(&cache.devices_lock, LOCK_DEVICES);
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (unsigned i = 0; i < GAIA_DEVICES_MAX; i++) {
        if (cache.devices[i])
            free(cache.devices[i]->node);
        free(cache.devices[i]);
    }
    return 0;
}

/* A session of a member's. Nothing is asked by it; it is not freed. */
struct visit {
    struct call_session session;
    struct home_session agent;
};

static void visit_begin(struct visit *visit, unsigned member)
{
    visit->session = (struct call_session){.references = 1};
    visit->agent = (struct home_session){.nodes = &nodes, .session = &visit->session, .member = member};
}

static void visit_end(struct visit *visit)
{
    home_device_lost(&visit->agent);
    assert_int_equal(visit->session.references, 1);
}

static unsigned get(struct visit *visit, uint32_t device, uint64_t pages)
{
    unsigned number;

    assert_int_equal(home_device_get(&visit->agent, device, pages, &number), 0);
    assert_in_range(number, GAIA_NODE_FIRST, GAIA_DEVICES_MAX - 1);
    assert_int_equal(cache.devices[number]->scans, device >= GPU);
    return number;
}

static void test_a_node_that_comes_again(void **state)
{
    struct visit visit;

    (void)state;
    for (unsigned i = 0; i < 3 * GAIA_NODE_MAX; i++) {
        visit_begin(&visit, 1);
        assert_int_equal(get(&visit, 0, PAGES), GAIA_NODE_FIRST);
        assert_int_equal(get(&visit, GPU, PAGES), GAIA_NODE_FIRST + 1);
        visit_end(&visit);
    }
}

/* In the course of a mount more than there are places for: nodes are taken off the list, others are added,
 * and programs use one device after the other. */
static void test_many_nodes_one_after_the_other(void **state)
{
    struct visit visit;

    (void)state;
    for (unsigned member = 1; member < MEMBERS_MAX; member++) {
        visit_begin(&visit, member);
        for (uint32_t device = 0; device < 4; device++) {
            get(&visit, device, PAGES);
            get(&visit, GPU + device, PAGES);
        }
        visit_end(&visit);
    }
}

/* A place is taken again only when its node has gone. */
static void test_more_than_there_are_places(void **state)
{
    static struct visit visits[GAIA_NODE_MAX / 8 + 1];
    unsigned number, last = GAIA_NODE_MAX / 8;

    (void)state;
    for (unsigned i = 0; i < last; i++) {
        visit_begin(&visits[i], 1 + i);
        for (uint32_t device = 0; device < 8; device++)
            assert_int_equal(get(&visits[i], device, PAGES), GAIA_NODE_FIRST + 8 * i + device);
    }
    visit_begin(&visits[last], 1 + last);
    assert_int_equal(home_device_get(&visits[last].agent, 0, PAGES, &number), -ENODEV);
    visit_end(&visits[2]);
    assert_int_equal(home_device_get(&visits[last].agent, GPU, PAGES, &number), -ENODEV); /* another kind */
    assert_int_equal(get(&visits[last], 0, PAGES), GAIA_NODE_FIRST + 16);
    assert_int_equal(home_device_room(&visits[2].agent, 0, 1), 0); /* it is not that one's any more */
    visit_begin(&visits[2], 3);
    assert_int_equal(get(&visits[2], 5, PAGES), GAIA_NODE_FIRST + 16 + 5);
    assert_int_equal(get(&visits[2], 0, PAGES), GAIA_NODE_FIRST + 16 + 1);
    for (unsigned i = 0; i <= last; i++)
        visit_end(&visits[i]);
}

/* As much of a device as its node says now: it may come again with another device_cache=, and its part is a
 * smaller one when a node was added. */
static void test_capacity(void **state)
{
    struct cache_progress progress;
    struct visit visit;

    (void)state;
    visit_begin(&visit, 1);
    struct cache_device *device = cache.devices[get(&visit, 0, PAGES)];
    assert_int_equal(device->capacity, PAGES);
    visit_end(&visit);
    visit_begin(&visit, 1);
    get(&visit, 0, 2 * PAGES);
    assert_int_equal(device->capacity, 2 * PAGES);
    assert_true(cache_device_try_charge(device, 2 * PAGES, &progress));
    get(&visit, 0, PAGES);
    assert_int_equal(device->capacity, PAGES);
    assert_false(cache_device_try_charge(device, 1, &progress)); /* it has too much already */
    cache_device_uncharge(device, PAGES + 10);
    assert_true(cache_device_try_charge(device, 10, &progress));
    assert_false(cache_device_try_charge(device, 1, &progress));
    cache_device_uncharge(device, PAGES);
    visit_end(&visit);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_node_that_comes_again),
        CASE(test_many_nodes_one_after_the_other),
        CASE(test_more_than_there_are_places),
        CASE(test_capacity),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
