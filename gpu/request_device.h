/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's half of a queue of RDMA reads (request.h): reserve, fill, ring once for a batch, look by slot. C
 * and CUDA, for a GPU and for a CPU (warp.h).
 *
 * gaia_warp_read() is called by all lanes of `mask` at once, with the same arguments but for the requests;
 * its parts gaia_request_* by one lane. */
#ifndef GAIAFS_GPU_REQUEST_DEVICE_H
#define GAIAFS_GPU_REQUEST_DEVICE_H

#include "device_memory.h"
#include "request.h"
#include "warp.h"

#define GAIA_REQUEST_PENDING 0xffffffffu

GAIA_DEVICE uint32_t gaia_swap_bytes32(uint32_t x)
{
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}

GAIA_DEVICE uint64_t gaia_swap_bytes64(uint64_t x)
{
    return (uint64_t)gaia_swap_bytes32((uint32_t)x) << 32 | gaia_swap_bytes32((uint32_t)(x >> 32));
}

/* Two numbers beside each other in memory, each big endian. */
GAIA_DEVICE uint64_t gaia_big_endian_pair(uint32_t first, uint32_t second)
{
    return (uint64_t)gaia_swap_bytes32(second) << 32 | gaia_swap_bytes32(first);
}

/* Whether ticket a comes after b; they are less than 2^31 apart. */
GAIA_DEVICE bool gaia_is_after(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) > 0;
}

/* --- what went wrong --- */

/* The error of the earliest ticket is kept: others were flushed because of it, and may be seen before it.
 */
GAIA_DEVICE void gaia_request_fail(const struct gaia_request_queue *q, uint32_t ticket, uint32_t what)
{
    for (;;) {
        uint64_t was = gaia_load_relaxed_gpu64(&q->control->error);

        if (was && !gaia_is_after((uint32_t)(was >> 32), ticket))
            return;
        if (gaia_swap_gpu64(&q->control->error, was, (uint64_t)ticket << 32 | what))
            return;
    }
}

GAIA_DEVICE uint32_t gaia_request_give_up(const struct gaia_request_queue *q)
{
    (void)gaia_swap_gpu32(&q->control->is_silent, 0, 1);
    return GAIA_REQUEST_E_SILENT;
}

GAIA_DEVICE bool gaia_request_is_silent(const struct gaia_request_queue *q)
{
    return gaia_load_relaxed_gpu32(&q->control->is_silent) != 0;
}

GAIA_DEVICE bool gaia_request_has_failed(const struct gaia_request_queue *q)
{
    return gaia_load_relaxed_gpu64(&q->control->error) != 0;
}

/* --- completions --- */

/* All tickets before `end` went well: whoever sees this in `done` sees what they have read. */
GAIA_DEVICE void gaia_request_finish(const struct gaia_request_queue *q, uint32_t end)
{
    uint32_t done = gaia_load_relaxed_gpu32(&q->control->done);

    while (gaia_is_after(end, done) && !gaia_swap_gpu32(&q->control->done, done, end))
        done = gaia_load_relaxed_gpu32(&q->control->done);
}

/* What a completion says whose owner bit is right; `last` is its last 8 bytes. */
GAIA_DEVICE uint32_t gaia_request_believe(const struct gaia_request_queue *q, uint32_t ticket, uint64_t last,
                                          const uint64_t *words)
{
    uint32_t origin = gaia_swap_bytes32((uint32_t)last), kind = (uint32_t)(last >> 56);
    uint32_t number = (uint32_t)(last >> 24 & 0xff00u) | (uint32_t)(last >> 40 & 0xffu);
    uint32_t operation = GAIA_CQE_OPERATION(kind);
    bool is_ours = number == (ticket & 0xffffu) && (origin & 0xffffffu) == q->qpn;

    if (is_ours && operation == GAIA_CQE_REQUESTER && GAIA_CQE_FORMAT(kind) == 0 &&
        origin >> 24 == GAIA_WQE_RDMA_READ) {
        gaia_request_finish(q, ticket + 1);
        return 0;
    }
    if (is_ours && operation == GAIA_CQE_REQUESTER_ERROR) {
        uint64_t why = gaia_load_acquire_sys64(words + 6);

        gaia_request_fail(q, ticket,
                          GAIA_REQUEST_FAILED | (uint32_t)(why >> 40 & 0xff00u) | (uint32_t)(why >> 56));
        return GAIA_REQUEST_E_IO;
    }
    gaia_request_fail(q, ticket, GAIA_REQUEST_NONSENSE | kind);
    return gaia_request_give_up(q);
}

