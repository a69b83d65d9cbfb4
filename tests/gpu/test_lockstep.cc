/* SPDX-License-Identifier: Apache-2.0 */
/* The device code as a GPU has it, a lane a thread (lockstep.h): masks, leaders and shuffles, with lanes that
 * run apart. What the code does is tested by test_kernels and test_demand, with a warp a thread; here it must
 * do the same. */
#include "tests/gate.h"
#include "tests/gpu/lockstep.h"

#include "tests/gpu/demand_world.h"
#include "tests/gpu/looks.h"
#include "tests/gpu/runner.h"

/* The kernels themselves, not their table. */
#include "gpu/kernels.c"

#include <csetjmp>
#include <cstdarg>
#include <unistd.h>
#include <xxhash.h>

#ifdef GAIAFS_UNDER_TSAN
/* Lanes store the same word where each has the same value, and all look at a flag that any of them may raise.
 */
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_suppressions(void)
{
    return "race:find_modified\nrace:any_modified\n";
}
#endif

/* Three warps whose lanes hold a unit each, and a few more. */
#define FRAMES_FOR_PINS 104u

/* A launch, block after block. */
static void launch(unsigned blocks, unsigned warps, std::function<void()> kernel)
{
    lockstep block(warps, seed * 31 + blocks);

    for (block.block = 0, block.blocks = blocks; block.block < blocks; block.block++)
        block.run(kernel);
}

/* --- kernels --- */

#define PAGES 75u

struct pages {
    gaia_quad *quads;

    explicit pages(uint64_t its_seed)
    {
        random_numbers random{its_seed};

        if (posix_memalign((void **)&quads, 4096, PAGES * 4096))
            abort();
        for (size_t i = 0; i < PAGES * PAGE_QUADS; i++)
            quads[i] = {random.next(), random.next()};
    }
    ~pages()
    {
        free(quads);
    }
    const void *at(uint64_t page) const
    {
        return quads + page * PAGE_QUADS;
    }
};

static void kernels_hash(void **)
{
    pages p(seed);
    gaia_digest digests[PAGES + 1] = {};

    launch(3, 4, [&] { gaia_hash_pages(p.quads, PAGES, digests); });
    for (unsigned i = 0; i < PAGES; i++) {
        XXH128_hash_t hash = XXH3_128bits(p.at(i), 4096);

        assert_true(digests[i].low == hash.low64 && digests[i].high == hash.high64);
    }
    assert_int_equal(digests[PAGES].low, 0);
}

static void kernels_find_modified(void **)
{
    pages p(seed + 1);
    random_numbers random{seed};
    gaia_digest digests[PAGES];
    static const unsigned warps[] = {1, 2, 3, 8};

    for (unsigned round = 0; round < 4; round++) {
        uint32_t consider[3], modified[3], expected[3] = {}, total = 0, number = 0;

        launch(1, 1, [&] { gaia_hash_pages(p.quads, PAGES, digests); });
        for (unsigned i = 0; i < 3; i++)
            consider[i] = (uint32_t)random.next();
        for (unsigned i = 0; i < 20; i++) {
            uint64_t page = random.below(PAGES);

            p.quads[page * PAGE_QUADS + random.below(PAGE_QUADS)].second++;
            expected[page / 32] |= 1u << page % 32 & consider[page / 32];
        }
        launch(2, warps[round],
               [&] { gaia_find_modified(p.quads, PAGES, digests, consider, modified, &total); });
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(modified[i], expected[i]);
            number += gaia_bits_count(expected[i]);
        }
        assert_int_equal(total, number);
    }
}

static void kernels_any_modified(void **)
{
    pages p(seed + 1);
    random_numbers random{seed};
    gaia_digest digests[PAGES];
    static const unsigned warps[] = {1, 2, 3, 8};

    launch(1, 1, [&] { gaia_hash_pages(p.quads, PAGES, digests); });
    for (unsigned round = 0; round < so_many(16); round++) {
        uint64_t page = random.below(PAGES), end = random.below(PAGES + 1);
        uint32_t any = 0;

        launch(2, warps[round % 4],
               [&] { gaia_any_modified(p.quads, 0, PAGES, digests, PAGES, PAGES, &any); });
        assert_int_equal(any, 0);
        p.quads[page * PAGE_QUADS + random.below(PAGE_QUADS)].first++;
        launch(2, warps[round % 4], [&] { gaia_any_modified(p.quads, 0, end, digests, PAGES, PAGES, &any); });
        assert_int_equal(any, page < end);
        launch(1, 1, [&] { gaia_hash_pages(p.quads, PAGES, digests); });
    }
}

