/* SPDX-License-Identifier: Apache-2.0 */
/* Device code's view of a file that is mapped on demand: gaia_view<T>. Header only; CUDA C++ (nvcc, or clang
 * -x cuda) for sm_70 and later, and C++ for a CPU, where a thread is a warp.
 *
 *   __global__ void sum(gaia_view<float> view, double *out)
 *   {
 *       double mine = 0;
 *       for (uint64_t i = thread; i < view.size(); i += threads)
 *           mine += view.load(i);
 *       atomicAdd(out, mine);
 *   }
 *
 * load() and store() may be called by any lanes of a warp, for any elements; lanes that touch the same unit
 * share one fault. A load() of what is there waits for the memory three times, and no compiler makes several
 * of them at once. load_many() does so, for any elements (the rest of the loop is as above):
 *
 *       for (; i + 3 * threads < view.size(); i += 4 * threads) {
 *           uint64_t index[] = {i, i + threads, i + 2 * threads, i + 3 * threads};
 *           float some[4];
 *           view.load_many(index, some);
 *           mine += some[0] + some[1] + some[2] + some[3];
 *       }
 *
 * This holds for elements that are there; those that aren't are brought one after the other, as by load().
 * Measured on an H200, with nvcc's kernels and neighbouring lanes that load neighbours, as parts of plain
 * memory's rate: words of 4 bytes 0.22 with load(), 0.48 with four at once, 0.71 with eight; elements of 16
 * bytes 0.54, 0.89 and 0.93. So make elements 16 bytes where you can, and the smaller they are, the more of
 * them load at once.
 *
 * A kernel with a view takes 56 to 96 registers a thread (nvcc 13), and wide elements more; a block of 1024
 * threads has 64 for each. So launch smaller blocks, or declare the kernel with __launch_bounds__(1024), else
 * the launch fails (cudaErrorLaunchOutOfResources). load() then spills little or nothing, load_many() more.
 *
 * For inner loops, a pin keeps a unit where it is and gives a plain pointer to it (for stores use
 * pin_for_stores(), which gives a gaia_pin<float>):
 *
 *       gaia_pin<const float> pin = view.pin(i);
 *       if (pin)
 *           for (uint64_t j = pin.first(); j < pin.end(); j++)
 *               mine += pin[j];
 *
 * In the frame behind that pointer other units were before, perhaps in the same kernel. So load through a pin
 * as from memory that changes while a kernel runs, and not by what takes memory for constant then: __ldg(),
 * ld.global.nc, textures. What reads a pinned unit by another proxy (TMA: cp.async.bulk) needs a
 * fence.proxy.async between the pin and that. Copies that go on by themselves (cp.async, cp.async.bulk,
 * memcpy_async()) must have ended before the pin does, those that only read the unit, too: another unit may
 * be in its frame by then. For copies to the unit cp.async.bulk.wait_group.read does not tell that; without
 * .read it does. Where other threads use a pin's pointer, they and the pin's
 * own lane meet at a barrier before the pin ends.
 *
 * When a touch can't be served, a load gives zeros, a store is not made, and a pin is false: error() says
 * why, after the kernel or in it. No wait is longer than demand.h says. Each pin that is held takes a frame
 * away from everybody: a program that wants more pins at once than there are frames gets
 * GAIA_DEMAND_E_NO_FRAME.
 *
 * Different threads may store to different bytes of a unit at once; stores to the same byte they must order
 * themselves, as in any memory. What was stored reaches the file when the unit is evicted, or at a
 * release. */
#ifndef GAIAFS_GPU_GAIA_DEVICE_CUH
#define GAIAFS_GPU_GAIA_DEVICE_CUH

#include "demand.h"
#include "demand_device.h"
#include "warp.h"

#if GAIA_ON_GPU && defined(__clang__)
#define GAIA_MEMBER __attribute__((device)) inline
#define GAIA_INLINE_MEMBER __attribute__((device, always_inline)) inline
#define GAIA_CALLED_MEMBER __attribute__((device, noinline))
#define GAIA_BOTH __attribute__((host, device)) inline
#elif GAIA_ON_GPU
#define GAIA_MEMBER __device__ inline
#define GAIA_INLINE_MEMBER __device__ __forceinline__
#define GAIA_CALLED_MEMBER __device__ __noinline__
#define GAIA_BOTH __host__ __device__ inline
#else
#define GAIA_MEMBER inline
#define GAIA_INLINE_MEMBER inline
#define GAIA_CALLED_MEMBER
#define GAIA_BOTH inline
#endif

