/* SPDX-License-Identifier: Apache-2.0 */
/* The page cache over host and devices, as fs/ sees it: a cache for a mount, and a cache_file for each file
 * that a device has mapped ("tracked"). A file that no device has mapped has no cache_file, and fs/ then does
 * its I/O itself.
 *
 * All functions return 0 or more, or a negative errno, and may be called from any thread. Those marked [FUSE]
 * may be called from the handlers of FUSE requests: they wait for storage, never for a client, and for the
 * kernel only where this is stated.
 */
#ifndef GAIAFS_CACHE_CACHE_H
#define GAIAFS_CACHE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "cache/durable.h"
#include "cache/fault_path.h"
#include "consistency/page.h"
#include "io/members.h"
#include "io/node.h"

struct cache;
struct cache_file;

/* When a home has told this node that it tracks a file. late: this node stood still, and the file may have
 * been tracked for a while: what its kernel has of it to be written back is older than what was changed
 * since, and is lost. Else the home waits for the answer, unless this node stands still once more: then
 * cache_stalls() is not that of then. */
struct cache_told {
    bool late;
    uint64_t stalls;
};

/* What the cache needs from its host, the FUSE side. */
struct cache_host {
    void *context;
    /* Drop the kernel's cached pages of [offset, offset + length) of a file after writing dirty ones back
     * (length 0: to the end of file; offset -1: attributes only). Called with no lock held and never from a
     * FUSE handler's path. 0, -ENOENT (the kernel does not know the file), or a negative errno. */
    int (*invalidate)(void *context, void *file_context, off_t offset, off_t length);
    /* Have the kernel write back what programs have stored through mappings of [offset, offset + length) of a
     * file: it has come, by WRITEs, when this returns. Called with no lock held and never from a FUSE
     * handler's path, only with members. 0, -ENOENT (the kernel does not know the file), -EAGAIN (the kernel
     * can't be asked for just that: have it drop the range instead), or a negative errno: not all of it could
     * be written back. */
    int (*write_back)(void *context, void *file_context, off_t offset, off_t length);
    /* Make the kernel take the file to be at least so long from here on, whatever it is asking for meanwhile.
     * Called with no lock held, only with members. 0, -ENOENT, or a negative errno. */
    int (*grow)(void *context, void *file_context, off_t size);
    /* The leading bytes of [offset, offset + length) that the kernel holds now, whether their pages are
     * locked or not: how many (at most length), or a negative errno (-ETIMEDOUT: no answer). Some kernels
     * also show pages that are not up to date (cache/heal.h). Called with no lock held, also from the handler
     * of a WRITE. */
    ssize_t (*peek)(void *context, void *file_context, off_t offset, size_t length, void *bytes_out);
    /* The file's cache holds nothing any more / holds something again: fs/ may (not) forget the inode. Called
     * with no lock held. pinned true always comes before the matching false. */
    void (*pin)(void *context, void *file_context, bool pinned);
    /* With members (cache_config.members), of files that other nodes name; no lock is held:
     * The file, if it is tracked here, in use (file_use()): -ESTALE when it is not. */
    int (*find)(void *context, const struct node_name *name, struct cache_file **file_out);
    /* This node is its home: track it, have all agents told (home_announce()), in use when it returns. */
    int (*track)(void *context, const struct node_name *name, struct cache_file **file_out);
    /* The file's home tracks it, with this generation (if this node is its home with a lower one, it gives
     * the file up): when this returns, what programs do to the file here goes to the home, and the kernel
     * holds nothing of it from before. 0 also when nobody has asked for its bytes here. -EBUSY: this node is
     * its home. */
    int (*follow)(void *context, const struct node_name *name, uint64_t generation,
                  const struct cache_told *told);
    /* Keep file_context alive until moved() has returned; false: it is going away already. Called with no
     * lock held, while the file can't be closed. */
    bool (*keep)(void *context, void *file_context);
    /* The file is lost (cache_file_is_lost()): find its present home. May take as long as peers are waited
     * for. */
    void (*moved)(void *context, void *file_context);
    /* All of the data directory is to be on storage. */
    void (*sync)(void *context);
    /* A line for the log, of another node. */
    void (*warn)(void *context, const char *text);
    /* Whether the mount was told to end before it serves. */
    bool (*stops)(void *context);
};

