/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that are in the host's memory are read without waiting, also on a tmpfs, which refuses RWF_NOWAIT;
 * those that are not are not brought there. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/hosted.h"

#define LENGTH 8000000u /* no whole pages, and more than a disk reads while somebody looks */

static uint8_t bytes[LENGTH], got[LENGTH];
static unsigned asked; /* with flags */

/* Instead of the C library's. */
ssize_t preadv2(int fd, const struct iovec *io, int count, off_t offset, int flags)
{
    asked++;
    return syscall(SYS_preadv2, fd, io, count, offset, 0L, flags);
}

/* A file of its own, without a name. */
static int file_in(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    for (size_t i = 0; i < LENGTH; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(pwrite(fd, bytes, LENGTH, 0), LENGTH);
    return fd;
}

static void look(int fd)
{
    memset(got, 0, sizeof got);
    assert_int_equal(hosted_read(fd, hosted_is_memory(fd), got, LENGTH, 0), LENGTH);
    assert_memory_equal(got, bytes, LENGTH);
    assert_int_equal(hosted_read(fd, hosted_is_memory(fd), got, 5000, 12345), 5000);
    assert_memory_equal(got, bytes + 12345, 5000);
    assert_int_equal(hosted_read(fd, hosted_is_memory(fd), got, 100, LENGTH - 50),
                     -EAGAIN); /* not all of it is there */
    assert_int_equal(hosted_read(fd, hosted_is_memory(fd), got, 100, LENGTH), -EAGAIN);
}

static void test_tmpfs(void **state)
{
    int fd = file_in("/dev/shm");
    struct iovec io = {got, 1};

    (void)state;
    if (preadv2(fd, &io, 1, 0, RWF_NOWAIT) == 1)
        print_message("this kernel's tmpfs takes RWF_NOWAIT\n");
    asked = 0;
    look(fd);
    assert_int_equal(asked, 0); /* no call for what would be refused */
    close(fd);
}

/* Whether the page cache has anything of it. A read that may not wait would tell, too, but has the kernel
 * read ahead, which may be done before the next one. */
static bool is_cached(int fd)
{
    unsigned char pages[LENGTH / 4096 + 1], any = 0;
    void *map = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, fd, 0);

    assert_true(map != MAP_FAILED);
    assert_int_equal(mincore(map, LENGTH, pages), 0);
    munmap(map, LENGTH);
    for (size_t i = 0; i < (LENGTH + 4095) / 4096; i++)
        any |= pages[i] & 1;
    return any;
}

static void test_disk(void **state)
{
    int fd = file_in("/var/tmp");
    struct iovec io = {got, 1};

    (void)state;
    if (preadv2(fd, &io, 1, 0, RWF_NOWAIT) != 1) {
        close(fd);
        skip(); /* a filesystem that says nothing */
    }
    asked = 0;
    look(fd);
    assert_true(hosted_is_memory(fd) ? !asked : asked);
    assert_int_equal(fsync(fd), 0);
    ssize_t n = 0;
    for (unsigned tries = 0; tries < 20 && n != -EAGAIN; tries++) { /* a disk may be faster than the look */
        assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        if (is_cached(fd)) {
            close(fd);
            skip(); /* it stays: a filesystem in memory */
        }
        n = hosted_read(fd, hosted_is_memory(fd), got, LENGTH, 0);
    }
    assert_int_equal(n, -EAGAIN);
    close(fd);
}

static void test_nothing_to_read(void **state)
{
    int fd = open("/dev/shm", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(hosted_read(fd, hosted_is_memory(fd), got, 1, 0), -EAGAIN); /* EBADF */
    close(fd);
    assert_int_equal(hosted_read(-1, hosted_is_memory(-1), got, 1, 0), -EAGAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tmpfs),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_nothing_to_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
