/* SPDX-License-Identifier: Apache-2.0 */
/* Demand paging (gpu/gaia_device.cuh) with threads as warps: random loads, stores and pins against plain
 * arrays, and each thing that can go wrong. demand_world.h has the host. */
#include "tests/gpu/demand_world.h"

#include <chrono>
#include <csetjmp>
#include <cstdarg>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#define LIMIT_S 150u /* of a test; SIGALRM ends the program */

static uint64_t seed;

static double seconds_since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

static void done()
{
    assert_int_equal(wrongs.exchange(0), 0);
}

/* All of the host's elements of a held unit are of one version. */
static void expect_untorn(const gaia_pin<const uint32_t> &pin)
{
    uint32_t first = pin[pin.first() + ELEMENTS_OF_HOST - 1];

    for (uint64_t i = pin.first() + ELEMENTS_OF_HOST - 1; i < pin.end(); i += ELEMENTS_OF_HOST)
        EXPECT(pin[i] == first, "element %llu is of another version: %x, %x", (unsigned long long)i, pin[i],
               first);
}

/* --- against plain arrays --- */

/* A warp. It alone loads and stores the elements whose number modulo 8 is its own: neighbours in every unit.
 */
class player
{
  public:
    player(const world &w, unsigned number, uint64_t its_seed)
        : view_(w.view<uint32_t>()), number_(number), elements_(w.elements_of_unit()), random_{its_seed},
          oracle_(view_.size() / ELEMENTS_OF_HOST)
    {
    }
    void play(unsigned turns)
    {
        for (unsigned turn = 0; turn < turns && !wrongs; turn++) {
            turn_ = turn + 1;
            switch (random_.below(8)) {
            case 0:
                load_one();
                break;
            case 1:
                store_one();
                break;
            case 2:
            case 3:
                load_many();
                break;
            case 4:
            case 5:
                store_many();
                break;
            case 6:
                read_pinned();
                break;
            default:
                store_pinned();
            }
        }
    }
    void expect_home(const world &w) const
    {
        for (uint64_t k = 0; k < oracle_.size(); k++)
            EXPECT(w.home_element(element(k)) == oracle_[k], "element %llu of the file is %x and not %x",
                   (unsigned long long)element(k), w.home_element(element(k)), oracle_[k]);
    }

  private:
    gaia_view<uint32_t> view_;
    unsigned number_, turn_ = 0;
    uint32_t elements_;
    random_numbers random_;
    std::vector<uint32_t> oracle_;

