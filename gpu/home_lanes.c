/* SPDX-License-Identifier: Apache-2.0 */
/* The lanes of a GPU, and the threads that wait for what was left in them: who reads a file for a GPU goes on
 * reading while the bus moves what he has read. The driver has who waits look without pause, so one thread
 * does, the looker, and goes from what has ended to what comes next. What there is to be done then may take
 * long; that is for others, the finishers, who need not be awake for the looker to go on: on a virtual
 * machine one that sleeps is 50 us away, in which the bus carries most of a stage. */
#include <assert.h>
#include <stddef.h>

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

/* Who waits for a lane of his own while somebody looks at the bus already. */
struct waiting {
    struct gpu_left left;
    sem_t ended;
    int error;
};

static void say_ended(struct gpu_left *left, int error)
{
    struct waiting *waiting = (struct waiting *)((char *)left - offsetof(struct waiting, left));

    waiting->error = error;
    sem_post(&waiting->ended);
}

static void put(struct home_gpu *gpu, struct gpu_left *left)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    STAILQ_INSERT_TAIL(&gpu->left, left, link);
    pthread_cond_signal(&gpu->lane_left);
    pthread_mutex_unlock(&gpu->lanes_lock);
}

static int wait_for_looker(struct home_gpu *gpu, CUstream stream)
{
    struct waiting waiting = {.left = {.stream = stream, .at_once = true, .done = say_ended}};

    sem_init(&waiting.ended, 0, 0);
    put(gpu, &waiting.left);
    while (sem_wait(&waiting.ended)) /* a signal */
        ;
    sem_destroy(&waiting.ended);
    return waiting.error;
}

/* turn held, and let go. */
static int look(struct home_gpu *gpu, CUstream stream, CUresult error)
{
    int result = gpu_wait(gpu, stream, error);

    pthread_mutex_unlock(&gpu->turn);
    return result;
}

int gpu_lane_wait(struct home_gpu *gpu, CUstream stream, CUresult error)
{
    if (gpu->device.api->cuStreamQuery(stream) != CUDA_ERROR_NOT_READY)
        return gpu_wait(gpu, stream, error);
    if (!pthread_mutex_trylock(&gpu->turn))
        return look(gpu, stream, error);
    if (atomic_load(&gpu->looker_in)) {
        int ended = wait_for_looker(gpu, stream);
        return error == CUDA_SUCCESS ? ended : gpu_note(gpu, error);
    }
    pthread_mutex_lock(&gpu->turn);
    return look(gpu, stream, error);
}

/* --- what is left in them --- */

bool gpu_lane_can_leave(const struct home_gpu *gpu)
{
    return atomic_load(&gpu->finishers_up);
}

void gpu_lane_leave(struct home_gpu *gpu, CUstream stream, struct gpu_left *left)
{
    assert(gpu_lane_can_leave(gpu));
    cuda_leave(&gpu->device);
    left->stream = stream;
    left->at_once = false;
    put(gpu, left);
}

static void look_at(struct home_gpu *gpu, struct gpu_left *left)
{
    CUstream stream = left->stream;

    pthread_mutex_lock(&gpu->turn);
    left->error = look(gpu, stream, CUDA_SUCCESS);
    if (left->at_once) {
        left->done(left, left->error);
        return;
    }
    free_lane(gpu, stream);
    pthread_mutex_lock(&gpu->lanes_lock);
    STAILQ_INSERT_TAIL(&gpu->ended, left, link);
    pthread_cond_signal(&gpu->lane_ended);
    pthread_mutex_unlock(&gpu->lanes_lock);
}

/* What came first has, mostly, ended first: the bus takes one after the other. The context is entered once:
 * what is under way is to be waited for, whatever the driver says by then. */
static void *look_at_all(void *argument)
{
    struct home_gpu *gpu = argument;

    bool entered = !gpu_note(gpu, cuda_enter_saying(&gpu->device));
    atomic_store(&gpu->looker_in, entered);
    sem_post(&gpu->looker_up);
    if (!entered)
        return NULL;
    pthread_mutex_lock(&gpu->lanes_lock);
    for (;;) {
        struct gpu_left *left = STAILQ_FIRST(&gpu->left);
        if (left) {
            STAILQ_REMOVE_HEAD(&gpu->left, link);
            pthread_mutex_unlock(&gpu->lanes_lock);
            look_at(gpu, left);
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

static void *finish(void *argument)
{
    struct home_gpu *gpu = argument;

    pthread_mutex_lock(&gpu->lanes_lock);
    for (;;) {
        struct gpu_left *left = STAILQ_FIRST(&gpu->ended);
        if (left) {
            STAILQ_REMOVE_HEAD(&gpu->ended, link);
            pthread_mutex_unlock(&gpu->lanes_lock);
            left->done(left, left->error);
            pthread_mutex_lock(&gpu->lanes_lock);
        } else if (gpu->finishers_stop) {
            break;
        } else {
            pthread_cond_wait(&gpu->lane_ended, &gpu->lanes_lock);
        }
    }
    pthread_mutex_unlock(&gpu->lanes_lock);
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

/* That the looker has entered the context is waited for, so that each call of the driver has its place. */
static void start_looker(struct home_gpu *gpu)
{
    gpu->looker_begun = !thread_start(&gpu->looker, look_at_all, gpu);
    while (gpu->looker_begun && sem_wait(&gpu->looker_up)) /* a signal */
        ;
}

/* Those that are not there yet. Whether there is nothing left to be started: one who can't enter the context,
 * which is so for good, has nobody to hand on to. */
static bool start_all(struct home_gpu *gpu)
{
    if (!gpu->looker_begun)
        start_looker(gpu);
    if (!atomic_load(&gpu->looker_in))
        return gpu->looker_begun;
    while (gpu->finisher_count < GPU_FINISHERS &&
           !thread_start(&gpu->finishers[gpu->finisher_count], finish, gpu))
        gpu->finisher_count++;
    atomic_store(&gpu->finishers_up, gpu->finisher_count > 0);
    return gpu->finisher_count == GPU_FINISHERS;
}

/* Without these threads who places waits for himself; so does whoever comes while another starts them. */
void gpu_lanes_start(struct home_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    bool starts = !gpu->lanes_started && !gpu->lanes_starting;
    gpu->lanes_starting |= starts;
    pthread_mutex_unlock(&gpu->lanes_lock);
    if (!starts)
        return;
    bool started = start_all(gpu);
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->lanes_started = started;
    gpu->lanes_starting = false;
    pthread_mutex_unlock(&gpu->lanes_lock);
}

/* What the looker hands on last the finishers are to have. */
void gpu_lanes_stop(struct home_gpu *gpu)
{
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->lanes_stop = true;
    pthread_cond_signal(&gpu->lane_left);
    pthread_mutex_unlock(&gpu->lanes_lock);
    if (gpu->looker_begun)
        pthread_join(gpu->looker, NULL);
    pthread_mutex_lock(&gpu->lanes_lock);
    gpu->finishers_stop = true;
    pthread_cond_broadcast(&gpu->lane_ended);
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
