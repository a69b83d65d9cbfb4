/* SPDX-License-Identifier: Apache-2.0 */
/* Order that goes through the kernel, which no checker of races can see: what a thread did before
 * order_before(p) comes before what another does after order_after(p). Each use says what makes it so; none
 * of it makes anything so. Nothing is left of it but in builds with SANITIZE=thread or HELGRIND=1.
 */
#ifndef GAIAFS_BASE_ORDER_H
#define GAIAFS_BASE_ORDER_H

#include <pthread.h>
#include <stdint.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GAIAFS_UNDER_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define GAIAFS_UNDER_TSAN 1
#endif

#if defined(GAIAFS_UNDER_TSAN)
#include <sanitizer/tsan_interface.h>
#define GAIAFS_SEES_ORDER 1
#elif defined(GAIAFS_UNDER_HELGRIND)
#include <valgrind/helgrind.h>
#define GAIAFS_SEES_ORDER 1
#endif

static inline void order_before(const void *p)
{
#if defined(GAIAFS_UNDER_TSAN)
    __tsan_release((void *)(uintptr_t)p);
#elif defined(GAIAFS_UNDER_HELGRIND)
    ANNOTATE_HAPPENS_BEFORE(p);
#else
    (void)p;
#endif
}

static inline void order_after(const void *p)
{
#if defined(GAIAFS_UNDER_TSAN)
    __tsan_acquire((void *)(uintptr_t)p);
#elif defined(GAIAFS_UNDER_HELGRIND)
    ANNOTATE_HAPPENS_AFTER(p);
#else
    (void)p;
#endif
}

/* A thread was joined by a call that helgrind does not know for a join (ThreadSanitizer does). */
static inline void order_joined(pthread_t thread)
{
#if defined(GAIAFS_UNDER_HELGRIND)
    VALGRIND_DO_CLIENT_REQUEST_STMT(_VG_USERREQ__HG_PTHREAD_JOIN_POST, thread, 0, 0, 0, 0);
#else
    (void)thread;
#endif
}

#endif
