/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers of FUSE requests, by noun, as session.c puts them into its table. Each answers its request
 * exactly once. */
#ifndef GAIAFS_FS_OPS_H
#define GAIAFS_FS_OPS_H

#include "fs/fs.h"

/* ops_name.c: names in directories */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t nodeid, uint64_t lookups);
void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t nodeid, fuse_ino_t parent, const char *name);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned int flags);
void op_readlink(fuse_req_t req, fuse_ino_t nodeid);

/* ops_attr.c: attributes */
void op_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t nodeid, struct stat *attr, int to_set, struct fuse_file_info *fi);
void op_statfs(fuse_req_t req, fuse_ino_t nodeid);
void op_getxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, size_t size);
void op_setxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, const char *value, size_t size,
                 int flags);
void op_listxattr(fuse_req_t req, fuse_ino_t nodeid, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t nodeid, const char *name);

/* ops_open.c: handles */
void op_open(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
void op_ioctl(fuse_req_t req, fuse_ino_t nodeid, unsigned int cmd, void *arg, struct fuse_file_info *fi,
              unsigned flags, const void *in, size_t in_size, size_t out_size);

/* ops_data.c: the bytes */
void op_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t nodeid, const char *data, size_t size, off_t offset,
              struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t nodeid, int data_only, struct fuse_file_info *fi);
/* Set the size of a file through fd (writable), or by its name in /proc when fd is -1. The caller of req may
 * have to lose set-id bits by it. 0 or a negative errno. */
int data_truncate(fuse_req_t req, struct inode *inode, int fd, off_t size);

/* ops_range.c: holes, zeros, copies, and where data is */
void op_fallocate(fuse_req_t req, fuse_ino_t nodeid, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t nodeid, off_t offset, int whence, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t nodeid_in, off_t offset_in, struct fuse_file_info *fi_in,
                        fuse_ino_t nodeid_out, off_t offset_out, struct fuse_file_info *fi_out, size_t length,
                        int flags);

/* ops_dir.c: listings */
void op_opendir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset, struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t nodeid, int data_only, struct fuse_file_info *fi);

#endif