#define CACHE_SOFT_DEVICES 8u /* unless somebody asks for more */

struct cache_config {
    uint64_t device_capacity; /* bytes, default of soft devices */
    uint64_t soft_pool; /* bytes that those of default capacity may have together beyond what each is sure of:
                           as much again in equal shares; 0: no such bound */
    uint64_t gpu_capacity; /* bytes, default of GPUs; 0: seven eighths of its memory */
    uint64_t device_capacity_of[GAIA_DEVICES_MAX]; /* bytes; 0: the default */
    unsigned soft_devices;                         /* soft:0 to soft:(n-1) exist; 1 to GAIA_SOFT_MAX */
    const char *evict;                             /* evict_policy.name */
    uint64_t unit_pages;            /* of a fault: what is placed for one touch; a power of two */
    unsigned fault_threads;         /* of each client, at most; 0: as the processors are many */
    bool io_threads;                /* -o io=threads: no io_uring */
    bool shared;                    /* -o shared: other mounts have the data directory, too (cache/claim.h) */
    bool no_gpudirect;              /* -o gpudirect=off: no NIC writes to a GPU's memory */
    struct fault_path_config fault; /* by what way a fault's bytes go */
    const struct members *members;  /* of several nodes (cache/nodes.h), or NULL */
    struct node_name
        directory; /* with members: the data directory, of which all are nodes. Length 0: no name */
    uint64_t behind_timeout_ns; /* how late a change behind the mount may be noticed (-o timeout) */
};

/* Start and stop. 0 or a negative errno; why_out: a sentence, or "". cache_stop() ends the cache's threads:
 * after it no function of the host is called but pin(). false: some wait for a client, and are left: then
 * nothing is to be freed that they may use, and the process to end. cache_close() frees; what was not flushed
 * before is lost. */
#define CACHE_WHY 320u
int cache_open(const struct cache_config *config, const struct cache_host *host, struct cache **cache_out,
               char why_out[CACHE_WHY]);
/* With members: listen, and meet the others (cache/nodes.h), before the first request is served. Those that
 * answer have told us then of every file that they track, and will tell us of further ones; those that don't
 * are taken to be down. 0 or a negative errno; why_out. */
int cache_join(struct cache *cache, char why_out[CACHE_WHY]);
/* With members: have the homes collect what this node's devices hold, while requests are still served. 0 or a
 * negative errno. */
int cache_leave(struct cache *cache);
/* The mount is about to end: from now on other nodes are not waited for without a limit. */
void cache_ending(struct cache *cache);
/* Set another list of members, which is the caller's; the one before is not used any more when this returns
 * 0, and new members are met. -EBUSY: it lacks one that is mounted, which why_out says; waits a while for one
 * that has just been unmounted. -ENOSPC: more than MEMBERS_MAX names in the course of the mount. If a member
 * can't be met, that is no error, but the caller must log it: why_out is not "" then. */
int cache_set_members(struct cache *cache, const struct members *members, char why_out[CACHE_WHY]);
/* Collect everything that devices hold (unreleased stores too: an early release) into the data directory.
 * Before unmounting, while FUSE is still served, and at the end. 0 or the first error; -EBUSY: what a client
 * has kept busy for too long (cache/flush.c), so that its stores could not be looked for. */
int cache_flush_all(struct cache *cache);
bool cache_stop(struct cache *cache);
void cache_close(struct cache *cache);

/* Begin to track a file. path_fd: an O_PATH or ordinary descriptor of the backing file, not kept (the cache
 * opens its own through /proc/self/fd). file_context is handed to the host's functions; durable is the host's
 * and lives longer than the file. The caller makes sure that no untracked read or write is in flight
 * (docs/design.md, 5). -EACCES, -EMFILE, -ENOMEM, -EIO ... */
