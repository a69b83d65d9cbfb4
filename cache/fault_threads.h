/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that serve a client's faults. One thread watches the client's descriptor; when faults have come
 * it leaves that to the next, and serves them (leader and followers: Schmidt and others, "Leader/Followers",
 * PLoP 2000). Threads are started when they are needed: when faults have come and none is left to watch.
 *
 * Most of a fault's time the kernel needs to show each of its pages in the client, in the thread that asks
 * for it: a microsecond for two or three pages. So with one thread the threads of a GPU that touch what the
 * device has get 7 GB/s, however many wait. */
#ifndef GAIAFS_CACHE_FAULT_THREADS_H
#define GAIAFS_CACHE_FAULT_THREADS_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

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

/* The first. The client's descriptor is there. 0, or -EAGAIN: there is none. */
int fault_threads_start(struct cache_client *client);
/* None is left. The client's `stop` can be read. */
void fault_threads_stop(struct cache_client *client);

#endif
