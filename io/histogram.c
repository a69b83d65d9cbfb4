/* SPDX-License-Identifier: Apache-2.0 */
#include "io/histogram.h"

/* Values below 32 have a bucket each. */
static unsigned bucket_of(uint64_t value)
{
    unsigned shift = value < 32 ? 0 : 63 - (unsigned)__builtin_clzll(value) - 4;

    return shift * 16 + (unsigned)(value >> shift);
}

static uint64_t bucket_end(unsigned bucket)
{
    unsigned shift = bucket < 32 ? 0 : bucket / 16 - 1;

    return ((uint64_t)(bucket - shift * 16 + 1) << shift) - 1;
}

void histogram_add(struct histogram *histogram, uint64_t value)
{
    uint64_t most = histogram->most;

    atomic_fetch_add_explicit(&histogram->counts[bucket_of(value)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum, value, memory_order_relaxed);
    while (value > most && !atomic_compare_exchange_weak(&histogram->most, &most, value))
        ;
}

uint64_t histogram_at(const struct histogram *histogram, unsigned per_mille)
{
    uint64_t total = 0, seen = 0, wanted, most = histogram->most;

    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        total += histogram->counts[i];
    if (!total)
        return 0;
    wanted = (total * per_mille + 999) / 1000;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->counts[i];
        if (seen >= wanted && seen)
            return bucket_end(i) < most ? bucket_end(i) : most;
    }
    return most;
}
