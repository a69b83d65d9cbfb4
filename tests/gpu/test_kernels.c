/* SPDX-License-Identifier: Apache-2.0 */
/* The device kernels, run on the CPU: digests against libxxhash's, bitmaps and moved pages against loops that
 * go page by page. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <xxhash.h>

#include "consistency/digest.h"
#include "consistency/page.h"
#include "gpu/kernels.h"
#include "tests/consistency/seed.h"
#include "tests/gate.h"

#define PAGE GAIA_PAGE_SIZE
#define BATCH 4096u /* pages hashed by one launch */

/* Random pages that are hashed: sanitizers are slow. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define RANDOM_PAGES 100000u
#else
#define RANDOM_PAGES 2500000u
#endif

static const struct shape {
    unsigned blocks, threads;
} shapes[] = {{1, 32}, {1, 1024}, {7, 96}, {132, 256}, {3, 64}, {5000, 32}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void *pages_new(uint64_t count)
{
    void *pages = NULL;

    assert_int_equal(posix_memalign(&pages, PAGE, (count + 1) * PAGE), 0);
    return pages;
}

static void launch(const char *name, struct shape shape, void *const *arguments)
{
    assert_int_equal(gaia_kernel_cpu(name, arguments, shape.blocks, shape.threads), 0);
}

/* Hashes pages in one launch and compares each digest with libxxhash's. */
static void check_digests(const uint8_t *pages, uint64_t count, struct shape shape)
{
    static struct gaia_digest digests[BATCH + 1];
    struct gaia_digest *out = digests;

    memset(digests, 0xa5, sizeof(digests));
    launch("gaia_hash_pages", shape, (void *[]){&pages, &count, &out});
    for (uint64_t i = 0; i < count; i++) {
        XXH128_hash_t hash = XXH3_128bits(pages + i * PAGE, PAGE);

        assert_int_equal(digests[i].low, hash.low64);
        assert_int_equal(digests[i].high, hash.high64);
        assert_true(gaia_digest_equal(digests[i], gaia_digest_of(pages + i * PAGE, PAGE)));
    }
    assert_int_equal(digests[count].low, 0xa5a5a5a5a5a5a5a5u);
}

static void digests_of_random_pages(void **state)
{
    uint64_t *words = pages_new(BATCH);
    unsigned done = 0;

    (void)state;
    for (unsigned batch = 0; done < so_many(RANDOM_PAGES); batch++, done += BATCH) {
        uint64_t key = seed_next() | 1;

        /* New bytes in each: seed_next() for every word would take longer than the hashing. */
        for (size_t i = 0; i < (size_t)BATCH * PAGE / 8; i++)
            words[i] = (words[i] + i) * key ^ words[i] >> 29;
        check_digests((uint8_t *)words, BATCH, shapes[batch % SHAPES]);
    }
    printf("%u random pages\n", done);
    free(words);
}

/* A page with one bit in it, for every bit; and without one, for every bit. */
static void digests_of_single_bits(void **state)
{
    uint8_t *pages = pages_new(BATCH);

    (void)state;
    for (unsigned bit = 0; bit < 8; bit++)
        for (unsigned fill = 0; fill < 256; fill += 255) {
            memset(pages, (int)fill, (size_t)BATCH * PAGE);
            for (size_t i = 0; i < BATCH; i++)
                pages[i * PAGE + i] ^= (uint8_t)(1u << bit);
            check_digests(pages, BATCH, (struct shape){4, 256});
        }
    free(pages);
}

/* Bytes that repeat, that count, that are the hash's own key (so that products are 0), that are mostly zeros.
 */
static void digests_of_structured_pages(void **state)
{
    static const unsigned periods[] = {1, 2, 3, 4, 8, 16, 63, 64, 65, 512, 1024, 4095};
    uint8_t *pages = pages_new(512), pattern[PAGE];

    (void)state;
    for (size_t p = 0; p < sizeof(periods) / sizeof(periods[0]); p++) {
        for (size_t i = 0; i < (size_t)512 * PAGE; i++) {
            size_t page = i / PAGE, at = i % PAGE;

            if (at == 0)
                seed_fill(pattern, periods[p]);
            pages[i] = page % 2 ? pattern[at % periods[p]] : (uint8_t)(at / periods[p] + page);
        }
        check_digests(pages, 512, shapes[p % SHAPES]);
    }
    for (size_t page = 0; page < 512; page++) {
        memset(pages + page * PAGE, 0, PAGE);
        for (size_t n = page % 17; n; n--)
            pages[page * PAGE + seed_below(PAGE)] = (uint8_t)seed_next();
    }
    check_digests(pages, 512, shapes[1]);
    free(pages);
}