template <typename T> class gaia_view;

/* A hold on the unit of an element, for one lane. It can be moved but not copied, and ends with its scope. */
template <typename T> class gaia_pin
{
  public:
    GAIA_MEMBER gaia_pin() : word_(nullptr), at_(nullptr), first_(0), end_(0)
    {
    }
    GAIA_MEMBER gaia_pin(gaia_pin &&other)
        : word_(other.word_), at_(other.at_), first_(other.first_), end_(other.end_)
    {
        other.at_ = nullptr;
    }
    GAIA_MEMBER gaia_pin &operator=(gaia_pin &&other)
    {
        if (this != &other) {
            unpin();
            word_ = other.word_;
            at_ = other.at_;
            first_ = other.first_;
            end_ = other.end_;
            other.at_ = nullptr;
        }
        return *this;
    }
    gaia_pin(const gaia_pin &) = delete;
    gaia_pin &operator=(const gaia_pin &) = delete;
    GAIA_MEMBER ~gaia_pin()
    {
        unpin();
    }

    GAIA_MEMBER explicit operator bool() const
    {
        return at_ != nullptr;
    }
    /* The elements of the unit: [first(), end()), by their numbers in the mapping. */
    GAIA_MEMBER uint64_t first() const
    {
        return first_;
    }
    GAIA_MEMBER uint64_t end() const
    {
        return end_;
    }
    GAIA_MEMBER T &operator[](uint64_t i) const
    {
        return at_[i - first_];
    }
    /* Where first() is. The pointer is good as long as the pin. */
    GAIA_MEMBER T *data() const
    {
        return at_;
    }
    GAIA_MEMBER void unpin()
    {
        if (at_)
            gaia_let_go(word_, 1);
        at_ = nullptr;
    }

  private:
    template <typename U> friend class gaia_view;

    uint64_t *word_;
    T *at_;
    uint64_t first_, end_;
};

