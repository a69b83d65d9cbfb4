/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that are in the host's memory are read without waiting, also on a tmpfs and on an overlay, which
 * refuse RWF_NOWAIT; those that are not are not brought there. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
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

static void fill(int fd)
{
    for (size_t i = 0; i < LENGTH; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(pwrite(fd, bytes, LENGTH, 0), LENGTH);
}

/* A file of its own, without a name. */
static int file_in(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    fill(fd);
    return fd;
}

static void look(int fd)
{
    memset(got, 0, sizeof got);
    assert_int_equal(hosted_read(fd, hosted_of(fd), got, LENGTH, 0), LENGTH);
    assert_memory_equal(got, bytes, LENGTH);
    assert_int_equal(hosted_read(fd, hosted_of(fd), got, 5000, 12345), 5000);
    assert_memory_equal(got, bytes + 12345, 5000);
    assert_int_equal(hosted_read(fd, hosted_of(fd), got, 100, LENGTH - 50),
                     -EAGAIN); /* not all of it is there */
    assert_int_equal(hosted_read(fd, hosted_of(fd), got, 100, LENGTH), -EAGAIN);
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
    assert_true(hosted_of(fd) == HOSTED_CACHED ? asked : !asked);
    assert_int_equal(fsync(fd), 0);
    ssize_t n = 0;
    for (unsigned tries = 0; tries < 20 && n != -EAGAIN; tries++) { /* a disk may be faster than the look */
        assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        if (is_cached(fd)) {
            close(fd);
            skip(); /* it stays: a filesystem in memory */
        }
        n = hosted_read(fd, hosted_of(fd), got, LENGTH, 0);
    }
    assert_int_equal(n, -EAGAIN);
    close(fd);
}

/* A folder of two layers below `top`, which is where the process is then. What is mounted goes with it. */
static bool layer(char *top)
{
    return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) && mkdtemp(top) &&
           !chdir(top) && !mkdir("lower", 0700) && !mkdir("upper", 0700) && !mkdir("work", 0700) &&
           !mkdir("both", 0700) &&
           !mount("overlay", "both", "overlay", 0, "lowerdir=lower,upperdir=upper,workdir=work");
}

/* Its file's pages are those of the layer's. */
static void test_overlay(void **state)
{
    char top[] = "/var/tmp/gaiafs-hosted-XXXXXX";
    bool is_layered = layer(top), stays = false;

    (void)state;
    if (is_layered) {
        int fd = open("both/f", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        fill(fd);
        asked = 0;
        look(fd);
        assert_int_equal(asked, 0);
        assert_true(hosted_all(fd, hosted_of(fd), 12345, LENGTH - 12345));
        assert_int_equal(fsync(fd), 0);
        assert_int_equal(posix_fadvise(fd, LENGTH / 4, 0, POSIX_FADV_DONTNEED), 0);
        stays = hosted_all(fd, hosted_of(fd), LENGTH - 1, 1); /* on a filesystem in memory */
        assert_true(stays || !hosted_all(fd, hosted_of(fd), 0, LENGTH));
        assert_true(stays || !hosted_all(fd, hosted_of(fd), 0, LENGTH / 2)); /* in one look */
        assert_true(hosted_all(fd, hosted_of(fd), 0, 4096));
        close(fd);
        assert_int_equal(umount("both"), 0);
        assert_true(!unlink("upper/f") && !rmdir("work/work"));
    }
    assert_int_equal(chdir("/"), 0);
    for (const char *const *name = (const char *const[]){"lower", "upper", "work", "both", "", NULL}; *name;
         name++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", top, *name);
        rmdir(path);
    }
    if (!is_layered)
        skip();
}

static void test_nothing_to_read(void **state)
{
    int fd = open("/dev/shm", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(hosted_read(fd, hosted_of(fd), got, 1, 0), -EAGAIN); /* EBADF */
    close(fd);
    assert_int_equal(hosted_read(-1, hosted_of(-1), got, 1, 0), -EAGAIN);
}

/* Of cachestat(2). Of several the strictest counts. */
static bool answer_with(unsigned action)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 451, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};

    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int ask_without_cachestat(int fd, unsigned error)
{
    if (!answer_with(SECCOMP_RET_ERRNO | error))
        return 77;
    if (!hosted_all(fd, HOSTED_CACHED, 0, LENGTH) || !answer_with(SECCOMP_RET_KILL_PROCESS))
        return 1;
    return hosted_all(fd, HOSTED_CACHED, 0, LENGTH) ? 0 : 2;
}

/* How a child has ended for which cachestat() gave this error once, and is not to be called any more. */
static int status_without_cachestat(int fd, unsigned error)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(ask_without_cachestat(fd, error));
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Linux before 6.5 is asked once. Another error may be of this file only. */
static void test_a_kernel_that_cannot_say(void **state)
{
    int fd = file_in("/var/tmp"), status = status_without_cachestat(fd, ENOSYS);

    (void)state;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        close(fd);
        skip();
    }
    assert_int_equal(status, 0);
    assert_true(WIFSIGNALED(status_without_cachestat(fd, EBADF)));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tmpfs),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_overlay),
        cmocka_unit_test(test_nothing_to_read),
        cmocka_unit_test(test_a_kernel_that_cannot_say),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
