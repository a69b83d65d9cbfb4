/* SPDX-License-Identifier: Apache-2.0 */
/* Which threads are of processes that use devices. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fs/listener.h"
#include "fs/programs.h"
#include "io/protocol.h"
#include "io/reach.h"

static struct programs programs;
static bool alone; /* in a network namespace */

static int setup(void **state)
{
    (void)state;
    programs = (struct programs){0};
    programs_init(&programs);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    programs_end(&programs);
    return 0;
}

/* Does that, and runs until it is killed, or a test has failed. */
static pid_t another_that(void (*fn)(void))
{
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (fn)
            fn();
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    return pid;
}

static pid_t another(void)
{
    return another_that(NULL);
}

static void end(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static uint64_t now_us(void)
{
    return clock_now_ns() / 1000;
}

/* The list is looked through once a second. */
static void wait_for_a_look(void)
{
    usleep(1100000);
}

static void *ask_here(void *argument)
{
    *(bool *)argument = programs_have(&programs, gettid());
    return NULL;
}

static void in_a_thread(void *(*fn)(void *), void *argument)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, fn, argument), 0);
    pthread_join(thread, NULL);
}

static void test_nobody(void **state)
{
    (void)state;
    assert_false(programs_have(&programs, getpid()));
    programs_add(&programs, 0, 0); /* a program that can't be seen here */
    programs_add(&programs, -1, 0);
    assert_int_equal(programs.count, 0);
    assert_false(programs_have(&programs, 0));
}

static void test_all_threads_of_a_process(void **state)
{
    bool have = false;

    (void)state;
    programs_add(&programs, getpid(), 0);
    assert_true(programs_have(&programs, getpid()));
    in_a_thread(ask_here, &have);
    assert_true(have);
    assert_false(programs_have(&programs, 0));
}

static void test_other_processes(void **state)
{
    pid_t one = another(), two = another();

    (void)state;
    programs_add(&programs, one, 0);
    programs_add(&programs, one, 0);
    assert_int_equal(programs.count, 1);
    assert_true(programs_have(&programs, one));
    assert_false(programs_have(&programs, two)); /* nor a child of who is */
    assert_false(programs_have(&programs, getpid()));
    end(two);
    end(one);
}

/* By a connection, which is closed at once. */
static void announce(void)
{
    char name[64];
    struct sockaddr_un address;
    socklen_t length;

    for (unsigned i = 0; i < GAIA_PROGRAMS_SOCKETS; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        snprintf(name, sizeof name, GAIA_PROGRAMS_SOCKET, i);
        assert_int_equal(reach_address(name, &address, &length), 0);
        (void)connect(fd, (struct sockaddr *)&address, length);
        close(fd);
    }
}

static void *accept_later(void *argument)
{
    usleep(5000);
    *(int *)argument = programs_accept(&programs);
    return NULL;
}

static void test_one_that_connects(void **state)
{
    pthread_t thread;
    int fd, other = -1;

    (void)state;
    if (!alone)
        skip();
    assert_int_equal(programs_accept(&programs), -EBADF);
    assert_int_equal(programs_listen(&programs), 0);
    assert_int_equal(programs_accept(&programs), -EAGAIN);
    assert_false(programs_have(&programs, getpid()));
    announce();
    assert_false(programs_have(&programs, getpid())); /* nobody accepts: it is not waited for without end, */
    uint64_t start = now_us();
    for (int i = 0; i < 100; i++) /* nor often */
        assert_false(programs_have(&programs, getpid()));
    assert_true(now_us() - start < 1000000);
    fd = programs_accept(&programs);
    assert_true(fd >= 0);
    assert_true(programs_have(&programs, getpid()));
    assert_int_equal(programs_accept(&programs), -EAGAIN);
    close(fd);
    pid_t pid = another_that(announce);
    while (programs.count < 2 && (fd = programs_accept(&programs)) < 0)
        usleep(1000);
    close(fd);
    assert_true(programs_have(&programs, pid));
    end(pid);
    /* Who has connected before it is asked is known; but it has been waited for in vain in this second. */
    wait_for_a_look();
    programs.count = 0;
    announce();
    assert_int_equal(pthread_create(&thread, NULL, accept_later, &other), 0);
    assert_true(programs_have(&programs, getpid()));
    pthread_join(thread, NULL);
    assert_true(other >= 0);
    close(other);
    close(programs.listener);
}

