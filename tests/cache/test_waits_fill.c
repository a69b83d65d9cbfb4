/* SPDX-License-Identifier: Apache-2.0 */
/* Waits, as in test_waits.c, beside a fill: it stops inside a read of storage (by gaia_io_test_result),
 * inside an exposure, or inside a placement, here or on another node. */
#include "tests/cache/waits.inc"

#include <semaphore.h>
#include <time.h>

#include "gpu/gaia.h"
#include "io/engine_internal.h"

static sem_t reading, go_on;

/* --- inside an exposure --- */

static int expose_and_cut(struct gaia_frames_map *frames_map, uint64_t page, uint64_t count, bool trap_stores)
{
    int error = plain_frames->expose(frames_map, page, count, trap_stores);

    assert_int_equal(cache_file_truncate(f.file, f.fd, 60 * 4096), 0);
    return error;
}

/* The file is cut while one leaf of a fill is exposed and the next is to come, on a kernel that can't trap
 * stores as it exposes: what was cut off gets no twin, which would be there still when the file has grown
 * again. */
static void test_a_truncation_beside_an_exposure(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    setenv("GAIA_SOFT_TRAP", "0", 1);
    bool started = start();
    unsetenv("GAIA_SOFT_TRAP");
    if (!started)
        skip();
    f.expose = expose_and_cut;
    (void)cache_map_advise(f.client, map.id, 56 * 4096, 16 * 4096,
                           GAIA_ADV_WILLNEED); /* the end of leaf 0, and more */
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    memset(bytes, 'o', sizeof bytes);
    kernel_write(&f, 64, 0, bytes, 4096);
    assert_int_equal(((volatile uint8_t *)map.bytes)[64 * 4096 + 10], 'o');
    kernel_write(&f, 64, 10, (const uint8_t *)"w", 1);
    assert_int_equal(device_release(&f, &map), 0); /* of nothing: nothing was stored */
    kernel_read(&f, 64, bytes);
    assert_int_equal(bytes[10], 'w');
    fixture_stop(&f);
}

/* --- inside a read of storage --- */

static _Atomic bool stop_next_read;

/* Set for good, before any engine runs: the engine's thread reads it at any time. */
static ssize_t result_of_read(bool direct, size_t length, ssize_t result)
{
    (void)direct, (void)length;
    if (atomic_exchange(&stop_next_read, false)) {
        sem_post(&reading);
        while (sem_wait(&go_on))
            ;
    }
    return result;
}

static uint8_t touched;

static void *touch_page_0(void *argument)
{
    (void)argument;
    touched = ((volatile uint8_t *)map.bytes)[10];
    return NULL;
}

/* A touch of page 0, which has old bytes ('o') all over, and whose read has them but has not ended. */
static pthread_t touch_slowly(void)
{
    struct timespec until;
    uint8_t bytes[4096];
    pthread_t toucher;

    memset(bytes, 'o', sizeof bytes);
    for (unsigned page = 0; page < 16; page++)
        assert_int_equal(pwrite(f.fd, bytes, sizeof bytes, (off_t)page * 4096), 4096);
    assert_int_equal(fsync(f.fd), 0);
    assert_int_equal(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    sem_init(&reading, 0, 0);
    sem_init(&go_on, 0, 0);
    stop_next_read = true;
    assert_int_equal(pthread_create(&toucher, NULL, touch_page_0, NULL), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LIMIT_S;
    if (sem_timedwait(&reading, &until)) { /* a folder in memory, perhaps: nothing is ever read */
        stop_next_read = false;
        pthread_join(toucher, NULL);
        fixture_stop(&f);
        skip();
    }
    return toucher;
}

/* What is being placed was perhaps read before the write(): the acquire waits for it, and drops it. */
static void test_an_acquire_beside_a_fill(void **state)
{
    (void)state;
    if (!start())
        skip();
    pthread_t toucher = touch_slowly();
    kernel_write(&f, 0, 10, (const uint8_t *)"n", 1);
    begin(acquire);
    bool early = returned;
    sem_post(&go_on);
    pthread_join(toucher, NULL);
    end();
    assert_false(early);
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 'n');
    assert_int_equal(((volatile uint8_t *)map.bytes)[11], 'o');
    fixture_stop(&f);
}

static _Atomic uint64_t in_one_step;
static _Atomic uint8_t first_shown; /* byte 10 of what is placed in one step next */

static uint64_t note_one_step(struct gaia_frames_map *frames_map, uint64_t page, uint64_t count,
                              const void *bytes)
{
    first_shown = ((const uint8_t *)bytes)[10];
    return plain_frames->place_exposed(frames_map, page, count, bytes);
}

/* What was read before a truncation is not what the page has after it, and nobody sees it. */
static void test_a_truncation_beside_a_fill(void **state)
{
    (void)state;
    if (!start())
        skip();
    pthread_t toucher = touch_slowly();
    first_shown = 0;
    f.place_exposed = note_one_step;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 4), 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    sem_post(&go_on);
    pthread_join(toucher, NULL);
    assert_int_equal(first_shown, 0);
    assert_int_equal(touched, 0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[3], 'o');
    assert_int_equal(((volatile uint8_t *)map.bytes)[4096], 0);
    fixture_stop(&f);
}

