/* SPDX-License-Identifier: Apache-2.0 */
/* Release (rules 1 and 6): what a device stored may be seen by others. No data moves. */
#ifndef GAIAFS_CACHE_RELEASE_H
#define GAIAFS_CACHE_RELEASE_H

#include "cache/internal.h"

/* Release the stores of a replica in pages [first, first + count). No lock is held. 0 or -EIO, -ENOMEM. */
int release_range(struct replica *replica, uint64_t first, uint64_t count);

/* Release the given pages, which the caller has marked busy in every copy of the batch; they stay busy, and
 * are sealed afterwards: no store can arrive until the caller lets it. At most BATCH_MAX copies, ascending.
 * No lock is held. Without seals stores are not kept out, and no client is waited for. */
int release_busy(struct replica *replica, struct copy_pages *batch, size_t count, bool seals);

#endif