    uint64_t element(uint64_t k) const
    {
        return k * ELEMENTS_OF_HOST + number_;
    }
    void expect(uint64_t k, uint32_t value, const char *how)
    {
        EXPECT(value == oracle_[k], "%s of element %llu in turn %u: %x and not %x, error %u", how,
               (unsigned long long)element(k), turn_, value, oracle_[k], view_.error());
    }
    void load_one()
    {
        uint64_t k = random_.below(oracle_.size());

        expect(k, view_.load(element(k)), "load");
    }
    void store_one()
    {
        uint64_t k = random_.below(oracle_.size());

        view_.store(element(k), oracle_[k] = (uint32_t)random_.next());
    }
    /* Elements for each lane: one after the other, in few units, or anywhere. */
    uint32_t choose(uint64_t k[GAIA_LANES], uint64_t index[GAIA_LANES])
    {
        uint64_t base = random_.below(oracle_.size()), spread = random_.below(3);
        uint64_t near = elements_ / ELEMENTS_OF_HOST * 3;

        for (unsigned lane = 0; lane < GAIA_LANES; lane++) {
            k[lane] = spread == 0 ? base + lane : spread == 1 ? base + random_.below(near) : random_.next();
            k[lane] %= oracle_.size();
            index[lane] = element(k[lane]);
        }
        return random_.below(2) ? GAIA_ALL_LANES : (uint32_t)random_.next() | 1;
    }
    void load_many()
    {
        uint64_t k[GAIA_LANES], index[GAIA_LANES];
        uint32_t values[GAIA_LANES], mask = choose(k, index);

        memset(values, 0xee, sizeof(values));
        view_.load_warp(mask, index, values);
        for (unsigned lane = 0; lane < GAIA_LANES; lane++)
            if (mask >> lane & 1)
                expect(k[lane], values[lane], "load by a lane");
            else
                EXPECT(values[lane] == 0xeeeeeeeeu, "a lane that did not load has %x", values[lane]);
    }
    void store_many()
    {
        uint64_t k[GAIA_LANES], index[GAIA_LANES];
        uint32_t values[GAIA_LANES], mask = choose(k, index);

        for (unsigned lane = 0; lane < GAIA_LANES; lane++) {
            values[lane] = (uint32_t)(k[lane] * 2654435761u) ^ turn_; /* the same for the same element */
            if (mask >> lane & 1)
                oracle_[k[lane]] = values[lane];
        }
        view_.store_warp(mask, index, values);
    }
    void read_pinned()
    {
        gaia_pin<const uint32_t> pin = view_.pin(random_.below(view_.size()));

        EXPECT(pin, "no pin: error %u", view_.error());
        if (!pin)
            return;
        expect_untorn(pin);
        for (uint64_t i = pin.first() + number_; i < pin.end(); i += ELEMENTS_OF_HOST)
            expect(i / ELEMENTS_OF_HOST, pin[i], "pinned load");
    }
    /* Two units at once, now and then the same. */
    void store_pinned()
    {
        gaia_pin<uint32_t> one = view_.pin_for_stores(random_.below(view_.size())), two;

        two = view_.pin_for_stores(random_.below(4) ? random_.below(view_.size()) : one.first());
        EXPECT(one && two, "no pin: error %u", view_.error());
        for (unsigned n = 0; one && two && n < 20; n++) {
            gaia_pin<uint32_t> &pin = n % 2 ? two : one;
            uint64_t k = pin.first() / ELEMENTS_OF_HOST + random_.below(elements_ / ELEMENTS_OF_HOST);

            expect(k, pin[element(k)], "pinned load");
            pin[element(k)] = oracle_[k] = (uint32_t)random_.next();
        }
    }
};

static void play(world_options options, unsigned warps, unsigned turns)
{
    options.seed = seed;

    world w(options);
    std::vector<std::unique_ptr<player>> players;
    std::vector<std::thread> threads;

    for (unsigned i = 0; i < warps; i++)
        players.emplace_back(new player(w, i, seed * 1000 + i));
    for (auto &one : players)
        threads.emplace_back(&player::play, one.get(), turns / WORLD_SLOW);
    for (auto &thread : threads)
        thread.join();
    EXPECT(w.control.failures == 0, "%llu failures, error %llx", (unsigned long long)w.control.failures,
           (unsigned long long)w.control.error);
    EXPECT(w.flush(), "something stayed");
    w.stop();
    for (auto &one : players)
        one->expect_home(w);
    for (uint64_t i = ELEMENTS_OF_HOST - 1; i < w.demand.bytes / 4; i += ELEMENTS_OF_HOST) {
        uint32_t value = world::value_of(w.version((uint32_t)(i / w.elements_of_unit())));

        EXPECT(w.home_element(i) == value, "the host's element %llu is undone", (unsigned long long)i);
    }
    for (uint32_t unit = 0; unit < options.units; unit++)
        EXPECT(!(w.demand.table[unit] & (GAIA_DEMAND_COUNT | GAIA_DEMAND_BUSY | GAIA_DEMAND_DIRTY)),
               "unit %u is left as %llx", unit, (unsigned long long)w.demand.table[unit]);
    printf("  %llu faults: %llu pulled (%llu times again), %llu fetched; %llu evicted, %llu given; ring full "
           "%llu\n",
           (unsigned long long)w.control.faults, (unsigned long long)w.control.pulled,
           (unsigned long long)w.control.pulled_again, (unsigned long long)w.control.fetched,
           (unsigned long long)w.control.evicted, (unsigned long long)w.control.given,
           (unsigned long long)w.control.ring_full);
    /* All of it was met. */
    EXPECT(w.control.pulled && w.control.fetched && w.control.evicted && w.control.given,
           "not all was tried");
    EXPECT(w.control.evicted > options.frames, "the frames were never short");
    done();
}

