/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine on io_uring: one ring, filled by any thread under a mutex, emptied by one thread that
 * blocks for completions and runs the callbacks.
 *
 * The completion queue can't overflow: a request has at most one entry under way (a transfer, or the pause
 * before its next attempt), its slot is given on only after that entry's completion was taken off the queue,
 * at most `depth` slots exist, and the queue has room for that many; the entry that ends the thread is queued
 * when no request is left. The submission queue is shorter; a submitter that finds it full pushes it to the
 * kernel first.
 *
 * The kernel runs part of a completion in the thread that pushed the request: that thread's epoll_wait(2) or
 * similar call may return EINTR for it. When that thread exits, what the kernel had not begun completes with
 * ECANCELED, and a buffered read that waits for its pages with EFAULT; the completion thread then submits it
 * anew.
 *
 * What can't be begun without waiting (all reads of a tmpfs, an overlay, NFS) the kernel has a thread of its
 * own carry out. If it gets none (RLIMIT_NPROC, pids.max) that is ECANCELED, too, and the completion thread
 * carries it out: one after the other, but no touch fails for a limit on processes.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/thread.h"
#include "io/engine_internal.h"

#define QUEUE_MAX 128u               /* entries pushed at once */
#define PIECE_SHIFT 30               /* the kernel takes at most 1 GiB as one registered buffer */
#define PIECES_MAX ((size_t)1 << 14) /* and this many of them */
#define TAG_PAUSE ((uintptr_t)1)     /* in an entry's user_data, beside the request's address */
#define PUSH_RETRY_NS 1000000L
#define INIT_RETRY_NS 10000000L
#define INIT_TRIES_MAX 20u

struct gaia_io_uring {
    /* The submission half is guarded by lock, the completion half belongs to the completion thread; what the
     * two share is the kernel's. */
    struct io_uring ring;
    pthread_mutex_t lock;
    pthread_t thread;
    bool queued; /* completion thread only: it has queued entries that it has not pushed */

    /* Entries ever queued: released under lock after a request was written, acquired before its completion
     * reads it. What really orders the two is the kernel, which neither C's memory model nor ThreadSanitizer
     * can see. */
    _Atomic uint64_t handed;
    uint64_t returned; /* completion thread only: completions ever taken */

    /* Constant after start: the registered area, NULL when there is none. */
    char *area;
    size_t area_length;

    pthread_mutex_t files_lock; /* guards what follows */
    unsigned *free_slots;       /* a stack */
    unsigned free_count;
    unsigned slots;
};

/* The ring answers what it can't answer unless it is broken or forbidden (a seccomp filter set meanwhile).
 * Requests would hang; the program ends instead, with its acknowledged writes in the kernel. */
static void die(const char *call, int error)
{
    fprintf(stderr, "gaiafs: %s: %s\n", call, strerror(-error));
    abort();
}

/* ---- submission ---- */

/* With lock held, which is let go during a retry. */
static void push_locked(struct gaia_io_uring *uring)
{
    const struct timespec retry = {.tv_nsec = PUSH_RETRY_NS};

    /* The kernel may take fewer than there are: it stops behind an entry that fails at once. */
    while (io_uring_sq_ready(&uring->ring) > 0) {
        int n = io_uring_submit(&uring->ring);

        if (n > 0)
            continue;
        if (n < 0 && n != -EAGAIN && n != -EINTR && n != -ENOMEM && n != -EBUSY)
            die("io_uring_enter", n);
        /* The kernel is out of memory for the moment, or (EBUSY) of room for completions, which this call
         * moves to where there is some again. The entries stay queued; completions go on. */
        pthread_mutex_unlock(&uring->lock);
        nanosleep(&retry, NULL);
        pthread_mutex_lock(&uring->lock);
    }
}

static void uring_push(struct gaia_io *io)
{
    struct gaia_io_uring *uring = io->uring;

    pthread_mutex_lock(&uring->lock);
    push_locked(uring);
    pthread_mutex_unlock(&uring->lock);
}

/* The registered piece that holds the bytes, or -1. */
static int piece_of(const struct gaia_io_uring *uring, const char *buffer, size_t length)
{
    size_t first = (uintptr_t)buffer - (uintptr_t)uring->area; /* wraps when below: over area_length then */

    if (!uring->area || first >= uring->area_length || length > uring->area_length - first)
        return -1;
    if (first >> PIECE_SHIFT != (first + length - 1) >> PIECE_SHIFT)
        return -1;
    return (int)(first >> PIECE_SHIFT);
}

static void prepare_read(const struct gaia_io_uring *uring, struct io_uring_sqe *sqe,
                         struct gaia_io_request *request)
{
    struct gaia_io_rest rest = gaia_io_rest(request);
    bool fixed = rest.fd->slot >= 0;
    int fd = fixed ? rest.fd->slot : rest.fd->fd;
    int piece = piece_of(uring, rest.buffer, rest.length);

