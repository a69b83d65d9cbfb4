/* SPDX-License-Identifier: Apache-2.0 */
/* The device kernels (kernels.h) on a GPU, as the daemon and libgaia both launch them. The device's context
 * is entered for all calls. */
#ifndef GAIAFS_GPU_CUDA_KERNEL_H
#define GAIAFS_GPU_CUDA_KERNEL_H

#include <stdint.h>

#include "gpu/cuda_device.h"

struct cuda_kernel {
    CUfunction function;
    unsigned blocks; /* that fill the GPU */
};

CUresult cuda_kernel_find(const struct cuda_device *device, CUmodule module, const char *name,
                          struct cuda_kernel *kernel_out);
/* Put it into a stream; parameters: where each is. */
CUresult cuda_kernel_launch(const struct cuda_device *device, const struct cuda_kernel *kernel,
                            CUstream stream, uint64_t pages, void **parameters);

#endif
