/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels with a gaia_view, as a program writes them: each thread for itself. Made into paging_kernels.ptx by
 * clang (make paging-ptx), so that a machine with a GPU needs no compiler; by nvcc where there is one
 * (tests/gpu/run.sh); and, for the stand-in of tests/cuda, into code for a CPU, where a thread is a warp of
 * one lane. No thread may wait for another there. */
#include "gpu/gaia_device.cuh"
#include "tests/gpu/paging.h"

#if GAIA_ON_GPU
GAIA_DEVICE uint64_t first_thread()
{
    return (uint64_t)gaia_hw_block() * gaia_hw_block_threads() + gaia_hw_thread();
}
GAIA_DEVICE uint64_t threads()
{
    return (uint64_t)gaia_hw_blocks() * gaia_hw_block_threads();
}
GAIA_DEVICE uint32_t lane()
{
    return gaia_hw_lane();
}
GAIA_DEVICE uint32_t lanes()
{
    return GAIA_LANES;
}
#else
static thread_local uint64_t cpu_thread, cpu_threads;

GAIA_DEVICE uint64_t first_thread()
{
    return cpu_thread;
}
GAIA_DEVICE uint64_t threads()
{
    return cpu_threads;
}
GAIA_DEVICE uint32_t lane()
{
    return 0;
}
GAIA_DEVICE uint32_t lanes()
{
    return 1;
}
#endif

GAIA_DEVICE uint64_t first_warp()
{
    return first_thread() / lanes();
}

GAIA_DEVICE uint64_t warps()
{
    return threads() / lanes();
}

GAIA_DEVICE void count(struct paging_task *task, enum paging_count which, uint64_t more)
{
    if (more)
        (void)gaia_add_relaxed_gpu64(&task->counts[which], more);
}

template <typename T> GAIA_DEVICE gaia_view<T> view_of(const struct paging_task *task, uint32_t which = 0)
{
    return gaia_view<T>(*task->demand[which], task->demand[which]);
}

/* --- the tests --- */

GAIA_KERNEL paging_load(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t wrong = 0, done = 0;

    for (uint64_t k = first_thread(); k < task->touches; k += threads(), done++) {
        uint64_t i = paging_place(task, k);

        wrong += view.load(i) != paging_value(task->seed, i);
    }
    count(task, PAGING_WRONG, wrong);
    count(task, PAGING_DONE, done);
}

/* Elements of one byte, of which 8 are one value. */
GAIA_KERNEL paging_load_bytes(struct paging_task *task)
{
    gaia_view<uint8_t> view = view_of<uint8_t>(task);
    uint64_t wrong = 0, done = 0;

    for (uint64_t k = first_thread(); k < task->touches; k += threads(), done++) {
        uint64_t i = paging_place(task, k);

        wrong += view.load(i) != (uint8_t)(paging_value(task->seed, i / 8) >> i % 8 * 8);
    }
    count(task, PAGING_WRONG, wrong);
    count(task, PAGING_DONE, done);
}

/* Some at once: two of the order, one of them twice, and one beside the other, perhaps of the next unit. */
GAIA_KERNEL paging_load_many(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t wrong = 0, done = 0, step = threads();

    for (uint64_t k = first_thread(); k < task->touches; k += 2 * step) {
        uint64_t one = paging_place(task, k);
        uint64_t other = k + step < task->touches ? paging_place(task, k + step) : one;
        uint64_t index[4] = {one, other, one, other + 1 < task->n ? other + 1 : 0}, value[4];

        view.load_many(index, value);
        for (uint32_t j = 0; j < 4; j++)
            wrong += value[j] != paging_value(task->seed, index[j]);
        done += k + step < task->touches ? 2 : 1;
    }
    count(task, PAGING_WRONG, wrong);
    count(task, PAGING_DONE, done);
}