    if (piece >= 0)
        io_uring_prep_read_fixed(sqe, fd, rest.buffer, (unsigned)rest.length, (uint64_t)rest.offset, piece);
    else
        io_uring_prep_read(sqe, fd, rest.buffer, (unsigned)rest.length, (uint64_t)rest.offset);
    io_uring_sqe_set_flags(sqe, (fixed ? IOSQE_FIXED_FILE : 0) | (request->apart ? IOSQE_ASYNC : 0));
}

static void queue_entry(struct gaia_io *io, struct gaia_io_request *request, enum gaia_io_step step)
{
    struct gaia_io_uring *uring = io->uring;
    struct io_uring_sqe *sqe;

    pthread_mutex_lock(&uring->lock);
    while (!(sqe = io_uring_get_sqe(&uring->ring)))
        push_locked(uring);
    if (step == GAIA_IO_PAUSE) {
        io_uring_prep_timeout(sqe, &request->pause, 0, 0);
        io_uring_sqe_set_data64(sqe, (uintptr_t)request | TAG_PAUSE);
    } else {
        prepare_read(uring, sqe, request);
        io_uring_sqe_set_data64(sqe, (uintptr_t)request);
    }
    atomic_fetch_add_explicit(&uring->handed, 1, memory_order_release);
    /* A thread that waits for the engine has raised `waiting` and then pushed, under lock: it has pushed this
     * entry, or its count is seen here. */
    if (atomic_load(&io->waiting) > 0)
        push_locked(uring);
    pthread_mutex_unlock(&uring->lock);
    if (gaia_io_thread_is_own(io))
        uring->queued = true;
}

static void uring_queue(struct gaia_io *io, struct gaia_io_request *request)
{
    queue_entry(io, request, GAIA_IO_AGAIN);
}

/* ---- completion ---- */

static void complete(struct gaia_io *io, uint64_t data, int result)
{
    struct gaia_io_request *request = (struct gaia_io_request *)(uintptr_t)(data & ~(uint64_t)TAG_PAUSE);
    enum gaia_io_step step = GAIA_IO_AGAIN;
    uint64_t handed = atomic_load_explicit(&io->uring->handed, memory_order_acquire);

    io->uring->returned++;
    assert(io->uring->returned <= handed);
    (void)handed;
    if (!(data & TAG_PAUSE)) /* a pause is over whatever its result: ETIME, or cut short */
        step = gaia_io_step(request, result);
    if (step == GAIA_IO_AGAIN && result == -ECANCELED && request->retries > 1) {
        gaia_io_perform(request); /* seldom a second thread that has exited, which was to push it */
        step = GAIA_IO_DONE;
    }
    if (step == GAIA_IO_DONE)
        gaia_io_finish(io, request);
    else
        queue_entry(io, request, step);
}

static void *complete_all(void *context)
{
    struct gaia_io *io = context;
    struct gaia_io_uring *uring = io->uring;
    struct io_uring_cqe *cqe;
    uint64_t data;
    int result;

    gaia_io_thread_enter(io, "gaia-io");
    for (;;) {
        /* What callbacks and second attempts queued is pushed once there is nothing left to complete. */
        if (uring->queued && !io_uring_cq_ready(&uring->ring)) {
            uring->queued = false;
            uring_push(io);
        }
        result = io_uring_wait_cqe(&uring->ring, &cqe);
        if (result == -EINTR)
            continue;
        if (result < 0)
            die("io_uring_enter", result);
        data = io_uring_cqe_get_data64(cqe);
        result = cqe->res;
        io_uring_cqe_seen(&uring->ring, cqe);
        if (data == 0)
            return NULL;
        complete(io, data, result);
    }
}

/* ---- registered files ---- */

static void uring_file_add(struct gaia_io *io, struct gaia_io_fd *fd)
{
    struct gaia_io_uring *uring = io->uring;
    unsigned slot;

    pthread_mutex_lock(&uring->files_lock);
    if (uring->free_count > 0) {
        slot = uring->free_slots[uring->free_count - 1];
        /* Refused (no memory): the plain descriptor does as well. */
        if (io_uring_register_files_update(&uring->ring, slot, &fd->fd, 1) == 1) {
            uring->free_count--;
            fd->slot = (int)slot;
        }
    }
    pthread_mutex_unlock(&uring->files_lock);
}

