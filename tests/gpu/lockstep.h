/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's block of warps on a CPU, lane by lane: each lane is a coroutine of one thread, and what lanes do
 * together (shuffles, votes, barriers) waits until every lane that the mask names has come to the same place,
 * with the same mask. Which lane goes on is random, so lanes run apart as far as the code lets them: more
 * than on any GPU. Lanes that wait for each other for ever end the program, with a list of what they wait
 * for. Under TSan they are threads to each other, whom only barriers bring together.
 *
 * Include this first: it makes gpu/warp.h give code a slot a lane. */
#ifndef GAIAFS_TESTS_GPU_LOCKSTEP_H
#define GAIAFS_TESTS_GPU_LOCKSTEP_H

#define GAIA_LOCKSTEP

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <sched.h>
#include <ucontext.h>
#include <vector>

#include "base/order.h"

/* Under TSan each lane is a thread of its own to it (a fiber), and a switch orders nothing: only barriers do,
 * and atomics. Shuffles, votes and matches don't, as on a GPU: lanes that see each other's bytes without a
 * barrier between are a race. The lanes' own state is not looked at. */
#ifdef GAIAFS_UNDER_TSAN
#define LOCKSTEP_ORDERS_NOTHING 1u
#define LOCKSTEP_UNSEEN __attribute__((no_sanitize_thread, noinline))
#else
#define __tsan_get_current_fiber() nullptr
#define __tsan_create_fiber(flags) nullptr
#define __tsan_switch_to_fiber(fiber, flags) (void)(fiber)
#define __tsan_acquire(address) (void)(address)
#define __tsan_release(address) (void)(address)
#define LOCKSTEP_UNSEEN
#endif

class lockstep
{
  public:
    enum state { RUNS, PAUSES, DONE, ACTIVE, SYNC, SHUFFLE, BALLOT, MATCH, BARRIER };

    /* The block that this thread runs. */
    static inline thread_local lockstep *now;

    uint32_t block = 0, blocks = 1;
    /* What happens between two looks of a lane at the same thing, if a test says so. */
    std::function<void(uint32_t)> between_looks;

    lockstep(unsigned warps, uint64_t seed) : random_(seed | 1), count_(warps * 32), lanes_(new lane[count_])
    {
        for (size_t i = 0; i < count_; i++) {
            lanes_[i].stack = new char[STACK];
            lanes_[i].fiber = take_fiber();
        }
    }
    ~lockstep()
    {
        std::lock_guard<std::mutex> guard(spare_lock_);

        for (size_t i = 0; i < count_; i++) {
            spare_.push_back(lanes_[i].fiber);
            delete[] lanes_[i].stack;
        }
        delete[] lanes_;
    }
    lockstep(const lockstep &) = delete;
    lockstep &operator=(const lockstep &) = delete;
    /* Runs one block of a kernel to its end. */
    LOCKSTEP_UNSEEN void run(std::function<void()> kernel)
    {
        kernel_ = kernel;
        now = this;
        main_fiber_ = __tsan_get_current_fiber();
        for (lane *one = lanes_; one < lanes_ + count_; one++) {
            one->kind = RUNS;
            __tsan_release(one);
            one->place.has_begun = false;
            getcontext(&one->place.start);
            one->place.start.uc_stack.ss_sp = one->stack;
            one->place.start.uc_stack.ss_size = STACK;
            one->place.start.uc_link = nullptr;
            makecontext(&one->place.start, enter, 0);
        }
        while (step())
            continue;
        for (lane *one = lanes_; one < lanes_ + count_; one++)
            __tsan_acquire(one);
        now = nullptr;
    }
    LOCKSTEP_UNSEEN uint32_t thread() const
    {
        return current_;
    }
    LOCKSTEP_UNSEEN uint32_t threads() const
    {
        return (uint32_t)count_;
    }
    /* What a lane does together with others of its warp, or of its block: its result. */
    LOCKSTEP_UNSEEN uint32_t together(state kind, uint32_t mask, uint64_t value = 0, uint32_t from = 0)
    {
        lane &own = lanes_[current_];
        lane *warp = &lanes_[current_ / 32 * 32];
        uint32_t named = kind == SYNC ? mask : 0;

        own.kind = kind;
        own.mask = mask;
        own.value = value;
        own.from = from;
        if (kind == BARRIER)
            __tsan_release(this);
        if (named)
            __tsan_release(&own.stack);
        __tsan_switch_to_fiber(main_fiber_, LOCKSTEP_ORDERS_NOTHING);
        swap(own.place, main_);
        if (kind == BARRIER)
            __tsan_acquire(this);
        for (; named; named &= named - 1)
            __tsan_acquire(&warp[__builtin_ctz(named)].stack);
        return own.result;
    }
    LOCKSTEP_UNSEEN uint64_t next()
    {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        return random_ ^= random_ << 17;
    }