/* n units, each pinned by all lanes of a warp. */
GAIA_KERNEL paging_load_pinned(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t wrong = 0, done = 0;

    for (uint64_t k = first_warp(); k < task->n; k += warps()) {
        gaia_pin<const uint64_t> pin = view.pin(paging_place(task, k) * (task->unit / 8));

        if (!pin) {
            wrong++;
            continue;
        }
        for (uint64_t i = pin.first() + lane(); i < pin.end(); i += lanes(), done++)
            wrong += pin[i] != paging_value(task->seed, i);
    }
    count(task, PAGING_WRONG, wrong);
    count(task, PAGING_DONE, done);
}

GAIA_KERNEL paging_store(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);

    for (uint64_t k = first_thread(); k < task->touches; k += threads()) {
        uint64_t i = paging_place(task, k);

        view.store(i, paging_value(task->new_seed, i));
    }
}

GAIA_KERNEL paging_store_pinned(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t wrong = 0;

    for (uint64_t k = first_warp(); k < task->n; k += warps()) {
        gaia_pin<uint64_t> pin = view.pin_for_stores(paging_place(task, k) * (task->unit / 8));

        if (!pin) {
            wrong++;
            continue;
        }
        for (uint64_t i = pin.first() + lane(); i < pin.end(); i += lanes())
            pin[i] = paging_value(task->new_seed, i);
    }
    count(task, PAGING_WRONG, wrong);
}

/* Odd bytes, among those that are come to. */
GAIA_KERNEL paging_store_odd_bytes(struct paging_task *task)
{
    gaia_view<uint8_t> view = view_of<uint8_t>(task);

    for (uint64_t k = first_thread(); k < task->touches; k += threads()) {
        uint64_t i = paging_place(task, k);

        if (i % 2)
            view.store(i, (uint8_t)(paging_value(task->new_seed, i / 8) >> i % 8 * 8));
    }
}

/* Lanes of a warp do different things in the same turn, some nothing, and leave the loop at different times.
 * Odd elements are stored to; the others are as they were. Two lanes of a warp pin, so that a few warps have
 * frames enough. */
GAIA_KERNEL paging_divergent(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t wrong = 0, done = 0;

    for (uint64_t k = first_thread(); k < task->touches; k += threads()) {
        uint64_t i = paging_place(task, k), way = paging_value(task->new_seed, k) % 8;

        if (i % 2) {
            view.store(i, paging_value(task->new_seed, i));
            done++;
        } else if (way < 3) {
            wrong += view.load(i) != paging_value(task->seed, i);
            done++;
        } else if (way < 6 && first_thread() % 16 == 0) {
            gaia_pin<const uint64_t> pin = view.pin(i);

            wrong += !pin || pin[i] != paging_value(task->seed, i);
            done++;
        } else if (way == 6) {
            /* One that another lane of this warp stores to at this moment may show either value. */
            uint64_t value = view.load(i + 1 < task->n ? i + 1 : 1);
            uint64_t at = i + 1 < task->n ? i + 1 : 1;

            wrong += value != paging_value(task->seed, at) && value != paging_value(task->new_seed, at);
            done++;
        } else if (way == 7) {
            uint64_t index[3] = {i, 0, i}, value[3];

            view.load_many(index, value);
            for (uint32_t j = 0; j < 3; j++)
                wrong += value[j] != paging_value(task->seed, index[j]);
            done++;
        }
    }
    count(task, PAGING_WRONG, wrong);
    count(task, PAGING_DONE, done);
}

/* Touches from the end of the mapping on: zeros, and an error that says so. */
GAIA_KERNEL paging_outside(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t i = view.size() + first_thread(), wrong = 0, element = 0;
    uint64_t index[3] = {i, first_thread() % view.size(), i + 1}, value[3];

    view.load_many(index, value);
    wrong += value[0] != 0 || value[1] != paging_value(task->seed, index[1]) || value[2] != 0;
    wrong += view.load(i) != 0;
    view.store(i, 1);
    wrong += (bool)view.pin(i);
    count(task, PAGING_WRONG, wrong);
    count(task, PAGING_DONE, 1);
    if (first_thread() == 0) {
        task->counts[PAGING_ERROR] = view.error(&element);
        task->counts[PAGING_ELEMENT] = element;
    }
}

