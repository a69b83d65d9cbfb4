/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of the home copy, the backing file: read, written, and compared with a device's. The file's lock
 * is held for all of this. */
#ifndef GAIAFS_CACHE_HOME_BYTES_H
#define GAIAFS_CACHE_HOME_BYTES_H

#include "cache/file.h"

/* What lies past the end of the backing file reads as zeros. 0 or a negative errno. */
int home_read(struct cache_file *file, uint8_t *bytes, size_t length, off_t offset);
/* Whole pages: zeros past the end of the file. */
int home_read_pages(struct cache_file *file, uint64_t page, size_t count, uint8_t *bytes);
/* Also notes for the next sync what was written. 0 or a negative errno, -EIO where the file was given up, or
 * this node is at odds with others;
 * *done_out: how many bytes were written, from the first on, also after an error. */
int home_write(struct cache_file *file, const uint8_t *bytes, size_t length, off_t offset,
               enum durable_source source, size_t *done_out);

/* Whether the home's bytes of a page could be read cheaply and are the same as the copy's. theirs: the digest
 * of the copy's bytes, as frames have it (gpu/device.h); NULL: it is not known, and the bytes are fetched. */
bool home_equals_copy(struct cache_file *file, struct leaf_copy *copy, unsigned page,
                      const struct gaia_digest *theirs);
/* The pages for which that is so. */
page_mask home_equals_pages(struct cache_file *file, struct leaf_copy *copy, page_mask pages);

#endif
