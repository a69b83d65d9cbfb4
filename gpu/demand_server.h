/* SPDX-License-Identifier: Apache-2.0 */
/* Answers what the kernels of a demand mapping ask by its ring (gpu/demand.h): units of the soft mapping are
 * granted to them through the arena or the ring's stages, and what they give back is stored there. For each
 * unit that the GPU may have, the server keeps the bytes that were granted: the twin.
 *
 * Many requests are under way at a time, as the soft mapping may have to bring each unit from storage or from
 * another node first. One thread looks at the ring; when a request has come it leaves the ring to the next
 * and answers (leader and followers: Schmidt and others, "Leader/Followers", PLoP 2000). Threads are started
 * when they are needed: when a request has come and none is left to look, up to DEMAND_SERVERS_MAX. */
#ifndef GAIAFS_GPU_DEMAND_SERVER_H
#define GAIAFS_GPU_DEMAND_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/lock.h"
#include "gpu/demand_host.h"

#define DEMAND_SERVERS_MAX 16u

struct demand_server {
    /* Constant once it is started, and the caller's to fill in. */
    uint8_t *home;                         /* the soft mapping */
    const struct gaia_shared_state *state; /* and what its daemon says of it */
    size_t length;                         /* whole pages */
    int fd;                                /* of the file, and where in it the mapping begins */
    off_t offset;
    bool writable;

    /* Its shape and the addresses are set by the caller, and constant; .next is guarded by `ring`, the arena
     * by `lock`, except the bytes of a slot without a unit, which the thread writes that has taken the
     * slot. */
    struct gaia_demand_host host;

    pthread_mutex_t ring;     /* the thread that has it looks for the next request. Taken alone */
    _Atomic unsigned looking; /* threads that have it, or wait for it */

    pthread_mutex_t lock;   /* guards what follows; a leaf */
    pthread_cond_t changed; /* a unit is answered, so its slot of the arena is written, too */
    uint8_t *twins;         /* address space for the mapping, where it can be stored to; and a unit for each
                             * thread */
    uint32_t *twin_grant;   /* of each unit: the grant that its twin is of; 0: none */
    uint32_t *twin_end;     /* and how many of its bytes are the file's since then; only for the thread that
                               answers for the unit */
    uint64_t *twin_cuts;    /* up to which cut of the file (state->cuts) that is so; the same */
    _Atomic uint64_t acquired_end; /* where in the mapping the file ended at the last acquire that found it
                                    * changed */
    uint32_t *arena_unit;          /* of each slot; none: it is free, or being written */
    uint32_t *arena_free;          /* slots without a unit, and how many of them there are */
    uint32_t free_slots;
    uint32_t hand;                       /* the next slot to give away, when none is free */
    uint32_t serves[DEMAND_SERVERS_MAX]; /* the unit that each thread answers for: nobody else changes it */
    pthread_t threads[DEMAND_SERVERS_MAX];
    unsigned count;    /* of them */
    _Atomic bool stop; /* set with the lock held */
};

/* To be called before anything can be asked: makes tables and locks. -ENOMEM leaves nothing. */
int demand_server_open(struct demand_server *server);
/* To be called once the host's memory is there (gaia_demand_host_start()): the server answers from now on.
 * -EAGAIN: no thread; -ENOMEM; -EIO: the process ends. */
int demand_server_start(struct demand_server *server);
/* Ends all threads, and waits for one that waits for the soft mapping. Idempotent. */
void demand_server_stop(struct demand_server *server);
/* After it has stopped, or was never started. */
void demand_server_close(struct demand_server *server);

/* When the process ends, threads leave the driver's memory alone before the driver takes it back. To be
 * called after a driver was opened, as early as possible: the program's exit handlers that were registered
 * later run before that, and can still release; those that were registered earlier find that nobody answers
 * any more. Any thread; once is enough. */
void demand_servers_expect_the_end(void);
/* The end has come: nothing may begin that would wait for an answer. */
bool demand_servers_are_ending(void);

/* After an acquire: takes units [first, first + count) out of the arena, and forgets their twins. No kernel
 * has any of them, or asks for it; requests that are under way nevertheless are waited for. */
void demand_server_forget(struct demand_server *server, uint64_t first, uint64_t count);

#endif