/* One thread holds a pin of each of n units: more than there are frames. How many it got. */
GAIA_KERNEL paging_hold(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    gaia_pin<const uint64_t> pins[80];

    if (first_thread() != 0)
        return;
    for (uint32_t k = 0; k < 80 && k < task->n; k++) {
        uint64_t i = k * (task->unit / 8);

        pins[k] = view.pin(i);
        count(task, PAGING_DONE, (bool)pins[k]);
    }
    for (uint32_t k = 0; k < 80 && k < task->n; k++) /* what is held has stayed where it is */
        if (pins[k])
            for (uint64_t i = pins[k].first(); i < pins[k].end(); i += 97)
                count(task, PAGING_WRONG, pins[k][i] != paging_value(task->seed, i));
    task->counts[PAGING_ERROR] = view.error();
}

/* --- the timings --- */

/* One touch by a warp of each of n units. */
GAIA_KERNEL bench_touch(struct paging_task *task)
{
    gaia_view<uint64_t> view = view_of<uint64_t>(task);
    uint64_t sum = 0;

    for (uint64_t k = first_warp(); k < task->n; k += warps())
        sum += view.load(paging_place(task, k) * (task->unit / 8));
    count(task, PAGING_SUM, lane() == 0 ? sum : 0);
}

/* The same touches of memory without a view. */
GAIA_KERNEL bench_touch_plain(struct paging_task *task)
{
    const volatile uint64_t *words = (const volatile uint64_t *)(const void *)task->plain[0];
    uint64_t sum = 0;

    for (uint64_t k = first_warp(); k < task->n; k += warps())
        sum += words[paging_place(task, k) * (task->unit / 8)];
    count(task, PAGING_SUM, lane() == 0 ? sum : 0);
}

/* A warp pulls a unit out of pinned memory, plain[0], into frame k % frames (`stride`) of plain[1]: 16 bytes
 * a lane, four on their way, as a fault does it, and nothing else. */
GAIA_KERNEL bench_pull(struct paging_task *task)
{
    uint64_t quads = task->unit / 16, step = lanes();

    for (uint64_t k = first_warp(); k < task->n; k += warps()) {
        const struct gaia_quad *from =
            (const struct gaia_quad *)task->plain[0] + paging_place(task, k) * quads;
        struct gaia_quad *to = (struct gaia_quad *)task->plain[1] + k % task->stride * quads;

        for (uint64_t at = lane(); at + 3 * step < quads; at += 4 * step) {
            struct gaia_quad q0 = gaia_quad_load(from + at), q1 = gaia_quad_load(from + at + step);
            struct gaia_quad q2 = gaia_quad_load(from + at + 2 * step);
            struct gaia_quad q3 = gaia_quad_load(from + at + 3 * step);

            gaia_quad_store(to + at, q0);
            gaia_quad_store(to + at + step, q1);
            gaia_quad_store(to + at + 2 * step, q2);
            gaia_quad_store(to + at + 3 * step, q3);
        }
    }
}

/* A load() waits for the memory three times, and other warps run meanwhile: as many as have room for their
 * registers, of which a compiler that knows nothing of that may take a few more and lose a block. */
#if GAIA_ON_GPU && defined(__clang__)
#define BLOCKS(n) __attribute__((launch_bounds(256, n)))
#elif GAIA_ON_GPU
#define BLOCKS(n) __launch_bounds__(256, n)
#else
#define BLOCKS(n)
#endif

/* The sum of n words: neighbouring lanes have neighbouring words. (n is at hand, as it is of plain memory,
 * where a compiler sees to that: behind loads that order it would be loaded each time.) */
GAIA_KERNEL BLOCKS(3) bench_sum(struct paging_task *task)
{
    gaia_view<uint32_t> view = view_of<uint32_t>(task);
    uint64_t sum = 0, n = task->n;

    for (uint64_t i = first_thread(); i < n; i += threads())
        sum += view.load(i);
    count(task, PAGING_SUM, sum);
}

/* The same words, four at once. */
struct __attribute__((aligned(16))) wide {
    uint32_t word[4];
};

GAIA_DEVICE uint64_t sum_of(uint32_t one)
{
    return one;
}

