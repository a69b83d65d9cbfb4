/* SPDX-License-Identifier: Apache-2.0 */
/* Where a thread that serves requests may run, after requests of one program, of two, of large ones. */
#include <linux/fuse.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/follow.h"

#define ENOUGH 256

static cpu_set_t all;
static int cpus[2]; /* two of them */

/* A program that stays on one processor. */
struct caller {
    pthread_t thread;
    pthread_barrier_t ready, end;
    int cpu;
    uint32_t pid;
};

static void *call(void *argument)
{
    struct caller *caller = argument;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(caller->cpu, &set);
    assert_int_equal(sched_setaffinity(0, sizeof(set), &set), 0);
    caller->pid = (uint32_t)gettid();
    pthread_barrier_wait(&caller->ready);
    pthread_barrier_wait(&caller->end);
    return NULL;
}

static void start(struct caller *caller, int cpu)
{
    caller->cpu = cpu;
    pthread_barrier_init(&caller->ready, NULL, 2);
    pthread_barrier_init(&caller->end, NULL, 2);
    assert_int_equal(pthread_create(&caller->thread, NULL, call, caller), 0);
    pthread_barrier_wait(&caller->ready);
}

static void end(struct caller *caller)
{
    pthread_barrier_wait(&caller->end);
    pthread_join(caller->thread, NULL);
    pthread_barrier_destroy(&caller->ready);
    pthread_barrier_destroy(&caller->end);
}

struct request {
    struct fuse_in_header header;
    struct fuse_read_in read;
};

static void receive(struct follower *follower, uint32_t opcode, uint32_t pid, uint32_t size)
{
    const struct request request = {.header = {.opcode = opcode, .pid = pid}, .read = {.size = size}};

    follow(follower, &request, sizeof(request));
}

/* So many, before each of which the thread has slept, or not. */
static void receive_many(struct follower *follower, uint32_t pid, bool sleeps)
{
    for (int i = 0; i < ENOUGH; i++) {
        if (sleeps)
            usleep(1);
        receive(follower, FUSE_LOOKUP, pid, 0);
    }
}

/* Where this thread may run: a processor's number, or -1: on all. */
static int where(void)
{
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    if (CPU_EQUAL(&set, &all))
        return -1;
    assert_int_equal(CPU_COUNT(&set), 1);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            return cpu;
    return -2;
}

static void follows_one_that_waits(void **state)
{
    struct follower follower = {0};
    struct caller callers[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        start(&callers[i], cpus[i]);
        receive_many(&follower, callers[i].pid, true);
        assert_int_equal(where(), cpus[i]);
    }
    receive(&follower, FUSE_LOOKUP, callers[0].pid, 0); /* another one */
    assert_int_equal(where(), -1);
    receive_many(&follower, callers[0].pid, true);
    assert_int_equal(where(), cpus[0]);
    receive(&follower, FUSE_READ, callers[0].pid, 4096);
    receive(&follower, FUSE_RELEASE, callers[1].pid, 0); /* for which nobody waits */
    receive(&follower, FUSE_FORGET, 0, 0);
    assert_int_equal(where(), cpus[0]);
    receive(&follower, FUSE_READ, callers[0].pid, 1 << 20);
    assert_int_equal(where(), -1);
    receive_many(&follower, callers[0].pid, true);
    follow_nobody(&follower);
    assert_int_equal(where(), -1);
    for (int i = 0; i < 2; i++)
        end(&callers[i]);
}

static void follows_nobody_who_does_not_wait(void **state)
{
    struct follower follower = {0};
    struct caller caller;

    (void)state;
    start(&caller, cpus[0]);
    receive_many(&follower, caller.pid, false);
    assert_int_equal(where(), -1);
    receive_many(&follower, caller.pid, true);
    assert_int_equal(where(), cpus[0]);
    receive_many(&follower, caller.pid, false); /* any more */
    assert_int_equal(where(), -1);
    end(&caller);
}

static void takes_turns(void **state)
{
    struct follower follower = {0};
    struct caller callers[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        start(&callers[i], cpus[i]);
    for (int i = 0; i < 4 * ENOUGH; i++) {
        if (i % 2)
            usleep(1);
        receive(&follower, FUSE_GETATTR, callers[i / 3 % 2].pid, 0);
        assert_int_equal(where(), -1);
    }
    for (int i = 0; i < 2; i++)
        end(&callers[i]);
}

static void goes_nowhere_it_may_not(void **state)
{
    struct follower follower = {0};
    struct caller caller;
    cpu_set_t set;

    (void)state;
    start(&caller, cpus[0]);
    CPU_ZERO(&set);
    CPU_SET(cpus[1], &set);
    assert_int_equal(sched_setaffinity(0, sizeof(set), &set), 0);
    receive_many(&follower, caller.pid, true);
    assert_int_equal(where(), cpus[1]);
    assert_false(follower.follows);
    sched_setaffinity(0, sizeof(all), &all);
    end(&caller);
    receive_many(&follower, caller.pid, true); /* of a thread that has ended */
    assert_int_equal(where(), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_one_that_waits),
        cmocka_unit_test(follows_nobody_who_does_not_wait),
        cmocka_unit_test(takes_turns),
        cmocka_unit_test(goes_nowhere_it_may_not),
    };
    int found = 0;

    sched_getaffinity(0, sizeof(all), &all);
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &all))
            cpus[found++] = cpu;
    if (found < 2) { /* there is nowhere to go */
        puts("skipped: one processor");
        return 0;
    }
    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
