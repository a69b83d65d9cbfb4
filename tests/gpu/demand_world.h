/* SPDX-License-Identifier: Apache-2.0 */
/* A demand mapping without a GPU: "device memory" and "pinned host memory" are this process's, warps are
 * threads, and a thread is the host. It serves the ring, and between requests, when it is restless, it
 * changes bytes of its own, and puts units into the arena and takes them out.
 *
 * The file is made of 32-bit elements. Of eight elements the last is the host's: all of a unit's have one and
 * the same version, which the host counts up. A unit that shows two versions was torn. The first ones are the
 * device's: the host merges what it is given against the twin that it granted, byte by byte. */
#ifndef GAIAFS_TESTS_GPU_DEMAND_WORLD_H
#define GAIAFS_TESTS_GPU_DEMAND_WORLD_H

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "gpu/demand_host.h"
#include "gpu/gaia_device.cuh"
#include "gpu/kernels.h"
#include "tests/gpu/check.h"

static_assert(GAIA_DEMAND_E_IO == EIO && GAIA_DEMAND_E_ACCESS == EACCES && GAIA_DEMAND_E_BUSY == EBUSY, "");
static_assert(GAIA_DEMAND_E_OUTSIDE == EFAULT && GAIA_DEMAND_E_NO_FRAME == ENOBUFS, "");
static_assert(GAIA_DEMAND_E_SILENT == ETIMEDOUT, "");

#define ELEMENTS_OF_HOST 8u /* every eighth */

struct world_options {
    uint32_t unit_shift = GAIA_DEMAND_UNIT_SHIFT_SMALL;
    uint32_t units = 64;
    uint32_t frames = 8;
    uint32_t slots = 8;
    uint32_t arena_slots = 16;
    uint32_t first_ticket = 0;
    uint64_t wait_ns = 60000 * MS;
    uint64_t answer_ns = 60000 * MS;
    bool is_writable = true;
    bool is_restless = false;  /* see above */
    bool answers_pull = false; /* now and then "look into the arena" */
    uint32_t delay_us = 0;     /* before each answer */
    uint64_t seed = 1;
};

class world
{
  public:
    typedef std::shared_ptr<std::vector<uint8_t>> bytes;

    world_options options;
    size_t unit_size;
    struct gaia_demand demand;
    struct gaia_demand_control control;
    struct gaia_demand_host host;
    /* What the host does about one unit, and to all: set by tests while it runs. */
    std::atomic<uint32_t> bad_unit{UINT32_MAX}, fetch_error{0}, give_error{0};
    std::atomic<bool> is_mute{false}, is_paused{false}, lies{false};
    std::atomic<uint32_t> asked{0}, given{0};

    explicit world(const world_options &chosen) : options(chosen), unit_size((size_t)1 << chosen.unit_shift)
    {
        make_device();
        make_host();
        server_ = std::thread(&world::serve, this);
    }
    ~world()
    {
        stop();
        for (void *memory : memory_)
            free(memory);
    }
    void stop()
    {
        is_stopped_ = true;
        if (server_.joinable())
            server_.join();
    }
    template <typename T> gaia_view<T> view() const
    {
        return gaia_view<T>(demand, &demand);
    }
    uint32_t elements_of_unit() const
    {
        return (uint32_t)(unit_size / 4);
    }
    /* The file; after stop(), or by the host. */
    uint32_t home_element(uint64_t i) const
    {
        uint32_t value;

        memcpy(&value, home_[i / elements_of_unit()]->data() + i % elements_of_unit() * 4, 4);
        return value;
    }
    uint32_t version(uint32_t unit) const
    {
        return versions_[unit];
    }
    /* The value of a host's element of a version. */
    static uint32_t value_of(uint32_t version)
    {
        return version * 0x01000193u + 0x811c9dc5u;
    }
    /* Everything that was stored goes to the host; returns whether nothing stayed. */
    bool flush()
    {
        const struct gaia_demand *on_device = &demand;
        uint64_t held = control.held, kept = control.kept;

        launch("gaia_demand_flush", {&on_device});
        return control.held == held && control.kept == kept;
    }
    /* A unit, or all. */
    void drop(uint32_t from = 0, uint64_t most = UINT64_MAX)
    {
        const struct gaia_demand *on_device = &demand;
        uint64_t first = from, left = options.units - first, count = left < most ? left : most;

        launch("gaia_demand_drop", {&on_device, &first, &count});
    }
    void clear_error()
    {
        control.error = 0;
    }

