/* SPDX-License-Identifier: Apache-2.0 */
/* Where a thread that serves requests may run, after requests of one program, of two, of large ones, of one
 * that flees. */
#include <linux/fuse.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/follow.h"

#define LOOK 64    /* after so many requests a thread looks */
#define ENOUGH 256 /* so that it has looked */

static cpu_set_t all;
static int cpus[2]; /* two of them */
static int device;  /* can be read when more requests wait */

/* A program that stays on one processor. */
struct caller {
    pthread_t thread;
    pthread_barrier_t ready, end;
    int cpu;
    uint32_t pid;
};

/* One that is moved from one to another. */
struct fugitive {
    pthread_t thread;
    _Atomic int cpu, is_on;
    _Atomic uint32_t pid;
    atomic_bool end;
};

static void *flee(void *argument)
{
    struct fugitive *fugitive = argument;
    cpu_set_t set;

    atomic_store(&fugitive->pid, (uint32_t)gettid());
    while (!atomic_load(&fugitive->end)) {
        int cpu = atomic_load(&fugitive->cpu);
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof(set), &set);
        atomic_store(&fugitive->is_on, sched_getcpu());
        usleep(1000);
    }
    return NULL;
}

static void flee_to(struct fugitive *fugitive, int cpu)
{
    atomic_store(&fugitive->cpu, cpu);
    while (atomic_load(&fugitive->is_on) != cpu)
        usleep(1000);
}

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

    follow(follower, &request, sizeof(request), device);
}

static void receive_so_many(struct follower *follower, uint32_t pid, int requests)
{
    while (requests--)
        receive(follower, FUSE_LOOKUP, pid, 0);
}

/* Enough, of which each is answered before the next one comes, or not. */
static void receive_many(struct follower *follower, uint32_t pid, bool waits)
{
    eventfd_t more;

    if (!waits)
        assert_int_equal(eventfd_write(device, 1), 0);
    receive_so_many(follower, pid, ENOUGH);
    if (!waits)
        assert_int_equal(eventfd_read(device, &more), 0);
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

/* The scheduler takes a program away from the threads that have come to it: they let it go, for longer each
 * time, and try again. */
static void lets_go_who_flees(void **state)
{
    struct follower follower = {0};
    struct fugitive fugitive = {.is_on = -1, .cpu = cpus[0]};
    static const int looks[] = {8, 64, 256, 256};

    (void)state;
    assert_int_equal(pthread_create(&fugitive.thread, NULL, flee, &fugitive), 0);
    flee_to(&fugitive, cpus[0]);
    receive_so_many(&follower, fugitive.pid, 1);
    for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++) {
        receive_so_many(&follower, fugitive.pid, LOOK);
        assert_int_equal(where(), cpus[i % 2]);
        flee_to(&fugitive, cpus[(i + 1) % 2]);
        receive_so_many(&follower, fugitive.pid, LOOK - 1);
        assert_int_equal(where(), cpus[i % 2]);
        receive_so_many(&follower, fugitive.pid, 1);
        for (int left_out = 0; left_out < looks[i]; left_out++) {
            assert_int_equal(where(), -1);
            receive_so_many(&follower, fugitive.pid, LOOK);
        }
        assert_int_equal(where(), -1);
    }
    /* It stays, and is followed as long as it does; then it may go once more. */
    receive_so_many(&follower, fugitive.pid, 9 * LOOK);
    assert_int_equal(where(), cpus[0]);
    flee_to(&fugitive, cpus[1]);
    receive_so_many(&follower, fugitive.pid, LOOK);
    assert_int_equal(where(), -1);
    receive_so_many(&follower, fugitive.pid, 8 * LOOK);
    assert_int_equal(where(), -1);
    receive_so_many(&follower, fugitive.pid, LOOK);
    assert_int_equal(where(), cpus[1]);
    sched_setaffinity(0, sizeof(all), &all);
    atomic_store(&fugitive.end, true);
    pthread_join(fugitive.thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_one_that_waits),
        cmocka_unit_test(follows_nobody_who_does_not_wait),
        cmocka_unit_test(takes_turns),
        cmocka_unit_test(goes_nowhere_it_may_not),
        cmocka_unit_test(lets_go_who_flees),
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
    device = eventfd(0, EFD_NONBLOCK);
    alarm(240);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
