/* SPDX-License-Identifier: Apache-2.0 */
/* The time, to tell how long ago something was, and dates. For waits see base/lock.h. */
#ifndef GAIAFS_BASE_CLOCK_H
#define GAIAFS_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Nanoseconds, of times that are not before a clock's beginning. */
static inline uint64_t clock_ns(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
}

/* Of dates of files. */
static inline bool clock_same(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static inline uint64_t clock_read_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return clock_ns(&now);
}

/* Of CLOCK_MONOTONIC. */
static inline uint64_t clock_now_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

#endif
