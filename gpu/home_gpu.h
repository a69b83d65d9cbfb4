/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU in the daemon: a context, streams, the device kernels, and a little memory in which bytes and lists
 * of pages are on their way. With these one thing is done at a time: gpu_begin() to gpu_end(). Work that
 * needs only a stream, as placing does, takes one of several lanes, so that the GPU copies for one while it
 * hashes for another, and the daemon waits for a third: gpu_lane_begin() to gpu_lane_end(), or to
 * gpu_lane_leave(), after which a thread of the GPU waits (home_lanes.c). Work that needs memory, too, and
 * comes from several threads, takes one of a few desks: gpu_desk_begin() to gpu_desk_end(). */
#ifndef GAIAFS_GPU_HOME_GPU_H
#define GAIAFS_GPU_HOME_GPU_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "consistency/page.h"
#include "gpu/cuda_kernel.h"
#include "io/standing.h"

/* Pages that a gather or a fetch moves at once. */
#define GPU_BATCH_PAGES 512u
/* Bytes of the area of lists. */
#define GPU_LIST_BYTES ((size_t)1 << 20)
/* Placings that are under way at a time. One of 512 KiB takes 10 us of the bus, a few more of hashing, and as
 * many of calls. Each thread that reads may have one, and one for what it read before. */
#define GPU_LANES 16u
/* Threads that do what follows when work that was left in lanes has ended; as many placements may be left. If
 * all these threads wait for a file's lock, which may be held for long, nobody waits for them. */
#define GPU_FINISHERS 8u
/* Patches that are under way at a time, and the pages that each moves at once. */
#define GPU_DESKS 8u
#define GPU_DESK_PAGES 256u

enum gpu_kernel { GPU_HASH_PAGES, GPU_FIND_MODIFIED, GPU_GATHER, GPU_PATCH, GPU_KERNELS };

/* When a kernel that is launched afterwards sees what a NIC has written to the GPU's memory and has reported
 * to the CPU. */
enum gpu_windows {
    GPU_WINDOWS_NONE,    /* nobody knows */
    GPU_WINDOWS_FLUSHED, /* after cuFlushGPUDirectRDMAWrites() */
    GPU_WINDOWS_ORDERED,
};

/* A stream, and memory for what is on its way: two areas of GPU_DESK_PAGES pages, and a list of so many
 * numbers behind them; on the device there is the same. */
struct gpu_desk {
    CUstream stream;
    uint8_t *host; /* pinned; NULL: it has not been set up */
    CUdeviceptr device;
};

struct home_gpu {
    struct cuda_device device;
    size_t granularity; /* of memory that can be exported, bytes */
    CUmodule module;
    struct cuda_kernel kernels[GPU_KERNELS];
    _Atomic(enum gpu_windows) windows; /* fewer, when a flush has failed */
    struct gaia_reaches reaches;
    _Atomic int failed;        /* the driver's last error, except that memory is short: a CUresult, 0: none */
    _Atomic uint64_t short_ns; /* when the driver had no memory last; 0: never */

    pthread_mutex_t lock; /* guards all below; a leaf; held from gpu_begin() to gpu_end() */
    CUstream stream;
    void *registered;
    uint8_t *host;       /* pinned: two areas of GPU_BATCH_PAGES pages, and GPU_LIST_BYTES behind them */
    CUdeviceptr staging; /* the same on the device */
    SLIST_HEAD(, chunk) unfreed; /* of home_cuda.c's, which the driver still has */

    CUstream lanes[GPU_LANES];        /* each is used by the thread that has taken it; */
    struct gpu_desk desks[GPU_DESKS]; /* so are these; the first is always there */
    pthread_t finishers[GPU_FINISHERS];
    pthread_t looker;
    unsigned finisher_count; /* for the thread that starts these (lanes_starting), and the one that stops
                                them; */
    bool looker_begun;       /* so is this */
    sem_t looker_up;         /* the looker has entered, or could not */
    atomic_bool looker_in;   /* it has entered the context */
    atomic_bool finishers_up;

    pthread_mutex_t turn; /* to wait for a lane: gpu_lane_wait(); a leaf, and guards nothing else */

