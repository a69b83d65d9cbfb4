/* SPDX-License-Identifier: Apache-2.0 */
/* Frames get the length that their file has (cache/fit.h), also where it changes again while they do: one
 * thread is stopped inside the change of their length, another comes meanwhile. */
#include "cache/fit.h"
#include "tests/cache/fixture.inc"
#include "tests/cache/second.inc"

#include <semaphore.h>

#include "cache/internal.h"

static struct fixture f;
static struct device_map map;
static pthread_t first;
static sem_t resizing, go_on;
static uint8_t touched;

static bool start(void)
{
    if (!fixture_start(&f, 1 << 20))
        return false;
    map = device_map(&f, 0);
    return true;
}

static _Atomic bool stop_next_resize;

static int resize_slowly(struct gaia_frames *frames, uint64_t pages)
{
    if (atomic_exchange(&stop_next_resize, false)) {
        sem_post(&resizing);
        while (sem_wait(&go_on))
            ;
    }
    return plain_frames->resize(frames, pages);
}

static void *cut_to_10_pages(void *argument)
{
    (void)argument;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 10 * 4096), 0);
    return NULL;
}

/* A first thread changes the size, and stops where the frames' length is being changed; meanwhile somebody
 * else gives the file so many pages. */
static struct gaia_frames *resize_beside(void *(*body)(void *argument), off_t pages)
{
    static struct gaia_frames_ops slow; /* to the end: threads of the cache may be inside */
    struct gaia_frames *frames = SLIST_FIRST(&f.file->replicas)->frames;

    slow = *frames->ops;
    slow.resize = resize_slowly;
    frames->ops = &slow;
    stop_next_resize = true;
    assert_int_equal(pthread_create(&first, NULL, body, NULL), 0);
    while (sem_wait(&resizing))
        ;
    pthread_mutex_lock(&f.file->lock);
    assert_int_equal(ftruncate(f.fd, pages * 4096), 0);
    file_resized(f.file, pages * 4096);
    pthread_mutex_unlock(&f.file->lock);
    return frames;
}

static void *touch_page_100(void *argument)
{
    (void)argument;
    touched = ((volatile uint8_t *)map.bytes)[100 * 4096];
    returned = true;
    return NULL;
}

/* The file has been cut, and is long again, but its frames are to be cut yet: what was placed there now
 * would be cut off. */
static void test_a_touch_of_what_is_to_be_cut_off_yet(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    resize_beside(cut_to_10_pages, FIXTURE_PAGES);
    touched = 1;
    begin(touch_page_100);
    usleep(2500000); /* longer than who changes the size waits */
    assert_false(returned);
    sem_post(&go_on);
    end();
    assert_int_equal(touched, 0);
    assert_int_equal(pthread_join(first, NULL), 0);
    map.bytes[100 * 4096 + 1] = 2;
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 100, bytes);
    assert_int_equal(bytes[1], 2);
    fixture_stop(&f);
}

static void *grow_to_20_pages(void *argument)
{
    (void)argument;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 20 * 4096), 0);
    return NULL;
}

/* The file is cut back to what it was while its frames are made longer: they are as short as it in the end,
 * else a touch behind its end would come to the daemon again and again. */
static void test_a_cut_beside_a_growth(void **state)
{
    uint64_t length, pages;

    (void)state;
    if (!start())
        skip();
    assert_int_equal(cache_file_truncate(f.file, f.fd, 10 * 4096), 0);
    struct gaia_frames *frames = resize_beside(grow_to_20_pages, 10);
    sem_post(&go_on);
    fit_frames(f.file);
    assert_int_equal(pthread_join(first, NULL), 0);
    assert_int_equal(frames->ops->extent(frames, &length, &pages), 0);
    assert_int_equal(length, 10);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fixture_stop(&f);
}

static int refuse_to_be_short(struct gaia_frames *frames, uint64_t pages)
{
    return pages < FIXTURE_PAGES ? -ENOMEM : plain_frames->resize(frames, pages);
}

/* The file has been cut, but its frames could not be (on a node without memory, say), and is long again: what
 * was cut off is not there. `heals`: before it grows, or after. Until it is done acquires say so. */
static void cut_in_vain(bool heals)
{
    if (!start())
        skip();
    map.bytes[100 * 4096] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    f.each_resize = refuse_to_be_short;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 10 * 4096), 0);
    if (heals)
        f.each_resize = NULL;
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    if (!heals)
        assert_int_equal(device_acquire(&f, &map), -EIO);
    f.each_resize = NULL;
    assert_int_equal(device_acquire(&f, &map), 0);
    begin(touch_page_100);
    end();
    assert_int_equal(touched, 0);
    fixture_stop(&f);
}

static void test_what_could_not_be_cut_off_is_when_the_file_grows(void **state)
{
    (void)state;
    cut_in_vain(true);
}

static void test_what_could_not_be_cut_off_is_later(void **state)
{
    (void)state;
    cut_in_vain(false);
}

static int clear_nothing(struct gaia_frames *frames, uint64_t page, size_t from)
{
    (void)frames, (void)page, (void)from;
    return -ENOMEM;
}

/* What a device could not be wiped of has gone with its page: what the file has there later, and the device
 * gets anew, is not wiped for it. */
static void test_what_comes_where_something_could_not_be_wiped(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    touched = map.bytes[100 * 4096];
    f.each_clear = clear_nothing;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 100 * 4096 + 100), 0);
    f.each_clear = NULL;
    assert_int_equal(cache_file_truncate(f.file, f.fd, 100 * 4096), 0);
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(cache_file_write(f.file, f.fd, bytes, sizeof bytes, 100 * 4096, 0), sizeof bytes);
    assert_int_equal(map.bytes[100 * 4096 + 200], 'x');
    map.bytes[100 * 4096] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(map.bytes[100 * 4096 + 200], 'x');
    kernel_read(&f, 100, bytes);
    assert_int_equal(bytes[0], 1);
    assert_int_equal(bytes[200], 'x');
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_touch_of_what_is_to_be_cut_off_yet),
        cmocka_unit_test(test_a_cut_beside_a_growth),
        cmocka_unit_test(test_what_could_not_be_cut_off_is_when_the_file_grows),
        cmocka_unit_test(test_what_could_not_be_cut_off_is_later),
        cmocka_unit_test(test_what_comes_where_something_could_not_be_wiped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
