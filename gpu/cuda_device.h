/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU in this process: its primary context, which runtime-API programs and closed libraries use too. The
 * daemon and libgaia each have one of their own. */
#ifndef GAIAFS_GPU_CUDA_DEVICE_H
#define GAIAFS_GPU_CUDA_DEVICE_H

#include <stdbool.h>

#include "gpu/cuda_load.h"

struct cuda_device {
    const struct cuda_api *api;
    int ordinal; /* in this process */
    CUdevice device;
    CUcontext context;
    CUuuid uuid; /* the same in every process, whatever CUDA_VISIBLE_DEVICES says */
};

/* The GPU with this ordinal, its primary context retained. why_out: see cuda_load(). 0; -ENODEV: no CUDA, no
 * such GPU, or one that can't export memory; -ENOMEM; -EMFILE, -ENFILE; -EIO. Any thread. */
int cuda_device_open(int ordinal, struct cuda_device *device_out, char why_out[CUDA_WHY_SIZE]);
/* The same, by its UUID. */
int cuda_device_find(const CUuuid *uuid, struct cuda_device *device_out, char why_out[CUDA_WHY_SIZE]);
void cuda_device_close(const struct cuda_device *device);

/* Between the two the device's context is this thread's, and calls do not disturb other threads' captures of
 * streams, except waits for the context. 0 or as cuda_errno() (then there is nothing to leave).
 */
int cuda_enter(const struct cuda_device *device);
CUresult cuda_enter_saying(const struct cuda_device *device); /* the same, in the driver's words */
void cuda_leave(const struct cuda_device *device);

/* A driver's error as a negative errno: -ENOMEM, -EBUSY (a stream is being captured), or -EIO for all else. 0
 * for CUDA_SUCCESS. */
int cuda_errno(CUresult error);
/* The same for calls that take descriptors: -EMFILE or -ENFILE when there is none left. */
int cuda_opening_errno(CUresult error);
/* Whether the error says only that a stream is being captured. */
bool cuda_is_of_capture(CUresult error);

/* An attribute; 0 where the driver does not know it. */
int cuda_attribute(const struct cuda_device *device, int attribute);
/* The properties of memory of the device that can be exported and to which a NIC may write; and those of
 * access by other processes. */
CUmemAllocationProp cuda_memory_properties(const struct cuda_device *device);
CUmemAccessDesc cuda_memory_access(const struct cuda_device *device, int writable);

#endif