/* --- inside a placement on another node --- */

static struct {
    struct gaia_frames_map *map;
    uint64_t page, count;
    uint8_t bytes[64 * 1024];
    bool exposes;
    struct gaia_placing *placing;
} late;

static int place_late(struct gaia_frames *frames, struct gaia_frames_map *frames_map, uint64_t page,
                      uint64_t count, const void *bytes, bool exposes, struct gaia_placing *placing)
{
    (void)frames;
    late.map = frames_map;
    late.page = page;
    late.count = count;
    late.exposes = exposes;
    late.placing = placing;
    memcpy(late.bytes, bytes, count * 4096 < sizeof late.bytes ? count * 4096 : sizeof late.bytes);
    sem_post(&reading);
    return 0;
}

/* There the bytes are shown before it is known here that they are: an acquire after a cut does not return
 * while what was cut off is still to be seen. */
static void test_an_acquire_after_a_truncation_beside_a_placement(void **state)
{
    uint8_t bytes[4096];
    pthread_t toucher;

    (void)state;
    if (!start())
        skip();
    struct gaia_frames *frames = SLIST_FIRST(&f.file->replicas)->frames;
    memset(bytes, 'o', sizeof bytes);
    for (unsigned page = 0; page < 16; page++)
        kernel_write(&f, page, 0, bytes, 4096);
    assert_int_equal(((volatile uint8_t *)map.bytes)[20 * 4096], 0);
    assert_int_equal(device_acquire(&f, &map), 0); /* nothing is out of date */
    f.place_later = place_late;
    sem_init(&reading, 0, 0);
    assert_int_equal(pthread_create(&toucher, NULL, touch_page_0, NULL), 0);
    while (sem_wait(&reading))
        ;
    assert_true(late.exposes);
    assert_int_equal(cache_file_truncate(f.file, f.fd, 0), 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    assert_int_equal(plain_frames->place(frames, late.page, late.count, late.bytes), 0);
    assert_int_equal(plain_frames->expose(late.map, late.page, late.count, true), 0);
    pthread_join(toucher, NULL); /* began before the cut */
    begin(acquire);
    bool early = returned;
    uint8_t seen = ((volatile uint8_t *)map.bytes)[10];
    late.placing->done(late.placing, 0);
    end();
    assert_true(!early || !seen);
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[4096], 0);
    fixture_stop(&f);
}

static uint64_t place_exposed_slowly(struct gaia_frames_map *frames_map, uint64_t page, uint64_t count,
                                     const void *bytes)
{
    uint64_t done = plain_frames->place_exposed(frames_map, page, count, bytes);

    in_one_step = done;
    sem_post(&reading);
    while (sem_wait(&go_on))
        ;
    return done;
}

/* The same on this node, where placed and exposed is one step: who touched goes on at once, a store waits,
 * and an acquire after a cut does, too. */
static void test_an_acquire_after_a_truncation_beside_one_step(void **state)
{
    uint8_t bytes[4096];
    pthread_t toucher;

    (void)state;
    if (!start() || !f.can_trap)
        skip();
    memset(bytes, 'o', sizeof bytes);
    for (unsigned page = 0; page < 16; page++)
        kernel_write(&f, page, 0, bytes, 4096);
    assert_int_equal(((volatile uint8_t *)map.bytes)[20 * 4096], 0);
    assert_int_equal(device_acquire(&f, &map), 0); /* nothing is out of date */
    sem_init(&reading, 0, 0);
    sem_init(&go_on, 0, 0);
    f.place_exposed = place_exposed_slowly;
    assert_int_equal(pthread_create(&toucher, NULL, touch_page_0, NULL), 0);
    while (sem_wait(&reading))
        ;
    assert_int_not_equal(in_one_step, 0);
    pthread_join(toucher, NULL); /* does not wait for what comes after it */
    assert_int_equal(touched, 'o');
    assert_int_equal(cache_file_truncate(f.file, f.fd, 0), 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    begin(acquire);
    bool early = returned;
    sem_post(&go_on);
    end();
    assert_false(early);
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 0);
    map.bytes[10] = 's';
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 0, bytes);
    assert_int_equal(bytes[10], 's');
    assert_int_equal(bytes[11], 0);
    fixture_stop(&f);
}

static void *close_map(void *argument)
{
    (void)argument;
    assert_int_equal(cache_map_close(f.client, map.id), 0);
    returned = true;
    return NULL;
}

/* After a close the client may map something else there: who is placing pages there is waited for. */
static void test_a_close_beside_a_fill(void **state)
{
    (void)state;
    if (!start())
        skip();
    pthread_t toucher = touch_slowly();
    begin(close_map);
    bool early = returned;
    sem_post(&go_on);
    pthread_join(toucher, NULL);
    end();
    assert_false(early);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_truncation_beside_an_exposure),
        cmocka_unit_test(test_an_acquire_beside_a_fill),
        cmocka_unit_test(test_a_truncation_beside_a_fill),
        cmocka_unit_test(test_an_acquire_after_a_truncation_beside_a_placement),
        cmocka_unit_test(test_an_acquire_after_a_truncation_beside_one_step),
        cmocka_unit_test(test_a_close_beside_a_fill),
    };

    gaia_io_test_result = result_of_read;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
