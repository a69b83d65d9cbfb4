/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/follow.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_EVERY 64u /* requests of a thread; a look costs as much as one of them */
#define SAMPLES 8u     /* of these requests, after which it is asked whether more wait, */
#define CROWDS_MOST 2u /* and how often they may */
#define FLIGHT_COSTS 3u
#define PENALTY_MAX 8u
#define SMALL \
    ((size_t)16 << 10) /* bytes. More are worth a processor of their own: copying them takes longer */

static _Thread_local const struct follower *bound; /* this thread's, while it follows */

static size_t bytes_of(const struct fuse_in_header *in, size_t size)
{
    const struct fuse_read_in *read = (const void *)(in + 1);

    return in->opcode == FUSE_READ && size >= sizeof(*in) + sizeof(*read) ? read->size : size;
}

/* Nobody waits for these. */
static bool is_late(uint32_t opcode)
{
    return opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_RELEASE ||
           opcode == FUSE_RELEASEDIR || opcode == FUSE_INTERRUPT;
}

/* Where the thread `pid` runs or has run last; -1. */
static int cpu_of(uint32_t pid)
{
    char path[32], text[1024];
    const char *at;
    ssize_t length;
    int fd;

    snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0)
        return -1;
    text[length] = '\0';
    at = strrchr(text, ')'); /* the name, which may have anything in it; the state, the 3rd field, is next */
    for (int field = 2; at && field < 39; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at ? atoi(at) : -1;
}

static void leave(struct follower *follower)
{
    if (follower->follows)
        sched_setaffinity(0, sizeof(follower->allowed), &follower->allowed);
    follower->follows = false;
    bound = NULL;
}

/* To another processor, at once: left alone it would stay, and wait there for the caller to be done. */
static void move_away(struct follower *follower)
{
    cpu_set_t others;

    if (!follower->follows)
        return;
    others = follower->allowed;
    CPU_CLR(follower->cpu, &others);
    if (CPU_COUNT(&others) > 0)
        sched_setaffinity(0, sizeof(others), &others);
    leave(follower);
}

static void go_to(struct follower *follower, int cpu)
{
    cpu_set_t set;

    if (cpu < 0 || cpu >= CPU_SETSIZE) {
        leave(follower);
        return;
    }
    if (follower->follows && follower->cpu == cpu)
        return;
    if (!follower->follows && sched_getaffinity(0, sizeof(follower->allowed), &follower->allowed))
        return;
    if (!CPU_ISSET(cpu, &follower->allowed)) {
        leave(follower);
        return;
    }
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) == 0) {
        follower->follows = true;
        follower->cpu = cpu;
        bound = follower;
    }
}

int follow_create(pthread_t *thread_out, void *(*run)(void *), void *argument)
{
    const struct follower *follower = bound;
    cpu_set_t set;

    if (follower)
        sched_setaffinity(0, sizeof(follower->allowed), &follower->allowed);
    int error = pthread_create(thread_out, NULL, run, argument);
    if (follower) {
        CPU_ZERO(&set);
        CPU_SET(follower->cpu, &set);
        sched_setaffinity(0, sizeof(set), &set);
    }
    return error;
}

/* Where the scheduler finds a processor idle it moves the caller there, away from the threads that have come
 * to it, and they would be after it for ever, each time by way of an interrupt between processors. So a
 * caller that was not where it is followed to is left alone for 8 looks, at the next time for 64, then 256:
 * one that stays, since it is bound or other processors have work, wins that back. */
static void follow_or_not(struct follower *follower, int cpu)
{
    if (follower->skip) {
        follower->skip--;
        return;
    }
    if (!follower->follows || cpu < 0) {
        go_to(follower, cpu);
    } else if (cpu == follower->cpu) {
        follower->penalty -= follower->penalty > 0;
    } else {
        follower->penalty += FLIGHT_COSTS;
        if (follower->penalty > PENALTY_MAX)
            follower->penalty = PENALTY_MAX;
        follower->skip = 1u << follower->penalty;
        leave(follower);
    }
}

static bool more_wait(int device)
{
    struct pollfd more = {.fd = device, .events = POLLIN};

    return poll(&more, 1, 0) == 1;
}

void follow(struct follower *follower, const void *request, size_t size, int device)
{
    const struct fuse_in_header *in = request;

    if (size < sizeof(*in) || !in->pid || is_late(in->opcode))
        return;
    if (in->pid != follower->caller || bytes_of(in, size) > SMALL) {
        move_away(follower);
        follower->streak = follower->crowds = 0;
        follower->caller = in->pid;
        return;
    }
    /* Who has many requests under way at a time is better served by many processors. Its next one is there
     * before this one is answered, and that of who waits for each is not. (Whether this thread had to sleep
     * before it would say less: where it shares a processor with who waits, it is pre-empted by the answer,
     * and comes to look for the next request when that is there.) */
    if (++follower->streak % (LOOK_EVERY / SAMPLES) == 0)
        follower->crowds += more_wait(device);
    if (follower->streak % LOOK_EVERY)
        return;
    follow_or_not(follower, follower->crowds <= CROWDS_MOST ? cpu_of(in->pid) : -1);
    follower->crowds = 0;
}
