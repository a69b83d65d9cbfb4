/* SPDX-License-Identifier: Apache-2.0 */
/* A bound for the descriptors of files that devices have had mapped, and for the memory behind these. Each
 * such file costs two, and two more for each device, as long as it is known, which it is as long as a device
 * holds a page of it, or the kernel its name. When there are too many, files that nobody has open or mapped
 * are let go: what devices hold of them is written back and dropped, and the kernel is made to forget them
 * (FUSE_NOTIFY_PRUNE; before Linux 6.18 FUSE_NOTIFY_INVAL_ENTRY, which all know). The next one to map such a
 * file finds it as it would any other.
 */
#ifndef GAIAFS_FS_SHED_H
#define GAIAFS_FS_SHED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct fs;

struct shed {
    size_t most;        /* descriptors */
    atomic_size_t next; /* so many are looked at next: more, where those that were there are in use */
    atomic_bool running;
};

/* descriptors: how many the process may have; inodes: how many may be known. The kernel can't be asked to
 * forget a file of which a device holds a page, so not all inodes may be such. */
void shed_init(struct fs *fs, size_t descriptors, size_t inodes);
/* A file is about to be mapped. Where there are too many, a thread begins to let some go, and where they are
 * many more this waits for it, a moment at most. Not in a thread that serves FUSE. */
void shed_make_room(struct fs *fs);
/* error: of what was tried nevertheless. True: it failed for want of descriptors, and there may be some
 * now. */
bool shed_after(struct fs *fs, int error);

#endif
