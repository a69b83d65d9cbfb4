/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "cache/readahead.h"

#define BIG UINT64_C(1000000)

/* A stream: windows double up to the limit, follow each other without a gap, and always hold the page that is
 * touched. */
static void test_stream(void **state)
{
    struct readahead r;
    uint64_t page = 0, last = 0;

    (void)state;
    readahead_init(&r, GAIA_UNIT_PAGES);
    while (page < 100000) {
        struct readahead_window w = readahead_next(&r, page, BIG, BIG);
        assert_true(w.first == page);
        assert_true(w.count ==
                    (last ? (last * 2 > READAHEAD_MAX ? READAHEAD_MAX : last * 2) : GAIA_UNIT_PAGES));
        last = w.count;
        page = w.first + w.count;
    }
    assert_true(last == READAHEAD_MAX);
    readahead_free(&r);
}

/* Touches that run ahead of the placing, within a window that was given out, neither end the stream nor start
 * another. */
static void test_within_window(void **state)
{
    struct readahead r;
    uint64_t page = 0;

    (void)state;
    readahead_init(&r, GAIA_UNIT_PAGES);
    for (unsigned i = 0; i < 8; i++) {
        struct readahead_window w = readahead_next(&r, page, BIG, BIG);
        for (uint64_t inside = page; inside < w.first + w.count; inside += 40) {
            struct readahead_window u = readahead_next(&r, inside, BIG, BIG);
            assert_true(u.count == GAIA_UNIT_PAGES && u.first <= inside && inside < u.first + u.count);
        }
        page = w.first + w.count;
        assert_true(w.count == GAIA_UNIT_PAGES << i);
    }
    readahead_free(&r);
}

/* The threads of a group touch their pages out of order: a stream goes on a unit late, and no later than
 * that. */
static void test_slack(void **state)
{
    struct readahead r;

    (void)state;
    for (unsigned late = 0; late < 3; late++) {
        readahead_init(&r, GAIA_UNIT_PAGES);
        assert_true(readahead_next(&r, 0, BIG, BIG).count == GAIA_UNIT_PAGES);
        struct readahead_window w = readahead_next(&r, (1 + late) * GAIA_UNIT_PAGES, BIG, BIG);
        assert_true(w.first == (1 + late) * GAIA_UNIT_PAGES);
        assert_true(w.count == (late < 2 ? 2 : 1) * GAIA_UNIT_PAGES);
        readahead_free(&r);
    }
}

/* A kernel whose groups of threads each walk a stride of their own: every stream grows, in whatever order
 * faults come. */
static void test_many_streams(void **state)
{
    struct readahead r;
    uint64_t at[READAHEAD_STREAMS], window[READAHEAD_STREAMS] = {0};

    (void)state;
    srand(4711);
    readahead_init(&r, GAIA_UNIT_PAGES);
    for (unsigned i = 0; i < READAHEAD_STREAMS; i++)
        at[i] = (uint64_t)i * 60000;
    for (unsigned i = 0; i < READAHEAD_STREAMS * 40; i++) {
        unsigned s = i < READAHEAD_STREAMS ? i : (unsigned)rand() % READAHEAD_STREAMS;
        if (at[s] >= (uint64_t)(s + 1) * 60000)
            continue;
        struct readahead_window w = readahead_next(&r, at[s], BIG, BIG);
        window[s] = w.count;
        at[s] = w.first + w.count;
    }
    for (unsigned i = 0; i < READAHEAD_STREAMS; i++)
        assert_true(window[i] >= 1024);
    readahead_free(&r);
}

static void test_random(void **state)
{
    struct readahead r;

    (void)state;
    srand(42);
    readahead_init(&r, GAIA_UNIT_PAGES);
    for (int i = 0; i < 10000; i++) {
        uint64_t limit = 1 + (uint64_t)rand() % 5000, page = (uint64_t)rand() % limit;
        uint64_t most = 1 + (uint64_t)rand() % 300;
        readahead_set_mode(&r, (enum readahead_mode)(rand() % 3));
        struct readahead_window w = readahead_next(&r, page, limit, most);
        assert_true(w.first <= page && page < w.first + w.count);
        assert_true(w.first + w.count <= limit);
        assert_true(w.count <= (most > 1 ? most : 1));
    }
    readahead_set_mode(&r, READAHEAD_RANDOM);
    struct readahead_window w = readahead_next(&r, 17, BIG, BIG);
    assert_true(w.first == 17 && w.count == 1);
    readahead_set_mode(&r, READAHEAD_SEQUENTIAL);
    w = readahead_next(&r, 500000, BIG, BIG);
    assert_true(w.count * GAIA_PAGE_SIZE >= 512 * 1024);
    readahead_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream), cmocka_unit_test(test_within_window),
        cmocka_unit_test(test_slack),  cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
