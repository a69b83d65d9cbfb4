/* SPDX-License-Identifier: Apache-2.0 */
/* Of several nodes: whether programs of this one have a file open for writing. Its home is told, as such
 * programs may store to it through mappings, and an acquire on another node wants that (cache/writers.h).
 *
 * All functions may be called from any thread; they take the lock of the inode's shard. Without members
 * nothing is counted. */
#ifndef GAIAFS_FS_WRITERS_H
#define GAIAFS_FS_WRITERS_H

#include <stdbool.h>
#include <stdint.h>

struct cache_file;
struct inode;

/* Of an inode with content; guarded by the lock of its shard. */
struct inode_writers {
    unsigned count;                /* descriptions, and mappings that keep one */
    uint64_t number;               /* how often there were some and none by now */
    const struct cache_file *told; /* whose home knows */
    uint64_t told_number;          /* of that many */
};

/* One more, of which the home may not know yet; and one less, of which it is told, but not waited for. */
void inode_writers_add(struct inode *inode);
void inode_writers_remove(struct inode *inode);
bool inode_has_writers(struct inode *inode);
/* The home of now knows when it returns 0: before a program has its descriptor, and when there is another
 * home. Waits for its answer. Else a negative errno, of a home that lives. */
int inode_writers_tell(struct inode *inode);

#endif
