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
#include "base/order.h"
#include "cache/durable.h"
#include "fs/inode_table.h"
#include "fs/passthrough.h"

struct cache_file;
struct fs;

/* What only a file has whose bytes somebody has asked for. */
struct content {
    /* NULL: untracked. Set with the gate held exclusively, once, or anew when it is lost (fs/nodes.h); what
     * it was before is kept until the inode is freed. */
    _Atomic(struct cache_file *) file;
    struct lost_file *lost; /* what it was; the gate */
    struct durable durable;
    /* Held shared by every data operation on an untracked file until its backing I/O is done. */
    pthread_rwlock_t gate;
    struct passthrough passthrough; /* guarded by fs->passthrough_lock */
    /* Of fs/nodes.c: somebody looks for the next home; there was no thread for nodes_settle(). */
    atomic_bool seeks, unsettled;
    /* What the file was at its last open, or after a change of ours that found it so: the kernel may keep its
     * pages when the next open sees the same. Guarded by the lock of the inode's shard. */
    struct {
        bool valid;
        unsigned changing; /* changes of ours under way */
        uint64_t changes;  /* and those that are over */
        off_t size;
        struct timespec mtime, ctime;
        bool opened;         /* before: the kernel may have pages */
        int64_t dropping_ns; /* CLOCK_MONOTONIC_COARSE of the last open that was told to drop them; 0: none */
    } seen;
};

/* A file whose home has gone: who found it before may still use it. */
struct lost_file {
    struct lost_file *next;
    struct cache_file *file;
};

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
    int handle_type;
    struct place *place;
    unsigned char handle[];
};

/* NULL before inode_durable() was called for it. */
struct content *inode_content(struct inode *inode);

/* NULL: untracked. */
static inline struct cache_file *inode_file(struct inode *inode)
{
    struct content *content = atomic_load_explicit(&inode->content, memory_order_acquire);
    struct cache_file *file = NULL;

    if (content) {
        order_after(content);
        file = atomic_load_explicit(&content->file, memory_order_acquire);
    }
    if (file)
        order_after(file); /* for helgrind, which takes an atomic for a race: that it is one makes it so */
    return file;
}

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
/* fd, which is taken over, is of a file from which we have just taken a name. If that was the last, who still
 * has it (open, or as the working directory) must reach it without. */
void inode_unlinked(struct fs *fs, int fd);
void inode_forget(struct inode *inode, uint64_t lookups);
/* Whether the kernel knows it. */
bool inode_is_known(struct inode *inode);
/* Whether bytes of it are lost, which must not be forgotten with the inode: the next fsync would succeed. */
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
/* Begin to track the file, if nobody has: from then on its data goes through the cache. Waits until no
 * untracked operation is in flight. The caller holds a reference. 0 or what cache_file_open() says. */
int inode_track(struct fs *fs, struct inode *inode, struct cache_file **file_out);
/* The inode's file, if it can be used: NULL also when it is lost. */
struct cache_file *inode_usable(struct inode *inode);
/* Make file the inode's, in place of one that is lost or of none; the gate is held exclusively. -ENOMEM. */
int inode_set_file(struct inode *inode, struct cache_file *file);

/* What is known of the file's way to storage; NULL when memory is short. Once it has been opened it is there.
 * An inode of which bytes are lost is kept when nobody holds it any more, as long as the file has a name. */
struct durable *inode_durable(struct inode *inode);

/* Every data operation, after an inode_durable() that was not NULL: enter, then, when NULL was returned, do
 * the backing I/O oneself (the gate is held), else call cache_file_*() with what was returned (no gate is
 * held); then leave with the same pointer. */
struct cache_file *inode_gate_enter(struct inode *inode);
void inode_gate_leave(struct inode *inode, const struct cache_file *file);

/* The path below the data directory, for people to read: the file may have moved since. Length or a negative
 * errno. */
ssize_t inode_path(struct inode *inode, char *path_out, size_t size);

/* Has nobody but us changed the file, of which fd is a descriptor, since its last open? Notes its size and
 * times for the next. */
bool inode_unchanged(struct inode *inode, int fd);
/* Who opens a file that has changed has the kernel drop its pages, in his own time: after the answer. drops:
 * this open is told to. Returns whether another one may still be about to, so that nobody may be told to keep
 * them: for 100 ms, after which he has had a processor. */
bool inode_drops_pages(struct inode *inode, bool drops);

/* Around a change of an untracked file's data: what nobody else has changed before counts as unchanged after
 * it. An open that made the kernel drop its pages meets WRITEs that are on their way (cache/heal.h). */
struct inode_change {
    bool ours;
};
void inode_change_begin(struct inode *inode, int fd, struct inode_change *change_out);
void inode_change_end(struct inode *inode, int fd, const struct inode_change *change);

/* Calls visit for each tracked (or for each known) inode with a reference and no lock held. Those that appear
 * meanwhile may be missed. Stops at, and returns, the first value that is not 0; -ENOMEM. */
int fs_each_tracked(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context);
int fs_each_inode(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context);

/* For the table. inode_free(): the inode is not in it any more, and nothing else knows it. */
struct inode *inode_new_gone(struct fs *fs);
bool inode_is_used(const struct inode *inode);
void inode_free(struct inode *inode);

#endif
