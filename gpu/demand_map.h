/* SPDX-License-Identifier: Apache-2.0 */
/* A demand mapping, the program's half (GAIA_DEMAND on a GPU). Under it is an ordinary mapping of the file on
 * a soft device, which keeps all the promises. A demand mapping is one more cache above that: units of the
 * soft mapping are granted to the GPU's kernels through an arena and a ring of pinned memory (gpu/demand.h),
 * and what kernels have stored is stored to the soft mapping, byte by byte, when they give it back: at an
 * eviction, an acquire or a release.
 *
 * gpu/demand_server.h answers the ring. */
#ifndef GAIAFS_GPU_DEMAND_MAP_H
#define GAIAFS_GPU_DEMAND_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/cuda_device.h"
#include "gpu/cuda_module.h"
#include "gpu/demand.h"

struct demand_map;
struct gaia_shared_state;

struct demand_map_request {
    const struct cuda_device *cuda;
    struct cuda_module *module; /* the device's; outlives the mapping */
    uint8_t *home;              /* the soft mapping */
    const struct gaia_shared_state *state;
    size_t length; /* whole pages */
    size_t bytes;  /* of them, what the program has asked for */
    int fd;        /* of the file, and where in it the mapping begins */
    off_t offset;
    bool writable;
    bool small_units; /* 4 KiB instead of 64 */
};

/* Puts libgaia's handler of SIGBUS before the program's (gpu/touch.h). -ENOMEM: the GPU or the host has no
 * room; -EIO: the GPU fails; -EAGAIN: no thread; -EINVAL: the environment's sizes are none;
 * -EMFILE, -ENFILE. */
int demand_map_open(const struct demand_map_request *request, struct demand_map **map_out);
/* No kernel uses the mapping any more. What was stored and not collected is lost. */
void demand_map_close(struct demand_map *map);

/* What kernels have stored goes to the soft mapping. No kernel holds a unit. 0; -EIO: some of it stays where
 * it is; -ENOMEM: the same, as the GPU has no room; -EBUSY: a stream is being captured. */
int demand_map_collect(struct demand_map *map);
/* Makes the GPU forget [offset, offset + length) of the mapping, and ask anew. Stores were collected before;
 * no kernel runs that uses the mapping. 0, or as demand_map_collect(). */
int demand_map_forget(struct demand_map *map, uint64_t offset, uint64_t length);

/* The parameters of views, and where the GPU has the same; constant. */
const struct gaia_demand *demand_map_parameters(const struct demand_map *map,
                                                const struct gaia_demand **on_device_out);

#endif
