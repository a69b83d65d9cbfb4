/* SPDX-License-Identifier: Apache-2.0 */
/* A demand mapping as the GPU and the host share it: what lies where, and who may write which word when. The
 * GPU's half is demand_device.h (and gaia_device.cuh above it), the host's helpers are demand_host.h.
 *
 * A file is cut into units of 4 or 64 KiB, and a frame of device memory holds a unit. A touch of a unit that
 * is in no frame is a fault: a warp takes a frame, after giving back what was in it. Then it pulls the unit's
 * bytes out of the host's arena itself, or, if they are not there, asks the host through a ring.
 *
 *   where                what                       who writes it
 *   device memory        table[unit]                the GPU: see below. The host: only between kernels.
 *                        owner[frame], grant[frame] the warp that took the frame
 *                        turn[slot], control        the GPU
 *                        frames                     the warp that has the unit busy; stores of who holds it
 *   pinned host memory   arena, arena_state[unit]   the host only. The GPU reads.
 *                        requests[slot]             the warp that has the slot, once for a ticket
 *                        stages[slot]               that warp, or the host: see "The ring"
 *                        answers[slot]              the host, once for each request
 *
 * No word of host memory is written by both sides but a stage, which changes hands with the request and the
 * answer. No read-modify-write goes over the bus.
 *
 * Promises of the GPU's half: a unit's frame does not change while anybody holds the unit. Every wait is
 * bounded. A touch waits for a frame, a slot of the ring, and a unit that somebody else has busy as long as
 * others are served: until, for wait_ns, and less than twice that, no unit was pulled and no slot of the ring
 * got free (for a unit that somebody has busy GAIA_DEMAND_PATIENCE times answer_ns more, as the other waits,
 * too). It waits for one answer for at most answer_ns. A warp that waited in vain reports an error and drops
 * out: its loads are zeros, its stores are not made. A host that once left a request unanswered for answer_ns
 * is not asked again: the mapping goes on with what it has, until it is made anew.
 */
#ifndef GAIAFS_GPU_DEMAND_H
#define GAIAFS_GPU_DEMAND_H

#include <stdint.h>

#define GAIA_DEMAND_UNIT_SHIFT_SMALL 12u
#define GAIA_DEMAND_UNIT_SHIFT_LARGE 16u
#define GAIA_DEMAND_UNITS_MAX 0xfffffff0u
#define GAIA_DEMAND_FRAMES_MAX 0xfffffff0u

/* --- table[unit] ---
 *
 *   nothing of these        in no frame
 *   BUSY                    somebody is bringing it
 *   VALID                   in frame GAIA_DEMAND_FRAME(word, mask), its count of holders in the low bits
 *   VALID | BUSY            nobody holds it; somebody is giving it back, or writing it back
 *   FAILED                  the host could not serve it; touches fail at once, until it is dropped
 *
 * BUSY is set by a compare-and-swap: of a unit that is not valid, or of a valid one whose count is 0. The
 * warp that set it has the unit and its frame for itself, and is the only one to change VALID, FAILED and the
 * frame. Any warp may add to the count of any word at any time; it holds the unit only if the word that it
 * found was VALID and not BUSY, else it takes its count back at once. So the warp that has a unit busy
 * changes its word by additions and masks, never by a store. DIRTY is set by a holder before it stores, and
 * cleared by the warp that has the unit busy, before it reads the bytes. Taking hold acquires, letting go
 * releases.
 *
 * The upper half is the frame, in as many bits as the mapping's frames need (frame_mask), and above that a
 * sequence number, which counts up each time the unit is brought, wraps, and stays when the unit goes. The
 * number is for loads without a hold (gaia_view::load()): they read the word, the element, and the word
 * again, and believe what they found if it is the same unit in the same frame, brought at the same time. They
 * would be deceived by a unit that went and was brought 2^(32 - bits of the frame) times meanwhile, the last
 * time into the same frame. For each of these times the clock's hand has to go round once, with an atomic
 * update for every frame: that makes 2^31 updates in all, or more, however many frames there are, and a GPU
 * makes at most one per cycle. So more than a second has to pass between two loads of a lane, the second of
 * which waits only for the first. (What spares rounds: warps that were kept waiting since earlier rounds, one
 * round each, and drops by the host, each with a kernel, though not the last one.) */
