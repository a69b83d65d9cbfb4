/* SPDX-License-Identifier: Apache-2.0 */
/* A bound for the number of known inodes, and for that of those which were opened. The kernel decides which
 * inodes the daemon must know. When there are nearly too many, a thread asks the kernel to forget some that
 * nobody uses (FUSE_NOTIFY_PRUNE, Linux 6.18). Where the kernel does not, or all are in use, a lookup of one
 * too many ends with ENOMEM. The same thread asks the kernel to forget single inodes when the daemon needs to
 * know whether anything still has them mapped. */
#ifndef GAIAFS_FS_PRUNE_H
#define GAIAFS_FS_PRUNE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

#define PRUNER_WISHES 256u

struct fs;

struct pruner {
    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t changed;
    pthread_t thread;
    bool wanted, stopping;
    unsigned wishes; /* so many of wished */
    uint64_t wished[PRUNER_WISHES];
    atomic_bool refused; /* the kernel can't be asked */
    bool running;        /* only the thread that starts and stops it looks at this */
};

void pruner_init(struct fs *fs);
int pruner_start(struct fs *fs);
void pruner_stop(struct fs *fs);
/* Are so many inodes known that there should be room made before another is? */
bool pruner_is_needed(struct fs *fs);
/* One more inode is about to be known: wakes the thread when they are many. When there are too many, waits a
 * moment until it is less. To be called from LOOKUP and the like only: the thread may wait for write-backs.
 */
void pruner_make_room(struct fs *fs);
/* One more has been opened: wakes the thread when they are many. Waits for nothing. */
void pruner_look(struct fs *fs);
/* Has the kernel forget the inode with this number soon, if nobody uses it: a FORGET says so. One of too many
 * is left out. Waits for nothing; may be called from any handler. */
void pruner_wish(struct fs *fs, uint64_t id);
/* The same at once. 0, or a negative errno: the kernel can't be asked. Not in a thread that serves FUSE: it
 * may wait for write-backs. */
int pruner_forget(struct fs *fs, uint64_t id);

#endif