int cache_file_open(struct cache *cache, int path_fd, void *file_context, struct durable *durable,
                    struct cache_file **file_out);
/* [FUSE] Only its clients can still reach the file (it has no name, and the kernel has forgotten it): when it
 * has no client either, what devices hold of it is dropped. */
void cache_file_discard(struct cache_file *file);
/* How many descriptors the files cost that are open here. */
size_t cache_count_descriptors(struct cache *cache);
/* Drops what devices hold of a file that nobody has mapped. all: also if somebody has had it mapped since the
 * last call, or if it was let go before and is still there. False: it was not dropped, or not all of it could
 * be. *descriptors_out: how many the file costs; 0: they were reported before. May wait for clients and for
 * write-backs; no lock is held. */
bool cache_file_shed(struct cache_file *file, bool all, size_t *descriptors_out);
/* The inode is gone for good (forgotten, nothing mapped, nothing resident). [FUSE] */
void cache_file_close(struct cache_file *file);

/* How CPUs have a file open. */
struct cache_passed {
    bool passed;     /* in passthrough: the daemon does not see their reads and writes; */
    bool written;    /* and for writing; */
    bool direct;     /* and for direct I/O */
    bool elsewhere;  /* programs of other mounts of the directory may have it so */
    uint64_t number; /* of this news: news that comes after a higher number is old */
};
/* [FUSE] How CPUs have the file open from now on. passed: the kernel reads, writes and maps the backing file
 * by itself (cache/passed.h); written: somebody has, or had, it open for writing so. To be called before the
 * kernel knows; a change to passed before the file is first used, a change away from it at any time. */
void cache_file_pass(struct cache_file *file, const struct cache_passed *how);

enum cache_io_flags {
    CACHE_IO_DIRECT = 1,    /* the request may be a direct read or write: fi->flags & O_DIRECT */
    CACHE_IO_WRITEBACK = 2, /* fi->writepage: a write-back of a kernel page, all its bytes */
    CACHE_IO_APPEND = 4, /* O_APPEND, by open() or fcntl(): the write lands at the end of the backing file */
    /* With CACHE_IO_DIRECT, of a read: it surely is one, and the kernel keeps no page of it. */
    CACHE_IO_UNCACHED = 8,
    CACHE_IO_MORE = 16, /* of a plain WRITE: another piece of it is to come */
};

/* The flags that a peer may give; and whose kernel asks, of several nodes: 0, or 1 + the member's number. */
#define CACHE_IO_FLAGS 31u
#define CACHE_IO_NODE(node) ((unsigned)(node) << 8)

/* Which node is the home of the file of a name: this one (also without members), or another. */
bool cache_is_home(const struct cache *cache, const struct node_name *name);
/* Has a home elsewhere said that it tracks the file of this name? */
bool cache_follows(const struct cache *cache, const struct node_name *name);
/* For a file whose home is elsewhere: have that home track it; cache_host.follow() was called when this
 * returns. May wait. 0, -EIO or another errno. */
int cache_track_far(struct cache *cache, const struct node_name *name);
/* Whether cache_track_far() has failed with this error because the file's home changes: the old one has gone,
 * or the next one does not know yet that it is the home. */
bool cache_home_moves(const struct cache *cache, const struct node_name *name, int error);
/* Begin to ask a home elsewhere for all that is done to a file that it tracks: like cache_file_open(), and
 * all other functions take the result. -ESTALE: that home does not track the file (any more), and is not
 * followed. */
int cache_file_open_far(struct cache *cache, const struct node_name *name, void *file_context,
                        struct durable *durable, struct cache_file **file_out);
/* Is its home elsewhere? And has the session with that home ended? Then all that is done to the file gives
 * -EIO, and the host opens the file anew (inode_track()), here or far; what was opened before stays until it
 * is closed. */