  private:
    static constexpr size_t STACK = 64 << 10;
    /* Fibers that no lane has. To make one takes TSan longer than most kernels run, and the more there ever
     * were, the longer everything takes it. */
    static inline std::mutex spare_lock_;
    static inline std::vector<void *> spare_;

    LOCKSTEP_UNSEEN static void *take_fiber()
    {
        std::lock_guard<std::mutex> guard(spare_lock_);

        if (spare_.empty())
            return __tsan_create_fiber(0);
        void *fiber = spare_.back();
        spare_.pop_back();
        return fiber;
    }

    /* Where a coroutine goes on: where it left, by the compiler's own setjmp(). swapcontext(), which would
     * do, asks the kernel for the mask of signals each time, a third of all the time that these tests took.
     */
    struct place {
        ucontext_t start;
        void *left[5];
        bool has_begun;
    };

    struct lane {
        struct place place;
        char *stack;
        state kind;
        uint32_t mask, from, result;
        uint64_t value;
        void *fiber;
    };

    uint64_t random_;
    size_t count_;
    lane *lanes_;
    std::function<void()> kernel_;
    place main_ = {{}, {}, true};
    void *main_fiber_ = nullptr;
    uint32_t current_ = 0;

    [[noreturn]] __attribute__((noinline)) LOCKSTEP_UNSEEN static void go_to(place &to)
    {
        if (to.has_begun)
            __builtin_longjmp(to.left, 1);
        to.has_begun = true;
        setcontext(&to.start);
        abort();
    }
    __attribute__((noinline)) LOCKSTEP_UNSEEN static void swap(place &from, place &to)
    {
        if (!__builtin_setjmp(from.left))
            go_to(to);
    }
    LOCKSTEP_UNSEEN static void enter()
    {
        lockstep *self = now;
        lane *own = &self->lanes_[self->current_];

        __tsan_acquire(own);
        self->kernel_();
        __tsan_release(own);
        (void)self->together(DONE, 0);
    }
    /* Lets one lane go on to where it waits; false: all are done. */
    LOCKSTEP_UNSEEN bool step()
    {
        size_t n = count_, at = next() % n;
        bool is_paused = false;

        if (next() % 16 == 0)
            form_group(next() % (n / 32));
        for (size_t i = 0; i < n; i++, at = (at + 1) % n)
            if (lanes_[at].kind == RUNS) {
                resume(at);
                return true;
            }
        for (size_t warp = 0; warp < n / 32; warp++)
            if (form_group(warp))
                return true;
        for (lane *one = lanes_; one < lanes_ + count_; one++)
            if (one->kind == PAUSES) {
                one->kind = RUNS;
                is_paused = true;
            }
        if (is_paused) {
            sched_yield();
            return true;
        }
        for (const lane *one = lanes_; one < lanes_ + count_; one++)
            if (one->kind != DONE)
                stuck();
        return false;
    }
    /* At once, or when everybody else has come to where they wait: what one lane has not done yet must not
     * matter to the others. */
    LOCKSTEP_UNSEEN void go_on(lane &one)
    {
        one.kind = next() % 8 ? RUNS : PAUSES;
    }
    LOCKSTEP_UNSEEN void resume(size_t at)
    {
        current_ = (uint32_t)at;
        lanes_[at].kind = RUNS;
        __tsan_switch_to_fiber(lanes_[at].fiber, LOCKSTEP_ORDERS_NOTHING);
        swap(main_, lanes_[at].place);
        if (lanes_[at].kind == BARRIER)
            barrier();
        else if (lanes_[at].kind >= SYNC)
            meet(at);
    }
    /* Some of the lanes of a warp that asked who is with them are a group from now on. */
    LOCKSTEP_UNSEEN bool form_group(size_t warp)
    {
        uint32_t asking = 0, group;

        for (unsigned i = 0; i < 32; i++)
            asking |= (uint32_t)(lanes_[warp * 32 + i].kind == ACTIVE) << i;
        if (!asking)
            return false;
        group = next() % 2 ? asking : asking & (uint32_t)next();
        group = group ? group : asking;
        for (unsigned i = 0; i < 32; i++)
            if (group >> i & 1) {
                lanes_[warp * 32 + i].result = group;
                go_on(lanes_[warp * 32 + i]);
            }
        return true;
    }
    LOCKSTEP_UNSEEN void barrier()
    {
        for (const lane *one = lanes_; one < lanes_ + count_; one++)
            if (one->kind != BARRIER)
                return;
        for (lane *one = lanes_; one < lanes_ + count_; one++)
            one->kind = RUNS;
    }
    /* All lanes that this one's mask names are where it is: they get their results. */
    LOCKSTEP_UNSEEN void meet(size_t at)
    {
        lane *warp = &lanes_[at / 32 * 32];
        const lane &own = lanes_[at];
        uint32_t mask = own.mask;
        state at_once = own.kind;

        if (!(mask >> at % 32 & 1))
            stuck();
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1 && (warp[i].kind != at_once || warp[i].mask != mask))
                return;
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1)
                warp[i].result = result(warp, i);
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1)
                go_on(warp[i]);
    }
    LOCKSTEP_UNSEEN static uint32_t result(const lane *warp, unsigned i)
    {
        uint32_t lanes = 0;

        if (warp[i].kind == SHUFFLE) {
            if (!(warp[i].mask >> warp[i].from & 1))
                stuck();
            return (uint32_t)warp[warp[i].from].value;
        }
        for (unsigned j = 0; j < 32; j++)
            if (warp[i].mask >> j & 1)
                lanes |=
                    (uint32_t)(warp[i].kind == MATCH ? warp[j].value == warp[i].value : warp[j].value != 0)
                    << j;
        return lanes;
    }
    [[noreturn]] static void stuck()
    {
        for (size_t i = 0; i < now->count_; i++)
            (void)fprintf(stderr, "lane %zu: %d, mask %08x\n", i, now->lanes_[i].kind, now->lanes_[i].mask);
        (void)fprintf(stderr, "lanes that can't meet\n");
        abort();
    }
};

