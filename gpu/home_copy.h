/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes on their way into the soft device's frames. pwrite() takes the memfd's lock for as long as it
 * allocates and copies, so that a stream's threads stand in line, and each page costs it most of a
 * microsecond. UFFDIO_COPY allocates, fills and inserts a page without that lock, but only by way of a
 * mapping that userfaultfd serves: these are windows of this process's own, which nobody touches. A page that
 * is dropped (a hole) goes from them, too.
 *
 * There are few windows, for all files together, and those of the streams of the moment have them: so what
 * they take of addresses, page tables and RssShmem (by which the OOM killer chooses) has a bound, whatever
 * the files and devices are. */
#ifndef GAIAFS_GPU_HOME_COPY_H
#define GAIAFS_GPU_HOME_COPY_H

#include <stdint.h>

/* Where the memfd's lock does no harm, pwrite() is as good for shorter runs. */
#define HOME_COPY_LEAST 64u

/* Bring the bytes of count pages into frames that have none. How many from the first on it has brought; less
 * than count when the next one has bytes already, is past the memfd's end, when there is no memory or no
 * window, or where the kernel or GAIA_SOFT_COPY=0 (for tests) has none at all: pwrite() does the rest.
 * fd: the memfd; home_copy_forget() is due before it is closed. Any thread; waits for no other process. */
uint64_t home_copy_run(int fd, uint64_t page, uint64_t count, const void *bytes);

/* No window is of this memfd any more. No run is on its way to it. */
void home_copy_forget(int fd);

#endif
