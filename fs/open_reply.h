/* SPDX-License-Identifier: Apache-2.0 */
/* The answers to OPEN and CREATE, and to FUSE_INIT, as far as they concern files that the kernel passes
 * through (fs/passthrough.h). libfuse knows such files from 3.17 on; the kernel's protocol for them
 * (linux/fuse.h, 7.40) is small, and is spoken here with any libfuse, so that all go one way. */
#ifndef GAIAFS_FS_OPEN_REPLY_H
#define GAIAFS_FS_OPEN_REPLY_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/fs.h"

/* Whether the kernel offers it, in a FUSE_INIT of that many bytes, header included. */
bool open_reply_is_offered(const void *init, size_t size);
/* Takes the offer, in libfuse's answer to that FUSE_INIT, of that many bytes. False: it has no room for it.
 */
bool open_reply_take_offer(void *answer, size_t size);

/* As fuse_reply_open() and fuse_reply_create(), of fi with a handle. 0 or a negative errno: the kernel does
 * not have the handle. */
int open_reply(fuse_req_t req, const struct fuse_file_info *fi);
int open_reply_create(fuse_req_t req, const struct fuse_entry_param *entry, const struct fuse_file_info *fi);

#endif
