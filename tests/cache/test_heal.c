/* SPDX-License-Identifier: Apache-2.0 */
/* WRITEs that meet an invalidation, in the orders that a race seldom gives: heals that are late, and what
 * happens to their bytes meanwhile. Each test ends with one byte that must be right at home and for a reader.
 */
#include "tests/cache/fixture.inc"

#include "cache/internal.h"
#include "cache/stat.h"
#include "gpu/gaia.h"

#define AT 200u /* the byte that is looked at */

static struct fixture f;
static struct device_map map;
static _Atomic int step;

static uint8_t home(unsigned page)
{
    uint8_t byte;

    assert_int_equal(pread(f.fd, &byte, 1, (off_t)page * 4096 + AT), 1);
    return byte;
}

static uint8_t read_byte(unsigned page)
{
    uint8_t bytes[4096];

    kernel_read(&f, page, bytes);
    return bytes[AT];
}

/* The request alone: what the kernel holds is the test's business. */
static ssize_t send_write(int fd, const void *bytes, size_t length, off_t offset)
{
    return cache_file_write(f.file, fd, bytes, length, offset, 0);
}

static void wait_until(bool (*condition)(void))
{
    for (unsigned tries = 0; !condition(); tries++) {
        assert_true(tries < 5000);
        usleep(1000);
    }
}

/* Release a store in each of the first pages: the kernel drops them. */
static void drop_pages_of_the_kernel(unsigned pages)
{
    uint8_t bytes[4096];

    for (unsigned page = 0; page < pages; page++) {
        kernel_read(&f, page, bytes);
        map.bytes[page * 4096 + 100]++;
    }
    assert_int_equal(device_release(&f, &map), 0);
}

/* A is the WRITE of 'a' from AT in page 0 to the end of page 1. Page 0 was read again before it came; page 1
 * is locked by a READ of slow storage: A's heal waits for it, and A is answered before. */
static bool make_a_late(void)
{
    uint8_t bytes[8192];

    if (!fixture_start(&f, 1 << 20))
        return false;
    map = device_map(&f, 0);
    drop_pages_of_the_kernel(2);
    kernel_read(&f, 0, bytes);
    pthread_mutex_lock(&f.kernel[1].lock);
    memset(bytes, 'a', sizeof bytes);
    assert_int_equal(send_write(f.fd, bytes, 8192 - AT, AT), 8192 - AT);
    return true;
}

/* The slow READ ends, and A's heal; then everybody must agree on the byte. */
static void finish(uint8_t want)
{
    uint8_t at_home = home(0);

    pthread_mutex_unlock(&f.kernel[1].lock);
    usleep(50000);
    uint8_t read = read_byte(0);
    uint8_t last = home(0);
    fixture_stop(&f);
    assert_int_equal(at_home, want);
    assert_int_equal(read, want);
    assert_int_equal(last, want);
}

/* As the kernel does it for a hole or a truncation. */
static void forget_page(unsigned page)
{
    pthread_mutex_lock(&f.kernel[page].lock);
    pthread_mutex_lock(&f.kernel[page].data);
    f.kernel[page].cached = f.kernel[page].dirty = false;
    pthread_mutex_unlock(&f.kernel[page].data);
    pthread_mutex_unlock(&f.kernel[page].lock);
}

/* A fault of a mapping of a descriptor with O_DIRECT: such a READ does not tell that the kernel had not got
 * the page. */
static void fill_page_unknown(unsigned page)
{
    struct kernel_page *k = &f.kernel[page];
    struct cache_read read;
    uint8_t bytes[4096];

    pthread_mutex_lock(&k->lock);
    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, (off_t)page * 4096, CACHE_IO_DIRECT, &read),
                     4096);
    cache_file_read_end(f.file, &read);
    pthread_mutex_lock(&k->data);
    memcpy(k->bytes, bytes, 4096);
    k->cached = true;
    pthread_mutex_unlock(&k->data);
    k->dirty = false;
    pthread_mutex_unlock(&k->lock);
}

/* The kernel holds page 0 as it was before A: as if it were the one that A's heal waits for. */
static void hold_the_oldest_page(void)
{
    fill_page_unknown(0);
    pthread_mutex_lock(&f.kernel[0].data);
    memset(f.kernel[0].bytes + AT, 0, 4096 - AT);
    pthread_mutex_unlock(&f.kernel[0].data);
}

