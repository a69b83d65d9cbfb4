/* SPDX-License-Identifier: Apache-2.0 */
/* What waits goes on, and not before it may. Each test stops the cache at one point (inside a release, by the
 * fixture's once_invalidated; inside a drop; inside a read of storage, by gaia_io_test_result; at the file's
 * lock), lets a second thread come to where it must wait, and looks. */
#include "tests/cache/fixture.inc"
#include "tests/cache/second.inc"

#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <time.h>

#include "cache/hosted.h"
#include "cache/internal.h"
#include "cache/stat.h"
#include "gpu/gaia.h"
#include "io/engine_internal.h"

static struct fixture f;
static struct device_map map, other;
static sem_t reading, go_on;

static bool start(void)
{
    returned = false;
    if (!fixture_start(&f, 1 << 20))
        return false;
    map = device_map(&f, 0);
    return true;
}

/* From the host's memory, where a touch would find it. Who has just read it may have it in hand yet, and then
 * the kernel keeps it. */
static void drop_page_20(void)
{
    for (unsigned tries = 0; tries < 1000; tries++) {
        assert_int_equal(posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        if (!hosted_all(f.fd, 20 * 4096, 4096))
            break;
        usleep(1000);
    }
}

/* --- inside a release --- */

static void *store_on_page_0(void *argument)
{
    (void)argument;
    map.bytes[11] = 2;
    returned = true;
    return NULL;
}

static void store_beside(void)
{
    begin(store_on_page_0);
    assert_false(returned); /* the page is write protected, and somebody has it in hand */
}

/* A store to a page that is on its way out waits, and is made to the page that comes after it. */
static void test_a_store_to_a_page_that_is_dropped(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    kernel_read(&f, 0, bytes);
    map.bytes[10] = 1;
    f.once_invalidated = store_beside;
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 4096, GAIA_ADV_DONTNEED), 0);
    assert_null(f.once_invalidated);
    end();
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 0, bytes);
    assert_int_equal(bytes[10], 1);
    assert_int_equal(bytes[11], 2);
    fixture_stop(&f);
}

static void *release_other(void *argument)
{
    (void)argument;
    assert_int_equal(device_release(&f, &other), 0);
    returned = true;
    return NULL;
}

static void release_beside(void)
{
    begin(release_other);
    assert_false(returned); /* the kernel may hold the page until the first release has told it */
}

static void test_two_releases_of_a_page(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    other = device_map(&f, 1);
    kernel_read(&f, 0, bytes);
    map.bytes[10] = 1;
    other.bytes[20] = 2;
    f.once_invalidated = release_beside;
    assert_int_equal(device_release(&f, &map), 0);
    assert_null(f.once_invalidated);
    end();
    kernel_read(&f, 0, bytes);
    assert_int_equal(bytes[10], 1);
    assert_int_equal(bytes[20], 2);
    fixture_stop(&f);
}

/* --- inside a drop --- */

static void *acquire(void *argument)
{
    (void)argument;
    assert_int_equal(device_acquire(&f, &map), 0);
    returned = true;
    return NULL;
}

static int drop_slowly(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    begin(acquire);
    assert_false(returned); /* what is stale is still there */
    return plain_frames->drop(frames, page, count);
}

/* A second acquire returns when what is stale is gone, though the first one has it in hand. */
static void test_two_acquires(void **state)
{
    (void)state;
    if (!start())
        skip();
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 0);
    kernel_write(&f, 0, 10, (const uint8_t *)"w", 1);
    f.drop = drop_slowly;
    assert_int_equal(device_acquire(&f, &map), 0);
    end();
    assert_int_equal(((volatile uint8_t *)map.bytes)[10], 'w');
    fixture_stop(&f);
}

/* --- inside the protection of pages that are being released --- */

static pthread_t first;
static _Atomic bool told;

static void stop_before_the_kernel_drops(void)
{
    sem_post(&reading);
    while (sem_wait(&go_on))
        ;
}

static void *release_first(void *argument)
{
    (void)argument;
    assert_int_equal(device_release(&f, &map), 0);
    return NULL;
}

static void *let_the_kernel_drop(void *argument)
{
    (void)argument;
    usleep(MOMENT_US);
    told = true;
    sem_post(&go_on);
    returned = true;
    return NULL;
}

static int protect_late(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    f.once_invalidating = stop_before_the_kernel_drops;
    assert_int_equal(pthread_create(&first, NULL, release_first, NULL), 0);
    while (sem_wait(&reading))
        ;
    assert_int_equal(pthread_create(&thread, NULL, let_the_kernel_drop, NULL), 0);
    return plain_frames->protect(frames, page, count);
}

/* Another device begins to release the same page after this one has taken its own: the kernel holds it still.
 */
