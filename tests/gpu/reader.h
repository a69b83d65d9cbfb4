/* SPDX-License-Identifier: Apache-2.0 */
/* Memory to read from over a NIC that is none (nic.h), and warps that do: threads, each with frames of its
 * own. */
#ifndef GAIAFS_TESTS_GPU_READER_H
#define GAIAFS_TESTS_GPU_READER_H

#include "tests/gpu/nic.h"

#define FRAME_SIZE 4096u
#define WARPS_MAX 16u
#define POISON 0xa5

/* A NIC with memory on its other side, and frames on this one. */
struct machine {
    nic device;
    std::vector<uint8_t> far;
    std::vector<uint8_t> frames;
    uint32_t rkey, lkey;

    explicit machine(uint64_t seed, size_t far_bytes = 1 << 20)
        : device(seed), far(far_bytes), frames((size_t)WARPS_MAX * GAIA_LANES * FRAME_SIZE)
    {
        random_numbers random{seed};

        for (uint8_t &byte : far)
            byte = (uint8_t)random.next();
        rkey = device.expose(far.data(), far.size());
        lkey = device.enter(frames.data(), frames.size());
    }
    uint8_t *frame(unsigned warp, unsigned lane)
    {
        return frames.data() + ((size_t)warp * GAIA_LANES + lane) * FRAME_SIZE;
    }
    struct gaia_request request(unsigned warp, unsigned lane, uint64_t offset, uint32_t length)
    {
        return {(uint64_t)frame(warp, lane), (uint64_t)far.data() + offset, lkey, rkey, length, 0};
    }
    /* One read of a warp's first lane. */
    uint32_t read(pair &p, unsigned warp, uint64_t offset, uint32_t length = FRAME_SIZE)
    {
        struct gaia_request requests[GAIA_LANES] = {request(warp, 0, offset, length)};

        gaia_warp_read(&p.queue, 1, requests);
        return requests[0].error;
    }
    bool holds(unsigned warp, unsigned lane, uint64_t offset, uint32_t length = FRAME_SIZE)
    {
        return memcmp(frame(warp, lane), far.data() + offset, length) == 0;
    }
};

/* How often a warp's reads ended how. */
struct ends {
    uint64_t good = 0, failed = 0, silent = 0, other = 0;

    void add(uint32_t error)
    {
        good += error == 0;
        failed += error == GAIA_REQUEST_E_IO;
        silent += error == GAIA_REQUEST_E_SILENT;
        other += error && error != GAIA_REQUEST_E_IO && error != GAIA_REQUEST_E_SILENT;
    }
    void add(const ends &more)
    {
        good += more.good;
        failed += more.failed;
        silent += more.silent;
        other += more.other;
    }
};

/* A warp: reads into its frames, and looks at each byte that came, and at the one behind. */
class reader
{
  public:
    ends total;

    reader(machine &m, unsigned number, uint64_t seed) : m_(m), number_(number), random_{seed}
    {
    }
    /* Over any of the queues; longest: bytes of a read. */
    void play(uint64_t reads, uint32_t longest)
    {
        uint64_t n = 0;

        while (n < reads && !wrongs) {
            pair &p = *m_.device.pairs[random_.below(m_.device.pairs.size())];
            uint32_t mask = random_.below(2) ? 1u << random_.below(32) : (uint32_t)random_.next();

            prepare(mask, longest);
            gaia_warp_read(&p.queue, mask, requests_);
            n += check(mask);
        }
    }
    /* One read a turn, until it fails. */
    void play_to_the_end(pair &p)
    {
        while (!total.failed && !total.silent && !total.other && !wrongs) {
            uint32_t mask = (uint32_t)random_.next() & 0xff;

            prepare(mask, FRAME_SIZE);
            gaia_warp_read(&p.queue, mask, requests_);
            (void)check(mask);
        }
    }

  private:
    machine &m_;
    unsigned number_;
    random_numbers random_;
    struct gaia_request requests_[GAIA_LANES];

    void prepare(uint32_t mask, uint32_t longest)
    {
        for (unsigned lane = 0; lane < GAIA_LANES; lane++) {
            uint32_t length = random_.below(4) ? 1 + (uint32_t)random_.below(longest) : longest;

            requests_[lane] = m_.request(number_, lane, random_.below(m_.far.size() - length), length);
            requests_[lane].error = UINT32_MAX;
            if (mask >> lane & 1)
                memset(m_.frame(number_, lane), POISON, FRAME_SIZE);
        }
    }
    uint64_t check(uint32_t mask)
    {
        uint64_t n = 0;

        for (unsigned lane = 0; lane < GAIA_LANES; lane++) {
            const struct gaia_request &r = requests_[lane];
            const uint8_t *got = m_.frame(number_, lane);

            if (!(mask >> lane & 1)) {
                EXPECT(r.error == UINT32_MAX, "lane %u did not ask", lane);
                continue;
            }
            n++;
            total.add(r.error);
            if (r.error)
                continue;
            EXPECT(!memcmp(got, (const void *)r.from, r.length), "warp %u, lane %u: other bytes", number_,
                   lane);
            EXPECT(r.length == FRAME_SIZE || got[r.length] == POISON, "warp %u, lane %u: a byte too many",
                   number_, lane);
        }
        return n;
    }
};

#endif
