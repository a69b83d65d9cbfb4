/* SPDX-License-Identifier: Apache-2.0 */
/* A client's maps, found by id and by address, against a list that is looked through; and at how many of them
 * a search looks. Seed: tests/consistency/seed.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "cache/map.h"
#include "tests/consistency/seed.h"

/* A search that halves what is left looks at so many of MAPS_MAX at most; an address needs two more: the map,
 * and one that ends before it. */
#define LOOKS 13u

static struct cache_map all[MAPS_MAX + 1];
static struct maps maps;
static void start(void)
{
    memset(all, 0, sizeof all);
    memset(&maps, 0, sizeof maps);
}

static void attach(struct cache_map *map, uint64_t page, uint64_t pages)
{
    map->address = page * GAIA_PAGE_SIZE;
    map->count = pages;
    maps_attach(&maps, map);
}

static uint64_t looked_for(uint32_t id)
{
    uint64_t before = maps.looked;

    maps_by_id(&maps, id);
    return maps.looked - before;
}

static uint64_t looked_at(uint64_t address)
{
    uint64_t before = maps.looked;

    maps_at(&maps, address);
    return maps.looked - before;
}

/* As many maps as there may be, side by side with gaps, from below, from above, and in any order. */
static void test_few_are_looked_at(void **state)
{
    (void)state;
    for (unsigned order = 0; order < 3; order++) {
        start();
        for (unsigned i = 0; i < MAPS_MAX; i++)
            assert_int_equal(maps_add(&maps, &all[i]), 0);
        assert_int_equal(maps_add(&maps, &all[MAPS_MAX]), -EMFILE);
        for (unsigned i = 0; i < MAPS_MAX; i++)
            attach(&all[i], 10 * (order == 0 ? i : order == 1 ? MAPS_MAX - i : i * 2731 % MAPS_MAX), 3);
        for (unsigned i = 0; i < MAPS_MAX; i++) {
            assert_ptr_equal(maps_by_id(&maps, all[i].id), &all[i]);
            assert_ptr_equal(maps_at(&maps, all[i].address), &all[i]);
            assert_ptr_equal(maps_at(&maps, all[i].address + 3 * GAIA_PAGE_SIZE - 1), &all[i]);
            assert_null(maps_at(&maps, all[i].address + 3 * GAIA_PAGE_SIZE));
            assert_true(looked_for(all[i].id) <= LOOKS);
            assert_true(looked_at(all[i].address + 1) <= LOOKS + 2);
            assert_true(looked_at(all[i].address + 5 * GAIA_PAGE_SIZE) <= LOOKS + 2);
        }
        for (unsigned i = 0; i < MAPS_MAX; i++)
            maps_remove(&maps, &all[i * 2731 % MAPS_MAX]);
        maps_free(&maps);
    }
}

/* After 2^32 ids they begin anew, and one that is in use is nobody else's. */
static void test_ids_begin_anew(void **state)
{
    (void)state;
    start();
    assert_int_equal(maps_add(&maps, &all[0]), 0);
    assert_int_equal(maps_add(&maps, &all[1]), 0);
    assert_int_equal(all[0].id, 1);
    assert_int_equal(all[1].id, 2);
    maps.next_id = UINT32_MAX - 1;
    for (unsigned i = 2; i < 6; i++)
        assert_int_equal(maps_add(&maps, &all[i]), 0);
    const uint32_t ids[] = {1, 2, UINT32_MAX, 0, 3, 4};
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(all[i].id, ids[i]);
        assert_ptr_equal(maps_by_id(&maps, ids[i]), &all[i]);
    }
    for (unsigned i = 2; i < 6; i++) { /* the later one is found also where its id is the smaller one */
        attach(&all[i], 100, 1);
        assert_ptr_equal(maps_at(&maps, 100 * GAIA_PAGE_SIZE), &all[i]);
    }
    for (unsigned i = 0; i < 6; i++)
        maps_remove(&maps, &all[i]);
    maps_free(&maps);
}

/* --- against a list --- */

#define RUN_MAPS 24u
#define RUN_PAGES 60u

static struct cache_map *list[RUN_MAPS]; /* the one that was added last is last */
static unsigned listed;
static bool attached[RUN_MAPS];

static void check_all(void)
{
    for (uint64_t page = 0; page < RUN_PAGES + 12; page++) {
        struct cache_map *last = NULL;
        for (unsigned i = 0; i < listed; i++)
            if (attached[list[i] - all] && page * GAIA_PAGE_SIZE >= list[i]->address &&
                page < list[i]->address / GAIA_PAGE_SIZE + list[i]->count)
                last = list[i];
        assert_ptr_equal(maps_at(&maps, page * GAIA_PAGE_SIZE + seed_below(GAIA_PAGE_SIZE)), last);
    }
    for (uint32_t id = maps.next_id > 100 ? maps.next_id - 100 : 0; id <= maps.next_id + 1; id++) {
        struct cache_map *found = NULL;
        for (unsigned i = 0; i < listed; i++)
            found = list[i]->id == id ? list[i] : found;
        assert_ptr_equal(maps_by_id(&maps, id), found);
    }
}

static void take_off(unsigned at)
{
    maps_remove(&maps, list[at]);
    attached[list[at] - all] = false;
    *list[at] = (struct cache_map){0};
    memmove(&list[at], &list[at + 1], (--listed - at) * sizeof list[0]);
}

static void step(void)
{
    struct cache_map *map = &all[seed_below(RUN_MAPS)];
    unsigned at = 0;

    while (at < listed && list[at] != map)
        at++;
    if (at == listed) {
        assert_int_equal(maps_add(&maps, map), 0);
        list[listed++] = map;
    } else if (!attached[map - all] && seed_below(4)) {
        attached[map - all] = true;
        attach(map, seed_below(RUN_PAGES), 1 + seed_below(seed_below(2) ? 3 : 12)); /* wherever others are */
    } else {
        take_off(at);
    }
}

static void test_as_a_list(void **state)
{
    (void)state;
    for (unsigned run = 0; run < 100; run++) {
        start();
        for (unsigned i = 0; i < 150; i++) {
            step();
            check_all();
        }
        while (listed)
            take_off(seed_below(listed));
        maps_free(&maps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_are_looked_at),
        cmocka_unit_test(test_ids_begin_anew),
        cmocka_unit_test(test_as_a_list),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
