/* SPDX-License-Identifier: Apache-2.0 */
/* The digest, which comes from the library's vector code, against published answers and against xxHash's
 * scalar code, which is compiled in here: in one call and streamed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#define XXH_VECTOR 0 /* XXH_SCALAR */
#include <xxhash.h>

#include "consistency/digest.h"
#include "consistency/page.h"
#include "tests/consistency/seed.h"

static uint8_t page[GAIA_PAGE_SIZE + 64];

/* The pseudorandom bytes over which xxHash publishes its answers: the top bytes of 2654435761 times the
 * powers of 11400714785074694797 (the command line tool's self-test). */
static void fill_as_published(uint8_t *bytes, size_t n)
{
    uint64_t x = 2654435761u;

    for (size_t i = 0; i < n; i++, x *= 11400714785074694797u)
        bytes[i] = (uint8_t)(x >> 56);
}

static struct gaia_digest scalar_digest(const void *bytes, size_t n)
{
    XXH128_hash_t hash = XXH3_128bits(bytes, n);

    return (struct gaia_digest){.low = hash.low64, .high = hash.high64};
}

/* Fed in pieces of random lengths. */
static struct gaia_digest streamed_digest(const uint8_t *bytes, size_t n)
{
    XXH3_state_t *state = XXH3_createState();
    XXH128_hash_t hash;
    size_t done = 0;

    assert_non_null(state);
    assert_int_equal(XXH3_128bits_reset(state), XXH_OK);
    while (done < n) {
        size_t piece = 1 + seed_below(n - done);

        assert_int_equal(XXH3_128bits_update(state, bytes + done, piece), XXH_OK);
        done += piece;
    }
    hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return (struct gaia_digest){.low = hash.low64, .high = hash.high64};
}

static void check_equal(struct gaia_digest got, struct gaia_digest expected)
{
    assert_int_equal(got.low, expected.low);
    assert_int_equal(got.high, expected.high);
    assert_true(gaia_digest_equal(got, expected));
}

static void test_published(void **state)
{
    static const struct {
        size_t n;
        struct gaia_digest digest;
    } answers[] = {
        {0, {0x6001c324468d497f, 0x99aa06d3014798d8}},    {1, {0xc44bdff4074eecdb, 0xa6cd5e9392000f6a}},
        {6, {0x3e7039bdda43cfc6, 0x082afe0b8162d12a}},    {12, {0x061a192713f69ad9, 0x6e3efd8fc7802b18}},
        {24, {0x1e7044d28b1b901d, 0x0ce966e4678d3761}},   {222, {0xf1aebd597cec6b3a, 0x337e09641b948717}},
        {403, {0xcdeb804d65c6dea4, 0x1b6de21e332dd73d}},  {512, {0x617e49599013cb6b, 0x18d2d110dcc9bca1}},
        {2048, {0xdd59e2c3a5f038e0, 0xf736557fd47073a5}}, {2367, {0xcb37aeb9e5d361ed, 0xe89c0f6ff369b427}},
    };

    (void)state;
    fill_as_published(page, sizeof(page));
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        check_equal(gaia_digest_of(page, answers[i].n), answers[i].digest);
}

static void test_lengths(void **state)
{
    (void)state;
    seed_fill(page, sizeof(page));
    for (size_t n = 0; n <= GAIA_PAGE_SIZE; n++) {
        const uint8_t *bytes = page + n % 64;
        struct gaia_digest digest = gaia_digest_of(bytes, n);

        check_equal(digest, scalar_digest(bytes, n));
        check_equal(digest, streamed_digest(bytes, n));
    }
}

/* No single bit of a page goes unseen, and the bytes past the end of a short one do not matter. */
static void test_bits(void **state)
{
    struct gaia_digest before, tail;

    (void)state;
    seed_fill(page, sizeof(page));
    before = gaia_digest_of(page, GAIA_PAGE_SIZE);
    for (size_t bit = 0; bit < GAIA_PAGE_SIZE * 8; bit++) {
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(gaia_digest_equal(before, gaia_digest_of(page, GAIA_PAGE_SIZE)));
        page[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    check_equal(gaia_digest_of(page, GAIA_PAGE_SIZE), before);

    tail = gaia_digest_of(page, 1000);
    page[1000]++;
    check_equal(gaia_digest_of(page, 1000), tail);
}

static void test_equal_needs_both_halves(void **state)
{
    struct gaia_digest a = {.low = 1, .high = 2}, b = {.low = 1, .high = 3}, c = {.low = 0, .high = 2};

    (void)state;
    assert_true(gaia_digest_equal(a, a));
    assert_false(gaia_digest_equal(a, b));
    assert_false(gaia_digest_equal(a, c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_equal_needs_both_halves),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
