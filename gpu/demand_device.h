/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's half of a demand mapping (demand.h): hits, faults, eviction, the ring. C and CUDA, for a GPU and
 * for a CPU (warp.h). gaia_device.cuh is what programs use.
 *
 * Functions gaia_warp_* are called by all lanes of `mask` at once, with the same arguments: the first of them
 * acts for all, and all move bytes. The others are called by one lane. */
#ifndef GAIAFS_GPU_DEMAND_DEVICE_H
#define GAIAFS_GPU_DEMAND_DEVICE_H

#include "demand.h"
#include "device_memory.h"
#include "warp.h"

#define GAIA_NO_FRAME 0xffffffffu

/* Frames that a warp looks at before it looks at the time. */
#define GAIA_CLOCK_STEPS 1024u
/* Units that could not be given back before a fault is given up. */
#define GAIA_KEPT_MAX 8u

GAIA_DEVICE void gaia_count(uint64_t *counter)
{
    (void)gaia_add_relaxed_gpu64(counter, 1);
}

/* The first failure is kept. */
GAIA_DEVICE void gaia_report(const struct gaia_demand *d, uint32_t unit, uint32_t error)
{
    gaia_count(&d->control->failures);
    (void)gaia_swap_gpu64(&d->control->error, 0, (uint64_t)unit << 32 | error);
}

GAIA_DEVICE bool gaia_is_silent(const struct gaia_demand *d)
{
    return gaia_load_relaxed_gpu32(&d->control->is_silent) != 0;
}

GAIA_DEVICE uint8_t *gaia_frame_bytes(const struct gaia_demand *d, uint32_t frame)
{
    return d->frames + ((uint64_t)frame << d->unit_shift);
}

/* --- waits for what others have --- */

/* A GPU has thousands of warps that may all wait for one disk: how long they wait says nothing of whether
 * anything moves. So a wait is in vain when nobody has been served for as long. One lane's; it begins as
 * {0, 0}, which costs nothing where there is nothing to wait for. */
struct gaia_wait {
    uint64_t until_ns;
    uint64_t served; /* when that was set */
};

/* Tickets are taken as the host answers others; what is in the arena is pulled without any. */
GAIA_DEVICE uint64_t gaia_served(const struct gaia_demand *d)
{
    return gaia_load_relaxed_gpu32(&d->control->head) + gaia_load_relaxed_gpu64(&d->control->pulled);
}

/* Whether to give up: nobody was served for wait_ns and `more_ns`, and for less than twice that. */
GAIA_DEVICE bool gaia_is_late(const struct gaia_demand *d, struct gaia_wait *wait, uint64_t more_ns)
{
    uint64_t now_ns = gaia_now_ns(), served;

    if (wait->until_ns && now_ns < wait->until_ns + more_ns)
        return false;
    served = gaia_served(d);
    if (wait->until_ns && served == wait->served)
        return true;
    wait->until_ns = now_ns + d->wait_ns;
    wait->served = served;
    return false;
}

/* --- hits --- */

/* The state of the caller's touch. */
enum gaia_step {
    GAIA_STEP_HELD,   /* the unit is held */
    GAIA_STEP_BUSY,   /* somebody else has it busy */
    GAIA_STEP_ABSENT, /* nobody has it: bring it */
    GAIA_STEP_FAILED,
};

/* Takes `holds` holds on a unit that is in a frame; the frame is an output then. */
GAIA_DEVICE enum gaia_step gaia_hold(uint64_t *word, uint32_t frame_mask, uint32_t holds, bool is_store,
                                     uint32_t *frame_out)
{
    uint64_t was = gaia_load_relaxed_gpu64(word);
    uint64_t marks = GAIA_DEMAND_REFERENCED | (is_store ? GAIA_DEMAND_DIRTY : 0);

    if ((was & (GAIA_DEMAND_VALID | GAIA_DEMAND_BUSY)) == GAIA_DEMAND_VALID) {
        was = gaia_add_acquire_gpu64(word, holds);
        if ((was & (GAIA_DEMAND_VALID | GAIA_DEMAND_BUSY)) == GAIA_DEMAND_VALID) {
            if ((was & marks) != marks)
                (void)gaia_or_relaxed_gpu64(word, marks);
            *frame_out = GAIA_DEMAND_FRAME(was, frame_mask);
            return GAIA_STEP_HELD;
        }
        (void)gaia_add_relaxed_gpu64(word, (uint64_t)0 - holds);
    }
    if (was & GAIA_DEMAND_BUSY)
        return GAIA_STEP_BUSY;
    return was & GAIA_DEMAND_FAILED ? GAIA_STEP_FAILED : GAIA_STEP_ABSENT;
}

