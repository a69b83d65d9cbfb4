/* SPDX-License-Identifier: Apache-2.0 */
/* A wait with a time limit takes as long when somebody sets the clock; what soft devices may hold together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "cache/device.h"
#include "cache/evict.h"
#include "consistency/page.h"
#include "tests/consistency/seed.h"

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
    return (double)clock_now_ns() / 1e9;
}

static void test_wait(void **state)
{
    static struct cache_device device;
    struct cache_progress since = {0};

    (void)state;
    cache_device_init(&device, 0, 1 << 20, evict_policy_find("lra"));
    double start = seconds();
    cache_device_wait(&device, &since, 60);
    double took = seconds() - start;
    if (took < 0.059 || took > 30)
        fail_msg("waited %f s, not 0.06", took);
}

enum { DEVICES = 4, LIMIT = 1000, SHARE = LIMIT / DEVICES, REQUEST = 64 };

/* One alone has its whole capacity, all together no more than twice the limit (and what they began in their
 * shares), and nobody's share is ever taken by others. Against a count of all. */
static void test_pool(void **state)
{
    static struct cache_device devices[DEVICES];
    struct cache_pool pool = {.limit = LIMIT, .share = SHARE};
    uint64_t held[DEVICES] = {0}, refused = 0, most = 0;
    struct cache_progress progress;

    (void)state;
    for (unsigned i = 0; i < DEVICES; i++) {
        cache_device_init(&devices[i], i, LIMIT * GAIA_PAGE_SIZE, evict_policy_find("lra"));
        devices[i].pool = &pool;
    }
    assert_true(cache_device_try_charge(&devices[0], LIMIT, &progress));
    for (unsigned i = 1; i < DEVICES; i++)
        assert_true(cache_device_try_charge(&devices[i], SHARE, &progress));
    assert_false(cache_device_try_charge(&devices[1], SHARE + 1, &progress));
    for (unsigned i = 0; i < DEVICES; i++)
        cache_device_uncharge(&devices[i], i ? SHARE : LIMIT);
    assert_int_equal(pool.beyond, 0);
    for (unsigned round = 0; round < 200000; round++) {
        unsigned i = (unsigned)(seed_next() % DEVICES);
        uint64_t pages = 1 + seed_next() % REQUEST, beyond = 0, total = 0;
        if (seed_next() % 16 < 9) {
            bool fits = cache_device_try_charge(&devices[i], pages, &progress);
            assert_true(fits || held[i] >= SHARE);
            held[i] += fits ? pages : 0;
            refused += !fits;
        } else if (held[i]) {
            pages = pages < held[i] ? pages : held[i];
            cache_device_uncharge(&devices[i], pages);
            held[i] -= pages;
        }
        for (unsigned k = 0; k < DEVICES; k++) {
            beyond += held[k] > SHARE ? held[k] - SHARE : 0;
            total += held[k];
            assert_true(held[k] <= LIMIT && held[k] == cache_device_charged(&devices[k]));
        }
        assert_int_equal(pool.beyond, beyond);
        assert_true(total <= 2 * LIMIT + DEVICES * REQUEST);
        most = total > most ? total : most;
    }
    assert_true(refused > 1000 && most > LIMIT + LIMIT / 2);
}

/* Of its own capacity, and of what all may have beyond their shares, seven eighths; its share is its own. */
static void test_room(void **state)
{
    static struct cache_device one, two;
    struct cache_pool pool = {.limit = LIMIT, .share = SHARE};
    struct cache_progress progress;

    (void)state;
    cache_device_init(&one, 0, LIMIT * GAIA_PAGE_SIZE, evict_policy_find("lra"));
    cache_device_init(&two, 1, LIMIT * GAIA_PAGE_SIZE, evict_policy_find("lra"));
    assert_true(cache_device_has_room(&one, 875) && !cache_device_has_room(&one, 876));
    one.pool = two.pool = &pool;
    assert_true(cache_device_has_room(&one, 875) && !cache_device_has_room(&one, 876));
    assert_true(cache_device_try_charge(&two, 850, &progress)); /* 600 of them beyond its share */
    assert_true(cache_device_has_room(&two, 25) && !cache_device_has_room(&two, 26));
    assert_true(cache_device_has_room(&one, SHARE + 275) && !cache_device_has_room(&one, SHARE + 276));
    assert_true(cache_device_try_charge(&one, SHARE - 1, &progress));
    assert_true(cache_device_has_room(&one, 276) && !cache_device_has_room(&one, 277));
    pool.beyond = LIMIT;
    assert_true(cache_device_has_room(&one, 1) && !cache_device_has_room(&one, 2));
    assert_int_equal(one.charged, SHARE - 1);
}

int main(void)
{
    seed_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
