/* SPDX-License-Identifier: Apache-2.0 */
/* Drop pages from a device: release what it stored there, collect it, then free the frames. Acquire drops
 * pages that are out of date (rule 5), eviction drops pages to make room (rules 3 and 6). */
#ifndef GAIAFS_CACHE_DROP_H
#define GAIAFS_CACHE_DROP_H

#include "cache/internal.h"

enum drop_why {
    DROP_STALE,   /* wait for pages that are busy; keep a page whose bytes equal the home's */
    DROP_EVICT,   /* skip pages that are busy */
    DROP_ADVISED, /* wait for pages that are busy: a store's fault may not be over yet when the store is */
};

/* pages: at most BATCH_MAX entries, ascending by leaf; the copy field is not read. No lock is held.
 * 0 or the first error (then that page keeps its bytes and its frame). *dropped_out: pages whose frames were
 * freed. */
int drop_pages(struct replica *replica, const struct copy_pages *pages, size_t count, enum drop_why why,
               uint64_t *dropped_out);
/* Release what is stored of pages that the caller has marked busy: as release_busy(). 0 or a negative errno.
 */
int release_chosen(struct replica *replica, const struct copy_pages *busy, size_t count, bool seals);
/* DROP_ADVISED, of what the device has of [first, first + count), which may be of any length. The first
 * error, after all of it was tried; -ENOMEM. No lock is held. */
int drop_range(struct replica *replica, uint64_t first, uint64_t count);

#endif