/* The warp that has the unit busy next sees the stores made under the holds. */
GAIA_DEVICE void gaia_let_go(uint64_t *word, uint32_t holds)
{
    (void)gaia_add_release_gpu64(word, (uint64_t)0 - holds);
}

/* Makes a unit busy if its word is still `was`; returns whether it was. */
GAIA_DEVICE bool gaia_make_busy(const struct gaia_demand *d, uint32_t unit, uint64_t was)
{
    return gaia_swap_gpu64(&d->table[unit], was, was | GAIA_DEMAND_BUSY);
}

/* Whether a unit is in this frame and may be made busy. */
GAIA_DEVICE bool gaia_is_idle(const struct gaia_demand *d, uint64_t word, uint32_t frame)
{
    uint64_t state = word & (GAIA_DEMAND_VALID | GAIA_DEMAND_BUSY);

#ifndef GAIAFS_BREAK_DEMAND_EVICT_HELD
    if (word & GAIA_DEMAND_COUNT)
        return false;
#endif
    return state == GAIA_DEMAND_VALID && GAIA_DEMAND_FRAME(word, d->frame_mask) == frame;
}

/* --- bytes: 16 a lane, four of them on their way --- */

/* What this lane moves of n quads: first, first + step, ... */
GAIA_DEVICE uint32_t gaia_share_of_bytes(uint32_t mask, uint32_t *step_out)
{
#if GAIA_PER_LANE
    *step_out = gaia_bits_count(mask);
    return gaia_bits_count(mask & (((uint32_t)1 << gaia_hw_lane()) - 1));
#else
    (void)mask;
    *step_out = 1; /* a thread of a CPU moves all of it */
    return 0;
#endif
}

/* From pinned host memory into a frame. The loads are before what any lane does after this.
 *
 * Some lane may be looking at the frame without a hold (gaia_view::load()), for an element of a unit that was
 * there before. The leader made that unit busy, or took the frame from a warp that had done so, and since
 * then all lanes have met. So, with the fence, and with stores that are relaxed and not plain, a lane that
 * acquires a word of what is stored here must find that unit's word changed. */
GAIA_DEVICE void gaia_warp_copy_in(const struct gaia_demand *d, uint32_t mask, uint32_t frame,
                                   const uint8_t *from)
{
    struct gaia_quad *to = (struct gaia_quad *)(void *)gaia_frame_bytes(d, frame);
    const struct gaia_quad *quads = (const struct gaia_quad *)(const void *)from;
    uint32_t step, at = gaia_share_of_bytes(mask, &step), end = 1u << (d->unit_shift - 4);

    gaia_fence_gpu();
    for (; at + 3 * step < end; at += 4 * step) {
        struct gaia_quad q0 = gaia_quad_load_sys(quads + at), q1 = gaia_quad_load_sys(quads + at + step);
        struct gaia_quad q2 = gaia_quad_load_sys(quads + at + 2 * step);
        struct gaia_quad q3 = gaia_quad_load_sys(quads + at + 3 * step);

        gaia_quad_store_gpu(to + at, q0);
        gaia_quad_store_gpu(to + at + step, q1);
        gaia_quad_store_gpu(to + at + 2 * step, q2);
        gaia_quad_store_gpu(to + at + 3 * step, q3);
    }
    for (; at < end; at += step)
        gaia_quad_store_gpu(to + at, gaia_quad_load_sys(quads + at));
    gaia_fence_sys();
    gaia_warp_sync(mask);
}

