/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of a demand mapping (demand.h): takes requests out of the ring, answers them, and puts
 * units into the arena and takes them out. One thread at a time looks at a ring, and one changes a unit of
 * the arena. */
#ifndef GAIAFS_GPU_DEMAND_HOST_H
#define GAIAFS_GPU_DEMAND_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/order.h"
#include "demand.h"

struct gaia_demand_host {
    uint32_t unit_shift;
    uint32_t units;
    uint32_t slots;
    uint32_t arena_slots;
    uint32_t next; /* the ticket that is waited for */
    uint64_t *arena_state;
    uint8_t *arena;
    const struct gaia_demand_request *requests;
    struct gaia_demand_answer *answers;
    uint8_t *stages;
};

struct gaia_demand_asked {
    uint32_t ticket;
    uint32_t operation;
    uint32_t unit;
    uint32_t grant;
    uint32_t frame;
};

/* What the parameters have as frame_mask. */
static inline uint32_t gaia_demand_frame_mask(uint32_t frames_count)
{
    uint32_t mask = 0;

    while (mask < frames_count - 1)
        mask = mask << 1 | 1;
    return mask;
}

/* The host's memory as it is before the first kernel; `first`: the first ticket, any number. The device's:
 * table, grant and control are zeros but for control.head = first; owner is GAIA_DEMAND_FREE; turn[(first +
 * i) % slots] = first + i. */
static inline void gaia_demand_host_start(struct gaia_demand_host *host, struct gaia_demand_request *requests,
                                          uint32_t first)
{
    host->next = first;
    host->requests = requests;
    memset(host->arena_state, 0, host->units * sizeof(*host->arena_state));
    for (uint32_t i = 0; i < host->slots; i++) {
        uint32_t slot = (first + i) % host->slots;
        uint64_t never = (uint64_t)(first + i - host->slots) << 32; /* a ticket of the past */

        requests[slot].unit = requests[slot].operation = never;
        requests[slot].grant = requests[slot].frame = never;
        host->answers[slot].status = host->answers[slot].grant = never;
    }
}

static inline uint8_t *gaia_demand_stage(const struct gaia_demand_host *host, uint32_t ticket)
{
    return host->stages + ((size_t)(ticket % host->slots) << host->unit_shift);
}

/* Answers: any thread; each ticket once. The stage is no longer the host's. */
static inline void gaia_demand_reply(struct gaia_demand_host *host, uint32_t ticket, uint32_t status,
                                     uint32_t grant)
{
    struct gaia_demand_answer *answer = &host->answers[ticket % host->slots];
    uint64_t upper = (uint64_t)ticket << 32;

    __atomic_store_n(&answer->grant, upper | grant, __ATOMIC_RELEASE);
    __atomic_store_n(&answer->status, upper | status, __ATOMIC_RELEASE);
}

/* The next request, if it is there. One that makes no sense is answered here, with EINVAL (22). */
static inline bool gaia_demand_next(struct gaia_demand_host *host, struct gaia_demand_asked *asked_out)
{
    const struct gaia_demand_request *request = &host->requests[host->next % host->slots];
    uint64_t words[4] = {
        __atomic_load_n(&request->unit, __ATOMIC_ACQUIRE),
        __atomic_load_n(&request->operation, __ATOMIC_ACQUIRE),
        __atomic_load_n(&request->grant, __ATOMIC_ACQUIRE),
        __atomic_load_n(&request->frame, __ATOMIC_ACQUIRE),
    };
    struct gaia_demand_asked asked = {host->next, (uint32_t)words[1], (uint32_t)words[0], (uint32_t)words[2],
                                      (uint32_t)words[3]};

    for (unsigned i = 0; i < 4; i++)
        if (words[i] >> 32 != host->next)
            return false;
    host->next++;
    if (asked.unit >= host->units || !asked.operation || asked.operation > GAIA_DEMAND_FETCH_HERE) {
        gaia_demand_reply(host, asked.ticket, 22, 0);
        return false;
    }
    *asked_out = asked;
    return true;
}

static inline uint8_t *gaia_demand_arena_bytes(const struct gaia_demand_host *host, uint32_t slot)
{
    return host->arena + ((size_t)slot << host->unit_shift);
}

/* Takes the unit out of the arena; returns the slot where it was, or UINT32_MAX. Its bytes stay there until
 * somebody changes them: they are what the device may have been granted. */
static inline uint32_t gaia_demand_arena_take(struct gaia_demand_host *host, uint32_t unit)
{
    uint64_t word = __atomic_load_n(&host->arena_state[unit], __ATOMIC_RELAXED);
    uint32_t next = GAIA_DEMAND_ARENA_SEQUENCE(word) + 1;

    __atomic_store_n(&host->arena_state[unit], (uint64_t)next << 32, __ATOMIC_RELEASE);
    return GAIA_DEMAND_ARENA_SLOT(word) - 1;
}

/* Copies n bytes, a multiple of 16 as are the addresses, so that a reader that sees any of them sees what was
 * stored before, and one that sees what is stored afterwards sees all of them. Past the CPU's caches where
 * there are such stores: no CPU will read these bytes, so the memory need not be read first, either. Checkers
 * of races do not know such stores. */
#if defined(__SSE2__) && !defined(GAIAFS_UNDER_TSAN)
static inline void gaia_demand_copy(uint8_t *to, const uint8_t *from, size_t n)
{
    _mm_sfence();
    for (size_t i = 0; i < n; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    _mm_sfence();
}
#else
static inline void gaia_demand_copy(uint8_t *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word;

        memcpy(&word, from + i, 8);
        __atomic_store_n((uint64_t *)(void *)(to + i), word, __ATOMIC_RELEASE);
    }
}
#endif

/* Writes bytes of a slot whose unit was taken out: a multiple of 16, at such an offset. A GPU that is still
 * reading the slot sees the change of the state word if it sees any of these bytes. */
static inline void gaia_demand_arena_write(struct gaia_demand_host *host, uint32_t slot, size_t offset,
                                           const void *bytes, size_t n)
{
    gaia_demand_copy(gaia_demand_arena_bytes(host, slot) + offset, (const uint8_t *)bytes, n);
}

/* All of the unit's bytes are in this slot. Returns the grant that a pull gets from now on. */
static inline uint32_t gaia_demand_arena_put(struct gaia_demand_host *host, uint32_t unit, uint32_t slot)
{
    uint64_t word = __atomic_load_n(&host->arena_state[unit], __ATOMIC_RELAXED);
    uint32_t next = GAIA_DEMAND_ARENA_SEQUENCE(word) + 1;

    __atomic_store_n(&host->arena_state[unit], (uint64_t)next << 32 | (slot + 1), __ATOMIC_RELEASE);
    return next;
}

#endif
