/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc/self/mountinfo says. Reading it touches no mount. */
#ifndef GAIAFS_FS_MOUNTINFO_H
#define GAIAFS_FS_MOUNTINFO_H

#include <stddef.h>
#include <sys/types.h>

/* The device number (st_dev) of the topmost mount at path (absolute, no symbolic links). 0, -ENOENT or
 * another negative errno. */
int mountinfo_device(const char *path, dev_t *device_out);

#endif
