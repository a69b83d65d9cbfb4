/* SPDX-License-Identifier: Apache-2.0 */
/* What waits goes on, and not before it may. Each test stops the cache at one point (inside a release, by the
 * fixture's once_invalidated; inside a drop; inside an attach), lets a second thread come to where it must
 * wait, and looks. */
#include "tests/cache/waits.inc"

#include <semaphore.h>

#include "gpu/gaia.h"

static struct device_map other;
static sem_t reading, go_on;

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
    for (unsigned page = 0; page < GAIA_UNIT_PAGES; page++) /* so many that they are not renewed */
        kernel_write(&f, page, 10, (const uint8_t *)"w", 1);
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

/* --- inside an attach --- */

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

/* --- beside what takes long --- */

static _Atomic unsigned fetched;

/* Nobody else fetches meanwhile. */
static int fetch_slowly(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out)
{
    fetched++;
    usleep(MOMENT_US / 3);
    f.fetch = fetch_slowly;
    return plain_frames->fetch(frames, page, count, pages_out);
}

static void *collect(void *argument)
{
    (void)argument;
    assert_int_equal(cache_file_collect(f.file), 0);
    returned = true;
    return NULL;
}

#define LEAVES (FIXTURE_PAGES / LEAF_PAGES)

/* Of each leaf a page is there, and is fetched by the second thread. Whether a read came in between: it has
 * some tries, as on a busy machine it may get no processor just when it could. */
static bool read_beside(void *(*body)(void *argument))
{
    uint8_t bytes[4096];

    fetched = 0;
    f.fetch = fetch_slowly;
    begin(body);
    kernel_read(&f, 1, bytes);
    unsigned before = fetched;
    assert_true(before > 0);
    end();
    assert_true(fetched >= LEAVES);
    f.fetch = NULL;
    fixture_stop(&f);
    return before < LEAVES;
}

#define TRIES 6

static void expect_between(void (*prepare)(void), void *(*body)(void *argument))
{
    bool between = false;

    for (unsigned i = 0; i < TRIES && !between; i++) {
        if (!start())
            skip();
        prepare();
        between = read_beside(body);
    }
    assert_true(between);
}

static void release_leaves(void)
{
    for (unsigned leaf = 0; leaf < LEAVES; leaf++)
        map.bytes[leaf * LEAF_PAGES * 4096] = 1;
    assert_int_equal(device_release(&f, &map), 0);
}

/* A sync may have GiBs to collect: a read of something else does not wait for that. */
static void test_a_read_beside_a_collect_of_all(void **state)
{
    (void)state;
    expect_between(release_leaves, collect);
}

static void outdate_leaves(void)
{
    for (unsigned leaf = 0; leaf < LEAVES; leaf++) {
        (void)((volatile uint8_t *)map.bytes)[leaf * LEAF_PAGES * 4096];
        kernel_write(&f, leaf * LEAF_PAGES, 0, (const uint8_t *)"w", 1);
    }
}

/* Nor for an acquire with as much that is out of date. */
static void test_a_read_beside_an_acquire_that_drops_much(void **state)
{
    (void)state;
    expect_between(outdate_leaves, acquire);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_store_to_a_page_that_is_dropped),
        cmocka_unit_test(test_two_releases_of_a_page),
        cmocka_unit_test(test_a_release_that_comes_in_between),
        cmocka_unit_test(test_two_acquires),
        cmocka_unit_test(test_a_close_beside_an_attach),
        cmocka_unit_test(test_a_read_beside_a_collect_of_all),
        cmocka_unit_test(test_a_read_beside_an_acquire_that_drops_much),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
