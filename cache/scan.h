/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that scan (gpu/device.h): nothing reports a GPU kernel's stores, and nothing can stop the kernel.
 *
 *  - A release asks the device which pages are not what they were granted with.
 *  - The twin of a page is the home copy, as long as that is what was granted: it is copied to a frame only
 *    before the home copy changes (a write(), a collect of another device). In a file in passthrough, or one
 *    that other mounts have, such changes go unseen, so every page that can be stored to gets its twin
 *    when it is placed.
 *  - An acquire brings what is out of date up to date in place, byte by byte (cache/refresh.h): what a
 *    kernel stores to the other bytes meanwhile is not lost. (Where clients can't store, the page is placed
 *    anew.) */
#ifndef GAIAFS_CACHE_SCAN_H
#define GAIAFS_CACHE_SCAN_H

#include "cache/internal.h"

/* The pages whose bytes are not those they were granted with: a mask for each leaf from first / LEAF_PAGES
 * on, as far as the file goes. */
struct scan_found {
    uint64_t leaves, room;
    page_mask masks[];
};

/* The masks of the leaves that cover [first, first + count). The caller gives them back. No lock is held. 0,
 * -ENOMEM, -EIO. */
int scan_find(struct replica *replica, uint64_t first, uint64_t count, struct scan_found **found_out);
/* Give it back; NULL: there is none. The replica keeps one for the next search, unless it is large: new
 * memory for it costs more. Any thread. */
void scan_put_found(struct replica *replica, struct scan_found *found);

/* All below: the file's lock is held. */

/* Before the home copy of the pages changes: each device copy whose twin it is gets a copy of it. 0, -ENOMEM,
 * -EIO ... */
int scan_keep_twins(struct leaf *leaf, page_mask pages);

/* The file has grown, by bytes that the home copy has already: the page with the old end gets a twin if it
 * has none. From the old end on the caller makes zeros of the twin, which is what was granted. */
void scan_keep_twin_of_tail(struct leaf_copy *copy, page_mask page);

/* A file's times say that it was changed behind the mount, but so they do after a chmod(), which changes no
 * byte. Pages whose home copy still is what was granted, by the digests, have it for a twin again. Pages that
 * can't be looked at stay as they are. */
void scan_look_again(struct leaf_copy *copy, page_mask pages);

/* These bytes are the twin of a page that has none. -ENOMEM. */
int scan_take_twin_of(struct leaf_copy *copy, unsigned page, const uint8_t *bytes);

/* The twins of resident pages that have none, from the home copy. *taken_out: which. The first error. */
int scan_take_twins(struct leaf_copy *copy, page_mask pages, page_mask *taken_out);

/* The same for a file that has grown behind the mount, where other bytes of the page may have changed, too:
 * the twin is what the device has, if that is what it was granted. (Else a kernel has stored to the page, and
 * what was granted is not known.) */
void scan_keep_twin_behind(struct leaf_copy *copy, unsigned page);

/* The file is about to get another end, and the old or the new end is in this page: from there on the page
 * becomes zeros, and no digest can tell any more what it was granted with. */
void scan_keep_twin_of_end(struct leaf_copy *copy, unsigned page);
/* The same as far as possible when the end has moved already: if the device has what it was granted, this is
 * the twin. */
void scan_keep_what_was_granted(struct leaf_copy *copy, unsigned page);

/* Pages are about to become present that were placed with these bytes, those of the leaf's page 0 first: the
 * pages whose home copy may have changed since it was read, or may change unnoticed, get twins. After an
 * error none of them has one. */
int scan_take_placed(struct leaf_copy *copy, page_mask pages, const uint8_t *leaf_bytes);

/* Whether a page's twin need not be kept, as the home copy is equal to it, and will not change unnoticed. */
bool scan_home_is_twin(const struct leaf_copy *copy, const uint8_t *home, const uint8_t *twin);

/* Pages were found that are what they were granted with after all: their digests are made anew. */
void scan_grant_again(struct leaf_copy *copy, page_mask pages);

#endif