static void write_page_back(unsigned page)
{
    struct kernel_page *k = &f.kernel[page];

    pthread_mutex_lock(&k->lock);
    if (k->cached && k->dirty) {
        k->dirty = false;
        assert_int_equal(
            cache_file_write(f.file, f.fd, k->bytes, 4096, (off_t)page * 4096, CACHE_IO_WRITEBACK), 4096);
    }
    pthread_mutex_unlock(&k->lock);
}

/* A second WRITE over the first one's bytes, healed too, and a write-back of a page that has the first's. */
static void test_two_heals(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!make_a_late())
        skip();
    kernel_read(&f, 0, bytes);
    map.bytes[100]++;
    assert_int_equal(device_release(&f, &map), 0); /* B's bytes were in the page that this drops */
    kernel_store(&f, 0, 50, 's');
    assert_int_equal(send_write(f.fd, "b", 1, AT), 1);
    write_page_back(0);
    finish('b');
}

/* The same, and a write-back of a page that has what was there before both. */
static void test_two_heals_and_the_oldest_page(void **state)
{
    uint8_t oldest[4096];

    (void)state;
    if (!make_a_late())
        skip();
    hold_the_oldest_page();
    memcpy(oldest, f.kernel[0].bytes, sizeof oldest);
    map.bytes[100]++;
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(send_write(f.fd, "b", 1, AT), 1);
    forget_page(0);
    assert_int_equal(cache_file_write(f.file, f.fd, oldest, 4096, 0, CACHE_IO_WRITEBACK), 4096);
    finish('b');
}

/* A store through a mapping to a byte that is being healed is newer, though the rest of its page is stale. */
static void test_store(void **state)
{
    (void)state;
    if (!make_a_late())
        skip();
    hold_the_oldest_page();
    kernel_store(&f, 0, AT, 's');
    write_page_back(0);
    assert_int_equal(home(0), 's');
    uint8_t byte;
    assert_int_equal(pread(f.fd, &byte, 1, AT + 1), 1);
    assert_int_equal(byte, 'a');
    finish('s');
}

/* Also one that brings back what was there before the write(), to a page that the kernel has asked for since:
 * however late the heal is. */
static void test_store_of_what_was_there(void **state)
{
    (void)state;
    if (!make_a_late())
        skip();
    assert_int_equal(read_byte(0), 'a');
    kernel_store(&f, 0, AT, 0);
    write_page_back(0);
    finish(0);
}

/* Another node's kernel asks: that tells nothing of this one's page. */
static void test_another_node_reads(void **state)
{
    struct cache_read read;
    uint8_t bytes[4096];

    (void)state;
    if (!make_a_late())
        skip();
    hold_the_oldest_page();
    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, 0, CACHE_IO_NODE(2), &read), 4096);
    cache_file_read_end(f.file, &read);
    kernel_store(&f, 0, 50, 's');
    write_page_back(0);
    forget_page(0);
    finish('a');
}

/* Holes and truncations are newer than what is being healed. */
static void test_hole(void **state)
{
    (void)state;
    if (!make_a_late())
        skip();
    assert_int_equal(cache_file_fallocate(f.file, f.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
                     0);
    fill_page_unknown(0);
    kernel_store(&f, 0, 50, 's');
    write_page_back(0);
    finish(0);
}

static void test_truncation(void **state)
{
    (void)state;
    if (!make_a_late())
        skip();
    assert_int_equal(cache_file_truncate(f.file, f.fd, 0), 0);
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fill_page_unknown(0);
    kernel_store(&f, 0, 50, 's');
    write_page_back(0);
    finish(0);
}

/* A WRITE that fails is not newer than anything. */
static void test_failed_write(void **state)
{
    int fd;

    (void)state;
    if (!make_a_late())
        skip();
    hold_the_oldest_page();
    fd = open(f.path, O_RDONLY); /* stands for ENOSPC, EIO and the like */
    assert_true(send_write(fd, "b", 1, AT) < 0);
    close(fd);
    kernel_store(&f, 0, 50, 's');
    write_page_back(0);
    assert_int_equal(home(0), 'a');
    forget_page(0);
    finish('a');
}

/* A heal that queues behind a late one of the same file is done when it can be. */
static void test_a_heal_behind_a_late_one(void **state)
{
    (void)state;
    if (!make_a_late())
        skip();
    uint8_t bytes[4096];
    map.bytes[2 * 4096 + 100]++;
    kernel_read(&f, 2, bytes);
    assert_int_equal(device_release(&f, &map), 0);
    kernel_read(&f, 2, bytes);
    assert_int_equal(send_write(f.fd, "b", 1, 2 * 4096 + AT), 1);
    pthread_mutex_unlock(&f.kernel[1].lock);
    for (unsigned tries = 0; read_byte(2) != 'b'; tries++) {
        assert_true(tries < 1000);
        usleep(1000);
    }
    fixture_stop(&f);
}

static void *settle(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&f.file->lock);
    heal_settle(f.file);
    pthread_mutex_unlock(&f.file->lock);
    step = 1;
    return NULL;
}

