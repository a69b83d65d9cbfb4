/* SPDX-License-Identifier: Apache-2.0 */
/* Acquire (rule 5): what was released before is seen from now on. */
#ifndef GAIAFS_CACHE_ACQUIRE_H
#define GAIAFS_CACHE_ACQUIRE_H

#include "cache/internal.h"

/* Acquire pages [first, first + count) for a replica; the client has flushed the kernel's dirty pages before.
 * No lock is held. *changes_out: the shared state's count up to which this acquire has seen changes. 0 or the
 * first error: -EIO, -ENOSPC, -ENOMEM (what could not be brought up to date is tried again next time). */
int acquire_range(struct replica *replica, uint64_t first, uint64_t count, uint64_t *changes_out);

#endif