/* --- find_modified --- */

struct find {
    uint64_t count;
    uint8_t *pages;
    struct gaia_digest *granted;
    uint32_t *consider, *modified;
};

static uint32_t words_of(uint64_t count)
{
    return (uint32_t)((count + 31) / 32);
}

/* Runs it and compares the bitmap and the total with what one page after the other says. */
static void find_and_check(struct find *find, struct shape shape)
{
    uint32_t words = words_of(find->count), total = 1000, *total_at = &total, expected = 0;

    memset(find->modified, 0x5a, (words + 1) * sizeof(uint32_t));
    launch(
        "gaia_find_modified", shape,
        (void *[]){&find->pages, &find->count, &find->granted, &find->consider, &find->modified, &total_at});
    for (uint64_t i = 0; i < words * (uint64_t)32; i++) {
        bool is_modified = i < find->count && find->consider[i / 32] >> i % 32 & 1 &&
                           !gaia_digest_equal(find->granted[i], gaia_digest_of(find->pages + i * PAGE, PAGE));

        expected += is_modified;
        assert_int_equal(find->modified[i / 32] >> i % 32 & 1, is_modified);
    }
    assert_int_equal(total, 1000 + expected);
    assert_int_equal(find->modified[words], 0x5a5a5a5a);
}

static void consider(struct find *find, unsigned how)
{
    for (uint32_t i = 0; i < words_of(find->count); i++)
        find->consider[i] = how == 0 ? 0 : how == 1 ? UINT32_MAX : (uint32_t)seed_next();
}

static void find_modified_pages(void **state)
{
    static const uint64_t counts[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 95, 100, 257, 1000};

    (void)state;
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        uint32_t words = words_of(counts[c]);
        struct find find = {counts[c], pages_new(counts[c]),
                            calloc(counts[c] + 1, sizeof(struct gaia_digest)),
                            calloc(words + 1, sizeof(uint32_t)), calloc(words + 1, sizeof(uint32_t))};

        seed_fill(find.pages, counts[c] * PAGE);
        for (uint64_t i = 0; i < counts[c]; i++)
            find.granted[i] = gaia_digest_of(find.pages + i * PAGE, PAGE);
        for (unsigned round = 0; round < 12; round++) {
            consider(&find, round % 3);
            find_and_check(&find, shapes[round % SHAPES]);
            /* One bit of a page is enough. */
            for (uint64_t n = counts[c] / 5 + 1; counts[c] && n; n--)
                find.pages[seed_below(counts[c] * PAGE)] ^= (uint8_t)(1u << seed_below(8));
        }
        free(find.pages);
        free(find.granted);
        free(find.consider);
        free(find.modified);
    }
}

#define PIECE_PAGES 7u /* whose digests lie together, */
#define PIECE_ROOM 11u /* so far from the next ones */

static uint32_t any_modified(uint8_t *pages, const struct gaia_digest *granted, uint64_t first,
                             uint64_t count, struct shape shape)
{
    uint64_t chunk = PIECE_PAGES, room = PIECE_ROOM;
    uint32_t any = 0, *any_at = &any;

    launch("gaia_any_modified", shape, (void *[]){&pages, &first, &count, &granted, &chunk, &room, &any_at});
    return any;
}

