/* SPDX-License-Identifier: Apache-2.0 */
/* Faults into reads: pages of a peer's frames, read straight into frames of this node, many at a time.
 *
 * Each fault reserves a place in the batch that is being collected; whoever rings first posts what is there,
 * with one doorbell for each queue that it needs, and goes on with the reads of those who have come
 * meanwhile, which so need not ring at all. How many reads must be under way to fill the wire is Little's law
 * (DREAM, section 3.2): bandwidth x latency / page.
 *
 * Thread safety: all functions but open and close may be called from any thread, and from done(). Somebody
 * must poll the transport (io/transport.h). */
#ifndef GAIAFS_IO_PULL_H
#define GAIAFS_IO_PULL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "io/transport.h"

struct gaia_pull;

/* 0: as Little's law has it. */
struct gaia_pull_options {
    unsigned queues;
    unsigned depth;
    uint64_t bytes_per_second; /* of the wire; 0: as the device says, else PULL_BYTES_PER_SECOND */
    uint64_t latency_ns;       /* of a read of a page, everything included; 0: PULL_LATENCY_NS */
    unsigned most;             /* reads that there can be at a time; 0: any number */
};
/* Those of the paper's machine. */
#define PULL_BYTES_PER_SECOND ((uint64_t)12 << 30)
#define PULL_LATENCY_NS ((uint64_t)23000)

/* The queues and their depth for a link that moves pages of so many bytes; within what carrier and link
 * allow. */
struct gaia_link_options gaia_pull_plan(const struct gaia_transport_limits *limits,
                                        const struct gaia_pull_options *options, uint32_t page);

/* Start pulling over the queues of a connected link from `first_queue` on, with at most `depth` reads on
 * each. The link stays the caller's. The link may end meanwhile: reads fail then, those that wait, too.
 * Nobody may add or ring once it is closed. Nobody else posts on those queues.
 *
 * starved: the caller's, valid as long as the pull. It becomes true when reads wait and none is under way
 * whose end would ring again: the carrier has no room, because the kernel has no memory. The thread that
 * polls is woken for that, and rings again some milliseconds later.
 *
 * 0, -ENOMEM, -EINVAL (there are no such queues). */
int gaia_pull_open(struct gaia_transport *transport, struct gaia_link *link, unsigned first_queue,
                   unsigned depth, _Atomic bool *starved, struct gaia_pull **pull_out);

/* Nothing is posted any more: reads that wait end with this error before this returns, unless another thread
 * is ringing, which then ends them. The link may be closed. */
void gaia_pull_end(struct gaia_pull *pull, int error);

/* All reads have ended (a link that was closed has seen to that). NULL is allowed. */
void gaia_pull_close(struct gaia_pull *pull);

/* One page, or several adjacent ones. Must stay until done was called, which happens once: 0, or -ECANCELED
 * (the link was closed), or -EIO, or what gaia_link_post() says of a bad one (-EINVAL, ...). */
struct gaia_pull_read {
    struct gaia_memory *memory;                           /* where to */
    uint64_t memory_offset;                               /* bytes */
    uint64_t offset;                                      /* in the region, bytes */
    uint32_t region;                                      /* of the peer's */
    uint32_t length;                                      /* bytes */
    bool cuttable;                                        /* see gaia_transfer */
    void (*done)(struct gaia_pull_read *read, int error); /* in the thread that polls; or, of a read that
                                                             could not be posted, in the one that rings */

    /* The pull's own. */
    struct gaia_transfer transfer;
    bool tried; /* in done(): it was posted, or posting it failed; so an error may be its own, and is not that
                   of a link that had ended before */
    struct gaia_pull *pull;
    struct gaia_pull_read *next;
    uint64_t since_ns;
    unsigned queue;
};

/* Reserve a place in the batch. Nothing moves before gaia_pull_ring(). */
void gaia_pull_add(struct gaia_pull *pull, struct gaia_pull_read *read);

/* Post what was added, as far as the queues take it; the rest is posted as reads end. */
void gaia_pull_ring(struct gaia_pull *pull);

/* For `gaiactl stat`. */
struct gaia_pull_stat {
    const char *path; /* "local", "rdma" */
    char device[64];
    unsigned queues, depth;
    unsigned outstanding, outstanding_max; /* posted, and not ended */
    unsigned waiting;                      /* added, and not posted */
    uint64_t reads, failed, bytes;
    uint64_t doorbells;
    /* From gaia_pull_add() to the end, of those that went well. */
    uint64_t latency_p50_ns, latency_p90_ns, latency_p99_ns, latency_p999_ns, latency_max_ns;
};
void gaia_pull_stat(struct gaia_pull *pull, struct gaia_pull_stat *stat_out);

#endif