static void small_units(void **)
{
    world_options options;

    options.units = 640;
    options.frames = 64;
    options.arena_slots = 200;
    options.is_restless = options.answers_pull = true;
    play(options, 6, 12000);
}

static void large_units(void **)
{
    world_options options;

    options.unit_shift = GAIA_DEMAND_UNIT_SHIFT_LARGE;
    options.units = 160;
    options.frames = 16;
    options.arena_slots = 60;
    options.is_restless = options.answers_pull = true;
    play(options, 6, 2000);
}

/* Two slots for six warps, whose tickets wrap. */
static void ring_that_is_full_and_wraps(void **)
{
    world_options options;

    options.frames = 24;
    options.units = 240;
    options.slots = 2;
    options.arena_slots = 10;
    options.first_ticket = UINT32_MAX - 100;
    options.delay_us = 50;
    options.is_restless = true;
    play(options, 6, 1000);
}

/* --- the ring --- */

static void tickets_wrap(void **)
{
    world_options options;

    options.first_ticket = UINT32_MAX - 20;
    options.slots = 4;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();

    for (uint64_t i = 0; i < 60; i++) {
        uint64_t index = i * w.elements_of_unit();

        view.store(index, (uint32_t)i + 1);
        assert_int_equal(view.load(index), i + 1);
    }
    assert_true(w.flush());
    w.stop();
    assert_int_equal(w.control.fetched, 60);
    assert_int_equal(w.control.given, 60);
    assert_int_equal(w.control.head, UINT32_MAX - 20 + 120); /* which wrapped */
    assert_int_equal(w.host.next, w.control.head);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(w.home_element(i * w.elements_of_unit()), i + 1);
    done();
}

static void ring_is_full_without_a_host(void **)
{
    world_options options;
    std::vector<std::thread> threads;

    options.slots = 2;
    options.frames = 16;
    options.wait_ns = 100 * MS;
    options.answer_ns = 3000 * MS;

    world w(options);
    auto start = std::chrono::steady_clock::now();

    w.is_paused = true;
    for (unsigned i = 0; i < 6; i++)
        threads.emplace_back([&w, i] { (void)w.view<uint32_t>().load((uint64_t)i * w.elements_of_unit()); });
    /* Four of them find the ring full and drop out; the other two are answered. */
    while (__atomic_load_n(&w.control.failures, __ATOMIC_RELAXED) < 4)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    assert_true(seconds_since(start) < 3);
    w.is_paused = false;
    for (auto &thread : threads)
        thread.join();
    w.stop();
    assert_int_equal(w.control.failures, 4);
    assert_int_equal((uint32_t)w.control.error, ENOBUFS);
    assert_int_equal(w.control.fetched, 2);
    assert_true(w.control.ring_full >= 4);
    done();
}

/* A request is believed when all of it is there, and only the next. */
static void requests_that_are_not_whole(void **)
{
    world_options options;

    options.first_ticket = 7;

    world w(options);
    struct gaia_demand_asked asked;
    struct gaia_demand_request *request = &w.demand.requests[7];
    uint64_t *words = &request->unit, upper = 7ull << 32;

    w.stop();
    for (unsigned missing = 0; missing < 4; missing++) {
        for (unsigned i = 0; i < 4; i++)
            words[i] = (i == missing ? 6ull << 32 : upper) | 1;
        assert_false(gaia_demand_next(&w.host, &asked));
        assert_int_equal(w.host.next, 7);
    }
    words[3] = upper | 9;
    assert_true(gaia_demand_next(&w.host, &asked));
    assert_int_equal(asked.ticket, 7);
    assert_int_equal(asked.operation, GAIA_DEMAND_FETCH);
    assert_int_equal(asked.unit, 1);
    assert_int_equal(asked.grant, 1);
    assert_int_equal(asked.frame, 9);
    assert_false(gaia_demand_next(&w.host, &asked));
}

