/* SPDX-License-Identifier: Apache-2.0 */
/* Heals that are late, and what happens to the bytes of their WRITEs meanwhile. */
#include "tests/cache/heal.inc"

#include "cache/stat.h"

static _Atomic int step;

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

/* A WRITE of all of it leaves nothing of what was there before: who brings that back has stored it. */
static void test_a_write_of_the_whole_page(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!make_a_late())
        skip();
    memset(bytes, 'c', sizeof bytes);
    assert_int_equal(send_write(f.fd, bytes, sizeof bytes, 0), 4096);
    bytes[AT] = 0;
    assert_int_equal(cache_file_write(f.file, f.fd, bytes, 4096, 0, CACHE_IO_WRITEBACK), 4096);
    forget_page(0);
    finish(0);
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
    assert_int_equal(home_byte(&f, AT + 1), 'a');
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
    assert_int_equal(
        cache_file_fallocate(f.file, f.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096, NULL), 0);
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

/* What the WRITE replaces must be known: else a write-back of it could not be told from a store. */
static void test_a_home_that_cannot_be_read(void **state)
{
    char path[40];

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    drop_pages_of_the_kernel(1);
    fill_page_unknown(0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", f.fd);
    int good = dup(f.file->fd), blind = open(path, O_WRONLY);
    assert_true(good >= 0 && blind >= 0 && dup2(blind, f.file->fd) == f.file->fd);
    ssize_t refused = send_write(f.fd, "w", 1, AT), appended;
    appended = cache_file_write(f.file, f.fd, "w", 1, AT, CACHE_IO_APPEND); /* its kernel has put it there */
    uint8_t at_home = home(0);
    assert_true(dup2(good, f.file->fd) == f.file->fd);
    close(good);
    close(blind);
    ssize_t written = send_write(f.fd, "w", 1, AT);
    uint8_t then = home(0);
    fixture_stop(&f);
    assert_int_equal(refused, -EBADF);
    assert_int_equal(appended, -EBADF);
    assert_int_equal(at_home, 0);
    assert_int_equal(written, 1);
    assert_int_equal(then, 'w');
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

/* --- what the kernel shows while a heal is late --- */

/* The pages of a WRITE of 'a', from AT in the first to AT in the last. The first is locked by a READ of slow
 * storage, and would be dropped first: the heal is late. */
enum { SLOW = 2, WHOLE, LAST };

static void *write_three_pages(void *argument)
{
    static uint8_t bytes[2 * 4096];

    (void)argument;
    memset(bytes, 'a', sizeof bytes);
    assert_int_equal(send_write(f.fd, bytes, sizeof bytes, SLOW * 4096 + AT), (ssize_t)sizeof bytes);
    step = 1;
    return NULL;
}

static bool is_answered(void)
{
    return step == 1;
}

static void hold_in_page(unsigned page, uint8_t byte, size_t length)
{
    uint8_t bytes[4096];

    kernel_read(&f, page, bytes);
    pthread_mutex_lock(&f.kernel[page].data);
    memset(f.kernel[page].bytes, byte, length);
    pthread_mutex_unlock(&f.kernel[page].data);
}

/* Of the other pages the kernel has what is given. own: the last it has not got, and keeps it locked until
 * the answer. */
static void begin_late_write(pthread_t *writer_out, uint8_t has, bool own)
{
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    step = 0;
    drop_pages_of_the_kernel(LAST + 1);
    forget_page(SLOW);
    hold_in_page(WHOLE, has, 4096);
    if (!own)
        hold_in_page(LAST, has, AT);
    pthread_mutex_lock(&f.kernel[SLOW].lock);
    if (own)
        pthread_mutex_lock(&f.kernel[LAST].lock);
    pthread_create(writer_out, NULL, write_three_pages, NULL);
}

static uint8_t home_at(unsigned page, unsigned offset)
{
    return home_byte(&f, (off_t)page * 4096 + offset);
}

/* The slow READ ends, and the heal; then everybody has these in pages WHOLE and LAST. */
static void end_late_write(pthread_t writer, uint8_t whole, uint8_t last)
{
    uint8_t bytes[4096];

    pthread_join(writer, NULL);
    pthread_mutex_unlock(&f.kernel[SLOW].lock);
    usleep(50000);
    assert_int_equal(read_byte(SLOW), 'a');
    assert_int_equal(read_byte(WHOLE), whole);
    kernel_read(&f, LAST, bytes);
    assert_int_equal(bytes[AT - 1], last);
    fixture_stop(&f);
}

/* Pages that have the WRITE's bytes: what is stored there after it is newer, also where it is what was there
 * before. */
static void test_store_to_the_writes_own_pages(void **state)
{
    pthread_t writer;

    (void)state;
    begin_late_write(&writer, 'a', false);
    wait_until(is_being_dropped);
    kernel_store(&f, LAST, AT - 1, 0);
    write_page_back(LAST);
    assert_int_equal(home_at(LAST, AT - 1), 0);
    wait_until(is_answered);
    kernel_store(&f, WHOLE, AT, 0);
    write_page_back(WHOLE);
    assert_int_equal(home_at(WHOLE, AT), 0);
    end_late_write(writer, 0, 0);
}

/* A page that has what was there before the WRITE: that waits for it, but not for ever, and is not undone by
 * it. */
static void test_stale_page_is_waited_for(void **state)
{
    pthread_t writer;

    (void)state;
    begin_late_write(&writer, 0, false);
    usleep(400000);
    assert_int_equal(step, 0);
    wait_until(is_answered);
    kernel_store(&f, WHOLE, 50, 's');
    write_page_back(WHOLE);
    assert_int_equal(home_at(WHOLE, AT), 'a');
    assert_int_equal(home_at(WHOLE, 50), 's');
    end_late_write(writer, 'a', 'a');
}

/* Of several pages the last one may be locked until the answer: that waits for the others only. */
static void test_stale_page_before_the_writes_own(void **state)
{
    uint64_t heals, late;
    pthread_t writer;

    (void)state;
    begin_late_write(&writer, 0, true);
    usleep(400000);
    assert_int_equal(step, 0);
    pthread_mutex_unlock(&f.kernel[SLOW].lock);
    wait_until(is_answered);
    pthread_mutex_unlock(&f.kernel[LAST].lock);
    pthread_join(writer, NULL);
    cache_stat_heals(f.cache, &heals, &late);
    assert_int_equal(late, 0);
    fixture_stop(&f);
}

/* Kernels that show pages which are not up to date show anything in one that is being read: it is not
 * current, and what the READ had brought before the WRITE is merged. */
static struct cache_read read_of_whole;
static uint8_t read_bytes[4096];

static void end_read_of_whole(void)
{
    struct kernel_page *k = &f.kernel[WHOLE];

    pthread_mutex_lock(&k->data);
    memcpy(k->bytes, read_bytes, 4096);
    k->cached = true;
    k->locked = false;
    pthread_mutex_unlock(&k->data);
    cache_file_read_end(f.file, &read_of_whole);
}

static void begin_beside_a_read(pthread_t *writer)
{
    struct kernel_page *k = &f.kernel[WHOLE];
    uint8_t bytes[4096];

    map = device_map(&f, 0);
    step = 0;
    memset(bytes, 'o', sizeof bytes);
    for (unsigned page = SLOW; page <= LAST; page++)
        assert_int_equal(pwrite(f.fd, bytes, 4096, (off_t)page * 4096), 4096);
    drop_pages_of_the_kernel(LAST + 1);
    forget_page(WHOLE);
    forget_page(SLOW);
    f.shows_locked = true;
    pthread_mutex_lock(&f.kernel[SLOW].lock);
    pthread_mutex_lock(&k->data);
    k->locked = true;
    memset(k->bytes, 0, 4096);
    pthread_mutex_unlock(&k->data);
    assert_int_equal(cache_file_read(f.file, f.fd, read_bytes, 4096, WHOLE * 4096, 0, &read_of_whole), 4096);
    pthread_create(writer, NULL, write_three_pages, NULL);
    wait_until(is_answered);
}

static void test_page_that_is_being_read(void **state)
{
    pthread_t writer;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    begin_beside_a_read(&writer);
    end_read_of_whole();
    kernel_store(&f, WHOLE, 50, 's');
    write_page_back(WHOLE);
    assert_int_equal(home_at(WHOLE, AT), 'a');
    end_late_write(writer, 'a', 'a');
}

/* The READ ends before the kernel's answer to who looks is here, which takes longer than a READ's end counts.
 */
static _Atomic unsigned looks;
static ssize_t (*peek)(void *, void *, off_t, size_t, void *);

static ssize_t peek_slowly(void *context, void *file_context, off_t offset, size_t length, void *bytes_out)
{
    ssize_t n = peek(context, file_context, offset, length, bytes_out);

    if (offset == WHOLE * 4096 && !looks++) {
        end_read_of_whole();
        usleep(20000);
    }
    return n;
}

static void test_page_that_was_read_while_the_kernel_was_looked_into(void **state)
{
    pthread_t writer;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    looks = 0;
    peek = f.cache->host.peek;
    f.cache->host.peek = peek_slowly;
    begin_beside_a_read(&writer);
    assert_true(looks);
    kernel_store(&f, WHOLE, 50, 's');
    write_page_back(WHOLE);
    assert_int_equal(home_at(WHOLE, AT), 'a');
    end_late_write(writer, 'a', 'a');
}

static void *append_misplaced(void *argument)
{
    uint8_t bytes[100];

    (void)argument;
    memset(bytes, 'z', sizeof bytes);
    assert_int_equal(cache_file_write(f.file, f.fd, bytes, sizeof bytes, LAST * 4096 + 100, CACHE_IO_APPEND),
                     sizeof bytes);
    step = 1;
    return NULL;
}

/* Nor do they tell who has the page locked in which an append went to the wrong place: its own WRITE has,
 * which is not kept waiting as by a stale page, for 2 s. */
static void test_misplaced_append_in_a_page_of_its_own(void **state)
{
    struct kernel_page *k = &f.kernel[LAST];
    pthread_t writer;

    (void)state;
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    f.shows_locked = true;
    step = 0;
    pthread_mutex_lock(&k->lock);
    pthread_mutex_lock(&k->data);
    k->locked = true;
    memset(k->bytes + 100, 'z', 100);
    pthread_mutex_unlock(&k->data);
    pthread_create(&writer, NULL, append_misplaced, NULL);
    usleep(1500000);
    int answered = step;
    pthread_mutex_lock(&k->data);
    k->locked = false;
    pthread_mutex_unlock(&k->data);
    pthread_mutex_unlock(&k->lock);
    pthread_join(writer, NULL);
    fixture_stop(&f);
    assert_int_equal(answered, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_heals),
        cmocka_unit_test(test_two_heals_and_the_oldest_page),
        cmocka_unit_test(test_a_write_of_the_whole_page),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_store_of_what_was_there),
        cmocka_unit_test(test_another_node_reads),
        cmocka_unit_test(test_hole),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_a_home_that_cannot_be_read),
        cmocka_unit_test(test_failed_write),
        cmocka_unit_test(test_a_heal_behind_a_late_one),
        cmocka_unit_test(test_store_to_the_writes_own_pages),
        cmocka_unit_test(test_stale_page_is_waited_for),
        cmocka_unit_test(test_stale_page_before_the_writes_own),
        cmocka_unit_test(test_page_that_is_being_read),
        cmocka_unit_test(test_page_that_was_read_while_the_kernel_was_looked_into),
        cmocka_unit_test(test_misplaced_append_in_a_page_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
