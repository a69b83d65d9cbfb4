/* SPDX-License-Identifier: Apache-2.0 */
/* For drivers that scan, the calls of drivers that trap (gpu/device.h): they need do nothing. */
#ifndef GAIAFS_GPU_HOME_UNTRAPPED_H
#define GAIAFS_GPU_HOME_UNTRAPPED_H

#include "gpu/device.h"

int untrapped_expose(struct gaia_frames_map *map, uint64_t page, uint64_t count, bool trap_stores);
int untrapped_protect(struct gaia_frames *frames, uint64_t page, uint64_t count);
int untrapped_unprotect(struct gaia_frames_map *map, uint64_t page, uint64_t count);
void untrapped_wake(struct gaia_frames *frames, uint64_t page, uint64_t count);
int untrapped_poison(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint32_t thread);
void untrapped_refuse(struct gaia_frames_map *map, uint64_t page, uint32_t thread);

#endif
