/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the stand-in driver: see standin.c. */
#ifndef GAIAFS_TESTS_CUDA_STANDIN_H
#define GAIAFS_TESTS_CUDA_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda_api.h"

#define STANDIN_GRANULARITY ((size_t)2 << 20)
#define STANDIN_FIRST_DEVICE 7 /* no ordinal: who takes a CUdevice for one is found out */
#define CUDA_ERROR_INVALID_PTX 218
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED 712
#define CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED 713
#define CUDA_ERROR_STREAM_CAPTURE_IMPLICIT 906
#define CUDA_ERROR_UNKNOWN 999

/* The value of a word of $STANDIN_CUDA, in a static buffer, or NULL; as a number. */
const char *standin_word(const char *name);
long long standin_number(const char *name, long long otherwise);

/* The error that this call of `name` is to have, as the words and the control file say; 0: none. */
CUresult standin_injected(const char *name);
/* A host function, which a thread of a stream runs, must not call the driver. A real one may refuse this, or
 * hang; this one refuses everything. */
extern __thread bool standin_in_host_function;
#define ENTER_QUIETLY()                      \
    do {                                     \
        if (standin_in_host_function)        \
            return CUDA_ERROR_NOT_PERMITTED; \
    } while (0)
#define ENTER(name)                                   \
    do {                                              \
        ENTER_QUIETLY();                              \
        CUresult injected = standin_injected(name);   \
        if (injected == CUDA_SUCCESS)                 \
            injected = standin_beside_captures(name); \
        if (injected != CUDA_SUCCESS)                 \
            return injected;                          \
    } while (0)
/* The same for what needs a context. */
#define ENTER_CONTEXT(name)                    \
    do {                                       \
        ENTER(name);                           \
        if (!standin_has_context())            \
            return CUDA_ERROR_INVALID_CONTEXT; \
    } while (0)

bool standin_has_context(void);
/* The thread's, or NULL. */
CUcontext standin_context(void);
/* That of the thread's context, or -1. */
CUdevice standin_device(void);
bool standin_is_device(CUdevice device);
/* A caller's mistake that a driver would not survive, or hide until much later: says which, and ends the
 * program. */
__attribute__((noreturn)) void standin_misused(const char *what);
/* What a call's output is unless it succeeds: after an error nobody may use it. */
#define STANDIN_NOTHING ((uintptr_t)0xdbdbdbdbdbdbdb00)
/* Whether a GPU reaches all of this memory, by itself: it is the GPU's, and mapped for it. */
bool standin_reaches(const void *address, size_t bytes, CUdevice device);
/* Whether only a part of this memory of the program's is pinned: allocated so, or registered. No copy may go
 * there. */
bool standin_is_pinned_in_part(const void *address, size_t bytes);
/* The GPU whose memory is at this address, or -1: none's. */
CUdevice standin_owner(const void *address);
/* Whether a stream is yet to do something with memory of this range. A kernel uses what its parameters point
 * to. */
bool standin_in_use(const void *address, size_t bytes);
/* Where a GPU finds what lies at an address of the program: elsewhere, if that is an address of GPU memory,
 * which programs cannot read. *writable_out: whether it may store there. */
void *standin_see(const void *address, size_t bytes, bool *writable_out);

/* Likewise, while a stream is being captured. */
CUresult standin_beside_captures(const char *name);
/* For all that was put into any stream, as who frees memory does. */
void standin_wait_for_all(void);
/* version: of the interface that this form of it came with. */
struct standin_row {
    const char *name;
    int version;
    void (*function)(void);
};
#define ROW(name, version, function)                         \
    {                                                        \
        name, version, (void (*)(void))(uintptr_t)(function) \
    }
extern const struct standin_row standin_context_rows[], standin_memory_rows[], standin_run_rows[],
    standin_kernel_rows[]; /* end with a NULL name */

#endif