/* T: trivially copyable, its size a power of two, so that no element is in two units. */
template <typename T> class gaia_view
{
    static_assert(sizeof(T) <= 4096 && (sizeof(T) & (sizeof(T) - 1)) == 0, "an element lies in one unit");

  public:
    /* Made by the host and handed to a kernel as an argument. `demand`: the parameters; `on_device`: where
     * the GPU has the same. */
    GAIA_BOTH gaia_view(const struct gaia_demand &demand, const struct gaia_demand *on_device)
        : demand_(on_device), table_(demand.table), frames_(demand.frames), size_(demand.bytes / sizeof(T)),
          unit_shift_(demand.unit_shift), frame_mask_(demand.frame_mask), is_writable_(demand.is_writable)
    {
    }
    /* In elements: those that lie whole in the length that gaia_mmap() was given, wherever the file ends and
     * whatever was unmapped since. */
    GAIA_BOTH uint64_t size() const
    {
        return size_;
    }
    GAIA_INLINE_MEMBER T load(uint64_t i) const
    {
        uint64_t index[GAIA_SLOTS] = {i};
        T value[GAIA_SLOTS];

#if GAIA_PER_LANE
        if (load_unheld(i, value))
            return value[0];
#endif
        load_warp(gaia_active(), index, value);
        return value[0];
    }
    /* Several elements of one lane, in no order: value_out[k] is what load(index[k]) returns, also past the
     * end. Those that are there are loaded at the same time, unless one is past the end: then each is loaded
     * by itself. N is known to the compiler; use 4 or 8 where there are many elements: each takes seven
     * registers or so. Both arrays may be anywhere, and may be the same. (Arrays in memory are not touched
     * between the loads, which would wait for them.) */
    template <uint32_t N>
    GAIA_INLINE_MEMBER void load_many(const uint64_t (&index)[N], T (&value_out)[N]) const
    {
        static_assert(N >= 1 && N <= 32, "a bit for each");
        uint32_t missing = GAIA_ALL_LANES >> (32 - N);
        uint64_t at[N];
        T value[N];

        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            at[k] = index[k];
#if GAIA_PER_LANE
        missing &= ~load_unheld(at, value);
        if (missing) {
            uint64_t slow_at[N];
            T slow_value[N];

            GAIA_UNROLLED
            for (uint32_t k = 0; k < N; k++)
                slow_at[k] = at[k];
            load_missing(*this, missing, slow_at, slow_value);
            GAIA_UNROLLED
            for (uint32_t k = 0; k < N; k++)
                if (missing >> k & 1)
                    value[k] = slow_value[k];
        }
#else
        load_missing(*this, missing, at, value);
#endif
        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            value_out[k] = value[k];
    }
    GAIA_MEMBER void store(uint64_t i, const T &value) const
    {
        uint64_t index[GAIA_SLOTS] = {i};
        T values[GAIA_SLOTS] = {value};

        store_warp(gaia_active(), index, values);
    }
    /* The same for the lanes of a mask; on a CPU this is how a thread is a warp of more than one lane. */
    GAIA_MEMBER void load_warp(uint32_t mask, const uint64_t index[GAIA_SLOTS], T value_out[GAIA_SLOTS]) const
    {
        loads access = {value_out};

        GAIA_EACH_LANE(s)
        if (gaia_has_lane(mask, s))
            value_out[s] = T();
        touch(mask, index, false, false, access);
    }
    GAIA_MEMBER void store_warp(uint32_t mask, const uint64_t index[GAIA_SLOTS],
                                const T value[GAIA_SLOTS]) const
    {
        stores access = {value};

        touch(mask, index, true, false, access);
    }
    GAIA_MEMBER gaia_pin<const T> pin(uint64_t i) const
    {
        return pin_one<const T>(i, false);
    }
    GAIA_MEMBER gaia_pin<T> pin_for_stores(uint64_t i) const
    {
        return pin_one<T>(i, true);
    }
    /* The first failure of any thread's touch since the mapping was made: 0, or an errno, and the first
     * element of the unit that was touched (of a touch past the end: an element past the end). The error
     * stays, even if touches are served again after an acquire. */
    GAIA_MEMBER uint32_t error(uint64_t *element_out = nullptr) const
    {
        uint64_t error = gaia_load_relaxed_gpu64(&demand_->control->error);

        if (element_out)
            *element_out = (error >> 32 << unit_shift_) / sizeof(T);
        return (uint32_t)error;
    }

  private:
    /* What is done with an element that is held, given its slot, its frame, and its place in it. */
    struct loads {
        T *out;
        GAIA_MEMBER void operator()(uint32_t slot, uint8_t *frame, uint64_t offset) const
        {
            out[slot] = *(const T *)(const void *)(frame + offset);
        }
    };
    struct stores {
        const T *in;
        GAIA_MEMBER void operator()(uint32_t slot, uint8_t *frame, uint64_t offset) const
        {
            *(T *)(void *)(frame + offset) = in[slot];
        }
    };
    struct pins {
        uint8_t **out;
        GAIA_MEMBER void operator()(uint32_t slot, uint8_t *frame, uint64_t) const
        {
            out[slot] = frame;
        }
    };

    /* Brings elements by touches, one for each bit of missing. It is a call, with a copy of the view and with
     * arrays of the caller that are for it alone, so that its registers and its memory are not in the way of
     * loops whose loads need no touch. The first touch may have brought what the next ones want. */
    static GAIA_CALLED_MEMBER void load_missing(gaia_view view, uint32_t missing, const uint64_t *index,
                                                T *out)
    {
        for (uint32_t left = missing; left; left &= left - 1) {
            uint32_t k = gaia_first_lane(left);
            uint64_t one[GAIA_SLOTS] = {index[k]};
            T value[GAIA_SLOTS];

#if GAIA_PER_LANE
            if (left != missing && view.load_unheld(index[k], &out[k]))
                continue;
#endif
            view.load_warp(gaia_active(), one, value);
            out[k] = value[0];
        }
    }
    GAIA_MEMBER uint32_t unit_of(uint64_t index) const
    {
        return (uint32_t)(index * sizeof(T) >> unit_shift_);
    }
    GAIA_MEMBER uint64_t offset_of(uint64_t index) const
    {
        return index * sizeof(T) & (((uint64_t)1 << unit_shift_) - 1);
    }
    GAIA_MEMBER uint8_t *frame_at(uint32_t frame) const
    {
        return frames_ + ((uint64_t)frame << unit_shift_);
    }

#if GAIA_PER_LANE
    /* Loads an element of a frame that somebody may be changing. */
    static GAIA_INLINE_MEMBER void load_relaxed(const uint8_t *at, T *out)
    {
        uint32_t words[sizeof(T) < 16 ? 4 : sizeof(T) / 4];
        const uint32_t *from = (const uint32_t *)(const void *)at;

        if (sizeof(T) == 1)
            words[0] = gaia_load_relaxed_gpu8(at);
        else if (sizeof(T) == 2)
            words[0] = gaia_load_relaxed_gpu16((const uint16_t *)(const void *)at);
        else if (sizeof(T) == 4)
            words[0] = gaia_load_relaxed_gpu32(from);
        else if (sizeof(T) == 8)
            gaia_load_relaxed_gpu32x2(from, words);
        else
            for (uint32_t byte = 0; byte < sizeof(T); byte += 16)
                gaia_load_relaxed_gpu32x4(from + byte / 4, words + byte / 4);
        __builtin_memcpy((void *)out, words, sizeof(T));
    }
    /* The same; what this lane does afterwards comes after the loads of all words of the element. */
    static GAIA_INLINE_MEMBER void load_ordered(const uint8_t *at, T *out)
    {
        uint32_t words[4];
        const uint32_t *from = (const uint32_t *)(const void *)at;

        if (sizeof(T) > 16) {
            load_relaxed(at, out);
            gaia_fence_acquire_gpu();
            return;
        }
        if (sizeof(T) == 1)
            words[0] = gaia_load_acquire_gpu8(at);
        else if (sizeof(T) == 2)
            words[0] = gaia_load_acquire_gpu16((const uint16_t *)(const void *)at);
        else if (sizeof(T) == 4)
            words[0] = gaia_load_acquire_gpu32(from);
        else if (sizeof(T) == 8)
            gaia_load_acquire_gpu32x2(from, words);
        else
            gaia_load_acquire_gpu32x4(from, words);
        __builtin_memcpy((void *)out, words, sizeof(T) > 16 ? 16 : sizeof(T));
    }

    /* What a unit's word says at the first look: whether the unit's elements may be loaded without a hold;
     * and at the second: whether what was loaded may be believed. */
    static GAIA_MEMBER bool is_here(uint64_t was)
    {
        const uint64_t here = GAIA_DEMAND_VALID | GAIA_DEMAND_REFERENCED;

        return (was & (here | GAIA_DEMAND_BUSY)) == here;
    }
    static GAIA_MEMBER bool has_stayed(uint64_t was, uint64_t now)
    {
        return ((was ^ now) & ~GAIA_DEMAND_PASSING) == 0;
    }

    /* Loads the element of one lane, which holds nothing: the unit's word, the element, and the word again.
     * The element is believed if the unit has stayed where it was. With holds, hits would wait for their
     * atomic updates of that word: a hold and its end for each warp's load. False: the element must be loaded
     * as touch() does it, as the unit isn't there, or was changing, or its word must be marked by a touch.
     * Lanes do nothing together here; those that have to touch part from the others afterwards.
     *
     * The element isn't too old: the first look acquires, and whoever brought the unit released its word
     * after the bytes. What this thread has stored, or another one that a barrier or a fence has put before
     * it, comes before both loads: that of the word, on which there was a hold at the store, so that no
     * earlier frame is found; and that of the element. (A plain store will do: it is ordered with the load as
     * two accesses of an address by one thread are, or by causality.)
     *
     * The element isn't from what came into the frame later: nobody fills the frame before the unit is marked
     * busy, a fence is between the two, and the stores that fill it are relaxed (gaia_warp_copy_in()). The
     * load of the element acquires: if it has found one of the new bytes, the second look finds the word
     * busy, or as it became later: gone, or brought another time, as its sequence number shows (demand.h says
     * how sure that is).
     *
     * The element doesn't come from the L1, which may have lines of what was in the frame before: all loads
     * have the GPU's scope.
     *
     * If somebody stores to this element meanwhile, under a hold, that race is the program's own. The load
     * has either value, as ever.
     *
     * All this follows from PTX's memory model, which leaves two things open. First, a load may find what was
     * stored through a hold on the unit that came into the frame later: by a plain store (those through a pin
     * are the program's own), from which nothing is acquired. Second, elements of 1 and 2 bytes are loaded
     * while the frame is filled by stores of another size. On GPUs neither matters: that plain store is made
     * in the L2, after its hold was taken there, and the hold after the old unit was made busy; and the
     * second look is made there when the element has arrived. */
    GAIA_INLINE_MEMBER bool load_unheld(uint64_t i, T *out) const
    {
        const uint64_t *word;
        uint64_t was, now;

        if (i >= size_)
            return false;
        word = &table_[unit_of(i)];
        was = gaia_load_acquire_gpu64(word);
        if (!is_here(was))
            return false;
        gaia_between_looks(1);
        load_ordered(frame_at(GAIA_DEMAND_FRAME(was, frame_mask_)) + offset_of(i), out);
        gaia_between_looks(2);
        now = gaia_load_relaxed_gpu64(word); /* behind the element: load_ordered() acquired */
        return has_stayed(was, now);
    }

    /* The same for several elements; returns a bit for each that is believed. All words are looked at, then
     * all elements are loaded, and then all words are looked at again, with a fence between these steps: so
     * the lane waits three times in all, and not three times for each element.
     *
     * What is said above of loads that acquire is true of these, too: a relaxed load followed by a fence, in
     * the order of the program, is PTX's other pattern of an acquire, and one fence serves all loads before
     * it. By the first fence each element is loaded after all words, its own among them. By the second one
     * each word is looked at again after all elements. Each element is believed, or not, by the two looks at
     * its own unit's word; what became of the other units says nothing of it.
     *
     * There is no branch between these loads, else a compiler would let them wait for each other: instead of
     * an element that isn't here, one of the first frame is loaded, and nobody looks at it. */
    template <uint32_t N>
    GAIA_INLINE_MEMBER uint32_t load_unheld(const uint64_t (&index)[N], T (&out)[N]) const
    {
        uint64_t was[N];
        uint32_t unit[N], here = 0, stayed = 0;
        bool is_inside = true;

        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            is_inside &= index[k] < size_;
        if (!is_inside)
            return 0;
        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++) {
            unit[k] = unit_of(index[k]);
            was[k] = gaia_load_relaxed_gpu64(&table_[unit[k]]);
        }
        gaia_fence_acquire_gpu();
        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            here |= (uint32_t)is_here(was[k]) << k;
        if (!here)
            return 0;
        gaia_between_looks(1);
        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++) {
            uint32_t frame = here >> k & 1 ? GAIA_DEMAND_FRAME(was[k], frame_mask_) : 0;

            load_relaxed(frame_at(frame) + offset_of(index[k]), &out[k]);
        }
        gaia_fence_acquire_gpu();
        gaia_between_looks(2);
        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            stayed |= (uint32_t)has_stayed(was[k], gaia_load_relaxed_gpu64(&table_[unit[k]])) << k;
        return here & stayed;
    }
