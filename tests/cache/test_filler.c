/* SPDX-License-Identifier: Apache-2.0 */
/* A range that somebody waits for is placed by several threads. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/map.h"
#include "gpu/gaia.h"
#include "tests/cache/fixture.inc"

#define LENGTH ((uint64_t)FIXTURE_PAGES * 4096)

static struct fixture f;
static sem_t second_came;
static _Atomic unsigned came;
static _Atomic bool met;

/* One thread alone would wait here in vain: it is not back before the time is over. */
static uint64_t wait_for_a_second(struct gaia_frames_map *map, uint64_t page, uint64_t count,
                                  const void *bytes)
{
    struct timespec until;

    if (came++) {
        sem_post(&second_came);
    } else {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 10;
        met = sem_timedwait(&second_came, &until) == 0;
    }
    return plain_frames->place_exposed(map, page, count, bytes);
}

static void check_all(const struct device_map *map)
{
    for (unsigned page = 0; page < FIXTURE_PAGES; page++) {
        const uint8_t *bytes = map->bytes + (size_t)page * 4096;
        assert_int_equal(((volatile const uint8_t *)bytes)[7], page % 251);
        assert_int_equal(((volatile const uint8_t *)bytes)[4095], page % 249);
    }
}

static bool start(void)
{
    if (!fixture_start(&f, 4 * LENGTH))
        return false;
    for (unsigned page = 0; page < FIXTURE_PAGES; page++) { /* so that they are in the host's memory */
        const uint8_t here[2] = {(uint8_t)(page % 251), (uint8_t)(page % 249)};
        kernel_write(&f, page, 7, here, 1);
        kernel_write(&f, page, 4095, here + 1, 1);
    }
    return true;
}

static void test_several_threads_place_a_range(void **state)
{
    (void)state;
    if (!start())
        skip();
    struct device_map map = device_map(&f, 0);
    if (!f.can_trap) { /* nothing is placed in one step then */
        fixture_stop(&f);
        skip();
    }
    sem_init(&second_came, 0, 0);
    f.each_place_exposed = wait_for_a_second;
    assert_int_equal(cache_map_advise(f.client, map.id, 0, LENGTH, GAIA_ADV_WILLNEED), 0);
    assert_true(met);
    check_all(&map);
    sem_destroy(&second_came);
    fixture_stop(&f);
}

/* Ranges that begin and end anywhere, by two at a time, over what others are placing: each page once. */
static void *will_need(void *argument)
{
    const struct device_map *map = argument;
    unsigned random = (unsigned)(uintptr_t)pthread_self();

    for (int i = 0; i < 200; i++) {
        uint64_t first = (uint64_t)rand_r(&random) % FIXTURE_PAGES;
        uint64_t count = 1 + (uint64_t)rand_r(&random) % (FIXTURE_PAGES - first);
        if (cache_map_advise(f.client, map->id, first * 4096, count * 4096,
                             i % 4 ? GAIA_ADV_WILLNEED : GAIA_ADV_DONTNEED))
            return argument;
    }
    return NULL;
}

static void test_ranges_at_a_time(void **state)
{
    pthread_t others[3];
    void *failed;

    (void)state;
    if (!start())
        skip();
    struct device_map map = device_map(&f, 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&others[i], NULL, will_need, &map), 0);
    for (size_t i = 0; i < 3; i++) {
        pthread_join(others[i], &failed);
        assert_null(failed);
    }
    check_all(&map);
    fixture_stop(&f);
}

static sem_t go_on;
static _Atomic unsigned waiting;

static uint64_t wait_to_go_on(struct gaia_frames_map *map, uint64_t page, uint64_t count, const void *bytes)
{
    waiting++;
    while (sem_wait(&go_on))
        ;
    return plain_frames->place_exposed(map, page, count, bytes);
}

static struct cache_map *map_of(const struct device_map *map)
{
    pthread_mutex_lock(&f.client->lock);
    struct cache_map *found = maps_by_id(&f.client->maps, map->id);
    pthread_mutex_unlock(&f.client->lock);
    return found;
}

static void *close_map(void *argument)
{
    struct device_map *map = argument;

    assert_int_equal(cache_map_close(f.client, map->id), 0);
    return NULL;
}

/* What is to be placed ahead for a map is behind what others have queued, which takes its time. Who unmaps
 * waits for none of this. */
static void test_who_unmaps_waits_for_no_other(void **state)
{
    struct timespec until;
    pthread_t closer;

    (void)state;
    if (!start())
        skip();
    struct device_map slow = device_map(&f, 0), gone = device_map(&f, 1);
    if (!f.can_trap) {
        fixture_stop(&f);
        skip();
    }
    sem_init(&go_on, 0, 0);
    f.each_place_exposed = wait_to_go_on;
    unsigned threads = f.cache->filler.started;
    for (unsigned page = 0; page < 2 * threads; page++)
        filler_ahead(map_of(&slow), page, 1);
    for (unsigned tries = 0; waiting < threads && tries < 10000; tries++)
        usleep(1000);
    assert_int_equal(waiting, threads); /* all of them */
    filler_ahead(map_of(&gone), 0, FIXTURE_PAGES);
    assert_int_equal(f.cache->filler.length, threads + FIXTURE_PAGES / STAGE_PAGES);
    assert_int_equal(pthread_create(&closer, NULL, close_map, &gone), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    int late = pthread_timedjoin_np(closer, NULL, &until);
    unsigned left = f.cache->filler.length;
    f.each_place_exposed = NULL;
    for (unsigned page = 0; page < 2 * threads; page++)
        sem_post(&go_on);
    if (late)
        pthread_join(closer, NULL);
    assert_int_equal(late, 0);
    assert_int_equal(left, threads); /* the other's stay */
    check_all(&slow);
    fixture_stop(&f);
    sem_destroy(&go_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_several_threads_place_a_range),
        cmocka_unit_test(test_ranges_at_a_time),
        cmocka_unit_test(test_who_unmaps_waits_for_no_other),
    };

    alarm(240);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
