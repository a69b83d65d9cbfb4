/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them, against what they mean; and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/size.h"

static void test_what_is_a_size(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"1", 1},
                 {"4096", 4096},
                 {"64M", UINT64_C(64) << 20},
                 {"64m", UINT64_C(64) << 20},
                 {"3K", 3 << 10},
                 {"7g", UINT64_C(7) << 30},
                 {"2T", UINT64_C(2) << 40},
                 {"18446744073709551615", UINT64_MAX},
                 {"16777215T", UINT64_C(16777215) << 40}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_true(size_parse(sizes[i].text) == sizes[i].bytes);
}

static void test_what_is_none(void **state)
{
    static const char *const texts[] = {"",
                                        "0",
                                        "0M",
                                        "M",
                                        "-1",
                                        "+1",
                                        " 1",
                                        "1 M",
                                        "1 ",
                                        "64X",
                                        "64MB",
                                        "64MiB",
                                        "64M\n",
                                        "1.5M",
                                        "0x10",
                                        "1\x0d",
                                        "18446744073709551616",
                                        "16777216T"};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_true(size_parse(texts[i]) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_a_size),
                                       cmocka_unit_test(test_what_is_none)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
