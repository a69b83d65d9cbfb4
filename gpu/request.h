/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA reads that a GPU posts by itself: a queue pair of a NIC of the mlx5 family, as the GPU, the NIC and
 * the host share it. The GPU's half is request_device.h; io/direct.h makes the queue pair. What is said here
 * of the NIC follows rdma-core's <infiniband/mlx5dv.h>. It has run against the software NIC of
 * tests/gpu/nic.h only: never yet against hardware.
 *
 *   where                      what           who writes it
 *   memory of the GPU          wqes[slot]     the lane that has the slot, before the ticket is announced
 *                              cqes[slot]     the NIC; the host before the first request
 *                              record[1]      the warp whose turn it is. The NIC reads
 *                              control        the GPU; the host between kernels
 *   a page of the NIC (UAR)    doorbell       the warp whose turn it is
 *
 * Tickets count up, 32 bits, and wrap. Request t is the work queue entry t % wqes_count, and, since every
 * request asks for a completion and the send queue of an RC queue pair completes in order, its completion is
 * the entry t % depth of the completion queue. A NIC counts requests with 16 bits.
 *
 * A warp that has n requests
 *   - reserves n tickets with one compare-and-swap of `head`, if head + n - done <= depth: so a slot is used
 *     again only when what was in it is known to have ended;
 *   - fills its slots, each lane its own;
 *   - waits for its turn: until `ready` is its first ticket. Turns come in the order of tickets. It rings if
 *     nobody has reserved tickets behind its own, or if there are `batch` requests for which nobody has rung:
 *     one doorbell for all that is ready. Else those behind will ring. Then it passes the turn on;
 *   - looks at the completion of its last ticket, which tells about all tickets before it. Whoever sees a
 *     completion moves `done` behind it.
 *
 * To ring is to write the number of requests, big endian, into the record, and then the first eight bytes of
 * the last request into the doorbell; each is ordered behind what came before. (No request is written into
 * the doorbell's page itself, as BlueFlame would.)
 *
 * A completion is there when its owner bit is the lap's: 0 the first time around, then 1, and so on, and its
 * operation is not GAIA_CQE_INVALID, which the host puts into all of them at first. It must name the queue
 * pair and the request's number; one that does not makes the queue useless.
 *
 * Errors. The NIC fails one request, and then flushes: all that follow fail, too, each with a completion. The
 * queue says so in `error`: nobody posts any more, and nobody waits for a slot. A warp that has posted still
 * waits for its own completion: until then the NIC may write to its memory. All waits are bounded: for slots
 * by wait_ns, for the turn and the completion by answer_ns. A warp that waits in vain for the turn or the
 * completion marks the queue (is_silent), and from then on nobody waits; the memory of its reads must not be
 * used for anything else before the host has destroyed the queue pair. So after GAIA_REQUEST_E_SILENT, and
 * after no other error, that memory may still be written to.
 *
 * What the host owes: a queue pair in RTS with nothing posted; a completion queue of its own with 64-byte
 * entries, no compression, overruns ignored (nobody writes its consumer index), and no data scattered into
 * it; all of it, and what is read into, in memory of the same GPU, which must order what a NIC writes to it
 * (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: OWNER or more) with no relaxed ordering on the way;
 * the doorbell's page mapped for the GPU (cudaHostRegisterIoMemory).
 */
#ifndef GAIAFS_GPU_REQUEST_H
#define GAIAFS_GPU_REQUEST_H

#include <stdint.h>

/* --- the NIC's: see <infiniband/mlx5dv.h>; all numbers in memory are big endian --- */

/* A work queue entry: control, remote address, and one piece of local memory; of 64 bytes 48 are used. */
#define GAIA_WQE_SIZE 64u
#define GAIA_WQE_PARTS 3u /* of 16 bytes */
#define GAIA_WQE_RDMA_READ 0x10u
#define GAIA_WQE_COMPLETE 0x08u /* ask for a completion */
/* A completion. Its last 8 bytes: operation and queue pair (4), the request's number (2), a signature (1),
 * and what the next three are about (1). The byte before them is the syndrome of an error, and the one before
 * that the vendor's. */
#define GAIA_CQE_SIZE 64u
#define GAIA_CQE_OWNER 0x01u
#define GAIA_CQE_FORMAT(byte) ((byte) >> 2 & 3u) /* 0: nothing inline, not compressed */
#define GAIA_CQE_OPERATION(byte) ((byte) >> 4)
#define GAIA_CQE_REQUESTER 0u
#define GAIA_CQE_REQUESTER_ERROR 13u
#define GAIA_CQE_INVALID 15u
/* The record: two counters of 4 bytes. */
#define GAIA_RECORD_SEND 1u

#define GAIA_REQUEST_LENGTH_MAX 0x7fffffffu /* 0 would be 2^31 bytes to the NIC */

/* --- what a read ends with: numbers of errno.h --- */
#define GAIA_REQUEST_E_IO 5u        /* it failed, or the queue had failed before it was posted */
#define GAIA_REQUEST_E_LENGTH 22u   /* 0, or over the maximum: not posted */
#define GAIA_REQUEST_E_NO_SLOT 105u /* the queue was full for wait_ns: not posted */
#define GAIA_REQUEST_E_SILENT 110u  /* it may have been posted, and may still write to memory: see above */

/* One read. Keys are those of registered memory, in the machine's own order. */
struct gaia_request {
    uint64_t to; /* address in the memory of lkey */
    uint64_t from;
    uint32_t lkey;
    uint32_t rkey;
    uint32_t length; /* bytes */
    uint32_t error;  /* 0, or one of the above */
};

/* Each line of 64 bytes has a writer's pattern of its own. */
struct gaia_request_control {
    uint32_t head; /* the next ticket */
    uint32_t pad0[15];
    uint32_t ready; /* tickets before this one are filled */
    uint32_t rung;  /* and the NIC was told of these; changed by the warp whose turn it is */
    uint64_t bells;
    uint32_t pad1[12];
    uint32_t done; /* tickets before this one went well */
    uint32_t pad2[15];
    /* The earliest error: ticket << 32 | GAIA_REQUEST_FAILED | vendor's syndrome << 8 | syndrome, or ... |
     * GAIA_REQUEST_NONSENSE | what a completion had that makes no sense; 0: none. */
    uint64_t error;
    uint32_t is_silent;
    uint32_t pad3;
    uint64_t full; /* warps that waited for a slot */
    uint64_t pad4[5];
};
#define GAIA_REQUEST_FAILED 0x10000u
#define GAIA_REQUEST_NONSENSE 0x20000u

/* The parameters of a queue: made by the host, constant while kernels run. Addresses are the GPU's. */
struct gaia_request_queue {
    uint32_t depth;      /* requests at a time, and completions: a power of two */
    uint32_t wqes_count; /* a power of two, depth or more, at most GAIA_DIRECT_DEPTH_MAX (io/direct.h) */
    uint32_t batch;      /* how many requests may wait for those behind them to ring, 1 to depth; 1: each warp
                            rings */
    uint32_t qpn;        /* the queue pair's number */
    uint64_t wait_ns;
    uint64_t answer_ns;

    uint8_t *wqes;
    const uint8_t *cqes;
    uint32_t *record;
    uint64_t *doorbell;
    struct gaia_request_control *control;
};

/* The control of a queue of which nothing was posted. first: 0, or, for tests, any other ticket. */
static inline void gaia_request_start(struct gaia_request_control *control, uint32_t first)
{
    __builtin_memset(control, 0, sizeof(*control));
    control->head = control->ready = control->rung = control->done = first;
}

#endif
