/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the storage engine share: engine.c (public calls, depth, the fate of one request),
 * engine_file.c, engine_uring.c and engine_threads.c (two ways to carry requests out). Nothing else includes
 * this.
 *
 * A request's life: take a slot (or, in a callback with none free, be parked) -> queue -> attempt -> step,
 * and again attempt until step says that it is done -> its callback -> the slot goes to a parked request or a
 * waiting submitter.
 *
 * Locks: gaia_io.lock, gaia_io_uring.lock, gaia_io_uring.files_lock, gaia_io_pool.lock. All are leaves: none
 * is held while another is taken, and none while a callback runs.
 */
#ifndef GAIAFS_IO_ENGINE_INTERNAL_H
#define GAIAFS_IO_ENGINE_INTERNAL_H

#include <linux/time_types.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "io/engine.h"

#define GAIA_IO_LENGTH_MAX ((size_t)1 << 30)
#define GAIA_IO_DIRECT_ALIGN_MAX 4096u

enum gaia_io_step {
    GAIA_IO_DONE,  /* request->result is final */
    GAIA_IO_AGAIN, /* attempt the rest */
    GAIA_IO_PAUSE, /* attempt the rest after request->pause */
};

/* One descriptor and its place in the ring's table of registered files (-1: none). */
struct gaia_io_fd {
    int fd;
    int slot;
};

struct gaia_io_file {
    struct gaia_io *io;
    struct gaia_io_fd buffered; /* the caller's */
    struct gaia_io_fd direct;   /* ours; fd -1: reads are buffered */
    uintptr_t direct_mask;      /* direct alignment - 1 */
    struct gaia_io_file *next;  /* io->lock: in io->files */
    struct gaia_io_file **link; /* io->lock: what points to this */
    unsigned in_flight;         /* io->lock: requests whose callback has not returned */
};

struct gaia_io_request {
    struct gaia_io_request *next; /* the lock of the list that it is on */

    /* Set before it is queued, constant from then on. */
    struct gaia_io_file *file;
    char *buffer;
    size_t length;
    off_t offset;
    gaia_io_done *done;
    void *context;
    bool heap; /* from malloc, not from io->slots */

    /* Progress: touched only by the thread that runs the current attempt or its completion. */
    size_t moved;
    ssize_t result;
    unsigned retries;   /* attempts in a row that moved nothing */
    bool direct;        /* the attempt under way goes through O_DIRECT */
    bool direct_seen;   /* one that did has succeeded */
    bool buffered_only; /* O_DIRECT was refused: finish without */
    bool apart;         /* would have blocked: let a thread of the kernel carry it out */
    struct __kernel_timespec pause;
};

struct gaia_io_backend {
    int (*start)(struct gaia_io *io, const struct gaia_io_config *config);
    void (*stop)(struct gaia_io *io); /* nothing is in flight */
    void (*queue)(struct gaia_io *io, struct gaia_io_request *request);
    void (*push)(struct gaia_io *io);
    void (*file_add)(struct gaia_io *io, struct gaia_io_fd *fd);
    void (*file_remove)(struct gaia_io *io, struct gaia_io_fd *fd);
};

extern const struct gaia_io_backend gaia_io_uring_backend;
extern const struct gaia_io_backend gaia_io_threads_backend;

struct gaia_io_counters {
    _Atomic uint64_t reads, direct_reads, bytes_read, resubmits;
};

struct gaia_io {
    /* Constant after gaia_io_open(). */
    const struct gaia_io_backend *backend;
    struct gaia_io_uring *uring;
    struct gaia_io_pool *pool;
    struct gaia_io_request *slots;
    unsigned depth;
    bool registered;

    struct gaia_io_counters counters;

    /* Threads that wait for the engine while others may have queued requests and not pushed them. Raised
     * before the waiting thread pushes, read by the ring's submitters after they queued: see gaia_io_urge().
     */
    _Atomic unsigned waiting;

    pthread_mutex_t lock;        /* guards what follows, and what gaia_io_file says */
    pthread_cond_t slot_free;    /* granted rose */
    pthread_cond_t idle;         /* a file's in_flight fell to 0 */
    unsigned in_flight;          /* requests whose callback has not returned */
    unsigned active;             /* slots taken: by requests under way, by callbacks running, granted */
    _Atomic unsigned active_max; /* written with lock held, read without */
    unsigned submitters_waiting; /* on slot_free, including those that were granted a slot already */
    unsigned granted;            /* slots given to waiting submitters that have not woken up yet */
    bool turn;                   /* whose turn it is when submitters wait and requests are parked */
    struct gaia_io_file *files;
    struct gaia_io_request *free;        /* of slots */
    struct gaia_io_request *parked;      /* submitted by callbacks while no slot was free, oldest first */
    struct gaia_io_request *parked_last; /* defined when parked is not NULL */
};

/* To be called, without lock, by a thread that is going to wait for the engine: pushes what is queued, and
 * makes others push what they queue until the thread has called gaia_io_calm(). Without it the waiting thread
 * could wait for requests that their submitter has not pushed, while that submitter waits for a lock that the
 * thread holds. */
void gaia_io_urge(struct gaia_io *io);
void gaia_io_calm(struct gaia_io *io);

/* Let go of a file that has nothing in flight. */
void gaia_io_file_free(struct gaia_io_file *file);

/* What the next attempt has to read. Sets request->direct. */
struct gaia_io_rest {
    char *buffer;
    size_t length;
    off_t offset;
    const struct gaia_io_fd *fd;
};
struct gaia_io_rest gaia_io_rest(struct gaia_io_request *request);

/* Judge an attempt's result: bytes or a negative errno. */
enum gaia_io_step gaia_io_step(struct gaia_io_request *request, ssize_t result);

/* Run the callback, pass the slot on. On an engine thread, after GAIA_IO_DONE; request is gone afterwards. */
void gaia_io_finish(struct gaia_io *io, struct gaia_io_request *request);

/* Carry a request out in the calling thread, to its end: request->result. */
void gaia_io_perform(struct gaia_io_request *request);

/* The first call of each thread of the engine. */
void gaia_io_thread_enter(struct gaia_io *io, const char *name);
bool gaia_io_thread_is_own(const struct gaia_io *io);

/* NULL but in tests: sees each attempt's result (whether it went through O_DIRECT, and the length asked for)
 * and returns what to take it for. It can make a read look shorter than it was, or failed; it must not make
 * it longer. Set it while no engine is open. */
extern ssize_t (*gaia_io_test_result)(bool direct, size_t length, ssize_t result);

#endif
