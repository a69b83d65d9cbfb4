/* SPDX-License-Identifier: Apache-2.0 */
/* See kernels.h. This file is compiled twice: `make ptx` has clang make kernels.ptx of it, as CUDA; for a CPU
 * it is C. In both a function here is the code of a warp or of a block (warp.h). */
#include "gpu/warp.h"

#include "consistency/digest.h"
#include "consistency/page.h"
#include "gpu/demand_device.h"

#if !GAIA_PER_LANE
#include <errno.h>
#include <string.h>

#include "gpu/kernels.h"
#endif

#define PAGE_QUADS (GAIA_PAGE_SIZE / sizeof(struct gaia_quad))
#define LANE_QUADS (PAGE_QUADS / GAIA_LANES)

/* --- XXH3-128 of a page ---
 *
 * XXH3 has 8 sums of 64 bits and goes through the bytes in stripes of 64, one word for each sum; after each
 * block of 16 stripes it scrambles the sums. Within a block the order of additions is free. So 4 lanes take a
 * stripe, 2 words each, 8 stripes are taken at once, and a block is two loads of each lane. A page is 4
 * blocks exactly; the last stripe is the only odd one: it has a key of its own, and nothing is scrambled
 * after it. */

#define STRIPE_LANES 4u /* a lane has words 2 * pair and 2 * pair + 1 of a stripe: pair = lane % 4 */
#define BLOCKS 4u
#define BLOCK_QUADS (PAGE_QUADS / BLOCKS)

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u