static void uring_file_remove(struct gaia_io *io, struct gaia_io_fd *fd)
{
    struct gaia_io_uring *uring = io->uring;
    int none = -1;

    if (fd->slot < 0)
        return;
    pthread_mutex_lock(&uring->files_lock);
    /* Refused (no memory): the table keeps the file open until the slot is used again, or the engine closed.
     */
    (void)io_uring_register_files_update(&uring->ring, (unsigned)fd->slot, &none, 1);
    assert(uring->free_count < uring->slots);
    uring->free_slots[uring->free_count++] = (unsigned)fd->slot;
    pthread_mutex_unlock(&uring->files_lock);
    fd->slot = -1;
}

/* A failure leaves the table empty: files are used by their plain descriptors. */
static void register_files(struct gaia_io_uring *uring, unsigned slots)
{
    struct rlimit limit;

    /* The kernel allows no more slots than descriptors. liburing would raise the program's limit. */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && slots > limit.rlim_cur)
        slots = (unsigned)limit.rlim_cur;
    if (slots == 0)
        return;
    uring->free_slots = calloc(slots, sizeof *uring->free_slots);
    if (!uring->free_slots)
        return;
    if (io_uring_register_files_sparse(&uring->ring, slots) < 0)
        return;
    uring->slots = uring->free_count = slots;
    for (unsigned i = 0; i < slots; i++)
        uring->free_slots[i] = slots - 1 - i;
}

/* ---- registered buffers ---- */

static bool register_buffers(struct gaia_io_uring *uring, char *area, size_t length)
{
    const size_t piece = (size_t)1 << PIECE_SHIFT;
    size_t count = (length >> PIECE_SHIFT) + (length % piece != 0);
    struct iovec *pieces;
    int error;

    if (count == 0 || count > PIECES_MAX)
        return false;
    pieces = calloc(count, sizeof *pieces);
    if (!pieces)
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t first = i << PIECE_SHIFT;

        pieces[i].iov_base = area + first;
        pieces[i].iov_len = length - first < piece ? length - first : piece;
    }
    error = io_uring_register_buffers(&uring->ring, pieces, (unsigned)count);
    free(pieces);
    if (error < 0)
        return false;
    uring->area = area;
    uring->area_length = length;
    return true;
}

/* ---- start and stop ---- */

static void free_uring(struct gaia_io *io)
{
    struct gaia_io_uring *uring = io->uring;

    /* Closing the ring lets go of these some time later; after this call they are free at once. */
    if (uring->area)
        (void)io_uring_unregister_buffers(&uring->ring);
    if (uring->slots > 0)
        (void)io_uring_unregister_files(&uring->ring);
    io_uring_queue_exit(&uring->ring);
    free(uring->free_slots);
    pthread_mutex_destroy(&uring->files_lock);
    pthread_mutex_destroy(&uring->lock);
    free(uring);
    io->uring = NULL;
}

static void uring_stop(struct gaia_io *io)
{
    struct gaia_io_uring *uring = io->uring;
    struct io_uring_sqe *sqe;

    pthread_mutex_lock(&uring->lock);
    while (!(sqe = io_uring_get_sqe(&uring->ring)))
        push_locked(uring);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, 0);
    push_locked(uring);
    pthread_mutex_unlock(&uring->lock);
    pthread_join(uring->thread, NULL);
    free_uring(io);
}

/* Newer kernels count a ring against RLIMIT_MEMLOCK, and let go of a closed one some time later: an engine
 * that was just closed may stand in the way for a moment. */
static int init_ring(struct io_uring *ring, unsigned depth)
{
    const struct timespec retry = {.tv_nsec = INIT_RETRY_NS};
    int error = -ENOMEM;

    for (unsigned i = 0; i < INIT_TRIES_MAX && error == -ENOMEM; i++) {
        struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = depth};

        if (i > 0)
            nanosleep(&retry, NULL);
        error = io_uring_queue_init_params(depth < QUEUE_MAX ? depth : QUEUE_MAX, ring, &params);
        assert(error < 0 || params.cq_entries >= depth);
    }
    return error;
}

static int uring_start(struct gaia_io *io, const struct gaia_io_config *config)
{
    struct gaia_io_uring *uring = calloc(1, sizeof *uring);
    int error;

    if (!uring)
        return -ENOMEM;
    error = init_ring(&uring->ring, config->depth);
    if (error < 0) {
        free(uring);
        return error;
    }
    lock_init(&uring->lock, LOCK_URING);
    lock_init(&uring->files_lock, LOCK_URING_FILES);
    io->uring = uring;
    register_files(uring, config->files);
    io->registered = register_buffers(uring, config->buffers, config->buffers_length);
    error = thread_start(&uring->thread, complete_all, io);
    if (error)
        free_uring(io);
    return error;
}

const struct gaia_io_backend gaia_io_uring_backend = {
    .start = uring_start,
    .stop = uring_stop,
    .queue = uring_queue,
    .push = uring_push,
    .file_add = uring_file_add,
    .file_remove = uring_file_remove,
};
