/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that place pages. They do so ahead of touches: a client's fault thread serves what is waited for
 * and leaves the rest of its readahead window to them. And they help a caller that waits for a whole range,
 * as one thread copies out of the host's memory at a fraction of what memory and a GPU's bus can do. */
#ifndef GAIAFS_CACHE_FILLER_H
#define GAIAFS_CACHE_FILLER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "gpu/device.h"

/* One more than there are processors, and no more than this: each waits now and then, for a stage or for the
 * kernel. */
#define FILLER_THREADS_MAX 12u
#define FILLER_QUEUE_MAX 256u /* pieces: more are not worth remembering */

struct cache;
struct cache_map;
struct filler_piece;
struct fill_group;

struct filler {
    pthread_t threads[FILLER_THREADS_MAX];
    unsigned started;
    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t queued, helped;
    TAILQ_HEAD(, filler_piece) queue, calls; /* what is placed ahead; calls for help */
    unsigned length;                         /* of the queue */
    bool stop;
};

int filler_start(struct cache *cache);
/* What is queued is not placed any more. */
void filler_stop(struct cache *cache);

/* Place [first, first + count) of a map sometime soon, in pieces, or as much as the queue takes; nothing when
 * there is too much to do already, or the map is being closed by then. On a device that scans the map need
 * not be attached. */
void filler_ahead(struct cache_map *map, uint64_t first, uint64_t count);

/* Takes what was queued so for a map that is being closed out of the queue: it is not placed any more, and
 * does not wait behind what others have queued. No lock is held. */
void filler_forget(struct cache_map *map);

/* Place what is missing of [first, first + count) of a map, as fill_range() does, with all threads that have
 * nothing else to do. Returns when every fill of it has begun; the group says when they are done, and what
 * failed. If one could not even begin, the rest is not begun either. Until then the caller keeps the map. No
 * lock is held. */
void filler_place(struct cache_map *map, uint64_t first, uint64_t count, struct fill_group *group);
/* The same for some leaves, ascending, each of which has pages in the run: only those pages. */
void filler_place_leaves(struct cache_map *map, struct gaia_run run, const uint64_t *leaves, size_t count,
                         struct fill_group *group);

#endif
