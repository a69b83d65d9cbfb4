/* SPDX-License-Identifier: Apache-2.0 */
/* Room in a control group for inodes of the filesystem below. The kernel charges them to the process that
 * looks them up, and keeps them when nobody uses them any more. At the group's limit it would free them for
 * most other charges, but not for another inode (GFP_NOFS: the caller might hold locks of that very
 * filesystem). Then it kills, though it could have had that memory back at once. So the daemon keeps some
 * room. */
#ifndef GAIAFS_FS_HEADROOM_H
#define GAIAFS_FS_HEADROOM_H

#include <stdatomic.h>
#include <stdint.h>

struct fs;

struct headroom {
    int usage;            /* of the group with the least limit; -1: there is none */
    uint64_t limit, room; /* bytes */
    atomic_uint inodes;   /* that may have been read since it was looked at */
    atomic_flag busy;     /* somebody makes room */
};

void headroom_init(struct headroom *headroom);
void headroom_end(struct headroom *headroom);
/* An inode of the filesystem below has been, or is about to be, looked up. Now and then this takes some
 * milliseconds. No lock is held but that of a folder's position. */
void headroom_keep(struct headroom *headroom);

#endif