/* From a frame into pinned host memory; the stores are before what any lane stores after this. */
GAIA_DEVICE void gaia_warp_copy_out(const struct gaia_demand *d, uint32_t mask, uint32_t frame, uint8_t *to)
{
    const struct gaia_quad *quads = (const struct gaia_quad *)(const void *)gaia_frame_bytes(d, frame);
    struct gaia_quad *out = (struct gaia_quad *)(void *)to;
    uint32_t step, at = gaia_share_of_bytes(mask, &step), end = 1u << (d->unit_shift - 4);

    gaia_warp_sync(mask); /* the leader has the unit busy, and what it acquired is now acquired by all */
    for (; at + 3 * step < end; at += 4 * step) {
        struct gaia_quad q0 = gaia_quad_load(quads + at), q1 = gaia_quad_load(quads + at + step);
        struct gaia_quad q2 = gaia_quad_load(quads + at + 2 * step);
        struct gaia_quad q3 = gaia_quad_load(quads + at + 3 * step);

        gaia_quad_store_sys(out + at, q0.first, q0.second);
        gaia_quad_store_sys(out + at + step, q1.first, q1.second);
        gaia_quad_store_sys(out + at + 2 * step, q2.first, q2.second);
        gaia_quad_store_sys(out + at + 3 * step, q3.first, q3.second);
    }
    for (; at < end; at += step) {
        struct gaia_quad quad = gaia_quad_load(quads + at);

        gaia_quad_store_sys(out + at, quad.first, quad.second);
    }
    gaia_fence_sys();
    gaia_warp_sync(mask);
}

/* --- the arena --- */

/* Whether the unit's bytes were in the arena, and are in the frame now. */
GAIA_DEVICE bool gaia_warp_pull(const struct gaia_demand *d, uint32_t mask, uint32_t unit, uint32_t frame,
                                uint32_t *grant_out)
{
    uint32_t leader = gaia_first_lane(mask);

    for (uint32_t i = 0; i < GAIA_DEMAND_PULLS; i++) {
        uint64_t word = gaia_leads(mask) ? gaia_load_acquire_sys64(&d->arena_state[unit]) : 0;
        uint32_t slot = gaia_share(mask, leader, GAIA_DEMAND_ARENA_SLOT(word)), is_same;

        if (slot == 0 || slot > d->arena_slots)
            return false;
        gaia_warp_sync(mask);
        gaia_warp_copy_in(d, mask, frame, d->arena + ((uint64_t)(slot - 1) << d->unit_shift));
        is_same = gaia_leads(mask) && gaia_load_acquire_sys64(&d->arena_state[unit]) == word;
#ifdef GAIAFS_BREAK_DEMAND_NO_SEQUENCE
        is_same = 1;
#endif
        if (gaia_share(mask, leader, is_same)) {
            *grant_out = GAIA_DEMAND_ARENA_SEQUENCE(word); /* the leader's */
            if (gaia_leads(mask))
                gaia_count(&d->control->pulled);
            return true;
        }
        if (gaia_leads(mask))
            gaia_count(&d->control->pulled_again);
    }
    return false;
}

/* --- the ring --- */

/* Takes a ticket; its slot is the caller's. 0, or an error. */
GAIA_DEVICE uint32_t gaia_ring_take(const struct gaia_demand *d, struct gaia_wait *wait, uint32_t *ticket_out)
{
    bool is_full = false;

    for (;;) {
        uint32_t head = gaia_load_relaxed_gpu32(&d->control->head);
        uint32_t turn = gaia_load_acquire_gpu32(&d->turn[head & (d->slots - 1)]);

        if (gaia_is_silent(d))
            return GAIA_DEMAND_E_SILENT;
        if (turn == head && gaia_swap_gpu32(&d->control->head, head, head + 1)) {
            *ticket_out = head;
            return 0;
        }
        if ((int32_t)(turn - head) < 0) { /* its last ticket is still on its way */
            if (!is_full)
                gaia_count(&d->control->ring_full);
            is_full = true;
            if (gaia_is_late(d, wait, 0))
                return GAIA_DEMAND_E_NO_FRAME;
            gaia_pause();
        }
    }
}

