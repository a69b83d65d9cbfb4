/* SPDX-License-Identifier: Apache-2.0 */
/* Waits, as in test_waits.c, of touches that end in SIGBUS, or must not: beside a cut of the file (inside an
 * exposure; at the file's lock), and when reads of storage fail (by gaia_io_test_result). */
#include "tests/cache/waits.inc"

#include <setjmp.h>
#include <signal.h>

#include "cache/hosted.h"
#include "cache/stat.h"
#include "gpu/gaia.h"
#include "io/engine_internal.h"

static sigjmp_buf past_the_end;

static void on_bus_error(int number)
{
    (void)number;
    siglongjmp(past_the_end, 1);
}

/* --- inside an exposure --- */

/* The real thing: Linux finds no frame there; and when it is asked why, the file is long again. */
static int cut_and_expose(struct gaia_frames_map *frames_map, uint64_t page, uint64_t count, bool trap_stores)
{
    (void)frames_map;
    (void)page;
    (void)count;
    (void)trap_stores;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 60 * 4096), 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    return -EFAULT;
}

/* It is SIGBUS while the file is short, and never after that: the page lies before the end. */
static void test_a_touch_beside_a_cut_that_is_over(void **state)
{
    const struct sigaction action = {.sa_handler = on_bus_error};
    static volatile unsigned bus_errors;
    struct sigaction before;
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    sigaction(SIGBUS, &action, &before);
    bus_errors = 0;
    memset(bytes, 'o', sizeof bytes);
    kernel_write(&f, 64, 0, bytes, 4096);
    assert_int_equal(cache_map_advise(f.client, map.id, 0, FIXTURE_PAGES * 4096, GAIA_ADV_RANDOM), 0);
    f.expose = cut_and_expose; /* of one page: else each is tried by itself */
    if (sigsetjmp(past_the_end, 1)) {
        assert_in_range(++bus_errors, 1, 1000);
        usleep(1000);
    }
    assert_int_equal(((volatile uint8_t *)map.bytes)[64 * 4096], 0);
    sigaction(SIGBUS, &before, NULL);
    map.bytes[64 * 4096] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 64, bytes);
    assert_int_equal(bytes[0], 1);
    assert_int_equal(bytes[1], 0);
    fixture_stop(&f);
}

/* --- at the file's lock --- */

static void *touch_page_20(void *argument)
{
    (void)argument;
    if (!sigsetjmp(past_the_end, 1))
        (void)((volatile uint8_t *)map.bytes)[20 * 4096];
    returned = true;
    return NULL;
}

/* The file is cut while a touch of what is cut off is on its way: SIGBUS, as for a touch that comes later. */
static void test_a_touch_of_what_was_cut_off(void **state)
{
    const struct sigaction action = {.sa_handler = on_bus_error};
    struct sigaction before;

    (void)state;
    if (!start())
        skip();
    sigaction(SIGBUS, &action, &before);
    pthread_mutex_lock(&f.file->lock);
    begin(touch_page_20);
    assert_int_equal(ftruncate(f.fd, 10 * 4096), 0);
    file_resized(f.file, 10 * 4096);
    assert_false(returned);
    pthread_mutex_unlock(&f.file->lock);
    end();
    sigaction(SIGBUS, &before, NULL);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fixture_stop(&f);
}

/* --- reads of storage that fail --- */

static _Atomic bool fail_reads;

/* Set for good, before any engine runs: the engine's thread reads it at any time. */
static ssize_t result_of_read(bool direct, size_t length, ssize_t result)
{
    (void)direct, (void)length;
    if (!fail_reads)
        return result;
    posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED); /* or who is refused, and touches again, finds it there */
    return -EIO;
}

/* From the host's memory, where a touch would find it. Who has just read it may have it in hand yet, and then
 * the kernel keeps it. */
static void drop_page_20(void)
{
    for (unsigned tries = 0; tries < 1000; tries++) {
        assert_int_equal(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        if (!hosted_all(f.fd, hosted_of(f.fd), 20 * 4096, 4096))
            break;
        usleep(1000);
    }
}

static int acquire_page_20(uint64_t *poisonings)
{
    uint64_t changes;

    return cache_map_acquire(f.client, map.id, 20 * 4096, 4096, &changes, poisonings);
}

/* A client lets go of its poisoned pages when an acquire that succeeds counts more of them than it has heard
 * of. Who hears of it twice, as two acquires at a time may, does it twice. */
static void test_poison_is_counted(void **state)
{
    const struct sigaction action = {.sa_handler = on_bus_error};
    struct sigaction before;
    uint64_t before_it, poisonings;

    (void)state;
    if (!start())
        skip();
    drop_page_20();
    assert_int_equal(acquire_page_20(&before_it), 0);
    sigaction(SIGBUS, &action, &before);
    fail_reads = true;
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 4096, GAIA_ADV_RANDOM), 0);
    begin(touch_page_20);
    end(); /* SIGBUS: holes are not in memory, and are read */
    fail_reads = false;
    sigaction(SIGBUS, &before, NULL);
    assert_int_equal(cache_map_advise(f.client, map.id, 20 * 4096, 4096, GAIA_ADV_WILLNEED), 0);
    kernel_write(&f, 20, 10, (const uint8_t *)"w", 1);
    f.place = fixture_refuse_to_place;
    f.drop = fixture_refuse_to_drop;
    assert_int_equal(acquire_page_20(&poisonings), -ENOMEM);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(acquire_page_20(&poisonings), 0);
        assert_true(poisonings > before_it);
    }
    fixture_stop(&f);
}

