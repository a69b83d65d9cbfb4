/* SPDX-License-Identifier: Apache-2.0 */
/* libgaia's calls are no points of cancellation, as mmap() is none: a thread that ended within such a call
 * would keep its locks, and hang all others. */
#ifndef GAIAFS_GPU_UNCANCELLED_H
#define GAIAFS_GPU_UNCANCELLED_H

#include <pthread.h>

static inline int cancellation_hold(void)
{
    int before;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancellation_restore(const int *before)
{
    int now;

    pthread_setcancelstate(*before, &now);
}

/* The first line of a public function: until it returns, however it does. */
#define UNCANCELLED \
    int cancellation_before __attribute__((cleanup(cancellation_restore), unused)) = cancellation_hold()

#endif
