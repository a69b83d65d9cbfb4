/* SPDX-License-Identifier: Apache-2.0 */
/* For several nodes (-o node=, peers=): which file of this mount another node means, and how requests for a
 * file that this mount knew only by its bytes come to go to its home. */
#ifndef GAIAFS_FS_NODES_H
#define GAIAFS_FS_NODES_H

#include "cache/cache.h"
#include "fs/fs.h"

/* What other nodes call the file. False: it has no name for them (no file handle, or it is on another
 * filesystem below the data directory). */
bool nodes_name(const struct inode *inode, struct node_name *name_out);

/* inode_track() for a client that will map the file: where its home has just gone, this waits for the next
 * one as nodes_try_again() does. */
int nodes_track_to_map(struct inode *inode, struct cache_file **file_out);
/* Whether to try again to map it, after `error`: it is -EINPROGRESS (cache_map_open()), and there is time
 * left. Waits a while before. waited_ms: of the caller's, 0 at first. */
bool nodes_map_again(struct fs *fs, int error, unsigned *waited_ms);

/* Track a file whose home is elsewhere. The caller holds a reference. 0; -EOPNOTSUPP (no name); -EIO or what
 * the home says. */
int nodes_track(struct fs *fs, struct inode *inode, const struct node_name *name,
                struct cache_file **file_out);

/* Before a program does anything to the bytes of an inode that has content: if its home elsewhere tracks the
 * file, that home is asked from now on. opening: an OPEN or a CREATE is being handled, which may have the
 * kernel drop pages. Waits while the home has gone and the next one is not known yet, as reads and writes do
 * (nodes_try_again()). 0, or why the home can't be asked: then nothing may be done to the file's bytes. */
int nodes_catch_up(struct inode *inode, bool opening);

/* The size that the kernel is told of a file whose fstat() says `size`. Where the file's home is another node
 * and the data directory's filesystem may learn late what has become of the file, as NFS does, the size is at
 * least what the home has said, and exactly that for a minute after a cut: the kernel drops what lies past
 * the end. */
off_t nodes_size(struct inode *inode, off_t size);

/* The inode has another file than before, whose home had gone: drop what the kernel has from under that home,
 * and take write-backs from then on. In a thread of its own; no lock is held. */
void nodes_settle(struct inode *inode);

/* Read the file of members again (SIGHUP); where that can't be done, or the list is not good, the old one
 * stays, and the log says why. */
void nodes_reread(struct fs *fs);

/* Before the bytes of a file are changed whose home this node is, or which nobody tracks: if this node has
 * stood still, another may be the home, or track it, by now. Waits until that is known, or the file's home is
 * another; change: see cache_file_is_sure(). -EIO: this node is at odds with others about the members, and
 * changes nothing; what collects finds out by itself. The gate is not held. */
int nodes_await_sure(struct inode *inode, enum cache_change change);
/* The same before this node begins to track a file, or asks another to do so. Not in a thread that serves
 * FUSE. */
int nodes_await_known(const struct fs *fs);

/* cache_host's. */
int nodes_find(void *context, const struct node_name *name, struct cache_file **file_out);
int nodes_track_here(void *context, const struct node_name *name, struct cache_file **file_out);
int nodes_follow(void *context, const struct node_name *name, uint64_t generation,
                 const struct cache_told *told);
bool nodes_keep(void *context, void *file_context);
void nodes_moved(void *context, void *file_context);
void nodes_sync(void *context);
void nodes_warn(void *context, const char *text);

/* Whether an operation on a file (NULL: untracked) that gave `result` is to be tried again: it is -EIO
 * because the file's home has gone, and there is another one now. Waits for the next home as long as peers
 * are waited for, unless so many wait that nobody else would be served. */
bool nodes_try_again(struct inode *inode, struct cache_file *file, ssize_t result);

#endif
