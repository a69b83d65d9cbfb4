/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels before Linux 6.16: what they have written back of a page that a release had them drop arrives when
 * the release is collected, and must not undo it. */
#include "tests/cache/fixture.inc"

#include "base/kernel.h"
#include "cache/kernels_internal.h"
#include "cache/nodes.h"

#define DEVICE_AT 100
#define CPU_AT 50
#define AT 200  /* of write()s */
#define OTHER 2 /* a node */

static struct fixture f;
static struct device_map map;
static struct nodes nodes;

static bool start(bool late, bool with_nodes)
{
    if (!fixture_start(&f, 1 << 20))
        return false;
    f.cache->healer.late_kernel = late;
    if (with_nodes) {
        nodes.late_kernels = late ? ~UINT64_C(0) : 0;
        f.cache->nodes = &nodes;
        assert_int_equal(dropper_start(f.cache), 0);
    }
    map = device_map(&f, 0);
    return true;
}

static void stop(void)
{
    if (f.cache->nodes)
        dropper_stop(f.cache);
    f.cache->nodes = NULL;
    fixture_stop(&f);
}

static void read_as(unsigned node, unsigned flags, uint8_t *bytes)
{
    struct cache_read read;

    assert_int_equal(cache_file_read(f.file, f.fd, bytes, 4096, 0, flags | CACHE_IO_NODE(node), &read), 4096);
    cache_file_read_end(f.file, &read);
}

static void arrives_from(unsigned node, const uint8_t *bytes)
{
    assert_int_equal(cache_file_write(f.file, f.fd, bytes, 4096, 0, CACHE_IO_WRITEBACK | CACHE_IO_NODE(node)),
                     4096);
}

/* The node's kernel has page 0, and has a store to a byte of it written back; a device releases another byte.
 * What is on its way is in bytes. */
static void release_beside_a_write_back(unsigned node, uint8_t *bytes)
{
    read_as(node, 0, bytes);
    bytes[CPU_AT] = 's';
    map.bytes[DEVICE_AT] = 'd';
    assert_int_equal(device_release(&f, &map), 0);
}

static void collect(void)
{
    assert_true(cache_file_seek(f.file, f.fd, 0, SEEK_HOLE) > 0);
}

static ssize_t send_write(const void *bytes, size_t length, off_t offset)
{
    return cache_file_write(f.file, f.fd, bytes, length, offset, 0);
}

/* With late kernels: the node's has a write-back on its way when a device has released. */
static void begin_uncollected(unsigned node, uint8_t *bytes)
{
    if (!start(true, node))
        skip();
    release_beside_a_write_back(node, bytes);
}

static void begin(uint8_t *bytes)
{
    begin_uncollected(0, bytes);
    collect();
}

/* What the file has then. */
static void end(uint8_t device, uint8_t cpu)
{
    uint8_t there[2] = {home_byte(&f, DEVICE_AT), home_byte(&f, CPU_AT)};

    stop();
    assert_int_equal(there[0], device);
    assert_int_equal(there[1], cpu);
}

static void test_a_collect(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    arrives_from(0, bytes);
    end('d', 's');
}

/* Each is compared with the one before it. */
static void test_two_on_their_way(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    arrives_from(0, bytes);
    bytes[CPU_AT] = 0;
    arrives_from(0, bytes);
    end('d', 0);
}

static void test_a_second_release(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    map.bytes[DEVICE_AT] = 'e';
    assert_int_equal(device_release(&f, &map), 0);
    collect();
    arrives_from(0, bytes);
    end('e', 's');
}

/* Before that the kernel waits for what is on its way. What it stores then is newer, also where it is what
 * was there before. */
static void test_a_store_after_a_read(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    read_as(0, 0, bytes);
    bytes[DEVICE_AT] = 0;
    arrives_from(0, bytes);
    end(0, 0);
}

static void test_a_store_after_a_write(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    memset(bytes, 'w', sizeof bytes);
    assert_int_equal(send_write(bytes, sizeof bytes, 0), 4096);
    bytes[DEVICE_AT] = 0;
    arrives_from(0, bytes);
    end(0, 'w');
}

/* Which waits for nothing. */
static void test_a_direct_read(void **state)
{
    uint8_t bytes[4096], read[4096];

    (void)state;
    begin(bytes);
    read_as(0, CACHE_IO_DIRECT | CACHE_IO_UNCACHED, read);
    arrives_from(0, bytes);
    end('d', 's');
}

