/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/density.h"

#define BLOCKS 64u
#define CELLS (BLOCKS * DENSITY_BLOCK_CELLS)

static uint32_t touch_cell(struct density *density, uint64_t cell)
{
    return density_touch(density, cell * DENSITY_CELL_PAGES + (uint64_t)rand() % DENSITY_CELL_PAGES);
}

static uint64_t *shuffled(uint64_t count)
{
    uint64_t *order = malloc(count * sizeof *order);

    assert_non_null(order);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t other = (uint64_t)rand() % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    return order;
}

/* All cells, in no order, by who touches what it was not shown: each is shown once, with its block, and no
 * block takes more than seven touches. */
static void test_thick(void **state)
{
    struct density density;
    uint32_t shown[BLOCKS] = {0};
    unsigned touches[BLOCKS] = {0};

    (void)state;
    srand(4711);
    density_init(&density, CELLS * DENSITY_CELL_PAGES);
    uint64_t *order = shuffled(CELLS);
    for (uint64_t i = 0; i < CELLS; i++) {
        uint64_t block = order[i] / DENSITY_BLOCK_CELLS;
        uint32_t bit = UINT32_C(1) << order[i] % DENSITY_BLOCK_CELLS;
        if (shown[block] & bit)
            continue;
        uint32_t cells = touch_cell(&density, order[i]);
        assert_true(cells & bit);
        assert_false(cells & shown[block]);
        shown[block] |= cells;
        touches[block]++;
    }
    for (unsigned block = 0; block < BLOCKS; block++) {
        assert_true(shown[block] == UINT32_MAX);
        assert_true(touches[block] >= DENSITY_THICK_CELLS && touches[block] <= 7);
    }
    free(order);
    density_free(&density);
}

/* Few touches of a block show nothing else of it, and never more than an aligned part that has what was
 * touched. */
static void test_thin(void **state)
{
    struct density density;

    (void)state;
    srand(42);
    density_init(&density, CELLS * DENSITY_CELL_PAGES);
    uint64_t *order = shuffled(DENSITY_BLOCK_CELLS);
    for (unsigned block = 0; block < BLOCKS; block++)
        for (unsigned i = 0; i < DENSITY_THICK_CELLS; i++) {
            uint64_t cell = block * DENSITY_BLOCK_CELLS + order[i];
            assert_true(touch_cell(&density, cell) == UINT32_C(1) << order[i]);
            assert_true(touch_cell(&density, cell) == UINT32_C(1) << order[i]); /* come back */
        }
    for (unsigned block = 0; block < BLOCKS; block++) {
        uint32_t cells = touch_cell(&density, block * DENSITY_BLOCK_CELLS + order[DENSITY_THICK_CELLS]);
        uint32_t part = UINT32_C(0xff) << (order[DENSITY_THICK_CELLS] & ~UINT64_C(7));
        assert_true(cells & UINT32_C(1) << order[DENSITY_THICK_CELLS] && !(cells & ~part));
    }
    free(order);
    density_free(&density);
}

/* Blocks that share a place, and maps that keep nothing: what was touched is shown, and what was not kept is
 * not taken for shown. */
static void test_no_room(void **state)
{
    struct density one, none;

    (void)state;
    density_init(&one, 1);
    density_init(&none, 0);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t cell = i * one.count * DENSITY_BLOCK_CELLS + i % DENSITY_BLOCK_CELLS;
        assert_true(touch_cell(&one, cell) == UINT32_C(1) << i % DENSITY_BLOCK_CELLS);
        assert_true(touch_cell(&none, i) == UINT32_C(1) << i % DENSITY_BLOCK_CELLS);
    }
    density_free(&one);
    density_free(&none);
    density_init(&one, UINT64_MAX / GAIA_PAGE_SIZE);
    assert_true(one.count <= DENSITY_BLOCKS_MAX);
    density_free(&one);
}

/* The bits of cells are the pages of leaves. */
static void test_pages(void **state)
{
    (void)state;
    srand(7);
    for (int i = 0; i < 1000; i++) {
        uint64_t page = (uint64_t)rand() * 17, block = page / DENSITY_BLOCK_PAGES;
        uint32_t cells = (uint32_t)rand() << 1 ^ (uint32_t)rand();
        for (uint64_t p = block * DENSITY_BLOCK_PAGES; p < (block + 1) * DENSITY_BLOCK_PAGES; p++) {
            bool is_in = cells >> p % DENSITY_BLOCK_PAGES / DENSITY_CELL_PAGES & 1;
            assert_true(is_in == !!(density_pages(page, cells, p >> LEAF_SHIFT) & page_bit(p)));
        }
        assert_true(density_pages(page, cells, (block + 1) * DENSITY_BLOCK_PAGES >> LEAF_SHIFT) == 0);
    }
}

static struct density common;
static _Atomic uint32_t common_shown[BLOCKS];

/* Every third cell; what others were given is not given again. */
static void *touch_all(void *argument)
{
    unsigned first = *(unsigned *)argument;

    for (uint64_t cell = first; cell < CELLS; cell += 3) {
        uint32_t cells = density_touch(&common, cell * DENSITY_CELL_PAGES);
        if (cells != UINT32_C(1) << cell % DENSITY_BLOCK_CELLS)
            assert_false(atomic_fetch_or(&common_shown[cell / DENSITY_BLOCK_CELLS], cells) & cells);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[3];
    unsigned first[3] = {0, 1, 2};

    (void)state;
    density_init(&common, CELLS * DENSITY_CELL_PAGES);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, touch_all, &first[i]), 0);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    density_free(&common);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thick), cmocka_unit_test(test_thin),    cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_pages), cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
