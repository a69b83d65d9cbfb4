/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the mounts of gaiafs in this network namespace that this process uses devices: files that it opens
 * from now on may be mapped on a device, so they had better not be passed through (fs/programs.h). */
#ifndef GAIAFS_GPU_ANNOUNCE_H
#define GAIAFS_GPU_ANNOUNCE_H

/* Waits for nobody. Failures are ignored: only speed depends on this. Any thread. */
void gaia_announce(void);

#endif
