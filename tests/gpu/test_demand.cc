/* SPDX-License-Identifier: Apache-2.0 */
/* Demand paging (gpu/gaia_device.cuh) with threads as warps: random loads, stores and pins against plain
 * arrays. demand_world.h has the host; test_demand_faults.cc has what can go wrong. */
#include "tests/gate.h"
#include "tests/gpu/demand_world.h"
#include "tests/gpu/runner.h"

#include <chrono>
#include <csetjmp>
#include <cstdarg>
#include <unistd.h>

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
                load_some();
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
    /* By one lane, the first of them twice. */
    void load_some()
    {
        uint64_t k[4] = {random_.below(oracle_.size()), random_.below(oracle_.size())}, index[4];
        uint32_t values[4];

        k[2] = (k[1] + 1) % oracle_.size();
        k[3] = k[0];
        for (unsigned i = 0; i < 4; i++)
            index[i] = element(k[i]);
        view_.load_many(index, values);
        for (unsigned i = 0; i < 4; i++)
            expect(k[i], values[i], "load of several");
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
    play(options, 6, so_many(5000));
}

static void large_units(void **)
{
    world_options options;

    options.unit_shift = GAIA_DEMAND_UNIT_SHIFT_LARGE;
    options.units = 160;
    options.frames = 16;
    options.arena_slots = 60;
    options.is_restless = options.answers_pull = true;
    play(options, 6, so_many(1000));
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
    play(options, 6, 250);
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

        (void)view.load((5 + round) * n);
        (void)view.load(n * 4); /* used all the time: it stays */
        assert_int_equal(w.control.faults, faults + 1);
    }
    done();
}

/* It counts each time that the unit is brought, above the frame's number, and wraps. */
static void sequence_of_a_unit(void **)
{
    world_options options;

    options.frames = 3;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();

    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(w.demand.table[0] >> 34, i);
        assert_true((uint32_t)w.demand.table[0] == 0);
        assert_int_equal(view.load(7), world::value_of(1));
        assert_int_equal(w.demand.table[0] >> 34, i + 1);
        assert_in_range(w.demand.table[0] >> 32 & 3, 0, 2);
        w.drop(0, 1);
    }
    w.drop(0, 1); /* of what isn't there */
    assert_int_equal(w.control.held, 0);
    w.demand.table[0] |= GAIA_DEMAND_SEQUENCE(3);
    assert_int_equal(view.load(7), world::value_of(1));
    assert_true(w.demand.table[0] >> 32 < 3);
    assert_true((uint32_t)w.demand.table[0] == GAIA_DEMAND_VALID);
    assert_int_equal(w.control.failures, 0);
    /* As many bits as the frames need. */
    assert_int_equal(gaia_demand_frame_mask(1), 0);
    assert_int_equal(gaia_demand_frame_mask(2), 1);
    assert_int_equal(gaia_demand_frame_mask(64), 63);
    assert_int_equal(gaia_demand_frame_mask(65), 127);
    assert_int_equal(gaia_demand_frame_mask(GAIA_DEMAND_FRAMES_MAX), UINT32_MAX);
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
    for (uint64_t unit = 39; unit < 43; unit++) /* and those that are named, and no other */
        (void)view.load(unit * n);
    w.drop(40, 2);
    for (uint64_t unit = 39; unit < 43; unit++)
        assert_int_equal(w.demand.table[unit] & GAIA_DEMAND_VALID ? 1 : 0, unit < 40 || unit > 41);
    assert_true(w.demand.table[0] & GAIA_DEMAND_VALID);
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

    uint64_t some[] = {100, wides.size(), 0};
    wide found[3];

    memset(found, 0xee, sizeof(found));
    wides.load_many(some, found);
    assert_int_equal(found[0].words[1], 77);
    assert_int_equal(found[1].words[0] | found[1].words[7], 0);
    assert_int_equal(found[2].words[3], (uint64_t)world::value_of(1) << 32);
    assert_int_equal(wides.error(), GAIA_DEMAND_E_OUTSIDE);

    gaia_pin<const wide> pin = wides.pin(100);

    assert_int_equal(pin.first(), 64);
    assert_int_equal(pin.end(), 128);
    assert_int_equal(pin.data()[100 - 64].words[7], 8);
    done();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_units),
        cmocka_unit_test(large_units),
        cmocka_unit_test(ring_that_is_full_and_wraps),
        cmocka_unit_test(host_that_changes_what_is_pulled),
        cmocka_unit_test(one_fault_for_all_lanes_of_a_unit),
        cmocka_unit_test(second_chance),
        cmocka_unit_test(sequence_of_a_unit),
        cmocka_unit_test(flush_and_drop),
        cmocka_unit_test(elements_of_any_size),
    };

    return run_limited(tests, argc, argv);
}
