/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of a GPU, and the threads that wait for what was left in them: who reads a file for a GPU goes on
 * reading while the bus moves what he has read. */
#include <assert.h>

#include "base/thread.h"
#include "gpu/home_gpu.h"

/* --- lanes --- */

static void free_lane(struct home_gpu *gpu, CUstream stream)
{
    unsigned lane = 0;

    while (gpu->lanes[lane] != stream)
        lane++;
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->free_lanes |= 1u << lane;
    pthread_cond_signal(&gpu->lane_freed);
    pthread_mutex_unlock(&gpu->lanes_lock);
}

int gpu_lane_begin(struct home_gpu *gpu, CUstream *stream_out)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    while (!gpu->free_lanes)
        pthread_cond_wait(&gpu->lane_freed, &gpu->lanes_lock);
    CUstream stream = gpu->lanes[__builtin_ctz(gpu->free_lanes)];
    gpu->free_lanes &= gpu->free_lanes - 1;
    pthread_mutex_unlock(&gpu->lanes_lock);
    int error = gpu_note(gpu, cuda_enter_saying(&gpu->device));
    if (error)
        free_lane(gpu, stream);
    else
        *stream_out = stream;
    return error;
}

void gpu_lane_end(struct home_gpu *gpu, CUstream stream)
{
    cuda_leave(&gpu->device);
    free_lane(gpu, stream);
}

int gpu_lane_wait(struct home_gpu *gpu, CUstream stream, CUresult error)
{
    bool waits = gpu->device.api->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;

    if (waits)
        pthread_mutex_lock(&gpu->turn);
    int result = gpu_wait(gpu, stream, error);
    if (waits)
        pthread_mutex_unlock(&gpu->turn);
    return result;
}

/* --- what is left in them --- */

bool gpu_lane_can_leave(const struct home_gpu *gpu)
{
    return atomic_load(&gpu->finishers_in) > 0;
}

void gpu_lane_leave(struct home_gpu *gpu, CUstream stream, struct gpu_left *left)
{
    assert(gpu_lane_can_leave(gpu));
    cuda_leave(&gpu->device);
    left->stream = stream;
    pthread_mutex_lock(&gpu->lanes_lock);
    STAILQ_INSERT_TAIL(&gpu->left, left, link);
    pthread_cond_signal(&gpu->lane_left);
    pthread_mutex_unlock(&gpu->lanes_lock);
}

static void finish_one(struct home_gpu *gpu, struct gpu_left *left)
{
    CUstream stream = left->stream;

    int error = gpu_lane_wait(gpu, stream, CUDA_SUCCESS);
    free_lane(gpu, stream);
    left->done(left, error);
}

/* What came first has, mostly, ended first: the bus takes one after the other. The context is entered once:
 * what is under way is to be waited for, whatever the driver says by then. */
static void *finish(void *argument)
{
    struct home_gpu *gpu = argument;

    bool entered = !gpu_note(gpu, cuda_enter_saying(&gpu->device));
    atomic_fetch_add(&gpu->finishers_in, entered);
    sem_post(&gpu->finisher_up);
    if (!entered)
        return NULL;
    pthread_mutex_lock(&gpu->lanes_lock);
    for (;;) {
        struct gpu_left *left = STAILQ_FIRST(&gpu->left);
        if (left) {
            STAILQ_REMOVE_HEAD(&gpu->left, link);
            pthread_mutex_unlock(&gpu->lanes_lock);
            finish_one(gpu, left);
            pthread_mutex_lock(&gpu->lanes_lock);
        } else if (gpu->lanes_stop) {
            break;
        } else {
            pthread_cond_wait(&gpu->lane_left, &gpu->lanes_lock);
        }
    }
    pthread_mutex_unlock(&gpu->lanes_lock);
    cuda_leave(&gpu->device);
    return NULL;
}

/* --- both --- */

CUresult gpu_lanes_open(struct home_gpu *gpu)
{
    for (unsigned i = 0; i < GPU_LANES; i++) {
        CUresult error = gpu->device.api->cuStreamCreate(&gpu->lanes[i], CU_STREAM_NON_BLOCKING);
        if (error != CUDA_SUCCESS) {
            gpu->lanes[i] = NULL;
            return error;
        }
    }
    gpu->free_lanes = (1u << GPU_LANES) - 1;
    return CUDA_SUCCESS;
}

/* Without a thread who places waits for himself. That it has entered the context is waited for, so that each
 * call of the driver has its place. */
void gpu_lanes_start(struct home_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    bool begun = gpu->lanes_started;
    gpu->lanes_started = true;
    pthread_mutex_unlock(&gpu->lanes_lock);
    while (!begun && gpu->finisher_count < GPU_FINISHERS &&
           !thread_start(&gpu->finishers[gpu->finisher_count], finish, gpu)) {
        gpu->finisher_count++;
        while (sem_wait(&gpu->finisher_up)) /* a signal */
            ;
    }
}

void gpu_lanes_stop(struct home_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->lanes_stop = true;
    pthread_cond_broadcast(&gpu->lane_left);
    pthread_mutex_unlock(&gpu->lanes_lock);
    while (gpu->finisher_count)
        pthread_join(gpu->finishers[--gpu->finisher_count], NULL);
}

void gpu_lanes_close(struct home_gpu *gpu)
{
    for (unsigned i = 0; i < GPU_LANES; i++)
        if (gpu->lanes[i])
            gpu->device.api->cuStreamDestroy(gpu->lanes[i]);
}
