/* SPDX-License-Identifier: Apache-2.0 */
/* A device's frames for one file, as the home (the daemon) holds them: the paper's Table 1 as a C interface.
 * A driver's other half, which runs in the client (reserve addresses, mmap, hand over faults), is behind
 * libgaia.
 *
 * Pages are pages of the file. Calls take runs, never one page at a time. All return 0 or a negative errno
 * and may be called from any thread; the cache decides which calls may run at once for one page (a page that
 * is "busy" in the index has one owner). Calls marked [client] may wait for the mmap lock of a client
 * process: no lock that a FUSE handler needs may be held, because the client may hold its mmap lock while it
 * waits for the daemon's answer to a write-back. */
#ifndef GAIAFS_GPU_DEVICE_H
#define GAIAFS_GPU_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "consistency/digest.h"
#include "consistency/page.h"
#include "io/standing.h"

struct gaia_run {
    uint64_t page;
    uint64_t count;
};

#define GAIA_FETCH_MAX 64u /* pages */

/* The memory of pages [page, page + count) of some frames that stays where it is, for callers that bring the
 * bytes in by other means than place(). */
struct gaia_window {
    uint64_t page, count;
    void *memory;                   /* at addresses of this process */
    struct gaia_standing *standing; /* which it is a part of */
    struct gaia_memory *registered; /* set by the one that brings the bytes: its registration with the
                                       transport; else NULL */
    /* For cache/window.c: what must arrive, if that is checked; and that it was not there before. */
    const void *bytes;
    bool proves;
};

struct gaia_frames;
struct gaia_frames_map; /* a client's mapping of frames */

/* One fault, as a driver reports it. */
struct gaia_fault {
    uint64_t address; /* in the client, page aligned */
    bool write;       /* the touch is a store */
    bool protection;  /* a first store to a page that is mapped write protected */
    uint32_t thread;  /* that touches, as this process's namespace numbers it; 0: not known */
};

/* A placement that goes on by itself: its caller's memory until done() is called, once, with no lock held; in
 * another thread, or before place_later() has returned. */
struct gaia_placing {
    void (*done)(struct gaia_placing *placing, int error);
};

/* Whose touches a map serves. */
struct gaia_process {
    int faults;   /* its descriptor for faults; of an agent's client: its number there; -1: none */
    pid_t pid;    /* as this process sees it; of an agent's client: 0 */
    uid_t user;   /* whose it is */
    int lives;    /* can be read from when the process has ended, and pid may be another's; 0 or negative:
                     that can't be known */
    bool apart;   /* thread_is_apart() */
    bool charged; /* memory may be charged to its control group: fs/memory.h */
};

/* Two kinds of drivers. One *traps*: its device's touches of missing pages and first stores are faults, so
 * that it can take a page away and give it back. The other *scans*: nothing can stop a kernel, so what is
 * mapped stays where it is and is brought up to date in place, and stores are found afterwards by comparing.
 * Calls for one kind are NULL, or do nothing, in drivers of the other. */
struct gaia_frames_ops {
    bool scans;
    /* The frames come and go, so that they can't be registered with a NIC once: bytes are read into memory
     * that is registered once, and placed from there. Such frames have no windows. */
    bool bounces;
    /* How many placements by place_later() may be under way, for all files: as many threads call done(), and
     * wait for whatever done() waits for. 0: any number. */
    unsigned later_most;
    /* What a client needs to map the frames: a descriptor, read only or not; the caller closes it. A driver
     * that scans has one for each chunk (see gaia_frames), which is allocated if need be: -ENOMEM. */
    int (*share)(struct gaia_frames *frames, bool writable, uint64_t chunk, int *fd_out);
    /* For a chunk that was shared: the memory with the digests that modified() compares with, for clients
     * that may write. -EOPNOTSUPP: there is none that can be shared; NULL: there never is. */
    int (*share_digests)(struct gaia_frames *frames, uint64_t chunk, int *fd_out, uint64_t *bytes_out);
    /* A client mapped pages [first, first + count) at address in a process, whose descriptor must outlive the
     * map. can_trap: the process's kernel can map pages write protected. Waits for calls under way on other
     * clients' maps. [client] */
    int (*attach)(struct gaia_frames *frames, const struct gaia_process *process, uint64_t address,
                  uint64_t first, uint64_t count, bool writable, bool can_trap,
                  struct gaia_frames_map **map_out);
    /* No call on this map is under way; waits for calls on all of the frames' maps. [client] */
    void (*detach)(struct gaia_frames_map *map);

