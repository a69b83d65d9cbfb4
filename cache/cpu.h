/* SPDX-License-Identifier: Apache-2.0 */
/* What cache/cpu.c and cache/cpu_ranges.c share. All but one: the file's lock is held. */
#ifndef GAIAFS_CACHE_CPU_H
#define GAIAFS_CACHE_CPU_H

#include "cache/internal.h"

typedef int leaf_fn(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags);

/* Call fn for each existing leaf that [offset, offset + length) touches, with the mask of its pages. 0, or
 * the first other value that fn returned; the leaves after that are left out. */
int cpu_each_leaf(struct cache_file *file, off_t offset, uint64_t length, unsigned flags, leaf_fn *fn);
/* Before bytes of a range are changed. Rule 3, from which not even a write of whole pages is excepted:
 * without the collect a twin would stay behind that later brings overwritten bytes back. Rule 6: a write-back
 * never collects. */
int cpu_before_change(struct cache_file *file, off_t offset, uint64_t length, unsigned flags,
                      bool *unread_out);
/* After the change, under the same lock, if it was said that some of the pages that are replaced whole could
 * not be read: what devices had released of them is older. (Not before: where the change fails, what others
 * have written there is on storage, and can perhaps be read some day.) */
int cpu_replaced(struct cache_file *file, off_t offset, uint64_t length);
/* The end of the file after a change of ours; unchanged: what file_unchanged() said before it. */
void cpu_look_at_size(struct cache_file *file, bool unchanged);

/* Takes the file's lock, which is not held. 0, or -EIO without the lock: the file was given up, perhaps while
 * this has waited. Operations on it must go to its next home, and this one must not bypass that. */
int cpu_lock(struct cache_file *file);

#endif