static void kernels_move(void **)
{
    pages base(seed), staging(seed + 1), kept(seed);
    uint32_t list[] = {5, 74, 0, 31, 32}, *at = list;

    launch(2, 2, [&] { gaia_gather(base.quads, at, 5, staging.quads); });
    for (unsigned i = 0; i < 5; i++)
        assert_memory_equal(staging.at(i), base.at(list[i]), 4096);
    launch(2, 2, [&] { gaia_zero_pages(base.quads, at, 5); });
    for (unsigned i = 0; i < 4096 / 8; i++)
        assert_int_equal(((const uint64_t *)base.at(74))[i], 0);
    launch(1, 3, [&] { gaia_scatter(base.quads, at, 5, staging.quads); });
    assert_memory_equal(base.quads, kept.quads, PAGES * 4096);
}

/* --- demand paging --- */

/* A warp whose lanes go their own ways; each lane has elements of its own, neighbours in every unit. */
struct lanes {
    gaia_view<uint32_t> views[2]; /* of two files */
    unsigned warp, turns, kinds;  /* of touches: 4, or 5 with pins */
    uint64_t its_seed;
    std::vector<uint32_t> oracles[2]; /* by element */

    uint64_t choose(random_numbers &random, unsigned lane) const
    {
        uint64_t run = ELEMENTS_OF_HOST * 32;

        return random.below(views[0].size() / run) * run + lane * ELEMENTS_OF_HOST + warp;
    }
    void one_lane()
    {
        unsigned lane = gaia_hw_lane();
        random_numbers random{its_seed + lane * 1000}, common{its_seed};

        for (unsigned turn = 0; turn < turns && !wrongs; turn++) {
            /* All together in the same unit, or each in its own. */
            uint64_t near = choose(common, lane), element = random.below(2) ? near : choose(random, lane);
            uint32_t value = (uint32_t)random.next(), seen;
            unsigned file = random.below(4) == 0;
            gaia_view<uint32_t> &view = views[file];
            std::vector<uint32_t> &oracle = oracles[file];

            switch (random.below(kinds)) {
            case 0:
            case 1:
                seen = view.load(element);
                EXPECT(seen == oracle[element], "lane %u: element %llu is %x and not %x, error %u", lane,
                       (unsigned long long)element, seen, oracle[element], view.error());
                if (value % 2)
                    with_others(view, oracle, {near, element, choose(random, lane), near});
                break;
            case 2:
            case 3:
                view.store(element, value);
                oracle[element] = value;
                break;
            default:
                with_pin(view, oracle, element, value);
            }
        }
    }
    void with_others(gaia_view<uint32_t> &view, std::vector<uint32_t> &oracle, const uint64_t (&index)[4])
    {
        uint32_t seen[4];

        view.load_many(index, seen);
        for (unsigned k = 0; k < 4; k++)
            EXPECT(seen[k] == oracle[index[k]], "element %llu is %x and not %x, error %u",
                   (unsigned long long)index[k], seen[k], oracle[index[k]], view.error());
    }
    void with_pin(gaia_view<uint32_t> &view, std::vector<uint32_t> &oracle, uint64_t element, uint32_t value)
    {
        gaia_pin<uint32_t> pin = view.pin_for_stores(element);

        EXPECT(pin, "error %u", view.error());
        if (!pin)
            return;
        EXPECT(pin[element] == oracle[element], "pinned element %llu", (unsigned long long)element);
        gaia_pause(); /* others go on meanwhile */
        pin[element] = oracle[element] = value;
    }
    void play()
    {
        lockstep block(1, its_seed);

        block.run([this] { one_lane(); });
    }
};

