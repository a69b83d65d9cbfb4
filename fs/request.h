/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's requests, and the flag of one, that libfuse 3.14 does not know. Each request is turned, before
 * libfuse looks at it, into the one that it knows and that is laid out alike; the handler of that one asks
 * here what it was. And the last look at errors in answers. */
#ifndef GAIAFS_FS_REQUEST_H
#define GAIAFS_FS_REQUEST_H

#include <stdbool.h>

#include "fs/fs.h"

/* TMPFILE comes as a CREATE of this name, which no file can have. */
#define REQUEST_TMPFILE_NAME "/"

/* Have the session's requests read here: after it was mounted, before it is served. 0 or a negative errno. */
int request_start(struct fuse_session *session);

/* Whether the SETATTR that this thread serves is a cut by somebody who may not keep set-id bits. */
bool request_kills_set_ids(void);

/* Whether the GETATTR that this thread serves was a STATX; answer it. */
bool request_is_statx(void);
void request_reply_statx(fuse_req_t req, const struct statx *stx);

#endif