bool cache_file_is_far(const struct cache_file *file);
bool cache_file_is_lost(const struct cache_file *file);
/* Of a far one: its home has not said that what it had acknowledged is on storage, before it left. */
bool cache_file_has_died(const struct cache_file *file);
/* A write-back has failed: does the file's home know this, and remember the lost bytes until they come
 * again? */
bool cache_file_home_knows(const struct cache_file *file);
/* Another node is its home now. What devices have of it is gone, and all that is done to it gives -EIO. */
void cache_file_give_up(struct cache_file *file);
/* Of two homes of a file that of the higher generation keeps it: cache_file_give_up(), or -EBUSY. */
int cache_file_give_way(struct cache_file *file, uint64_t generation);
/* Whether what is gone includes stores of this node's programs that nobody has collected. */
bool cache_file_has_lost_stores(const struct cache_file *file);
/* False: this node has stood still, or is at odds with others, and another may be the file's home by now,
 * which will be known soon: what changes the file's bytes should wait until then. A write-back of this node's
 * kernel need not wait if it would be discarded in any case, nor what collects (a read, a sync) if there is
 * nothing to collect. */
enum cache_change { CACHE_CHANGES, CACHE_WRITES_BACK, CACHE_COLLECTS };
bool cache_file_is_sure(struct cache_file *file, enum cache_change change);
/* The same of files that nobody tracks here: another node may do so by now. True without members. */
bool cache_is_sure(const struct cache *cache);
/* Whether this node may change no file, as other nodes do not know it, or it does not know them. */
bool cache_is_at_odds(const struct cache *cache);
/* How often this node has stood still, with members. */
uint64_t cache_stalls(const struct cache *cache);
/* For how long at most a change waits so. */
unsigned cache_sure_ms(const struct cache *cache);
/* Of a far one: is its home this one? */
bool cache_file_is_at(const struct cache_file *file, const struct node_name *name);
/* From one home to the next: what the kernel holds may be older than what others have written since, so
 * write-backs fail with -EIO until it has dropped it all. */
void cache_file_discard_write_backs(struct cache_file *file, bool discard);
/* Whether it has not yet. */
bool cache_file_discards(const struct cache_file *file);
/* Of a file that was opened here, with members: let all agents know of it, if it has not been done. May wait.
 */
int cache_file_announce(struct cache_file *file, const struct node_name *name);
/* How long a request for a file whose home has gone waits for the next one: a home that died may go
 * unnoticed, here or where the next one is, twice over. */
unsigned cache_move_ms(const struct cache *cache);
/* Keep the file in use, for cache_host.find() and track(), which the caller of those ends. */
void cache_file_hold(struct cache_file *file);
/* Around the caller's having the kernel drop all of a file's pages: WRITEs may be on their way then
 * (cache/heal.h). opened: what cache_file_opened() returned before; 0 when the pages could not be dropped. */
void cache_file_drop_begin(struct cache_file *file);
void cache_file_drop_end(struct cache_file *file, uint64_t opened);
/* With several nodes: when this returns, the programs of all nodes see what CPUs have written so far. It
 * waits for the nodes' kernels, 30 s at most, so it must not be called in a thread that serves FUSE. 0 at
 * once without members. -EIO: a kernel does not drop what it has; -ENOMEM. */
int cache_file_flush(struct cache_file *file);

/* Somebody changed the file behind the mount before it was tracked: the next open must say so. */
void cache_file_behind(struct cache_file *file);
/* [FUSE] The file is being opened. Not 0: somebody has changed it behind the mount since the kernel read its
 * pages, and the kernel must drop them (close to open), either before the open is answered, or because
 * keep_cache is not set in the answer. A file that is far always gives such a number. */
uint64_t cache_file_opened(struct cache_file *file);
/* With members: whether programs of this node have the file open for writing, so that they may store to it
 * through mappings: then an acquire on another node has this one's kernel write back what they have stored.
 * To be called before the first of them has its descriptor, and after the last has closed its own; number: of
 * two calls the one with the higher number is newer. For a far file the home is told, and waited for if wait
 * is set. 0 or a negative errno. [FUSE] */
