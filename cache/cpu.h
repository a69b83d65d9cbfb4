/* SPDX-License-Identifier: Apache-2.0 */
/* What cache/cpu.c and cache/cpu_ranges.c share. All but one: the file's lock is held. */
#ifndef GAIAFS_CACHE_CPU_H
#define GAIAFS_CACHE_CPU_H

#include "cache/internal.h"

typedef int leaf_fn(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags);

/* Call fn for each leaf that [offset, offset + length) touches and that exists, with the mask of its pages.
 * 0, or what it returned first that is not; then the others are left out. */
int cpu_each_leaf(struct cache_file *file, off_t offset, uint64_t length, unsigned flags, leaf_fn *fn);
/* Rule 3: a write is no exception, also not of whole pages: without the collect a twin would stay behind that
 * later brings overwritten bytes back. Rule 6: a write-back never collects. */
int cpu_before_write(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags);
/* The end of the file after a change of ours; unchanged: what file_unchanged() said before it. */
void cpu_look_at_size(struct cache_file *file, bool unchanged);

/* Takes the file's lock, which is not held. 0, or -EIO without it: the file was given up, also while this has
 * waited. What is done to it is done at its next home, which this one must not pass by. */
int cpu_lock(struct cache_file *file);

#endif