/* What a client writes itself. */
static void requests_that_make_no_sense(void **)
{
    static const uint32_t bad[][2] = {
        {64, GAIA_DEMAND_FETCH}, {UINT32_MAX, GAIA_DEMAND_GIVE}, {1, 0}, {1, 4}};
    world w((world_options()));
    struct gaia_demand_asked asked;

    w.stop();
    for (uint64_t ticket = 0; ticket < 4; ticket++) {
        struct gaia_demand_request *request = &w.demand.requests[ticket];

        *request = {ticket << 32 | bad[ticket][0], ticket << 32 | bad[ticket][1], ticket << 32, ticket << 32};
        assert_false(gaia_demand_next(&w.host, &asked));
        assert_int_equal(w.host.next, ticket + 1);
        assert_true(w.host.answers[ticket].status == (ticket << 32 | EINVAL));
    }
}

/* --- the arena --- */

/* The host changes the only unit as fast as it can, while warps pull it. */
static void host_that_changes_what_is_pulled(void **)
{
    world_options options;
    auto start = std::chrono::steady_clock::now();

    options.unit_shift = GAIA_DEMAND_UNIT_SHIFT_LARGE;
    options.units = 2;
    options.frames = 2;
    options.arena_slots = 3;
    options.is_restless = true;
    options.seed = seed;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();

    for (unsigned i = 0;
         !wrongs && (i < 3000 / WORLD_SLOW || (w.control.pulled_again < 20 && seconds_since(start) < 60));
         i++) {
        gaia_pin<const uint32_t> pin = view.pin(i % 2 * w.elements_of_unit());

        EXPECT(pin, "error %u", view.error());
        expect_untorn(pin);
        pin.unpin();
        w.drop(i % 2, 1);
    }
    w.stop();
    printf("  %llu pulled, %llu times again\n", (unsigned long long)w.control.pulled,
           (unsigned long long)w.control.pulled_again);
    EXPECT(w.control.pulled_again >= 20, "the host was never noticed");
    done();
}

static void arena_state_of_nonsense(void **)
{
    world w((world_options()));
    gaia_view<uint32_t> view = w.view<uint32_t>();

    w.is_paused = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    w.host.arena_state[3] = 5ull << 32 | (w.options.arena_slots + 1);
    w.host.arena_state[4] = 5ull << 32 | UINT32_MAX;
    w.is_paused = false;
    for (uint64_t unit = 3; unit < 5; unit++)
        assert_int_equal(view.load(unit * w.elements_of_unit() + 7), world::value_of(1));
    assert_int_equal(w.control.pulled, 0);
    assert_int_equal(w.control.fetched, 2);
    done();
}

/* A host that says that it is in the arena, and it is not. */
static void host_that_lies(void **)
{
    world w((world_options()));
    gaia_view<uint32_t> view = w.view<uint32_t>();

    w.lies = true;
    assert_int_equal(view.load(7), 0);
    assert_int_equal(view.error(), EIO);
    assert_int_equal(w.asked, GAIA_DEMAND_ROUNDS);
    done();
}

/* --- what can't be served --- */

