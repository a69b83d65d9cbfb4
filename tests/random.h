/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that a seed repeats: splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
 * Generators", 2014). */
#ifndef GAIAFS_TESTS_RANDOM_H
#define GAIAFS_TESTS_RANDOM_H

#include <stdint.h>

#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

/* The number that belongs to x. */
static inline uint64_t mix(uint64_t x)
{
    x += RANDOM_STEP;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The next one, from 0 to below - 1; *state begins with the seed. */
static inline uint64_t draw(uint64_t *state, uint64_t below)
{
    uint64_t x = mix(*state);

    *state += RANDOM_STEP;
    return x % below;
}

#endif