/* Posts a request, whose stage is filled, and waits for its answer: status and grant. */
GAIA_DEVICE uint32_t gaia_ring_ask(const struct gaia_demand *d, uint32_t ticket, uint32_t operation,
                                   uint32_t unit, uint32_t frame, uint32_t *grant)
{
    uint64_t upper = (uint64_t)ticket << 32, until_ns = gaia_now_ns() + d->answer_ns;
    uint32_t slot = ticket & (d->slots - 1);
    struct gaia_quad *request = (struct gaia_quad *)(void *)&d->requests[slot];
    const struct gaia_quad *answer = (const struct gaia_quad *)(const void *)&d->answers[slot];

    gaia_fence_sys(); /* the stage's bytes are before the request */
    gaia_quad_store_sys(request, upper | unit, upper | operation);
    gaia_quad_store_sys(request + 1, upper | *grant, upper | frame);
    for (;;) {
        struct gaia_quad now = gaia_quad_load_sys(answer);

        if (now.first >> 32 == ticket && now.second >> 32 == ticket) {
            uint32_t status = (uint32_t)now.first;

            gaia_fence_sys(); /* the answer before what is read of the stage */
            *grant = (uint32_t)now.second;
            /* What means something else here. */
            return status == GAIA_DEMAND_E_SILENT || status == GAIA_DEMAND_E_NO_FRAME ? GAIA_DEMAND_E_IO
                                                                                      : status;
        }
        if (gaia_is_silent(d))
            return GAIA_DEMAND_E_SILENT;
        if (gaia_now_ns() >= until_ns) {
            (void)gaia_swap_gpu32(&d->control->is_silent, 0, 1);
            return GAIA_DEMAND_E_SILENT;
        }
        gaia_pause();
    }
}

/* One question: FETCH(_HERE) into the frame, or GIVE from it. 0, GAIA_DEMAND_PULL or an error; grant is the
 * leader's. */
GAIA_DEVICE uint32_t gaia_warp_ask(const struct gaia_demand *d, uint32_t mask, uint32_t operation,
                                   uint32_t unit, uint32_t frame, struct gaia_wait *wait, uint32_t *grant)
{
    uint32_t leader = gaia_first_lane(mask), ticket = 0, status = 0;
    uint8_t *stage;

    if (gaia_leads(mask))
        status = gaia_ring_take(d, wait, &ticket);
    status = gaia_share(mask, leader, status);
    if (status)
        return status;
    ticket = gaia_share(mask, leader, ticket);
    stage = d->stages + ((uint64_t)(ticket & (d->slots - 1)) << d->unit_shift);
    if (operation == GAIA_DEMAND_GIVE)
        gaia_warp_copy_out(d, mask, frame, stage);
    if (gaia_leads(mask))
        status = gaia_ring_ask(d, ticket, operation, unit, frame, grant);
    status = gaia_share(mask, leader, status);
    /* A warp that was not answered keeps the slot for ever: the host may still write to the stage, and
     * answer. */
    if (status == GAIA_DEMAND_E_SILENT)
        return status;
    gaia_warp_sync(mask);
    if (operation != GAIA_DEMAND_GIVE && !status)
        gaia_warp_copy_in(d, mask, frame, stage);
    if (gaia_leads(mask))
        gaia_store_release_gpu32(&d->turn[ticket & (d->slots - 1)], ticket + d->slots);
    return status;
}

/* --- frames --- */

/* A frame that the clock came to: either it was free and is the caller's now, or the caller has made its unit
 * busy. */
GAIA_DEVICE uint32_t gaia_clock(const struct gaia_demand *d, uint32_t *unit_out)
{
    uint64_t never = gaia_is_silent(d) ? GAIA_DEMAND_DIRTY : 0; /* nobody takes what was stored */

    for (uint32_t i = 0; i < GAIA_CLOCK_STEPS; i++) {
        uint32_t frame = gaia_add_relaxed_gpu32(&d->control->hand, 1) % d->frames_count;
        uint32_t unit = gaia_load_acquire_gpu32(&d->owner[frame]);
        uint64_t word;

        *unit_out = unit;
        if (unit == GAIA_DEMAND_FREE && gaia_swap_gpu32(&d->owner[frame], unit, GAIA_DEMAND_TAKEN))
            return frame;
        if (unit >= d->units)
            continue;
        word = gaia_load_relaxed_gpu64(&d->table[unit]);
        if (!gaia_is_idle(d, word, frame) || word & never)
            continue;
        if (word & GAIA_DEMAND_REFERENCED)
            (void)gaia_and_relaxed_gpu64(&d->table[unit], ~GAIA_DEMAND_REFERENCED);
        else if (gaia_make_busy(d, unit, word))
            return frame;
    }
    return GAIA_NO_FRAME;
}