/* Who tells other kernels of a new size waits for what is late. */
static void test_settle_waits_for_a_late_heal(void **state)
{
    pthread_t thread;

    (void)state;
    step = 0;
    if (!make_a_late())
        skip();
    pthread_create(&thread, NULL, settle, NULL);
    usleep(50000);
    int before = step;
    pthread_mutex_unlock(&f.kernel[1].lock);
    pthread_join(thread, NULL);
    pthread_mutex_lock(&f.file->lock);
    bool done = LIST_EMPTY(&f.file->window.heals);
    pthread_mutex_unlock(&f.file->lock);
    fixture_stop(&f);
    assert_int_equal(before, 0);
    assert_true(done);
}

static void *hold_page_0(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&f.kernel[0].lock);
    step = 1;
    usleep(30000);
    pthread_mutex_unlock(&f.kernel[0].lock);
    return NULL;
}

/* Whether page 0 is stale when the WRITE is answered; -1: the heal was late, which proves nothing. */
static int stale_after_a_write_of_two_pages(void)
{
    uint8_t bytes[8192];
    pthread_t holder;
    uint64_t heals, late;

    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    drop_pages_of_the_kernel(2);
    kernel_read(&f, 0, bytes);
    kernel_read(&f, 1, bytes);
    memset(bytes, 'a', sizeof bytes);
    pthread_mutex_lock(&f.kernel[1].data);
    memset(f.kernel[1].bytes, 'a', AT);
    pthread_mutex_unlock(&f.kernel[1].data);
    step = 0;
    pthread_create(&holder, NULL, hold_page_0, NULL);
    while (step != 1)
        usleep(50);
    assert_int_equal(send_write(f.fd, bytes, 4096, AT), 4096);
    pthread_mutex_lock(&f.kernel[0].data);
    int stale = f.kernel[0].cached;
    pthread_mutex_unlock(&f.kernel[0].data);
    pthread_join(holder, NULL);
    cache_stat_heals(f.cache, &heals, &late);
    fixture_stop(&f);
    return late ? -1 : stale;
}

/* A WRITE over two pages whose last one is fine: its answer waits all the same until the first is dropped. */
static void test_first_page_stale_last_one_fine(void **state)
{
    int stale;

    (void)state;
    for (unsigned tries = 0; (stale = stale_after_a_write_of_two_pages()) < 0; tries++)
        assert_true(tries <
                    20); /* the machine has no time for the thread that holds the page, or for the healer */
    assert_false(stale);
}

/* --- a reader that unlocks its page late --- */

static unsigned other_reads, delay_us;

static bool reader_is_late(void)
{
    return step == 1;
}

