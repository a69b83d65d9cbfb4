/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc/self/mountinfo says. Reading it touches no mount. */
#ifndef GAIAFS_FS_MOUNTINFO_H
#define GAIAFS_FS_MOUNTINFO_H

#include <stdbool.h>
#include <sys/types.h>

struct mounted {
    int number;   /* stays as long as it is mounted, wherever that is moved to */
    dev_t device; /* st_dev */
};

/* The topmost mount at path (absolute, no symbolic links). 0, -ENOENT or another negative errno. */
int mountinfo_at(const char *path, struct mounted *mounted_out);

/* Where that mount is now: it may have been moved, or a folder above it renamed. To be freed; NULL: nowhere.
 */
char *mountinfo_path(const struct mounted *mounted);

/* Whether its path leads to another one that lies over it. That need not be the last one in the list: it may
 * have been mounted elsewhere before, and moved. */
bool mountinfo_is_covered(const struct mounted *mounted, const char *path);

/* Both texts are what whoever has mounted says. */
struct mounted_gaiafs {
    const char *source, *mountpoint;
    uid_t user; /* who has mounted */
};

/* Calls seen() for each gaiafs mount that this process sees: those of type fuse.gaiafs whose source is an
 * absolute path. What it is given lives as long as the call. 0 or a negative errno. */
int mountinfo_each_gaiafs(void (*seen)(const struct mounted_gaiafs *mount, void *context), void *context);

#endif
