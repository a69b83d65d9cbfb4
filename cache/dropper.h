/* SPDX-License-Identifier: Apache-2.0 */
/* Has kernels drop what another one has changed (cache/kernels.h). */
#ifndef GAIAFS_CACHE_DROPPER_H
#define GAIAFS_CACHE_DROPPER_H

#include <stdbool.h>
#include <sys/queue.h>

#include "base/lock.h"

struct cache;
struct cache_file;

/* Threads that have kernels drop what is old, each for one file, so that a kernel which is slow to drop one
 * file holds up no others: there is one more than are at work, as long as these are fewer than DROPPERS. */
#define DROPPERS 64u
struct dropper {
    pthread_t threads[DROPPERS];
    unsigned started, idle;
    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t queued;
    STAILQ_HEAD(, dropper_work) queue;
    bool stop;
};
int dropper_start(struct cache *cache);
void dropper_stop(struct cache *cache);

/* Have the dropper look at the file if there is anything to drop. The lock is not held; the file can't go
 * away. */
void kernels_settle(struct cache_file *file);
/* Wait until what is old now is dropped. No lock is held. 0, -EIO (a kernel does not do it in time), -ENOMEM.
 */
int kernels_flush(struct cache_file *file);

#endif
