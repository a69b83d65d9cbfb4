/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side of a mount: mounting, the first exchange, serving, and the ways to stop. */
#ifndef GAIAFS_FS_SESSION_H
#define GAIAFS_FS_SESSION_H

#include "fs/fs.h"

/* Mounts and answers FUSE_INIT. 0 or a negative errno, after the reason was logged. */
int session_start(struct fs *fs);
/* Serves until the filesystem is unmounted or SIGTERM or SIGINT came (both blocked in every thread by the
 * caller). 0 or a negative errno. */
int session_serve(struct fs *fs);
/* Unmounts if need be and frees the session. */
void session_end(struct fs *fs);

/* cache_host.invalidate: context is the struct fs, file_context the struct inode. With offset -1 the
 * attributes alone, which waits for nobody. */
int session_invalidate(void *context, void *file_context, off_t offset, off_t length);
/* cache_host.write_back: likewise. */
int session_write_back(void *context, void *file_context, off_t offset, off_t length);
/* Have the kernel look a name up anew, and forget what it was the last name of, unless that is in use. Waits
 * for operations on the directory: not in a thread that serves FUSE. */
void session_forget_name(struct fs *fs, const struct inode *parent, const char *name);

#endif
