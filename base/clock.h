/* SPDX-License-Identifier: Apache-2.0 */
/* What time it is, for how long ago something was. Waits have base/lock.h. */
#ifndef GAIAFS_BASE_CLOCK_H
#define GAIAFS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t clock_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
