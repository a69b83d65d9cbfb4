/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of inodes, for the time of an operation. An inode costs no descriptor: it is opened by its
 * handle when one is needed. Those used last stay open for the next operation that needs them, so that a
 * folder in use is not opened for each of its names. */
#ifndef GAIAFS_FS_BORROW_H
#define GAIAFS_FS_BORROW_H

#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

struct fs;
struct inode;
struct inode_shard;

enum descriptor_kind {
    DESCRIPTOR_CACHED,
    /* The last descriptor of a file without a name: when it is closed, nothing leads to the file any more. So
     * these have a list of their own, from which the oldest goes only when there are too many. */
    DESCRIPTOR_LAST,
    DESCRIPTOR_KEPT, /* of the root, and of what has no handle */
    DESCRIPTOR_KINDS,
};

/* An inode's: guarded by the lock of its shard, as the lists are. */
struct descriptor {
    TAILQ_ENTRY(descriptor) link; /* while nobody uses it, in the list of its kind */
    struct inode *inode;
    int fd;
    unsigned users;
    enum descriptor_kind kind;
};

TAILQ_HEAD(descriptor_list, descriptor);

struct descriptors {
    struct descriptor_list idle[DESCRIPTOR_KINDS]; /* used longest ago first */
    unsigned count[DESCRIPTOR_KINDS];              /* with those in use */
    unsigned max[DESCRIPTOR_KINDS];                /* of those in use there may be more */
};

/* A descriptor (O_PATH | O_NOFOLLOW) that stands for the inode, or a negative errno. Until it is given back
 * the inode stays known, too. */
struct borrowed {
    struct inode *inode;
    int fd;
};

struct borrowed inode_borrow(struct inode *inode);
void inode_return(struct borrowed *borrowed);

/* A variable whose descriptor is given back where its block ends. */
#define BORROWED __attribute__((cleanup(inode_return))) struct borrowed

void descriptors_init(struct descriptors *descriptors, unsigned max);
/* With the shard's lock held. fd becomes the inode's, which has none. -ENOMEM: fd is still the caller's. */
int descriptors_add(struct inode_shard *shard, struct inode *inode, int fd, enum descriptor_kind kind);
/* Note whether the inode's descriptor is the last that leads to the file. */
void descriptors_mark(struct inode_shard *shard, struct inode *inode, bool last);
/* Take away the inode's descriptor, if it has one; or those that are too many. They must be closed without
 * the lock. */
void descriptors_remove(struct inode_shard *shard, struct inode *inode, struct descriptor_list *closing);
void descriptors_trim(struct inode_shard *shard, struct descriptor_list *closing);

void descriptors_close(struct descriptor_list *closing);
/* After a call that failed with this errno: if that was for want of descriptors, closes all that are not in
 * use and can be opened again. True: another try is worthwhile, as there were some, or another thread has
 * closed some a moment ago. */
bool descriptors_shed(struct fs *fs, int error);
/* openat(2), tried again so. A descriptor or a negative errno. */
int descriptors_openat(struct fs *fs, int at, const char *path, int flags, mode_t mode);
/* The same, with quiet, O_NOATIME or 0, if that is allowed: not of other users' files, if the daemon is not
 * root. Where the opener has said it, it is in flags. */
int descriptors_open_quietly(struct fs *fs, int at, const char *path, int flags, mode_t mode, int quiet);

#endif
