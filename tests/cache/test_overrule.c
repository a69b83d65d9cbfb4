/* SPDX-License-Identifier: Apache-2.0 */
/* cache/overrule.h, against a mask of bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/durable.h"
#include "cache/overrule.h"

#define SPACE 64u
#define CHANGES 4u
#define ROUNDS 20000u

static struct durable durable;
static struct overrule changes[CHANGES];
static bool begun[CHANGES];

/* Bytes of [offset, offset + length) that would be written. */
static void write_back(off_t offset, size_t length, bool *written_out)
{
    size_t done = 0;

    memset(written_out, 0, SPACE);
    while (done < length) {
        size_t skipped, part = overrule_next(&durable, offset + (off_t)done, length - done, &skipped);
        assert_true(skipped + part > 0 && skipped + part <= length - done);
        done += skipped;
        memset(written_out + offset + done, 1, part);
        done += part;
    }
}

static bool is_overruled(off_t at)
{
    for (unsigned i = 0; i < CHANGES; i++)
        if (begun[i] && changes[i].start <= at && at < changes[i].end)
            return true;
    return false;
}

static void test_random_changes(void **state)
{
    bool written[SPACE];

    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = (unsigned)rand() % CHANGES;
        if (begun[i] && rand() % 2) {
            overrule_end(&changes[i], &durable);
            begun[i] = false;
        } else {
            off_t start = begun[i] ? changes[i].start : rand() % (off_t)SPACE;
            changes[i] = begun[i] ? changes[i] : (struct overrule){0};
            overrule_begin(&changes[i], &durable, start, start + 1 + rand() % ((off_t)SPACE - start));
            begun[i] = true;
            assert_true(overrule_has_begun(&changes[i]));
        }
        off_t offset = rand() % (off_t)SPACE;
        size_t length = 1 + (size_t)rand() % (SPACE - (size_t)offset);
        write_back(offset, length, written);
        for (off_t at = 0; at < (off_t)SPACE; at++) {
            bool wanted = at >= offset && at < offset + (off_t)length && !is_overruled(at);
            assert_int_equal(written[at], wanted);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_changes)};
    unsigned seed = (unsigned)time(NULL);

    printf("seed %u\n", seed);
    srand(seed);
    durable_init(&durable);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (unsigned i = 0; i < CHANGES; i++)
        if (begun[i])
            overrule_end(&changes[i], &durable);
    durable_destroy(&durable);
    return failed;
}