  private:
    std::vector<void *> memory_;
    std::vector<bytes> home_; /* never changed in place: twins share them */
    std::vector<uint32_t> versions_;
    std::vector<std::map<uint32_t, bytes>> twins_; /* by grant */
    std::vector<uint32_t> arena_units_;            /* by slot; UINT32_MAX: none */
    std::atomic<bool> is_stopped_{false};
    random_numbers random_{};
    std::thread server_;

    static void launch(const char *name, std::vector<void *> arguments)
    {
        if (gaia_kernel_cpu(name, arguments.data(), 3, 64))
            abort();
    }
    template <typename T> T *zeros(size_t count)
    {
        void *memory = nullptr;

        if (posix_memalign(&memory, 4096, count * sizeof(T)))
            abort();
        memset(memory, 0, count * sizeof(T));
        memory_.push_back(memory);
        return (T *)memory;
    }
    void make_device();
    void make_host();
    void serve();
    void answer(const struct gaia_demand_asked &asked);
    uint32_t fetch(const struct gaia_demand_asked &asked, uint32_t *grant);
    uint32_t give(const struct gaia_demand_asked &asked, uint32_t *grant);
    void put(uint32_t unit);
    void take(uint32_t unit);
    void change(uint32_t unit);
    bool has_room_for_twins(uint32_t unit);
};

inline void world::make_device()
{
    demand = {};
    control = {};
    demand.bytes = options.units * unit_size;
    demand.unit_shift = options.unit_shift;
    demand.units = options.units;
    demand.frames_count = options.frames;
    demand.frame_mask = gaia_demand_frame_mask(options.frames);
    demand.slots = options.slots;
    demand.arena_slots = options.arena_slots;
    demand.is_writable = options.is_writable;
    demand.wait_ns = options.wait_ns;
    demand.answer_ns = options.answer_ns;
    demand.table = zeros<uint64_t>(options.units);
    demand.owner = zeros<uint32_t>(options.frames);
    demand.grant = zeros<uint32_t>(options.frames);
    demand.turn = zeros<uint32_t>(options.slots);
    demand.control = &control;
    demand.frames = zeros<uint8_t>(options.frames * unit_size);
    control.head = options.first_ticket;
    memset(demand.owner, 0xff, options.frames * sizeof(*demand.owner));
    for (uint32_t i = 0; i < options.slots; i++)
        demand.turn[(options.first_ticket + i) % options.slots] = options.first_ticket + i;
}

inline void world::make_host()
{
    random_.state = options.seed * 77;
    host = {};
    host.unit_shift = options.unit_shift;
    host.units = options.units;
    host.slots = options.slots;
    host.arena_slots = options.arena_slots;
    host.arena_state = zeros<uint64_t>(options.units);
    host.arena = zeros<uint8_t>(options.arena_slots * unit_size + 1);
    demand.requests = zeros<struct gaia_demand_request>(options.slots);
    host.answers = zeros<struct gaia_demand_answer>(options.slots);
    host.stages = zeros<uint8_t>(options.slots * unit_size);
    gaia_demand_host_start(&host, demand.requests, options.first_ticket);
    demand.arena_state = host.arena_state;
    demand.arena = host.arena;
    demand.answers = host.answers;
    demand.stages = host.stages;
    versions_.resize(options.units);
    twins_.resize(options.units);
    arena_units_.assign(options.arena_slots, UINT32_MAX);
    for (uint32_t unit = 0; unit < options.units; unit++) {
        home_.push_back(std::make_shared<std::vector<uint8_t>>(unit_size));
        change(unit);
    }
}

/* --- the host --- */

/* The host stores to its elements of a unit. */
inline void world::change(uint32_t unit)
{
    bytes now = std::make_shared<std::vector<uint8_t>>(*home_[unit]);
    uint32_t value = value_of(++versions_[unit]);

    for (uint32_t i = ELEMENTS_OF_HOST - 1; i < elements_of_unit(); i += ELEMENTS_OF_HOST)
        memcpy(now->data() + i * 4, &value, 4);
    home_[unit] = now;
}

inline void world::take(uint32_t unit)
{
    uint32_t slot = gaia_demand_arena_take(&host, unit);

    if (slot < options.arena_slots)
        arena_units_[slot] = UINT32_MAX;
}

