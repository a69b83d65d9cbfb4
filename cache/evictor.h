/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that make room in frames which others have.
 *
 * To trap stores and to free frames waits for locks that a client may have for as long as it likes: those of
 * the frames' memory (cache/fit.h) and of its own addresses (gpu/device.h). Who wants room on a device must
 * not wait so for the client of another file. So it leaves the pages to one of these threads, with all that
 * is done about them, and waits for that for a moment only: then it takes others, and nobody else takes pages
 * of those frames, until that thread comes back. */
#ifndef GAIAFS_CACHE_EVICTOR_H
#define GAIAFS_CACHE_EVICTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"

#define EVICTOR_THREADS_MAX 256u

struct replica;
struct eviction;

struct evictor {
    pthread_mutex_t lock;  /* guards what follows but `threads`; a leaf */
    pthread_cond_t queued; /* or it stops */
    TAILQ_HEAD(, eviction) queue;
    unsigned length, idle; /* of the queue; threads that wait for it */
    unsigned late;         /* whose callers have gone on */
    bool stop;
    _Atomic unsigned threads; /* begun when they are needed; they stay */
};

void evictor_init(struct evictor *evictor);
/* Begin nothing from now on. Whether all threads have ended within some seconds: else what they use must stay
 * until the process ends. */
bool evictor_end(struct evictor *evictor);

/* evict_from(), whose file's use passes to this. 0 where it is not known how many went; *error_out is then
 * what kept its pages the last time, if anything did. Without memory, or a thread, the caller does it itself.
 * No lock is held. */
uint64_t evictor_take(struct replica *replica, uint64_t leaf_number, uint64_t pages, int *error_out);

#endif