/* XXH3's default secret, in words. */
#define SECRET_SIZE 192u
GAIA_CONSTANT uint64_t secret[SECRET_SIZE / 8] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
    0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
    0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
    0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
};
GAIA_CONSTANT uint64_t start[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                   PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

/* The two words of the secret from this byte on. */
GAIA_DEVICE struct gaia_quad secret_at(uint32_t byte)
{
    uint32_t word = byte / 8, shift = byte % 8 * 8;
    struct gaia_quad key = {secret[word], secret[word + 1]};

    if (shift) {
        key.first = key.first >> shift | key.second << (64 - shift);
        key.second = key.second >> shift | secret[word + 2] << (64 - shift);
    }
    return key;
}

/* A lane's part of the secret, the same for every page. */
struct keys {
    struct gaia_quad stripe[2]; /* for the two stripes of a block that the lane has words of */
    struct gaia_quad last;      /* for the second of them in the last block */
    struct gaia_quad scramble;
    struct gaia_quad low;
    struct gaia_quad high;
};

GAIA_DEVICE struct keys keys_of(uint32_t lane)
{
    uint32_t stripe = lane / STRIPE_LANES, pair = lane % STRIPE_LANES * 16;
    struct keys keys;

    keys.stripe[0] = secret_at(stripe * 8 + pair);
    keys.stripe[1] = secret_at((stripe + 8) * 8 + pair);
    keys.last = stripe == 7 ? secret_at(SECRET_SIZE - 64 - 7 + pair) : keys.stripe[1];
    keys.scramble = secret_at(SECRET_SIZE - 64 + pair);
    keys.low = secret_at(11 + pair);
    keys.high = secret_at(SECRET_SIZE - 64 - 11 + pair);
    return keys;
}

/* Adds a lane's two words of a stripe to its two sums. */
GAIA_DEVICE void add_words(uint64_t *even, uint64_t *odd, struct gaia_quad words, struct gaia_quad key)
{
    uint64_t first = words.first ^ key.first, second = words.second ^ key.second;

    *even += (uint64_t)(uint32_t)first * (first >> 32) + words.second;
    *odd += (uint64_t)(uint32_t)second * (second >> 32) + words.first;
}

GAIA_DEVICE uint64_t scrambled(uint64_t sum, uint64_t key)
{
    return (sum ^ sum >> 47 ^ key) * PRIME32_1;
}

GAIA_DEVICE uint64_t folded(uint64_t even, uint64_t odd, struct gaia_quad key)
{
    unsigned __int128 product = (unsigned __int128)(even ^ key.first) * (odd ^ key.second);

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

GAIA_DEVICE uint64_t avalanche(uint64_t h)
{
    h = (h ^ h >> 37) * 0x165667919E3779F9u;
    return h ^ h >> 32;
}

/* The digest of a page, in every lane. */
GAIA_DEVICE void hash_page(const struct keys keys[GAIA_SLOTS], const struct gaia_quad *page,
                           struct gaia_digest out[GAIA_SLOTS])
{
    uint64_t even[GAIA_SLOTS], odd[GAIA_SLOTS], block_even[GAIA_SLOTS], block_odd[GAIA_SLOTS];

    GAIA_EACH_LANE(s)
    {
        even[s] = start[gaia_lane_of(s) % STRIPE_LANES * 2];
        odd[s] = start[gaia_lane_of(s) % STRIPE_LANES * 2 + 1];
    }
    GAIA_UNROLLED
    for (uint32_t block = 0; block < BLOCKS; block++) {
        bool is_last = block == BLOCKS - 1;

        GAIA_EACH_LANE(s)
        {
            const struct gaia_quad *words = page + block * BLOCK_QUADS + gaia_lane_of(s);

            block_even[s] = block_odd[s] = 0;
            add_words(&block_even[s], &block_odd[s], gaia_quad_load(words), keys[s].stripe[0]);
            add_words(&block_even[s], &block_odd[s], gaia_quad_load(words + GAIA_LANES),
                      is_last ? keys[s].last : keys[s].stripe[1]);
        }
        gaia_warp_sum(block_even, GAIA_ALL_LANES & ~(STRIPE_LANES - 1));
        gaia_warp_sum(block_odd, GAIA_ALL_LANES & ~(STRIPE_LANES - 1));
        GAIA_EACH_LANE(s)
        {
            even[s] += block_even[s];
            odd[s] += block_odd[s];
            if (!is_last) {
                even[s] = scrambled(even[s], keys[s].scramble.first);
                odd[s] = scrambled(odd[s], keys[s].scramble.second);
            }
        }
    }

    uint64_t low[GAIA_SLOTS], high[GAIA_SLOTS];

    GAIA_EACH_LANE(s)
    {
        low[s] = folded(even[s], odd[s], keys[s].low);
        high[s] = folded(even[s], odd[s], keys[s].high);
    }
    gaia_warp_sum(low, STRIPE_LANES - 1);
    gaia_warp_sum(high, STRIPE_LANES - 1);
    GAIA_EACH_LANE(s)
    {
        out[s].low = avalanche(low[s] + GAIA_PAGE_SIZE * PRIME64_1);
        out[s].high = avalanche(high[s] + ~(GAIA_PAGE_SIZE * PRIME64_2));
    }
}

GAIA_DEVICE void block_keys(struct keys keys[GAIA_SLOTS])
{
    GAIA_EACH_LANE(s)
    keys[s] = keys_of(gaia_lane_of(s));
}

GAIA_DEVICE void hash_pages(struct gaia_grid grid, const void *base, uint64_t count, struct gaia_digest *out)
{
    const struct gaia_quad *quads = (const struct gaia_quad *)base;
    struct keys keys[GAIA_SLOTS];

    block_keys(keys);
    GAIA_EACH_WARP(grid, warp)
    for (uint64_t page = (uint64_t)grid.block * grid.warps + warp; page < count;
         page += (uint64_t)grid.blocks * grid.warps) {
        struct gaia_digest digest[GAIA_SLOTS];

        hash_page(keys, quads + page * PAGE_QUADS, digest);
        GAIA_EACH_LANE(s)
        if (gaia_lane_of(s) == 0)
            out[page] = digest[s];
    }
}

/* --- which pages a kernel modified --- */

/* The bits of a word of 32 pages that this warp looks at: every grid.warps-th. */
GAIA_DEVICE uint32_t modified_of_warp(struct gaia_grid grid, uint32_t warp,
                                      const struct keys keys[GAIA_SLOTS], const struct gaia_quad *pages,
                                      const struct gaia_digest *granted, uint32_t consider)
{
    uint32_t bits = 0;

    for (uint32_t i = warp; i < 32; i += grid.warps) {
        struct gaia_digest digest[GAIA_SLOTS];

        if (!(consider >> i & 1))
            continue;
        hash_page(keys, pages + i * PAGE_QUADS, digest);
        if (digest[0].low != granted[i].low || digest[0].high != granted[i].high)
            bits |= (uint32_t)1 << i;
    }
    return bits;
}

GAIA_DEVICE void add_to(uint32_t *total, uint32_t count)
{
#if GAIA_ON_GPU
    asm volatile("red.global.add.u32 [%0], %1;" ::"l"(total), "r"(count) : "memory");
#else
    __atomic_fetch_add(total, count, __ATOMIC_RELAXED);
#endif
}

/* A word of the bitmap belongs to a block, and its 32 pages to the warps of the block. */
GAIA_DEVICE void find_modified(struct gaia_grid grid, const void *base, uint64_t count,
                               const struct gaia_digest *granted, const uint32_t *consider,
                               uint32_t *modified, uint32_t *total)
{
    GAIA_BLOCK_SHARED uint32_t found[GAIA_WARPS_MAX];
    const struct gaia_quad *quads = (const struct gaia_quad *)base;
    struct keys keys[GAIA_SLOTS];

    block_keys(keys);
    for (uint64_t word = grid.block; word < (count + 31) / 32; word += grid.blocks) {
        uint32_t here = count - word * 32 < 32 ? ((uint32_t)1 << count % 32) - 1 : GAIA_ALL_LANES;
        uint32_t bits = 0;

        GAIA_EACH_WARP(grid, warp)
        found[warp] = modified_of_warp(grid, warp, keys, quads + word * 32 * PAGE_QUADS, granted + word * 32,
                                       consider[word] & here);
        gaia_block_barrier();
        for (uint32_t warp = 0; warp < grid.warps; warp++)
            bits |= found[warp];
        gaia_block_barrier(); /* found is free again */
        if (gaia_is_first_of_block()) {
            modified[word] = bits;
            if (bits)
                add_to(total, gaia_bits_count(bits));
        }
    }
}

#define RAISED_AFTER 8u /* pages: all warps look at the one flag */

/* Whether one of the warps has found something, for all lanes the same. */
GAIA_DEVICE bool is_raised(const uint32_t *flag)
{
    uint32_t value = 0;

    if (gaia_leads(GAIA_ALL_LANES))
        value = *(const volatile uint32_t *)flag;
    return gaia_share(GAIA_ALL_LANES, 0, value) != 0;
}

/* Who has granted them may change digests meanwhile: lanes may see different ones, so that they must not do
 * different things for it while others wait for them. */
GAIA_DEVICE void any_modified(struct gaia_grid grid, const void *base, uint64_t first, uint64_t count,
                              const struct gaia_digest *granted, uint64_t chunk, uint64_t room, uint32_t *any)
{
    const struct gaia_quad *quads = (const struct gaia_quad *)base;
    struct keys keys[GAIA_SLOTS];

    block_keys(keys);
    GAIA_EACH_WARP(grid, warp)
    for (uint64_t i = (uint64_t)grid.block * grid.warps + warp, turn = 0; i < count;
         i += (uint64_t)grid.blocks * grid.warps, turn++) {
        uint32_t page = (uint32_t)(first + i), pages = (uint32_t)chunk;
        struct gaia_digest digest[GAIA_SLOTS], with;

        if (turn % RAISED_AFTER == 0 && is_raised(any))
            break;
        with = granted[page / pages * room + page % pages];
        hash_page(keys, quads + page * PAGE_QUADS, digest);
        GAIA_EACH_LANE(s)
        if (gaia_lane_of(s) == 0 && (with.low | with.high) &&
            (digest[s].low != with.low || digest[s].high != with.high))
            *(volatile uint32_t *)any = 1;
    }
}

/* --- bytes of pages --- */

GAIA_DEVICE void copy_page(struct gaia_quad *to, const struct gaia_quad *from)
{
    GAIA_EACH_LANE(s)
    {
        uint32_t at = gaia_lane_of(s);

        /* Four on their way before the first is needed: in variables, as clang would put an array into
         * memory. */
        GAIA_UNROLLED
        for (uint32_t i = 0; i < LANE_QUADS; i += 4, at += 4 * GAIA_LANES) {
            struct gaia_quad a = gaia_quad_load(from + at), b = gaia_quad_load(from + at + GAIA_LANES);
            struct gaia_quad c = gaia_quad_load(from + at + 2 * GAIA_LANES),
                             d = gaia_quad_load(from + at + 3 * GAIA_LANES);

            gaia_quad_store(to + at, a);
            gaia_quad_store(to + at + GAIA_LANES, b);
            gaia_quad_store(to + at + 2 * GAIA_LANES, c);
            gaia_quad_store(to + at + 3 * GAIA_LANES, d);
        }
    }
}

GAIA_DEVICE void gather(struct gaia_grid grid, const void *base, const uint32_t *pages, uint64_t count,
                        void *staging)
{
    GAIA_EACH_WARP(grid, warp)
    for (uint64_t i = (uint64_t)grid.block * grid.warps + warp; i < count;
         i += (uint64_t)grid.blocks * grid.warps)
        copy_page((struct gaia_quad *)staging + i * PAGE_QUADS,
                  (const struct gaia_quad *)base + pages[i] * PAGE_QUADS);
}

GAIA_DEVICE void scatter(struct gaia_grid grid, void *base, const uint32_t *pages, uint64_t count,
                         const void *staging)
{
    GAIA_EACH_WARP(grid, warp)
    for (uint64_t i = (uint64_t)grid.block * grid.warps + warp; i < count;
         i += (uint64_t)grid.blocks * grid.warps)
        copy_page((struct gaia_quad *)base + pages[i] * PAGE_QUADS,
                  (const struct gaia_quad *)staging + i * PAGE_QUADS);
}

GAIA_DEVICE void zero_pages(struct gaia_grid grid, void *base, const uint32_t *pages, uint64_t count)
{
    const struct gaia_quad zero = {0, 0};

    GAIA_EACH_WARP(grid, warp)
    for (uint64_t i = (uint64_t)grid.block * grid.warps + warp; i < count;
         i += (uint64_t)grid.blocks * grid.warps) {
        struct gaia_quad *page = (struct gaia_quad *)base + pages[i] * PAGE_QUADS;

        GAIA_EACH_LANE(s)
        for (uint32_t quad = gaia_lane_of(s); quad < PAGE_QUADS; quad += GAIA_LANES)
            gaia_quad_store(page + quad, zero);
    }
}

/* Only bytes that differ between old and fresh are stored: what somebody else stores to the others meanwhile
 * stays. */
GAIA_DEVICE void patch_word(uint64_t *at, uint64_t old, uint64_t fresh)
{
    volatile uint8_t *bytes = (volatile uint8_t *)at;

    for (uint32_t i = 0; i < sizeof *at; i++)
        if ((old ^ fresh) >> i * 8 & 0xff)
            bytes[i] = (uint8_t)(fresh >> i * 8);
}

GAIA_DEVICE void patch_quad(struct gaia_quad *at, struct gaia_quad old, struct gaia_quad fresh)
{
    if (old.first != fresh.first)
        patch_word(&at->first, old.first, fresh.first);
    if (old.second != fresh.second)
        patch_word(&at->second, old.second, fresh.second);
}

/* What the pages were granted with is, from now on, the fresh bytes: not what they are by then. */
GAIA_DEVICE void patch(struct gaia_grid grid, void *base, const uint32_t *pages, uint64_t count,
                       const void *old, const void *fresh, struct gaia_digest *granted)
{
    struct keys keys[GAIA_SLOTS];

    block_keys(keys);
    GAIA_EACH_WARP(grid, warp)
    for (uint64_t i = (uint64_t)grid.block * grid.warps + warp; i < count;
         i += (uint64_t)grid.blocks * grid.warps) {
        struct gaia_quad *page = (struct gaia_quad *)base + pages[i] * PAGE_QUADS;
        const struct gaia_quad *before = (const struct gaia_quad *)old + i * PAGE_QUADS;
        const struct gaia_quad *after = (const struct gaia_quad *)fresh + i * PAGE_QUADS;
        struct gaia_digest digest[GAIA_SLOTS];

        GAIA_EACH_LANE(s)
        for (uint32_t quad = gaia_lane_of(s); quad < PAGE_QUADS; quad += GAIA_LANES)
            patch_quad(page + quad, gaia_quad_load(before + quad), gaia_quad_load(after + quad));
        if (!granted)
            continue;
        hash_page(keys, after, digest);
        GAIA_EACH_LANE(s)
        if (gaia_lane_of(s) == 0)
            granted[pages[i]] = digest[s];
    }
}

/* --- demand mappings, between the program's kernels --- */

/* Lanes look at frames, 32 at a time, and a warp gives what one of them has found. Neighbours, which were
 * often stored to together, are different warps'. */
GAIA_DEVICE void demand_flush(struct gaia_grid grid, const struct gaia_demand *demand)
{
    uint64_t warps = (uint64_t)grid.blocks * grid.warps;

    GAIA_EACH_WARP(grid, warp)
    for (uint64_t first = (uint64_t)grid.block * grid.warps + warp; first < demand->frames_count;
         first += warps * GAIA_LANES) {
        bool stored[GAIA_SLOTS];
        uint32_t unit;

        GAIA_EACH_LANE(s)
        {
            uint64_t frame = first + gaia_lane_of(s) * warps;

            stored[s] = frame < demand->frames_count && gaia_stored_in(demand, (uint32_t)frame, &unit) != 0;
        }
        for (uint32_t left = gaia_ballot(GAIA_ALL_LANES, stored); left; left &= left - 1)
            gaia_warp_flush(demand, GAIA_ALL_LANES, (uint32_t)(first + gaia_first_lane(left) * warps));
    }
}

/* A lane drops a unit by itself; what was stored to, a warp. That was given before, as a rule. */
GAIA_DEVICE void demand_drop(struct gaia_grid grid, const struct gaia_demand *demand, uint64_t first,
                             uint64_t count)
{
    GAIA_EACH_WARP(grid, warp)
    for (uint64_t at = ((uint64_t)grid.block * grid.warps + warp) * GAIA_LANES; at < count;
         at += (uint64_t)grid.blocks * grid.warps * GAIA_LANES) {
        bool stored[GAIA_SLOTS];

        GAIA_EACH_LANE(s)
        {
            uint64_t i = at + gaia_lane_of(s);

            stored[s] = i < count && gaia_drop_clean(demand, (uint32_t)(first + i));
        }
        for (uint32_t left = gaia_ballot(GAIA_ALL_LANES, stored); left; left &= left - 1)
            gaia_warp_drop(demand, GAIA_ALL_LANES, (uint32_t)(first + at + gaia_first_lane(left)));
    }
}

/* --- the entries --- */

#if GAIA_PER_LANE

GAIA_KERNEL gaia_hash_pages(const void *base, uint64_t count, struct gaia_digest *out)
{
    hash_pages(gaia_grid_here(), base, count, out);
}

GAIA_KERNEL gaia_find_modified(const void *base, uint64_t count, const struct gaia_digest *granted,
                               const uint32_t *consider, uint32_t *modified, uint32_t *total)
{
    find_modified(gaia_grid_here(), base, count, granted, consider, modified, total);
}

GAIA_KERNEL gaia_any_modified(const void *base, uint64_t first, uint64_t count,
                              const struct gaia_digest *granted, uint64_t chunk, uint64_t room, uint32_t *any)
{
    any_modified(gaia_grid_here(), base, first, count, granted, chunk, room, any);
}

GAIA_KERNEL gaia_gather(const void *base, const uint32_t *pages, uint64_t count, void *staging)
{
    gather(gaia_grid_here(), base, pages, count, staging);
}

GAIA_KERNEL gaia_scatter(void *base, const uint32_t *pages, uint64_t count, const void *staging)
{
    scatter(gaia_grid_here(), base, pages, count, staging);
}

GAIA_KERNEL gaia_zero_pages(void *base, const uint32_t *pages, uint64_t count)
{
    zero_pages(gaia_grid_here(), base, pages, count);
}

GAIA_KERNEL gaia_patch(void *base, const uint32_t *pages, uint64_t count, const void *old, const void *fresh,
                       struct gaia_digest *granted)
{
    patch(gaia_grid_here(), base, pages, count, old, fresh, granted);
}

GAIA_KERNEL gaia_demand_flush(const struct gaia_demand *demand)
{
    demand_flush(gaia_grid_here(), demand);
}

GAIA_KERNEL gaia_demand_drop(const struct gaia_demand *demand, uint64_t first, uint64_t count)
{
    demand_drop(gaia_grid_here(), demand, first, count);
}

#else

#define POINTER(i) (*(void *const *)arguments[i])
#define NUMBER(i) (*(const uint64_t *)arguments[i])

static void run_hash_pages(struct gaia_grid grid, void *const *arguments)
{
    hash_pages(grid, POINTER(0), NUMBER(1), POINTER(2));
}

static void run_find_modified(struct gaia_grid grid, void *const *arguments)
{
    find_modified(grid, POINTER(0), NUMBER(1), POINTER(2), POINTER(3), POINTER(4), POINTER(5));
}

static void run_any_modified(struct gaia_grid grid, void *const *arguments)
{
    any_modified(grid, POINTER(0), NUMBER(1), NUMBER(2), POINTER(3), NUMBER(4), NUMBER(5), POINTER(6));
}

static void run_gather(struct gaia_grid grid, void *const *arguments)
{
    gather(grid, POINTER(0), POINTER(1), NUMBER(2), POINTER(3));
}

static void run_scatter(struct gaia_grid grid, void *const *arguments)
{
    scatter(grid, POINTER(0), POINTER(1), NUMBER(2), POINTER(3));
}

static void run_zero_pages(struct gaia_grid grid, void *const *arguments)
{
    zero_pages(grid, POINTER(0), POINTER(1), NUMBER(2));
}

static void run_patch(struct gaia_grid grid, void *const *arguments)
{
    patch(grid, POINTER(0), POINTER(1), NUMBER(2), POINTER(3), POINTER(4), POINTER(5));
}

static void run_demand_flush(struct gaia_grid grid, void *const *arguments)
{
    demand_flush(grid, POINTER(0));
}

static void run_demand_drop(struct gaia_grid grid, void *const *arguments)
{
    demand_drop(grid, POINTER(0), NUMBER(1), NUMBER(2));
}

const struct gaia_kernel *gaia_kernel_find(const char *name)
{
    static const struct gaia_kernel kernels[] = {
        {"gaia_hash_pages", 3, run_hash_pages},
        {"gaia_find_modified", 6, run_find_modified},
        {"gaia_gather", 4, run_gather},
        {"gaia_scatter", 4, run_scatter},
        {"gaia_zero_pages", 3, run_zero_pages},
        {"gaia_demand_flush", 1, run_demand_flush},
        {"gaia_demand_drop", 3, run_demand_drop},
        {"gaia_patch", 6, run_patch},
        {"gaia_any_modified", 7, run_any_modified},
    };

    for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    return NULL;
}

int gaia_kernel_cpu(const char *name, void *const *arguments, unsigned blocks, unsigned threads)
{
    const struct gaia_kernel *kernel = gaia_kernel_find(name);
    struct gaia_grid grid = {0, blocks, threads / GAIA_LANES};

    if (!kernel)
        return -ENOENT;
    if (!blocks || !threads || threads % GAIA_LANES || threads > GAIA_WARPS_MAX * GAIA_LANES)
        return -EINVAL;
    for (; grid.block < blocks; grid.block++)
        kernel->run(grid, arguments);
    return 0;
}

#endif
