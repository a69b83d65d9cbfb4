/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA reads that a GPU posts (gpu/request_device.h): each thing that can go wrong, on a NIC that is none
 * (nic.h), and what that one takes amiss. */
#include "tests/gpu/reader.h"
#include "tests/gpu/runner.h"

#include <cerrno>
#include <csetjmp>
#include <cstdarg>
#include <unistd.h>

static_assert(GAIA_REQUEST_E_IO == EIO && GAIA_REQUEST_E_LENGTH == EINVAL, "");
static_assert(GAIA_REQUEST_E_NO_SLOT == ENOBUFS && GAIA_REQUEST_E_SILENT == ETIMEDOUT, "");

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* --- a read that fails --- */

/* Many warps over one queue, until the NIC fails a request. */
static ends play_until(pair &p, machine &m, unsigned warps)
{
    std::vector<reader> readers;
    std::vector<std::thread> threads;
    ends total;

    for (unsigned i = 0; i < warps; i++)
        readers.emplace_back(m, i, seed + 200 + i);
    for (reader &one : readers)
        threads.emplace_back([&one, &p] { one.play_to_the_end(p); });
    for (std::thread &thread : threads)
        thread.join();
    for (const reader &one : readers)
        total.add(one.total);
    return total;
}

/* It fails, all that follow are flushed, and each warp is told. */
static void a_request_that_fails(void **)
{
    random_numbers random{seed};

    for (unsigned turn = 0; turn < 40 / std::min(WORLD_SLOW, 10u); turn++) {
        machine m(seed + turn);
        pair_options options;

        options.depth = 1u << random.below(6);
        options.first = (uint32_t)random.next();

        pair &p = m.device.add(options);
        uint32_t victim = options.first + (uint32_t)random.below(500);

        p.syndrome =
            turn % 2 ? MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR : MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
        p.trouble_at = victim;
        m.device.start();

        auto start = std::chrono::steady_clock::now();
        ends total = play_until(p, m, 8);

        assert_true(seconds_since(start) < 20); /* nobody has waited for a time-out */
        assert_int_equal(p.failed, 1);
        assert_true(p.control.error == ((uint64_t)victim << 32 | GAIA_REQUEST_FAILED | 0x8800 | p.syndrome));
        assert_int_equal(p.control.is_silent, 0);
        /* What came before went well, and only that. */
        assert_int_equal(total.good, victim - options.first);
        assert_int_equal(total.silent + total.other, 0);
        assert_true(total.failed >= 1 + p.flushed);
        assert_int_equal(p.control.done, victim);
        assert_int_equal(p.completed_count, p.control.head - options.first);
        /* Nobody posts any more. */
        assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_IO);
        assert_int_equal(load(&p.control.head), options.first + (uint32_t)p.completed_count);
        m.device.stop();
        done();
    }
}

/* Of a warp's reads those before the one that fails went well; what the others' memory holds afterwards
 * stays. */
