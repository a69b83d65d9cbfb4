/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that are out of date and get the new bytes where they are (cache/renew.h). */
#include "tests/cache/waits.inc"

#include "cache/stat.h"
#include "gpu/gaia.h"

/* One by one, so that nothing is placed ahead. What is shown is counted a moment later. */
static void touch_all(void)
{
    const unsigned pages = FIXTURE_PAGES / 4;

    assert_int_equal(cache_map_advise(f.client, map.id, 0, FIXTURE_PAGES * 4096, GAIA_ADV_RANDOM), 0);
    for (unsigned page = 0; page < pages; page++)
        (void)*(volatile uint8_t *)(map.bytes + page * 4096);
    while (device_stat(&f, 0).stat.bytes_in < pages * 4096)
        usleep(1000);
}

static uint8_t load(unsigned page, unsigned offset)
{
    return *(volatile uint8_t *)(map.bytes + page * 4096 + offset);
}

static void write_run(unsigned first, unsigned count)
{
    for (unsigned page = first; page < first + count; page++)
        kernel_write(&f, page, 10, (const uint8_t *)"w", 1);
}

/* No touch brings what lies alone; of a long run the first touch does. */
static void test_what_lies_alone(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start())
        skip();
    touch_all();
    write_run(3, 1);
    write_run(70, 8);
    write_run(100, 9);
    struct gaia_stat before = device_stat(&f, 0).stat;
    assert_int_equal(device_acquire(&f, &map), 0);
    struct gaia_stat after = device_stat(&f, 0).stat;
    assert_int_equal(after.drops - before.drops, 18);
    assert_int_equal(after.bytes_in - before.bytes_in, 9 * 4096);
    assert_int_equal(before.resident_bytes - after.resident_bytes, 9 * 4096);
    assert_int_equal(load(3, 10), 'w');
    for (unsigned page = 70; page < 78; page++)
        assert_int_equal(load(page, 10), 'w');
    assert_int_equal(device_stat(&f, 0).stat.faults, before.faults);
    assert_int_equal(load(100, 10), 'w');
    assert_true(device_stat(&f, 0).stat.faults > before.faults);
    map.bytes[3 * 4096 + 20] = 's'; /* trapped as before */
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 3, bytes);
    assert_int_equal(bytes[10], 'w');
    assert_int_equal(bytes[20], 's');
    fixture_stop(&f);
}

/* --- beside something else --- */

static int acquire_beside(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes)
{
    begin(acquire);
    assert_false(returned); /* what is out of date is still there */
    return plain_frames->place(frames, page, count, bytes);
}

static void test_two_acquires(void **state)
{
    (void)state;
    if (!start())
        skip();
    touch_all();
    write_run(0, 1);
    f.place = acquire_beside;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_null(f.place);
    end();
    assert_int_equal(load(0, 10), 'w');
    fixture_stop(&f);
}

static int write_beside(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes)
{
    kernel_write(&f, 0, 10, (const uint8_t *)"n", 1);
    return plain_frames->place(frames, page, count, bytes);
}

/* What is written after the bytes were read the next acquire brings. */
static void test_a_write_beside_it(void **state)
{
    (void)state;
    if (!start())
        skip();
    touch_all();
    write_run(0, 1);
    f.place = write_beside;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(load(0, 10), 'w');
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(load(0, 10), 'n');
    fixture_stop(&f);
}

static off_t grows_to;

static int cut_beside(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes)
{
    assert_int_equal(cache_file_truncate(f.file, f.fd, 4), 0);
    if (grows_to)
        assert_int_equal(cache_file_truncate(f.file, f.fd, grows_to), 0);
    return plain_frames->place(frames, page, count, bytes);
}

/* While a page is renewed whose bytes were read before. */
static void cut_and_grow(unsigned page, off_t to)
{
    if (!start())
        skip();
    touch_all();
    write_run(page, 1);
    grows_to = to;
    f.place = cut_beside;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_null(f.place);
}

/* What was read before a cut is not what the page has after it: the page with the new end, and one behind it.
 */
static void test_a_cut_beside_it(void **state)
{
    (void)state;
    for (unsigned page = 0; page <= 5; page += 5) {
        cut_and_grow(page, FIXTURE_PAGES * 4096);
        assert_int_equal(load(page, 10), 0);
        fixture_stop(&f);
    }
}

static void test_frames_end_where_the_file_does(void **state)
{
    struct replica *replica;
    uint64_t length, pages;

    (void)state;
    cut_and_grow(5, 0);
    replica = SLIST_FIRST(&f.file->replicas);
    assert_int_equal(plain_frames->extent(replica->frames, &length, &pages), 0);
    assert_int_equal(length, 1);
    fixture_stop(&f);
}

/* What can't be renewed is dropped, and brought by its next touch. */
static void test_a_page_that_cannot_be(void **state)
{
    (void)state;
    if (!start())
        skip();
    touch_all();
    write_run(0, 1);
    struct gaia_stat before = device_stat(&f, 0).stat;
    f.place = fixture_refuse_to_place;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(device_stat(&f, 0).stat.resident_bytes, before.resident_bytes - 4096);
    assert_int_equal(load(0, 10), 'w');
    fixture_stop(&f);
}

/* --- in a pause of an acquire (file_let_others_in()) --- */

#define LAST (LEAF_PAGES + 7) /* the page with the file's end */

static struct device_map other;

/* The file grows in its last page, and another device gets that: what CPUs have written is released then. */
static void *grow(void *argument)
{
    (void)argument;
    kernel_write(&f, LAST, 100, (const uint8_t *)"n", 1);
    (void)*(volatile uint8_t *)(other.bytes + LAST * 4096);
    returned = true;
    return NULL;
}

/* Of a page of the leaf before. The file's lock is held; it is let go for as long as that takes. */
static int fetch_and_let_in(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out)
{
    assert_int_equal(page, 0);
    pthread_mutex_unlock(&f.file->lock);
    begin(grow);
    end();
    pthread_mutex_lock(&f.file->lock);
    return plain_frames->fetch(frames, page, count, pages_out);
}

/* What the file has got meanwhile is not missed, as the page counts as new as that. */
static void test_a_growth_in_a_pause(void **state)
{
    (void)state;
    if (!start())
        skip();
    other = device_map(&f, 1);
    assert_int_equal(cache_file_truncate(f.file, f.fd, LAST * 4096 + 20), 0);
    load(0, 0);
    load(LAST, 0);
    write_run(0, 1);
    write_run(LAST, 1);
    f.fetch = fetch_and_let_in;
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_null(f.fetch);
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(load(LAST, 10), 'w');
    assert_int_equal(load(LAST, 100), 'n');
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_lies_alone),
        cmocka_unit_test(test_two_acquires),
        cmocka_unit_test(test_a_write_beside_it),
        cmocka_unit_test(test_a_cut_beside_it),
        cmocka_unit_test(test_frames_end_where_the_file_does),
        cmocka_unit_test(test_a_page_that_cannot_be),
        cmocka_unit_test(test_a_growth_in_a_pause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
