/* SPDX-License-Identifier: Apache-2.0 */
/* Healing of pages that the kernel holds without a write() that was answered.
 *
 * The kernel puts the bytes of a write() into a cached page, unlocks the page, and only then sends the WRITE
 * (with the inode's lock held, so at most one of a file is on its way; direct writes, which leave the cache
 * alone, may be besides). When the page is dropped in between, by an invalidation of ours, and another
 * process reads it again before the WRITE arrives, the kernel goes on holding the old bytes: other reads are
 * stale, and a store through a mapping would write them back over the new ones. So for a WRITE that may be
 * such a one its pages are invalidated once more before it is answered, and write-backs that this causes are
 * applied under its bytes.
 *
 * One page must be looked at first. The kernel also puts the bytes of a WRITE into a page that is not up to
 * date, and keeps that page locked until the answer; it is the last page of that WRITE, and partly covered.
 * An invalidation would wait for it without end.
 *
 * So first, READs of that page that were handled before the WRITE was applied are waited for until the kernel
 * has their answers: what is read later is as new as the WRITE. Then a look at the page
 * (FUSE_NOTIFY_RETRIEVE, which waits for no lock) shows
 *
 *  - the bytes of the WRITE: the page is not stale;
 *  - other bytes: it is stale, and nobody keeps it locked. It is invalidated, and the WRITE answered then;
 *  - nothing: the page is not there, or not up to date (locked by this WRITE, or being read). It is
 *    invalidated too, but the WRITE's answer waits for that only a little, and only if READs of the page
 *    were answered a moment ago: a reader that asked for one page alone may not have unlocked it yet when
 *    its answer is in the kernel.
 *
 * The other pages of a WRITE are invalidated without a look. Until that is done, write-backs are merged under
 * the WRITE, except those of pages that this kernel has asked for since the WRITE was applied (not for a
 * mapping with O_DIRECT): it asks for what it does not hold, after all that it held is written back. And when
 * the answer is due all pages are looked at: one that shows nothing that the WRITE has replaced is as new as
 * the WRITE. So a program that stores after the write(), to a page that was not there or to the write()'s
 * own, may store anything, however late the heal is. One case can't be told apart: a store through a mapping
 * to a page that the kernel still holds, before the write() has returned or while the page is still stale
 * afterwards, that brings back the very value that the WRITE has just replaced.
 *
 * Before Linux 6.16 the invalidation may return before what the kernel had written back of a stale page
 * arrives, with what the WRITE has replaced. So the heal *lingers*, and still decides on write-backs, until
 * the kernel asks for the page or sends a WRITE to it (not a direct one), before which the kernel waits for
 * those write-backs; or for a minute, or until there are many newer heals of the file.
 *
 * Kernels that show pages that are not up to date (all before May 2026; 6.18.44 doesn't) show the WRITE's
 * bytes in one that it keeps locked.
 *
 * The kernel's own reclaim, or posix_fadvise(), may drop a page in between just as well, with no device in
 * play: any FUSE file system has that.
 *
 * Only the first WRITE of a file that arrives after an invalidation can have been on its way: a window is
 * open from the beginning of an invalidation to the next WRITE after its end.
 */
#ifndef GAIAFS_CACHE_HEAL_H
#define GAIAFS_CACHE_HEAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/lock.h"
#include "io/members.h"

struct cache;
struct cache_file;
struct heal;

/* A file's windows, for each kernel by itself: else a kernel that never writes would keep those of all open.
 * Under the file's lock. */
struct heal_window {
    unsigned open; /* invalidations under way */
    LIST_HEAD(, heal) heals;
    unsigned healers; /* at work for the file; under healer->lock */
    struct heal_dropped {
        uint64_t first, last;   /* pages that the kernel may have dropped; first > last: none */
        uint64_t until_ns;      /* CLOCK_MONOTONIC: not over before: pages are dropped for an OPEN */
    } dropped[MEMBERS_MAX + 1]; /* of this node's kernel, and of members' */
};

/* The threads that invalidate for WRITE handlers. A handler must not wait for an invalidation without end, as
 * one of the pages may be locked until the WRITE is answered. */
