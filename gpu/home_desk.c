/* SPDX-License-Identifier: Apache-2.0 */
/* Desks: what a thread needs to bring pages to the GPU that must be compared there. The first is made with
 * the GPU, the others when all are in use: pinned memory is dear. */
#include "base/clock.h"
#include "gpu/home_gpu.h"

#define DESK_BYTES (2 * GPU_DESK_AREA + GPU_DESK_PAGES * sizeof(uint32_t))
#define DESK_AGAIN_NS 1000000000u /* after it had no room for one: to ask takes long */

static void clear_desk(const struct home_gpu *gpu, struct gpu_desk *desk)
{
    const struct cuda_api *api = gpu->device.api;

    if (desk->device)
        api->cuMemFree(desk->device);
    if (desk->host)
        api->cuMemFreeHost(desk->host);
    if (desk->stream)
        api->cuStreamDestroy(desk->stream);
    *desk = (struct gpu_desk){0};
}

/* The context is entered. */
static CUresult set_up_desk(const struct home_gpu *gpu, struct gpu_desk *desk)
{
    const struct cuda_api *api = gpu->device.api;
    void *host = NULL;

    CUresult error = api->cuStreamCreate(&desk->stream, CU_STREAM_NON_BLOCKING);
    if (error != CUDA_SUCCESS)
        desk->stream = NULL;
    if (error == CUDA_SUCCESS)
        error = api->cuMemHostAlloc(&host, DESK_BYTES, CU_MEMHOSTALLOC_PORTABLE);
    if (error == CUDA_SUCCESS) {
        desk->host = host;
        error = api->cuMemAlloc(&desk->device, DESK_BYTES);
        if (error != CUDA_SUCCESS)
            desk->device = 0;
    }
    if (error != CUDA_SUCCESS)
        clear_desk(gpu, desk);
    return error;
}

CUresult gpu_desks_open(struct home_gpu *gpu)
{
    CUresult error = set_up_desk(gpu, &gpu->desks[0]);

    gpu->made_desks = 1;
    gpu->free_desks = 1;
    return error;
}

void gpu_desks_close(struct home_gpu *gpu)
{
    for (unsigned i = 0; i < GPU_DESKS; i++)
        clear_desk(gpu, &gpu->desks[i]);
}

/* One more: whether it could be had. If not, those that are there do for a while. The context is entered, the
 * lock is not held. */
static bool make_desk(struct home_gpu *gpu, unsigned i)
{
    bool made = set_up_desk(gpu, &gpu->desks[i]) == CUDA_SUCCESS;

    if (made)
        return true;
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->made_desks &= ~(1u << i);
    gpu->desk_again_ns = clock_now_ns() + DESK_AGAIN_NS;
    pthread_mutex_unlock(&gpu->lanes_lock);
    return false;
}

/* Whether another one may be made. Lock held. */
static bool may_make_desk(const struct home_gpu *gpu)
{
    return gpu->made_desks != (1u << GPU_DESKS) - 1 && clock_now_ns() >= gpu->desk_again_ns;
}

/* The number of a desk, which is the caller's. *new_out: it is to be set up. */
static unsigned take_desk(struct home_gpu *gpu, bool *new_out)
{
    unsigned desk;

    pthread_mutex_lock(&gpu->lanes_lock);
    while (!gpu->free_desks && !may_make_desk(gpu)) /* the first is always there: one will be free */
        pthread_cond_wait(&gpu->desk_freed, &gpu->lanes_lock);
    *new_out = !gpu->free_desks;
    desk = (unsigned)__builtin_ctz(gpu->free_desks ? gpu->free_desks : ~gpu->made_desks);
    gpu->made_desks |= 1u << desk;
    gpu->free_desks &= ~(1u << desk);
    pthread_mutex_unlock(&gpu->lanes_lock);
    return desk;
}

static void free_desk(struct home_gpu *gpu, unsigned desk)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->free_desks |= 1u << desk;
    pthread_cond_signal(&gpu->desk_freed);
    pthread_mutex_unlock(&gpu->lanes_lock);
}

int gpu_desk_begin(struct home_gpu *gpu, struct gpu_desk **desk_out)
{
    unsigned desk;
    bool fresh;

    int error = gpu_note(gpu, cuda_enter_saying(&gpu->device));
    if (error)
        return error;
    do
        desk = take_desk(gpu, &fresh);
    while (fresh && !make_desk(gpu, desk));
    *desk_out = &gpu->desks[desk];
    return 0;
}

void gpu_desk_end(struct home_gpu *gpu, struct gpu_desk *desk)
{
    cuda_leave(&gpu->device);
    free_desk(gpu, (unsigned)(desk - gpu->desks));
}