/* How ticket `ticket`, which somebody has reserved, has ended: 0, GAIA_REQUEST_E_IO, or it has not (PENDING);
 * or this can't be known any more. */
GAIA_DEVICE uint32_t gaia_request_look(const struct gaia_request_queue *q, uint32_t ticket)
{
    const uint64_t *words =
        (const uint64_t *)(const void *)(q->cqes + (uint64_t)(ticket & (q->depth - 1)) * GAIA_CQE_SIZE);
    uint64_t last = gaia_load_acquire_sys64(words + 7);
    uint32_t kind = (uint32_t)(last >> 56);

    /* In this order: what was loaded may be of a later lap, and then `done` is behind this ticket. */
    if (gaia_is_after(gaia_load_acquire_gpu32(&q->control->done), ticket))
        return 0;
    if (GAIA_CQE_OPERATION(kind) == GAIA_CQE_INVALID)
        return GAIA_REQUEST_PENDING;
    if ((kind & GAIA_CQE_OWNER) != ((ticket & q->depth) != 0))
        return GAIA_REQUEST_PENDING; /* of the lap before */
    return gaia_request_believe(q, ticket, last, words);
}

/* Waits for that. */
GAIA_DEVICE uint32_t gaia_request_wait(const struct gaia_request_queue *q, uint32_t ticket, uint64_t until_ns)
{
    for (;;) {
        bool is_silent = gaia_request_is_silent(q);
        uint32_t status = gaia_request_look(q, ticket);

        if (status != GAIA_REQUEST_PENDING)
            return status;
        if (is_silent || gaia_now_ns() >= until_ns)
            return gaia_request_give_up(q);
        gaia_pause();
    }
}

/* --- posting --- */

/* Reserves `count` tickets, from *first_out on. 0, or an error. */
GAIA_DEVICE uint32_t gaia_request_reserve(const struct gaia_request_queue *q, uint32_t count,
                                          uint64_t until_ns, uint32_t *first_out)
{
    bool is_full = false;

    for (;;) {
        uint32_t done = gaia_load_acquire_gpu32(&q->control->done); /* before head: is never behind it */
        uint32_t head = gaia_load_relaxed_gpu32(&q->control->head);

        if (gaia_request_has_failed(q) || gaia_request_is_silent(q))
            return GAIA_REQUEST_E_IO;
        if (head + count - done <= q->depth) {
            if (gaia_swap_gpu32(&q->control->head, head, head + count)) {
                *first_out = head;
                return 0;
            }
            continue;
        }
        /* The request that must end first. Warps that wait for it may be asleep. */
        if (gaia_request_look(q, head + count - q->depth - 1) == 0)
            continue;
        if (!is_full)
            (void)gaia_add_relaxed_gpu64(&q->control->full, 1);
        is_full = true;
        if (gaia_now_ns() >= until_ns)
            return GAIA_REQUEST_E_NO_SLOT;
        gaia_pause();
    }
}

/* The first 8 bytes of a request: they are the doorbell's, too. */
GAIA_DEVICE uint64_t gaia_request_head(const struct gaia_request_queue *q, uint32_t ticket)
{
    return gaia_big_endian_pair((ticket & 0xffffu) << 8 | GAIA_WQE_RDMA_READ, q->qpn << 8 | GAIA_WQE_PARTS);
}

GAIA_DEVICE void gaia_request_fill(const struct gaia_request_queue *q, uint32_t ticket,
                                   const struct gaia_request *request)
{
    struct gaia_quad *quads =
        (struct gaia_quad *)(void *)(q->wqes + (uint64_t)(ticket & (q->wqes_count - 1)) * GAIA_WQE_SIZE);
    struct gaia_quad control = {gaia_request_head(q, ticket), gaia_big_endian_pair(GAIA_WQE_COMPLETE, 0)};
    struct gaia_quad remote = {gaia_swap_bytes64(request->from), gaia_big_endian_pair(request->rkey, 0)};
    struct gaia_quad local = {gaia_big_endian_pair(request->length, request->lkey),
                              gaia_swap_bytes64(request->to)};

    gaia_quad_store(quads, control);
    gaia_quad_store(quads + 1, remote);
    gaia_quad_store(quads + 2, local);
}