/* One bit of one page, wherever that is, and of no page beside the range; of what was not granted none. */
static void any_modified_pages(void **state)
{
    enum { PAGES = 60 };
    struct gaia_digest granted[PAGES / PIECE_PAGES * PIECE_ROOM + PIECE_ROOM];
    uint8_t *pages = pages_new(PAGES);

    (void)state;
    seed_fill(pages, PAGES * PAGE);
    memset(granted, 0xff, sizeof granted); /* no page's: between the pieces nothing is looked at */
    for (unsigned i = 0; i < PAGES; i++)
        granted[i / PIECE_PAGES * PIECE_ROOM + i % PIECE_PAGES] = gaia_digest_of(pages + i * PAGE, PAGE);
    for (size_t s = 0; s < SHAPES; s++)
        assert_int_equal(any_modified(pages, granted, 0, PAGES, shapes[s]), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        uint8_t *at = pages + page * PAGE + seed_below(PAGE), bit = (uint8_t)(1u << seed_below(8));
        struct gaia_digest *digest = &granted[page / PIECE_PAGES * PIECE_ROOM + page % PIECE_PAGES], kept;
        struct shape shape = shapes[page % SHAPES];

        *at ^= bit;
        assert_int_equal(any_modified(pages, granted, 0, PAGES, shape), 1);
        assert_int_equal(any_modified(pages, granted, page, 1, shape), 1);
        assert_int_equal(any_modified(pages, granted, 0, page, shape), 0);
        assert_int_equal(any_modified(pages, granted, page + 1, PAGES - page - 1, shape), 0);
        kept = *digest;
        *digest = (struct gaia_digest){0, kept.high};
        assert_int_equal(any_modified(pages, granted, page, 1, shape), 1);
        *digest = (struct gaia_digest){0, 0};
        assert_int_equal(any_modified(pages, granted, 0, PAGES, shape), 0);
        *digest = kept;
        *at ^= bit;
    }
    free(pages);
}

/* A digest counts as another when either half differs. */
static void either_half_differs(void **state)
{
    struct find find = {40, pages_new(40), calloc(40, sizeof(struct gaia_digest)), calloc(2, 4),
                        calloc(3, 4)};

    (void)state;
    seed_fill(find.pages, 40 * PAGE);
    for (uint64_t i = 0; i < 40; i++)
        find.granted[i] = gaia_digest_of(find.pages + i * PAGE, PAGE);
    find.granted[3].low ^= 1;
    find.granted[39].high ^= (uint64_t)1 << 63;
    consider(&find, 1);
    find_and_check(&find, shapes[0]);
    assert_int_equal(find.modified[0], 1u << 3);
    assert_int_equal(find.modified[1], 1u << 7);
    free(find.pages);
    free(find.granted);
    free(find.consider);
    free(find.modified);
}

/* --- moved pages --- */

#define MOVED 300u

/* Numbers of some of the pages, none twice, in no order; returns how many. */
static uint64_t some_pages(uint32_t pages[MOVED])
{
    uint64_t count = seed_below(MOVED + 1);

    for (uint32_t i = 0; i < MOVED; i++)
        pages[i] = i;
    for (uint32_t i = 0; i < MOVED; i++) {
        uint32_t other = (uint32_t)seed_below(MOVED), kept = pages[i];

        pages[i] = pages[other];
        pages[other] = kept;
    }
    return count;
}

static void moved_pages(void **state)
{
    uint8_t *base = pages_new(MOVED), *staging = pages_new(MOVED), *expected = pages_new(MOVED);
    uint32_t pages[MOVED], *list = pages;

    (void)state;
    for (unsigned round = 0; round < 30; round++) {
        uint64_t count = some_pages(list);
        struct shape shape = shapes[round % SHAPES];

        seed_fill(base, MOVED * PAGE / 8);
        seed_fill(staging, MOVED * PAGE / 8);
        memcpy(expected, staging, MOVED * PAGE);
        for (uint64_t i = 0; i < count; i++)
            memcpy(expected + i * PAGE, base + list[i] * PAGE, PAGE);
        launch("gaia_gather", shape, (void *[]){&base, &list, &count, &staging});
        assert_memory_equal(staging, expected, MOVED * PAGE);

        seed_fill(staging, MOVED * PAGE / 8);
        memcpy(expected, base, MOVED * PAGE);
        for (uint64_t i = 0; i < count; i++)
            memcpy(expected + list[i] * PAGE, staging + i * PAGE, PAGE);
        launch("gaia_scatter", shape, (void *[]){&base, &list, &count, &staging});
        assert_memory_equal(base, expected, MOVED * PAGE);

        count = some_pages(list);
        for (uint64_t i = 0; i < count; i++)
            memset(expected + list[i] * PAGE, 0, PAGE);
        launch("gaia_zero_pages", shape, (void *[]){&base, &list, &count});
        assert_memory_equal(base, expected, MOVED * PAGE);
    }
    free(base);
    free(staging);
    free(expected);
}

/* Bytes of `fresh` that differ from `old` are stored, whatever is there now, and no others: those are what a
 * kernel has made of them since. */