GAIA_DEVICE uint64_t sum_of(const wide &four)
{
    return (uint64_t)four.word[0] + four.word[1] + four.word[2] + four.word[3];
}

GAIA_KERNEL BLOCKS(3) bench_sum_wide(struct paging_task *task)
{
    gaia_view<wide> view = view_of<wide>(task);
    uint64_t sum = 0, n = task->n / 4;

    for (uint64_t i = first_thread(); i < n; i += threads())
        sum += sum_of(view.load(i));
    count(task, PAGING_SUM, sum);
}

/* N at a time on their way, and the rest one by one. */
template <uint32_t N, typename T> GAIA_DEVICE void sum_many(struct paging_task *task)
{
    gaia_view<T> view = view_of<T>(task);
    uint64_t sum = 0, n = task->n / (sizeof(T) / 4), i = first_thread(), step = threads();

    for (; i + (N - 1) * step < n; i += N * step) {
        uint64_t index[N];
        T some[N];

        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            index[k] = i + k * step;
        view.load_many(index, some);
        GAIA_UNROLLED
        for (uint32_t k = 0; k < N; k++)
            sum += sum_of(some[k]);
    }
    for (; i < n; i += step)
        sum += sum_of(view.load(i));
    count(task, PAGING_SUM, sum);
}

GAIA_KERNEL BLOCKS(2) bench_sum_many4(struct paging_task *task)
{
    sum_many<4, uint32_t>(task);
}

GAIA_KERNEL BLOCKS(2) bench_sum_many8(struct paging_task *task)
{
    sum_many<8, uint32_t>(task);
}

GAIA_KERNEL BLOCKS(2) bench_sum_wide_many4(struct paging_task *task)
{
    sum_many<4, wide>(task);
}

GAIA_KERNEL BLOCKS(2) bench_sum_wide_many8(struct paging_task *task)
{
    sum_many<8, wide>(task);
}

GAIA_KERNEL bench_sum_pinned(struct paging_task *task)
{
    gaia_view<uint32_t> view = view_of<uint32_t>(task);
    uint64_t sum = 0, in_unit = task->unit / 4;

    for (uint64_t k = first_warp(); k < task->n / in_unit; k += warps()) {
        gaia_pin<const uint32_t> pin = view.pin(k * in_unit);

        for (uint64_t i = pin.first() + lane(); i < pin.end(); i += lanes())
            sum += pin[i];
    }
    count(task, PAGING_SUM, sum);
}

GAIA_KERNEL bench_sum_plain(struct paging_task *task)
{
    uint64_t sum = 0;

    for (uint64_t i = first_thread(); i < task->n; i += threads())
        sum += task->plain[0][i];
    count(task, PAGING_SUM, sum);
}

GAIA_KERNEL bench_sum_plain_wide(struct paging_task *task)
{
    const wide *fours = (const wide *)(const void *)task->plain[0];
    uint64_t sum = 0;

    for (uint64_t i = first_thread(); i < task->n / 4; i += threads())
        sum += sum_of(fours[i]);
    count(task, PAGING_SUM, sum);
}

/* The third becomes the sum of the first two, word by word. */
GAIA_KERNEL bench_add(struct paging_task *task)
{
    gaia_view<uint32_t> a = view_of<uint32_t>(task, 0), b = view_of<uint32_t>(task, 1);
    gaia_view<uint32_t> to = view_of<uint32_t>(task, 2);
    uint64_t in_unit = task->unit / 4;

    for (uint64_t k = first_warp(); k < task->n / in_unit; k += warps()) {
        gaia_pin<const uint32_t> x = a.pin(k * in_unit), y = b.pin(k * in_unit);
        gaia_pin<uint32_t> z = to.pin_for_stores(k * in_unit);

        if (x && y && z)
            for (uint64_t i = z.first() + lane(); i < z.end(); i += lanes())
                z[i] = x[i] + y[i];
        else
            count(task, PAGING_WRONG, 1);
    }
}

GAIA_KERNEL bench_add_plain(struct paging_task *task)
{
    for (uint64_t i = first_thread(); i < task->n; i += threads())
        task->plain[2][i] = task->plain[0][i] + task->plain[1][i];
}

