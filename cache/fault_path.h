/* SPDX-License-Identifier: Apache-2.0 */
/* The fault path by the transport (-o fault=local, -o fault=rdma): the bytes of a fault go from the home's
 * host frames to the device by a one-sided read, as between two nodes (DREAM, section 3): straight into
 * frames that stay where they are, a GPU's, and by way of a bounce buffer into those that come and go. Here
 * both ends are this process: its transport is connected to itself, and one end reads what the other exposes,
 * the stages of cache/frame.h.
 *
 * A broken path (the queue pair in error, the RDMA device gone) is no error of a fault: the fault's bytes are
 * copied, as on a mount without the option. Making the path anew is tried once a second.
 *
 * Thread safety: all functions but open and close may be called from any thread.
 */
#ifndef GAIAFS_CACHE_FAULT_PATH_H
#define GAIAFS_CACHE_FAULT_PATH_H

#include "gpu/device.h"
#include "io/pull.h"

struct fault_path;

enum fault_carrier {
    FAULT_COPY, /* no path: the daemon copies */
    FAULT_LOCAL,
    FAULT_RDMA,
};

struct fault_path_config {
    enum fault_carrier carrier;
    char address[80];       /* "HOST[:PORT]" of an RDMA device here; "": the first one's */
    unsigned queues, depth; /* 0: as Little's law has it (io/pull.h) */
    unsigned timeout_ms;    /* of a read; 0: FAULT_PATH_TIMEOUT_MS */
};
#define FAULT_PATH_TIMEOUT_MS 5000u
#define FAULT_PATH_PORT 7471u /* the first one tried, of FAULT_PATH_PORTS */
#define FAULT_PATH_PORTS 64u

/* Start, and connect. host_frames, which are read from, stay as long as the path; unit: bytes of a fault, for
 * the plan. 0, or what gaia_transport_open(), gaia_link_connect() and gaia_link_expose() say, -EADDRNOTAVAIL
 * (no address here is an RDMA device's), -ETIMEDOUT; why_out has a sentence then. */
#define FAULT_PATH_WHY 256u
int fault_path_open(const struct fault_path_config *config, const void *host_frames, size_t length,
                    uint32_t unit, struct fault_path **path_out, char why_out[FAULT_PATH_WHY]);
/* No read is under way. NULL is allowed. */
void fault_path_close(struct fault_path *path);

/* One read; lives until done is called. */
struct fault_read {
    struct gaia_frames *frames; /* pages [first, first + count) of them, which nobody can see yet, */
    uint64_t first, count;
    const uint8_t *bytes;                             /* get these of the host frames */
    void (*done)(struct fault_read *read, int error); /* 0, or why they have not arrived */
    const uint8_t *bounced; /* in done(), after 0: where the bytes, which must still be placed, are until it
                               returns; NULL: in the frames */

    /* The path's own. */
    struct fault_path *path;
    struct gaia_pull_read pull;
    struct gaia_window window;
    uint8_t *buffer; /* a bounce buffer; NULL: there is a window */
};

/* Begin a read. 0: done is called, once, in a thread of the path's or in this one. Else it is not: -EAGAIN
 * (the path is broken just now), -EOPNOTSUPP (there is no window, or the carrier can't reach it), or why
 * there was no window. No lock is held. */
int fault_path_read(struct fault_path *path, struct fault_read *read);

struct fault_path_stat {
    bool connected;
    char address[80];
    struct gaia_pull_stat pull; /* since it was connected last; while not connected, only path and device */
    uint64_t connects;          /* that went well */
    uint64_t bounced;           /* of the pull's reads: those that went into bounce buffers */
    uint64_t failed;            /* reads that ended with an error: their bytes were copied */
    uint64_t refused;           /* reads that could not begin: as well */
};
void fault_path_stat(struct fault_path *path, struct fault_path_stat *stat_out);

#endif