static void patched_pages(void **state)
{
    uint8_t *base = pages_new(MOVED), *old = pages_new(MOVED), *fresh = pages_new(MOVED);
    uint8_t *expected = pages_new(MOVED);
    uint32_t pages[MOVED], *list = pages;
    struct gaia_digest granted[MOVED], *grant;

    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        struct shape shape = shapes[s];
        uint64_t count = some_pages(list);
        bool listed[MOVED] = {false};

        grant = s % 3 ? granted : NULL;
        memset(granted, 0x5a, sizeof granted);
        seed_fill(base, MOVED * PAGE / 8);
        seed_fill(old, MOVED * PAGE / 8);
        memcpy(fresh, old, MOVED * PAGE);
        memcpy(expected, base, MOVED * PAGE);
        for (uint64_t i = 0; i < count; i++) {
            for (unsigned n = 0; n < i * 7 % 200; n++) { /* none, few, many; runs and single bytes */
                uint32_t at = (uint32_t)seed_next() % PAGE, length = 1 + (uint32_t)seed_next() % 20;
                for (uint32_t b = at; b < at + length && b < PAGE; b++) {
                    fresh[i * PAGE + b] = (uint8_t)(old[i * PAGE + b] + 1 + seed_next() % 255);
                    expected[list[i] * PAGE + b] = fresh[i * PAGE + b];
                }
            }
        }
        launch("gaia_patch", shape, (void *[]){&base, &list, &count, &old, &fresh, &grant});
        assert_memory_equal(base, expected, MOVED * PAGE);
        for (uint64_t i = 0; i < count && grant; i++) { /* of the fresh bytes, not of what is there */
            assert_true(gaia_digest_equal(granted[list[i]], gaia_digest_of(fresh + i * PAGE, PAGE)));
            listed[list[i]] = true;
        }
        for (size_t i = 0; i < MOVED; i++)
            assert_true(listed[i] ||
                        (granted[i].low == 0x5a5a5a5a5a5a5a5a && granted[i].high == granted[i].low));
    }
    free(base);
    free(old);
    free(fresh);
    free(expected);
}

/* --- the table --- */

static void launches_that_are_refused(void **state)
{
    (void)state;
    assert_int_equal(gaia_kernel_cpu("gaia_hash", NULL, 1, 32), -ENOENT);
    assert_int_equal(gaia_kernel_cpu("gaia_hash_pages", NULL, 0, 32), -EINVAL);
    assert_int_equal(gaia_kernel_cpu("gaia_hash_pages", NULL, 1, 0), -EINVAL);
    assert_int_equal(gaia_kernel_cpu("gaia_hash_pages", NULL, 1, 33), -EINVAL);
    assert_int_equal(gaia_kernel_cpu("gaia_hash_pages", NULL, 1, 1056), -EINVAL);
}

/* The PTX in the program has the kernels that the CPU has, with as many parameters. */
static void ptx_has_the_kernels(void **state)
{
    static const char *const names[] = {"gaia_hash_pages", "gaia_find_modified", "gaia_any_modified",
                                        "gaia_gather",     "gaia_scatter",       "gaia_zero_pages",
                                        "gaia_patch"};
    char text[80];

    (void)state;
    assert_int_equal(strncmp(gaia_kernels_ptx, "// SPDX", 7), 0);
    assert_non_null(strstr(gaia_kernels_ptx, ".target sm_70"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct gaia_kernel *kernel = gaia_kernel_find(names[i]);

        assert_non_null(kernel);
        (void)snprintf(text, sizeof(text), ".visible .entry %s(", names[i]);
        assert_non_null(strstr(gaia_kernels_ptx, text));
        (void)snprintf(text, sizeof(text), ".param .u64 %s_param_%u", names[i], kernel->parameters - 1);
        assert_non_null(strstr(gaia_kernels_ptx, text));
        (void)snprintf(text, sizeof(text), "%s_param_%u", names[i], kernel->parameters);
        assert_null(strstr(gaia_kernels_ptx, text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_of_random_pages),
        cmocka_unit_test(digests_of_single_bits),
        cmocka_unit_test(digests_of_structured_pages),
        cmocka_unit_test(find_modified_pages),
        cmocka_unit_test(any_modified_pages),
        cmocka_unit_test(either_half_differs),
        cmocka_unit_test(moved_pages),
        cmocka_unit_test(patched_pages),
        cmocka_unit_test(launches_that_are_refused),
        cmocka_unit_test(ptx_has_the_kernels),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
