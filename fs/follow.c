/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/follow.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LOOK_EVERY 64u /* requests of a thread; a look costs as much as one of them */
#define WAITS_LEAST 32 /* before so many of these the thread must have slept */
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

void follow_nobody(struct follower *follower)
{
    leave(follower);
    follower->streak = 0;
}

static long waits(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nvcsw;
}

void follow(struct follower *follower, const void *request, size_t size)
{
    const struct fuse_in_header *in = request;
    unsigned past;

    if (size < sizeof(*in) || !in->pid || is_late(in->opcode))
        return;
    if (in->pid != follower->caller || bytes_of(in, size) > SMALL) {
        move_away(follower);
        follow_nobody(follower);
        follower->caller = in->pid;
        return;
    }
    past = ++follower->streak % LOOK_EVERY;
    if (follower->streak == LOOK_EVERY / 2)
        follower->waits = waits() - (long)LOOK_EVERY / 2; /* as if it had slept before each up to here */
    if (past)
        return;
    /* Who has many requests under way at a time is better served by many processors: no thread sleeps then.
     */
    long now = waits(), slept = now - follower->waits;
    follower->waits = now;
    go_to(follower, slept >= WAITS_LEAST ? cpu_of(in->pid) : -1);
}
