/* SPDX-License-Identifier: Apache-2.0 */
/* What of the pages of a release was modified: their bytes, compared with their twins. */
#ifndef GAIAFS_CACHE_MODIFIED_H
#define GAIAFS_CACHE_MODIFIED_H

#include "cache/internal.h"

/* A copy's share of a release under way. */
struct release_work {
    struct leaf_copy *copy;
    uint64_t leaf;
    page_mask owned;   /* busy, by the caller */
    bool open;         /* stores to them are not trapped: cache/flush.c */
    page_mask pages;   /* releasing, until they are pending */
    page_mask again;   /* pending already, and stored to once more */
    page_mask marked;  /* in leaf->invalidating */
    page_mask held;    /* the kernel may hold them: to be invalidated in this round */
    page_mask dropped; /* with these between them: fewer, longer runs are faster, and a page dropped
                          needlessly is only read again */
    uint8_t *bytes;    /* of the owned pages, one behind the other; NULL: they are not kept */
    page_mask fresh;   /* those that nobody could collect between the look at them and "releasing" */
};

/* Bytes of pages that are compared: reused for one batch after the other, as new memory costs as much as a
 * transfer into it. Starts with zeros; bytes must be freed. */
struct gathered {
    uint8_t *bytes;
    size_t room; /* pages */
    /* The file's, when its pages were looked at: if these have changed since, the bytes may be wrong. */
    off_t size;
    uint64_t truncations, halves;
};

/* Whether what was gathered is what the devices have, or had since: no cut and no growth of the file has made
 * zeros of a part of it there (rule 8), and no part of a page has been collected. The file's lock is held. */
bool modified_is_current(const struct cache_file *file, const struct gathered *gathered);

/* Make room for the bytes of all pages, and on a device that scans fetch them: in one transfer, and not one
 * for each page. Does nothing where it is no use. No lock is held. 0 or a negative errno. */
int modified_gather(struct replica *replica, struct release_work *work, size_t count,
                    struct gathered *gathered);

/* Which of these pages, which are owned, differ from their twins. Pages that can't be fetched are not sealed
 * any more, and the first error is in *error. The file's lock is held. */
page_mask modified_pages(struct release_work *work, page_mask pages, int *error);

/* For a device that scans: pages that it said were modified may nevertheless be clean. *borrowed: pages whose
 * twins are the home's bytes, copied only to be compared with. The file's lock is held. */
page_mask modified_scanned(const struct release_work *work, page_mask *borrowed, int *error);

#endif