static void a_warp_with_a_bad_key(void **)
{
    for (unsigned bad = 0; bad < 4; bad++) {
        machine m(seed + bad);
        pair_options options;

        options.depth = 32;

        pair &p = m.device.add(options);
        struct gaia_request requests[GAIA_LANES];
        uint32_t mask = 0x00ffff00, victim = 13;

        for (unsigned lane = 0; lane < GAIA_LANES; lane++)
            requests[lane] = m.request(0, lane, lane * 4096, FRAME_SIZE);
        if (bad == 0)
            requests[victim].rkey++;
        else if (bad == 1)
            requests[victim].lkey++;
        else if (bad == 2)
            requests[victim].from = (uint64_t)m.far.data() + m.far.size() - FRAME_SIZE + 1;
        else
            requests[victim].to = (uint64_t)m.frames.data() - 1;
        m.device.start();
        gaia_warp_read(&p.queue, mask, requests);
        for (unsigned lane = 8; lane < 24; lane++) {
            assert_int_equal(requests[lane].error, lane < victim ? 0 : GAIA_REQUEST_E_IO);
            if (lane < victim)
                assert_true(m.holds(0, lane, lane * 4096));
            else
                memset(m.frame(0, lane), POISON, FRAME_SIZE);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        m.device.stop();
        for (unsigned lane = victim; lane < 24; lane++)
            for (unsigned i = 0; i < FRAME_SIZE; i++)
                assert_int_equal(m.frame(0, lane)[i], POISON);
        assert_int_equal((uint8_t)p.control.error, bad == 1 || bad == 3
                                                       ? MLX5_CQE_SYNDROME_LOCAL_PROT_ERR
                                                       : MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
        assert_int_equal(p.control.error >> 32, victim - 8);
        assert_int_equal(p.flushed, 24 - victim - 1);
        done();
    }
}

/* Who waits for a slot when the queue fails is told then. */
static void waiting_for_a_slot_when_it_fails(void **)
{
    machine m(seed);
    pair_options options;
    std::vector<std::thread> threads;
    std::atomic<unsigned> failed{0};

    options.depth = 4;

    pair &p = m.device.add(options);

    p.is_paused = true;
    p.trouble_at = 2;
    m.device.start();
    for (unsigned i = 0; i < 10; i++)
        threads.emplace_back([&m, &p, &failed, i] { failed += m.read(p, i, 0) == GAIA_REQUEST_E_IO; });
    while (__atomic_load_n(&p.control.full, __ATOMIC_RELAXED) < 6)
        std::this_thread::yield();
    auto start = std::chrono::steady_clock::now();
    p.is_paused = false;
    for (std::thread &thread : threads)
        thread.join();
    assert_true(seconds_since(start) < 20); /* wait_ns is more */
    /* Two went well, and made room for at most two more, which were flushed. */
    assert_int_equal(failed, 8);
    assert_int_equal(p.control.done, 2);
    assert_in_range(load(&p.control.head), 4, 6);
    m.device.stop();
    done();
}

/* --- a NIC that does not answer --- */

static void a_nic_that_dies(void **)
{
    machine m(seed);
    pair_options options;

    options.depth = 8;
    options.answer_ns = 3000 * MS; /* a busy machine's NIC lives all the same */

    pair &p = m.device.add(options);

    p.what = DIE;
    p.trouble_at = 100;
    m.device.start();

    auto start = std::chrono::steady_clock::now();
    ends total = play_until(p, m, 6);

    assert_in_range((uint64_t)(seconds_since(start) * 1000), 2999, 30000);
    assert_int_equal(total.good, 100);
    assert_true(total.silent >= 1 && total.silent <= 8);
    assert_int_equal(total.other, 0);
    assert_int_equal(p.control.is_silent, 1);
    /* From now on nobody waits. */
    start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_IO);
    assert_true(seconds_since(start) < 5);
    m.device.stop();
    done();
}

/* It says that one has failed, and then nothing: who is behind that one does not know. */
static void a_nic_that_does_not_flush(void **)
{
    machine m(seed);
    pair_options options;
    std::vector<std::thread> threads;
    std::atomic<unsigned> ended[3] = {};

    options.depth = 16;
    options.answer_ns = 3000 * MS;

    pair &p = m.device.add(options);

    p.is_paused = true;
    p.what = FAIL_SILENTLY;
    p.trouble_at = 3;
    m.device.start();
    for (unsigned i = 0; i < 8; i++)
        threads.emplace_back([&m, &p, &ended, i] {
            uint32_t error = m.read(p, i, 0);

            ended[!error ? 0 : error == GAIA_REQUEST_E_IO ? 1 : 2]++;
        });
    while (load(&p.control.ready) != 8)
        std::this_thread::yield();
    auto start = std::chrono::steady_clock::now();
    p.is_paused = false;
    for (std::thread &thread : threads)
        thread.join();
    assert_true(seconds_since(start) < 20);
    assert_int_equal(ended[0], 3);
    assert_int_equal(ended[1], 1);
    assert_int_equal(ended[2], 4);
    assert_int_equal(p.control.error >> 32, 3);
    m.device.stop();
    done();
}

/* A queue that is full for too long: nothing was posted, and nothing is broken. */
static void no_slot_in_time(void **)
{
    machine m(seed);
    pair_options options;
    std::vector<std::thread> threads;

    options.depth = 2;
    options.wait_ns = 100 * MS;

    pair &p = m.device.add(options);

    p.is_paused = true;
    m.device.start();
    for (unsigned i = 1; i < 3; i++)
        threads.emplace_back([&m, &p, i] { EXPECT(m.read(p, i, i * 4096) == 0, "warp %u", i); });
    while (load(&p.control.ready) != 2)
        std::this_thread::yield();
    auto start = std::chrono::steady_clock::now();
    assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_NO_SLOT);
    assert_in_range((uint64_t)(seconds_since(start) * 1000), 99, 20000);
    p.is_paused = false;
    for (std::thread &thread : threads)
        thread.join();
    assert_true(m.holds(1, 0, 4096));
    assert_true(m.holds(2, 0, 8192));
    assert_int_equal(p.control.error, 0);
    assert_int_equal(m.read(p, 0, 12288), 0);
    assert_true(m.holds(0, 0, 12288));
    assert_int_equal(p.control.head, 3);
    m.device.stop();
    done();
}

/* Those before have not announced theirs, and never will. */
static void a_turn_that_does_not_come(void **)
{
    machine m(seed);
    pair_options options;
    uint32_t ticket;

    options.answer_ns = 100 * MS;

    pair &p = m.device.add(options);

    m.device.start();
    assert_int_equal(gaia_request_reserve(&p.queue, 1, 0, &ticket), 0);
    auto start = std::chrono::steady_clock::now();
    assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_SILENT);
    assert_in_range((uint64_t)(seconds_since(start) * 1000), 99, 20000);
    assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_IO);
    m.device.stop();
    assert_int_equal(p.bells, 0);
    done();
}

