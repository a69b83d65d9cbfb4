/* SPDX-License-Identifier: Apache-2.0 */
/* The sparse index against a plain array, and its helpers against counting by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/internal.h"

static struct cache_device devices[3];
static struct replica replicas[3];

static unsigned seed(void)
{
    const char *text = getenv("GAIA_TEST_SEED");
    unsigned s = text ? (unsigned)strtoul(text, NULL, 0) : 20261;

    printf("seed %u\n", s);
    return s;
}

static void test_range_mask(void **state)
{
    (void)state;
    srand(seed());
    for (int i = 0; i < 20000; i++) {
        uint64_t leaf = (uint64_t)rand() % 4;
        uint64_t first = (uint64_t)rand() % 300, count = (uint64_t)rand() % 300;
        if (i % 100 == 0)
            count = UINT64_MAX - first;
        page_mask want = 0;
        for (unsigned bit = 0; bit < LEAF_PAGES; bit++) {
            uint64_t page = leaf * LEAF_PAGES + bit;
            if (page >= first && page - first < count)
                want |= UINT64_C(1) << bit;
        }
        assert_true(page_range_mask(leaf, first, count) == want);
    }
}

static void test_mask_run(void **state)
{
    (void)state;
    srand(seed());
    for (int i = 0; i < 20000; i++) {
        page_mask mask = ((uint64_t)rand() << 42) ^ ((uint64_t)rand() << 21) ^ (uint64_t)rand(), rebuilt = 0;
        if (i == 0)
            mask = ~UINT64_C(0);
        page_mask left = mask;
        while (left) {
            unsigned length, first = page_mask_run(&left, &length);
            assert_true(length >= 1 && first + length <= LEAF_PAGES);
            if (first + length < LEAF_PAGES) /* as long as can be */
                assert_false(mask >> (first + length) & 1);
            for (unsigned bit = first; bit < first + length; bit++)
                rebuilt |= UINT64_C(1) << bit;
        }
        assert_true(rebuilt == mask);
    }
}

/* Copies come and go at random; an array knows what there must be. */
static void test_find(void **state)
{
    enum { LEAVES = 5000 };
    static struct leaf_copy *want[LEAVES][3];
    struct index index;
    uint64_t copies = 0;

    (void)state;
    srand(seed());
    index_init(&index);
    for (int i = 0; i < 60000; i++) {
        unsigned slot = (unsigned)rand() % LEAVES, r = (unsigned)rand() % 3;
        uint64_t number = (uint64_t)slot * UINT64_C(0x10001); /* far apart */
        if (!want[slot][r]) {
            struct leaf_copy *copy = index_get_copy(&index, number, &replicas[r]);
            assert_non_null(copy);
            assert_true(copy->leaf->kernel == ~UINT64_C(0) || want[slot][(r + 1) % 3] ||
                        want[slot][(r + 2) % 3]);
            copy->present = 1;
            want[slot][r] = copy;
            copies++;
        } else if (rand() % 2) {
            want[slot][r]->present = 0;
            index_put_copy(&index, want[slot][r]);
            want[slot][r] = NULL;
            copies--;
        }
        struct leaf *leaf = index_find(&index, number);
        assert_true((leaf != NULL) == (want[slot][0] || want[slot][1] || want[slot][2]));
        for (unsigned j = 0; j < 3 && leaf; j++)
            assert_ptr_equal(leaf_find_copy(leaf, &replicas[j]), want[slot][j]);
        assert_true(index.copies == copies);
    }
    for (unsigned slot = 0; slot < LEAVES; slot++) {
        for (unsigned r = 0; r < 3; r++) {
            if (!want[slot][r])
                continue;
            want[slot][r]->present = 0;
            index_put_copy(&index, want[slot][r]);
        }
    }
    assert_true(index.leaves.count == 0 && index.copies == 0);
    assert_true(index.leaves.size >= LEAVES / 2);
    assert_true(index_bytes(&index) == index.leaves.size * sizeof(void *));
    index_free(&index);
}

/* Copies of a leaf stand in ascending replica number, whatever the order they came in: the order of a
 * collect. */
static void test_order(void **state)
{
    static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    (void)state;
    for (unsigned o = 0; o < 6; o++) {
        struct index index;
        struct leaf_copy *copy;
        unsigned n = 0;
        index_init(&index);
        for (unsigned i = 0; i < 3; i++)
            index_get_copy(&index, 7, &replicas[orders[o][i]]);
        SLIST_FOREACH (copy, &index_find(&index, 7)->copies, link)
            assert_ptr_equal(copy->replica, &replicas[n++]);
        assert_int_equal(n, 3);
        for (unsigned i = 0; i < 3; i++)
            index_put_copy(&index, leaf_find_copy(index_find(&index, 7), &replicas[i]));
        index_free(&index);
    }
}

