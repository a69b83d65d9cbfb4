/* SPDX-License-Identifier: Apache-2.0 */
/* Names to inodes, beneath the data directory and never through the daemon's own mount. */
#ifndef GAIAFS_FS_RESOLVE_H
#define GAIAFS_FS_RESOLVE_H

#include "fs/fs.h"

/* Opens name in the directory parent_fd as O_PATH. A descriptor, or a negative errno; -ELOOP when name is the
 * daemon's own mount. */
int resolve_open(struct fs *fs, int parent_fd, const char *name);
/* Looks name up for the kernel: entry_out is filled, the inode (a lookup of it is taken) is in
 * entry_out->ino. */
int resolve_entry(struct fs *fs, struct inode *parent, const char *name, struct fuse_entry_param *entry_out);
/* Likewise, but has nothing mounted that is mounted on demand: -EREMOTE. */
int resolve_listed(struct fs *fs, struct inode *parent, const char *name, struct fuse_entry_param *entry_out);
/* The same for the inode itself, which the kernel may have forgotten, and for the directory that the
 * directory is in. */
int resolve_node(struct fs *fs, uint64_t id, struct fuse_entry_param *entry_out);
int resolve_parent(struct fs *fs, struct inode *inode, struct fuse_entry_param *entry_out);
/* The same for an O_PATH descriptor, which is taken over in any case. parent may be NULL: not known. */
int resolve_entry_fd(struct fs *fs, int fd, const struct inode *parent, const char *name,
                     struct fuse_entry_param *entry_out);

/* The inode number that programs see of a file: its own, unless it is on another filesystem than the data
 * directory (below a mount). All have one st_dev here, and the numbers of two filesystems may be the same: a
 * folder with that of its parent is a loop for find and rm. */
ino_t resolve_number(const struct fs *fs, dev_t dev, ino_t ino);

/* Of REFUSES_*: what the file's own mount refuses, where that is not the root's, and nobody has asked for it.
 * Ours does not, for all that the kernel knows: so a set-id bit, what a device is, and security.capability
 * are not told. */
unsigned resolve_hidden(const struct inode *inode);
/* Takes that out. */
void resolve_hide(const struct inode *inode, struct stat *st);

#endif
