/* SPDX-License-Identifier: Apache-2.0 */
/* Rule 8, of the page that holds a file's old or new end. What devices have in that page behind the end is no
 * part of the file. It becomes zeros, as in the kernel's page, so that nothing of it is collected when the
 * file grows over it, and later stores there can be told apart from it.
 *
 * A device may fail just then. What it could not clear is remembered (replica->unwiped), and is cleared
 * before any of these bytes are taken or shown to anybody. The file's lock is held for all of this. */
#ifndef GAIAFS_CACHE_TAIL_H
#define GAIAFS_CACHE_TAIL_H

#include <sys/types.h>

#include "cache/index.h"

struct cache_file;

/* When the tail of a page is cleared. */
enum tail {
    TAIL_CUT,       /* the file has become shorter */
    TAIL_GROWS,     /* it is about to become longer, by the holder of the lock */
    TAIL_GROWN,     /* it has become longer */
    TAIL_GROWN_REST /* the same, and TAIL_GROWS came before */
};

/* Clear the page with this end, from the end on. TAIL_GROWS: the first error of a device whose program may
 * store there as soon as the file is longer: it can't be cleared later. */
int tail_clear(struct cache_file *file, off_t end, enum tail when);

/* To be called before the file's end moves from here, or to here: else all that a device has in the rest of
 * the page would count as stored, as it would not be known any more what was granted. */
void tail_keep_twins(struct cache_file *file, off_t end);

/* Clear what could not be cleared before. 0, or the device's error again. */
int tail_wipe(struct replica *replica);

/* These pages have left the device: what comes in their place has no tail of an earlier end. */
void tail_left(const struct leaf_copy *copy, page_mask pages);

#endif
