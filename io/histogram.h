/* SPDX-License-Identifier: Apache-2.0 */
/* A histogram of times with a relative error of at most 1/16, whatever the range: 16 buckets for each power
 * of two, as HdrHistogram has them. Adding is one atomic addition; any thread may add and read at any time.
 */
#ifndef GAIAFS_IO_HISTOGRAM_H
#define GAIAFS_IO_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#define HISTOGRAM_BUCKETS (61u * 16)

struct histogram {
    _Atomic uint64_t counts[HISTOGRAM_BUCKETS];
    _Atomic uint64_t count, sum, most;
};

void histogram_add(struct histogram *histogram, uint64_t value);

/* The least value such that at least per_mille thousandths of all values are not above it, rounded up to its
 * bucket's end (but never over the largest value); 0 when there are none. */
uint64_t histogram_at(const struct histogram *histogram, unsigned per_mille);

#endif
