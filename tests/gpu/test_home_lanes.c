/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of a GPU whose work ends when the test says so: who waits is told of the end of his own work, one
 * thread at a time asks the driver, and what is left comes to its end, also beside what takes long. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "gpu/home_gpu.h"

#define TEST_SECONDS 60u /* nothing here takes one */

/* --- a driver: of a stream nothing is known but whether its work has ended, and how --- */

struct CUstream_st {
    bool begun, ended, asked; /* asked: somebody has found that it has not ended, or waits for that */
    CUresult error;
    sem_t end; /* up from then on: a lock of the GPU's may be held, with which no condition is waited for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of the driver */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUstream_st streams[GPU_LANES];
static unsigned looking, most_looked; /* threads in synchronize() */
static CUresult enter_error;
static __thread unsigned depth; /* of contexts */

static CUresult push(CUcontext context)
{
    (void)context;
    depth += enter_error == CUDA_SUCCESS;
    return enter_error;
}

static CUresult pop(CUcontext *context_out)
{
    *context_out = NULL;
    assert_true(depth-- > 0);
    return CUDA_SUCCESS;
}

static CUresult query(CUstream stream)
{
    assert_true(depth > 0);
    pthread_mutex_lock(&lock);
    bool ended = stream->ended || !stream->begun;
    stream->asked = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return ended ? stream->error : CUDA_ERROR_NOT_READY;
}

static void count_looking(int more)
{
    pthread_mutex_lock(&lock);
    looking += (unsigned)more;
    most_looked = looking > most_looked ? looking : most_looked;
    pthread_mutex_unlock(&lock);
}

static CUresult synchronize(CUstream stream)
{
    assert_true(depth > 0);
    count_looking(1);
    while (sem_wait(&stream->end)) /* a signal */
        ;
    sem_post(&stream->end);
    count_looking(-1);
    return stream->error;
}

static void begin_work(CUstream stream)
{
    pthread_mutex_lock(&lock);
    *stream = (struct CUstream_st){.begun = true};
    sem_init(&stream->end, 0, 0);
    pthread_mutex_unlock(&lock);
}

static void wait_until_asked(CUstream stream)
{
    pthread_mutex_lock(&lock);
    while (!stream->asked)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    usleep(20000); /* and sleeps by now; else the test is easier */
}

static void end_work(CUstream stream, CUresult error)
{
    pthread_mutex_lock(&lock);
    stream->error = error;
    stream->ended = true;
    sem_post(&stream->end);
    pthread_mutex_unlock(&lock);
}

/* --- threads that can't be had: the Makefile has pthread_create() wrapped --- */

static unsigned creates_fail_after = UINT_MAX; /* so many more are to be had */

int __real_pthread_create(pthread_t *thread_out, const pthread_attr_t *attributes,
                          void *(*body)(void *argument), void *argument);
int __wrap_pthread_create(pthread_t *thread_out, const pthread_attr_t *attributes,
                          void *(*body)(void *argument), void *argument);

int __wrap_pthread_create(pthread_t *thread_out, const pthread_attr_t *attributes,
                          void *(*body)(void *argument), void *argument)
{
    if (!creates_fail_after)
        return EAGAIN;
    creates_fail_after--;
    return __real_pthread_create(thread_out, attributes, body, argument);
}

/* --- */

static struct home_gpu *start_gpu(CUresult looker_error)
{
    static const struct cuda_api api = {.cuCtxPushCurrent = push,
                                        .cuCtxPopCurrent = pop,
                                        .cuStreamQuery = query,
                                        .cuStreamSynchronize = synchronize};
    struct home_gpu *gpu = calloc(1, sizeof *gpu);