static void frames_that_are_all_held(void **)
{
    world_options options;

    options.wait_ns = 300 * MS;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    std::vector<gaia_pin<uint32_t>> pins;

    for (uint64_t i = 0; i < options.frames; i++)
        pins.push_back(view.pin_for_stores(i * w.elements_of_unit()));
    for (auto &pin : pins)
        pin[pin.first()] = (uint32_t)pin.first() + 1;

    auto start = std::chrono::steady_clock::now();
    uint64_t element = 0, index = 20ull * w.elements_of_unit() + 7;

    assert_int_equal(view.load(index), 0);
    assert_in_range((uint64_t)(seconds_since(start) * 1000), 299, 20000);
    assert_int_equal(view.error(&element), ENOBUFS);
    assert_int_equal(element, index - 7);
    view.store(index, 5);
    assert_false((bool)view.pin(index));
    assert_int_equal(w.control.failures, 3);
    for (auto &pin : pins)
        assert_int_equal(pin[pin.first()], pin.first() + 1);
    pins.clear();
    assert_int_equal(view.load(index), world::value_of(1));
    assert_int_equal(view.load(index - 7), 0); /* the store was not made */
    assert_int_equal(w.control.failures, 3);
    assert_true(w.flush());
    w.stop();
    for (uint64_t i = 0; i < options.frames; i++)
        assert_int_equal(w.home_element(i * w.elements_of_unit()), i * w.elements_of_unit() + 1);
    done();
}

static void unit_that_can_t_be_read(void **)
{
    world w((world_options()));
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t bad = 5ull * w.elements_of_unit() + 7, element = 0;

    w.bad_unit = 5;
    w.fetch_error = EIO;
    assert_int_equal(view.load(bad), 0);
    assert_int_equal(view.error(&element), EIO);
    assert_int_equal(element, bad - 7);
    assert_int_equal(w.asked, 1);
    view.store(bad, 1);
    assert_int_equal(view.load(bad), 0);
    assert_int_equal(w.control.failures, 3);
    assert_int_equal(w.asked, 1); /* the host is not asked again */
    assert_int_equal(view.load(bad + w.elements_of_unit()), world::value_of(1));
    /* Until somebody drops it. The store was not made. */
    w.fetch_error = 0;
    w.clear_error();
    w.drop(5, 1);
    assert_int_equal(view.load(bad), world::value_of(1));
    assert_int_equal(view.error(), 0);
    done();
}

/* An errno of the host's that means something else in the device: the slot must not stay taken. */
static void errors_with_a_meaning_of_their_own(void **)
{
    world_options options;

    options.slots = 2;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();

    for (unsigned i = 0; i < 10; i++) {
        w.bad_unit = i;
        w.fetch_error = i % 2 ? ETIMEDOUT : ENOBUFS;
        w.clear_error();
        assert_int_equal(view.load((uint64_t)i * w.elements_of_unit()), 0);
        assert_int_equal(view.error(), EIO);
    }
    assert_int_equal(w.control.is_silent, 0);
    done();
}

static void host_that_stops_answering(void **)
{
    world_options options;

    options.answer_ns = 300 * MS;
    options.frames = 4;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t n = w.elements_of_unit();

    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(view.load(i * n + 7), world::value_of(1));
    view.store(0, 123);
    w.is_mute = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));

    auto start = std::chrono::steady_clock::now();

    assert_int_equal(view.load(10 * n + 7), 0);
    assert_in_range((uint64_t)(seconds_since(start) * 1000), 299, 20000);
    assert_int_equal(view.error(), ETIMEDOUT);
    /* From now on nobody waits, and what is there is there. The frame that was wanted was a clean one. */
    start = std::chrono::steady_clock::now();
    for (uint64_t i = 10; i < 60; i++)
        assert_int_equal(view.load(i * n + 7), 0);
    assert_true(seconds_since(start) < 5);
    assert_int_equal(view.load(0), 123);
    assert_false(w.flush());
    assert_int_equal(view.load(0), 123);
    assert_true(w.demand.table[0] & GAIA_DEMAND_DIRTY);
    /* Pulls need nobody. */
    uint32_t grant = gaia_demand_arena_put(&w.host, 30, 0);

    assert_int_equal(grant, 1);
    assert_int_equal(view.load(30 * n + 7), 0); /* nothing was written there */
    assert_int_equal(w.control.pulled, 1);
    done();
}