/* The NIC may read all before `end`. It is the caller's turn. */
GAIA_DEVICE void gaia_request_ring(const struct gaia_request_queue *q, uint32_t end)
{
    gaia_store_release_sys32(q->record + GAIA_RECORD_SEND, gaia_swap_bytes32(end & 0xffffu));
    gaia_store_release_sys64(q->doorbell, gaia_request_head(q, end - 1));
    gaia_store_relaxed_gpu32(&q->control->rung, end);
    (void)gaia_add_relaxed_gpu64(&q->control->bells, 1);
}

/* Announces the tickets from first to end, which are filled. 0, or an error. */
GAIA_DEVICE uint32_t gaia_request_announce(const struct gaia_request_queue *q, uint32_t first, uint32_t end,
                                           uint64_t until_ns)
{
    while (gaia_load_acquire_gpu32(&q->control->ready) != first) {
        if (gaia_request_is_silent(q) || gaia_now_ns() >= until_ns)
            return gaia_request_give_up(q);
        gaia_pause();
    }
    /* A warp that has reserved tickets behind these has its turn next, and rings for these. */
    if (gaia_load_relaxed_gpu32(&q->control->head) == end ||
        end - gaia_load_relaxed_gpu32(&q->control->rung) >= q->batch)
        gaia_request_ring(q, end);
    gaia_store_release_gpu32(&q->control->ready, end);
    return 0;
}

/* --- warps --- */

/* The lanes of mask, at most `most` of them. */
GAIA_DEVICE uint32_t gaia_first_lanes(uint32_t mask, uint32_t most)
{
    uint32_t lanes = 0;

    for (; mask && most; most--, mask &= mask - 1)
        lanes |= mask & (0u - mask);
    return lanes;
}

GAIA_DEVICE uint32_t gaia_request_ticket(uint32_t first, uint32_t part, uint32_t slot)
{
    return first + gaia_bits_count(part & ((1u << gaia_lane_of(slot)) - 1));
}

/* The requests of lanes `part` of mask, no more than the queue is deep. */
GAIA_DEVICE void gaia_warp_read_part(const struct gaia_request_queue *q, uint32_t mask, uint32_t part,
                                     struct gaia_request requests[GAIA_SLOTS])
{
    uint32_t leader = gaia_first_lane(mask), count = gaia_bits_count(part), first = 0, status = 0;

    if (gaia_leads(mask))
        status = gaia_request_reserve(q, count, gaia_now_ns() + q->wait_ns, &first);
    status = gaia_share(mask, leader, status);
    first = gaia_share(mask, leader, first);
    if (!status) {
        gaia_warp_sync(mask); /* that others are done with the slots is known to the leader alone */
        GAIA_EACH_LANE(slot)
        if (gaia_has_lane(part, slot))
            gaia_request_fill(q, gaia_request_ticket(first, part, slot), &requests[slot]);
        gaia_warp_sync(mask);
        if (gaia_leads(mask)) {
            uint64_t until_ns = gaia_now_ns() + q->answer_ns;

            status = gaia_request_announce(q, first, first + count, until_ns);
            if (!status)
                status = gaia_request_wait(q, first + count - 1, until_ns);
        }
        status = gaia_share(mask, leader, status);
        gaia_warp_sync(mask);
    } else {
        count = 0; /* nothing was posted */
    }
    GAIA_EACH_LANE(slot)
    if (gaia_has_lane(part, slot)) {
        requests[slot].error = status;
        if (status && count) { /* those before the one that failed went well */
            uint32_t own = gaia_request_look(q, gaia_request_ticket(first, part, slot));

            requests[slot].error = own == GAIA_REQUEST_PENDING ? GAIA_REQUEST_E_SILENT : own;
        }
    }
    gaia_warp_sync(mask);
}

/* Makes a read for each lane of mask, and waits for all of them: their `error` says how they ended. */
GAIA_DEVICE_CALL void gaia_warp_read(const struct gaia_request_queue *q, uint32_t mask,
                                     struct gaia_request requests[GAIA_SLOTS])
{
    bool yes[GAIA_SLOTS];
    uint32_t left;

    GAIA_EACH_LANE(slot)
    {
        yes[slot] = false;
        if (gaia_has_lane(mask, slot)) {
            uint32_t length = requests[slot].length;

            yes[slot] = length >= 1 && length <= GAIA_REQUEST_LENGTH_MAX;
            requests[slot].error = GAIA_REQUEST_E_LENGTH;
        }
    }
    for (left = gaia_ballot(mask, yes); left;) {
        uint32_t part = gaia_first_lanes(left, q->depth);

        gaia_warp_read_part(q, mask, part, requests);
        left &= ~part;
    }
}

#endif
