/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/home_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "gpu/kernels.h"

static CUresult load_kernels(struct home_gpu *gpu)
{
    static const char *const names[GPU_KERNELS] = {
        [GPU_HASH_PAGES] = "gaia_hash_pages",
        [GPU_FIND_MODIFIED] = "gaia_find_modified",
        [GPU_GATHER] = "gaia_gather",
        [GPU_PATCH] = "gaia_patch",
    };
    const struct cuda_api *api = gpu->device.api;

    CUresult error = api->cuModuleLoadData(&gpu->module, gaia_kernels_ptx);
    if (error != CUDA_SUCCESS)
        gpu->module = NULL;
    for (int i = 0; i < GPU_KERNELS && error == CUDA_SUCCESS; i++)
        error = cuda_kernel_find(&gpu->device, gpu->module, names[i], &gpu->kernels[i]);
    return error;
}

static enum gpu_windows find_windows(const struct home_gpu *gpu)
{
    int ordering = cuda_attribute(&gpu->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
    int options = cuda_attribute(&gpu->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);

    if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
        return GPU_WINDOWS_ORDERED;
    return options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST &&
                   gpu->device.api->cuFlushGPUDirectRDMAWrites
               ? GPU_WINDOWS_FLUSHED
               : GPU_WINDOWS_NONE;
}

static CUresult prepare(struct home_gpu *gpu)
{
    const struct cuda_api *api = gpu->device.api;
    CUmemAllocationProp properties = cuda_memory_properties(&gpu->device);
    size_t bytes = GPU_LISTS * GPU_AREA_BYTES + GPU_LIST_BYTES;
    void *host;

    CUresult error = load_kernels(gpu);
    if (error == CUDA_SUCCESS)
        error = api->cuMemGetAllocationGranularity(&gpu->granularity, &properties,
                                                   CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    gpu->windows = find_windows(gpu);
    if (error == CUDA_SUCCESS) {
        error = api->cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING);
        if (error != CUDA_SUCCESS)
            gpu->stream = NULL;
    }
    if (error == CUDA_SUCCESS)
        error = gpu_lanes_open(gpu);
    if (error == CUDA_SUCCESS)
        error = gpu_desks_open(gpu);
    if (error == CUDA_SUCCESS)
        error = api->cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (error == CUDA_SUCCESS) {
        gpu->host = host;
        error = api->cuMemAlloc(&gpu->staging, bytes);
        if (error != CUDA_SUCCESS)
            gpu->staging = 0;
    }
    return error;
}

/* What prepare() has made goes. */
static void undo(struct home_gpu *gpu)
{
    const struct cuda_api *api = gpu->device.api;

    if (gpu->registered)
        api->cuMemHostUnregister(gpu->registered);
    if (gpu->staging)
        api->cuMemFree(gpu->staging);
    if (gpu->host)
        api->cuMemFreeHost(gpu->host);
    gpu_lanes_close(gpu);
    gpu_desks_close(gpu);
    if (gpu->stream)
        api->cuStreamDestroy(gpu->stream);
    if (gpu->module)
        api->cuModuleUnload(gpu->module);
}

static void init_locks(struct home_gpu *gpu)
{
    lock_init(&gpu->lock, LOCK_GPU);
    lock_init(&gpu->lanes_lock, LOCK_GPU_LANES);
    lock_init(&gpu->turn, LOCK_GPU_TURN);
    pthread_cond_init(&gpu->lane_freed, NULL);
    pthread_cond_init(&gpu->lane_left, NULL);
    pthread_cond_init(&gpu->lane_ended, NULL);
    pthread_cond_init(&gpu->desk_freed, NULL);
    sem_init(&gpu->looker_up, 0, 0);
    STAILQ_INIT(&gpu->left);
    STAILQ_INIT(&gpu->ended);
}

static void destroy_locks(struct home_gpu *gpu)
{
    sem_destroy(&gpu->looker_up);
    pthread_cond_destroy(&gpu->desk_freed);
    pthread_cond_destroy(&gpu->lane_ended);
    pthread_cond_destroy(&gpu->lane_left);
    pthread_cond_destroy(&gpu->lane_freed);
    pthread_mutex_destroy(&gpu->turn);
    pthread_mutex_destroy(&gpu->lanes_lock);
    pthread_mutex_destroy(&gpu->lock);
}

int home_gpu_open(const CUuuid *uuid, void *memory, size_t length, struct home_gpu **gpu_out,
                  char why_out[CUDA_WHY_SIZE])
{
    struct home_gpu *gpu = calloc(1, sizeof *gpu);

    if (!gpu)
        return -ENOMEM;
    int error = cuda_device_find(uuid, &gpu->device, why_out);
    if (error)
        goto out_free;
    init_locks(gpu);
    error = cuda_enter(&gpu->device);
    if (error)
        goto out_close;
    CUresult result = prepare(gpu);
    error = cuda_opening_errno(result);
    /* Refused: transfers are slower. */
    if (result == CUDA_SUCCESS && gpu->device.api->cuMemHostRegister &&
        gpu->device.api->cuMemHostUnregister &&
        gpu->device.api->cuMemHostRegister(memory, length, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
        gpu->registered = memory;
    if (result != CUDA_SUCCESS) {
        snprintf(why_out, CUDA_WHY_SIZE, "the GPU can't be set up: %s",
                 cuda_error_name(gpu->device.api, result));
        undo(gpu);
    }
    cuda_leave(&gpu->device);
    if (!error) {
        *gpu_out = gpu;
        return 0;
    }
out_close:
    destroy_locks(gpu);
    cuda_device_close(&gpu->device);
out_free:
    free(gpu);
    return error;
}

void home_gpu_close(struct home_gpu *gpu)
{
    gpu_lanes_stop(gpu);
    if (!cuda_enter(&gpu->device)) {
        undo(gpu);
        cuda_leave(&gpu->device);
    }
    cuda_device_close(&gpu->device);
    destroy_locks(gpu);
    free(gpu);
}

int gpu_note(struct home_gpu *gpu, CUresult error)
{
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        atomic_store(&gpu->short_ns, clock_now_ns());
    else if (error != CUDA_SUCCESS)
        atomic_store(&gpu->failed, (int)error);
    return cuda_errno(error);
}

int gpu_note_opening(struct home_gpu *gpu, CUresult error)
{
    int lack = error == CUDA_SUCCESS ? 0 : cuda_lacks_descriptors();

    return lack ? lack : gpu_note(gpu, error);
}

int gpu_begin(struct home_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lock);
    int error = gpu_note(gpu, cuda_enter_saying(&gpu->device));
    if (error)
        pthread_mutex_unlock(&gpu->lock);
    return error;
}

void gpu_end(struct home_gpu *gpu)
{
    cuda_leave(&gpu->device);
    pthread_mutex_unlock(&gpu->lock);
}

CUresult gpu_launch(struct home_gpu *gpu, CUstream stream, enum gpu_kernel kernel, uint64_t pages,
                    void **parameters)
{
    return cuda_kernel_launch(&gpu->device, &gpu->kernels[kernel], stream, pages, parameters);
}

int gpu_wait(struct home_gpu *gpu, CUstream stream, CUresult error)
{
    CUresult ended = gpu->device.api->cuStreamSynchronize(stream); /* also after an error: see below */

    /* What is under way still uses the areas, which the next to come would change. */
    return gpu_note(gpu, error != CUDA_SUCCESS ? error : ended);
}
