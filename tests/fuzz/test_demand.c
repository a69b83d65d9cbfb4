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
#include "gpu/demand_server.h"
#include "gpu/touch.h"
#include "io/protocol.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 400;

#define UNIT 4096u
#define UNITS 24u
#define SLOTS 8u
#define ARENA_MOST 4u
#define LENGTH ((size_t)UNITS * UNIT)
#define LIMIT_NS (UINT64_C(20) * 1000000000u)

struct world {
    struct demand_server server;
    struct gaia_shared_state state;
    struct gaia_demand_request requests[SLOTS];
    struct gaia_demand_answer answers[SLOTS];
    uint64_t arena_state[UNITS];
    uint8_t *home, *stages, *arena;
    uint8_t file[UNITS * UNIT]; /* what it has; while it is whole and nobody has erred */
    uint32_t head;
    bool honest; /* so far */
};

static uint8_t *new_memory(size_t bytes)
{
    uint8_t *memory = aligned_alloc(64, bytes);

    MUST(memory);
    memset(memory, 0, bytes);
    return memory;
}

static void start(struct world *w, uint32_t arena_slots, bool writable, uint32_t first)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    for (size_t i = 0; i < LENGTH; i++)
        w->file[i] = (uint8_t)(i / UNIT * 7 + i / 16);
    MUST(fd >= 0 && write(fd, w->file, LENGTH) == (ssize_t)LENGTH);
    w->home = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(w->home != MAP_FAILED);
    w->stages = new_memory((size_t)SLOTS * UNIT);
    w->arena = new_memory((size_t)arena_slots * UNIT);
    w->server = (struct demand_server){.home = w->home,
                                       .state = &w->state,
                                       .length = LENGTH,
                                       .fd = fd,
                                       .writable = writable,
                                       .host = {.unit_shift = GAIA_DEMAND_UNIT_SHIFT_SMALL,
                                                .units = UNITS,
                                                .slots = SLOTS,
                                                .arena_slots = arena_slots,
                                                .arena_state = w->arena_state,
                                                .arena = w->arena,
                                                .answers = w->answers,
                                                .stages = w->stages}};
    w->head = first;
    w->honest = true;
    gaia_demand_host_start(&w->server.host, w->requests, first);
    touch_begin();
    MUST(!demand_server_open(&w->server));
    MUST(!demand_server_start(&w->server));
}

static void stop(struct world *w)
{
    demand_server_stop(&w->server);
    demand_server_close(&w->server);
    close(w->server.fd);
    munmap(w->home, LENGTH);
    free(w->stages);
    free(w->arena);
}

/* ---- the GPU as it should be ---- */

static uint32_t ask(struct world *w, uint32_t operation, uint32_t unit, uint32_t grant)
{
    uint32_t ticket = w->head++;
    struct gaia_demand_request *request = &w->requests[ticket % SLOTS];
    uint64_t upper = (uint64_t)ticket << 32;

    __atomic_store_n(&request->unit, upper | unit, __ATOMIC_RELEASE);
    __atomic_store_n(&request->operation, upper | operation, __ATOMIC_RELEASE);
    __atomic_store_n(&request->grant, upper | grant, __ATOMIC_RELEASE);
    __atomic_store_n(&request->frame, upper, __ATOMIC_RELEASE);
    return ticket;
}

/* An answer may be that of a later ticket of the slot, if somebody wrote to the ring. */
static uint32_t await(struct world *w, uint32_t ticket, uint32_t *grant_out)
{
    const struct gaia_demand_answer *answer = &w->answers[ticket % SLOTS];
    uint64_t status;

    for (uint64_t end = clock_now_ns() + LIMIT_NS;; sched_yield()) {
        status = __atomic_load_n(&answer->status, __ATOMIC_ACQUIRE);
        if ((int32_t)((uint32_t)(status >> 32) - ticket) >= 0)
            break;
        MUST(clock_now_ns() < end);
    }
    *grant_out = (uint32_t)__atomic_load_n(&answer->grant, __ATOMIC_ACQUIRE);
    return (uint32_t)status;
}

