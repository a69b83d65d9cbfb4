/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the kernel reads, writes and maps through to the backing file by itself (FUSE passthrough, Linux
 * 6.9): near-native speed, and the daemon sees none of it. docs/design.md, section 7; docs/linux-fuse.md.
 *
 * All opens of a file go one way. The first decides: passed through, unless a device has the file already
 * ("tracked", fs/content.h), or the opening program uses devices (fs/programs.h), or the kernel can't. Once a
 * file was passed through it stays so until the kernel has forgotten it: a mapping outlives its descriptors,
 * and the only sign of it is that the kernel keeps the inode. A device that maps such a file finds what CPUs
 * changed by comparing (cache/passed.h).
 */
#ifndef GAIAFS_FS_PASSTHROUGH_H
#define GAIAFS_FS_PASSTHROUGH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cache/cache.h"

struct cache_file;
struct fs;
struct fuse_file_info;
struct handle;
struct inode;

/* Of an inode; guarded by fs->passthrough_lock. */
struct passthrough {
    bool passed;              /* it was opened so since the kernel knows it; */
    bool written;             /* and for writing */
    bool direct;              /* and for direct I/O */
    struct cache_passed told; /* what the cache knows of it, once a device has mapped the file */
    uint64_t number;          /* of what it was told or is being told last */
    uint64_t opens;           /* that were passed through */
    uint64_t dropped;         /* so many there were when the kernel was last made to drop its pages */
    unsigned handles;         /* open now, passed through */
    unsigned cached;          /* open now, and not */
    int32_t backing;          /* the kernel's name of the backing file, while there are handles */
};

void passthrough_init(struct fs *fs);
void passthrough_end(struct fs *fs);

/* FUSE_INIT: whether to take the kernel's offer, which sets fs->passes (fs/open_reply.h). */
bool passthrough_is_wanted(struct fs *fs);

/* Decides how the handle's file is open, and puts it into the handle and fi. opener: the thread that opens
 * it, by its number here, 0 where it has none. 0, or a negative errno: the open must fail. */
int passthrough_open(struct fs *fs, struct handle *handle, pid_t opener, struct fuse_file_info *fi);
/* The handle's file is closed. */
void passthrough_close(struct fs *fs, struct handle *handle);

/* A device maps the inode: makes file its cache file, and tells that how CPUs have the inode open. */
void passthrough_track(struct fs *fs, struct inode *inode, struct cache_file *file);
/* The kernel has forgotten the inode; the caller holds a reference. */
void passthrough_forget(struct fs *fs, struct inode *inode);

/* For people: how a file is open, or was last. */
struct passthrough_mode {
    unsigned opens;   /* now */
    const char *name; /* "passthrough", "tracked", "cached" */
};
void passthrough_look(struct fs *fs, struct inode *inode, struct passthrough_mode *mode_out);

#endif