    /* The file has this many pages now; frames past the end go away, and touching them raises SIGBUS. */
    int (*resize)(struct gaia_frames *frames, uint64_t pages);
    /* Bring bytes into frames that nobody can see yet (allocPhysical). bytes has count whole pages. */
    int (*place)(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes);
    /* The same, slower, and without any lock that a client may have. -EFAULT: one has cut them off. NULL:
     * place() takes none. */
    int (*place_unheld)(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes);
    /* As place(), and then, if `exposes`, expose() to map with first stores trapped, without waiting: after 0
     * placing->done() is called. After an error the caller must use place(). map: NULL where later_most is
     * not 0, as it may not be attached yet. NULL: never possible; so where the processor copies the bytes. */
    int (*place_later)(struct gaia_frames *frames, struct gaia_frames_map *map, uint64_t page, uint64_t count,
                       const void *bytes, bool exposes, struct gaia_placing *placing);
    /* place() and expose() in one step, and without the locks of the frames, for as many pages from the first
     * on as possible: returns how many. The rest is for place() and expose(). NULL: never. [client] */
    uint64_t (*place_exposed)(struct gaia_frames_map *map, uint64_t page, uint64_t count, const void *bytes);
    /* As place(), by hand: the memory of frames that nobody can see yet, until close_window(). It is a GPU's
     * memory, so that a CPU's store to it is SIGBUS: only the kernel or a NIC may write to it. -EOPNOTSUPP:
     * these pages have none; NULL: no pages of this device have. */
    int (*open_window)(struct gaia_frames *frames, uint64_t page, uint64_t count,
                       struct gaia_window *window_out);
    /* arrived: all bytes are there, and the pages count as placed when this has returned 0. */
    int (*close_window)(struct gaia_frames *frames, const struct gaia_window *window, bool arrived);
    /* Let the client of map see placed pages, first stores trapped or not; wakes its waiting touches
     * (mapP2V). [client] */
    int (*expose)(struct gaia_frames_map *map, uint64_t page, uint64_t count, bool trap_stores);
    /* Trap the next store to each page, in every client: no store is under way when it returns. [client] */
    int (*protect)(struct gaia_frames *frames, uint64_t page, uint64_t count);
    /* Stores of map's client go through again; wakes them. [client] */
    int (*unprotect)(struct gaia_frames_map *map, uint64_t page, uint64_t count);
    /* Retry the waiting touches of every client. [client] */
    void (*wake)(struct gaia_frames *frames, uint64_t page, uint64_t count);
    /* Touches of these pages by map's client can't be served: SIGBUS, now and, where the kernel can remember
     * that, until the client refreshes them; thread: see gaia_fault, for kernels that can't. [client] */
    int (*poison)(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint32_t thread);
    /* This touch can't be served, though the page is there: SIGBUS, once. [client] */
    void (*refuse)(struct gaia_frames_map *map, uint64_t page, uint32_t thread);
    /* Unmap everywhere and free (unmapV, freePhysical): the next touch faults. */
    int (*drop)(struct gaia_frames *frames, uint64_t page, uint64_t count);
    /* Bytes of a resident page from `from` to its end become zeros, in every client. */
    int (*clear)(struct gaia_frames *frames, uint64_t page, size_t from);
    /* The file has become shorter, and ends at this byte: for clients elsewhere that have bytes of it above
     * the device's copy. NULL: the cache tells them by itself (cache/replica.h). */
    void (*cut)(struct gaia_frames *frames, uint64_t end);
    /* Copy the bytes of count resident pages (at most GAIA_FETCH_MAX) to where pages_out says, one place for
     * each; the device may store meanwhile. After an error any of them may have been written to. -EIO ... */
    int (*fetch)(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out);
    /* The digests of pages that fetch() could bring, where that moves fewer bytes: from another node. NULL:
     * fetch() does not move more. */
    int (*digests)(struct gaia_frames *frames, uint64_t page, unsigned count,
                   struct gaia_digest *digests_out);
    /* How many pages long the frames' memory is, and how many pages have memory: clients that may write can
     * make both more than what was placed, and less. NULL: they can't, or the memory is elsewhere. */
    int (*extent)(struct gaia_frames *frames, uint64_t *length_out, uint64_t *pages_out);
    void (*close)(struct gaia_frames *frames); /* all maps are detached */

