/* SPDX-License-Identifier: Apache-2.0 */
/* A wait with a time limit takes as long when somebody sets the clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/device.h"
#include "cache/evict.h"

/* What the program is told of the wall clock is an hour behind what the kernel waits by: a step of the clock
 * between the two. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    long error = syscall(SYS_clock_gettime, clock, now);

    if (clock == CLOCK_REALTIME)
        now->tv_sec -= 3600;
    return (int)error;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void test_wait(void **state)
{
    static struct cache_device device;

    (void)state;
    cache_device_init(&device, 0, 1 << 20, evict_policy_find("lra"));
    double start = seconds();
    cache_device_wait(&device, 60);
    double took = seconds() - start;
    if (took < 0.059 || took > 30)
        fail_msg("waited %f s, not 0.06", took);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wait)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