static volatile bool bus_error;

static void *touch_what_fails(void *argument)
{
    (void)argument;
    bus_error = true;
    if (!sigsetjmp(past_the_end, 1)) {
        (void)((volatile uint8_t *)map.bytes)[20 * 4096];
        bus_error = false;
    }
    returned = true;
    return NULL;
}

/* A page that was write protected when its frame was dropped: its protection leaves a mark, which no poison
 * replaces (UFFDIO_POISON: EEXIST). */
static void test_a_touch_that_fails_where_a_page_was_protected(void **state)
{
    const struct sigaction action = {.sa_handler = on_bus_error};
    struct cache_device_stat stat;
    struct sigaction before;

    (void)state;
    if (!start())
        skip();
    /* Nobody reads ahead, and brings the host's page back when it is gone. */
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 4096, GAIA_ADV_RANDOM), 0);
    ((volatile uint8_t *)map.bytes)[20 * 4096] =
        0; /* as it was: nothing is to be written, and the hole stays */
    assert_int_equal(device_release(&f, &map), 0);
    do { /* it was shown before it counts as resident, and stays for so long */
        assert_int_equal(cache_map_advise(f.client, map.id, 20 * 4096, 4096, GAIA_ADV_DONTNEED), 0);
        stat = device_stat(&f, 0);
    } while (!stat.stat.evictions);
    drop_page_20();
    sigaction(SIGBUS, &action, &before);
    fail_reads = true;
    begin(touch_what_fails);
    end();
    fail_reads = false;
    sigaction(SIGBUS, &before, NULL);
    assert_true(bus_error);
    fixture_stop(&f);
}

/* Another thread of the client touches the same page, and is served in full just before. */
static int poison_late(struct gaia_frames_map *frames_map, uint64_t page, uint64_t count, uint32_t toucher)
{
    struct gaia_fault touch = {.address = (uintptr_t)map.bytes + page * 4096};
    uint8_t bytes[4096];

    fail_reads = false;
    assert_int_equal(pread(f.fd, bytes, 4096, (off_t)page * 4096), 4096); /* it is in the host's memory */
    assert_int_equal(cache_client_fault(f.client, &touch), 0);
    return plain_frames->poison(frames_map, page, count, toucher);
}

/* A touch of page 20 that fails while another thread's is served; then a store there, and its release.
 * Whether it was stored: SIGBUS loses nothing. bytes: what a read of the file says then. */
static bool touch_beside_another(uint8_t bytes[4096])
{
    const struct sigaction action = {.sa_handler = on_bus_error};
    struct sigaction before;
    volatile bool stored = false;

    sigaction(SIGBUS, &action, &before);
    f.poison = poison_late;
    begin(touch_what_fails);
    end();
    assert_null(f.poison);
    if (!sigsetjmp(past_the_end, 1)) {
        map.bytes[20 * 4096 + 5] = 's';
        assert_int_equal(device_release(&f, &map), 0);
        kernel_read(&f, 20, bytes);
        stored = true;
    }
    sigaction(SIGBUS, &before, NULL);
    return stored;
}

/* Two threads of a client touch a page; the one's touch can't be served, the other's can, and may have been
 * by the time that the page is poisoned for the first. Who is let store there then is not overheard. */
static void test_a_touch_that_fails_beside_one_that_does_not(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 4096, GAIA_ADV_RANDOM), 0);
    drop_page_20();
    fail_reads = true;
    if (touch_beside_another(bytes))
        assert_int_equal(bytes[5], 's');
    fixture_stop(&f);
}

/* The same, where the one's was not even begun: what another device has released could not be had. */
static void test_a_touch_that_is_not_begun_beside_one_that_is(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    struct device_map other = device_map(&f, 1);
    other.bytes[20 * 4096 + 7] = 'r';
    assert_int_equal(device_release(&f, &other), 0);
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 4096, GAIA_ADV_RANDOM), 0);
    f.fetch = fixture_fail_to_fetch;
    bool stored = touch_beside_another(bytes);
    assert_null(f.fetch);
    if (stored) {
        assert_int_equal(bytes[5], 's');
        assert_int_equal(bytes[7], 'r');
    }
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_touch_beside_a_cut_that_is_over),
        cmocka_unit_test(test_a_touch_of_what_was_cut_off),
        cmocka_unit_test(test_poison_is_counted),
        cmocka_unit_test(test_a_touch_that_fails_where_a_page_was_protected),
        cmocka_unit_test(test_a_touch_that_fails_beside_one_that_does_not),
        cmocka_unit_test(test_a_touch_that_is_not_begun_beside_one_that_is),
    };

    gaia_io_test_result = result_of_read;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
