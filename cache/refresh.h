/* SPDX-License-Identifier: Apache-2.0 */
/* What an acquire finds out of date on a device that scans (cache/scan.h) is brought up to date in place. */
#ifndef GAIAFS_CACHE_REFRESH_H
#define GAIAFS_CACHE_REFRESH_H

#include "cache/internal.h"

/* Bring stale pages of copies of a replica that scans up to date, byte by byte: what kernels store to the
 * other bytes stays. list: by leaves, ascending. The file's lock is held, and let go at times: while pages
 * are busy, after some were brought, and at the end. 0, or the first error (-ENOMEM, -EIO ...): pages that
 * were not reached stay stale. */
int refresh_pages(struct replica *replica, const struct copy_pages *list, size_t count);

#endif
