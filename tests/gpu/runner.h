/* SPDX-License-Identifier: Apache-2.0 */
/* How the tests of device code are run: the seed ($GAIA_TEST_SEED) is printed first, an argument picks tests
 * by name, and each has a time limit, at which SIGALRM ends the program. */
#ifndef GAIAFS_TESTS_GPU_RUNNER_H
#define GAIAFS_TESTS_GPU_RUNNER_H

#include "tests/gpu/check.h"

#include <chrono>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#define LIMIT_S 150u

static uint64_t seed;

/* The end of a test whose threads note what went wrong. */
static inline void done()
{
    assert_int_equal(wrongs.exchange(0), 0);
}

static inline double seconds_since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <size_t N> static int run_limited(const CMUnitTest (&tests)[N], int argc, char **argv)
{
    CMUnitTest limited[N];
    const char *text = getenv("GAIA_TEST_SEED");

    setvbuf(stdout, nullptr, _IOLBF, 0);
    seed = text ? strtoull(text, nullptr, 0) : 20240817;
    printf("seed: GAIA_TEST_SEED=%llu\n", (unsigned long long)seed);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < N; i++) {
        limited[i] = tests[i];
        limited[i].setup_func = [](void **) {
            (void)alarm(LIMIT_S);
            return 0;
        };
    }
    return cmocka_run_group_tests(limited, nullptr, nullptr);
}

#endif
