/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of files for a caller who takes a short read for the end of the file. */
#ifndef GAIAFS_BASE_READ_H
#define GAIAFS_BASE_READ_H

#include <stddef.h>
#include <sys/types.h>

/* pread() of all of it. Fewer bytes: the file ends there. A negative errno, also where only a part can't be
 * read: what came before that would be taken for all that the file has. Any thread. */
ssize_t read_whole(int fd, void *buffer, size_t length, off_t offset);

#endif
