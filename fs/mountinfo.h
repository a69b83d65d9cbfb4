/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc/self/mountinfo says. Reading it touches no mount. */
#ifndef GAIAFS_FS_MOUNTINFO_H
#define GAIAFS_FS_MOUNTINFO_H

#include <sys/types.h>

/* The device number (st_dev) of the topmost mount at path (absolute, no symbolic links). 0, -ENOENT or
 * another negative errno. */
int mountinfo_device(const char *path, dev_t *device_out);

/* Calls seen() for each gaiafs mount that this process sees: those of type fuse.gaiafs whose source is an
 * absolute path. The texts live as long as the call. 0 or a negative errno. */
int mountinfo_each_gaiafs(void (*seen)(const char *source, const char *mountpoint, void *context),
                          void *context);

#endif
