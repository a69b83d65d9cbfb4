/* SPDX-License-Identifier: Apache-2.0 */
/* What a stream of the stand-in driver is given to do. */
#ifndef GAIAFS_TESTS_CUDA_STANDIN_WORK_H
#define GAIAFS_TESTS_CUDA_STANDIN_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "gpu/kernels.h"
#include "tests/cuda/standin.h"

struct standin_work {
    STAILQ_ENTRY(standin_work) link;
    enum { COPY, SET, KERNEL, HOST } what;
    void *to;
    const void *from;
    size_t bytes;
    unsigned char value;
    bool is_slow;
    void *owned; /* of a copy that comes late: what it copies; else NULL */
    const struct gaia_kernel *kernel;
    uint64_t arguments[GAIA_KERNEL_PARAMETERS_MAX];
    unsigned blocks, threads;
    CUhostFn function;
    void *context;
    uint64_t number; /* of all work: the order in which it was given */
};

/* Behind what the stream has to do already; the work is copied. NULL: the default stream. */
void standin_put(CUstream stream, const struct standin_work *work);
/* For what goes into a stream: it must be there, and of the thread's context. */
CUresult standin_expect_own(CUstream stream);
/* Runs a work of what KERNEL, on these arguments, to its end. */
void standin_run_kernel(const struct standin_work *work, void *const *arguments);

#endif
