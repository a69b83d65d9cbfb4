/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of what can be read in parts only. Our own memory is such a file: a read of it comes short where a
 * page is missing, and one that begins there fails. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/read.h"

#define PAGE 4096

static void test_the_end_of_a_file(void **state)
{
    char bytes[8] = "";
    int fd = memfd_create("file", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(pwrite(fd, "gaiafs", 6, 0), 6);
    assert_int_equal(read_whole(fd, bytes, 4, 1), 4);
    assert_memory_equal(bytes, "aiaf", 4);
    assert_int_equal(read_whole(fd, bytes, sizeof bytes, 2), 4);
    assert_int_equal(read_whole(fd, bytes, sizeof bytes, 6), 0);
    assert_int_equal(read_whole(fd, bytes, 0, 0), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(read_whole(fd, bytes, sizeof bytes, 0), -EBADF);
}

/* The last page that there can be is a byte short. */
static void test_the_end_of_the_longest_file(void **state)
{
    char bytes[PAGE] = "";
    off_t last = INT64_MAX - (PAGE - 1);
    int fd = memfd_create("file", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(ftruncate(fd, INT64_MAX), 0);
    assert_int_equal(pwrite(fd, "e", 1, INT64_MAX - 1), 1);
    assert_int_equal(read_whole(fd, bytes, PAGE, last), PAGE - 1);
    assert_int_equal(bytes[PAGE - 2], 'e');
    assert_int_equal(read_whole(fd, bytes, PAGE, INT64_MAX), 0);
    close(fd);
}

static void test_a_part_that_cannot_be_read(void **state)
{
    static char bytes[3 * PAGE];
    char *memory = mmap(NULL, sizeof bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    off_t at = (off_t)(uintptr_t)memory;

    (void)state;
    assert_true(memory != MAP_FAILED && fd >= 0);
    memset(memory, 'x', sizeof bytes);
    assert_int_equal(munmap(memory + PAGE, PAGE), 0);
    assert_int_equal(pread(fd, bytes, sizeof bytes, at), PAGE); /* short, and no end */
    assert_int_equal(read_whole(fd, bytes, PAGE, at), PAGE);
    assert_int_equal(read_whole(fd, bytes, PAGE, at + 2 * PAGE), PAGE);
    assert_int_equal(read_whole(fd, bytes, sizeof bytes, at), -EIO);
    close(fd);
    munmap(memory, PAGE);
    munmap(memory + 2 * PAGE, PAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_end_of_a_file),
        cmocka_unit_test(test_the_end_of_the_longest_file),
        cmocka_unit_test(test_a_part_that_cannot_be_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