/* So many mounts are told, and one more says why it is not. */
static void test_many_mounts(void **state)
{
    int fds[GAIA_PROGRAMS_SOCKETS + 1];
    unsigned count = 0;

    (void)state;
    if (!alone)
        skip();
    while (count <= GAIA_PROGRAMS_SOCKETS && (fds[count] = listener_open_for_programs()) >= 0)
        count++;
    assert_int_equal(count, GAIA_PROGRAMS_SOCKETS);
    assert_int_equal(fds[count], -EADDRINUSE);
    assert_int_equal(programs_listen(&programs), -EADDRINUSE);
    assert_false(programs_have(&programs, getpid()));
    while (count)
        close(fds[--count]);
}

static void test_one_that_has_ended(void **state)
{
    pid_t one = another(), two = another();

    (void)state;
    programs_add(&programs, one, 0);
    programs_add(&programs, two, 0);
    end(one);
    wait_for_a_look();
    assert_false(programs_have(&programs, one));
    assert_int_equal(programs.count, 1);
    assert_true(programs_have(&programs, two));
    end(two);
    wait_for_a_look();
    assert_false(programs_have(&programs, two));
    assert_int_equal(programs.count, 0);
}

static void test_one_too_many(void **state)
{
    pid_t pids[PROGRAMS_MAX + 2];

    (void)state;
    for (unsigned i = 0; i < PROGRAMS_MAX + 2; i++) {
        pids[i] = another();
        programs_add(&programs, pids[i], 0);
    }
    assert_int_equal(programs.count, PROGRAMS_MAX);
    for (unsigned i = 0; i < PROGRAMS_MAX + 2; i++)
        assert_int_equal(programs_have(&programs, pids[i]), i >= 2);
    end(pids[5]); /* makes room, so that no other has to go */
    pids[5] = another();
    programs_add(&programs, pids[5], 0);
    for (unsigned i = 2; i < PROGRAMS_MAX + 2; i++)
        assert_true(programs_have(&programs, pids[i]));
    for (unsigned i = 0; i < PROGRAMS_MAX + 2; i++)
        end(pids[i]);
}

/* A user who starts many pushes out his own. */
static void test_many_of_one_user(void **state)
{
    pid_t roots = another(), others = another(), pids[PROGRAMS_OF_USER_MAX + 2];

    (void)state;
    programs_add(&programs, roots, 0);
    programs_add(&programs, others, 8);
    for (unsigned i = 0; i < PROGRAMS_OF_USER_MAX + 2; i++) {
        pids[i] = another();
        programs_add(&programs, pids[i], 7);
    }
    assert_int_equal(programs.count, PROGRAMS_OF_USER_MAX + 2);
    assert_true(programs_have(&programs, roots) && programs_have(&programs, others));
    for (unsigned i = 0; i < PROGRAMS_OF_USER_MAX + 2; i++)
        assert_int_equal(programs_have(&programs, pids[i]), i >= 2);
    for (unsigned i = 0; i < PROGRAMS_OF_USER_MAX + 2; i++)
        end(pids[i]);
    end(roots);
    end(others);
}

/* Who was found to be none is found again as soon as he is one. */
static void test_one_that_becomes_one(void **state)
{
    pid_t first = another(), pid = another();
    uint64_t added;

    (void)state;
    programs_add(&programs, first, 0);
    for (int i = 0; i < 3; i++)
        assert_false(programs_have(&programs, pid));
    added = programs.added;
    programs_add(&programs, first, 0); /* again: nothing is new */
    assert_int_equal(programs.added, added);
    programs_add(&programs, pid, 0);
    assert_true(programs_have(&programs, pid));
    end(first);
    end(pid);
}

int main(void)
{
    /* Others' mounts and programs are not in ours. */
    alone = !unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_threads_of_a_process, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_processes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_that_connects, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_mounts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_that_has_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_too_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_of_one_user, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_that_becomes_one, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
