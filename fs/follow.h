/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that serves requests moves to the processor of the program that sends them, where that pays.
 *
 * A program that waits for each of its small requests never runs at the same time as the thread that serves
 * it. But the scheduler sees an idle processor, and wakes one of the two there when the other goes to sleep:
 * that is an interrupt between processors in each direction, out of idle, and in a virtual machine through
 * the hypervisor. It costs three to eight times what the request does (docs/performance.md). On the program's
 * own processor it is two switches. */
#ifndef GAIAFS_FS_FOLLOW_H
#define GAIAFS_FS_FOLLOW_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A thread's, and used by it alone. All zero at its start. */
struct follower {
    uint32_t caller;   /* whose requests it has had last */
    unsigned streak;   /* and how many of them, all small, with none of another one in between */
    unsigned crowds;   /* of the samples since the last look: more requests were waiting */
    unsigned penalty;  /* counts against following: callers had left the processor they were followed to */
    unsigned skip;     /* so many looks are left out */
    bool follows;      /* it is bound to the caller's processor, */
    int cpu;           /* this one, */
    cpu_set_t allowed; /* and else to these */
};

/* A request has come from this device, of so many bytes; its header is at the start. */
void follow(struct follower *follower, const void *request, size_t size, int device);
/* pthread_create(), of a thread that is not bound as the calling one may be just now. */
int follow_create(pthread_t *thread_out, void *(*run)(void *), void *argument);

#endif