static void expect_file(world &w, const std::vector<std::unique_ptr<lanes>> &warps, unsigned file)
{
    EXPECT(w.control.failures == 0, "%llu failures", (unsigned long long)w.control.failures);
    EXPECT(w.flush(), "something stayed");
    w.stop();
    for (uint64_t i = 0; i < w.demand.bytes / 4; i++)
        if (i % ELEMENTS_OF_HOST < 3)
            EXPECT(w.home_element(i) == warps[i % ELEMENTS_OF_HOST]->oracles[file][i],
                   "element %llu of the file", (unsigned long long)i);
    for (uint32_t unit = 0; unit < w.options.units; unit++)
        EXPECT(!(w.demand.table[unit] & (GAIA_DEMAND_COUNT | GAIA_DEMAND_BUSY)), "unit %u", unit);
    printf("  %llu faults: %llu pulled, %llu fetched; %llu evicted, %llu given\n",
           (unsigned long long)w.control.faults, (unsigned long long)w.control.pulled,
           (unsigned long long)w.control.fetched, (unsigned long long)w.control.evicted,
           (unsigned long long)w.control.given);
    EXPECT(w.control.pulled && w.control.fetched && w.control.evicted && w.control.given,
           "not all was tried");
}

static void play(uint32_t unit_shift, unsigned turns, uint32_t frames, unsigned kinds)
{
    world_options options;
    std::vector<std::unique_ptr<lanes>> warps;
    std::vector<std::thread> threads;

    options.unit_shift = unit_shift;
    options.units = frames * 4;
    options.frames = frames;
    options.arena_slots = 50;
    options.slots = 4;
    options.is_restless = options.answers_pull = true;
    options.seed = seed;

    world w(options), other(options);

    for (unsigned i = 0; i < 3; i++)
        warps.emplace_back(new lanes{{w.view<uint32_t>(), other.view<uint32_t>()},
                                     i,
                                     turns,
                                     kinds,
                                     seed * 100 + i * 7,
                                     {std::vector<uint32_t>(w.view<uint32_t>().size()),
                                      std::vector<uint32_t>(w.view<uint32_t>().size())}});
    for (auto &one : warps)
        threads.emplace_back(&lanes::play, one.get());
    for (auto &thread : threads)
        thread.join();
    expect_file(w, warps, 0);
    expect_file(other, warps, 1);
    done();
}

#ifdef GAIAFS_UNDER_TSAN /* which takes its time */
#define SLOW 4u
#else
#define SLOW 1u
#endif

static void small_units(void **)
{
    play(GAIA_DEMAND_UNIT_SHIFT_SMALL, so_many(300 / SLOW), FRAMES_FOR_PINS, 5);
}

static void large_units(void **)
{
#ifdef GAIAFS_UNDER_TSAN /* for each quad */
    play(GAIA_DEMAND_UNIT_SHIFT_LARGE, so_many(4), 6, 4);
#else
    play(GAIA_DEMAND_UNIT_SHIFT_LARGE, 60, FRAMES_FOR_PINS, 5);
#endif
}

/* What is let go too early is gone at once. */
static void few_frames(void **)
{
    play(GAIA_DEMAND_UNIT_SHIFT_SMALL, so_many(200 / SLOW), 6, 4);
}

/* What was stored is given to the host, and stays; and then goes. */
static void flush_and_drop(void **)
{
    const unsigned stored = 5;
    world_options options;

    options.units = 12;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    const struct gaia_demand *demand = &w.demand;
    auto element = [&w](uint32_t unit) {
        return (uint64_t)unit * w.elements_of_unit() + gaia_hw_lane() * ELEMENTS_OF_HOST;
    };

    launch(1, 2, [&] { /* the lanes of two warps */
                       for (uint32_t unit = gaia_hw_thread() / GAIA_LANES; unit < stored; unit += 2)
                           view.store(element(unit), unit * 100 + gaia_hw_lane());
    });
    launch(2, 2, [&] { gaia_demand_flush(demand); });
    assert_int_equal(w.control.given, stored);
    for (uint32_t unit = 0; unit < stored; unit++)
        assert_int_equal(w.demand.table[unit] & (GAIA_DEMAND_VALID | GAIA_DEMAND_DIRTY | GAIA_DEMAND_BUSY),
                         GAIA_DEMAND_VALID);
    launch(1, 1, [&] { view.store(element(0) + 1, 7000 + gaia_hw_lane()); });
    launch(2, 2, [&] { gaia_demand_drop(demand, 0, options.units); });
    assert_int_equal(w.control.given, stored + 1);
    assert_int_equal(w.control.held + w.control.kept + w.control.failures, 0);
    for (uint32_t unit = 0; unit < options.units; unit++)
        assert_int_equal(w.demand.table[unit] & ~GAIA_DEMAND_SEQUENCE(w.demand.frame_mask), 0);
    for (uint32_t frame = 0; frame < options.frames; frame++)
        assert_int_equal(w.demand.owner[frame], GAIA_DEMAND_FREE);
    launch(1, 1, [&] {
        for (uint32_t unit = 0; unit < stored; unit++)
            EXPECT(view.load(element(unit)) == unit * 100 + gaia_hw_lane(), "unit %u", unit);
    });
    w.stop();
    for (unsigned lane = 0; lane < GAIA_LANES; lane++) {
        for (uint32_t unit = 0; unit < stored; unit++)
            assert_int_equal(w.home_element((uint64_t)unit * w.elements_of_unit() + lane * ELEMENTS_OF_HOST),
                             unit * 100 + lane);
        assert_int_equal(w.home_element(lane * ELEMENTS_OF_HOST + 1), 7000 + lane);
    }
    done();
}

