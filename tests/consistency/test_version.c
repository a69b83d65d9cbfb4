/* SPDX-License-Identifier: Apache-2.0 */
/* Version vectors against an oracle that counts in 64 bits and never wraps. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "consistency/version.h"
#include "tests/consistency/seed.h"

#define ENTRIES_MAX (GAIA_REPLICAS_MAX - 1u)
#define ROUNDS 20000

/* The same vector twice: as the oracle counts and as the code does. */
struct vector {
    int64_t count[ENTRIES_MAX];
    gaia_version v[ENTRIES_MAX];
};

static void vector_set(struct vector *vector, size_t j, int64_t count)
{
    vector->count[j] = count;
    vector->v[j] = (gaia_version)count;
}

/* Two vectors whose entries lie near each other, up to 2^31 - 1 apart; many are equal, many are near a wrap.
 */
static void random_pair(struct vector *a, struct vector *b, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        static const int64_t lags[] = {0, 0, 0, 0, 0, 1, 1, 2, 1000, INT32_MAX};
        int64_t base = (int64_t)(seed_next() % ((uint64_t)UINT32_MAX + 1));
        int64_t lag = lags[seed_below(sizeof(lags) / sizeof(lags[0]))];

        if (seed_below(2))
            base = (int64_t)UINT32_MAX + 1 - (int64_t)seed_below(3);
        vector_set(a, j, base);
        vector_set(b, j, base + lag);
        if (seed_below(2)) {
            vector_set(b, j, base);
            vector_set(a, j, base + lag);
        }
    }
}

static bool oracle_current(const struct vector *v, const struct vector *r, size_t n, size_t skip)
{
    for (size_t j = 0; j < n; j++) {
        if (j != skip && v->count[j] < r->count[j])
            return false;
    }
    return true;
}

static void check_pair(const struct vector *v, const struct vector *w, size_t n)
{
    assert_int_equal(gaia_version_current(v->v, w->v, n), oracle_current(v, w, n, SIZE_MAX));
    for (size_t skip = 0; skip <= n + 1; skip++)
        assert_int_equal(gaia_version_current_but(v->v, w->v, n, skip), oracle_current(v, w, n, skip));
}

static void test_random(void **state)
{
    static struct vector a, b;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        /* Mostly a few entries: vectors of many random ones nearly always conflict. */
        size_t n = seed_below(8) ? seed_below(4) : seed_below(ENTRIES_MAX + 1);

        random_pair(&a, &b, n);
        check_pair(&a, &b, n);
        check_pair(&b, &a, n);
        check_pair(&a, &a, n);
    }
}

/* Every pair of vectors of 3 entries with values -1, 0 and 1: 729 pairs, with a wrap between -1 and 0. */
static void test_exhaustive(void **state)
{
    static struct vector a, b;

    (void)state;
    for (int code = 0; code < 729; code++) {
        int digits = code;

        for (size_t j = 0; j < 3; j++) {
            vector_set(&a, j, digits % 3 - 1);
            digits /= 3;
            vector_set(&b, j, digits % 3 - 1);
            digits /= 3;
        }
        check_pair(&a, &b, 3);
    }
}

static void test_wrap(void **state)
{
    const gaia_version last[] = {UINT32_MAX}, zero[] = {0}, far[] = {INT32_MAX - 1};

    (void)state;
    assert_true(gaia_version_current(zero, last, 1));
    assert_false(gaia_version_current(last, zero, 1));
    /* 2^31 - 1 apart, the most there may be. */
    assert_true(gaia_version_current(far, last, 1));
    assert_false(gaia_version_current(last, far, 1));
}

static void test_none(void **state)
{
    const gaia_version v[] = {3}, w[] = {9};

    (void)state;
    assert_true(gaia_version_current(v, w, 0));
    assert_true(gaia_version_current_but(v, w, 0, 0));
    assert_true(gaia_version_current_but(v, w, 1, 0));
    assert_false(gaia_version_current_but(v, w, 1, 1));
}

static void test_entries(void **state)
{
    (void)state;
    assert_int_equal(gaia_version_entry(GAIA_REPLICA_CPU), 0);
    assert_int_equal(gaia_version_entry(GAIA_REPLICA_DEVICE), 1);
    assert_int_equal(gaia_version_entry(GAIA_REPLICAS_MAX - 1), ENTRIES_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random), cmocka_unit_test(test_exhaustive), cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_none),   cmocka_unit_test(test_entries),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
