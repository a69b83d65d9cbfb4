/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels with a gaia_view, for the tests of demand paging and its timings: what their host programs
 * (paging.c, bench_demand.c) and paging_kernels.cc have in common. Each kernel has one parameter, the address
 * of a task in the GPU's memory. */
#ifndef GAIAFS_TESTS_GPU_PAGING_H
#define GAIAFS_TESTS_GPU_PAGING_H

#include <stdint.h>

struct gaia_demand;

/* In which order n elements or units are touched; none twice, but for the last. */
enum paging_order {
    PAGING_IN_ORDER,
    PAGING_STRIDED, /* `stride` apart, which has no divisor in common with n */
    PAGING_RANDOM,
    PAGING_HOT, /* the same few again and again */
};
#define PAGING_HOT_ELEMENTS 64u

/* Which product a launch makes of a matrix, in whole numbers modulo 2^32. */
enum paging_product {
    PAGING_TIMES,      /* out[0][row] += a[row][column] * in[0][column] */
    PAGING_TRANSPOSED, /* out[1][column] += a[row][column] * in[1][row] */
    PAGING_BOTH,
};

/* What kernels count. */
enum paging_count { PAGING_WRONG, PAGING_DONE, PAGING_SUM, PAGING_ERROR, PAGING_ELEMENT, PAGING_COUNTS };

struct paging_task {
    const struct gaia_demand *demand[3]; /* parameters of views, where the GPU has them */
    uint32_t *plain[3];                  /* memory of the same kind of things without a view */
    uint64_t n;                          /* elements or units that are there */
    uint64_t touches;                    /* how many of them are touched */
    uint64_t order, stride, seed, new_seed;
    uint64_t unit; /* bytes */
    uint64_t columns, product;
    const uint32_t *in[2];
    uint32_t *out[2];
    uint64_t counts[PAGING_COUNTS];
};

/* On both sides: the value of an element of a file. */
#ifdef __cplusplus
#define PAGING_BOTH_SIDES GAIA_BOTH
#else
#define PAGING_BOTH_SIDES static inline
#endif
PAGING_BOTH_SIDES uint64_t paging_value(uint64_t seed, uint64_t i)
{
    uint64_t z = (seed << 40) + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The k-th of n in the task's order. Random: a permutation of the next power of two, again and again until it
 * gives one below n. */
PAGING_BOTH_SIDES uint64_t paging_place(const struct paging_task *task, uint64_t k)
{
    uint32_t bits = 1;

    if (task->order == PAGING_STRIDED)
        return k * task->stride % task->n;
    if (task->order == PAGING_HOT)
        return k % PAGING_HOT_ELEMENTS;
    if (task->order == PAGING_IN_ORDER)
        return k;
    while ((uint64_t)1 << bits < task->n)
        bits++;
    do
        for (uint32_t round = 0; round < 3; round++) {
            k = (k * UINT64_C(0x9e3779b97f4a7c15) + task->seed) & (((uint64_t)1 << bits) - 1);
            k ^= k >> (bits / 2 + 1);
        }
    while (k >= task->n);
    return k;
}

/* The element of a matrix that a file's word is. */
#define PAGING_OF_WORD(word) ((uint32_t)(word) >> 29)

#endif
