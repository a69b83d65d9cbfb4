/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics and ordered accesses of device code, on a GPU and on a CPU. "_gpu" is between threads of one GPU,
 * in its own memory; "_sys" is between a GPU and the host, in pinned host memory, or a NIC; nothing here is a
 * read-modify-write there: PCIe need not carry those. Orders have C11's names and meanings. On a GPU this is
 * PTX (6.0, sm_70), since what CUDA's headers offer is not there without its toolkit. */
#ifndef GAIAFS_GPU_DEVICE_MEMORY_H
#define GAIAFS_GPU_DEVICE_MEMORY_H

#include "warp.h"

#if GAIA_ON_GPU

#define GAIA_LOAD(name, bits, letter, how)                                                        \
    GAIA_DEVICE uint##bits##_t name(const uint##bits##_t *at)                                     \
    {                                                                                             \
        uint##bits##_t value;                                                                     \
        asm volatile("ld." how ".u" #bits " %0, [%1];" : "=" letter(value) : "l"(at) : "memory"); \
        return value;                                                                             \
    }
#define GAIA_STORE(name, bits, letter, how)                                                  \
    GAIA_DEVICE void name(uint##bits##_t *at, uint##bits##_t value)                          \
    {                                                                                        \
        asm volatile("st." how ".u" #bits " [%0], %1;" ::"l"(at), letter(value) : "memory"); \
    }
#define GAIA_UPDATE(name, bits, letter, how)                                                                \
    GAIA_DEVICE uint##bits##_t name(uint##bits##_t *at, uint##bits##_t operand)                             \
    {                                                                                                       \
        uint##bits##_t old;                                                                                 \
        asm volatile("atom." how " %0, [%1], %2;" : "=" letter(old) : "l"(at), letter(operand) : "memory"); \
        return old;                                                                                         \
    }
/* Whether *at was `old`, and is `value` now. */
#define GAIA_SWAP(name, bits, letter)                                                   \
    GAIA_DEVICE bool name(uint##bits##_t *at, uint##bits##_t old, uint##bits##_t value) \
    {                                                                                   \
        uint##bits##_t was;                                                             \
        asm volatile("atom.acq_rel.gpu.cas.b" #bits " %0, [%1], %2, %3;"                \
                     : "=" letter(was)                                                  \
                     : "l"(at), letter(old), letter(value)                              \
                     : "memory");                                                       \
        return was == old;                                                              \
    }

GAIA_LOAD(gaia_load_relaxed_gpu32, 32, "r", "relaxed.gpu")
GAIA_LOAD(gaia_load_acquire_gpu32, 32, "r", "acquire.gpu")
GAIA_LOAD(gaia_load_relaxed_gpu64, 64, "l", "relaxed.gpu")
GAIA_LOAD(gaia_load_acquire_gpu64, 64, "l", "acquire.gpu")
GAIA_LOAD(gaia_load_acquire_sys64, 64, "l", "acquire.sys")
GAIA_LOAD(gaia_load_relaxed_gpu16, 16, "h", "relaxed.gpu")
GAIA_LOAD(gaia_load_acquire_gpu16, 16, "h", "acquire.gpu")
GAIA_STORE(gaia_store_relaxed_gpu32, 32, "r", "relaxed.gpu")
GAIA_STORE(gaia_store_release_gpu32, 32, "r", "release.gpu")
GAIA_STORE(gaia_store_release_sys32, 32, "r", "release.sys")
GAIA_STORE(gaia_store_release_sys64, 64, "l", "release.sys")
GAIA_UPDATE(gaia_add_relaxed_gpu32, 32, "r", "relaxed.gpu.add.u32")
GAIA_UPDATE(gaia_add_relaxed_gpu64, 64, "l", "relaxed.gpu.add.u64")
GAIA_UPDATE(gaia_add_acquire_gpu64, 64, "l", "acquire.gpu.add.u64")
GAIA_UPDATE(gaia_add_release_gpu64, 64, "l", "release.gpu.add.u64")
GAIA_UPDATE(gaia_or_relaxed_gpu64, 64, "l", "relaxed.gpu.or.b64")
GAIA_UPDATE(gaia_and_relaxed_gpu64, 64, "l", "relaxed.gpu.and.b64")
GAIA_UPDATE(gaia_and_release_gpu64, 64, "l", "release.gpu.and.b64")
GAIA_SWAP(gaia_swap_gpu32, 32, "r")
GAIA_SWAP(gaia_swap_gpu64, 64, "l")

#else

#define GAIA_LOAD(name, bits, order)                          \
    GAIA_DEVICE uint##bits##_t name(const uint##bits##_t *at) \
    {                                                         \
        return __atomic_load_n(at, order);                    \
    }
#define GAIA_STORE(name, bits, order)                               \
    GAIA_DEVICE void name(uint##bits##_t *at, uint##bits##_t value) \
    {                                                               \
        __atomic_store_n(at, value, order);                         \
    }
#define GAIA_UPDATE(name, bits, function, order)                                \
    GAIA_DEVICE uint##bits##_t name(uint##bits##_t *at, uint##bits##_t operand) \
    {                                                                           \
        return function(at, operand, order);                                    \
    }
#define GAIA_SWAP(name, bits)                                                                           \
    GAIA_DEVICE bool name(uint##bits##_t *at, uint##bits##_t old, uint##bits##_t value)                 \
    {                                                                                                   \
        return __atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED); \
    }

GAIA_LOAD(gaia_load_relaxed_gpu32, 32, __ATOMIC_RELAXED)
GAIA_LOAD(gaia_load_acquire_gpu32, 32, __ATOMIC_ACQUIRE)
GAIA_LOAD(gaia_load_relaxed_gpu64, 64, __ATOMIC_RELAXED)
GAIA_LOAD(gaia_load_acquire_gpu64, 64, __ATOMIC_ACQUIRE)
GAIA_LOAD(gaia_load_acquire_sys64, 64, __ATOMIC_ACQUIRE)
GAIA_LOAD(gaia_load_relaxed_gpu16, 16, __ATOMIC_RELAXED)
GAIA_LOAD(gaia_load_acquire_gpu16, 16, __ATOMIC_ACQUIRE)
GAIA_STORE(gaia_store_relaxed_gpu32, 32, __ATOMIC_RELAXED)
GAIA_STORE(gaia_store_release_gpu32, 32, __ATOMIC_RELEASE)
GAIA_STORE(gaia_store_release_sys32, 32, __ATOMIC_RELEASE)
GAIA_STORE(gaia_store_release_sys64, 64, __ATOMIC_RELEASE)
GAIA_UPDATE(gaia_add_relaxed_gpu32, 32, __atomic_fetch_add, __ATOMIC_RELAXED)
GAIA_UPDATE(gaia_add_relaxed_gpu64, 64, __atomic_fetch_add, __ATOMIC_RELAXED)
GAIA_UPDATE(gaia_add_acquire_gpu64, 64, __atomic_fetch_add, __ATOMIC_ACQUIRE)
GAIA_UPDATE(gaia_add_release_gpu64, 64, __atomic_fetch_add, __ATOMIC_RELEASE)
GAIA_UPDATE(gaia_or_relaxed_gpu64, 64, __atomic_fetch_or, __ATOMIC_RELAXED)
GAIA_UPDATE(gaia_and_relaxed_gpu64, 64, __atomic_fetch_and, __ATOMIC_RELAXED)
GAIA_UPDATE(gaia_and_release_gpu64, 64, __atomic_fetch_and, __ATOMIC_RELEASE)
GAIA_SWAP(gaia_swap_gpu32, 32)
GAIA_SWAP(gaia_swap_gpu64, 64)

#endif

#undef GAIA_LOAD
#undef GAIA_STORE
#undef GAIA_UPDATE
#undef GAIA_SWAP

#if GAIA_ON_GPU
#define GAIA_LOAD_BYTE(name, how, order)                                            \
    GAIA_DEVICE uint8_t name(const uint8_t *at)                                     \
    {                                                                               \
        uint32_t value;                                                             \
        asm volatile("ld." how ".u8 %0, [%1];" : "=r"(value) : "l"(at) : "memory"); \
        return (uint8_t)value;                                                      \
    }
#else
#define GAIA_LOAD_BYTE(name, how, order)        \
    GAIA_DEVICE uint8_t name(const uint8_t *at) \
    {                                           \
        return __atomic_load_n(at, order);      \
    }
#endif
GAIA_LOAD_BYTE(gaia_load_relaxed_gpu8, "relaxed.gpu", __ATOMIC_RELAXED)
GAIA_LOAD_BYTE(gaia_load_acquire_gpu8, "acquire.gpu", __ATOMIC_ACQUIRE)
#undef GAIA_LOAD_BYTE

/* Words that lie side by side: one access on a GPU, aligned to its full size, but nothing relies on more than
 * each word being whole, and ordered by itself. Bytes of frames are stored and loaded by words of 4 bytes
 * where both may happen at once: PTX says nothing of accesses that race and overlap in part. */
#if GAIA_ON_GPU
#define GAIA_LOAD2(name, how, one)                                                                           \
    GAIA_DEVICE void name(const uint32_t *at, uint32_t out[2])                                               \
    {                                                                                                        \
        asm volatile("ld." how ".v2.u32 {%0, %1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "l"(at) : "memory"); \
    }
#define GAIA_LOAD4(name, how, one)                                            \
    GAIA_DEVICE void name(const uint32_t *at, uint32_t out[4])                \
    {                                                                         \
        asm volatile("ld." how ".v4.u32 {%0, %1, %2, %3}, [%4];"              \
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) \
                     : "l"(at)                                                \
                     : "memory");                                             \
    }
#else
#define GAIA_LOAD2(name, how, one)                             \
    GAIA_DEVICE void name(const uint32_t *at, uint32_t out[2]) \
    {                                                          \
        for (uint32_t i = 0; i < 2; i++)                       \
            out[i] = one(at + i);                              \
    }
#define GAIA_LOAD4(name, how, one)                             \
    GAIA_DEVICE void name(const uint32_t *at, uint32_t out[4]) \
    {                                                          \
        for (uint32_t i = 0; i < 4; i++)                       \
            out[i] = one(at + i);                              \
    }
#endif
GAIA_LOAD2(gaia_load_acquire_gpu32x2, "acquire.gpu", gaia_load_acquire_gpu32)
GAIA_LOAD2(gaia_load_relaxed_gpu32x2, "relaxed.gpu", gaia_load_relaxed_gpu32)
GAIA_LOAD4(gaia_load_acquire_gpu32x4, "acquire.gpu", gaia_load_acquire_gpu32)
GAIA_LOAD4(gaia_load_relaxed_gpu32x4, "relaxed.gpu", gaia_load_relaxed_gpu32)
#undef GAIA_LOAD2
#undef GAIA_LOAD4

GAIA_DEVICE void gaia_quad_store_gpu(struct gaia_quad *to, struct gaia_quad quad)
{
#if GAIA_ON_GPU
    asm volatile("st.relaxed.gpu.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"((uint32_t)quad.first),
                 "r"((uint32_t)(quad.first >> 32)), "r"((uint32_t)quad.second),
                 "r"((uint32_t)(quad.second >> 32))
                 : "memory");
#else
    __atomic_store_n(&to->first, quad.first, __ATOMIC_RELAXED);
    __atomic_store_n(&to->second, quad.second, __ATOMIC_RELAXED);
#endif
}

/* __threadfence(). Where a thread is a warp nothing relies on it, as the checkers of races know no fences.
 */
GAIA_DEVICE void gaia_fence_gpu(void)
{
#if GAIA_ON_GPU
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#elif GAIA_PER_LANE && !defined(__SANITIZE_THREAD__)
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

/* What was loaded before, relaxed, is acquired. A fence for that alone waits for these loads and for no
 * stores: there is one since PTX 8.6, for sm_90 and later. (For older GPUs ptxas 13.0 takes it, too, and
 * makes nothing of it.) */
GAIA_DEVICE void gaia_fence_acquire_gpu(void)
{
#if GAIA_ON_GPU && !defined(__clang__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208 && \
    defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.acquire.gpu;" ::: "memory");
#else
    gaia_fence_gpu();
#endif
}

/* 16 bytes of pinned host memory, which the host may be changing: one access on the bus, but nothing relies
 * on more than its two words being whole. Ordered by gaia_fence_sys() on a GPU; on a CPU the loads acquire
 * and the stores release, as the checkers of races know no fences. */
GAIA_DEVICE struct gaia_quad gaia_quad_load_sys(const struct gaia_quad *from)
{
    struct gaia_quad quad;

#if GAIA_ON_GPU
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                 : "=l"(quad.first), "=l"(quad.second)
                 : "l"(from)
                 : "memory");
#else
    quad.first = __atomic_load_n(&from->first, __ATOMIC_ACQUIRE);
    quad.second = __atomic_load_n(&from->second, __ATOMIC_ACQUIRE);
#endif
    return quad;
}

GAIA_DEVICE void gaia_quad_store_sys(struct gaia_quad *to, uint64_t first, uint64_t second)
{
#if GAIA_ON_GPU
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second) : "memory");
#else
    __atomic_store_n(&to->first, first, __ATOMIC_RELEASE);
    __atomic_store_n(&to->second, second, __ATOMIC_RELEASE);
#endif
}

/* __threadfence_system() */
GAIA_DEVICE void gaia_fence_sys(void)
{
#if GAIA_ON_GPU
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

#endif
