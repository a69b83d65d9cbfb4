/* SPDX-License-Identifier: Apache-2.0 */
/* Code of a warp in one source for a GPU and for a CPU. What differs between the lanes of a warp is an array
 * of GAIA_SLOTS: on a GPU each lane has a slot of its own, in a register; on a CPU one thread is the whole
 * warp and has all 32. So GAIA_EACH_LANE() is no loop on a GPU, and what lanes tell each other is a shuffle
 * there and a loop here. Compiles as CUDA (clang, nvcc) for sm_70 and later, and as C11 or C++ for a CPU.
 *
 * With GAIA_LOCKSTEP defined the code is what a GPU gets, a slot a lane, but for the instructions themselves:
 * whoever includes this has defined the gaia_hw_* below (tests/gpu/lockstep.h). */
#ifndef GAIAFS_GPU_WARP_H
#define GAIAFS_GPU_WARP_H

#include <stdbool.h>
#include <stdint.h>

#define GAIA_LANES 32u
#define GAIA_ALL_LANES 0xffffffffu
#define GAIA_WARPS_MAX 32u /* in a block */

#if defined(__CUDACC__) || defined(__CUDA__)
#define GAIA_ON_GPU 1
#else
#define GAIA_ON_GPU 0
#endif

/* GAIA_PER_LANE: a lane is a thread. */
#if GAIA_ON_GPU || defined(GAIA_LOCKSTEP)
#define GAIA_PER_LANE 1
#define GAIA_SLOTS 1u
#else
#define GAIA_PER_LANE 0
#define GAIA_SLOTS 32u
#endif

#if GAIA_ON_GPU && defined(__clang__)
/* No header of the toolkit is needed for these. */
#define GAIA_DEVICE __attribute__((device, always_inline)) static inline
#define GAIA_DEVICE_CALL __attribute__((device, noinline, unused)) static
#define GAIA_CONSTANT __attribute__((constant)) static const
#define GAIA_BLOCK_SHARED __attribute__((shared)) static
#define GAIA_KERNEL extern "C" __attribute__((global)) void
#elif GAIA_ON_GPU
#define GAIA_DEVICE __device__ __forceinline__ static
#define GAIA_DEVICE_CALL __device__ __noinline__ __attribute__((unused)) static
#define GAIA_CONSTANT __constant__ static const
#define GAIA_BLOCK_SHARED __shared__
#define GAIA_KERNEL extern "C" __global__ void
#else
#define GAIA_DEVICE static inline
#define GAIA_DEVICE_CALL __attribute__((noinline, unused)) static
#define GAIA_CONSTANT static const
#if GAIA_PER_LANE
#define GAIA_BLOCK_SHARED static thread_local /* a thread runs a block */
#else
#define GAIA_BLOCK_SHARED
#endif
#define GAIA_KERNEL extern "C" void
#endif
/* A loop of few and known turns, written out on a GPU. */
#if GAIA_ON_GPU
#define GAIA_UNROLLED _Pragma("unroll")
#else
#define GAIA_UNROLLED
#include <sched.h>
#include <time.h>
#endif

/* --- the instructions: sm_70, PTX 6.2 --- */

#if GAIA_ON_GPU

#define GAIA_REGISTER(name, from)                            \
    GAIA_DEVICE uint32_t name(void)                          \
    {                                                        \
        uint32_t value;                                      \
        asm volatile("mov.u32 %0, " from ";" : "=r"(value)); \
        return value;                                        \
    }
GAIA_REGISTER(gaia_hw_thread, "%%tid.x")
GAIA_REGISTER(gaia_hw_lane, "%%laneid")
GAIA_REGISTER(gaia_hw_block, "%%ctaid.x")
GAIA_REGISTER(gaia_hw_blocks, "%%nctaid.x")
GAIA_REGISTER(gaia_hw_block_threads, "%%ntid.x")
#undef GAIA_REGISTER

GAIA_DEVICE void gaia_hw_block_barrier(void)
{
    asm volatile("bar.sync 0;" ::: "memory");
}

GAIA_DEVICE uint32_t gaia_hw_active(void)
{
    uint32_t mask;

    asm volatile("activemask.b32 %0;" : "=r"(mask));
    return mask;
}

GAIA_DEVICE void gaia_hw_sync(uint32_t mask)
{
    asm volatile("bar.warp.sync %0;" ::"r"(mask) : "memory");
}

GAIA_DEVICE uint32_t gaia_hw_shuffle(uint32_t mask, uint32_t value, uint32_t lane)
{
    asm volatile("shfl.sync.idx.b32 %0, %0, %1, 0x1f, %2;" : "+r"(value) : "r"(lane), "r"(mask));
    return value;
}