/* The READ itself collects. */
static void test_the_kernels_own_read(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin_uncollected(0, bytes);
    read_as(0, 0, bytes);
    assert_int_equal(f.file->kernels.late, 0);
    bytes[DEVICE_AT] = 0;
    arrives_from(0, bytes);
    end(0, 0);
}

/* A page that no kernel has held since the last release. */
static void test_a_page_that_no_kernel_has(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin_uncollected(0, bytes);
    read_as(0, 0, bytes);
    map.bytes[DEVICE_AT] = 'e';
    assert_int_equal(device_release(&f, &map), 0);
    collect();
    assert_int_equal(f.file->kernels.late, 1);
    read_as(0, CACHE_IO_DIRECT | CACHE_IO_UNCACHED, bytes);
    pthread_mutex_lock(&f.file->lock);
    kernels_find(&f.file->kernels, 0, 0)->late_ns -= KERNEL_LATE_NS;
    kernels_tidy(f.file);
    pthread_mutex_unlock(&f.file->lock);
    map.bytes[DEVICE_AT] = 'f';
    assert_int_equal(device_release(&f, &map), 0);
    collect();
    assert_int_equal(f.file->kernels.late, 0);
    end('f', 0);
}

static void test_a_minute(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin(bytes);
    pthread_mutex_lock(&f.file->lock);
    kernels_find(&f.file->kernels, 0, 0)->late_ns -= KERNEL_LATE_NS;
    pthread_mutex_unlock(&f.file->lock);
    arrives_from(0, bytes);
    assert_int_equal(f.file->kernels.late, 0);
    end(0, 's');
}

static void test_a_prompt_kernel(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    if (!start(false, false))
        skip();
    release_beside_a_write_back(0, bytes);
    collect();
    assert_int_equal(f.file->kernels.late, 0);
    assert_int_equal(f.file->kernels.leaves.count, 0);
    end('d', 0);
}

/* Of two nodes the READ of one collects what the other's kernel has written back. */
static void test_another_nodes_read(void **state)
{
    uint8_t bytes[4096], read[4096];

    (void)state;
    begin_uncollected(OTHER, bytes);
    read_as(0, 0, read);
    assert_int_equal(read[DEVICE_AT], 'd');
    arrives_from(OTHER, bytes);
    end('d', 's');
}

/* What the other kernel has dropped it was not given again: its twin stays what it was. */
static void test_another_nodes_write(void **state)
{
    uint8_t bytes[4096];

    (void)state;
    begin_uncollected(OTHER, bytes);
    assert_int_equal(send_write("w", 1, AT), 1);
    assert_int_equal(send_write("x", 1, AT + 1), 1);
    arrives_from(OTHER, bytes);
    assert_int_equal(home_byte(&f, AT), 'w');
    assert_int_equal(home_byte(&f, AT + 1), 'x');
    end('d', 's');
}

#define MANY 5000u /* pages, of as many leaves */

/* Those of the newest are kept. */
static void test_how_many(void **state)
{
    const struct kernel_leaf *first, *last;

    (void)state;
    if (!start(true, true))
        skip();
    pthread_mutex_lock(&f.file->lock);
    for (unsigned i = 0; i < MANY; i++) {
        off_t offset = (off_t)i * LEAF_PAGES * 4096;
        assert_int_equal(kernels_given(f.file, OTHER, offset, 1), 0);
        kernels_released(f.file, i, 1);
        assert_int_equal(kernels_collect(f.file, i, 1), 0);
    }
    uint64_t late = f.file->kernels.late;
    first = kernels_find(&f.file->kernels, OTHER, 0);
    last = kernels_find(&f.file->kernels, OTHER, MANY - 1);
    assert_int_equal(first->late, 0);
    assert_int_equal(last->late, 1);
    pthread_mutex_unlock(&f.file->lock);
    stop();
    assert_int_equal(late, 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_collect),
        cmocka_unit_test(test_two_on_their_way),
        cmocka_unit_test(test_a_second_release),
        cmocka_unit_test(test_a_store_after_a_read),
        cmocka_unit_test(test_a_store_after_a_write),
        cmocka_unit_test(test_a_direct_read),
        cmocka_unit_test(test_the_kernels_own_read),
        cmocka_unit_test(test_a_page_that_no_kernel_has),
        cmocka_unit_test(test_a_minute),
        cmocka_unit_test(test_a_prompt_kernel),
        cmocka_unit_test(test_another_nodes_read),
        cmocka_unit_test(test_another_nodes_write),
        cmocka_unit_test(test_how_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
