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

static uint32_t touch_cell(struct density *density, uint64_t cell, unsigned thick)
{
    return density_touch(density, cell * DENSITY_CELL_PAGES + (uint64_t)rand() % DENSITY_CELL_PAGES, thick);
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
 * block takes more touches than `most`. */
static void touch_all_of(unsigned thick, unsigned most)
{
    struct density density;
    uint32_t shown[BLOCKS] = {0};
    unsigned touches[BLOCKS] = {0};

    density_init(&density, CELLS * DENSITY_CELL_PAGES);
    uint64_t *order = shuffled(CELLS);
    for (uint64_t i = 0; i < CELLS; i++) {
        uint64_t block = order[i] / DENSITY_BLOCK_CELLS;
        uint32_t bit = UINT32_C(1) << order[i] % DENSITY_BLOCK_CELLS;
        if (shown[block] & bit)
            continue;
        uint32_t cells = touch_cell(&density, order[i], thick);
        assert_true(cells & bit);
        assert_false(cells & shown[block]);
        shown[block] |= cells;
        touches[block]++;
    }
    for (unsigned block = 0; block < BLOCKS; block++) {
        assert_true(shown[block] == UINT32_MAX);
        assert_true(touches[block] > thick && touches[block] <= most);
    }
    free(order);
    density_free(&density);
}

static void test_thick(void **state)
{
    (void)state;
    srand(4711);
    touch_all_of(DENSITY_TO_SHOW, 7);
    touch_all_of(DENSITY_TO_PLACE, DENSITY_TO_PLACE + 1);
}

/* Few touches of a block show nothing else of it, and one more an aligned part that has what was touched. */
static void touch_few(unsigned thick, unsigned part)
{
    struct density density;

    density_init(&density, CELLS * DENSITY_CELL_PAGES);
    uint64_t *order = shuffled(DENSITY_BLOCK_CELLS);
    for (unsigned block = 0; block < BLOCKS; block++) {
        uint64_t first = block * DENSITY_BLOCK_CELLS, last = order[thick];
        for (unsigned i = 0; i < thick; i++) {
            assert_true(touch_cell(&density, first + order[i], thick) == UINT32_C(1) << order[i]);
            assert_true(touch_cell(&density, first + order[i], thick) == UINT32_C(1)
                                                                             << order[i]); /* come back */
        }
        uint64_t around = ((UINT64_C(1) << part) - 1) << (last & ~(uint64_t)(part - 1));
        for (unsigned i = 0; i < thick; i++)
            around &= ~(UINT64_C(1) << order[i]);
        assert_true(touch_cell(&density, first + last, thick) == around);
    }
    free(order);
    density_free(&density);
}

static void test_thin(void **state)
{
    (void)state;
    srand(42);
    touch_few(DENSITY_TO_SHOW, 8);
    touch_few(DENSITY_TO_PLACE, DENSITY_BLOCK_CELLS);
}

/* What was whole and is touched again has gone since: all of it is shown once more. */
static void test_anew(void **state)
{
    struct density density;

    (void)state;
    density_init(&density, DENSITY_BLOCK_PAGES);
    for (unsigned i = 0; i < 10; i++) {
        uint32_t shown = 0;
        unsigned touches = 0;
        for (unsigned cell = 0; cell < DENSITY_BLOCK_CELLS; cell++) {
            unsigned mixed = cell * 5 % DENSITY_BLOCK_CELLS;
            if (shown & UINT32_C(1) << mixed)
                continue;
            shown |= touch_cell(&density, mixed, DENSITY_TO_SHOW);
            touches++;
        }
        assert_true(shown == UINT32_MAX && touches <= 7);
    }
    density_free(&density);
}

/* Of blocks that were let go, in part or whole, each touch shows its own cell; of those beside them as
 * before. */
static void test_forget(void **state)
{
    struct density density, none;

    (void)state;
    density_init(&none, 0);
    density_forget(&none, 0, UINT64_MAX);
    density_init(&density, CELLS * DENSITY_CELL_PAGES);
    for (unsigned block = 0; block < BLOCKS; block++)
        for (unsigned cell = 0; cell < DENSITY_TO_PLACE; cell++)
            touch_cell(&density, block * DENSITY_BLOCK_CELLS + cell, DENSITY_TO_PLACE);
    density_forget(&density, 3 * DENSITY_BLOCK_PAGES - 1, 1);
    density_forget(&density, 6 * DENSITY_BLOCK_PAGES - 1, DENSITY_BLOCK_PAGES + 2);
    for (unsigned block = 0; block < BLOCKS; block++) {
        uint32_t all = UINT32_MAX << DENSITY_TO_PLACE, own = UINT32_C(1) << 20;
        assert_true(touch_cell(&density, block * DENSITY_BLOCK_CELLS + 20, DENSITY_TO_PLACE) ==
                    (block == 2 || (block >= 5 && block <= 7) ? own : all));
    }
    density_forget(&density, 9, UINT64_MAX / 2);
    for (unsigned block = 0; block < BLOCKS; block++)
        assert_true(touch_cell(&density, block * DENSITY_BLOCK_CELLS + 7, DENSITY_TO_PLACE) == UINT32_C(1)
                                                                                                   << 7);
    density_free(&density);
    density_free(&none);
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
        assert_true(touch_cell(&one, cell, DENSITY_TO_SHOW) == UINT32_C(1) << i % DENSITY_BLOCK_CELLS);
        assert_true(touch_cell(&none, i, DENSITY_TO_SHOW) == UINT32_C(1) << i % DENSITY_BLOCK_CELLS);
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
        assert_true(density_cell(page) == UINT32_C(1) << page % DENSITY_BLOCK_PAGES / DENSITY_CELL_PAGES);
        uint64_t end = 0;
        for (uint32_t left = cells, sum = 0; left || sum != cells;) {
            struct gaia_run run = density_run(page, &left);
            assert_true(run.page / DENSITY_BLOCK_PAGES == block && run.page > end); /* a gap is between two */
            end = run.page + run.count;
            for (uint64_t p = run.page; p < end; p += DENSITY_CELL_PAGES)
                sum |= density_cell(p);
        }
    }
}

static struct density common;
static _Atomic unsigned given[CELLS];

/* Every third cell; who is given more than its own is given what nobody was. */
static void *touch_all(void *argument)
{
    unsigned first = *(unsigned *)argument;

    for (uint64_t cell = first; cell < CELLS; cell += 3) {
        uint32_t cells = density_touch(&common, cell * DENSITY_CELL_PAGES, DENSITY_TO_SHOW);
        for (unsigned bit = 0; bit < DENSITY_BLOCK_CELLS; bit++)
            if (cells & UINT32_C(1) << bit && cells & (cells - 1))
                atomic_fetch_add(&given[cell - cell % DENSITY_BLOCK_CELLS + bit], 1);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[3];
    unsigned first[3] = {0, 1, 2}, most = 0;

    (void)state;
    density_init(&common, CELLS * DENSITY_CELL_PAGES);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, touch_all, &first[i]), 0);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < CELLS; i++)
        most = given[i] > most ? given[i] : most;
    /* A block that became whole begins anew when one of its cells is touched late; 32 touches are four times.
     */
    assert_in_range(most, 1, 4);
    density_free(&common);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thick),   cmocka_unit_test(test_thin),    cmocka_unit_test(test_anew),
        cmocka_unit_test(test_forget),  cmocka_unit_test(test_no_room), cmocka_unit_test(test_pages),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