    pthread_mutex_t lanes_lock; /* guards all below; a leaf */
    pthread_cond_t lane_freed, lane_left, lane_ended, desk_freed;
    unsigned free_lanes;                 /* bit i: lane i */
    unsigned made_desks;                 /* which have been set up, or are being, */
    unsigned free_desks;                 /* and which of these nobody has */
    uint64_t desk_again_ns;              /* none is asked for before that: the GPU was full */
    STAILQ_HEAD(, gpu_left) left, ended; /* for the looker; for the finishers */
    bool lanes_starting;                 /* somebody starts them; */
    bool lanes_started;                  /* all are there, or can't ever be */
    bool lanes_stop, finishers_stop; /* the looker, the finishers are to end when nothing is left for them */
};

/* Work that was put into a lane, and what to call when it is done. The caller's memory until then. */
struct gpu_left {
    STAILQ_ENTRY(gpu_left) link;
    CUstream stream;
    bool at_once; /* done() waits for nothing; the lane stays its owner's */
    int error;
    /* Once, with no lock held, by a thread of the GPU's. 0 or a negative errno. */
    void (*done)(struct gpu_left *left, int error);
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

/* Open the GPU with this UUID. memory: an area of the daemon from which bytes will come; it is registered,
 * where that is allowed, for transfers without a copy. why_out says why the GPU can't be opened. 0, -ENODEV,
 * -ENOMEM, -EIO. */
int home_gpu_open(const CUuuid *uuid, void *memory, size_t length, struct home_gpu **gpu_out,
                  char why_out[CUDA_WHY_SIZE]);
void home_gpu_close(struct home_gpu *gpu);

/* The lock, and the context. 0 or -EIO (then it is not held). */
int gpu_begin(struct home_gpu *gpu);
void gpu_end(struct home_gpu *gpu);
/* Take a lane, after waiting if need be, and enter the context. 0 or -EIO (then there is none). */
int gpu_lane_begin(struct home_gpu *gpu, CUstream *stream_out);
void gpu_lane_end(struct home_gpu *gpu, CUstream stream);
/* gpu_wait() for a lane. In the driver a waiting thread spins, so of many only one does, and the others
 * sleep, where there is a looker until that wakes them: reading files needs the processors. */
int gpu_lane_wait(struct home_gpu *gpu, CUstream stream, CUresult error);
/* Instead of gpu_lane_wait() and gpu_lane_end(): left->done is called when all that was put into the lane has
 * ended. Only where gpu_lane_can_leave(). */
void gpu_lane_leave(struct home_gpu *gpu, CUstream stream, struct gpu_left *left);
bool gpu_lane_can_leave(const struct home_gpu *gpu);
/* Start the threads that wait for what is left in lanes, and that do what follows, at the first call. Threads
 * for which there was no room are tried again at the next call: for a file, or a chunk of one. With any lock
 * held. */
void gpu_lanes_start(struct home_gpu *gpu);
/* Of home_gpu.c's: the context is entered for gpu_lanes_open() and gpu_lanes_close(), which may follow
 * whether or not the other succeeded. Before gpu_lanes_close(), whether the context can be entered or not,
 * call gpu_lanes_stop(): no lane is in use, and no lock held. */
CUresult gpu_lanes_open(struct home_gpu *gpu);
void gpu_lanes_stop(struct home_gpu *gpu);
void gpu_lanes_close(struct home_gpu *gpu);
/* Take a desk, after waiting if need be, and enter the context. 0 or -EIO (then there is none). */
int gpu_desk_begin(struct home_gpu *gpu, struct gpu_desk **desk_out);
void gpu_desk_end(struct home_gpu *gpu, struct gpu_desk *desk);
/* Of home_gpu.c's, as gpu_lanes_open() and gpu_lanes_close(). */
CUresult gpu_desks_open(struct home_gpu *gpu);
void gpu_desks_close(struct home_gpu *gpu);
#define GPU_DESK_AREA ((size_t)GPU_DESK_PAGES * GAIA_PAGE_SIZE)
/* The errno for the result of a driver's call; an error is kept for the log (gaia_cuda_failure()) unless
 * memory was short. */
int gpu_note(struct home_gpu *gpu, CUresult error);
/* The same for calls that take a descriptor: when none is left, that is no error of the GPU, and the result
 * is -EMFILE or -ENFILE. */
int gpu_note_opening(struct home_gpu *gpu, CUresult error);
/* Put a kernel into a stream; parameters: where each is. */
CUresult gpu_launch(struct home_gpu *gpu, CUstream stream, enum gpu_kernel kernel, uint64_t pages,
                    void **parameters);
/* Wait for a stream. Returns `error` if that is an error, else the work's result, as a negative errno. */
int gpu_wait(struct home_gpu *gpu, CUstream stream, CUresult error);

#endif
