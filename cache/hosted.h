/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of the backing file that are in the host's memory, without bringing others there. */
#ifndef GAIAFS_CACHE_HOSTED_H
#define GAIAFS_CACHE_HOSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* How the filesystem of a file has bytes in the host's memory. */
enum hosted {
    HOSTED_CACHED, /* as a cache of what it has elsewhere */
    HOSTED_MEMORY, /* it has them nowhere else: a tmpfs */
    HOSTED_LAYER   /* as a cache, in pages of another filesystem's file: overlayfs */
};
/* May ask a server. */
enum hosted hosted_of(int fd);

/* Whether all of [offset, offset + length) is in the host's memory. hosted: what hosted_of() has said of the
 * file. Where the kernel can't say (cachestat(2) came with Linux 6.5) the answer is yes, but for overlayfs: a
 * reader that must not wait uses RWF_NOWAIT in any case. fd is open for reading. */
bool hosted_all(int fd, enum hosted hosted, off_t offset, size_t length);
/* Read them, all or none, without waiting for storage: length, or -EAGAIN. But for HOSTED_CACHED ask
 * hosted_all() first, as a tmpfs may have swapped some out, and what a layer has is read from its storage
 * then. length: not 0. No lock is needed; any may be held. */
ssize_t hosted_read(int fd, enum hosted hosted, void *buffer, size_t length, off_t offset);

#endif
