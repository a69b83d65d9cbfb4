/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's block of warps on a CPU, lane by lane: each lane is a coroutine of one thread, and what lanes do
 * together (shuffles, votes, barriers) waits until every lane that the mask names has come to the same place,
 * with the same mask. Which lane goes on is random, so lanes run apart as far as the code lets them: more
 * than on any GPU. Lanes that wait for each other for ever end the program, with a list of what they wait
 * for.
 *
 * Include this first: it makes gpu/warp.h give code a slot a lane. */
#ifndef GAIAFS_TESTS_GPU_LOCKSTEP_H
#define GAIAFS_TESTS_GPU_LOCKSTEP_H

#define GAIA_LOCKSTEP

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sched.h>
#include <ucontext.h>
#include <vector>

class lockstep
{
  public:
    enum state { RUNS, PAUSES, DONE, ACTIVE, SYNC, SHUFFLE, BALLOT, MATCH, BARRIER };

    /* The block that this thread runs. */
    static inline thread_local lockstep *now;

    uint32_t block = 0, blocks = 1;
    /* What happens between two looks of a lane at the same thing, if a test says so. */
    std::function<void(uint32_t)> between_looks;

    lockstep(unsigned warps, uint64_t seed) : random_(seed | 1), lanes_(warps * 32)
    {
        for (lane &one : lanes_)
            one.stack.resize(STACK);
    }
    /* Runs one block of a kernel to its end. */
    void run(std::function<void()> kernel)
    {
        kernel_ = kernel;
        now = this;
        for (lane &one : lanes_) {
            one.kind = RUNS;
            getcontext(&one.context);
            one.context.uc_stack.ss_sp = one.stack.data();
            one.context.uc_stack.ss_size = STACK;
            one.context.uc_link = nullptr;
            makecontext(&one.context, enter, 0);
        }
        while (step())
            continue;
        now = nullptr;
    }
    uint32_t thread() const
    {
        return current_;
    }
    uint32_t threads() const
    {
        return (uint32_t)lanes_.size();
    }
    /* What a lane does together with others of its warp, or of its block: its result. */
    uint32_t together(state kind, uint32_t mask, uint64_t value = 0, uint32_t from = 0)
    {
        lane &own = lanes_[current_];

        own.kind = kind;
        own.mask = mask;
        own.value = value;
        own.from = from;
        swapcontext(&own.context, &main_);
        return own.result;
    }
    uint64_t next()
    {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        return random_ ^= random_ << 17;
    }

  private:
    static constexpr size_t STACK = 64 << 10;

    struct lane {
        ucontext_t context;
        std::vector<char> stack;
        state kind;
        uint32_t mask, from, result;
        uint64_t value;
    };

    uint64_t random_;
    std::vector<lane> lanes_;
    std::function<void()> kernel_;
    ucontext_t main_;
    uint32_t current_ = 0;

    static void enter()
    {
        lockstep *self = now;

        self->kernel_();
        (void)self->together(DONE, 0);
    }
    /* Lets one lane go on to where it waits; false: all are done. */
    bool step()
    {
        size_t n = lanes_.size(), at = next() % n;
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
        for (lane &one : lanes_)
            if (one.kind == PAUSES) {
                one.kind = RUNS;
                is_paused = true;
            }
        if (is_paused) {
            sched_yield();
            return true;
        }
        for (const lane &one : lanes_)
            if (one.kind != DONE)
                stuck();
        return false;
    }
    /* At once, or when everybody else has come to where they wait: what one lane has not done yet must not
     * matter to the others. */
    void go_on(lane &one)
    {
        one.kind = next() % 8 ? RUNS : PAUSES;
    }
    void resume(size_t at)
    {
        current_ = (uint32_t)at;
        lanes_[at].kind = RUNS;
        swapcontext(&main_, &lanes_[at].context);
        if (lanes_[at].kind == BARRIER)
            barrier();
        else if (lanes_[at].kind >= SYNC)
            meet(at);
    }
    /* Some of the lanes of a warp that asked who is with them are a group from now on. */
    bool form_group(size_t warp)
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
    void barrier()
    {
        for (const lane &one : lanes_)
            if (one.kind != BARRIER)
                return;
        for (lane &one : lanes_)
            one.kind = RUNS;
    }
    /* All lanes that this one's mask names are where it is: they get their results. */
    void meet(size_t at)
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
    static uint32_t result(const lane *warp, unsigned i)
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
        for (size_t i = 0; i < now->lanes_.size(); i++)
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