#define GAIA_DEMAND_COUNT 0xffffffull
#define GAIA_DEMAND_VALID (1ull << 24)
#define GAIA_DEMAND_BUSY (1ull << 25)
#define GAIA_DEMAND_DIRTY (1ull << 26)
#define GAIA_DEMAND_REFERENCED (1ull << 27)
#define GAIA_DEMAND_FAILED (1ull << 28)
#define GAIA_DEMAND_FRAME(word, mask) ((uint32_t)((word) >> 32) & (mask))
#define GAIA_DEMAND_SEQUENCE(mask) (~(uint64_t)(mask) << 32)                    /* its bits */
#define GAIA_DEMAND_SEQUENCE_ONE(mask) ((uint64_t)(uint32_t)((mask) + 1) << 32) /* 0: it has none */
/* Where a word may differ between two looks at a unit whose bytes have stayed where they are: its count of
 * holders, when it was touched, and whether it was stored to, or was given to the host without leaving its
 * frame. */
#define GAIA_DEMAND_PASSING (GAIA_DEMAND_COUNT | GAIA_DEMAND_DIRTY | GAIA_DEMAND_REFERENCED)

/* owner[frame]: the number of the unit in it, or one of these. A frame is taken by a compare-and-swap of
 * FREE, or by having its unit busy. */
#define GAIA_DEMAND_FREE 0xffffffffu
#define GAIA_DEMAND_TAKEN 0xfffffffeu

/* --- arena_state[unit] ---
 *
 * The unit's sequence number in the upper half; in the lower half 1 + the number of the arena's slot that has
 * its bytes, or 0. Only the host writes it. Before the host changes a byte of the slot, or gives the slot to
 * another unit, it stores the next number with 0, and only when the bytes are there the next number with the
 * slot; the number counts up at every store. (demand_host.h does so.) The GPU reads the word, the bytes, and
 * the word again, and believes the bytes if the word is the same. The word's number is the unit's grant.
 *
 * The host may make these changes at any time. It is never told that a unit was pulled. So before it changes
 * bytes of the arena it must assume that every unit that was there has been granted as it was, and keep those
 * bytes as the twin for that grant, for as long as the device may have the unit. */
#define GAIA_DEMAND_ARENA_SLOT(word) ((uint32_t)(word))
#define GAIA_DEMAND_ARENA_SEQUENCE(word) ((uint32_t)((word) >> 32))

/* --- The ring ---
 *
 * `slots` slots, a power of two; tickets count up, 32 bits, and wrap; ticket t uses slot t % slots.
 * turn[slot] is the ticket that may take the slot: a warp takes ticket `head` by a compare-and-swap of head
 * when turn[slot] is head, and when it has its answer it sets turn[slot] = ticket + slots. So at most `slots`
 * tickets are on their way, and no ticket is left out.
 *
 * The warp that has ticket t: GIVE: writes the unit's bytes to stages[slot]. Then, after a fence, it writes
 * requests[slot], two stores of 16 bytes. Each word of a request has the ticket in its upper half, and the
 * host believes a request when all four have the ticket that it waits for. Tickets come in order, so there is
 * one place to look at. Nothing relies on 16 bytes arriving at once, nor on the order of the two stores. From
 * then on the stage is the host's. The host reads it (GIVE) or fills it (FETCH), and answers, in any order,
 * with one 16-byte store, both words of which have the ticket in their upper halves: then the stage is the
 * warp's again, until the warp passes on its turn. The host never waits for a ticket other than the next.
 *
 * Before a host answers a GIVE it takes the unit out of the arena, or puts it there with the new bytes: the
 * next fault may pull at once. Grants of a unit are numbers that the host chooses; it gives none twice for
 * different bytes. To count a grant up it takes the unit out of the arena.
 *
 * A host must not believe what it reads: a request is in memory that a client can write to. */
