/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine's public calls, the bound on requests in flight, and what becomes of one request: which
 * descriptor it takes, and whether an attempt's result is the end of it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/engine_internal.h"

#define DEPTH_MAX 4096u
#define FILES_MAX 65536u

/* Attempts in a row that moved nothing, before the error is the caller's. EAGAIN comes again
 * apart first, then after 4 ms, 8 ms, ... 64 ms, 64 ms: about 0.8 s in all. */
#define RETRIES_MAX 16u
#define PAUSE_SHIFT_MAX 6u

ssize_t (*gaia_io_test_result)(bool direct, size_t length, ssize_t result);

/* Which engine the current thread belongs to, and the slot of the request whose callback it runs: the
 * callback's first submission takes it over, so a chain of requests neither waits nor allocates. */
static _Thread_local struct {
    struct gaia_io *io;
    struct gaia_io_request *spare;
} self;

void gaia_io_thread_enter(struct gaia_io *io, const char *name)
{
    pthread_setname_np(pthread_self(), name); /* for ps; a failure means nothing */
    self.io = io;
}

bool gaia_io_thread_is_own(const struct gaia_io *io)
{
    return self.io == io;
}

/* ---- one request ---- */

struct gaia_io_rest gaia_io_rest(struct gaia_io_request *request)
{
    const struct gaia_io_file *file = request->file;
    struct gaia_io_rest rest = {.fd = &file->buffered};
    uintptr_t bits;

    rest.buffer = request->buffer + request->moved;
    rest.length = request->length - request->moved;
    rest.offset = request->offset + (off_t)request->moved;
    bits = (uintptr_t)rest.buffer | (uintptr_t)rest.length | (uintptr_t)rest.offset;
    request->direct = file->direct.fd >= 0 && !request->buffered_only && !(bits & file->direct_mask);
    if (request->direct)
        rest.fd = &file->direct;
    return rest;
}

static enum gaia_io_step done(struct gaia_io_request *request, ssize_t result)
{
    request->result = result;
    return GAIA_IO_DONE;
}

static enum gaia_io_step again(struct gaia_io_request *request, enum gaia_io_step how)
{
    atomic_fetch_add_explicit(&request->file->io->counters.resubmits, 1, memory_order_relaxed);
    return how;
}

static enum gaia_io_step failed(struct gaia_io_request *request, int error)
{
    unsigned shift;

    switch (error) {
    case EINVAL:     /* this range, this memory or this moment is not fit for O_DIRECT */
    case EOPNOTSUPP: /* as above, other file systems */
    case EIO:        /* or it met what a mapping has just put into a hole; a bad disk fails again */
    case EFAULT:     /* memory that can't be pinned can still be copied to */
        if (request->direct) {
            request->buffered_only = true;
            return again(request, GAIA_IO_AGAIN);
        }
        if (error != EFAULT)
            break;
        /* A bad address, or io_uring's word for a buffered read that waited for its pages as the thread that
         * submitted it exited: as below. */
        __attribute__((fallthrough));
    case EINTR:
    case ECANCELED: /* the thread that submitted it has exited: another one submits it anew */
        if (request->retries++ >= RETRIES_MAX)
            break;
        return again(request, GAIA_IO_AGAIN);
    case EAGAIN:
        if (request->retries++ >= RETRIES_MAX)
            break;
        if (!request->apart) {
            request->apart = true;
            return again(request, GAIA_IO_AGAIN);
        }
        shift = request->retries < PAUSE_SHIFT_MAX ? request->retries : PAUSE_SHIFT_MAX;
        request->pause = (struct __kernel_timespec){.tv_nsec = 1000000LL << shift};
        return again(request, GAIA_IO_PAUSE);
    }
    return done(request, -error);
}

enum gaia_io_step gaia_io_step(struct gaia_io_request *request, ssize_t result)
{
    size_t left = request->length - request->moved;

    if (__builtin_expect(gaia_io_test_result != NULL, 0))
        result = gaia_io_test_result(request->direct, left, result);
    if (result < 0)
        return failed(request, (int)-result);
    assert((size_t)result <= left);

    request->direct_seen |= request->direct;
    request->moved += (size_t)result;
    request->retries = 0;
    if (request->moved == request->length || result == 0) /* the end of the file */
        return done(request, (ssize_t)request->moved);
    return again(request, GAIA_IO_AGAIN);
}