static void test_a_release_that_comes_in_between(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    other = device_map(&f, 1);
    kernel_read(&f, 0, bytes);
    map.bytes[10] = 1;
    other.bytes[20] = 2;
    told = false;
    sem_init(&reading, 0, 0);
    sem_init(&go_on, 0, 0);
    f.protect = protect_late;
    assert_int_equal(device_release(&f, &other), 0);
    assert_true(told);
    end();
    pthread_join(first, NULL);
    kernel_read(&f, 0, bytes);
    assert_int_equal(bytes[10], 1);
    assert_int_equal(bytes[20], 2);
    fixture_stop(&f);
}

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

static sigjmp_buf past_the_end;

static void on_bus_error(int number)
{
    (void)number;
    siglongjmp(past_the_end, 1);
}

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

/* --- inside a read of storage --- */

static _Atomic bool stop_next_read, fail_reads;

/* Set for good, before any engine runs: the engine's thread reads it at any time. */
static ssize_t result_of_read(enum gaia_io_op op, size_t length, ssize_t result)
{
    (void)length;
    if (op != GAIA_IO_OP_READ && op != GAIA_IO_OP_READ_DIRECT)
        return result;
    if (atomic_exchange(&stop_next_read, false)) {
        sem_post(&reading);
        while (sem_wait(&go_on))
            ;
    }
    if (!fail_reads)
        return result;
    posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED); /* or who is refused, and touches again, finds it there */
    return -EIO;
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

static int place_late(struct gaia_frames_map *frames_map, uint64_t page, uint64_t count, const void *bytes,
                      bool exposes, struct gaia_placing *placing)
{
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

static int attach_slowly(struct gaia_frames *frames, const struct gaia_process *process, uint64_t address,
                         uint64_t page, uint64_t count, bool writable, bool can_trap,
                         struct gaia_frames_map **map_out)
{
    sem_post(&reading);
    while (sem_wait(&go_on))
        ;
    return plain_frames->attach(frames, process, address, page, count, writable, can_trap, map_out);
}

#define ELSEWHERE (UINT64_C(1) << 40)

static uint32_t late_id;

static void *attach_elsewhere(void *argument)
{
    (void)argument;
    assert_int_equal(cache_map_attach(f.client, late_id, ELSEWHERE), 0);
    return NULL;
}

static void *close_late(void *argument)
{
    (void)argument;
    assert_int_equal(cache_map_close(f.client, late_id), 0);
    returned = true;
    return NULL;
}

/* A map that is closed while it is being attached is not there afterwards. */
static void test_a_close_beside_an_attach(void **state)
{
    struct cache_map_request request = {.device = 0, .count = 16};
    int frames, shared;
    uint64_t chunk;
    pthread_t attacher;

    (void)state;
    if (!start())
        skip();
    request.file = f.file;
    sem_init(&reading, 0, 0);
    sem_init(&go_on, 0, 0);
    assert_int_equal(cache_map_open(f.client, &request, &late_id, &frames, &shared, &chunk), 0);
    close(frames);
    close(shared);
    f.attach = attach_slowly;
    assert_int_equal(pthread_create(&attacher, NULL, attach_elsewhere, NULL), 0);
    while (sem_wait(&reading))
        ;
    begin(close_late);
    bool early = returned;
    sem_post(&go_on);
    pthread_join(attacher, NULL);
    end();
    assert_false(early);
    assert_int_equal(cache_client_fault(f.client, &(struct gaia_fault){.address = ELSEWHERE}), -ENOENT);
    fixture_stop(&f);
}

/* --- at the file's lock --- */

static void *touch_page_20(void *argument)
{
    (void)argument;
    if (!sigsetjmp(past_the_end, 1))
        touched = ((volatile uint8_t *)map.bytes)[20 * 4096];
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
        touched = ((volatile uint8_t *)map.bytes)[20 * 4096];
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
        assert_int_equal(cache_stat_device(f.cache, 0, &stat), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_store_to_a_page_that_is_dropped),
        cmocka_unit_test(test_two_releases_of_a_page),
        cmocka_unit_test(test_a_release_that_comes_in_between),
        cmocka_unit_test(test_two_acquires),
        cmocka_unit_test(test_a_truncation_beside_an_exposure),
        cmocka_unit_test(test_a_touch_beside_a_cut_that_is_over),
        cmocka_unit_test(test_an_acquire_beside_a_fill),
        cmocka_unit_test(test_a_truncation_beside_a_fill),
        cmocka_unit_test(test_an_acquire_after_a_truncation_beside_a_placement),
        cmocka_unit_test(test_an_acquire_after_a_truncation_beside_one_step),
        cmocka_unit_test(test_a_close_beside_a_fill),
        cmocka_unit_test(test_a_close_beside_an_attach),
        cmocka_unit_test(test_a_touch_of_what_was_cut_off),
        cmocka_unit_test(test_poison_is_counted),
        cmocka_unit_test(test_a_touch_that_fails_where_a_page_was_protected),
    };

    gaia_io_test_result = result_of_read;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
