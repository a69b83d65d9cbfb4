/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_kernel.h"

#include "gpu/kernels.h"

/* How many blocks of a kernel run at once, which its registers decide: a launch of more would end with a few
 * that run alone. A driver that does not say so is old; so many as have 2,048 threads then. */
static CUresult count_blocks(const struct cuda_device *device, struct cuda_kernel *kernel)
{
    const struct cuda_api *api = device->api;
    int multiprocessors = 0, fit = 0;

    CUresult error =
        api->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device->device);
    if (error != CUDA_SUCCESS)
        return error;
    if (!api->cuOccupancyMaxActiveBlocksPerMultiprocessor ||
        api->cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel->function, GAIA_KERNEL_THREADS, 0) !=
            CUDA_SUCCESS ||
        fit < 1)
        fit = 2048 / GAIA_KERNEL_THREADS;
    kernel->blocks = (unsigned)(multiprocessors > 0 ? multiprocessors : 8) * (unsigned)fit;
    return CUDA_SUCCESS;
}

CUresult cuda_kernel_find(const struct cuda_device *device, CUmodule module, const char *name,
                          struct cuda_kernel *kernel_out)
{
    CUresult error = device->api->cuModuleGetFunction(&kernel_out->function, module, name);

    return error == CUDA_SUCCESS ? count_blocks(device, kernel_out) : error;
}

CUresult cuda_kernel_launch(const struct cuda_device *device, const struct cuda_kernel *kernel,
                            CUstream stream, uint64_t pages, void **parameters)
{
    unsigned warps = GAIA_KERNEL_THREADS / 32;
    uint64_t blocks = (pages + warps - 1) / warps;

    if (blocks > kernel->blocks)
        blocks = kernel->blocks;
    return device->api->cuLaunchKernel(kernel->function, (unsigned)blocks, 1, 1, GAIA_KERNEL_THREADS, 1, 1, 0,
                                       stream, parameters, NULL);
}