static void bytes_that_the_host_can_t_take(void **)
{
    world_options options;

    options.frames = 4;
    options.wait_ns = 500 * MS;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t n = w.elements_of_unit();

    w.give_error = ENOSPC;
    for (uint64_t i = 0; i < 4; i++)
        view.store(i * n, (uint32_t)i + 100);
    assert_int_equal(view.load(10 * n + 7), 0);
    assert_int_equal(view.error(), ENOSPC);
    assert_true(w.control.kept > 0);
    assert_int_equal(w.control.evicted, 0);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(view.load(i * n), i + 100);
    assert_false(w.flush());
    w.give_error = 0;
    assert_int_equal(view.load(10 * n + 7), world::value_of(1));
    assert_true(w.flush());
    w.stop();
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(w.home_element(i * n), i + 100);
    done();
}

static void touches_outside_and_of_what_is_read_only(void **)
{
    world_options options;

    options.is_writable = false;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t index[GAIA_LANES];
    uint32_t values[GAIA_LANES];

    assert_int_equal(view.load(view.size()), 0);
    assert_int_equal(view.error(), EFAULT);
    w.clear_error();
    assert_int_equal(view.load(UINT64_MAX / 4), 0);
    assert_int_equal(view.error(), EFAULT);
    w.clear_error();
    assert_false((bool)view.pin(view.size()));
    view.store(7, 1);
    assert_false((bool)view.pin_for_stores(7));
    assert_int_equal(w.control.failures, 5);
    assert_int_equal(view.load(7), world::value_of(1));
    /* Of a warp only the lanes that are outside are told. */
    w.clear_error();
    for (uint64_t lane = 0; lane < GAIA_LANES; lane++)
        index[lane] = lane % 2 ? view.size() + lane : lane * 256 + 7;
    view.load_warp(GAIA_ALL_LANES, index, values);
    for (unsigned lane = 0; lane < GAIA_LANES; lane++)
        assert_int_equal(values[lane], lane % 2 ? 0 : world::value_of(1));
    assert_int_equal(view.error(), EFAULT);
    done();
}

/* --- warps --- */

static void one_fault_for_all_lanes_of_a_unit(void **)
{
    world_options options;

    options.frames = 32;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t index[GAIA_LANES];
    uint32_t values[GAIA_LANES];

    for (uint64_t lane = 0; lane < GAIA_LANES; lane++)
        index[lane] = lane % 3 * w.elements_of_unit() + lane * 8 + 7;
    view.load_warp(GAIA_ALL_LANES, index, values);
    assert_int_equal(w.control.faults, 3);
    for (uint64_t lane = 0; lane < GAIA_LANES; lane++)
        assert_int_equal(values[lane], world::value_of(1));
    for (uint64_t lane = 0; lane < GAIA_LANES; lane++)
        index[lane] = (lane + 10) * w.elements_of_unit() + 7;
    view.load_warp(0x0000ffff, index, values);
    assert_int_equal(w.control.faults, 3 + 16);
    view.load_warp(0x0000ffff, index, values);
    assert_int_equal(w.control.faults, 3 + 16);
    /* A warp whose lanes all want another unit, more than there are frames. */
    for (uint64_t lane = 0; lane < GAIA_LANES; lane++)
        index[lane] = (lane + 30) * w.elements_of_unit() + 7;
    for (unsigned i = 0; i < 3; i++) {
        view.load_warp(GAIA_ALL_LANES, index, values);
        for (uint64_t lane = 0; lane < GAIA_LANES; lane++)
            assert_int_equal(values[lane], world::value_of(1));
    }
    done();
}

static void second_chance(void **)
{
    world_options options;

    options.frames = 4;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t n = w.elements_of_unit();

    for (uint64_t i = 0; i < 5; i++)
        (void)view.load(i * n); /* the fifth takes the second chance of all, and one's frame */
    for (unsigned round = 0; round < 30; round++) {
        uint64_t faults = w.control.faults;

        (void)view.load(n * 4);
        assert_int_equal(w.control.faults, faults); /* used all the time: it stays */
        (void)view.load((5 + round) * n);
        (void)view.load(n * 4);
    }
    done();
}

