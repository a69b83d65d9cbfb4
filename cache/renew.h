/* SPDX-License-Identifier: Apache-2.0 */
/* Renew pages that are out of date: they get the home's bytes where they are. A page that lies alone costs no
 * more so than to be freed, and no touch has to bring it again. Long runs are freed: the device may never
 * touch them, and one touch brings many pages of a run. */
#ifndef GAIAFS_CACHE_RENEW_H
#define GAIAFS_CACHE_RENEW_H

#include "cache/internal.h"

/* How the file was when pages were granted: when the last of them was, and before the first. */
struct renew_granted {
    off_t size;
    uint64_t truncations;
};

/* Before the first page is granted. The file's lock is held, as for the next two. */
struct renew_granted renew_begin(const struct cache_file *file);
/* Before pages of a copy that are out of date are forgotten. 0 or -ENOMEM: then some may be granted. */
int renew_grant(struct leaf_copy *copy, page_mask pages);
/* After the last one, before the lock is let go: it may have been in between, and what the file has grown by
 * then may be part of what is granted. */
void renew_granted_all(struct renew_granted *granted, const struct cache_file *file);

/* Of one leaf's pages, which are busy, sealed, granted and forgotten, those that are renewed: they are
 * present again. The others (of long runs, or not in the host's memory) are to be freed. No lock is held. May
 * wait for clients, as whoever frees pages does. */
page_mask renew_pages(struct replica *replica, const struct copy_pages *entry,
                      const struct renew_granted *granted);

#endif
