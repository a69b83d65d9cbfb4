/* SPDX-License-Identifier: Apache-2.0 */
/* The page cache over host and devices, as fs/ sees it: a cache for a mount, and a cache_file for each file
 * that a device has mapped ("tracked"). A file that no device has mapped has no cache_file, and fs/ then does
 * its I/O itself.
 *
 * All functions return 0 or more, or a negative errno, and may be called from any thread. Those marked [FUSE]
 * may be called from the handlers of FUSE requests: they wait for storage, never for the kernel or a client.
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

struct cache;
struct cache_file;

/* What the cache needs from its host, the FUSE side. */
struct cache_host {
    void *context;
    /* Drop the kernel's cached pages of [offset, offset + length) of a file after writing dirty ones back
     * (length 0: to the end of file; offset -1: attributes only). Called with no lock held and never from a
     * FUSE handler's path. 0, -ENOENT (the kernel does not know the file), or a negative errno. */
    int (*invalidate)(void *context, void *file_context, off_t offset, off_t length);
    /* The leading bytes of [offset, offset + length) that the kernel holds now, locked or not, and up to date
     * (or not: that depends on the kernel): how many (at most length), or a negative errno (-ETIMEDOUT: no
     * answer). Called with no lock held, also from the
     * handler of a WRITE. */
    ssize_t (*peek)(void *context, void *file_context, off_t offset, size_t length, void *bytes_out);
    /* The file's cache holds nothing any more / holds something again: fs/ may (not) forget the inode. Called
     * with no lock held. pinned true always comes before the matching false. */
    void (*pin)(void *context, void *file_context, bool pinned);
};

#define CACHE_SOFT_DEVICES 8u /* unless somebody asks for more */

struct cache_config {
    uint64_t device_capacity; /* bytes, default of soft devices */
    uint64_t gpu_capacity;    /* bytes, default of GPUs; 0: seven eighths of its memory */
    uint64_t device_capacity_of[GAIA_DEVICES_MAX]; /* bytes; 0: the default */
    unsigned soft_devices;                         /* soft:0 to soft:(n-1) exist; 1 to GAIA_SOFT_MAX */
    const char *evict;                             /* evict_policy.name */
    uint64_t unit_pages;            /* of a fault: what is placed for one touch; a power of two */
    bool io_threads;                /* -o io=threads: no io_uring */
    bool shared;                    /* -o shared: other mounts have the data directory, too (cache/claim.h) */
    struct fault_path_config fault; /* by what way a fault's bytes go */
    uint64_t behind_timeout_ns;     /* how late a change behind the mount may be noticed (-o timeout) */
};

/* Start and stop. 0 or a negative errno; why_out: a sentence, or "". cache_stop() ends the cache's threads:
 * after it no function of the host is called but pin(). cache_close() frees; what was not flushed before is
 * lost. */
#define CACHE_WHY 320u
int cache_open(const struct cache_config *config, const struct cache_host *host, struct cache **cache_out,
               char why_out[CACHE_WHY]);
/* Collect everything that devices hold (unreleased stores too: an early release) into the data directory.
 * Before unmounting, while FUSE is still served. 0 or the first error. */
int cache_flush_all(struct cache *cache);
void cache_stop(struct cache *cache);
void cache_close(struct cache *cache);

/* Begin to track a file. path_fd: an O_PATH or ordinary descriptor of the backing file, not kept (the cache
 * opens its own through /proc/self/fd); writable says whether the data directory allows writing. file_context
 * is handed to the host's functions; durable is the host's and lives longer than the file. The caller makes
 * sure that no untracked read or write is in flight (docs/design.md, 5). -EACCES, -EMFILE, -ENOMEM, -EIO ...
 */
int cache_file_open(struct cache *cache, int path_fd, void *file_context, struct durable *durable,
                    struct cache_file **file_out);
/* [FUSE] Nobody can reach the file any more but its clients (it has no name, and the kernel has forgotten
 * it): when it has no client either, what devices hold of it is dropped. */
void cache_file_discard(struct cache_file *file);
/* The inode is gone for good (forgotten, nothing mapped, nothing resident). [FUSE] */
void cache_file_close(struct cache_file *file);

/* How CPUs have a file open. */
struct cache_passed {
    bool passed;  /* in passthrough: nobody hears of their reads and writes; */
    bool written; /* and for writing; */
    bool direct;  /* and for direct I/O */
};
/* [FUSE] How CPUs have the file open from now on: passed, the kernel reads, writes and maps the backing file
 * by itself (cache/passed.h); written: somebody has, or had, it open for writing so. Told before the kernel
 * knows: to passed before the file is first used, away from it at any time. */
void cache_file_pass(struct cache_file *file, const struct cache_passed *how);

enum cache_io_flags {
    CACHE_IO_DIRECT = 1,    /* the request may be a direct read or write: fi->flags & O_DIRECT */
    CACHE_IO_WRITEBACK = 2, /* fi->writepage: a write-back of a kernel page, all its bytes */
    CACHE_IO_APPEND = 4,    /* fd was opened with O_APPEND: the write lands at the end of the backing file */
    CACHE_IO_UNCACHED =
        8, /* with CACHE_IO_DIRECT, of a read: it surely is one, and the kernel keeps no page of it */
};

/* Somebody changed it behind the mount before it was tracked: the next open shall say so. */
void cache_file_behind(struct cache_file *file);
/* [FUSE] The file is being opened. False: somebody has changed it behind the mount, and the kernel must drop
 * its pages (close to open): keep_cache must not be set in the answer. */
bool cache_file_opened(struct cache_file *file);
/* A READ that is under way; the cache's own. */
struct cache_read {
    LIST_ENTRY(cache_read) link;
    uint64_t number;
    uint64_t first, last; /* pages */
    bool dropped;         /* by now the kernel does not hold the page any more that it was for */
};
/* [FUSE] Read bytes for a READ; fd: the opener's descriptor. Bytes read (short at the end of the file). In
 * any case cache_file_read_end() must follow when the kernel has the answer; *read_out stays where it is till
 * then. */
ssize_t cache_file_read(struct cache_file *file, int fd, void *buffer, size_t length, off_t offset,
                        unsigned flags, struct cache_read *read_out);
void cache_file_read_end(struct cache_file *file, struct cache_read *read);
/* [FUSE] Apply a WRITE. Bytes written. */
ssize_t cache_file_write(struct cache_file *file, int fd, const void *buffer, size_t length, off_t offset,
                         unsigned flags);
/* [FUSE] Set the size (SETATTR): fd >= 0: ftruncate on it, else through the cache's own descriptor. O_TRUNC
 * at open is the same with size 0. */
int cache_file_truncate(struct cache_file *file, int fd, off_t size);
/* [FUSE] The rest of the data operations; each is a read or a write in the sense of rule 3. */
int cache_file_fallocate(struct cache_file *file, int fd, int mode, off_t offset, off_t length);
off_t cache_file_seek(struct cache_file *file, int fd, off_t offset, int whence);
/* Either file may be NULL (untracked); its gate may be held. cache_file_copy_end() must follow for out, if
 * not NULL, with no lock held: it may call the host's pin(). */
ssize_t cache_file_copy_range(struct cache_file *in, int fd_in, off_t offset_in, struct cache_file *out,
                              int fd_out, off_t offset_out, size_t length, unsigned flags);
void cache_file_copy_end(struct cache_file *out);
/* [FUSE] Collect what is pending, then fsync or fdatasync: durable_sync() for fd and *seen. */
int cache_file_sync(struct cache_file *file, int fd, bool data_only, struct durable_seen *seen);

#endif
