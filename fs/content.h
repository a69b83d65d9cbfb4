/* SPDX-License-Identifier: Apache-2.0 */
/* The content of a file: state that a file needs only once somebody has asked for its bytes. It says whether
 * the bytes go through the cache (the file is tracked) or straight to the data directory, how both reach
 * storage, and what was last seen of the file. An inode gets one when it is first opened, and has it until it
 * is freed.
 *
 * All functions may be called from any thread; they take the lock of the inode's shard, or the gate, as said.
 */
#ifndef GAIAFS_FS_CONTENT_H
#define GAIAFS_FS_CONTENT_H

#include "base/order.h"
#include "cache/cache.h"
#include "cache/durable.h"
#include "fs/inode.h"
#include "fs/passthrough.h"
#include "fs/writers.h"

struct cache_file;

struct content {
    /* NULL: untracked. Set with the gate held exclusively, once, or anew when it is lost (fs/nodes.h); what
     * it was before is kept until the inode is freed. */
    _Atomic(struct cache_file *) file;
    struct lost_file *lost; /* what it was; the gate */
    struct durable durable;
    /* Held shared by every data operation on an untracked file until its backing I/O is done. */
    pthread_rwlock_t gate;
    struct passthrough passthrough; /* guarded by fs->passthrough_lock */
    /* Of fs/nodes.c: the lost file for whose next home somebody looks; there was no thread for
     * nodes_settle(). */
    _Atomic(struct cache_file *) sought;
    atomic_bool unsettled;
    /* How often the kernel has dropped what it had from under another home: a write-back that it began before
     * that is discarded, however late it comes to be done. Before Linux 6.16 the kernel does not wait for
     * those. */
    _Atomic uint64_t settled;
    /* A home waits for what is being written here, and has not given this node up: 1 + cache_stalls() then.
     * 0: none does. */
    _Atomic uint64_t awaited;
    /* Of a mount with -o shared: who holds the file's end together: inode_hold_end(). Guarded by the lock of
     * the inode's shard. */
    struct {
        unsigned users;
        bool taking;
        bool missed; /* as in cache/claim.h; of who takes it */
        uint64_t since_ns;
        struct cache_end held;
    } end;
    struct inode_writers writers; /* guarded by the lock of the inode's shard */
    /* The file's size and times at its last open, or after a change of ours that found them unchanged: the
     * kernel may keep its pages when the next open sees the same. Guarded by the lock of the inode's
     * shard. */
    struct {
        bool valid;
        unsigned changing; /* changes of ours of its bytes under way, */
        bool change_ours;  /* before which nobody else has changed it */
        uint64_t changes;  /* and those that are over */
        /* The same of its names and attributes; setting: those of its times. */
        unsigned touching, setting;
        bool touch_ours;
        uint64_t touches;
        off_t size;
        struct timespec mtime, ctime;
        bool opened;      /* before: the kernel may have pages */
        uint64_t found;   /* changes of others while that was so */
        uint64_t dropped; /* so many there were when the kernel was last made to drop its pages */
    } seen;
};

/* A file whose home has gone: threads that found it before may still use it. */
struct lost_file {
    struct lost_file *next;
    struct cache_file *file;
};

/* NULL before inode_durable() was called for it. */
struct content *inode_content(struct inode *inode);

static inline struct cache_file *content_file(const struct content *content)
{
    struct cache_file *file = atomic_load_explicit(&content->file, memory_order_acquire);

    if (file)
        order_after(file); /* for helgrind, which takes an atomic for a race: being an atomic makes the order
                              so */
    return file;
}

/* NULL: untracked. */
static inline struct cache_file *inode_file(struct inode *inode)
{
    struct content *content = inode_content(inode);

    return content ? content_file(content) : NULL;
}