/* --- loads without a hold --- */

static void load_takes_no_hold(void **)
{
    looks l;
    uint64_t was = l.word();

    assert_int_equal(l.load([&](unsigned) { EXPECT(l.word() == was, "it is held"); }), MINE);
    assert_int_equal(l.count, 2);
    assert_true(l.word() == was);
    /* What others do to the word while the unit stays. Who took a hold would mark it as referenced. */
    assert_int_equal(l.load([&](unsigned look) {
        if (look != 1)
            return;
        (void)gaia_and_relaxed_gpu64(l.w.demand.table, ~(GAIA_DEMAND_REFERENCED | GAIA_DEMAND_DIRTY));
        (void)gaia_add_relaxed_gpu64(l.w.demand.table, 3);
    }),
                     MINE);
    assert_true(l.word() == (was & ~(GAIA_DEMAND_REFERENCED | GAIA_DEMAND_DIRTY)) + 3);
    (void)gaia_add_relaxed_gpu64(l.w.demand.table, (uint64_t)0 - 3);
    /* A unit that isn't marked is held, which marks it. */
    l.count = 0;
    assert_int_equal(l.load([](unsigned) {}), MINE);
    assert_int_equal(l.count, 0);
    assert_true(l.word() == (was & ~GAIA_DEMAND_DIRTY));
    assert_int_equal(l.load([](unsigned) {}), MINE);
    assert_int_equal(l.count, 2);
    done();
}

static void unit_that_goes_between_two_looks(void **)
{
    for (unsigned when = 1; when <= 2; when++) {
        looks l;
        uint32_t value = l.load([&](unsigned look) {
            if (look != when)
                return;
            (void)l.view.load(looks::at(1));
            EXPECT(*l.place() == OTHERS && !(l.word() & GAIA_DEMAND_VALID), "it has not gone");
        });

        assert_int_equal(value, MINE);
        assert_int_equal(l.count, 2);
    }
    done();
}

/* The word is the same again, but for the number of times. */
static void unit_that_goes_and_comes_again(void **)
{
    looks l;
    uint64_t was = 0, sequence = GAIA_DEMAND_SEQUENCE(l.w.demand.frame_mask);
    uint32_t value;

    assert_true(sequence != 0);
    l.run([&] {
        for (unsigned unit = 0; unit < 4; unit++) /* it is as it was given: not dirty */
            (void)l.view.load(looks::at(3 - unit));
        (void)l.view.load(looks::at(0));
    });
    was = l.word();
    value = l.load([&](unsigned look) {
        if (look == 1) {
            (void)l.view.load(looks::at(1));
            EXPECT(*l.place() == OTHERS, "it has not gone");
        } else {
            (void)l.view.load(looks::at(0));
            (void)l.view.load(looks::at(0));
            EXPECT(l.word() != was && !((l.word() ^ was) & ~sequence), "%llx became %llx",
                   (unsigned long long)was, (unsigned long long)l.word());
        }
    });
    assert_int_equal(value, MINE);
    done();
}