int cache_file_writers(struct cache_file *file, bool any, uint64_t number, bool wait);
/* The size that the home on another node has said last; -1: this node is the home. *cut_out: it was cut not
 * long ago, so that a filesystem which learns of that late (a minute later, as NFS clients do) may still take
 * the file to be longer.
 */
off_t cache_file_said_size(struct cache_file *file, bool *cut_out);
/* For a file whose home has just become another node: the kernel may know it from before, shorter than it is
 * there now. Waits for pages that are locked; no lock is held. */
void cache_file_tell_size(struct cache_file *file);
/* A READ that is under way; the cache's own. */
struct cache_read {
    LIST_ENTRY(cache_read) link;
    uint64_t number;
    uint64_t first, last; /* pages */
    unsigned node;        /* whose kernel asks */
    bool dropped;         /* by now the kernel no longer holds the page that was read for it */
};
/* [FUSE] Read bytes for a READ; fd: the opener's descriptor. Bytes read (short at the end of the file). In
 * any case cache_file_read_end() must follow when the kernel has the answer; *read_out must not move until
 * then. */
ssize_t cache_file_read(struct cache_file *file, int fd, void *buffer, size_t length, off_t offset,
                        unsigned flags, struct cache_read *read_out);
void cache_file_read_end(struct cache_file *file, struct cache_read *read);
/* [FUSE] Apply a WRITE. Bytes written. Where the kernel may have something stale, this waits for the kernel,
 * some seconds at most (cache/heal.h). */
ssize_t cache_file_write(struct cache_file *file, int fd, const void *buffer, size_t length, off_t offset,
                         unsigned flags);
/* Set the size of a file that is not tracked: by fd, if that is open for writing (>= 0), else by path_fd.
 * 0 or a negative errno. */
int cache_cut(int fd, int path_fd, off_t size);
/* Around that, and around what tells this mount's own changes from others': other mounts bring nothing to the
 * file meanwhile that could make it longer again (cache/claim.h), and those that do are waited for first. */
struct cache_end {
    int held, own; /* descriptors, or -1 */
};
/* *missed (or NULL): as claim_hold_end() has it. */
void cache_end_hold(struct cache *cache, int fd, int path_fd, bool *missed, struct cache_end *end_out);
void cache_end_let_go(const struct cache_end *end);
/* [FUSE] Set the size (SETATTR): fd >= 0: ftruncate on it, else through the cache's own descriptor. O_TRUNC
 * at open is the same with size 0. */
int cache_file_truncate(struct cache_file *file, int fd, off_t size);
/* [FUSE] The rest of the data operations; each is a read or a write in the sense of rule 3. overrule (may be
 * NULL) begins if bytes were changed. */
int cache_file_fallocate(struct cache_file *file, int fd, int mode, off_t offset, off_t length,
                         struct overrule *overrule);
off_t cache_file_seek(struct cache_file *file, int fd, off_t offset, int whence);
/* [FUSE] All that devices have released is in the backing file when this returns: so no later collect undoes
 * times that are set then. 0 or a negative errno. */
int cache_file_collect(struct cache_file *file);
/* Either file may be NULL (untracked); its gate may be held. cache_file_copy_end() must follow for out, if
 * not NULL, with no lock held: it may call the host's pin(). */
ssize_t cache_file_copy_range(struct cache_file *in, int fd_in, off_t offset_in, struct cache_file *out,
                              int fd_out, off_t offset_out, size_t length, unsigned flags,
                              struct overrule *overrule);
void cache_file_copy_end(struct cache_file *out);
/* Collect what is pending, then fsync or fdatasync: durable_sync() for fd and *seen; then, with several
 * nodes, as cache_file_flush(). [FUSE] without members. */
int cache_file_sync(struct cache_file *file, int fd, bool data_only, struct durable_seen *seen);

#endif