/* fuse_read_folio(): the answer is in the kernel, but the reader is not scheduled yet. */
static void *read_late(void *argument)
{
    struct kernel_page *k = &f.kernel[1];
    struct cache_read read;
    uint8_t bytes[4096], other[4096];

    (void)argument;
    pthread_mutex_lock(&k->lock);
    k->locked = true;
    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, 4096, 0, &read), 4096);
    cache_file_read_end(f.file, &read);
    for (unsigned i = 0; i < other_reads; i++) {
        assert_int_equal(cache_file_read(f.file, f.fd, other, 4096, (off_t)(100 + i) * 4096, 0, &read), 4096);
        cache_file_read_end(f.file, &read);
    }
    usleep(delay_us);
    step = 1;
    while (step != 2)
        usleep(100);
    pthread_mutex_lock(&k->data);
    memcpy(k->bytes, bytes, 4096);
    k->cached = true;
    k->locked = false;
    pthread_mutex_unlock(&k->data);
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static bool page_1_is_right(void)
{
    return read_byte(1) == 'a';
}

/* However late the reader is, and whatever else is read meanwhile: in the end the page is right, and a store
 * elsewhere in it brings nothing old back. */
static void run_late_reader(unsigned reads, unsigned us)
{
    pthread_t reader;

    other_reads = reads;
    delay_us = us;
    step = 0;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    drop_pages_of_the_kernel(2);
    pthread_create(&reader, NULL, read_late, NULL);
    wait_until(reader_is_late);
    assert_int_equal(send_write(f.fd, "a", 1, 4096 + AT), 1);
    step = 2;
    pthread_join(reader, NULL);
    wait_until(page_1_is_right);
    kernel_store(&f, 1, 50, 's');
    write_page_back(1);
    assert_int_equal(home(1), 'a');
    fixture_stop(&f);
}

static void test_late_reader(void **state)
{
    (void)state;
    run_late_reader(0, 0);
    run_late_reader(7, 0);
    run_late_reader(40, 0);
    run_late_reader(0, 20000);
}

static void *write_one_byte(void *argument)
{
    (void)argument;
    assert_int_equal(send_write(f.fd, "b", 1, AT), 1);
    step = 1;
    return NULL;
}

static void join_writer(pthread_t writer)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_timedjoin_np(writer, NULL, &until)) {
        print_error("the WRITE waits for ever\n");
        _exit(1);
    }
}

/* Its kernel has dropped the page, and reads it again. */
static void begin_read(unsigned flags, struct cache_read *read_out)
{
    uint8_t bytes[4096];

    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    step = 0;
    drop_pages_of_the_kernel(1);
    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, 0, flags, read_out), 4096);
}

/* A WRITE waits for a READ of its last page that began before it, and goes on when that ends. */
static void test_write_waits_for_a_read(void **state)
{
    struct cache_read read;
    pthread_t writer;

    (void)state;
    begin_read(0, &read);
    pthread_create(&writer, NULL, write_one_byte, NULL);
    usleep(100000);
    assert_int_equal(step, 0);
    cache_file_read_end(f.file, &read);
    join_writer(writer);
    assert_int_equal(home(0), 'b');
    fixture_stop(&f);
}

/* But not for another node's, which may stand still: its kernel is not the one that is looked at. */
static void test_write_does_not_wait_for_another_nodes_read(void **state)
{
    struct cache_read read;
    pthread_t writer;

    (void)state;
    begin_read(CACHE_IO_NODE(2), &read);
    pthread_create(&writer, NULL, write_one_byte, NULL);
    join_writer(writer);
    assert_int_equal(home(0), 'b');
    cache_file_read_end(f.file, &read);
    fixture_stop(&f);
}

/* --- the kernel's pages at the two ends of a claim --- */

static void device_unmap(void)
{
    assert_int_equal(cache_map_close(f.client, map.id), 0);
    munmap(map.bytes, FIXTURE_PAGES * 4096);
}

/* As a write() does it whose page is dropped, and read again, before its WRITE goes out. */
static void write_around(void (*drop)(void))
{
    uint8_t bytes[4096];

    kernel_read(&f, 0, bytes);
    pthread_mutex_lock(&f.kernel[0].data);
    f.kernel[0].bytes[AT] = 'a';
    pthread_mutex_unlock(&f.kernel[0].data);
    drop();
    kernel_read(&f, 0, bytes);
    assert_int_equal(bytes[AT], 0); /* it was dropped, and the WRITE is not there yet */
    assert_int_equal(send_write(f.fd, "a", 1, AT), 1);
    kernel_store(&f, 0, 50, 's');
    write_page_back(0);
    uint8_t last = home(0), read = read_byte(0);
    fixture_stop(&f);
    fixture_shared = false;
    assert_int_equal(last, 'a');
    assert_int_equal(read, 'a');
}

