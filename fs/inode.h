/* SPDX-License-Identifier: Apache-2.0 */
/* The files that the kernel, a client or the cache knows, one struct inode for each (device, inode number) of
 * the data directory. An inode lives as long as any of these is left: lookups of the kernel, references, pins
 * of the cache. */
#ifndef GAIAFS_FS_INODE_H
#define GAIAFS_FS_INODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/lock.h"
#include "fs/inode_table.h"

struct content; /* fs/content.h */
struct fs;

enum remembered { REMEMBERED_NOT, REMEMBERED, REMEMBERED_AGAIN };

/* There is one for each file that the kernel knows: it must stay small. */
struct inode {
    struct fs *fs;
    uint64_t id; /* the kernel's node id */
    dev_t dev;
    ino_t ino;
    struct volume *volume;
    _Atomic(struct content *) content; /* NULL until inode_durable(); kept until the inode is freed */

    /* Guarded by the lock of the inode's shard. */
    struct descriptor *open; /* NULL: none is open now */
    struct inode *next, *next_id;
    uint64_t lookups; /* that the kernel has not forgotten yet */
    unsigned references;
    unsigned handles; /* somebody has the file open */
    unsigned pins;
    mode_t type; /* S_IFMT bits */

    /* How the file is opened again: by its handle (fs/volume.h), or by the name that it was looked up with
     * last (guarded by the lock of the inode's shard). Neither: its descriptor is kept. */
    uint8_t handle_bytes;
    bool bared; /* its last descriptor was closed (descriptors_shed()): open handles lead to it, and nothing
                   else */
    uint8_t refuses;    /* REFUSES_* of its mount when it was looked up first (fs/volume.h) */
    uint8_t remembered; /* enum remembered: whether it has a place among those (shard_remember()) */
    int handle_type;
    struct place *place;
    unsigned char handle[];
};

/* The inode of fd (O_PATH | O_NOFOLLOW), whose fstat() is st, with one more lookup. fd is taken over in any
 * case. parent and name: where it was found; parent may be NULL. */
int inode_lookup(struct fs *fs, int fd, const struct stat *st, const struct inode *parent, const char *name,
                 struct inode **inode_out);
/* The inode of a node id that the kernel may have forgotten, with one more lookup. -ESTALE: it is not known.
 */
int inode_lookup_id(struct fs *fs, uint64_t id, struct inode **inode_out);
/* Likewise, with one more reference. */
int inode_get_id(struct fs *fs, uint64_t id, struct inode **inode_out);
/* The inode of a node id that the kernel has not forgotten, or else one with which nothing can be done. */
struct inode *inode_find(struct fs *fs, uint64_t id);
/* The inode of fd, with one more reference, if there is one: else NULL. */
struct inode *inode_get_known(struct fs *fs, int fd);
/* fd is of the inode's file, from which we have just taken a name. If that was the last name, programs that
 * still have the file (open, or as the working directory) must reach it without one. Returns what stays the
 * caller's: fd, or -1. */
int inode_unlinked(struct inode *inode, int fd);
/* The file has no name. False: that was known. */
bool inode_note_deleted(struct inode *inode);
/* We have just given the file a name: it may be its first. The kernel takes no name away meanwhile. */
void inode_linked(struct inode *inode);
void inode_forget(struct inode *inode, uint64_t lookups);
/* Whether the kernel knows it. */
bool inode_is_known(struct inode *inode);
/* Whether bytes of the file are lost, which must not be forgotten with the inode, as the next fsync would
 * succeed. */
bool inode_is_lost(struct inode *inode);
void inode_get(struct inode *inode);
void inode_put(struct inode *inode);
/* A reference, for a handle; and before it is given back: the handle's descriptor is about to be closed. */
void inode_get_opened(struct inode *inode);
void inode_closing(struct inode *inode, int fd);
/* With the shard's lock held, which it lets go. */
void inode_put_locked(struct inode_shard *shard, struct inode *inode);
void inode_pin(struct inode *inode, bool pinned);

/* A reference, unless nobody uses the inode any more: it may be on its way to be freed, but not be freed yet.
 */
bool inode_get_if_used(struct inode *inode);
/* The path below the data directory, for people to read: the file may have moved since. Length or a negative
 * errno: -ENOENT, no name is known, as of a file that another node has named by its handle. */
ssize_t inode_path(struct inode *inode, char *path_out, size_t size);
/* The same; without a path "(inode N)". */
void inode_name(struct inode *inode, char *name_out, size_t size);

/* Calls visit for each tracked (or once opened, or known) inode with a reference and no lock held. Those that
 * appear meanwhile may be missed. Stops at, and returns, the first value that is not 0; -ENOMEM. */
int fs_each_tracked(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context);
int fs_each_opened(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context);
int fs_each_inode(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context);

/* For the table. inode_free(): the inode is not in it any more, and nothing else knows it. */
struct inode *inode_new_gone(struct fs *fs);
bool inode_is_used(const struct inode *inode);
void inode_free(struct inode *inode);

#endif