/* Gives a busy unit's bytes to the host, if it was stored to. 0: it is clean. Else it is dirty as before. */
GAIA_DEVICE uint32_t gaia_warp_give(const struct gaia_demand *d, uint32_t mask, uint32_t unit, uint32_t frame,
                                    struct gaia_wait *wait)
{
    uint32_t leader = gaia_first_lane(mask), is_dirty = 0, grant = 0, status;

    if (gaia_leads(mask)) {
        is_dirty = (gaia_and_relaxed_gpu64(&d->table[unit], ~GAIA_DEMAND_DIRTY) & GAIA_DEMAND_DIRTY) != 0;
        grant = gaia_load_relaxed_gpu32(&d->grant[frame]);
    }
#ifdef GAIAFS_BREAK_DEMAND_LOSE_STORES
    is_dirty = 0;
#endif
    if (!gaia_share(mask, leader, is_dirty))
        return 0;
    status = gaia_warp_ask(d, mask, GAIA_DEMAND_GIVE, unit, frame, wait, &grant);
    if (!gaia_leads(mask))
        return status;
    if (status) {
        (void)gaia_or_relaxed_gpu64(&d->table[unit], GAIA_DEMAND_DIRTY | GAIA_DEMAND_REFERENCED);
        gaia_count(&d->control->kept);
    } else {
        gaia_store_relaxed_gpu32(&d->grant[frame], grant);
        gaia_count(&d->control->given);
    }
    return status;
}

/* A busy unit is in no frame any more. Of its word stay the sequence number, and counts of warps that try a
 * hold and take it back. */
GAIA_DEVICE void gaia_gone(const struct gaia_demand *d, uint32_t unit)
{
    (void)gaia_and_release_gpu64(&d->table[unit], GAIA_DEMAND_SEQUENCE(d->frame_mask) | GAIA_DEMAND_COUNT);
}

/* A frame for a fault; nobody else has it. GAIA_NO_FRAME: none in time, and *error says why. */
GAIA_DEVICE uint32_t gaia_warp_take_frame(const struct gaia_demand *d, uint32_t mask, struct gaia_wait *wait,
                                          uint32_t *error)
{
    uint32_t leader = gaia_first_lane(mask), kept = 0;

    for (;;) {
        uint32_t frame = GAIA_NO_FRAME, unit = 0, is_late = 0;

        if (gaia_leads(mask)) {
            frame = gaia_clock(d, &unit);
            if (frame == GAIA_NO_FRAME)
                is_late = gaia_is_silent(d)          ? GAIA_DEMAND_E_SILENT
                          : gaia_is_late(d, wait, 0) ? GAIA_DEMAND_E_NO_FRAME
                                                     : 0;
        }
        frame = gaia_share(mask, leader, frame);
        *error = gaia_share(mask, leader, is_late);
        if (*error)
            return GAIA_NO_FRAME;
        if (frame == GAIA_NO_FRAME) {
            gaia_pause();
            continue;
        }
        unit = gaia_share(mask, leader, unit);
        if (unit == GAIA_DEMAND_FREE)
            return frame;
        *error = gaia_warp_give(d, mask, unit, frame, wait);
        if (!*error) {
            if (gaia_leads(mask)) {
                gaia_store_relaxed_gpu32(&d->owner[frame], GAIA_DEMAND_TAKEN);
                gaia_gone(d, unit);
                gaia_count(&d->control->evicted);
            }
            return frame;
        }
        if (gaia_leads(mask))
            (void)gaia_and_release_gpu64(&d->table[unit], ~GAIA_DEMAND_BUSY);
        if (++kept == GAIA_KEPT_MAX)
            return GAIA_NO_FRAME;
    }
}

/* --- faults --- */

/* Brings a unit's bytes into a frame. 0 or an error; grant is the leader's. */
GAIA_DEVICE uint32_t gaia_warp_bring(const struct gaia_demand *d, uint32_t mask, uint32_t unit,
                                     uint32_t frame, struct gaia_wait *wait, uint32_t *grant)
{
    uint32_t operation = GAIA_DEMAND_FETCH;

    for (uint32_t i = 0; i < GAIA_DEMAND_ROUNDS; i++, operation = GAIA_DEMAND_FETCH_HERE) {
        uint32_t status;

        if (gaia_warp_pull(d, mask, unit, frame, grant))
            return 0;
        status = gaia_warp_ask(d, mask, operation, unit, frame, wait, grant);
        if (!status && gaia_leads(mask))
            gaia_count(&d->control->fetched);
        if (status != GAIA_DEMAND_PULL)
            return status;
    }
    return GAIA_DEMAND_E_IO;
}