/* Of a node of which the data directory's filesystem has memory of its own on each machine, as a client of
 * NFS does: what programs have written to the file is brought out of this machine's, and what that still has
 * of the file is dropped. For such a client keeps what it has read before others have changed the file, as
 * long as the file is open for writing here: it takes their change for its own. The gate is held exclusively.
 * 0, also where the bytes could not be stored, which syncs tell then; or a negative errno. */
int inode_meet_storage(struct inode *inode);
/* Begin to track the file, if nobody has: from then on its data goes through the cache. Waits until no
 * untracked operation is in flight. The caller holds a reference. 0 or what cache_file_open() says. */
int inode_track(struct fs *fs, struct inode *inode, struct cache_file **file_out);
/* The inode's file, if it can be used: NULL also when it is lost. */
struct cache_file *inode_usable(struct inode *inode);
/* Make file the inode's, where it has none or a lost one; the gate is held exclusively. -ENOMEM. */
int inode_set_file(struct inode *inode, struct cache_file *file);

/* What is known of the file's way to storage; NULL when memory is short. It always exists once the inode has
 * been opened. An inode of which bytes are lost is kept when nobody holds it any more, as long as the file
 * has a name. */
struct durable *inode_durable(struct inode *inode);

/* For every data operation, after an inode_durable() that was not NULL: enter; then, if NULL was returned, do
 * the backing I/O directly (the gate is held), else call cache_file_*() with what was returned (no gate is
 * held); then leave with the same pointer. */
struct cache_file *inode_gate_enter(struct inode *inode);
/* The same for a change that write-backs must not cross (cache/overrule.h): the gate is held exclusively. */
struct cache_file *inode_gate_enter_alone(struct inode *inode);
void inode_gate_leave(struct inode *inode, const struct cache_file *file);

/* Has nobody but us changed the file, of which fd is a descriptor, since its last open? Notes its size and
 * times for the next. What fstat() said is in *st_out; zeros: nothing. */
bool inode_unchanged(struct inode *inode, int fd, struct stat *st_out);
/* The file is being opened, and inode_unchanged() was asked unless it is tracked. 0: none of the kernel's
 * pages are from before a change that this or another open has found. Else they must be dropped before the
 * open is answered, unless the answer says not to keep them; then inode_dropped() must be called with what
 * this has returned. *again_out: it was open before, and the kernel may have pages. */
uint64_t inode_opened(struct inode *inode, bool *again_out);
/* All pages are dropped that the kernel had when inode_opened() returned that number. */
void inode_dropped(struct inode *inode, uint64_t found);

/* Around a change of ours of an untracked file: if nobody else has changed the file before, it counts as
 * unchanged afterwards. An open that made the kernel drop its pages may meet WRITEs that are on their way
 * (cache/heal.h). Changes of bytes that somebody else makes meanwhile can be told from our change of names
 * and attributes, which moves neither the size nor (unless it sets times) the time of the last change of
 * bytes. For a file without content nothing is noted. */
enum inode_change_kind {
    CHANGE_OF_BYTES,
    CHANGE_OF_NAMES, /* and attributes */
    CHANGE_OF_TIMES
};
struct inode_change {
    enum inode_change_kind kind;
    bool ours;
    struct content *content; /* NULL: nothing is noted */
};
void inode_change_begin(struct inode *inode, int fd, enum inode_change_kind kind,
                        struct inode_change *change_out);
void inode_change_end(struct inode *inode, int fd, const struct inode_change *change);

/* Around a write-back of an untracked file that other mounts may cut: cache_end_hold(). Those of this mount,
 * of which the kernel has many under way, hold it together, and do not wait for each other as for another
 * mount, in the end in vain; but not for so long that another does not get its turn. fd: of the file. */
void inode_hold_end(struct inode *inode, int fd);
void inode_let_end_go(struct inode *inode);

/* For fs/inode.c, which frees the inode, or forgets its content: nobody knows the inode any more.
 */
void content_free(struct fs *fs, struct content *content);

#endif