GAIA_DEVICE uint32_t gaia_hw_ballot(uint32_t mask, uint32_t yes)
{
    uint32_t lanes;

    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, %2;\n\t}"
                 : "=r"(lanes)
                 : "r"(yes), "r"(mask));
    return lanes;
}

GAIA_DEVICE uint32_t gaia_hw_match(uint32_t mask, uint64_t value)
{
    uint32_t peers;

    asm volatile("match.any.sync.b64 %0, %1, %2;" : "=r"(peers) : "l"(value), "r"(mask));
    return peers;
}

GAIA_DEVICE void gaia_hw_pause(void)
{
    asm volatile("nanosleep.u32 200;" ::: "memory");
}

GAIA_DEVICE uint64_t gaia_now_ns(void)
{
    uint64_t now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

GAIA_DEVICE uint32_t gaia_bits_count(uint32_t bits)
{
    uint32_t count;

    asm("popc.b32 %0, %1;" : "=r"(count) : "r"(bits));
    return count;
}

/* mask is not 0. */
GAIA_DEVICE uint32_t gaia_first_lane(uint32_t mask)
{
    uint32_t reversed, lane;

    asm("brev.b32 %0, %1;" : "=r"(reversed) : "r"(mask));
    asm("clz.b32 %0, %1;" : "=r"(lane) : "r"(reversed));
    return lane;
}

#else

GAIA_DEVICE uint64_t gaia_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

GAIA_DEVICE uint32_t gaia_bits_count(uint32_t bits)
{
    return (uint32_t)__builtin_popcount(bits);
}

GAIA_DEVICE uint32_t gaia_first_lane(uint32_t mask)
{
    return (uint32_t)__builtin_ctz(mask);
}

#endif

/* In a loop that waits for somebody. On a CPU that one may need the processor, and a thread that waits for
 * long leaves it to others: for a tenth of a millisecond after each so many calls. */
GAIA_DEVICE void gaia_pause(void)
{
#if GAIA_PER_LANE
    gaia_hw_pause();
#else
    static __thread uint32_t pauses;
    const struct timespec nap = {0, 100000};

    if (++pauses % 16)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
#endif
}

/* --- blocks --- */

/* Where a warp is in its launch. */
struct gaia_grid {
    uint32_t block;
    uint32_t blocks;
    uint32_t warps; /* of a block */
};

/* Every warp of a block in turn, or, where a lane is a thread, the one that this is. */
#if GAIA_PER_LANE
#define GAIA_EACH_WARP(grid, warp) \
    for (uint32_t warp = gaia_hw_thread() / GAIA_LANES, once_ = 1; once_; once_ = 0)

GAIA_DEVICE struct gaia_grid gaia_grid_here(void)
{
    struct gaia_grid grid = {gaia_hw_block(), gaia_hw_blocks(), gaia_hw_block_threads() / GAIA_LANES};

    return grid;
}
#else
#define GAIA_EACH_WARP(grid, warp) for (uint32_t warp = 0; warp < (grid).warps; warp++)
#endif

/* One lane of a block says yes. */
GAIA_DEVICE bool gaia_is_first_of_block(void)
{
#if GAIA_PER_LANE
    return gaia_hw_thread() == 0;
#else
    return true;
#endif
}

/* All warps of the block are here, and see what the others wrote to memory of the block before. */
GAIA_DEVICE void gaia_block_barrier(void)
{
#if GAIA_PER_LANE
    gaia_hw_block_barrier();
#endif
}

/* --- lanes --- */

#define GAIA_EACH_LANE(slot) for (uint32_t slot = 0; slot < GAIA_SLOTS; slot++)

/* The lane whose slot this is. */
GAIA_DEVICE uint32_t gaia_lane_of(uint32_t slot)
{
#if GAIA_PER_LANE
    (void)slot;
    return gaia_hw_lane();
#else
    return slot;
#endif
}

/* values becomes in each lane the sum over the lanes whose numbers differ from its own in bits of lane_bits
 * only. All 32 lanes take part. */
GAIA_DEVICE void gaia_warp_sum(uint64_t values[GAIA_SLOTS], uint32_t lane_bits)
{
#if GAIA_PER_LANE
    GAIA_UNROLLED
    for (uint32_t bit = 1; bit < GAIA_LANES; bit <<= 1) {
        uint32_t other = gaia_hw_lane() ^ bit, low, high;

        if (!(lane_bits & bit))
            continue;
        low = gaia_hw_shuffle(GAIA_ALL_LANES, (uint32_t)values[0], other);
        high = gaia_hw_shuffle(GAIA_ALL_LANES, (uint32_t)(values[0] >> 32), other);
        values[0] += (uint64_t)high << 32 | low;
    }
#else
    uint64_t sums[GAIA_LANES] = {0};

    for (uint32_t lane = 0; lane < GAIA_LANES; lane++)
        sums[lane & ~lane_bits] += values[lane];
    for (uint32_t lane = 0; lane < GAIA_LANES; lane++)
        values[lane] = sums[lane & ~lane_bits];
#endif
}

/* A lane has looked at something the first or second time, and is going to see whether it has changed: tests
 * do that here. */
GAIA_DEVICE void gaia_between_looks(uint32_t look)
{
#ifdef GAIA_LOCKSTEP
    gaia_hw_between_looks(look);
#else
    (void)look;
#endif
}

/* --- some of the lanes of a warp: a mask with a bit for each --- */

GAIA_DEVICE bool gaia_has_lane(uint32_t mask, uint32_t slot)
{
    return mask >> gaia_lane_of(slot) & 1;
}

/* Whether the caller acts for the lanes of mask: their first lane, or the thread that is all of them. */
GAIA_DEVICE bool gaia_leads(uint32_t mask)
{
#if GAIA_PER_LANE
    return gaia_hw_lane() == gaia_first_lane(mask);
#else
    (void)mask;
    return true;
#endif
}

/* The lanes that are here. On a CPU: lane 0, as a thread that calls for itself is a warp with one lane. A
 * compiler may merge this with the same call in another branch: then "here" is both branches, and lanes that
 * do something else take part in what the lanes of the mask do together. Code that starts with this must cope
 * with that: see gaia_mates(). */
GAIA_DEVICE uint32_t gaia_active(void)
{
#if GAIA_PER_LANE
    return gaia_hw_active();
#else
    return 1;
#endif
}

/* The lanes of mask wait for each other, and see what the others wrote to memory before. */
GAIA_DEVICE void gaia_warp_sync(uint32_t mask)
{
#if GAIA_PER_LANE
    gaia_hw_sync(mask);
#else
    (void)mask;
#endif
}

/* A value of one lane, for all lanes of mask: on a CPU there is one copy of what all have in common. */
GAIA_DEVICE uint32_t gaia_share(uint32_t mask, uint32_t lane, uint32_t value)
{
#if GAIA_PER_LANE
    return gaia_hw_shuffle(mask, value, lane);
#else
    (void)mask;
    (void)lane;
    return value;
#endif
}

/* The same for values that differ between lanes. */
GAIA_DEVICE uint32_t gaia_share_slot(uint32_t mask, uint32_t lane, const uint32_t values[GAIA_SLOTS])
{
#if GAIA_PER_LANE
    return gaia_hw_shuffle(mask, values[0], lane);
#else
    (void)mask;
    return values[lane];
#endif
}

/* The lanes of mask that say yes. */
GAIA_DEVICE uint32_t gaia_ballot(uint32_t mask, const bool yes[GAIA_SLOTS])
{
#if GAIA_PER_LANE
    return gaia_hw_ballot(mask, yes[0]);
#else
    uint32_t lanes = 0;

    for (uint32_t lane = 0; lane < GAIA_LANES; lane++)
        lanes |= (mask >> lane & yes[lane]) << lane;
    return lanes;
#endif
}

/* For each lane of mask those of mask that have the same value. */
GAIA_DEVICE void gaia_match(uint32_t mask, const uint64_t values[GAIA_SLOTS], uint32_t peers_out[GAIA_SLOTS])
{
#if GAIA_PER_LANE
    peers_out[0] = gaia_hw_match(mask, values[0]);
#else
    for (uint32_t lane = 0; lane < GAIA_LANES; lane++) {
        peers_out[lane] = 0;
        for (uint32_t other = 0; mask >> lane & 1 && other < GAIA_LANES; other++)
            peers_out[lane] |= (mask >> other & (values[other] == values[lane])) << other;
    }
#endif
}

/* The lanes of mask that do the same thing as the caller, which means that they have the same `value`. On a
 * CPU there are no others. */
GAIA_DEVICE uint32_t gaia_mates(uint32_t mask, uint64_t value)
{
#if GAIA_PER_LANE
    return gaia_hw_match(mask, value);
#else
    (void)value;
    return mask;
#endif
}

/* --- bytes --- */

/* What a lane loads or stores at once. Field by field, clang keeps it in registers and makes one access of
 * it. */
struct __attribute__((aligned(16))) gaia_quad {
    uint64_t first;
    uint64_t second;
};

GAIA_DEVICE struct gaia_quad gaia_quad_load(const struct gaia_quad *from)
{
    struct gaia_quad quad = {from->first, from->second};

    return quad;
}

GAIA_DEVICE void gaia_quad_store(struct gaia_quad *to, struct gaia_quad quad)
{
    to->first = quad.first;
    to->second = quad.second;
}

#endif