/* The caller has made an absent unit busy: brings it, with `holds` holds. */
GAIA_DEVICE uint32_t gaia_warp_fill(const struct gaia_demand *d, uint32_t mask, uint32_t unit, uint32_t holds,
                                    bool is_store, struct gaia_wait *wait)
{
    uint32_t error = 0, grant = 0, frame = gaia_warp_take_frame(d, mask, wait, &error);
    uint64_t becomes = GAIA_DEMAND_VALID; /* not referenced: what is touched once goes first */
    bool is_told = false;                 /* by the host, that it can't be had */

    if (frame != GAIA_NO_FRAME) {
        error = gaia_warp_bring(d, mask, unit, frame, wait, &grant);
        is_told = error && error != GAIA_DEMAND_E_SILENT && error != GAIA_DEMAND_E_NO_FRAME;
    }
    if (!gaia_leads(mask))
        return error ? GAIA_NO_FRAME : frame;
    if (error) {
        if (frame != GAIA_NO_FRAME)
            gaia_store_release_gpu32(&d->owner[frame], GAIA_DEMAND_FREE);
        gaia_report(d, unit, error);
        (void)gaia_add_release_gpu64(&d->table[unit], (is_told ? GAIA_DEMAND_FAILED : 0) - GAIA_DEMAND_BUSY);
        return GAIA_NO_FRAME;
    }
    gaia_store_relaxed_gpu32(&d->grant[frame], grant);
    gaia_store_release_gpu32(&d->owner[frame], unit);
    becomes |= (uint64_t)frame << 32 | (is_store ? GAIA_DEMAND_DIRTY : 0);
    becomes += GAIA_DEMAND_SEQUENCE_ONE(d->frame_mask);
    (void)gaia_add_release_gpu64(&d->table[unit], becomes - GAIA_DEMAND_BUSY + holds);
    return frame;
}

/* Takes `holds` holds on a unit that was not hit, wherever it is. The frame, or GAIA_NO_FRAME: reported. Not
 * inline: each load() of a kernel would have a copy. */
GAIA_DEVICE_CALL uint32_t gaia_warp_fault(const struct gaia_demand *d, uint32_t mask, uint32_t unit,
                                          uint32_t holds, bool is_store)
{
    struct gaia_wait wait = {0, 0};
    uint32_t leader = gaia_first_lane(mask);

    for (;;) {
        uint32_t step = GAIA_STEP_BUSY, frame = GAIA_NO_FRAME;

        if (gaia_leads(mask)) {
            step = gaia_hold(&d->table[unit], d->frame_mask, holds, is_store, &frame);
            if (step == GAIA_STEP_ABSENT) {
                uint64_t was = gaia_load_relaxed_gpu64(&d->table[unit]);
                uint64_t state =
                    was & ~GAIA_DEMAND_COUNT & ~GAIA_DEMAND_REFERENCED & ~GAIA_DEMAND_SEQUENCE(d->frame_mask);

                if (state != 0 || !gaia_make_busy(d, unit, was))
                    step = GAIA_STEP_BUSY; /* look again */
                else
                    gaia_count(&d->control->faults);
            }
            if (step == GAIA_STEP_FAILED)
                gaia_report(d, unit, GAIA_DEMAND_E_IO);
            if (step == GAIA_STEP_BUSY && gaia_is_late(d, &wait, GAIA_DEMAND_PATIENCE * d->answer_ns)) {
                gaia_report(d, unit, GAIA_DEMAND_E_BUSY);
                step = GAIA_STEP_FAILED;
            }
        }
        step = gaia_share(mask, leader, step);
        frame = gaia_share(mask, leader, frame);
        if (step == GAIA_STEP_HELD) {
            gaia_warp_sync(mask);
            return frame;
        }
        if (step == GAIA_STEP_FAILED)
            return GAIA_NO_FRAME;
        if (step == GAIA_STEP_ABSENT) {
            frame = gaia_warp_fill(d, mask, unit, holds, is_store, &wait);
            frame = gaia_share(mask, leader, frame);
            gaia_warp_sync(mask);
            return frame;
        }
        gaia_pause();
    }
}

/* --- between kernels --- */

