/* SPDX-License-Identifier: Apache-2.0 */
/* Write-backs that a change by the daemon overrules.
 *
 * fallocate() with holes or zeros, and copy_file_range(), change bytes that the kernel may have in its page
 * cache. The kernel writes back what is dirty before it asks for the change, and drops what it has of the
 * range (or puts zeros there) when it has the answer. A store through a mapping between the two makes such a
 * page dirty again, with all the bytes that it had before, and its write-back would undo the change.
 *
 * So from the change on write-backs of its range are left out, until the kernel has been made to drop those
 * pages: what it reads anew is as new as the change. For write-backs the change and the beginning of this are
 * one step: the inode's gate is held exclusively, or the lock of the cache's file.
 *
 * This is about this machine's kernel. The pages of other nodes' kernels are told apart by twins
 * (cache/kernels.h).
 *
 * Before Linux 6.16 a write-back may come after the page was dropped (base/kernel.h), and is not left out.
 */
#ifndef GAIAFS_CACHE_OVERRULE_H
#define GAIAFS_CACHE_OVERRULE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>
#include <sys/types.h>

struct durable;

/* For one change; the caller's memory, which must stay until overrule_end(). */
struct overrule {
    LIST_ENTRY(overrule) link; /* of durable->overruled, under durable->lock */
    off_t start, end;
};

/* Bytes [start, end) were changed. If it has begun already, they follow those that were changed before. */
void overrule_begin(struct overrule *overrule, struct durable *durable, off_t start, off_t end);
/* Whether it has begun. */
static inline bool overrule_has_begun(const struct overrule *overrule)
{
    return overrule->end > overrule->start;
}
void overrule_end(struct overrule *overrule, struct durable *durable);

/* The first part of a write-back of [offset, offset + length) that must be written: its length, 0 if there is
 * none, and how many bytes before it are left out. */
size_t overrule_next(struct durable *durable, off_t offset, size_t length, size_t *skipped_out);

#endif
