/* SPDX-License-Identifier: Apache-2.0 */
/* Data directories one inside another: each daemon would have files of the other on its devices, and neither
 * would know what the other releases. */
#ifndef GAIAFS_FS_OVERLAP_H
#define GAIAFS_FS_OVERLAP_H

#include <limits.h>
#include <stdbool.h>

#include "fs/fs.h"

/* Whether an absolute path without symbolic links is below a directory given so. */
bool overlap_is_inside(const char *path, const char *directory);

/* Checks that no other gaiafs which this process sees mounted has a directory above or below fs->data_path:
 * 0, or -EBUSY after the reason was logged. Mounts that all say `shared` or `node=` may: files are claimed
 * one by one then (cache/claim.h). Mounts whose type or source is not what gaiafs gives them, those of other
 * mount namespaces, paths through a bind mount, and a mount that starts in the same moment are not noticed. A
 * mount whose daemon is dead does not count. Opens those directories. Of mounts of users other than root and
 * this process's own (also as it is called outside of a user namespace) there is a line in the log only. */
int overlap_check(const struct fs *fs);

/* Where this process sees a gaiafs of fs->data_path itself mounted; "": nowhere, with the same exceptions. */
void overlap_find(const struct fs *fs, char mountpoint_out[PATH_MAX]);

#endif