/* A flush leaves what is held, and what is not stays, clean; a drop lets the next touch see what the host
 * has. */
static void flush_and_drop(void **)
{
    world w((world_options()));
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t n = w.elements_of_unit();

    view.store(n, 1);
    {
        gaia_pin<uint32_t> pin = view.pin_for_stores(0);

        pin[0] = 5;
        assert_false(w.flush());
        assert_int_equal(w.given, 1);
        w.drop();
        assert_int_equal(pin[0], 5);
    }
    assert_true(w.flush());
    assert_int_equal(w.given, 2);
    assert_true(w.flush());
    assert_int_equal(w.given, 2);
    /* After a flush the unit is granted as it was given: what is stored next is told from that. */
    view.store(0, 0);
    assert_int_equal(view.load(0), 0);
    w.drop();
    assert_int_equal(w.given, 3);
    assert_int_equal(view.load(0), 0);
    w.stop();
    assert_int_equal(w.home_element(0), 0);
    assert_int_equal(w.home_element(n), 1);
    done();
}

/* Elements of other sizes. */
struct wide {
    uint64_t words[8];
};

static void elements_of_any_size(void **)
{
    world w((world_options()));
    gaia_view<uint8_t> bytes = w.view<uint8_t>();
    gaia_view<wide> wides = w.view<wide>();
    wide one = {{1, 2, 3, 4, 5, 6, 7, 8}};

    assert_int_equal(bytes.size(), 64 * 4096);
    assert_int_equal(wides.size(), 64 * 64);
    wides.store(100, one);
    assert_int_equal(bytes.load(6400 + 7 * 8), 8);
    bytes.store(6400 + 8, 77);
    assert_int_equal(wides.load(100).words[1], 77);

    gaia_pin<const wide> pin = wides.pin(100);

    assert_int_equal(pin.first(), 64);
    assert_int_equal(pin.end(), 128);
    assert_int_equal(pin.data()[100 - 64].words[7], 8);
    done();
}

static int begin(void **)
{
    (void)alarm(LIMIT_S);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_units),
        cmocka_unit_test(large_units),
        cmocka_unit_test(ring_that_is_full_and_wraps),
        cmocka_unit_test(tickets_wrap),
        cmocka_unit_test(ring_is_full_without_a_host),
        cmocka_unit_test(requests_that_are_not_whole),
        cmocka_unit_test(requests_that_make_no_sense),
        cmocka_unit_test(host_that_changes_what_is_pulled),
        cmocka_unit_test(arena_state_of_nonsense),
        cmocka_unit_test(host_that_lies),
        cmocka_unit_test(frames_that_are_all_held),
        cmocka_unit_test(unit_that_can_t_be_read),
        cmocka_unit_test(errors_with_a_meaning_of_their_own),
        cmocka_unit_test(host_that_stops_answering),
        cmocka_unit_test(bytes_that_the_host_can_t_take),
        cmocka_unit_test(touches_outside_and_of_what_is_read_only),
        cmocka_unit_test(one_fault_for_all_lanes_of_a_unit),
        cmocka_unit_test(second_chance),
        cmocka_unit_test(flush_and_drop),
        cmocka_unit_test(elements_of_any_size),
    };
    struct CMUnitTest limited[sizeof(tests) / sizeof(tests[0])];
    const char *text = getenv("GAIA_TEST_SEED");

    setvbuf(stdout, nullptr, _IOLBF, 0);
    seed = text ? strtoull(text, nullptr, 0) : 20240817;
    printf("seed: GAIA_TEST_SEED=%llu\n", (unsigned long long)seed);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    memcpy(limited, tests, sizeof(tests));
    for (auto &test : limited)
        test.setup_func = begin;
    return cmocka_run_group_tests(limited, nullptr, nullptr);
}