/* --- nonsense --- */

static void completions_that_make_no_sense(void **)
{
    for (trouble what : {WRONG_NUMBER, WRONG_PAIR, WRONG_OPERATION, COMPRESSED, RESPONDER}) {
        machine m(seed);
        pair_options options;
        pair &p = m.device.add(options);

        p.what = what;
        p.trouble_at = 20;
        m.device.start();
        for (unsigned i = 0; i < 20; i++)
            assert_int_equal(m.read(p, 0, 0), 0);
        auto start = std::chrono::steady_clock::now();
        assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_SILENT);
        assert_int_equal(m.read(p, 0, 0), GAIA_REQUEST_E_IO);
        assert_true(seconds_since(start) < 20);
        assert_int_equal(p.control.error >> 32, 20);
        assert_true(p.control.error & GAIA_REQUEST_NONSENSE);
        m.device.stop();
        done();
    }
}

static void lengths_that_make_no_sense(void **)
{
    machine m(seed);
    pair &p = m.device.add({});
    struct gaia_request requests[GAIA_LANES];

    m.device.start();
    for (unsigned lane = 0; lane < GAIA_LANES; lane++)
        requests[lane] = m.request(0, lane, lane * 4096,
                                   lane % 4 == 1   ? 0
                                   : lane % 4 == 3 ? GAIA_REQUEST_LENGTH_MAX + lane
                                                   : FRAME_SIZE);
    gaia_warp_read(&p.queue, 0x0000ffff, requests);
    for (unsigned lane = 0; lane < 16; lane++) {
        assert_int_equal(requests[lane].error, lane % 2 ? GAIA_REQUEST_E_LENGTH : 0);
        if (lane % 2 == 0)
            assert_true(m.holds(0, lane, lane * 4096));
    }
    assert_int_equal(requests[16].error, 0); /* which was not asked for, nor touched */
    gaia_warp_read(&p.queue, 0x0000000a, requests);
    m.device.stop();
    assert_int_equal(p.control.head, 8);
    done();
}

/* The NIC of these tests notices what a real one would take amiss. */
static void the_nic_is_strict(void **)
{
    static const struct {
        unsigned byte;
        uint8_t flip;
    } changes[] = {{0, 1}, {1, 1}, {2, 1},  {3, 8},  {4, 1},  {6, 1},    {7, 7},
                   {8, 1}, {9, 1}, {11, 2}, {15, 1}, {31, 1}, {32, 0x80}};
    unsigned n = 0;

    for (const auto &change : changes) {
        machine m(seed + n++);
        pair &p = m.device.add({});
        struct gaia_request r = m.request(0, 0, 0, FRAME_SIZE);

        p.is_strict = false;
        gaia_request_fill(&p.queue, 0, &r);
        p.queue.wqes[change.byte] ^= change.flip;
        gaia_request_ring(&p.queue, 1);
        m.device.start();
        while (p.completed_count == 0)
            std::this_thread::yield();
        m.device.stop();
        assert_int_equal(p.complaints, 1);
        assert_int_equal(p.bells, 1);
    }
    for (unsigned what = 0; what < 4; what++) {
        machine m(seed + n++);
        pair &p = m.device.add({});
        struct gaia_request r = m.request(0, 0, 0, FRAME_SIZE);

        p.is_strict = false;
        for (uint32_t ticket = 0; ticket < 8; ticket++)
            gaia_request_fill(&p.queue, ticket, &r);
        gaia_request_ring(&p.queue, what == 0 ? 9 : 8); /* more than the queue is deep */
        if (what == 1)
            p.record[MLX5_SND_DBR] = htobe32(7);
        else if (what == 2)
            p.doorbell ^= 1ull << 56; /* another number of parts */
        else if (what == 3)
            p.doorbell ^= 1ull << 32; /* another queue pair */
        m.device.start();
        while (p.complaints == 0)
            std::this_thread::yield();
        m.device.stop();
        assert_int_equal(p.complaints, 1);
    }
    done();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_that_fails),
        cmocka_unit_test(a_warp_with_a_bad_key),
        cmocka_unit_test(waiting_for_a_slot_when_it_fails),
        cmocka_unit_test(a_nic_that_dies),
        cmocka_unit_test(a_nic_that_does_not_flush),
        cmocka_unit_test(no_slot_in_time),
        cmocka_unit_test(a_turn_that_does_not_come),
        cmocka_unit_test(completions_that_make_no_sense),
        cmocka_unit_test(lengths_that_make_no_sense),
        cmocka_unit_test(the_nic_is_strict),
    };

    return run_limited(tests, argc, argv);
}