    /* Drivers that scan: */
    /* Which resident pages of [page, page + count) are not what they were when they were granted: bit i of
     * bits_out, all of whose (count + 63) / 64 words are written, is page + i. Pages for which this is not
     * known are among them. Kernels may run meanwhile: what they had stored before is found. */
    int (*modified)(struct gaia_frames *frames, uint64_t page, uint64_t count, uint64_t *bits_out);
    /* These are the digests of what the pages were granted with; NULL: it is not known. Placed pages are
     * granted with what was placed. */
    int (*granted)(struct gaia_frames *frames, uint64_t page, uint64_t count,
                   const struct gaia_digest *digests);
    /* What granted() was told last, or what was placed; zeros: it is not known. */
    int (*recall)(struct gaia_frames *frames, uint64_t page, uint64_t count, struct gaia_digest *digests_out);
    /* As fetch(), of any resident pages, ascending, one behind the other. */
    int (*gather)(struct gaia_frames *frames, const uint64_t *pages, size_t count, void *bytes_out);
    /* Store into resident pages, ascending, the bytes of fresh that differ from those of old, and no others:
     * what kernels store to the others stays. Digests of fresh become the granted ones. old: where each
     * page's are; fresh: one behind the other. */
    int (*patch)(struct gaia_frames *frames, const uint64_t *pages, size_t count, const void *const *old,
                 const void *fresh);
    /* There is one client less: give memory back that holds no page and that no client can have. */
    void (*trim)(struct gaia_frames *frames);
};

struct gaia_frames {
    const struct gaia_frames_ops *ops;
    uint64_t chunk_pages; /* of a driver that scans: how much of the file a descriptor of share() is */
    /* For drivers that scan, for clients that search by themselves: counts pages that modified() finds
     * whatever their digest is, once the call has returned that made them so. NULL: nobody searches. */
    _Atomic uint64_t *unfound;
    uint32_t node_number;     /* of the driver node: their number there; else 0 */
    _Atomic unsigned clients; /* maps, from before the first share() for one: the cache's count */
};

/* Wait for faults of a client. faults: its descriptor; stop: an eventfd that ends the wait.
 * Faults read (1 to max), 0 when stopped, or a negative errno. Driver soft. */
int gaia_soft_wait(int faults, int stop, struct gaia_fault *fault_out, unsigned max);
/* Whether a descriptor that a client sent is what gaia_soft_wait() takes. */
bool gaia_soft_is_faults(int fd);
/* New frames of the soft device for a file with this many pages. -ENOMEM, -EMFILE. */
int gaia_soft_frames_open(uint64_t pages, struct gaia_frames **frames_out);

/* Frames of a device of another node, an agent of this one: each call is a call to that node (io/node.h),
 * which may take as long as a peer is waited for, and fails with -EIO when its session ends. There is no
 * share(); attach() names the client by its number there instead of a descriptor. number: of the frames, not
 * 0, new in the session. Driver node. -ENOMEM, -EIO, or what the agent says. */
struct call_session;
struct gaia_node_device {
    struct call_session *session; /* a reference is kept */
    unsigned device;              /* its number there */
    bool scans;                   /* as the driver there */
    bool read_only;               /* nobody will store to them; of drivers that scan */
};
int gaia_node_frames_open(const struct gaia_node_device *there, uint32_t number, uint64_t pages,
                          struct gaia_frames **frames_out);
/* For frames of the driver node: whether the session with it has ended, so that what they held is gone. */
bool gaia_node_frames_gone(const struct gaia_frames *frames);

/* A GPU of the driver cuda, by its UUID. memory: from which place() will get bytes. windows: its frames are
 * to have windows, if the GPU can. why_out: a sentence that says why there is none. ordinal_out: its number
 * in this process. 0, -ENODEV, -ENOMEM, -EIO. No lock is held: may take seconds. */
#define GAIA_CUDA_WHY 160u
struct home_gpu;
int gaia_cuda_open(const uint8_t uuid[16], void *memory, size_t length, bool windows,
                   struct home_gpu **gpu_out, unsigned *ordinal_out, char why_out[GAIA_CUDA_WHY]);
/* What is known of windows of its frames, for transfers by a path: "off" (not wanted, or not possible),
 * "unknown", "refused" (it could not be registered, when that was tried last, for a reason that may pass),
 * "proven" or "unreachable". */
const char *gaia_cuda_reach(const struct home_gpu *gpu, enum gaia_path path);
void gaia_cuda_close(struct home_gpu *gpu);
uint64_t gaia_cuda_bytes(const struct home_gpu *gpu); /* of its memory */
/* The driver's name for the last error of a call of this process, except that memory is short; NULL: there
 * was none. It stays, as nothing tells when the error is over. */
const char *gaia_cuda_failure(struct home_gpu *gpu);
/* When the driver had no memory for something last (base/clock.h); 0: never. */
uint64_t gaia_cuda_short_ns(const struct home_gpu *gpu);
/* New frames of a GPU. read_only: nobody will store to them, so nothing is looked for. -ENOMEM. */
int gaia_cuda_frames_open(struct home_gpu *gpu, uint64_t pages, bool read_only,
                          struct gaia_frames **frames_out);

#endif