/* What a warp does with a unit of the matrix: rows of `columns` words, whole ones, from `row` on. */
GAIA_DEVICE void multiply(const struct paging_task *task, const uint32_t *words, uint64_t row)
{
    uint64_t rows = task->unit / 4 / task->columns;

    if (task->product != PAGING_TRANSPOSED)
        for (uint64_t r = 0; r < rows; r++) {
            uint32_t sum = 0;

            for (uint64_t c = lane(); c < task->columns; c += lanes())
                sum += PAGING_OF_WORD(words[r * task->columns + c]) * task->in[0][c];
            (void)gaia_add_relaxed_gpu32(&task->out[0][row + r], sum);
        }
    if (task->product != PAGING_TIMES)
        for (uint64_t c = lane(); c < task->columns; c += lanes()) {
            uint32_t sum = 0;

            for (uint64_t r = 0; r < rows; r++)
                sum += PAGING_OF_WORD(words[r * task->columns + c]) * task->in[1][row + r];
            (void)gaia_add_relaxed_gpu32(&task->out[1][c], sum);
        }
}

GAIA_KERNEL bench_multiply(struct paging_task *task)
{
    gaia_view<uint32_t> view = view_of<uint32_t>(task);
    uint64_t in_unit = task->unit / 4;

    for (uint64_t k = first_warp(); k < task->n / in_unit; k += warps()) {
        gaia_pin<const uint32_t> pin = view.pin(k * in_unit);

        if (pin)
            multiply(task, pin.data(), k * in_unit / task->columns);
        else
            count(task, PAGING_WRONG, 1);
    }
}

GAIA_KERNEL bench_multiply_plain(struct paging_task *task)
{
    uint64_t in_unit = task->unit / 4;

    for (uint64_t k = first_warp(); k < task->n / in_unit; k += warps())
        multiply(task, task->plain[0] + k * in_unit, k * in_unit / task->columns);
}

/* --- for the stand-in --- */

#if !GAIA_ON_GPU
#include <string.h>

#include "gpu/kernels.h"

extern "C" const struct gaia_kernel *paging_kernel_find(const char *name);

/* A block: one thread after the other. */
template <void (*kernel)(struct paging_task *)>
static void run_block(struct gaia_grid grid, void *const *arguments)
{
    uint64_t in_block = (uint64_t)grid.warps * GAIA_LANES;

    cpu_threads = in_block * grid.blocks;
    for (uint64_t i = 0; i < in_block; i++) {
        cpu_thread = grid.block * in_block + i;
        kernel(*(struct paging_task *const *)arguments[0]);
    }
}

const struct gaia_kernel *paging_kernel_find(const char *name)
{
#define KERNEL(name)                \
    {                               \
#name, 1, run_block < name> \
    }
    static const struct gaia_kernel kernels[] = {
        KERNEL(paging_load),
        KERNEL(paging_load_many),
        KERNEL(paging_load_bytes),
        KERNEL(paging_load_pinned),
        KERNEL(paging_store),
        KERNEL(paging_store_pinned),
        KERNEL(paging_store_odd_bytes),
        KERNEL(paging_divergent),
        KERNEL(paging_outside),
        KERNEL(paging_hold),
        KERNEL(bench_touch),
        KERNEL(bench_touch_plain),
        KERNEL(bench_pull),
        KERNEL(bench_sum),
        KERNEL(bench_sum_wide),
        KERNEL(bench_sum_pinned),
        KERNEL(bench_sum_many4),
        KERNEL(bench_sum_many8),
        KERNEL(bench_sum_wide_many4),
        KERNEL(bench_sum_wide_many8),
        KERNEL(bench_sum_plain),
        KERNEL(bench_sum_plain_wide),
        KERNEL(bench_add),
        KERNEL(bench_add_plain),
        KERNEL(bench_multiply),
        KERNEL(bench_multiply_plain),
    };
#undef KERNEL

    for (const struct gaia_kernel &kernel : kernels)
        if (!strcmp(kernel.name, name))
            return &kernel;
    return nullptr;
}
#endif
