/* SPDX-License-Identifier: Apache-2.0 */
/* Collect (rule 2): merge what devices have released of a page into the home copy, the backing file. */
#ifndef GAIAFS_CACHE_COLLECT_H
#define GAIAFS_CACHE_COLLECT_H

#include "cache/file.h"

/* Whose bytes a collect takes. */
enum collect_what {
    /* Released ones: allowed to everybody at any time, as the kernel holds no pending page. */
    COLLECT_PENDING,
    /* And those being released: only for a READ that fills the kernel's cache, because the kernel asks only
     * for pages that it does not hold. */
    COLLECT_RELEASING,
    /* Released ones of pages that have been replaced since, whole: the home keeps what it has. */
    COLLECT_REPLACED,
};

/* Collect pages of a leaf. The file's lock is held. 0, or the first error of the backing file (-EIO, -ENOSPC,
 * -EDQUOT, -ENOMEM): then the devices keep their bytes, and what could not be collected stays pending. */
int collect_pages(struct cache_file *file, struct leaf *leaf, page_mask pages, enum collect_what what);

/* Bytes of some of a copy's pages, one behind the other, which need not be fetched: they were read from the
 * device after these pages were last released, and are no older than the pages' twins. bytes: NULL: none. */
struct collect_given {
    const struct leaf_copy *copy;
    page_mask pages;
    page_mask fresh; /* the pages for which that is true */
    const uint8_t *bytes;
};

/* What is pending of pages of a leaf, as collect_pages(). The file's lock is held. */
int collect_given(struct cache_file *file, struct leaf *leaf, page_mask pages,
                  const struct collect_given *given);

/* Collect everything that is pending in the file now. The lock is held; it is let go in between, if that
 * takes long. */
int collect_all(struct cache_file *file);

#endif
