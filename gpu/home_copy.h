/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on their way into the soft device's frames. pwrite() holds the memfd's lock while it allocates and
 * copies, so that a stream's threads wait for each other, and each page costs most of a microsecond.
 * UFFDIO_COPY allocates, fills and inserts a page without that lock, but only through a mapping that
 * userfaultfd serves: these mappings are windows of this process, which nobody touches. A page that is
 * dropped (a hole) leaves them, too.
 *
 * There are few windows, for all files together, and the files of the present streams have them: so their use
 * of addresses, page tables and RssShmem (by which the OOM killer chooses) has a bound, whatever the files
 * and devices are. */
#ifndef GAIAFS_GPU_HOME_COPY_H
#define GAIAFS_GPU_HOME_COPY_H

#include <stdint.h>

/* Where the memfd's lock does no harm, pwrite() is as good for shorter runs. */
#define HOME_COPY_LEAST 64u

/* Bring the bytes of count pages into frames that have none. Returns how many it has brought, from the first
 * on: less than count when the next one has bytes already or is past the memfd's end, when there is no memory
 * or no window, or where there are no windows at all because of the kernel or of GAIA_SOFT_COPY=0 (for
 * tests). pwrite() must do the rest. fd: the memfd; home_copy_forget() must be called before it is closed.
 * Any thread; waits for no other process. */
uint64_t home_copy_run(int fd, uint64_t page, uint64_t count, const void *bytes);

/* Take all windows from this memfd. No run is on its way to it. */
void home_copy_forget(int fd);

#endif