static inline uint32_t gaia_hw_thread()
{
    return lockstep::now->thread();
}
static inline uint32_t gaia_hw_lane()
{
    return lockstep::now->thread() % 32;
}
static inline uint32_t gaia_hw_block()
{
    return lockstep::now->block;
}
static inline uint32_t gaia_hw_blocks()
{
    return lockstep::now->blocks;
}
static inline uint32_t gaia_hw_block_threads()
{
    return lockstep::now->threads();
}
static inline void gaia_hw_block_barrier()
{
    (void)lockstep::now->together(lockstep::BARRIER, 0);
}
static inline uint32_t gaia_hw_active()
{
    return lockstep::now->together(lockstep::ACTIVE, 0);
}
static inline void gaia_hw_sync(uint32_t mask)
{
    (void)lockstep::now->together(lockstep::SYNC, mask);
}
static inline uint32_t gaia_hw_shuffle(uint32_t mask, uint32_t value, uint32_t lane)
{
    return lockstep::now->together(lockstep::SHUFFLE, mask, value, lane);
}
static inline uint32_t gaia_hw_ballot(uint32_t mask, uint32_t yes)
{
    return lockstep::now->together(lockstep::BALLOT, mask, yes);
}
static inline uint32_t gaia_hw_match(uint32_t mask, uint64_t value)
{
    return lockstep::now->together(lockstep::MATCH, mask, value);
}
static inline void gaia_hw_pause()
{
    (void)lockstep::now->together(lockstep::PAUSES, 0);
}
static inline void gaia_hw_between_looks(uint32_t look)
{
    if (lockstep::now->between_looks)
        lockstep::now->between_looks(look);
    else if (lockstep::now->next() % 8 == 0)
        gaia_hw_pause(); /* who else wants the frame may have it */
}

#endif
