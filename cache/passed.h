/* SPDX-License-Identifier: Apache-2.0 */
/* A tracked file that CPUs have open in passthrough (cache_file_pass()): the home copy is the backing file's
 * page cache, and CPUs read, write and map that very memory. It is always current for them; but the daemon
 * does not see their reads and writes. The promises are kept in another way (docs/design.md, section 7):
 *
 *  - an acquire compares the device's pages with the home's, and takes those that differ to be written by a
 *    CPU. (What the device itself stored was released, and collected, just before.)
 *  - a release collects at once, as no read will ask for it. The kernel has nothing to drop: its own pages of
 *    the FUSE file are unused.
 *  - a collect writes the runs of bytes that the device has changed and no byte more: CPUs may be storing to
 *    the bytes between them, by mappings of the page that is being written.
 *
 * Truncations, fallocate() and copy_file_range() still come as requests.
 */
#ifndef GAIAFS_CACHE_PASSED_H
#define GAIAFS_CACHE_PASSED_H

#include <stdbool.h>
#include <stddef.h>

#include "cache/file.h"

struct replica;

/* Whether CPUs may change bytes without being seen. The lock is held. */
static inline bool passed_is_compared(const struct cache_file *file)
{
    return file->passed && file->written;
}

/* Whether bytes and the end of the file may change without our being told: in passthrough, or by other
 * mounts. The lock is held. */
static inline bool passed_is_unheard(const struct cache_file *file)
{
    return file->passed || claim_is_shared(file);
}

/* A write() of a CPU may have made such a file longer: what a device stores there is a store. Also before the
 * daemon itself changes it: what a cut then cuts off is not to come back, and what a growth begins behind is
 * no tail any more. The lock is held; fit_frames() is due. */
void passed_look_at_size(struct cache_file *file);

/* Find the pages of [first, first + count) that CPUs have changed. The lock is held; it is let go in between.
 * 0 or a negative errno. */
int passed_compare(struct replica *replica, uint64_t first, uint64_t count);

/* Also for a file that other mounts have (cache/claim.h): write those of n bytes of a page that differ from
 * its twin. *homed_out is set with an error: all of them before this byte were written. The lock is held. */
int passed_write(struct cache_file *file, uint64_t page, const uint8_t *twin, const uint8_t *mine, size_t n,
                 size_t *homed_out);

#endif
