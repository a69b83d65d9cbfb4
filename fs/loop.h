/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that read requests from the kernel and answer them. */
#ifndef GAIAFS_FS_LOOP_H
#define GAIAFS_FS_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "fs/fs.h"

struct loop_worker;

struct loop {
    struct fs *fs;
    unsigned wanted;    /* so many threads wait for a request; further ones sleep */
    unsigned most;      /* threads, and one more for each that waits for another node, */
    unsigned most_wait; /* of which so many may; */
    unsigned most_more; /* and so many while those do not get on */
    atomic_int reading; /* that wait for a request, or are about to */

    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t change; /* ending or watched is set */
    LIST_HEAD(, loop_worker) workers;
    SLIST_HEAD(, loop_worker) sleepers; /* the last to fall asleep is the first to be woken */
    unsigned count, waiting;
    unsigned more;      /* of most_more may be there */
    uint64_t exhausted; /* how often nobody was left that waits for a request, and nobody to be called */
    bool watched;       /* for whether they get on */
    bool ending;
    int error;
};

/* How many requests that no program waits for alone (read-ahead, write-back, asynchronous direct I/O) the
 * kernel is to have under way on a machine with so many processors (-1: not known): FUSE_INIT's
 * max_background. */
unsigned loop_background(long processors);

void loop_init(struct loop *loop, struct fs *fs);
/* Serves until the mount has gone or loop_stop() is called; then every request that was read is answered. 0
 * or a negative errno. */
int loop_serve(struct loop *loop);
/* From any thread, at any time between loop_init() and loop_destroy(). */
void loop_stop(struct loop *loop);
void loop_destroy(struct loop *loop);

/* The request that this thread serves waits for another node, for long perhaps: until loop_wait_end() another
 * thread may take its place. False: so many wait already that no others would be served; then nothing has
 * begun. Also for threads that serve no request: true. */
bool loop_wait_begin(void);
void loop_wait_end(void);

#endif
