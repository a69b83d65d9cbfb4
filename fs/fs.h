/* SPDX-License-Identifier: Apache-2.0 */
/* A mount: the data directory below it, the kernel's session above it, the cache and the client server beside
 * it. There is one struct fs in a daemon. Fields without a comment on locking are set before the session is
 * served. */
#ifndef GAIAFS_FS_FS_H
#define GAIAFS_FS_FS_H

#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 314
#endif
#include <dirent.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/lock.h"
#include "base/order.h"
#include "base/proc_path.h"
#include "cache/cache.h"
#include "fs/borrow.h"
#include "fs/flusher.h"
#include "fs/headroom.h"
#include "fs/inode.h"
#include "fs/mountinfo.h"
#include "fs/options.h"
#include "fs/programs.h"
#include "fs/prune.h"
#include "fs/shed.h"

struct page_drop;
struct server;
struct handle;

struct fs {
    struct fs_options options;
    char *data_path;         /* absolute, no symbolic links; what inode_path() takes away */
    char *mount_path;        /* absolute, no symbolic links */
    struct mounted mounted;  /* our own mount: its st_dev is never to be entered by the daemon */
    bool as_root;            /* the daemon may act for other users */
    bool kills_privileges;   /* FUSE_HANDLE_KILLPRIV_V2: set-id bits are ours to clear */
    bool local;              /* the data directory's filesystem is this machine's alone (fs/mount.c) */
    unsigned hides;          /* REFUSES_*: resolve_hidden() */
    bool dates_reads;        /* times of access move there */
    bool prompt_write_backs; /* base/kernel.h */
    bool drops_behind;       /* the same */
    struct fuse_session *session;
    struct cache *cache;
    struct server *server;
    struct inode *root;
    atomic_uint mounting; /* names below on which something is being mounted on demand */
    struct inode_table inodes;
    struct volumes volumes;
    struct pruner pruner;
    struct shed shed;
    struct headroom headroom;
    struct flusher flusher;
    struct members *members; /* read again since the mount; of nodes_reread(): one thread at a time */
    atomic_uint rereads;     /* SIGHUPs since that was last begun */
    uint32_t generation;     /* of node ids: those of an earlier mount are not ours, though they look alike */

    struct programs programs;         /* that use devices */
    atomic_bool passes;               /* files may be passed through (fs/passthrough.h) */
    pthread_mutex_t passthrough_lock; /* guards the state of that in each inode */

    atomic_uint later;          /* answers that other threads give (fs/later.h) */
    atomic_uint drops;          /* of pages, under way in threads that serve FUSE (fs/later.h) */
    pthread_mutex_t drops_lock; /* guards those in other threads: */
    unsigned droppers;
    STAILQ_HEAD(, page_drop) drops_waiting; /* none, where there are no droppers */
    /* Held shared by each notification to the kernel, exclusively to set serving to false: a notification
     * waits for write-backs, so none may be under way when the session stops being served. */
    pthread_rwlock_t notify_gate;
    atomic_bool serving;
    bool left; /* threads that wait for clients are waited for no longer: fs/left.h */

    pthread_mutex_t handles_lock; /* guards the list of open handles */
    struct handle *handles;
};

/* An open file or directory: fi->fh points to it. */
struct handle {
    int fd;
    int flags;           /* as the opener gave them, access mode included; O_DIRECT is not set on fd */
    struct inode *inode; /* a reference is held */
    struct durable_seen seen;
    atomic_bool has_tokens; /* fs/token.h: it may have */
    bool passed, counted;   /* the kernel passes its I/O through; it is counted (fs/passthrough.h) */
    bool flushes;           /* the flusher's (fs/flusher.h) */
    bool asks;              /* of a passed one: reads and writes come to the daemon nevertheless */
    bool uncached;          /* of another: the kernel has been told not to use its cache */
    bool left;              /* it took the file out of passthrough: the kernel may have pages from before */
    int32_t backing;        /* of a passed one: what the kernel calls the backing file */
    _Atomic int page_fd;    /* -1, or a second descriptor without O_APPEND; see handle_page_fd() */