    assert_non_null(gpu);
    gpu->device.api = &api;
    lock_init(&gpu->lanes_lock, LOCK_GPU_LANES);
    lock_init(&gpu->turn, LOCK_GPU_TURN);
    pthread_cond_init(&gpu->lane_freed, NULL);
    pthread_cond_init(&gpu->lane_left, NULL);
    pthread_cond_init(&gpu->lane_ended, NULL);
    sem_init(&gpu->looker_up, 0, 0);
    STAILQ_INIT(&gpu->left);
    STAILQ_INIT(&gpu->ended);
    for (unsigned i = 0; i < GPU_LANES; i++)
        gpu->lanes[i] = &streams[i];
    gpu->free_lanes = (1u << GPU_LANES) - 1;
    memset(streams, 0, sizeof streams);
    looking = most_looked = 0;
    enter_error = looker_error;
    gpu_lanes_start(gpu);
    enter_error = CUDA_SUCCESS;
    gpu_lanes_start(gpu); /* of the next file: it has been done */
    return gpu;
}

static void stop_gpu(struct home_gpu *gpu)
{
    gpu_lanes_stop(gpu);
    assert_int_equal(gpu->free_lanes, (1u << GPU_LANES) - 1);
    sem_destroy(&gpu->looker_up);
    pthread_cond_destroy(&gpu->lane_ended);
    pthread_cond_destroy(&gpu->lane_left);
    pthread_cond_destroy(&gpu->lane_freed);
    pthread_mutex_destroy(&gpu->turn);
    pthread_mutex_destroy(&gpu->lanes_lock);
    free(gpu);
}

/* A thread that puts something into a lane and waits. */
struct waiter {
    struct home_gpu *gpu;
    CUstream stream;
    CUresult put; /* what putting it there said */
    int result;
    pthread_t thread;
};

static void *wait_for_lane(void *argument)
{
    struct waiter *waiter = argument;

    assert_int_equal(gpu_lane_begin(waiter->gpu, &waiter->stream), 0);
    begin_work(waiter->stream);
    waiter->result = gpu_lane_wait(waiter->gpu, waiter->stream, waiter->put);
    gpu_lane_end(waiter->gpu, waiter->stream);
    return NULL;
}

/* Returns when it waits. Lanes are taken from the first on. */
static void start_waiter(struct waiter *waiter, struct home_gpu *gpu, unsigned lane, CUresult put)
{
    *waiter = (struct waiter){.gpu = gpu, .put = put};
    assert_int_equal(thread_start(&waiter->thread, wait_for_lane, waiter), 0);
    wait_until_asked(&streams[lane]);
}

static void four_wait(struct home_gpu *gpu)
{
    struct waiter waiters[4];

    most_looked = 0;
    memset(streams, 0, sizeof streams);
    start_waiter(&waiters[0], gpu, 0, CUDA_SUCCESS);
    start_waiter(&waiters[1], gpu, 1, CUDA_SUCCESS);
    start_waiter(&waiters[2], gpu, 2, CUDA_ERROR_OUT_OF_MEMORY);
    start_waiter(&waiters[3], gpu, 3, CUDA_SUCCESS);
    end_work(&streams[3], CUDA_SUCCESS);
    end_work(&streams[2], CUDA_SUCCESS);
    end_work(&streams[1], CUDA_ERROR_INVALID_CONTEXT);
    end_work(&streams[0], CUDA_SUCCESS);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(waiters[i].thread, NULL);
    assert_int_equal(waiters[0].result, 0);
    assert_int_equal(waiters[1].result, -EIO);
    assert_int_equal(waiters[2].result, -ENOMEM);
    assert_int_equal(waiters[3].result, 0);
    assert_int_equal(most_looked, 1);
}

static void wait_for_four(CUresult looker_error)
{
    struct home_gpu *gpu = start_gpu(looker_error);

    assert_int_equal(gpu_lane_can_leave(gpu), looker_error == CUDA_SUCCESS);
    four_wait(gpu);
    stop_gpu(gpu);
}

static void test_each_hears_of_his_own(void **state)
{
    (void)state;
    wait_for_four(CUDA_SUCCESS);
}

static void test_without_a_looker(void **state)
{
    (void)state;
    wait_for_four(CUDA_ERROR_INVALID_CONTEXT);
}

/* --- what is left --- */

struct work {
    struct gpu_left left;
    bool holds; /* done() waits until that is over */
    bool done;
    int error;
};

static void was_done(struct gpu_left *left, int error)
{
    struct work *work = (struct work *)((char *)left - offsetof(struct work, left));

    pthread_mutex_lock(&lock);
    while (work->holds)
        pthread_cond_wait(&changed, &lock);
    work->error = error;
    work->done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static CUstream leave(struct home_gpu *gpu, struct work *work, bool holds)
{
    CUstream stream;

    *work = (struct work){.left.done = was_done, .holds = holds};
    assert_int_equal(gpu_lane_begin(gpu, &stream), 0);
    begin_work(stream);
    gpu_lane_leave(gpu, stream, &work->left);
    return stream;
}

static void wait_until_done(const struct work *work, int error)
{
    pthread_mutex_lock(&lock);
    while (!work->done)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    assert_int_equal(work->error, error);
}

/* As many as may be left but one take long: neither the next that is left, nor who waits, waits for them. */
static void test_beside_what_takes_long(void **state)
{
    struct home_gpu *gpu = start_gpu(CUDA_SUCCESS);
    struct work slow[GPU_FINISHERS - 1], quick;
    struct waiter waiter;

    (void)state;
    for (unsigned i = 0; i < GPU_FINISHERS - 1; i++)
        end_work(leave(gpu, &slow[i], true), i ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
    for (unsigned round = 0; round < 2 * GPU_LANES; round++) { /* lanes are free again before done() */
        end_work(leave(gpu, &quick, false), round % 2 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS);
        wait_until_done(&quick, round % 2 ? -EIO : 0);
    }
    memset(streams, 0, sizeof streams);
    start_waiter(&waiter, gpu, 0, CUDA_SUCCESS);
    end_work(&streams[0], CUDA_SUCCESS);
    pthread_join(waiter.thread, NULL);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < GPU_FINISHERS - 1; i++)
        slow[i].holds = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < GPU_FINISHERS - 1; i++)
        wait_until_done(&slow[i], i ? 0 : -EIO);
    assert_int_equal(most_looked, 1);
    stop_gpu(gpu);
}

static void *stop(void *gpu)
{
    gpu_lanes_stop(gpu);
    return NULL;
}

static void test_the_end_finishes_what_is_left(void **state)
{
    struct home_gpu *gpu = start_gpu(CUDA_SUCCESS);
    struct work works[GPU_FINISHERS];
    pthread_t thread;

    (void)state;
    for (unsigned i = 0; i < GPU_FINISHERS; i++)
        leave(gpu, &works[i], false);
    assert_int_equal(thread_start(&thread, stop, gpu), 0);
    usleep(20000); /* it waits; else the test is easier */
    for (unsigned i = 0; i < GPU_FINISHERS; i++)
        end_work(&streams[i], CUDA_SUCCESS);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < GPU_FINISHERS; i++)
        assert_true(works[i].done);
    gpu->looker_begun = false; /* it has been stopped */
    stop_gpu(gpu);
}

