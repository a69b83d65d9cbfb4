/* SPDX-License-Identifier: Apache-2.0 */
/* gaiafs-flusher, a child of the daemon of a mount with members, has the kernel write back what programs have
 * stored to a file through mappings: it opens the file by its handle, calls sync_file_range(), and closes it.
 * A daemon can't do that itself, as it must not have descriptors on its own mount (nobody would answer it
 * when it dies); and a notification of FUSE that writes pages back drops them all, clean ones, too.
 *
 * The flusher holds something of the mount only while it does this, and is asked only about files that
 * programs have open for writing: an unmount just as the last of them has closed its file may find the mount
 * busy for that moment. When the daemon dies its guard (fs/guard.h) ends the connection, and with it what the
 * flusher waits for. */
#ifndef GAIAFS_FS_FLUSHER_H
#define GAIAFS_FS_FLUSHER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/lock.h"

struct fs;
struct inode;

#define FLUSHER_THREADS 8u /* ranges at a time */

struct flusher {
    pid_t pid;            /* 0: there is none */
    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t idle;
    bool gone; /* it has been seen not to answer */
    struct {
        int socket;   /* -1: it does not answer */
        pid_t number; /* of the thread, by which the kernel tells us that it opens a file */
        bool busy;
        uint64_t nodeid; /* with that */
    } threads[FLUSHER_THREADS];
};

/* While the daemon has no other thread. The mount's path and generation are known. Without one, which is
 * logged, pages are dropped. */
void flusher_start(struct fs *fs);
/* From now on the flusher does nothing: waits for it end with -EAGAIN. Any thread. */
void flusher_kill(struct fs *fs);
/* The session is not served any more. */
void flusher_stop(struct fs *fs);

/* Whether this thread is one of the flusher's, and was told to open this file. */
bool flusher_is(struct fs *fs, const struct inode *inode, pid_t thread);
/* Waits for the kernel, and so for WRITEs: not in a thread that serves FUSE. 0; -EAGAIN: the flusher could
 * not open the file, or is not there; or the negative errno of what could not be written back. */
int flusher_write_back(struct fs *fs, const struct inode *inode, off_t offset, off_t length);

#endif
