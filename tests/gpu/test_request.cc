/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA reads that a GPU posts (gpu/request_device.h), with threads as warps, on a NIC that is none (nic.h).
 * What can go wrong is in test_request_faults.cc. */
#include "tests/gate.h"
#include "tests/gpu/reader.h"
#include "tests/gpu/runner.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <sys/mman.h>
#include <unistd.h>

#define SLOW (WORLD_SLOW > 4 ? 4 : WORLD_SLOW)

/* --- what the NIC sees --- */

static void requests_are_what_mlx5dv_makes_of_them(void **)
{
    random_numbers random{seed};

    for (unsigned turn = 0; turn < 1000; turn++) {
        uint32_t ticket = (uint32_t)random.next();
        pair p({}, (uint32_t)random.below(1 << 24), random.next());
        struct gaia_request r = {random.next(),
                                 random.next(),
                                 (uint32_t)random.next(),
                                 (uint32_t)random.next(),
                                 1 + (uint32_t)random.below(GAIA_REQUEST_LENGTH_MAX),
                                 0};
        uint8_t *at = p.queue.wqes + ticket % 8 * 64, wanted[64];

        memcpy(wanted, at, 64); /* the last 16 bytes are as they were */
        mlx5dv_set_ctrl_seg((mlx5_wqe_ctrl_seg *)(void *)wanted, (uint16_t)ticket, MLX5_OPCODE_RDMA_READ, 0,
                            p.queue.qpn, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
        memset(wanted + 9, 0, 2); /* which that one leaves */
        *(mlx5_wqe_raddr_seg *)(void *)(wanted + 16) = {htobe64(r.from), htobe32(r.rkey), 0};
        mlx5dv_set_data_seg((mlx5_wqe_data_seg *)(void *)(wanted + 32), r.length, r.lkey, r.to);
        gaia_request_fill(&p.queue, ticket, &r);
        assert_memory_equal(at, wanted, 64);
        gaia_request_ring(&p.queue, ticket + 1);
        assert_memory_equal(&p.doorbell, wanted, 8);
        assert_int_equal(be32toh(p.record[MLX5_SND_DBR]), (ticket + 1) & 0xffff);
        assert_int_equal(p.record[MLX5_RCV_DBR], 0);
    }
}

/* What there was when the doorbell was rung: its page can't be written to then. */
static struct {
    void *page;
    const pair *rung;
    uint32_t record;
    uint8_t wqe[64];
    unsigned count;
} moment;

static void at_the_doorbell(int, siginfo_t *info, void *)
{
    if (info->si_addr != moment.page || moment.count)
        abort();
    moment.record = be32toh(moment.rung->record[MLX5_SND_DBR]);
    memcpy(moment.wqe, moment.rung->queue.wqes, 64);
    moment.count++;
    if (mprotect(moment.page, 4096, PROT_READ | PROT_WRITE))
        abort();
}

static void the_doorbell_comes_last(void **)
{
    machine m(seed);
    pair p({}, 0x123456, seed);
    struct gaia_request r = m.request(0, 0, 4096, 77);
    struct sigaction action = {}, before;
    uint32_t ticket = 1;

    moment.page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(moment.page != MAP_FAILED);
    moment.rung = &p;
    p.queue.doorbell = (uint64_t *)moment.page;
    action.sa_sigaction = at_the_doorbell;
    action.sa_flags = SA_SIGINFO;
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(gaia_request_reserve(&p.queue, 1, 0, &ticket), 0);
    gaia_request_fill(&p.queue, ticket, &r);
    assert_int_equal(gaia_request_announce(&p.queue, ticket, ticket + 1, UINT64_MAX), 0);
    assert_int_equal(sigaction(SIGSEGV, &before, nullptr), 0);
    assert_int_equal(moment.count, 1);
    assert_int_equal(moment.record, 1);
    assert_memory_equal(moment.wqe, p.queue.wqes, 64);
    assert_memory_equal(moment.wqe, moment.page, 8);
    assert_int_equal(munmap(moment.page, 4096), 0);
}

/* Who sees its completion late moves nothing; tickets wrap. */
static void what_is_done_stays_done(void **)
{
    static const uint32_t cases[][3] = {
        {10, 5, 10},       {10, 10, 10}, {10, 11, 11}, {UINT32_MAX - 5, 5, 5}, {5, UINT32_MAX - 5, 5},
        {UINT32_MAX, 0, 0}};

    for (const auto &one : cases) {
        pair_options options;

        options.first = one[0];

        pair p(options, 1, seed);

        gaia_request_finish(&p.queue, one[1]);
        assert_int_equal(p.control.done, one[2]);
    }
}

/* --- bytes --- */

/* Warps that read over several queues, which all wrap: their slots, 16 bits, 32 bits. */
static void play(const std::vector<pair_options> &queues, unsigned warps, uint64_t reads, uint32_t longest)
{
    machine m(seed);
    std::vector<reader> readers;
    std::vector<std::thread> threads;
    uint64_t bells = 0, good = 0, completed = 0;

    for (const pair_options &options : queues)
        m.device.add(options);
    for (unsigned i = 0; i < warps; i++)
        readers.emplace_back(m, i, seed + 100 + i);
    m.device.start();
    for (reader &one : readers)
        threads.emplace_back([&one, reads, longest] { one.play(reads, longest); });
    for (std::thread &thread : threads)
        thread.join();
    m.device.stop();
    for (const reader &one : readers) {
        assert_int_equal(one.total.failed + one.total.silent + one.total.other, 0);
        good += one.total.good;
    }
    for (size_t i = 0; i < queues.size(); i++) {
        const pair &p = *m.device.pairs[i];
        uint32_t posted = p.control.head - queues[i].first;

        printf("depth %u: %u reads, %llu doorbells, %llu waited for a slot\n", p.queue.depth, posted,
               (unsigned long long)p.control.bells, (unsigned long long)p.control.full);
        assert_true(posted > 4 * p.queue.depth);
        assert_int_equal(p.control.done, p.control.head);
        assert_int_equal(p.control.ready, p.control.head);
        assert_int_equal(p.control.rung, p.control.head);
        assert_int_equal(p.completed_count, posted);
        assert_true(p.control.bells <= posted);
        bells += p.control.bells;
        completed += posted;
    }
    assert_int_equal(good, completed);
    assert_true(good >= reads * warps);
    assert_true(bells < good);
    done();
}

static pair_options with_depth(uint32_t depth, uint32_t first = 0)
{
    pair_options options;

    options.depth = depth;
    options.first = first;
    return options;
}

static void several_queues(void **)
{
    pair_options longer = with_depth(8), each_rings = with_depth(64);

    longer.wqes_count = 32;
    each_rings.batch = 1;
    play({with_depth(4), with_depth(32), longer, each_rings}, 8, so_many(20000) / SLOW, FRAME_SIZE);
}

static void small_queues_wrap_all_the_time(void **)
{
    play({with_depth(1, UINT32_MAX - 50), with_depth(2, 65536 - 50), with_depth(4, UINT32_MAX - 200)}, 6,
         so_many(10000) / SLOW, 64);
}

/* All of the NIC's numbers, more than once. */
static void numbers_wrap(void **)
{
    play({with_depth(256)}, 4, 40000 / SLOW, 8);
}

/* --- doorbells --- */

static uint32_t load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Eight warps with a request each, all of which have a slot before the first is announced. How often they
 * ring. */
static unsigned bells_of_eight(uint32_t batch)
{
    machine m(seed);
    pair_options options = with_depth(16, UINT32_MAX - 3);

    options.batch = batch;

    pair &p = m.device.add(options);
    std::vector<std::thread> threads;
    struct gaia_request first = m.request(0, 0, 777, FRAME_SIZE);
    uint32_t ticket = 0;

    m.device.start();
    assert_int_equal(gaia_request_reserve(&p.queue, 1, 0, &ticket), 0);
    assert_int_equal(ticket, options.first);
    for (unsigned i = 1; i < 8; i++)
        threads.emplace_back([&m, &p, i] {
            EXPECT(m.read(p, i, i * 1000) == 0, "warp %u", i);
            EXPECT(m.holds(i, 0, i * 1000), "warp %u", i);
        });
    while (load(&p.control.head) != ticket + 8)
        std::this_thread::yield();
    assert_int_equal(load(&p.control.ready), ticket);
    gaia_request_fill(&p.queue, ticket, &first);
    assert_int_equal(gaia_request_announce(&p.queue, ticket, ticket + 1, UINT64_MAX), 0);
    for (std::thread &thread : threads)
        thread.join();
    assert_int_equal(gaia_request_wait(&p.queue, ticket, 0), 0); /* as those behind it have ended */
    assert_true(m.holds(0, 0, 777));
    m.device.stop();
    assert_int_equal(p.completed_count, 8);
    done();
    return (unsigned)p.control.bells;
}

static void one_doorbell_for_a_batch(void **)
{
    assert_int_equal(bells_of_eight(16), 1);
    assert_int_equal(bells_of_eight(8), 1);
    assert_int_equal(bells_of_eight(3), 3); /* for 3, 3 and 2 */
    assert_int_equal(bells_of_eight(1), 8);
}

static void one_doorbell_for_a_warp(void **)
{
    machine m(seed);
    pair &p = m.device.add(with_depth(32));
    struct gaia_request requests[GAIA_LANES];

    m.device.start();
    for (unsigned lane = 0; lane < GAIA_LANES; lane++)
        requests[lane] = m.request(0, lane, lane * 4096, FRAME_SIZE);
    gaia_warp_read(&p.queue, GAIA_ALL_LANES, requests);
    m.device.stop();
    for (unsigned lane = 0; lane < GAIA_LANES; lane++) {
        assert_int_equal(requests[lane].error, 0);
        assert_true(m.holds(0, lane, lane * 4096));
    }
    assert_int_equal(p.control.bells, 1);
    assert_int_equal(p.bells, 1);
    done();
}

/* A warp has more requests than the queue is deep. */
static void a_warp_and_a_small_queue(void **)
{
    machine m(seed);
    pair &p = m.device.add(with_depth(4));
    struct gaia_request requests[GAIA_LANES];

    m.device.start();
    for (unsigned lane = 0; lane < GAIA_LANES; lane++)
        requests[lane] = m.request(0, lane, lane * 4096, FRAME_SIZE);
    gaia_warp_read(&p.queue, 0x7fffffff, requests);
    m.device.stop();
    for (unsigned lane = 0; lane < 31; lane++) {
        assert_int_equal(requests[lane].error, 0);
        assert_true(m.holds(0, lane, lane * 4096));
    }
    assert_int_equal(p.control.head, 31);
    assert_int_equal(p.control.bells, 8);
    done();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_what_mlx5dv_makes_of_them),
        cmocka_unit_test(the_doorbell_comes_last),
        cmocka_unit_test(what_is_done_stays_done),
        cmocka_unit_test(several_queues),
        cmocka_unit_test(small_queues_wrap_all_the_time),
        cmocka_unit_test(numbers_wrap),
        cmocka_unit_test(one_doorbell_for_a_batch),
        cmocka_unit_test(one_doorbell_for_a_warp),
        cmocka_unit_test(a_warp_and_a_small_queue),
    };

    return run_limited(tests, argc, argv);
}