/* Into the slot where it is, or some slot. */
inline void world::put(uint32_t unit)
{
    uint32_t slot = (uint32_t)random_.below(options.arena_slots);

    take(unit);
    if (arena_units_[slot] != UINT32_MAX)
        take(arena_units_[slot]);
    gaia_demand_arena_write(&host, slot, 0, home_[unit]->data(), unit_size / 2);
    if (options.is_restless && random_.below(4) == 0)
        sched_yield();
    gaia_demand_arena_write(&host, slot, unit_size / 2, home_[unit]->data() + unit_size / 2, unit_size / 2);
    arena_units_[slot] = unit;
    twins_[unit][gaia_demand_arena_put(&host, unit, slot)] = home_[unit];
}

inline uint32_t world::fetch(const struct gaia_demand_asked &one, uint32_t *grant)
{
    if (one.unit == bad_unit && fetch_error)
        return fetch_error;
    if (lies)
        return GAIA_DEMAND_PULL;
    if (options.answers_pull && one.operation == GAIA_DEMAND_FETCH && random_.below(2)) {
        put(one.unit);
        return GAIA_DEMAND_PULL;
    }
    take(one.unit);
    *grant = GAIA_DEMAND_ARENA_SEQUENCE(host.arena_state[one.unit]);
    twins_[one.unit][*grant] = home_[one.unit];
    memcpy(gaia_demand_stage(&host, one.ticket), home_[one.unit]->data(), unit_size);
    return 0;
}

inline uint32_t world::give(const struct gaia_demand_asked &one, uint32_t *grant)
{
    const uint8_t *stage = gaia_demand_stage(&host, one.ticket);
    auto twin = twins_[one.unit].find(one.grant);

    if (give_error)
        return give_error;
    EXPECT(twin != twins_[one.unit].end(), "unit %u is given with a grant %u that nobody gave", one.unit,
           one.grant);
    if (twin == twins_[one.unit].end())
        return EINVAL;

    bytes merged = std::make_shared<std::vector<uint8_t>>(*home_[one.unit]);
    bytes taken = std::make_shared<std::vector<uint8_t>>(stage, stage + unit_size);

    for (size_t i = 0; i < unit_size; i++)
        if (stage[i] != (*twin->second)[i])
            (*merged)[i] = stage[i];
    home_[one.unit] = merged;
    /* The device has the unit busy, so nobody pulls it: no other twin can be asked for. */
    take(one.unit);
    *grant = GAIA_DEMAND_ARENA_SEQUENCE(host.arena_state[one.unit]);
    twins_[one.unit].clear();
    twins_[one.unit][*grant] = taken;
    given++;
    return 0;
}

inline void world::answer(const struct gaia_demand_asked &one)
{
    uint32_t grant = 0, status;

    asked++;
    if (options.delay_us)
        std::this_thread::sleep_for(std::chrono::microseconds(options.delay_us));
    status = one.operation == GAIA_DEMAND_GIVE ? give(one, &grant) : fetch(one, &grant);
    gaia_demand_reply(&host, one.ticket, status, grant);
}

/* A device that gets stuck must not fill the memory with twins: of a unit there are a few, and none that
 * nobody can have been granted any more. (A real host can't look into the table; it is told what was
 * dropped.) */
inline bool world::has_room_for_twins(uint32_t unit)
{
    if (twins_[unit].size() < 32)
        return true;
    take(unit);
    /* An update, so that it is not before the store that take() made. */
    if (__atomic_fetch_add(&demand.table[unit], 0, __ATOMIC_SEQ_CST) & (GAIA_DEMAND_VALID | GAIA_DEMAND_BUSY))
        return false;
    twins_[unit].clear();
    return true;
}

inline void world::serve()
{
    struct gaia_demand_asked one;

    while (!is_stopped_) {
        if (is_paused || is_mute) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            continue;
        }
        if (gaia_demand_next(&host, &one)) {
            answer(one);
            continue;
        }
        if (options.is_restless && random_.below(WORLD_SLOW > 4 ? 4 : 1) == 0) {
            uint32_t unit = (uint32_t)random_.below(options.units);

            if (!has_room_for_twins(unit)) {
                sched_yield();
                continue;
            }
            if (random_.below(3) == 0)
                change(unit);
            if (random_.below(4) == 0)
                take(unit);
            else
                put(unit);
        }
        sched_yield();
    }
}

#endif
