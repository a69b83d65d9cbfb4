/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of demand paging that take no hold of their unit but look at its word twice (gpu/gaia_device.cuh),
 * and what happens between the two looks. */
#ifndef GAIAFS_TESTS_GPU_LOOKS_H
#define GAIAFS_TESTS_GPU_LOOKS_H

#include "tests/gpu/lockstep.h"

#include "tests/gpu/demand_world.h"
#include "tests/gpu/runner.h"

#define MINE 0x11111111u   /* the first element of unit 0 */
#define OTHERS 0x22222222u /* that of unit 1 */

/* Lane 0 loads the first element of unit 0, which is in the only frame (with two, unit 1 is in the other
 * one), referenced, and something happens after its first or second look. Lane 1 does something beside. */
class looks
{
  public:
    world w;
    gaia_view<uint32_t> view;
    unsigned count = 0; /* of looks */

    explicit looks(uint32_t frames = 1) : w(options(frames)), view(w.view<uint32_t>())
    {
        run([&] {
            view.store(at(1), OTHERS);
            view.store(at(0), MINE);
            if (frames > 1)
                (void)view.load(at(1));
            (void)view.load(at(0));
            EXPECT(word() & GAIA_DEMAND_REFERENCED, "the word is %llx", (unsigned long long)word());
        });
        count = 0;
    }
    static uint64_t at(uint64_t unit)
    {
        return unit * 1024;
    }
    uint64_t word(uint64_t unit = 0) const
    {
        return gaia_load_relaxed_gpu64(&w.demand.table[unit]);
    }
    /* The element's place in the frame. */
    uint32_t *place() const
    {
        return (uint32_t *)(void *)w.demand.frames;
    }
    uint32_t load(
        std::function<void(unsigned)> happens, std::function<void()> beside = [] {})
    {
        uint32_t value = 0;

        happens_ = happens;
        run([&] { value = view.load(at(0)); }, beside);
        happens_ = nullptr;
        return value;
    }
    /* Several at once. */
    template <uint32_t N>
    void load_many(const uint64_t (&index)[N], uint32_t (&values)[N], std::function<void(unsigned)> happens)
    {
        count = 0;
        happens_ = happens;
        run([&] { view.load_many(index, values); });
        happens_ = nullptr;
    }
    void run(
        std::function<void()> one, std::function<void()> beside = [] {})
    {
        lockstep block(1, seed);

        block.between_looks = [this](uint32_t look) {
            std::function<void(unsigned)> happens = happens_;

            if (gaia_hw_lane() != 0)
                return;
            count++;
            happens_ = nullptr; /* not to what it does itself */
            if (happens)
                happens(look);
            happens_ = happens;
        };
        block.run([&] {
            if (gaia_hw_lane() == 0)
                one();
            else if (gaia_hw_lane() == 1)
                beside();
        });
    }

  private:
    std::function<void(unsigned)> happens_;

    static world_options options(uint32_t frames)
    {
        world_options options;

        options.units = 4;
        options.frames = frames;
        return options;
    }
};

#endif