static uint8_t *stage_of(struct world *w, uint32_t ticket)
{
    return w->stages + (size_t)(ticket % SLOTS) * UNIT;
}

static void check_unit(const struct world *w, uint32_t unit, const uint8_t *bytes)
{
    if (w->honest)
        MUST(!memcmp(bytes, w->file + (size_t)unit * UNIT, UNIT));
}

static void bring(struct world *w, uint32_t unit)
{
    uint32_t grant, status = await(w, ask(w, GAIA_DEMAND_FETCH, unit, 0), &grant);

    if (!w->honest)
        return;
    uint32_t slot = GAIA_DEMAND_ARENA_SLOT(w->arena_state[unit]);
    MUST(status == GAIA_DEMAND_PULL && slot && slot <= w->server.host.arena_slots);
    check_unit(w, unit, w->arena + (size_t)(slot - 1) * UNIT);
}

/* Fetched, changed in some places and given back. */
static void change(struct world *w, uint32_t unit, struct input *in)
{
    uint32_t at = take_u16(in) % UNIT, n = take_u8(in), grant, second;
    uint32_t ticket = ask(w, GAIA_DEMAND_FETCH_HERE, unit, 0);
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
    memcpy(stage_of(w, w->head), bytes, UNIT);
    status = await(w, ask(w, GAIA_DEMAND_GIVE, unit, grant), &second);
    if (!w->honest)
        return;
    MUST(status == (w->server.writable ? 0 : EACCES));
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
        tickets[i] = ask(w, operation, unit, (uint32_t)take_odd(in));
    }
    for (uint32_t i = 0; i < count; i++)
        await(w, tickets[i], &grant);
}

static void scribble(struct world *w, struct input *in)
{
    struct gaia_demand_request *request = &w->requests[take_u8(in) % SLOTS];
    uint32_t unit = take_u8(in) % UNITS;
    uint64_t word = take_odd(in), upper = (uint64_t)(w->head + 1 + take_u8(in) % 4) << 32;

    w->honest = false;
    switch (take_u8(in) % 4) {
    case 0: /* not the ticket that is next, or it would be answered, and nobody waits for it */
        __atomic_store_n(&request->unit, upper | (uint32_t)word, __ATOMIC_RELEASE);
        __atomic_store_n(&request->operation, upper | (word >> 32 & 3), __ATOMIC_RELEASE);
        __atomic_store_n(&request->grant, upper | unit, __ATOMIC_RELEASE);
        __atomic_store_n(&request->frame, word % 5 ? upper : word, __ATOMIC_RELEASE);
        break;
    case 1:
        __atomic_store_n(&w->arena_state[unit], word, __ATOMIC_RELEASE);
        break;
    case 2: /* another slot, of those that there are */
        __atomic_store_n(&w->arena_state[unit], word << 32 | (word >> 32 & 7), __ATOMIC_RELEASE);
        break;
    default:
        __atomic_store_n(&w->answers[unit % SLOTS].grant, word, __ATOMIC_RELEASE);
    }
}

/* What the daemon says when the file is cut; and it may grow again. */
static void cut(struct world *w, uint64_t end, bool grows)
{
    w->honest = false;
    MUST(!ftruncate(w->server.fd, (off_t)end));
    atomic_store(&w->state.cut_ends[w->state.cuts % GAIA_CUTS_KEPT], end);
    if (!w->state.cuts || end < w->state.cut_most)
        atomic_store(&w->state.cut_most, end);
    atomic_fetch_add(&w->state.cuts, 1);
    if (grows)
        MUST(!ftruncate(w->server.fd, (off_t)LENGTH));
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
        demand_server_forget(&w->server, unit, 1 + op / 8 % (UNITS - unit));
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
    if (!writable && !w->state.cuts)
        MUST(!memcmp(w->home, w->file, LENGTH));
    stop(w);
    free(w);
    return 0;
}
