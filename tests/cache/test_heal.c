/* SPDX-License-Identifier: Apache-2.0 */
/* WRITEs that meet an invalidation, in the orders that a race seldom gives: what their answers wait for, and
 * which of them are healed at all. (Heals that are late: test_heal_late.c.) */
#include "tests/cache/heal.inc"

#include "cache/stat.h"

#include "gpu/gaia.h"

static _Atomic int step;

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

/* Before the WRITE gives up waiting for a READ. */
static void join_writer(pthread_t writer)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += READS_WAIT_MS / 1000 - 1;
    if (pthread_timedjoin_np(writer, NULL, &until)) {
        print_error("the WRITE waits on\n");
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

static void unmap(void)
{
    device_unmap(&f, &map);
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
    write_around(unmap);
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
    assert_int_equal(f.file->index.leaves.count, 0);
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
