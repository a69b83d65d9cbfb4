/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU in the daemon: a context, a stream, the device kernels, and a little memory in which bytes and lists
 * of pages are on their way. One thing is done at a time: gpu_begin() to gpu_end(). */
#ifndef GAIAFS_GPU_HOME_GPU_H
#define GAIAFS_GPU_HOME_GPU_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/lock.h"
#include "consistency/page.h"
#include "gpu/cuda_device.h"

/* Pages that a gather or a patch moves at once. */
#define GPU_BATCH_PAGES 512u
/* Bytes of the area of lists. */
#define GPU_LIST_BYTES ((size_t)1 << 20)

enum gpu_kernel { GPU_HASH_PAGES, GPU_FIND_MODIFIED, GPU_GATHER, GPU_PATCH, GPU_KERNELS };

struct home_gpu {
    struct cuda_device device;
    size_t granularity; /* of memory that can be exported, bytes */
    CUmodule module;
    CUfunction kernels[GPU_KERNELS];
    unsigned blocks;    /* that fill the GPU */
    _Atomic int failed; /* the last error of the driver's, but that memory is short: a CUresult, 0: none */

    pthread_mutex_t lock; /* guards all below; a leaf; held from gpu_begin() to gpu_end() */
    CUstream stream;
    void *registered;
    uint8_t *host;       /* pinned: two areas of GPU_BATCH_PAGES pages, and GPU_LIST_BYTES behind them */
    CUdeviceptr staging; /* the same on the device */
};

#define GPU_AREA_BYTES ((size_t)GPU_BATCH_PAGES * GAIA_PAGE_SIZE)
static inline uint8_t *gpu_host_area(const struct home_gpu *gpu, unsigned area)
{
    return gpu->host + area * GPU_AREA_BYTES;
}
static inline CUdeviceptr gpu_device_area(const struct home_gpu *gpu, unsigned area)
{
    return gpu->staging + area * GPU_AREA_BYTES;
}
#define GPU_LISTS 2u /* the area that lists are in */

/* Open the GPU with this UUID. memory: an area of the daemon's that bytes will come from; it is registered,
 * where that is allowed, for transfers without a copy. why_out says why there is none. 0, -ENODEV, -ENOMEM,
 * -EIO. */
int home_gpu_open(const CUuuid *uuid, void *memory, size_t length, struct home_gpu **gpu_out,
                  char why_out[CUDA_WHY_SIZE]);
void home_gpu_close(struct home_gpu *gpu);

/* The lock, and the context. 0 or -EIO (then it is not held). */
int gpu_begin(struct home_gpu *gpu);
void gpu_end(struct home_gpu *gpu);
/* Put a kernel into the stream; parameters: where each is. */
/* The errno of what a call of the driver's has said, which is kept for the log (gaia_cuda_failure()) unless
 * memory was short. */
int gpu_note(struct home_gpu *gpu, CUresult error);
CUresult gpu_launch(struct home_gpu *gpu, enum gpu_kernel kernel, uint64_t pages, void **parameters);
/* Wait for the stream: `error` if that is one, else what the work ended with, as a negative errno. */
int gpu_wait(struct home_gpu *gpu, CUresult error);

#endif
