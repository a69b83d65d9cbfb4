/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of a demand mapping, and what lies beside it in memory that kernels can write to: the input is the
 * GPU. It asks as it should, and asks nonsense, and stores anywhere, while the server's threads read and
 * write there; the file is cut and grows beside it. Each ticket is answered; of a file that is only read no
 * byte changes; and as long as nobody has stored where it should not, bytes are those of the file. */
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/replica.h"
#include "tests/fuzz/fuzz.h"
#include "tests/gpu/demand_ring.h"

const unsigned fuzz_runs = 400;

#define UNITS 24u
#define SLOTS 8u
#define ARENA_MOST 4u
#define LENGTH ((size_t)UNITS * UNIT)

struct world {
    struct ring ring;
    uint8_t *home;
    uint8_t file[UNITS * UNIT]; /* what it has; while it is whole and nobody has erred */
    bool honest;                /* so far */
};

static void start(struct world *w, uint32_t arena_slots, bool writable, uint32_t first)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    for (size_t i = 0; i < LENGTH; i++)
        w->file[i] = (uint8_t)(i / UNIT * 7 + i / 16);
    MUST(fd >= 0 && write(fd, w->file, LENGTH) == (ssize_t)LENGTH);
    w->home = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(w->home != MAP_FAILED);
    w->honest = true;
    w->ring.server =
        (struct demand_server){.home = w->home,
                               .fd = fd,
                               .writable = writable,
                               .host = {.units = UNITS, .slots = SLOTS, .arena_slots = arena_slots}};
    MUST(ring_start(&w->ring, first));
}

static void stop(struct world *w)
{
    ring_stop(&w->ring);
    close(w->ring.server.fd);
    munmap(w->home, LENGTH);
}

/* ---- the GPU as it should be ---- */

/* An answer may be that of a later ticket of the slot, if somebody wrote to the ring. */
static uint32_t await(struct world *w, uint32_t ticket, uint32_t *grant_out)
{
    uint64_t status, grant;

    for (uint64_t end = clock_now_ns() + RING_LIMIT_NS;; sched_yield()) {
        ring_look(&w->ring, ticket, &status, &grant);
        if ((int32_t)((uint32_t)(status >> 32) - ticket) >= 0)
            break;
        MUST(clock_now_ns() < end);
    }
    *grant_out = (uint32_t)grant;
    return (uint32_t)status;
}

static uint8_t *stage_of(struct world *w, uint32_t ticket)
{
    return gaia_demand_stage(&w->ring.server.host, ticket);
}

static void check_unit(const struct world *w, uint32_t unit, const uint8_t *bytes)
{
    if (w->honest)
        MUST(!memcmp(bytes, w->file + (size_t)unit * UNIT, UNIT));
}

static void bring(struct world *w, uint32_t unit)
{
    const struct gaia_demand_host *host = &w->ring.server.host;
    uint32_t grant, status = await(w, ring_ask(&w->ring, GAIA_DEMAND_FETCH, unit, 0), &grant);

    if (!w->honest)
        return;
    uint32_t slot = GAIA_DEMAND_ARENA_SLOT(host->arena_state[unit]);
    MUST(status == GAIA_DEMAND_PULL && slot && slot <= host->arena_slots);
    check_unit(w, unit, host->arena + (size_t)(slot - 1) * UNIT);
}

/* Fetched, changed in some places and given back. */
static void change(struct world *w, uint32_t unit, struct input *in)
{
    uint32_t at = take_u16(in) % UNIT, n = take_u8(in), grant, second;
    uint32_t ticket = ring_ask(&w->ring, GAIA_DEMAND_FETCH_HERE, unit, 0);
    uint8_t bytes[UNIT], *file = w->file + (size_t)unit * UNIT;

    uint32_t status = await(w, ticket, &grant);
    memcpy(bytes, stage_of(w, ticket), UNIT);
    if (w->honest)
        MUST(!status);
    check_unit(w, unit, bytes);
    for (uint32_t i = at; i < at + n && i < UNIT; i += 3)
        bytes[i]++;
    /* A CPU writes beside it. */
    if (w->honest && at > 0)
        w->home[(size_t)unit * UNIT + at - 1] = file[at - 1] = (uint8_t)n;
    memcpy(stage_of(w, w->ring.head), bytes, UNIT);
    status = await(w, ring_ask(&w->ring, GAIA_DEMAND_GIVE, unit, grant), &second);
    if (!w->honest)
        return;
    MUST(status == (w->ring.server.writable ? 0 : EACCES));
    for (uint32_t i = at; !status && i < at + n && i < UNIT; i += 3)
        file[i] = bytes[i];
    MUST(!memcmp(w->home + (size_t)unit * UNIT, file, UNIT));
}