#endif

    /* The lanes of mask whose element exists and may be touched so, and the unit of each. The touches of the
     * others are reported as errors. */
    GAIA_MEMBER uint32_t units_of(uint32_t mask, const uint64_t index[GAIA_SLOTS], bool is_store,
                                  uint32_t unit_out[GAIA_SLOTS]) const
    {
        bool is_fine[GAIA_SLOTS];

        GAIA_EACH_LANE(s)
        {
            bool is_inside = gaia_has_lane(mask, s) && index[s] < size_;

            is_fine[s] = is_inside && (is_writable_ || !is_store);
            unit_out[s] = is_inside ? unit_of(index[s]) : GAIA_DEMAND_FREE;
            if (gaia_has_lane(mask, s) && !is_fine[s])
                gaia_report(demand_, unit_out[s], is_inside ? GAIA_DEMAND_E_ACCESS : GAIA_DEMAND_E_OUTSIDE);
        }
        return gaia_ballot(mask, is_fine);
    }

    /* An address and these bits say what a lane does. */
    static GAIA_MEMBER uint64_t key_of(const void *address, bool is_store, bool is_kept)
    {
        return (uint64_t)(uintptr_t)address | (is_store ? 1 : 0) | (is_kept ? 2 : 0);
    }

    /* Serves the lanes whose units are in frames; each unit is held by the first of the lanes that touch it.
     * Returns the lanes that were served. */
    template <class Access>
    GAIA_MEMBER uint32_t touch_hits(uint32_t mask, uint32_t want, const uint32_t unit[GAIA_SLOTS],
                                    const uint64_t index[GAIA_SLOTS], bool is_store, bool is_kept,
                                    const Access &access) const
    {
        uint32_t peers[GAIA_SLOTS], own[GAIA_SLOTS], frame[GAIA_SLOTS];
        uint64_t keys[GAIA_SLOTS];
        bool is_served[GAIA_SLOTS];

        GAIA_EACH_LANE(s)
        keys[s] = gaia_has_lane(want, s) ? key_of(&table_[unit[s]], is_store, is_kept) : 0;
        gaia_match(mask, keys, peers);
        GAIA_EACH_LANE(s)
        {
            own[s] = GAIA_NO_FRAME;
            if (gaia_has_lane(want, s) && gaia_lane_of(s) == gaia_first_lane(peers[s]))
                (void)gaia_hold(&table_[unit[s]], frame_mask_, is_kept ? gaia_bits_count(peers[s]) : 1,
                                is_store, &own[s]);
        }
        GAIA_EACH_LANE(s)
        {
            frame[s] = GAIA_NO_FRAME;
            if (gaia_has_lane(mask, s))
                frame[s] = gaia_share_slot(mask, gaia_first_lane(peers[s]), own);
            is_served[s] = gaia_has_lane(want, s) && frame[s] != GAIA_NO_FRAME;
        }
        gaia_warp_sync(mask); /* what the first lanes acquired is acquired by all */
        GAIA_EACH_LANE(s)
        if (is_served[s])
            access(s, frame_at(frame[s]), offset_of(index[s]));
        gaia_warp_sync(mask);
        GAIA_EACH_LANE(s)
        if (!is_kept && own[s] != GAIA_NO_FRAME)
            gaia_let_go(&table_[unit[s]], 1);
        return gaia_ballot(mask, is_served);
    }

    /* A touch by the lanes of mask. Lanes of other views or other kinds of touches may be among them
     * (gaia_active() says why): up to the end of the hits all do the same, and then those that belong
     * together part from the others. All lanes together bring one missing unit after the other, and let go of
     * each before the next: a warp that waits for a frame holds none but those that it has pinned. */
    template <class Access>
    GAIA_MEMBER void touch(uint32_t mask, const uint64_t index[GAIA_SLOTS], bool is_store, bool is_kept,
                           const Access &access) const
    {
        uint32_t unit[GAIA_SLOTS], want = units_of(mask, index, is_store, unit), mates;
        uint32_t missing = want & ~touch_hits(mask, want, unit, index, is_store, is_kept, access);

        if (!missing)
            return;
        mates = gaia_mates(mask, key_of(table_, is_store, is_kept));
        missing &= mates;
        while (missing) {
            uint32_t one = gaia_share_slot(mates, gaia_first_lane(missing), unit), group, frame, holds;
            bool is_same[GAIA_SLOTS];

            GAIA_EACH_LANE(s)
            is_same[s] = unit[s] == one;
            group = gaia_ballot(mates, is_same) & missing;
            holds = is_kept ? gaia_bits_count(group) : 1;
            frame = gaia_warp_fault(demand_, mates, one, holds, is_store);
            missing &= ~group;
            if (frame == GAIA_NO_FRAME)
                continue;
            GAIA_EACH_LANE(s)
            if (gaia_has_lane(group, s))
                access(s, frame_at(frame), offset_of(index[s]));
            gaia_warp_sync(mates);
            if (!is_kept && gaia_leads(mates))
                gaia_let_go(&table_[one], 1);
        }
    }

    template <typename P> GAIA_MEMBER gaia_pin<P> pin_one(uint64_t i, bool is_store) const
    {
        uint64_t index[GAIA_SLOTS] = {i}, in_unit = ((uint64_t)1 << unit_shift_) / sizeof(T);
        uint8_t *frame[GAIA_SLOTS] = {nullptr};
        pins access = {frame};
        gaia_pin<P> pin;

        touch(gaia_active(), index, is_store, true, access);
        if (frame[0]) {
            pin.word_ = &table_[i / in_unit];
            pin.at_ = (P *)(void *)frame[0];
            pin.first_ = i / in_unit * in_unit;
            pin.end_ = pin.first_ + in_unit < size_ ? pin.first_ + in_unit : size_;
        }
        return pin;
    }

    const struct gaia_demand *demand_;
    uint64_t *table_;
    uint8_t *frames_;
    uint64_t size_;
    uint32_t unit_shift_, frame_mask_, is_writable_;
};

#endif