    /* Directories only. lock guards the three. */
    DIR *dir;
    struct dirent *entry; /* read but not yet given to the kernel */
    off_t position;
    pthread_mutex_t lock;

    struct handle *previous, *next; /* fs->handles, under fs->handles_lock */
};

/* Takes over fd (and dir, if not NULL, whose fd it then is). NULL when memory is short; fd is then still the
 * caller's. */
struct handle *handle_new(struct fs *fs, struct inode *inode, int fd, DIR *dir, int flags);
/* Closes all that it holds. */
void handle_free(struct fs *fs, struct handle *handle);
/* Whether anybody has the inode open for writing. Looks at all that is open. */
bool handle_may_write(const struct inode *inode);

static inline struct fs *fs_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static inline struct inode *inode_of(fuse_req_t req, fuse_ino_t nodeid)
{
    struct inode *inode = inode_find(fs_of(req), nodeid);

    order_after(inode); /* the kernel has it from an answer, given after it was made */
    return inode;
}

static inline fuse_ino_t nodeid_of(const struct inode *inode)
{
    return inode == inode->fs->root ? FUSE_ROOT_ID : inode->id;
}

static inline struct handle *handle_of(const struct fuse_file_info *fi)
{
    struct handle *handle = fi ? (struct handle *)(uintptr_t)fi->fh : NULL;

    if (handle)
        order_after(handle); /* likewise */
    return handle;
}

/* The kernel sends RELEASE and FORGET when all that it asked about the handle or the inode is answered. */
#ifdef GAIAFS_SEES_ORDER
#define fuse_reply_attr(req, ...) (order_before(fs_of(req)), fuse_reply_attr(req, __VA_ARGS__))
#define fuse_reply_buf(req, ...) (order_before(fs_of(req)), fuse_reply_buf(req, __VA_ARGS__))
#define fuse_reply_create(req, ...) (order_before(fs_of(req)), fuse_reply_create(req, __VA_ARGS__))
#define fuse_reply_entry(req, ...) (order_before(fs_of(req)), fuse_reply_entry(req, __VA_ARGS__))
#define fuse_reply_err(req, ...) (order_before(fs_of(req)), fuse_reply_err(req, __VA_ARGS__))
#define fuse_reply_ioctl(req, ...) (order_before(fs_of(req)), fuse_reply_ioctl(req, __VA_ARGS__))
#define fuse_reply_lseek(req, ...) (order_before(fs_of(req)), fuse_reply_lseek(req, __VA_ARGS__))
#define fuse_reply_open(req, ...) (order_before(fs_of(req)), fuse_reply_open(req, __VA_ARGS__))
#define fuse_reply_readlink(req, ...) (order_before(fs_of(req)), fuse_reply_readlink(req, __VA_ARGS__))
#define fuse_reply_statfs(req, ...) (order_before(fs_of(req)), fuse_reply_statfs(req, __VA_ARGS__))
#define fuse_reply_write(req, ...) (order_before(fs_of(req)), fuse_reply_write(req, __VA_ARGS__))
#define fuse_reply_xattr(req, ...) (order_before(fs_of(req)), fuse_reply_xattr(req, __VA_ARGS__))
#endif

/* Answers with the error, if rc is one. */
static inline bool reply_if_error(fuse_req_t req, int rc)
{
    if (rc < 0)
        fuse_reply_err(req, -rc);
    return rc < 0;
}

/* For descriptors_open_quietly(): where a caller's reads must not change the time of access, by the mount's
 * options, the daemon's must not either.
 */
static inline int atime_flag(const struct fs *fs)
{
    return fs->options.no_atime || fs->options.read_only ? O_NOATIME : 0;
}

static inline int folder_atime_flag(const struct fs *fs)
{
    return fs->options.no_diratime ? O_NOATIME : atime_flag(fs);
}

#endif
