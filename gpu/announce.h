/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the mounts of gaiafs in this network namespace that this process uses devices: what it opens from now
 * on a device may map, so that it is better not passed through (fs/programs.h). */
#ifndef GAIAFS_GPU_ANNOUNCE_H
#define GAIAFS_GPU_ANNOUNCE_H

/* Waits for nobody. Whatever fails is left: nothing but the speed depends on it. Any thread. */
void gaia_announce(void);

#endif
