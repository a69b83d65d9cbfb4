/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the consistency tests: the same for the same seed, which is printed.
 * GAIA_TEST_SEED=<number> asks for another one than the fixed default. */
#ifndef GAIAFS_TESTS_CONSISTENCY_SEED_H
#define GAIAFS_TESTS_CONSISTENCY_SEED_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/random.h"

static uint64_t seed_state;

/* Call once at the start of main(). */
static inline void seed_start(void)
{
    const char *text = getenv("GAIA_TEST_SEED");

    seed_state = text ? strtoull(text, NULL, 0) : 20240817;
    printf("seed: GAIA_TEST_SEED=%llu\n", (unsigned long long)seed_state);
    fflush(stdout);
}

static inline uint64_t seed_next(void)
{
    uint64_t x = mix(seed_state);

    seed_state += RANDOM_STEP;
    return x;
}

/* A number from 0 to n - 1; n is at least 1 and far below 2^64. */
static inline size_t seed_below(size_t n)
{
    return (size_t)(seed_next() % n);
}

static inline void seed_fill(uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)seed_next();
}

#endif
