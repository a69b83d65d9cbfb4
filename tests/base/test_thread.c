/* SPDX-License-Identifier: Apache-2.0 */
/* A signal comes to the thread that is meant, also when another one has that number here. */
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread.h"

#define THREADS 3
#define SOMEBODY 4001
#define GROUPS_MANY 20000

/* A process of a few threads, which says by a pipe what they call themselves, and who of them gets SIGBUS. */
struct other {
    pid_t pid; /* here */
    pid_t threads[THREADS];
    int said;
    pid_t parent;
    bool apart;
    uid_t user;
};

static int say; /* the child's end */

static void got(int signal)
{
    pid_t self = gettid();

    (void)signal;
    if (write(say, &self, sizeof self) != sizeof self)
        _exit(1);
}

static void *wait_for_signals(void *argument)
{
    pid_t self = gettid();

    if (write(say, &self, sizeof self) != sizeof self)
        _exit(1);
    for (;;)
        pause();
    return argument;
}

static _Noreturn void be_other(bool many_groups, uid_t user)
{
    static gid_t groups[GROUPS_MANY];
    pthread_t thread;

    alarm(240);
    for (unsigned i = 0; i < GROUPS_MANY; i++)
        groups[i] = 100000 + i;
    if ((many_groups && setgroups(GROUPS_MANY, groups)) || (user && setuid(user)))
        _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* which setuid() takes back */
    signal(SIGBUS, got);
    for (unsigned i = 1; i < THREADS; i++)
        if (pthread_create(&thread, NULL, wait_for_signals, NULL))
            _exit(1);
    wait_for_signals(NULL);
    _exit(1);
}

/* In a PID namespace of its own; who makes it stays between, as only a child is in it. */
static _Noreturn void be_between(int tell)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t pid = unshare(CLONE_NEWPID) ? -1 : fork();

    if (pid == 0)
        be_other(false, 0);
    if (write(tell, &pid, sizeof pid) != sizeof pid || pid < 0)
        _exit(1);
    waitpid(pid, NULL, 0);
    _exit(0);
}

static pid_t hear(const struct other *other)
{
    struct pollfd wait = {.fd = other->said, .events = POLLIN};
    pid_t number = 0;

    assert_int_equal(poll(&wait, 1, 20000), 1);
    assert_int_equal(read(other->said, &number, sizeof number), sizeof number);
    return number;
}

static void start(struct other *other, bool many_groups, bool apart)
{
    int said[2], told[2];

    assert_int_equal(pipe(said), 0);
    assert_int_equal(pipe(told), 0);
    other->parent = fork();
    assert_true(other->parent >= 0);
    say = said[1];
    if (other->parent == 0 && apart)
        be_between(told[1]);
    if (other->parent == 0)
        be_other(many_groups, other->user);
    close(said[1]);
    close(told[1]);
    other->said = said[0];
    other->pid = other->parent;
    if (apart)
        assert_int_equal(read(told[0], &other->pid, sizeof other->pid), sizeof other->pid);
    close(told[0]);
    for (unsigned i = 0; i < THREADS; i++)
        other->threads[i] = hear(other);
    other->apart = thread_is_apart(other->pid);
    assert_int_equal(other->apart, apart);
}

static void end(struct other *other)
{
    kill(other->pid, SIGKILL);
    assert_int_equal(waitpid(other->parent, NULL, 0), other->parent);
    close(other->said);
}

static volatile sig_atomic_t signalled; /* this process */

static void got_here(int signal)
{
    (void)signal;
    signalled++;
}

static void expect_each_is_found(const struct other *other)
{
    for (unsigned turn = 0; turn < 20; turn++) {
        pid_t thread = other->threads[turn % THREADS];
        assert_int_equal(thread_signal(other->pid, other->apart, other->user, thread, SIGBUS), 0);
        assert_int_equal(hear(other), thread);
    }
}

static void test_of_this_namespace(void **state)
{
    struct other other = {0};

    (void)state;
    signal(SIGBUS, got_here);
    start(&other, false, false);
    expect_each_is_found(&other);
    /* Threads of this process are not that one's, whatever their number. */
    assert_int_equal(thread_signal(other.pid, other.apart, 0, gettid(), SIGBUS), -ESRCH);
    assert_int_equal(thread_signal(other.pid, other.apart, 0, 0, SIGBUS), -ESRCH);
    assert_int_equal(thread_signal(other.pid, other.apart, 0, -1, SIGBUS), -ESRCH);
    assert_int_equal(thread_signal(0, false, 0, gettid(), SIGBUS), -ESRCH);
    end(&other);
    assert_int_equal(thread_signal(other.pid, other.apart, 0, other.threads[0], SIGBUS), -ESRCH);
    assert_int_equal(signalled, 0);
}

static void test_of_another_namespace(void **state)
{
    struct other other = {0};

    (void)state;
    if (geteuid())
        skip();
    start(&other, false, true);
    assert_in_range(other.threads[0], 1, 100); /* here these are the machine's oldest */
    expect_each_is_found(&other);
    assert_int_equal(thread_signal(other.pid, other.apart, 0, other.pid, SIGBUS),
                     -ESRCH); /* it does not call itself so */
    end(&other);
}

static void test_of_many_groups(void **state)
{
    struct other other = {0};

    (void)state;
    if (geteuid())
        skip();
    start(&other, true, false);
    expect_each_is_found(&other);
    other.apart = true; /* as slowly as one that is */
    expect_each_is_found(&other);
    end(&other);
}

/* Whoever has the number now: nobody but who was its user could have it signalled, and root. */
static void test_of_another_user(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    for (unsigned apart = 0; apart < 2; apart++) {
        struct other other = {0};
        start(&other, false, false);
        assert_int_equal(thread_signal(other.pid, apart, SOMEBODY, other.threads[1], SIGBUS), -EPERM);
        end(&other);
        other = (struct other){.user = SOMEBODY};
        start(&other, false, false);
        other.apart = apart;
        expect_each_is_found(&other);
        assert_int_equal(thread_signal(other.pid, apart, SOMEBODY + 1, other.threads[1], SIGBUS), -EPERM);
        other.user = 0; /* root may signal all */
        expect_each_is_found(&other);
        end(&other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_this_namespace),
        cmocka_unit_test(test_of_another_namespace),
        cmocka_unit_test(test_of_many_groups),
        cmocka_unit_test(test_of_another_user),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