/* ---- and as it should not ---- */

/* Several at once, of which nobody has thought. */
static void ask_nonsense(struct world *w, struct input *in)
{
    uint32_t tickets[SLOTS], count = take_u8(in) % SLOTS + 1, grant;

    w->honest = false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t operation = take_u8(in) % 8 < 7 ? in->left % 3 + 1 : (uint32_t)take_odd(in);
        uint32_t unit = take_u8(in) % 8 ? take_u8(in) % UNITS : (uint32_t)take_odd(in);
        tickets[i] = ring_ask(&w->ring, operation, unit, (uint32_t)take_odd(in));
    }
    for (uint32_t i = 0; i < count; i++)
        await(w, tickets[i], &grant);
}

static void scribble(struct world *w, struct input *in)
{
    struct gaia_demand_host *host = &w->ring.server.host;
    struct gaia_demand_request *request = &w->ring.requests[take_u8(in) % SLOTS];
    uint32_t unit = take_u8(in) % UNITS;
    uint64_t word = take_odd(in), upper = (uint64_t)(w->ring.head + 1 + take_u8(in) % 4) << 32;

    w->honest = false;
    switch (take_u8(in) % 4) {
    case 0: /* not the ticket that is next, or it would be answered, and nobody waits for it */
        __atomic_store_n(&request->unit, upper | (uint32_t)word, __ATOMIC_RELEASE);
        __atomic_store_n(&request->operation, upper | (word >> 32 & 3), __ATOMIC_RELEASE);
        __atomic_store_n(&request->grant, upper | unit, __ATOMIC_RELEASE);
        __atomic_store_n(&request->frame, word % 5 ? upper : word, __ATOMIC_RELEASE);
        break;
    case 1:
        __atomic_store_n(&host->arena_state[unit], word, __ATOMIC_RELEASE);
        break;
    case 2: /* another slot, of those that there are */
        __atomic_store_n(&host->arena_state[unit], word << 32 | (word >> 32 & 7), __ATOMIC_RELEASE);
        break;
    default:
        __atomic_store_n(&host->answers[unit % SLOTS].grant, word, __ATOMIC_RELEASE);
    }
}

/* What the daemon says when the file is cut; and it may grow again. */
static void cut(struct world *w, uint64_t end, bool grows)
{
    w->honest = false;
    MUST(!ftruncate(w->ring.server.fd, (off_t)end));
    replica_state_cut(&w->ring.state, end);
    if (grows)
        MUST(!ftruncate(w->ring.server.fd, (off_t)LENGTH));
}

static void step(struct world *w, struct input *in)
{
    uint8_t op = take_u8(in);
    uint32_t unit = take_u8(in) % UNITS;

    switch (op % 8) {
    case 0:
    case 1:
        bring(w, unit);
        break;
    case 2:
    case 3:
        change(w, unit, in);
        break;
    case 4:
        ask_nonsense(w, in);
        break;
    case 5:
        scribble(w, in);
        break;
    case 6:
        demand_server_forget(&w->ring.server, unit, 1 + op / 8 % (UNITS - unit));
        break;
    default:
        cut(w, take_u16(in) * 2 % LENGTH, op & 8);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct world *w = calloc(1, sizeof *w);
    uint8_t shape = take_u8(&in);
    bool writable = shape & 1;

    MUST(w);
    start(w, shape / 2 % ARENA_MOST + 1, writable, shape & 64 ? UINT32_MAX - 5 : 1000);
    for (unsigned steps = 0; in.left && steps < 40; steps++)
        step(w, &in);
    if (!writable && !w->ring.state.cuts)
        MUST(!memcmp(w->home, w->file, LENGTH));
    stop(w);
    free(w);
    return 0;
}
