/* SPDX-License-Identifier: Apache-2.0 */
/* Look at what the kernel holds of a file in its page cache, without waiting for any page's lock
 * (FUSE_NOTIFY_RETRIEVE). */
#ifndef GAIAFS_FS_PEEK_H
#define GAIAFS_FS_PEEK_H

#include "fs/fs.h"

/* The leading bytes of [offset, offset + length) that the kernel holds: how many, or -ETIMEDOUT, or another
 * negative errno. length: at most 4096. For cache_host.peek. May be called from a FUSE handler: another one
 * brings the answer. */
ssize_t peek_kernel(void *context, void *file_context, off_t offset, size_t length, void *bytes_out);

/* Nobody asks any more, and no answer comes: lets go of questions that were not answered. Returns how many
 * there were. */
unsigned peek_end(void);

/* The handler of the kernel's answer. */
void op_retrieve_reply(fuse_req_t req, void *cookie, fuse_ino_t nodeid, off_t offset,
                       struct fuse_bufvec *data);

#endif