static void test_claim_goes(void **state)
{
    (void)state;
    fixture_shared = true;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    write_around(device_unmap);
}

static void map_it(void)
{
    map = device_map(&f, 0);
}

static void test_claim_comes(void **state)
{
    (void)state;
    fixture_shared = true;
    if (!fixture_start(&f, 1 << 20))
        skip();
    write_around(map_it);
}

/* --- what the kernel holds behind the back of the index --- */

/* Pages past the end are given to the kernel by a write() that extends the file, also when a leaf remembers
 * that the kernel dropped them before the file was cut. */
static void test_cut_and_written_again(void **state)
{
    uint8_t page[4096];

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    drop_pages_of_the_kernel(6);
    assert_int_equal(cache_file_truncate(f.file, f.fd, 2 * 4096), 0);
    for (unsigned i = 2; i < FIXTURE_PAGES; i++)
        forget_page(i);
    kernel_write(&f, 1, 0, (const uint8_t *)"w", 1);
    memset(page, 'N', sizeof page);
    for (unsigned i = 2; i < 8; i++) { /* whole pages are up to date at once */
        pthread_mutex_lock(&f.kernel[i].data);
        memcpy(f.kernel[i].bytes, page, 4096);
        f.kernel[i].cached = true;
        pthread_mutex_unlock(&f.kernel[i].data);
        assert_int_equal(send_write(f.fd, page, 4096, (off_t)i * 4096), 4096);
    }
    assert_int_equal(device_acquire(&f, &map), 0);
    assert_int_equal(map.bytes[5 * 4096 + AT], 'N');
    map.bytes[5 * 4096 + AT] = 'D';
    assert_int_equal(device_release(&f, &map), 0);
    assert_int_equal(read_byte(5), 'D');
    assert_int_equal(cache_file_truncate(f.file, f.fd, FIXTURE_PAGES * 4096), 0);
    fixture_stop(&f);
}

/* The WRITE of one byte on its way met a drop of its page, and a reader was faster: it is stale no more. */
static void write_on_its_way(unsigned page)
{
    uint8_t bytes[4096];

    kernel_read(&f, page, bytes);
    assert_int_equal(send_write(f.fd, "b", 1, (off_t)page * 4096 + AT), 1);
    assert_int_equal(read_byte(page), 'b');
}

/* A leaf that went with its last page, and is there again, knows nothing of what was read in between. */
static void test_new_leaf(void **state)
{
    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    drop_pages_of_the_kernel(1);
    assert_int_equal(cache_map_advise(f.client, map.id, 0, FIXTURE_PAGES * 4096, GAIA_ADV_DONTNEED), 0);
    assert_int_equal(f.file->index.leaves, 0);
    (void)read_byte(0);
    assert_int_equal(((volatile uint8_t *)map.bytes)[100], 1);
    write_on_its_way(0);
    fixture_stop(&f);
}

/* The window of an invalidation has its last page in it. */
static void test_last_page_of_a_window(void **state)
{
    unsigned last = LEAF_PAGES - 1;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    (void)read_byte(last);
    map.bytes[last * 4096 + 100] = 1;
    assert_int_equal(device_release(&f, &map), 0);
    write_on_its_way(last);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_heals),
        cmocka_unit_test(test_two_heals_and_the_oldest_page),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_store_of_what_was_there),
        cmocka_unit_test(test_another_node_reads),
        cmocka_unit_test(test_hole),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_failed_write),
        cmocka_unit_test(test_a_heal_behind_a_late_one),
        cmocka_unit_test(test_settle_waits_for_a_late_heal),
        cmocka_unit_test(test_first_page_stale_last_one_fine),
        cmocka_unit_test(test_late_reader),
        cmocka_unit_test(test_write_waits_for_a_read),
        cmocka_unit_test(test_write_does_not_wait_for_another_nodes_read),
        cmocka_unit_test(test_claim_goes),
        cmocka_unit_test(test_claim_comes),
        cmocka_unit_test(test_cut_and_written_again),
        cmocka_unit_test(test_new_leaf),
        cmocka_unit_test(test_last_page_of_a_window),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
