/* SPDX-License-Identifier: Apache-2.0 */
/* How many requests the kernel is to have in the background, on machines of which this one is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/loop.h"

static void test_background_follows_the_processors(void **state)
{
    static const struct {
        long processors;
        unsigned requests;
    } machines[] = {
        {-1, 64}, /* sysconf() does not know */
        {0, 64},   {1, 64},     {2, 64},      {16, 64},     {17, 68},
        {96, 384}, {256, 1024}, {1024, 4096}, {1025, 4096}, {INT64_MAX, 4096},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++)
        assert_int_equal(loop_background(machines[i].processors), machines[i].requests);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_background_follows_the_processors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
