/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bytes of the backing file that are in the host's memory, without bringing others there. */
#ifndef GAIAFS_CACHE_HOSTED_H
#define GAIAFS_CACHE_HOSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Whether all of [offset, offset + length) is in the page cache of fd's file. Where the kernel can't say
 * (cachestat(2) came with Linux 6.5) the answer is yes: a reader that must not wait uses RWF_NOWAIT in any
 * case. */
bool hosted_all(int fd, off_t offset, size_t length);
/* Read them, all or none, without waiting for storage: length, or -EAGAIN. in_memory: what
 * hosted_is_memory() has said of the file; then ask hosted_all() first, as a tmpfs may have swapped some out.
 * length: not 0. No lock is needed; any may be held. */
ssize_t hosted_read(int fd, bool in_memory, void *buffer, size_t length, off_t offset);
/* Whether the file's filesystem has its bytes only in memory. May ask a server. */
bool hosted_is_memory(int fd);

#endif
