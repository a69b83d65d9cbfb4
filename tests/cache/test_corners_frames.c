/* SPDX-License-Identifier: Apache-2.0 */
/* Corners, as in test_corners.c: frames that a client has cut, or has filled with what nobody placed there.
 */
#include "tests/cache/corners.inc"

#include "cache/drop.h"
#include "cache/stat.h"
#include "gpu/gaia.h"

static struct device_map other;

/* What a client has cut off its frames reads as zeros, not as what was on the daemon's stack. */
static void test_frames_cut_by_the_client(void **state)
{
    struct replica *replica;
    uint8_t bytes[4096];

    (void)state;
    if (!start(1 << 20))
        skip();
    map.bytes[5 * 4096] = 1;
    replica = SLIST_FIRST(&f.file->replicas);
    assert_int_equal(replica->frames->ops->resize(replica->frames, 5), 0);
    memset(bytes, 'X', sizeof bytes);
    assert_int_equal(replica_fetch(replica, 5, bytes), 0);
    for (unsigned at = 0; at < 4096; at++)
        assert_int_equal(bytes[at], 0);

    /* Inside of a page, and of a run that is fetched at once. */
    uint8_t run[2 * 4096];
    void *const places[2] = {run, run + 4096};
    int fd;
    memset(map.bytes + 4 * 4096, 'o', 200);
    assert_int_equal(replica->frames->ops->share(replica->frames, true, 0, &fd), 0);
    assert_int_equal(ftruncate(fd, 4 * 4096 + 100), 0);
    close(fd);
    memset(run, 'X', sizeof run);
    assert_int_equal(replica_fetch_run(replica, 4, 2, places), 0);
    for (unsigned at = 0; at < sizeof run; at++)
        assert_int_equal(run[at], at < 100 ? 'o' : 0);
    assert_int_equal(replica->frames->ops->resize(replica->frames, FIXTURE_PAGES), 0);
    fixture_stop(&f);
}

static uint64_t bytes_of(int frames_fd)
{
    struct stat st;

    assert_int_equal(fstat(frames_fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void wait_until_swept(void)
{
    for (unsigned ms = 0; f.file->uses && ms < 20000; ms++)
        usleep(1000);
    assert_int_equal(f.file->uses, 0);
}

/* What a client has put into its frames beside what was placed is free when nobody maps the file any more;
 * what was placed stays, and what was stored there. */
static void test_frames_filled_by_the_client(void **state)
{
    struct cache_device_stat stat;
    struct replica *replica;
    int fd;

    (void)state;
    if (!start(1 << 20))
        skip();
    map.bytes[5 * 4096] = 1;
    map.bytes[300 * 4096 + 7] = 2;
    stat = device_stat(&f, 0);
    replica = SLIST_FIRST(&f.file->replicas);
    assert_int_equal(replica->frames->ops->share(replica->frames, true, 0, &fd), 0);
    assert_int_equal(bytes_of(fd), stat.stat.resident_bytes); /* then nobody looks for more */
    assert_int_equal(cache_surplus(f.cache), 0);
    uint64_t wanted = FIXTURE_PAGES * UINT64_C(4096), more = 100 * UINT64_C(4096);
    assert_int_equal(fallocate(fd, 0, 0, (off_t)(wanted + more)), 0);
    other = device_map(&f, 0);
    assert_int_equal(cache_map_close(f.client, map.id), 0);
    assert_int_equal(bytes_of(fd), wanted + more); /* it is mapped yet */
    assert_int_equal(cache_map_close(f.client, other.id), 0);
    wait_until_swept();
    assert_int_equal(bytes_of(fd), stat.stat.resident_bytes);
    assert_int_equal(cache_surplus(f.cache), wanted + more - stat.stat.resident_bytes);
    assert_int_equal(lseek(fd, 0, SEEK_END), wanted);
    close(fd);
    map = device_map(&f, 0);
    assert_int_equal(map.bytes[5 * 4096], 1);
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 300, 7), 2);
    fixture_stop(&f);
}

/* A frame that has bytes already, which only a client can have put there: those of the file come into it all
 * the same, and into what is placed with it. */
static void test_a_frame_filled_before_it_is_placed(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(1 << 20))
        skip();
    for (unsigned page = 0; page < 16; page++) {
        memset(bytes, 'a' + (int)page, sizeof bytes);
        kernel_write(&f, page, 0, bytes, sizeof bytes);
    }
    assert_int_equal(cache_map_advise(f.client, map.id, 0, 16 * 4096, GAIA_ADV_DONTNEED), 0);
    struct gaia_frames *frames = SLIST_FIRST(&f.file->replicas)->frames;
    memset(bytes, 'X', sizeof bytes);
    assert_int_equal(frames->ops->place(frames, 5, 1, bytes), 0);
    for (unsigned page = 0; page < 16; page++) {
        assert_int_equal(((volatile uint8_t *)map.bytes)[page * 4096], 'a' + page);
        assert_int_equal(((volatile uint8_t *)map.bytes)[page * 4096 + 4095], 'a' + page);
    }
    map.bytes[5 * 4096 + 1] = '!';
    map.bytes[15 * 4096 + 1] = '?';
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(kernel_byte(&f, 5, 1), '!');
    assert_int_equal(kernel_byte(&f, 5, 2), 'f');
    assert_int_equal(kernel_byte(&f, 15, 1), '?');
    fixture_stop(&f);
}

static uint64_t evicted;

static int evict_meanwhile(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    struct copy_pages pages = {.leaf = 0, .pages = ~UINT64_C(0)};

    assert_int_equal(drop_pages(SLIST_FIRST(&f.file->replicas), &pages, 1, DROP_ADVISED, &evicted), 0);
    return plain_frames->drop(frames, page, count);
}

/* What is evicted while the rest is freed, and what was cut off just before, nobody has filled. */
static void test_nobody_is_accused_of_what_was_placed(void **state)
{
    uint8_t byte = 1;
    int fd;

    (void)state;
    if (!start(1 << 20))
        skip();
    struct replica *replica = SLIST_FIRST(&f.file->replicas);
    map.bytes[5 * 4096] = 1;
    assert_int_equal(replica->frames->ops->share(replica->frames, true, 0, &fd), 0);
    assert_int_equal(pwrite(fd, &byte, 1, 400 * 4096), 1);
    f.drop = evict_meanwhile;
    assert_int_equal(cache_map_close(f.client, map.id), 0);
    wait_until_swept();
    assert_null(f.drop);
    assert_int_not_equal(evicted, 0);
    assert_int_equal(bytes_of(fd), 0);
    assert_int_equal(cache_surplus(f.cache), 4096);

    map = device_map(&f, 0);
    map.bytes[300 * 4096] = 1;
    pthread_mutex_lock(&f.file->lock);
    assert_int_equal(ftruncate(f.fd, 5 * 4096), 0);
    file_resized(f.file, 5 * 4096);
    pthread_mutex_unlock(&f.file->lock);
    assert_int_not_equal(bytes_of(fd), 0); /* who cut it is about to have the frames fit */
    assert_int_equal(cache_map_close(f.client, map.id), 0);
    wait_until_swept();
    assert_int_equal(bytes_of(fd), 0);
    assert_int_equal(cache_surplus(f.cache), 0);
    close(fd);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_cut_by_the_client),
        cmocka_unit_test(test_frames_filled_by_the_client),
        cmocka_unit_test(test_a_frame_filled_before_it_is_placed),
        cmocka_unit_test(test_nobody_is_accused_of_what_was_placed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
