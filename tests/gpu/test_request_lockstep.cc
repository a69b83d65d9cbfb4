/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA reads that a GPU posts (gpu/request_device.h), as a GPU has them, a lane a thread (lockstep.h): masks,
 * leaders and shuffles, with lanes that run apart. What the code does is tested by test_request, with a warp
 * a thread; here it must do the same. */
#include "tests/gate.h"
#include "tests/gpu/lockstep.h"

#include "tests/gpu/reader.h"
#include "tests/gpu/runner.h"

#include <csetjmp>
#include <cstdarg>
#include <unistd.h>

#define WARPS 3u

/* How the reads of all lanes ended. */
static std::atomic<uint64_t> good, failed, refused;

/* A lane reads into its frame, together with those that a mask names, while the others do the same. */
static void one_lane(machine &m, unsigned warp, unsigned turns)
{
    unsigned lane = gaia_hw_lane();
    random_numbers own{seed + warp * 100 + lane * 7777}, common{seed + warp};

    for (unsigned turn = 0; turn < turns && !wrongs; turn++) {
        pair &p = *m.device.pairs[common.below(m.device.pairs.size())];
        uint32_t mask = (uint32_t)common.next();
        uint32_t length = own.below(16) ? 1 + (uint32_t)own.below(FRAME_SIZE) : 0;
        struct gaia_request r = m.request(warp, lane, own.below(m.far.size() - FRAME_SIZE), length);

        mask = mask >> lane & 1 ? mask : ~mask;
        r.error = UINT32_MAX;
        gaia_warp_read(&p.queue, mask, &r);
        if (!length)
            EXPECT(r.error == GAIA_REQUEST_E_LENGTH, "lane %u: %u", lane, r.error);
        else if (!r.error)
            EXPECT(!memcmp(m.frame(warp, lane), (const void *)r.from, length), "lane %u", lane);
        refused += r.error == GAIA_REQUEST_E_LENGTH;
        good += r.error == 0;
        failed += r.error == GAIA_REQUEST_E_IO;
    }
}

static void play(machine &m, unsigned turns)
{
    std::vector<std::thread> threads;

    good = failed = refused = 0;
    m.device.start();
    for (unsigned warp = 0; warp < WARPS; warp++)
        threads.emplace_back([&m, warp, turns] {
            lockstep block(1, seed * 100 + warp);

            block.run([&m, warp, turns] { one_lane(m, warp, turns); });
        });
    for (std::thread &thread : threads)
        thread.join();
    m.device.stop();
    assert_int_equal(good + failed + refused, WARPS * turns * GAIA_LANES);
    done();
}

static void lanes_that_run_apart(void **)
{
    machine m(seed);
    pair_options one, two;
    uint64_t posted = 0, bells = 0;

    one.depth = 4;
    two.depth = 64;
    m.device.add(one);
    m.device.add(two);
    play(m, so_many(300));
    for (auto &p : m.device.pairs) {
        assert_int_equal(p->control.done, p->control.head);
        posted += p->control.head;
        bells += p->control.bells;
    }
    assert_int_equal(failed, 0);
    assert_int_equal(good, posted);
    assert_true(bells < posted / 2);
    printf("%llu reads, %llu doorbells\n", (unsigned long long)posted, (unsigned long long)bells);
}

static void lanes_of_a_queue_that_fails(void **)
{
    machine m(seed);
    pair_options options;

    options.depth = 16;

    pair &p = m.device.add(options);

    p.trouble_at = 3333;
    play(m, so_many(200));
    assert_int_equal(good, 3333);
    assert_int_equal(p.control.error >> 32, 3333);
    assert_int_equal((uint8_t)p.control.error, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
    assert_true(failed > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_that_run_apart),
        cmocka_unit_test(lanes_of_a_queue_that_fails),
    };

    return run_limited(tests, argc, argv);
}
