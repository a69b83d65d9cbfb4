/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine on a pool of threads, for where io_uring is refused: each carries out one request at a
 * time with pread(). Registered buffers and files have no meaning here. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "io/engine_internal.h"

#define THREADS_MAX 8u

struct gaia_io_pool {
    pthread_mutex_t lock; /* guards what follows up to `stopping` */
    pthread_cond_t work;  /* first is set, or stopping */
    struct gaia_io_request *first, *last;
    bool stopping;

    unsigned count;
    pthread_t threads[THREADS_MAX];
};

static ssize_t attempt(struct gaia_io_request *request)
{
    struct gaia_io_rest rest = gaia_io_rest(request);
    ssize_t n = pread(rest.fd->fd, rest.buffer, rest.length, rest.offset);

    return n < 0 ? -errno : n;
}

void gaia_io_perform(struct gaia_io_request *request)
{
    enum gaia_io_step step;

    do {
        step = gaia_io_step(request, attempt(request));
        if (step == GAIA_IO_PAUSE) {
            struct timespec pause = {.tv_nsec = (long)request->pause.tv_nsec};

            nanosleep(&pause, NULL); /* cut short by a signal: tries earlier */
        }
    } while (step != GAIA_IO_DONE);
}

static void *work(void *context)
{
    struct gaia_io *io = context;
    struct gaia_io_pool *pool = io->pool;
    struct gaia_io_request *request;

    gaia_io_thread_enter(io, "gaia-io");
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        request = pool->first;
        if (request) {
            pool->first = request->next;
            pthread_mutex_unlock(&pool->lock);
            gaia_io_perform(request);
            gaia_io_finish(io, request);
            pthread_mutex_lock(&pool->lock);
        } else if (pool->stopping) {
            break;
        } else {
            pthread_cond_wait(&pool->work, &pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void threads_queue(struct gaia_io *io, struct gaia_io_request *request)
{
    struct gaia_io_pool *pool = io->pool;

    request->next = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->first)
        pool->last->next = request;
    else
        pool->first = request;
    pool->last = request;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void threads_push(struct gaia_io *io)
{
    (void)io; /* queued requests are picked up at once */
}

static void threads_stop(struct gaia_io *io)
{
    struct gaia_io_pool *pool = io->pool;

    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->count; i++)
        pthread_join(pool->threads[i], NULL);
    assert(!pool->first);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    io->pool = NULL;
}

static int threads_start(struct gaia_io *io, const struct gaia_io_config *config)
{
    struct gaia_io_pool *pool = calloc(1, sizeof *pool);
    unsigned wanted = config->depth < THREADS_MAX ? config->depth : THREADS_MAX;

    if (!pool)
        return -ENOMEM;
    lock_init(&pool->lock, LOCK_POOL);
    pthread_cond_init(&pool->work, NULL);
    io->pool = pool;
    for (; pool->count < wanted; pool->count++) {
        int error = thread_start(&pool->threads[pool->count], work, io);

        if (error) {
            threads_stop(io);
            return error;
        }
    }
    return 0;
}

static void threads_file(struct gaia_io *io, struct gaia_io_fd *fd)
{
    (void)io;
    (void)fd;
}

const struct gaia_io_backend gaia_io_threads_backend = {
    .start = threads_start,
    .stop = threads_stop,
    .queue = threads_queue,
    .push = threads_push,
    .file_add = threads_file,
    .file_remove = threads_file,
};
