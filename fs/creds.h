/* SPDX-License-Identifier: Apache-2.0 */
/* Acting for the caller: new files belong to their maker, and writes clear set-id bits, and find room, as the
 * caller's own would. What each call changes belongs to the calling thread alone (base/fsuid.h). */
#ifndef GAIAFS_FS_CREDS_H
#define GAIAFS_FS_CREDS_H

#include "fs/fs.h"

/* Once, before there are threads. */
void creds_init(void);

/* Between the two, what the thread creates belongs to the caller of req. Permissions are not checked again,
 * as the kernel has done so (default_permissions). Does nothing where the daemon isn't root. 0 or a negative
 * errno. */
int creds_become_caller(fuse_req_t req);
void creds_become_self(fuse_req_t req);

/* Gives the thread the umask of the caller and returns mode for the call that creates the file: the
 * filesystem below knows whether the folder has a default ACL, which takes precedence over the umask. Where a
 * thread may not have an umask of its own, mode comes back masked. */
mode_t creds_mask(fuse_req_t req, mode_t mode);

/* The same as creds_become_caller(), with the caller's supplementary groups and without CAP_FSETID: a new ACL
 * or owner clears the set-group-ID bit unless the file's group is one of the caller's. Ends with
 * creds_become_self_ungrouped(). */
int creds_become_caller_grouped(fuse_req_t req);
void creds_become_self_ungrouped(fuse_req_t req);

/* Whether the caller changes bytes only with the file's set-id bits cleared: for requests in which the kernel
 * does not say so. */
bool creds_lose_set_ids(fuse_req_t req);
/* Between the two, a truncation of fd's file by the thread clears set-id bits, as one of the caller of req
 * would: a set-group-ID bit without the group's right to execute stays where the caller is in the group.
 * Whether the file has such bits. */
bool creds_drop_fsetid(fuse_req_t req, int fd);
void creds_regain_fsetid(fuse_req_t req);

/* Between the two, what the thread writes to fd's file (fsuid_begin_write()) is held to the caller's quota
 * and leaves him what the filesystem keeps for root; with `kills` it also clears set-id bits, as above.
 * Whether it does, and the file has such bits. */
bool creds_begin_writes(fuse_req_t req, int fd, bool kills);
void creds_end_writes(fuse_req_t req);

/* Between either two: the file's home is another node, and who changes it there is nobody's thread in
 * particular. So the bits are cleared here, before. */
void creds_clear_set_ids(int fd);

#endif
