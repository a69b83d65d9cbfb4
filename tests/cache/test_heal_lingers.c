/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels before Linux 6.16: what they have written back of a stale page arrives when the page is dropped,
 * and its heal done. */
#include "tests/cache/heal.inc"

#define MOST 64u /* WRITEs whose heals linger */

static bool start(bool late)
{
    if (!fixture_start(&f, 1 << 20))
        return false;
    f.cache->healer.late_kernel = late;
    map = device_map(&f, 0);
    return true;
}

/* The kernel has dropped the page and read it again when a WRITE of 'b' comes, and has a store to byte 50 of
 * it written back; that is on its way when the WRITE is answered. */
static void heal_beside_a_write_back(unsigned page, uint8_t *on_its_way)
{
    uint8_t bytes[4096];

    kernel_read(&f, page, bytes);
    map.bytes[page * 4096 + 100]++;
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, page, on_its_way);
    on_its_way[50] = 's';
    assert_int_equal(send_write(f.fd, "b", 1, (off_t)page * 4096 + AT), 1);
    assert_false(f.kernel[page].cached);
}

static void arrives(unsigned page, const uint8_t *bytes)
{
    assert_int_equal(cache_file_write(f.file, f.fd, bytes, 4096, (off_t)page * 4096, CACHE_IO_WRITEBACK),
                     4096);
}

/* A heal of page 0 lingers. */
static void begin(uint8_t *on_its_way)
{
    if (!start(true))
        skip();
    heal_beside_a_write_back(0, on_its_way);
}

/* The last write-back, and what the file has at AT then. */
static void end(const uint8_t *on_its_way, uint8_t want)
{
    arrives(0, on_its_way);
    assert_int_equal(home(0), want);
    fixture_stop(&f);
}

/* A READ of page 0. */
static void read_with(unsigned flags)
{
    struct cache_read read;
    uint8_t bytes[4096];

    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, 0, flags, &read), 4096);
    cache_file_read_end(f.file, &read);
}

static bool all_is_dropped(void)
{
    return !is_being_dropped();
}

static void test_a_write_back_that_was_on_its_way(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    arrives(0, bytes);
    assert_int_equal(home(0), 'b');
    assert_int_equal(home_byte(&f, 50), 's');
    fixture_stop(&f);
}

/* The kernel asks for the page when all that it held is written back: what is stored then is newer, also
 * where it is what the WRITE has replaced. */
static void test_a_store_after_a_read(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    arrives(0, bytes);
    assert_int_equal(read_byte(0), 'b');
    kernel_store(&f, 0, AT, 0);
    write_page_back(0);
    assert_int_equal(home(0), 0);
    fixture_stop(&f);
}

/* Nor need it ask for a page that it writes all of. */
static void test_a_store_after_a_write(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    arrives(0, bytes);
    memset(bytes, 'c', sizeof bytes);
    assert_int_equal(send_write(f.fd, bytes, sizeof bytes, 0), 4096);
    bytes[AT] = 0;
    end(bytes, 0);
}

/* A mapping of a descriptor that is open for direct I/O: its READs are no direct ones. */
static void test_a_store_through_a_direct_descriptor(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    read_with(CACHE_IO_DIRECT);
    end(bytes, 0);
}

/* The kernel keeps no page of it, and waits for nothing. */
static void test_a_direct_read(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    read_with(CACHE_IO_DIRECT | CACHE_IO_UNCACHED);
    end(bytes, 'b');
}

/* The heal was not done when its WRITE was answered: the next one may have been sent before it was, too. */
static void test_a_write_that_was_sent_before(void **state)
{
    uint8_t bytes[2 * 4096], on_its_way[4096];

    (void)state;
    if (!start(true))
        skip();
    drop_pages_of_the_kernel(2);
    kernel_read(&f, 0, on_its_way);
    pthread_mutex_lock(&f.kernel[1].lock);
    memset(bytes, 'b', sizeof bytes);
    assert_int_equal(send_write(f.fd, bytes, sizeof bytes - AT, AT), sizeof bytes - AT);
    pthread_mutex_unlock(&f.kernel[1].lock);
    wait_until(all_is_dropped);
    assert_int_equal(send_write(f.fd, "c", 1, 60), 1);
    end(on_its_way, 'b');
}

/* Of two pieces of a WRITE the first was not the one that was on its way. */
static void test_pieces_of_a_write(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(false))
        skip();
    drop_pages_of_the_kernel(2);
    kernel_read(&f, 1, bytes);
    assert_int_equal(cache_file_write(f.file, f.fd, "b", 1, AT, CACHE_IO_MORE), 1);
    assert_int_equal(send_write(f.fd, "b", 1, 4096 + AT), 1);
    assert_int_equal(read_byte(1), 'b');
    fixture_stop(&f);
}

/* What a hole has left is newer than what comes late. */
static void test_a_hole(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(true))
        skip();
    assert_int_equal(send_write(f.fd, "o", 1, AT), 1);
    heal_beside_a_write_back(0, bytes);
    assert_int_equal(bytes[AT], 'o');
    assert_int_equal(
        cache_file_fallocate(f.file, f.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096, NULL), 0);
    end(bytes, 0);
}

/* So is what another node's kernel has written back. */
static void test_another_kernel_writes_back(void **state)
{
    uint8_t bytes[4096], others[4096];

    (void)state;
    begin(bytes);
    memcpy(others, bytes, sizeof others);
    others[AT] = 'z';
    assert_int_equal(cache_file_write(f.file, f.fd, others, 4096, 0, CACHE_IO_WRITEBACK | CACHE_IO_NODE(2)),
                     4096);
    end(bytes, 'z');
}

/* That tells nothing of this one's. */
static void test_another_kernel_reads(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    read_with(CACHE_IO_NODE(2));
    end(bytes, 'b');
}

/* The memory for them is bounded: the newest linger. */
static void test_how_many_linger(void **state)
{
    static uint8_t bytes[MOST + 1][4096];

    (void)state;
    if (!start(true))
        skip();
    for (unsigned page = 0; page <= MOST; page++)
        heal_beside_a_write_back(page, bytes[page]);
    for (unsigned page = 0; page <= MOST; page++)
        arrives(page, bytes[page]);
    assert_int_equal(home(0), 0);
    for (unsigned page = 1; page <= MOST; page++)
        assert_int_equal(home(page), 'b');
    fixture_stop(&f);
}

static void test_a_prompt_kernel(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(false))
        skip();
    heal_beside_a_write_back(0, bytes);
    pthread_mutex_lock(&f.file->lock);
    assert_true(LIST_EMPTY(&f.file->window.heals));
    pthread_mutex_unlock(&f.file->lock);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_write_back_that_was_on_its_way),
        cmocka_unit_test(test_a_store_after_a_read),
        cmocka_unit_test(test_a_store_after_a_write),
        cmocka_unit_test(test_a_store_through_a_direct_descriptor),
        cmocka_unit_test(test_a_direct_read),
        cmocka_unit_test(test_a_write_that_was_sent_before),
        cmocka_unit_test(test_pieces_of_a_write),
        cmocka_unit_test(test_a_hole),
        cmocka_unit_test(test_another_kernel_writes_back),
        cmocka_unit_test(test_another_kernel_reads),
        cmocka_unit_test(test_how_many_linger),
        cmocka_unit_test(test_a_prompt_kernel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
