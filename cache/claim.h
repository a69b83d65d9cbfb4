/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: of several mounts of one data directory (-o shared), on one machine or on several, only one at a
 * time has a file on its devices. That mount's claim is a lock of the backing file, on a byte that no file
 * has, kept from the first map until the last has gone: then what the devices hold is brought to the data
 * directory, and dropped. A daemon that dies loses its locks, once the last of what it had begun at the file
 * has ended, too: Linux takes an io_uring down a while after the process has gone (here 10 to 200 ms), and
 * others may know of its death by then.
 *
 * It is an open file description's lock (Linux 3.15), so that this daemon keeps it whatever other descriptors
 * of the file are closed; between machines it is as good as the locks of the data directory's filesystem (NFS
 * from version 4 on, CephFS, Lustre with -o flock). */
#ifndef GAIAFS_CACHE_CLAIM_H
#define GAIAFS_CACHE_CLAIM_H

#include <stdbool.h>

#include "base/lock.h"

struct cache_file;

enum claim_state {
    CLAIM_NONE,
    CLAIM_HELD,
    CLAIM_MOVING, /* somebody takes it, or lets go of it */
};

struct claim {
    bool end_missed; /* the file's end was waited for in vain, and not had since; under the file's lock */
    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t moved;
    enum claim_state state;
    unsigned maps; /* that want it */
};

/* The file's descriptor becomes one of fd's description, which can write: the claim, if there is one, is from
 * now on a writer's. 0; or -EBUSY (other mounts, which only read, have the file, too), or why not. No lock is
 * held. */
int claim_reopen(struct cache_file *file, int fd);

/* Bring everything of one replica into the data directory, and off its device. No lock is held. */
struct replica;
int claim_empty(struct replica *replica);

/* Whether programs of other mounts change the file, too, unnoticed by this daemon: then no byte may be
 * brought to the data directory but what a device has stored, and nothing beyond the present end of the
 * file. */
bool claim_is_shared(const struct cache_file *file);

/* The end of such a file stands still, as far as mounts move it: whoever cuts it, and whoever brings to the
 * data directory what a device has stored, has another lock of the backing file meanwhile. (It does not help
 * to look at the size before each write: a cut that waits for one write is done just before the next one, and
 * that one makes the file longer again.) Waits, two seconds at most for a daemon that stands still. fd is
 * open for writing. False: it can't be had; go on without. *missed (or NULL) outlives the call: who has
 * waited in vain does not wait again before it could be had. */
bool claim_hold_end(int fd, bool *missed);
void claim_let_end_go(int fd);

/* Give the claim up to another mount, whatever is mapped here. No lock is held. */
void claim_give_up(struct cache_file *file);

void claim_init(struct claim *claim);
void claim_destroy(struct claim *claim);

/* One more map. Waits while another is letting go. The first map, once it has the claim, has the kernel's
 * cache of this mount dropped. 0; or -EBUSY (another mount has it), -EINPROGRESS (the same, but a home has
 * gone lately: it may be that one's, and is tried again), or why the filesystem does not lock (-ENOLCK,
 * -EOPNOTSUPP, -EIO ...): then there is no claim. No lock is held. Does nothing in a mount that is not
 * shared. */
int claim_take(struct cache_file *file);

/* One map less; it is detached. After the last one everything of the file leaves the devices and the kernel's
 * cache of this mount, and other mounts may claim it, unless released bytes can't be collected (no space,
 * EIO) or the kernel does not drop its pages: then it stays claimed until a later last map, or the end of the
 * mount. No lock is held; the file is in use (file_use()). */
void claim_put(struct cache_file *file);

#endif
