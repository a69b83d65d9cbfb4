/* SPDX-License-Identifier: Apache-2.0 */
/* A client sees the daemon's thread until it ends, however it does, and cannot pretend. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alive.h"
#include "base/shared_page.h"

static void test_its_own_end_in_order(void **state)
{
    struct alive *alive;
    int fd;

    (void)state;
    assert_int_equal(alive_begin(&alive, &fd), 0);
    struct alive *seen = shared_page_look(fd);
    assert_non_null(seen);
    assert_true(alive_seen(alive));
    assert_true(alive_seen(seen));
    alive_end(alive, fd);
    assert_false(alive_seen(seen));
    munmap(seen, SHARED_PAGE_SIZE);
}

static void test_clients_cannot_write(void **state)
{
    struct alive *alive;
    char path[40];
    int fd;

    (void)state;
    assert_int_equal(alive_begin(&alive, &fd), 0);
    assert_ptr_equal(mmap(NULL, SHARED_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(errno, EACCES);
    assert_int_equal(ftruncate(fd, 0), -1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (geteuid()) { /* root may open anything */
        assert_int_equal(open(path, O_RDWR), -1);
        assert_int_equal(errno, EACCES);
    }
    alive_end(alive, fd);
}

struct owner {
    struct alive *alive;
    int fd;
};

static void *begin_and_return(void *argument)
{
    struct owner *owner = argument;

    assert_int_equal(alive_begin(&owner->alive, &owner->fd), 0);
    assert_true(alive_seen(owner->alive));
    return NULL;
}

/* The thread counts, not its process: descriptors may go as soon as the last one does. */
static void test_a_thread_that_ends(void **state)
{
    struct owner owner;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, begin_and_return, &owner), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(alive_seen(owner.alive));
    munmap(owner.alive, SHARED_PAGE_SIZE);
    close(owner.fd);
}

/* The page and the reading end of a pipe are seen by the parent. Whoever sees the pipe closed sees the owner
 * dead: it is let go of first. */
static void test_it_ends_before_its_descriptors(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        int ends[2], fds[2];
        struct owner *shared =
            mmap(NULL, SHARED_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        char byte;

        assert_int_equal(pipe(ends), 0);
        assert_int_equal(pipe(fds), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            alarm(20);
            close(ends[0]);
            if (alive_begin(&shared->alive, &shared->fd) || write(fds[1], "1", 1) != 1)
                _exit(1);
            for (;;)
                pause();
        }
        close(ends[1]);
        assert_int_equal(read(fds[0], &byte, 1), 1);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)child, shared->fd);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        struct alive *seen = shared_page_look(fd);
        assert_non_null(seen);
        assert_true(alive_seen(seen));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(read(ends[0], &byte, 1), 0);
        assert_false(alive_seen(seen));
        assert_int_equal(waitpid(child, NULL, 0), child);
        munmap(seen, SHARED_PAGE_SIZE);
        munmap(shared, SHARED_PAGE_SIZE);
        close(fd);
        close(ends[0]);
        close(fds[0]);
        close(fds[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_its_own_end_in_order),
        cmocka_unit_test(test_clients_cannot_write),
        cmocka_unit_test(test_a_thread_that_ends),
        cmocka_unit_test(test_it_ends_before_its_descriptors),
    };
    return cmocka_run_group_tests_name("alive", tests, NULL, NULL);
}
