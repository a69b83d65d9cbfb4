/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that serve a client's faults. One looks at its descriptor; when faults have come it leaves that
 * to the next, and serves them (leader and followers: Schmidt and others, "Leader/Followers", PLoP 2000).
 * Threads are started as they are wanted: when faults have come and none is left to look.
 *
 * Most of a fault is what the kernel does to show each of its pages in the client, in the thread that asks
 * for it: a microsecond for two or three pages. So by one thread the threads of a GPU that touch what the
 * device has get 7 GB/s, whoever waits for them. */
#ifndef GAIAFS_CACHE_FAULT_THREADS_H
#define GAIAFS_CACHE_FAULT_THREADS_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/lock.h"

#define FAULT_THREADS_MAX 16u

struct cache_client;

struct fault_threads {
    sem_t turn;               /* to look at the descriptor: no lock is held meanwhile */
    _Atomic unsigned looking; /* threads that do, or wait for their turn */
    atomic_bool stop;         /* set with the lock held */
    unsigned most;
    pthread_mutex_t lock; /* guards what follows; a leaf */
    unsigned started;
    pthread_t threads[FAULT_THREADS_MAX];
};

/* As many as are wanted where nobody says how many may be. */
unsigned fault_threads_default(void);
/* The first. The client's descriptor is there. 0, or -EAGAIN: there is none. */
int fault_threads_start(struct cache_client *client);
/* None is left. The client's `stop` can be read. */
void fault_threads_stop(struct cache_client *client);

#endif