/* The word of the unit in a frame if that was stored to; else 0. One lane. */
GAIA_DEVICE uint64_t gaia_stored_in(const struct gaia_demand *d, uint32_t frame, uint32_t *unit_out)
{
    uint32_t unit = gaia_load_acquire_gpu32(&d->owner[frame]);
    uint64_t word = unit < d->units ? gaia_load_relaxed_gpu64(&d->table[unit]) : 0;

    *unit_out = unit;
    return word & GAIA_DEMAND_DIRTY && GAIA_DEMAND_FRAME(word, d->frame_mask) == frame ? word : 0;
}

/* Gives the unit of a frame to the host, if it was stored to and nobody holds it; it stays. All lanes of a
 * warp. */
GAIA_DEVICE void gaia_warp_flush(const struct gaia_demand *d, uint32_t mask, uint32_t frame)
{
    uint32_t leader = gaia_first_lane(mask), is_mine = 0, unit = 0, error;
    struct gaia_wait wait = {0, 0};

    if (gaia_leads(mask)) {
        uint64_t word = gaia_stored_in(d, frame, &unit);

        if (word) {
            is_mine = gaia_is_idle(d, word, frame) && gaia_make_busy(d, unit, word);
            if (!is_mine)
                gaia_count(&d->control->held);
        }
    }
    if (!gaia_share(mask, leader, is_mine))
        return;
    unit = gaia_share(mask, leader, unit);
    error = gaia_warp_give(d, mask, unit, frame, &wait);
    if (!gaia_leads(mask))
        return;
    if (error)
        gaia_report(d, unit, error);
    (void)gaia_and_release_gpu64(&d->table[unit], ~GAIA_DEMAND_BUSY);
}

/* A busy unit that is clean is dropped: the next touch brings it anew. */
GAIA_DEVICE void gaia_forget(const struct gaia_demand *d, uint32_t unit, uint32_t frame)
{
    gaia_gone(d, unit);
    gaia_store_release_gpu32(&d->owner[frame], GAIA_DEMAND_FREE);
}

/* Drops a unit, unless it was stored to, which takes a warp: returns whether it was. One that is held stays;
 * one that failed is tried again. One lane. */
GAIA_DEVICE bool gaia_drop_clean(const struct gaia_demand *d, uint32_t unit)
{
    uint64_t word = gaia_load_relaxed_gpu64(&d->table[unit]);
    uint32_t frame = GAIA_DEMAND_FRAME(word, d->frame_mask);
    bool is_idle = gaia_is_idle(d, word, frame);

    if (is_idle && word & GAIA_DEMAND_DIRTY)
        return true;
    if (word & GAIA_DEMAND_FAILED)
        (void)gaia_and_relaxed_gpu64(&d->table[unit], ~GAIA_DEMAND_FAILED);
    else if (is_idle && gaia_make_busy(d, unit, word))
        gaia_forget(d, unit, frame);
    else if (word & ~GAIA_DEMAND_REFERENCED & ~GAIA_DEMAND_SEQUENCE(d->frame_mask))
        gaia_count(&d->control->held);
    return false;
}

/* Drops a unit that was stored to, after giving it to the host. One that is held, or can't be given, stays.
 * All lanes of a warp. */
GAIA_DEVICE void gaia_warp_drop(const struct gaia_demand *d, uint32_t mask, uint32_t unit)
{
    uint32_t leader = gaia_first_lane(mask), frame = GAIA_NO_FRAME, error;
    struct gaia_wait wait = {0, 0};

    if (gaia_leads(mask)) {
        uint64_t word = gaia_load_relaxed_gpu64(&d->table[unit]);
        uint32_t its_frame = GAIA_DEMAND_FRAME(word, d->frame_mask);

        if (gaia_is_idle(d, word, its_frame) && gaia_make_busy(d, unit, word))
            frame = its_frame;
        else
            gaia_count(&d->control->held);
    }
    frame = gaia_share(mask, leader, frame);
    if (frame == GAIA_NO_FRAME)
        return;
    error = gaia_warp_give(d, mask, unit, frame, &wait);
    if (!gaia_leads(mask))
        return;
    if (!error) {
        gaia_forget(d, unit, frame);
        return;
    }
    gaia_report(d, unit, error);
    (void)gaia_and_release_gpu64(&d->table[unit], ~GAIA_DEMAND_BUSY);
}

#endif