static void count(uint64_t n, _Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void account(struct gaia_io *io, const struct gaia_io_request *request)
{
    struct gaia_io_counters *counters = &io->counters;
    uint64_t bytes = request->result > 0 ? (uint64_t)request->result : 0;

    count(1, &counters->reads);
    count(request->direct_seen, &counters->direct_reads);
    count(bytes, &counters->bytes_read);
}

/* ---- slots: the bound on requests in flight ---- */

void gaia_io_urge(struct gaia_io *io)
{
    atomic_fetch_add(&io->waiting, 1);
    io->backend->push(io);
}

void gaia_io_calm(struct gaia_io *io)
{
    atomic_fetch_sub(&io->waiting, 1);
}

/* With lock held and active already counting the request. */
static struct gaia_io_request *pop_free(struct gaia_io *io)
{
    struct gaia_io_request *request = io->free;

    /* Those of slots that are not free are active, and a granted slot is active and still free. */
    assert(request && io->active <= io->depth);
    io->free = request->next;
    if (io->active > io->active_max)
        io->active_max = io->active;
    return request;
}

/* With lock held, which is let go meanwhile. */
static void wait_for_slot(struct gaia_io *io)
{
    pthread_mutex_unlock(&io->lock);
    gaia_io_urge(io);
    pthread_mutex_lock(&io->lock);
    io->submitters_waiting++;
    while (io->granted == 0 && io->active == io->depth)
        pthread_cond_wait(&io->slot_free, &io->lock);
    io->submitters_waiting--;
    if (io->granted > 0)
        io->granted--;
    else
        io->active++;
    gaia_io_calm(io);
}

/* With lock held: a slot for a callback, which never waits: that of the request just completed, unless others
 * wait for it, or a free one. NULL: none. */
static struct gaia_io_request *slot_in_callback(struct gaia_io *io)
{
    struct gaia_io_request *request = NULL;

    if (self.spare && !io->parked && io->submitters_waiting == io->granted) {
        request = self.spare;
        self.spare = NULL;
    } else if (io->active < io->depth) {
        io->active++;
        request = pop_free(io);
    }
    return request;
}

/* With lock held: keep a request until a slot is given back. That comes to pass: all slots are taken. */
static int park(struct gaia_io *io, const struct gaia_io_request *wanted)
{
    struct gaia_io_request *request = malloc(sizeof *request);

    assert(io->active == io->depth);
    if (!request)
        return -ENOMEM;
    *request = *wanted;
    request->heap = true;
    if (io->parked)
        io->parked_last->next = request;
    else
        io->parked = request;
    io->parked_last = request;
    return 0;
}

static int start(struct gaia_io *io, const struct gaia_io_request *wanted)
{
    struct gaia_io_request *request;
    int error = 0;
    bool heap;

    pthread_mutex_lock(&io->lock);
    if (gaia_io_thread_is_own(io)) {
        request = slot_in_callback(io);
        if (!request)
            error = park(io, wanted);
    } else {
        if (io->active < io->depth)
            io->active++;
        else
            wait_for_slot(io);
        request = pop_free(io);
    }
    if (!error) {
        wanted->file->in_flight++;
        io->in_flight++;
    }
    pthread_mutex_unlock(&io->lock);
    if (!request)
        return error;

    heap = request->heap;
    *request = *wanted;
    request->heap = heap;
    io->backend->queue(io, request);
    return 0;
}

/* With lock held: the oldest parked request if a slot is free, to be queued; or NULL. */
static struct gaia_io_request *unpark(struct gaia_io *io)
{
    struct gaia_io_request *request = io->parked;

    if (!request)
        return NULL;
    assert(io->active < io->depth);
    io->parked = request->next;
    io->active++;
    return request;
}

/* With lock held: give a slot back, and on. A parked request that got it, to be queued; or NULL. */
static struct gaia_io_request *release_slot(struct gaia_io *io, struct gaia_io_request *request)
{
    if (request->heap) {
        free(request);
    } else {
        request->next = io->free;
        io->free = request;
    }
    /* Callbacks that submit for ever must not keep the submitters out, nor these the callbacks: they take
     * turns. */
    io->turn = !io->turn;
    if (io->submitters_waiting > io->granted && (io->turn || !io->parked)) {
        io->granted++;
        pthread_cond_signal(&io->slot_free);
        return NULL;
    }
    io->active--;
    return unpark(io);
}

void gaia_io_finish(struct gaia_io *io, struct gaia_io_request *request)
{
    struct gaia_io_file *file = request->file;
    struct gaia_io_request *next = NULL;

    assert(gaia_io_thread_is_own(io) && !self.spare);
    account(io, request);
    self.spare = request;
    request->done(request->context, request->result);
    request = self.spare;
    self.spare = NULL;

    pthread_mutex_lock(&io->lock);
    if (request)
        next = release_slot(io, request);
    assert(file->in_flight > 0 && io->in_flight > 0 && io->active <= io->depth);
    io->in_flight--;
    if (--file->in_flight == 0)
        pthread_cond_broadcast(&io->idle);
    pthread_mutex_unlock(&io->lock);
    if (next)
        io->backend->queue(io, next);
}

/* ---- submitting ---- */

int gaia_io_read(struct gaia_io *io, struct gaia_io_file *file, void *buffer, size_t length, off_t offset,
                 gaia_io_done *callback, void *context)
{
    struct gaia_io_request wanted = {
        .file = file,
        .buffer = buffer,
        .length = length,
        .offset = offset,
        .done = callback,
        .context = context,
    };

    if (!io || !file || file->io != io || !buffer || !callback || length == 0 ||
        length > GAIA_IO_LENGTH_MAX || offset < 0 || offset > INT64_MAX - (off_t)length)
        return -EINVAL;
    return start(io, &wanted);
}

void gaia_io_submit(struct gaia_io *io)
{
    io->backend->push(io);
}

/* ---- open and close ---- */

int gaia_io_open(const struct gaia_io_config *config, struct gaia_io **io_out)
{
    struct gaia_io *io;
    int error = -ENOMEM;

    if (!config || !io_out || config->depth == 0 || config->depth > DEPTH_MAX || config->files > FILES_MAX ||
        !config->buffers != !config->buffers_length)
        return -EINVAL;
    if (config->kind != GAIA_IO_URING && config->kind != GAIA_IO_THREADS)
        return -EINVAL;
    io = calloc(1, sizeof *io);
    if (!io)
        return -ENOMEM;
    io->backend = config->kind == GAIA_IO_URING ? &gaia_io_uring_backend : &gaia_io_threads_backend;
    io->depth = config->depth;
    lock_init(&io->lock, LOCK_IO);
    pthread_cond_init(&io->slot_free, NULL);
    pthread_cond_init(&io->idle, NULL);
    io->slots = calloc(io->depth, sizeof *io->slots);
    if (!io->slots)
        goto out_free;
    for (unsigned i = 0; i < io->depth; i++) {
        io->slots[i].next = io->free;
        io->free = &io->slots[i];
    }
    error = io->backend->start(io, config);
    if (error)
        goto out_free;
    *io_out = io;
    return 0;

out_free:
    free(io->slots);
    pthread_cond_destroy(&io->idle);
    pthread_cond_destroy(&io->slot_free);
    pthread_mutex_destroy(&io->lock);
    free(io);
    return error;
}

void gaia_io_close(struct gaia_io *io)
{
    if (!io)
        return;
    assert(!gaia_io_thread_is_own(io));
    gaia_io_urge(io);
    pthread_mutex_lock(&io->lock);
    while (io->in_flight > 0)
        pthread_cond_wait(&io->idle, &io->lock);
    assert(io->active == 0 && !io->parked && io->granted == 0);
    pthread_mutex_unlock(&io->lock);

    while (io->files)
        gaia_io_file_free(io->files);
    io->backend->stop(io);
    free(io->slots);
    pthread_cond_destroy(&io->idle);
    pthread_cond_destroy(&io->slot_free);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

bool gaia_io_registered(const struct gaia_io *io)
{
    return io->registered;
}

void gaia_io_stat(const struct gaia_io *io, struct gaia_io_stat *stat_out)
{
    const struct gaia_io_counters *counters = &io->counters;

    *stat_out = (struct gaia_io_stat){
        .reads = atomic_load_explicit(&counters->reads, memory_order_relaxed),
        .direct_reads = atomic_load_explicit(&counters->direct_reads, memory_order_relaxed),
        .bytes_read = atomic_load_explicit(&counters->bytes_read, memory_order_relaxed),
        .resubmits = atomic_load_explicit(&counters->resubmits, memory_order_relaxed),
        .in_flight_max = atomic_load_explicit(&io->active_max, memory_order_relaxed),
    };
}