static void left_are_done(struct home_gpu *gpu, unsigned count)
{
    struct work works[GPU_FINISHERS];

    for (unsigned i = 0; i < count; i++)
        end_work(leave(gpu, &works[i], i + 1 < count), CUDA_SUCCESS);
    wait_until_done(&works[count - 1], 0); /* the others hold a thread each */
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        works[i].holds = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < count; i++)
        wait_until_done(&works[i], 0);
}

/* There is room for so many threads, and none at the next piece, and all at the one after that: meanwhile it
 * is done with those that there are, and who places waits for himself where there is none. */
static void threads_come_later(unsigned room)
{
    creates_fail_after = room;
    struct home_gpu *gpu = start_gpu(CUDA_SUCCESS);

    creates_fail_after = UINT_MAX;
    assert_int_equal(gpu->looker_begun, room > 0);
    assert_int_equal(gpu->finisher_count, room ? room - 1 : 0);
    assert_int_equal(gpu_lane_can_leave(gpu), room > 1);
    four_wait(gpu);
    if (room > 1)
        left_are_done(gpu, room - 1);
    gpu_lanes_start(gpu);
    assert_true(gpu_lane_can_leave(gpu));
    assert_int_equal(gpu->finisher_count, GPU_FINISHERS);
    four_wait(gpu);
    left_are_done(gpu, GPU_FINISHERS);
    stop_gpu(gpu);
}

static void test_threads_come_later(void **state)
{
    (void)state;
    for (unsigned room = 0; room <= GPU_FINISHERS; room++)
        threads_come_later(room);
}

/* The one that could not enter the context is not tried again: it has been, and nothing of it is left. */
static void test_no_second_looker(void **state)
{
    struct home_gpu *gpu = start_gpu(CUDA_ERROR_INVALID_CONTEXT);
    pthread_t looker = gpu->looker;

    (void)state;
    gpu_lanes_start(gpu);
    assert_true(pthread_equal(looker, gpu->looker));
    assert_false(gpu_lane_can_leave(gpu));
    stop_gpu(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_hears_of_his_own),  cmocka_unit_test(test_without_a_looker),
        cmocka_unit_test(test_beside_what_takes_long), cmocka_unit_test(test_the_end_finishes_what_is_left),
        cmocka_unit_test(test_threads_come_later),     cmocka_unit_test(test_no_second_looker),
    };

    alarm(TEST_SECONDS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
