/* SPDX-License-Identifier: Apache-2.0 */
/* A demand mapping's ring with its server (gpu/demand_server.h), and the test as the GPU: it writes requests,
 * and sees what is answered. */
#ifndef GAIAFS_TESTS_GPU_DEMAND_RING_H
#define GAIAFS_TESTS_GPU_DEMAND_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/demand_server.h"
#include "gpu/touch.h"
#include "io/protocol.h"

#define UNIT 4096u
#define RING_LIMIT_NS (UINT64_C(20) * 1000000000u) /* an answer comes before that */

struct ring {
    struct demand_server server;
    struct gaia_shared_state state;
    struct gaia_demand_request *requests;
    uint32_t head; /* the next ticket */
};

/* Zeros; NULL: no memory. */
static void *ring_memory(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    return memory ? memset(memory, 0, bytes) : NULL;
}

static void ring_free(struct ring *ring)
{
    struct gaia_demand_host *host = &ring->server.host;

    free(ring->requests);
    free(host->arena_state);
    free(host->arena);
    free(host->answers);
    free(host->stages);
}

/* home, fd and writable of the server, and units, slots and arena_slots of its host, are set, and stay the
 * caller's. first: the first ticket. false: no memory, or no thread. */
static bool ring_start(struct ring *ring, uint32_t first)
{
    struct gaia_demand_host *host = &ring->server.host;

    ring->server.state = &ring->state;
    ring->server.length = (size_t)host->units * UNIT;
    ring->head = first;
    ring->requests = ring_memory(host->slots * sizeof *ring->requests);
    host->unit_shift = GAIA_DEMAND_UNIT_SHIFT_SMALL;
    host->arena_state = ring_memory(host->units * sizeof *host->arena_state);
    host->arena = ring_memory((size_t)host->arena_slots * UNIT);
    host->answers = ring_memory(host->slots * sizeof *host->answers);
    host->stages = ring_memory((size_t)host->slots * UNIT);
    if (!ring->requests || !host->arena_state || !host->arena || !host->answers || !host->stages) {
        ring_free(ring);
        return false;
    }
    gaia_demand_host_start(host, ring->requests, first);
    touch_begin();
    return !demand_server_open(&ring->server) && !demand_server_start(&ring->server);
}

static void ring_stop(struct ring *ring)
{
    demand_server_stop(&ring->server);
    demand_server_close(&ring->server);
    ring_free(ring);
}

/* One at a time. Returns the ticket. */
static uint32_t ring_ask(struct ring *ring, uint32_t operation, uint32_t unit, uint32_t grant)
{
    uint32_t ticket = ring->head++;
    struct gaia_demand_request *request = &ring->requests[ticket % ring->server.host.slots];
    uint64_t upper = (uint64_t)ticket << 32;

    __atomic_store_n(&request->unit, upper | unit, __ATOMIC_RELEASE);
    __atomic_store_n(&request->operation, upper | operation, __ATOMIC_RELEASE);
    __atomic_store_n(&request->grant, upper | grant, __ATOMIC_RELEASE);
    __atomic_store_n(&request->frame, upper, __ATOMIC_RELEASE);
    return ticket;
}

/* What the slot of a ticket has: the upper halves say whose answer it is. */
static void ring_look(const struct ring *ring, uint32_t ticket, uint64_t *status_out, uint64_t *grant_out)
{
    const struct gaia_demand_answer *answer = &ring->server.host.answers[ticket % ring->server.host.slots];

    *status_out = __atomic_load_n(&answer->status, __ATOMIC_ACQUIRE);
    *grant_out = __atomic_load_n(&answer->grant, __ATOMIC_ACQUIRE);
}

#endif
