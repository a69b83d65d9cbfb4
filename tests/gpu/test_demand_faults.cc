/* SPDX-License-Identifier: Apache-2.0 */
/* Demand paging (gpu/gaia_device.cuh): each thing that can go wrong, one after the other. demand_world.h has
 * the host. */
#include "tests/gpu/demand_world.h"
#include "tests/gpu/runner.h"

#include <chrono>
#include <csetjmp>
#include <cstdarg>
#include <unistd.h>

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

/* Warps that want a unit each, with few slots of the ring or few frames: the last wait for longer than
 * anybody may in vain, but something moves all the time. */
static void host_that_is_slow(void **)
{
    static const struct {
        uint32_t slots, frames;
    } few[] = {{2, 16}, {8, 2}};

    for (auto &one : few) {
        world_options options;
        std::vector<std::thread> threads;

        options.slots = one.slots;
        options.frames = one.frames;
        options.delay_us = 100000;
        options.wait_ns = 400 * MS; /* for so long the host may stand still on a machine with other work */

        world w(options);

        for (unsigned i = 0; i < 12; i++)
            threads.emplace_back([&w, i] {
                uint32_t value = w.view<uint32_t>().load((uint64_t)i * w.elements_of_unit() + 7);

                EXPECT(value == world::value_of(1), "unit %u is %x", i, value);
            });
        for (auto &thread : threads)
            thread.join();
        assert_int_equal(w.control.failures, 0);
        assert_int_equal(w.control.fetched, 12);
    }
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tickets_wrap),
        cmocka_unit_test(ring_is_full_without_a_host),
        cmocka_unit_test(host_that_is_slow),
        cmocka_unit_test(requests_that_are_not_whole),
        cmocka_unit_test(requests_that_make_no_sense),
        cmocka_unit_test(arena_state_of_nonsense),
        cmocka_unit_test(host_that_lies),
        cmocka_unit_test(frames_that_are_all_held),
        cmocka_unit_test(unit_that_can_t_be_read),
        cmocka_unit_test(errors_with_a_meaning_of_their_own),
        cmocka_unit_test(host_that_stops_answering),
        cmocka_unit_test(bytes_that_the_host_can_t_take),
        cmocka_unit_test(touches_outside_and_of_what_is_read_only),
    };

    return run_limited(tests, argc, argv);
}