/* Vectors keep their values when more replicas come. */
static void test_versions(void **state)
{
    struct index index;

    (void)state;
    index_init(&index);
    struct leaf_copy *copy = index_get_copy(&index, 3, &replicas[0]);
    struct leaf *leaf = copy->leaf;
    assert_int_equal(leaf_versions_reserve(&index, leaf, ~UINT64_C(0), 2), 0);
    for (unsigned page = 0; page < LEAF_PAGES; page++) {
        struct gaia_page_versions versions = leaf_page_versions(leaf, page);
        versions.released[0] = page;
        versions.home[1] = 100 + page;
        leaf_copy_page_vector(copy, page)[1] = 200 + page;
    }
    struct leaf_copy *other = index_get_copy(&index, 3, &replicas[1]);
    assert_int_equal(leaf_versions_reserve(&index, leaf, ~UINT64_C(0), 4), 0);
    for (unsigned page = 0; page < LEAF_PAGES; page++) {
        struct gaia_page_versions versions = leaf_page_versions(leaf, page);
        assert_int_equal(versions.n, 4);
        assert_true(versions.released[0] == page && !versions.released[1] && !versions.released[3]);
        assert_true(!versions.home[0] && versions.home[1] == 100 + page && !versions.home[2]);
        assert_true(leaf_copy_page_vector(copy, page)[1] == 200 + page &&
                    !leaf_copy_page_vector(copy, page)[2]);
        assert_true(!leaf_copy_page_vector(other, page)[0]);
    }
    index_put_copy(&index, copy);
    index_put_copy(&index, other);
    assert_true(index_bytes(&index) == index.leaves.size * sizeof(void *));
    index_free(&index);
}

#define LISTED 200u

static void list_copy(struct cache_file *file, uint64_t leaf, bool stored, bool suspect)
{
    struct leaf_copy *copy = index_get_copy(&file->index, leaf, &replicas[0]);

    if (stored)
        TAILQ_INSERT_HEAD(&replicas[0].stored, copy, stored);
    if (suspect)
        TAILQ_INSERT_TAIL(&replicas[0].suspects, copy, suspect);
    copy->in_stored = stored;
    copy->in_suspects = suspect;
}

static void check_listed(enum replica_list which, const bool *wanted, uint64_t first, uint64_t count)
{
    struct leaf_copy **copies;
    ssize_t n = replica_listed(&replicas[0], which, first, count, &copies), at = 0;

    for (uint64_t leaf = 0; leaf < LISTED; leaf++)
        if (wanted[leaf] && page_range_mask(leaf, first, count)) {
            assert_true(at < n);
            assert_true(copies[at++]->leaf->number == leaf);
        }
    assert_true(at == n);
    free(copies);
}

/* What is on the lists of stores and of suspects, of ranges from nothing to more than any file has. */
static void test_listed(void **state)
{
    static struct cache_file file;
    static bool stored[LISTED], suspects[LISTED];

    (void)state;
    srand(seed());
    index_init(&file.index);
    replicas[0].file = &file;
    TAILQ_INIT(&replicas[0].stored);
    TAILQ_INIT(&replicas[0].suspects);
    for (unsigned i = 0; i < LISTED; i++) {
        stored[i] = rand() % 3;
        suspects[i] = rand() % 20 == 0;
        if (rand() % 10) /* others have none at all */
            list_copy(&file, i, stored[i], suspects[i]);
        else
            stored[i] = suspects[i] = false;
    }
    for (int i = 0; i < 5000; i++) {
        uint64_t first = (uint64_t)rand() % (LISTED * LEAF_PAGES), count = (uint64_t)rand() % 400;
        if (i % 10 == 0)
            count = i % 20 ? UINT64_MAX : (uint64_t)rand() % (LISTED * LEAF_PAGES);
        check_listed(REPLICA_STORED, stored, first, count);
        check_listed(REPLICA_SUSPECTS, suspects, first, count);
    }
    /* Of a long list no more is looked at than the range has leaves. */
    struct leaf_copy *third = TAILQ_NEXT(TAILQ_NEXT(TAILQ_FIRST(&replicas[0].stored), stored), stored);
    struct leaf_copy *fourth = TAILQ_NEXT(third, stored);
    third->stored.tqe_next = (struct leaf_copy *)(uintptr_t)8;
    check_listed(REPLICA_STORED, stored, 50 * LEAF_PAGES + 60, 10);
    third->stored.tqe_next = fourth;
    for (unsigned i = 0; i < LISTED; i++) {
        struct leaf *leaf = index_find(&file.index, i);
        if (leaf) {
            struct leaf_copy *copy = leaf_find_copy(leaf, &replicas[0]);
            copy->in_stored = copy->in_suspects = false;
            index_put_copy(&file.index, copy);
        }
    }
    index_free(&file.index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range_mask), cmocka_unit_test(test_mask_run), cmocka_unit_test(test_find),
        cmocka_unit_test(test_order),      cmocka_unit_test(test_versions), cmocka_unit_test(test_listed),
    };

    for (unsigned i = 0; i < 3; i++) {
        devices[i].number = i;
        replicas[i].device = &devices[i];
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
