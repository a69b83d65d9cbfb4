/* SPDX-License-Identifier: Apache-2.0 */
/* The device kernels in a program's context, once for each device that it has open: to compile them takes the
 * driver 0.4 s where it can't keep what it has compiled (no HOME, or one that can't be written to). */
#ifndef GAIAFS_GPU_CUDA_MODULE_H
#define GAIAFS_GPU_CUDA_MODULE_H

#include "base/lock.h"
#include "gpu/cuda_device.h"

struct cuda_module {
    pthread_mutex_t lock; /* guards the rest; held while the driver compiles */
    CUmodule module;      /* NULL: nobody has wanted it, or it could not be had */
};

void cuda_module_open(struct cuda_module *module);
/* Nobody uses its kernels any more. */
void cuda_module_close(const struct cuda_device *device, struct cuda_module *module);

/* The driver's module, which stays until cuda_module_close(). After an error it is tried again. The context
 * is entered. Any thread. */
CUresult cuda_module_get(const struct cuda_device *device, struct cuda_module *module, CUmodule *module_out);

#endif
