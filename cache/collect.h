/* SPDX-License-Identifier: Apache-2.0 */
/* Collect (rule 2): merge what devices have released of a page into the home copy, the backing file. */
#ifndef GAIAFS_CACHE_COLLECT_H
#define GAIAFS_CACHE_COLLECT_H

#include "cache/file.h"

/* Whose bytes a collect takes. */
enum collect_what {
    COLLECT_PENDING,   /* released ones: allowed to everybody at any time, as the kernel holds no pending page
                        */
    COLLECT_RELEASING, /* and those being released: only for a READ that fills the kernel's cache, because the
                          kernel asks only for pages that it does not hold */
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

/* Collect everything pending in the file. The lock is held. */
int collect_all(struct cache_file *file);

/* Whether the home's bytes of a page could be read cheaply and are the same as the copy's. theirs: the digest
 * of the copy's bytes, as frames have it (gpu/device.h); NULL: it is not known, and the bytes are fetched.
 * The lock is held. */
bool home_equals_copy(struct cache_file *file, struct leaf_copy *copy, unsigned page,
                      const struct gaia_digest *theirs);
/* The pages for which that is so. The lock is held. */
page_mask home_equals_pages(struct cache_file *file, struct leaf_copy *copy, page_mask pages);

/* Bytes of the home copy; what lies past its end reads as zeros. 0 or a negative errno. */
int home_read(struct cache_file *file, uint8_t *bytes, size_t length, off_t offset);
/* Those of whole pages: zeros past the end of the file. */
int home_read_pages(struct cache_file *file, uint64_t page, size_t count, uint8_t *bytes);
/* Writes bytes, and notes for the next sync what was written. 0 or a negative errno; *done_out: how many of
 * them, from the first on. */
int home_write(struct cache_file *file, const uint8_t *bytes, size_t length, off_t offset,
               enum durable_source source, size_t *done_out);

#endif