/* The bytes of a unit, please. */
#define GAIA_DEMAND_FETCH 1u
/* Here are the bytes of a unit that was stored to: all of them. grant says what its twin is: only bytes that
 * differ from it were stored. The device may go on holding the unit with these bytes: they are the twin of
 * the grant that the answer has. */
#define GAIA_DEMAND_GIVE 2u
/* As FETCH, from a warp that was told to pull and found nothing in the arena: into the stage, please. */
#define GAIA_DEMAND_FETCH_HERE 3u

struct gaia_demand_request {
    uint64_t unit; /* each: ticket << 32 | value */
    uint64_t operation;
    uint64_t grant;
    uint64_t frame;
};

/* status: 0; GAIA_DEMAND_PULL, to a FETCH: it is in the arena now; else an errno. A FETCH that fails marks
 * the unit FAILED; a GIVE that fails leaves it dirty on the device. */
#define GAIA_DEMAND_PULL 0x10000u

struct gaia_demand_answer {
    uint64_t status; /* each: ticket << 32 | value */
    uint64_t grant;
};

/* How often a touch asks for a unit: the second time with FETCH_HERE. */
#define GAIA_DEMAND_ROUNDS 2u
/* Answers that a touch waits for while another one has its unit busy. */
#define GAIA_DEMAND_PATIENCE 4u
/* How often a touch pulls again when the host changes the unit meanwhile, before it asks. */
#define GAIA_DEMAND_PULLS 4u

/* The errors that the GPU itself reports, with the numbers of errno.h. */
#define GAIA_DEMAND_E_IO 5u         /* told to pull in answer to a FETCH_HERE */
#define GAIA_DEMAND_E_ACCESS 13u    /* a store to a mapping for reading */
#define GAIA_DEMAND_E_BUSY 16u      /* the unit was being brought all the time */
#define GAIA_DEMAND_E_OUTSIDE 14u   /* past the end of the mapping */
#define GAIA_DEMAND_E_NO_FRAME 105u /* all frames were held, or the ring was full, and nobody was served */
#define GAIA_DEMAND_E_SILENT 110u   /* the host did not answer */

/* What happened. Each line of 64 bytes has a writer's pattern of its own. */
struct gaia_demand_control {
    uint32_t hand; /* of the clock */
    uint32_t pad0[15];
    uint32_t head; /* the next ticket */
    uint32_t is_silent;
    uint32_t pad1[14];
    uint64_t error; /* the first failure, which stays: unit << 32 | errno; 0: none */
    uint64_t failures;
    uint64_t faults;
    uint64_t pulled;
    uint64_t pulled_again; /* the host changed the unit meanwhile */
    uint64_t fetched;
    uint64_t evicted;
    uint64_t given;
    uint64_t kept; /* could not be given: dirty as before */
    uint64_t held; /* left alone by a flush or a drop, as somebody holds it */
    uint64_t ring_full;
    uint64_t pad2[5];
};

/* The parameters of a view: made by the host, constant while kernels run. Addresses are the GPU's. */
struct gaia_demand {
    uint64_t bytes; /* of the mapping, as asked for: need not be whole pages or units */
    uint32_t unit_shift;
    uint32_t units;
    uint32_t frames_count;
    uint32_t frame_mask; /* a power of two that is not less than frames_count, less 1 */
    uint32_t slots;
    uint32_t arena_slots;
    uint32_t is_writable;
    uint64_t wait_ns;
    uint64_t answer_ns;

    uint64_t *table;
    uint32_t *owner;
    uint32_t *grant;
    uint32_t *turn;
    struct gaia_demand_control *control;
    uint8_t *frames;

    const uint64_t *arena_state;
    const uint8_t *arena;
    struct gaia_demand_request *requests;
    const struct gaia_demand_answer *answers;
    uint8_t *stages;
};

#endif