/* Somebody fills the frame. */
static void unit_that_is_busy_at_the_second_look(void **)
{
    looks l;
    std::atomic<bool> is_busy{false};
    uint32_t value = l.load(
        [&](unsigned look) {
            if (look != 1)
                return;
            (void)gaia_add_relaxed_gpu64(l.w.demand.table, GAIA_DEMAND_BUSY);
            gaia_store_relaxed_gpu32(l.place(), OTHERS);
            is_busy = true;
        },
        [&] {
            for (unsigned i = 0; !is_busy || i < 10; i++)
                gaia_pause();
            gaia_store_relaxed_gpu32(l.place(), MINE);
            (void)gaia_and_release_gpu64(l.w.demand.table, ~GAIA_DEMAND_BUSY);
        });

    assert_int_equal(value, MINE);
    assert_int_equal(l.count, 2);
    done();
}

/* --- several at once --- */

static void several_are_looked_at_together(void **)
{
    looks l(2);
    uint64_t was[] = {l.word(0), l.word(1)},
             index[] = {looks::at(0), looks::at(1), looks::at(0), looks::at(1)};
    uint32_t values[4];

    assert_true(was[1] & GAIA_DEMAND_REFERENCED);
    l.load_many(index, values, [&](unsigned) { EXPECT(l.word(0) == was[0] && l.word(1) == was[1], "held"); });
    assert_int_equal(l.count, 2);
    for (unsigned k = 0; k < 4; k++)
        assert_int_equal(values[k], k % 2 ? OTHERS : MINE);
    /* One of the units isn't marked: its element is held, which marks it; the other one is loaded as before.
     */
    (void)gaia_and_relaxed_gpu64(&l.w.demand.table[1], ~GAIA_DEMAND_REFERENCED);
    l.load_many(index, values, [](unsigned) {});
    assert_int_equal(l.count, 4); /* the last one is looked at after the touch */
    assert_true(l.word(1) == was[1]);
    for (unsigned k = 0; k < 4; k++)
        assert_int_equal(values[k], k % 2 ? OTHERS : MINE);
    done();
}

/* Of two units one goes, and its frame has another unit's bytes, before or after they are loaded. */
static void one_of_several_goes_between_two_looks(void **)
{
    for (unsigned when = 1; when <= 2; when++)
        for (unsigned goes = 0; goes < 2; goes++) {
            looks l(2);
            uint64_t index[] = {looks::at(0), looks::at(1)}, stays = l.word(!goes);
            uint32_t values[2];

            (void)gaia_add_relaxed_gpu64(&l.w.demand.table[!goes], 1); /* somebody holds it */
            l.load_many(index, values, [&](unsigned look) {
                if (look != when)
                    return;
                (void)l.view.load(looks::at(2));
                (void)l.view.load(looks::at(2));
                EXPECT(!(l.word(goes) & GAIA_DEMAND_VALID), "it has not gone");
            });
            (void)gaia_add_relaxed_gpu64(&l.w.demand.table[!goes], (uint64_t)0 - 1);
            assert_int_equal(values[0], MINE);
            assert_int_equal(values[1], OTHERS);
            assert_true(((l.word(!goes) ^ stays) & ~GAIA_DEMAND_PASSING) == 0);
        }
    done();
}

/* Units that aren't there, of which there are more than frames, and elements past the end. */
static void several_of_which_some_are_missing(void **)
{
    looks l;
    uint64_t index[] = {looks::at(1), looks::at(0), looks::at(2) + 7, looks::at(0), looks::at(3) + 7};
    uint64_t end[] = {looks::at(0), l.view.size(), looks::at(0) + 7, UINT64_MAX};
    uint32_t values[5], at_end[4] = {1, 1, 1, 1};

    l.load_many(index, values, [](unsigned) {});
    assert_int_equal(values[0], OTHERS);
    assert_int_equal(values[1], MINE);
    assert_int_equal(values[2], world::value_of(1));
    assert_int_equal(values[3], MINE);
    assert_int_equal(values[4], world::value_of(1));
    assert_int_equal(l.view.error(), 0);
    l.load_many(end, at_end, [](unsigned) {});
    assert_int_equal(at_end[0], MINE);
    assert_int_equal(at_end[1], 0);
    assert_int_equal(at_end[2], world::value_of(1));
    assert_int_equal(at_end[3], 0);
    assert_int_equal(l.view.error(), GAIA_DEMAND_E_OUTSIDE);
    assert_int_equal(l.w.control.failures, 2);
    done();
}

/* Elements that say where the next ones are: they come where their indexes were, whether they are
 * believed or touched. */
