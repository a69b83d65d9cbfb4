/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of device code with threads as warps have in common. */
#ifndef GAIAFS_TESTS_GPU_CHECK_H
#define GAIAFS_TESTS_GPU_CHECK_H

#include <atomic>
#include <cstdint>
#include <cstdio>

/* By how much less is played. gcc tells of its sanitizers with __SANITIZE_*, clang with __has_feature(). */
#ifndef __has_feature
#define __has_feature(what) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define WORLD_SLOW 25u
#elif defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define WORLD_SLOW 4u
#else
#define WORLD_SLOW 1u
#endif

#define MS 1000000ull /* in ns */

/* What went wrong, in any thread: cmocka's assertions may only fail in the test's own. */
inline std::atomic<unsigned> wrongs;
#define EXPECT(condition, ...)                                                    \
    do {                                                                          \
        if (!(condition) && wrongs.fetch_add(1) < 5) {                            \
            (void)fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            (void)fprintf(stderr, __VA_ARGS__);                                   \
            (void)fputc('\n', stderr);                                            \
        }                                                                         \
    } while (0)

/* splitmix64, one for each thread */
struct random_numbers {
    uint64_t state;
    uint64_t next()
    {
        uint64_t z = state += 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t n)
    {
        return next() % n;
    }
};

#endif