#define HEALER_THREADS 4u
struct healer {
    pthread_t threads[HEALER_THREADS]; /* a page that is being read slowly keeps one of them waiting */
    pthread_mutex_t lock;              /* guards the rest, and done of each heal; a leaf */
    pthread_cond_t queued;             /* the healers wait for */
    pthread_cond_t healed;             /* handlers of WRITEs wait for */
    STAILQ_HEAD(, heal) queue;
    bool stop;
    unsigned started;
    unsigned waiting;     /* handlers of WRITEs */
    bool late_kernel;     /* this machine's writes back late (base/kernel.h), set at the start */
    uint64_t heals, late; /* how many there were, and how many of those were answered before they were done */
};

int healer_start(struct cache *cache);
void healer_stop(struct cache *cache);

void heal_window_init(struct heal_window *window);
/* The file is closed: nobody uses it. */
void heal_window_free(struct cache_file *file);
/* Around an invalidation of pages [first, last] in all kernels, or in a node's, and for each leaf, around one
 * of its pages. The file's lock is held. */
void heal_window_open(struct cache_file *file, uint64_t first, uint64_t last);
void heal_window_open_node(struct cache_file *file, unsigned node, uint64_t first, uint64_t last);
void heal_window_close(struct cache_file *file);
/* A node's kernel is about to drop all pages, as an OPEN is being answered there. */
void heal_window_reopen(struct cache_file *file, unsigned node);
struct leaf;
void heal_drop_begin(struct leaf *leaf, uint64_t pages);
/* read_number: file->reads.number at the beginning; done: not when the invalidation failed. */
void heal_drop_end(struct cache_file *file, struct leaf *leaf, uint64_t pages, uint64_t read_number,
                   bool done);
/* The kernel is being given pages. The file's lock is held. */
void heal_refilled(struct leaf *leaf, uint64_t pages);

/* flags: CACHE_IO_*. Before a plain WRITE is applied: whether it may be one that was on its way. Afterwards
 * the window is over, unless the WRITE may be a direct one. The file's lock is held. *heal_out: NULL, or what
 * heal_finish() must be called with after the WRITE was applied. -ENOMEM, or why the home copy can't be read.
 */
int heal_start(struct cache_file *file, const void *bytes, size_t length, off_t offset, unsigned flags,
               struct heal **heal_out);
/* An append goes to the present end of the file, which the writer's kernel need not know: others may have
 * moved it. Then that kernel's pages have the bytes where they do not belong. Like heal_start(), except that
 * what belongs there is what the home has: write-backs are merged accordingly, and the pages are dropped
 * before the answer. */
int heal_misplaced(struct cache_file *file, const void *bytes, size_t length, off_t offset, unsigned flags,
                   struct heal **heal_out);
/* The WRITE was applied, perhaps only this many of its bytes: what is being healed is overwritten too. heal
 * may be NULL. The file's lock is held. */
void heal_applied(struct cache_file *file, struct heal *heal, const void *bytes, size_t done, off_t offset);
/* A kernel asks for pages that it does not hold: from here on its copies of them are as new as the WRITEs
 * that were applied. flags: CACHE_IO_*. The file's lock is held. */
void heal_reread(struct cache_file *file, off_t offset, size_t length, unsigned flags);
/* To be called before a plain WRITE is applied that is no direct one, and before its heal_start(): where its
 * kernel has put the bytes. The file's lock is held. */
void heal_written(struct cache_file *file, unsigned node, off_t offset, size_t length);
/* A write-back of a node's was applied, as these bytes. The file's lock is held. */
void heal_written_back(struct cache_file *file, unsigned node, const uint8_t *bytes, size_t length,
                       off_t offset);
/* End heals that need not linger any more, or that are too many. The file's lock is held. */
void heal_tidy(struct cache_file *file);
/* The home copy was changed in another way: heals no longer decide on write-backs there. The file's lock is
 * held. */
void heal_changed(struct cache_file *file, off_t offset, off_t length);
/* Invalidate the pages of a WRITE before it is answered; takes the heal over. No lock is held. */
void heal_finish(struct cache *cache, struct heal *heal);

/* The bytes of a write-back, at most a page, as they must be written: where the write-back has what the home
 * had before a WRITE of this node that is being healed, that WRITE's bytes belong; where it has something
 * else, a store through a mapping is newer. (The bytes of another node's kernel are told apart by its twin:
 * cache/kernels.h. Its page may outlive the heal.) Returns bytes when there is nothing to change, else
 * bytes_out. The file's lock is held.
 */
const uint8_t *heal_merge(struct cache_file *file, unsigned node, const uint8_t *bytes, off_t offset,
                          size_t length, uint8_t *bytes_out);

#endif
