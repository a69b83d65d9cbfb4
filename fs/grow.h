/* SPDX-License-Identifier: Apache-2.0 */
/* Tell the kernel that a file has grown, so that it can't forget it.
 *
 * The kernel learns the size of a file that others have made longer from a GETATTR's answer. But when an
 * invalidation of the inode, or of any of its pages, begins while the GETATTR is under way, the kernel passes
 * the answer on and keeps the size that it had (attr_version): a read() ends there, a load past it is a
 * SIGBUS, and a program that seeks to the end and writes overwrites bytes. While a program on another node
 * writes, or a device releases, this happens to one GETATTR in some dozens.
 *
 * FUSE_NOTIFY_STORE past the end makes the file longer first, and copies bytes into its pages then. Here they
 * can't be read (EFAULT): the size is there, and no byte has changed, whatever others have stored meanwhile.
 * There is no such way to make a file shorter. */
#ifndef GAIAFS_FS_GROW_H
#define GAIAFS_FS_GROW_H

#include "fs/fs.h"

/* For cache_host.grow: context is the struct fs, file_context the struct inode. Waits for a page of the file
 * where it is locked, as an invalidation would. size: at least 1. 0, -ENOENT, or a negative errno. */
int grow_kernel(void *context, void *file_context, off_t size);

#endif