static void several_come_where_their_indexes_were(void **)
{
    looks l(2);
    gaia_view<uint64_t> view = l.w.view<uint64_t>();
    const uint64_t from[3] = {512 + 4, 512 + 5, 2 * 512 + 6};

    l.run([&] {
        for (uint64_t k = 0; k < 3; k++)
            view.store(from[k], 3 * 512 + k);
        (void)view.load(from[2]);
    });
    for (unsigned turn = 0; turn < 3; turn++) {
        uint64_t next[3] = {from[0], from[1], from[2]};

        assert_true(l.word(2) & GAIA_DEMAND_REFERENCED);
        if (turn == 1) /* one of the units isn't marked, and its elements are touched */
            (void)gaia_and_relaxed_gpu64(&l.w.demand.table[1], ~GAIA_DEMAND_REFERENCED);
        l.run([&] { view.load_many(next, next); });
        for (uint64_t k = 0; k < 3; k++)
            assert_int_equal(next[k], 3 * 512 + k);
    }
    assert_int_equal(view.error(), 0);
    done();
}

/* The clock sees that a unit is used whose loads take no holds: now and then one of them marks it. */
static void unit_that_is_loaded_all_the_time_stays(void **)
{
    world_options options;

    options.frames = 4;

    world w(options);
    gaia_view<uint32_t> view = w.view<uint32_t>();
    uint64_t n = w.elements_of_unit(), looked = 0;
    lockstep block(1, seed);

    block.between_looks = [&](uint32_t) { looked++; };
    block.run([&] {
        if (gaia_hw_lane() != 0)
            return;
        (void)view.load(0);
        for (uint64_t round = 1; round <= 30; round++) {
            for (unsigned i = 0; i < 5; i++)
                (void)view.load(0);
            (void)view.load(round * n);
            EXPECT(w.control.faults == round + 1, "%llu faults in round %llu",
                   (unsigned long long)w.control.faults, (unsigned long long)round);
        }
    });
    assert_in_range(looked, 30 * 3 * 2, 30 * 5 * 2);
    done();
}

template <unsigned SIZE> struct sized {
    uint8_t bytes[SIZE];
};

template <unsigned SIZE> static void load_of_size()
{
    looks l;
    gaia_view<sized<SIZE>> view = l.w.view<sized<SIZE>>();
    static sized<SIZE> value, found, several[2];
    uint64_t element = view.size() / 2 + (SIZE < 4096); /* of unit 2 */
    random_numbers random{seed + SIZE};

    for (uint8_t &byte : value.bytes)
        byte = (uint8_t)random.next();
    l.run([&] {
        view.store(element, value);
        (void)view.load(element);
        l.count = 0;
        found = view.load(element);
        view.load_many({element, element}, several);
    });
    assert_int_equal(l.count, 4);
    assert_memory_equal(&found, &value, SIZE);
    assert_memory_equal(&several[0], &value, SIZE);
    assert_memory_equal(&several[1], &value, SIZE);
}

static void loads_of_any_size(void **)
{
    load_of_size<1>();
    load_of_size<2>();
    load_of_size<4>();
    load_of_size<8>();
    load_of_size<16>();
    load_of_size<32>();
    load_of_size<64>();
    load_of_size<4096>();
    done();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_hash),
        cmocka_unit_test(kernels_find_modified),
        cmocka_unit_test(kernels_any_modified),
        cmocka_unit_test(kernels_move),
        cmocka_unit_test(small_units),
        cmocka_unit_test(large_units),
        cmocka_unit_test(few_frames),
        cmocka_unit_test(flush_and_drop),
        cmocka_unit_test(load_takes_no_hold),
        cmocka_unit_test(unit_that_goes_between_two_looks),
        cmocka_unit_test(unit_that_goes_and_comes_again),
        cmocka_unit_test(unit_that_is_busy_at_the_second_look),
        cmocka_unit_test(several_are_looked_at_together),
        cmocka_unit_test(one_of_several_goes_between_two_looks),
        cmocka_unit_test(several_of_which_some_are_missing),
        cmocka_unit_test(several_come_where_their_indexes_were),
        cmocka_unit_test(unit_that_is_loaded_all_the_time_stays),
        cmocka_unit_test(loads_of_any_size),
    };

    return run_limited(tests, argc, argv);
}
