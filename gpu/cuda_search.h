/* SPDX-License-Identifier: Apache-2.0 */
/* A search for what the program's kernels have stored, in the program's own context. The daemon's half of the
 * driver compares the same digests with the same pages (home_cuda_scan.c), but to run its kernel the GPU has
 * to leave the program's context and to come back, which takes longer than a look at hundreds of MiB. What is
 * found here is not reported: the daemon searches again. */
#ifndef GAIAFS_GPU_CUDA_SEARCH_H
#define GAIAFS_GPU_CUDA_SEARCH_H

#include <stdbool.h>

#include "base/lock.h"
#include "gpu/cuda_kernel.h"
#include "gpu/cuda_module.h"

/* A device's. The kernel is loaded by the first search: many programs only read. */
struct cuda_search {
    pthread_mutex_t lock; /* guards all below; one search at a time, as two would share the GPU anyway */
    enum { SEARCH_UNMADE, SEARCH_READY, SEARCH_NONE } state; /* NONE: an error that stays */
    struct cuda_module *module;                              /* the device's */
    struct cuda_kernel kernel;
    CUstream stream;
    CUdeviceptr flag;
    uint32_t *flag_here; /* pinned */
};

/* Chunks of a mapping, one behind the other, and their digests. */
struct cuda_searched {
    CUdeviceptr pages, digests;
    uint64_t chunk, room;  /* pages of a chunk; digests from those of one to those of the next */
    uint64_t first, count; /* pages to look at */
};

/* The module outlives the search. */
void cuda_search_open(struct cuda_search *search, struct cuda_module *module);
void cuda_search_close(const struct cuda_device *device, struct cuda_search *search);

/* Whether none of the pages differs from what it was granted with. Kernels that store to them have ended.
 * Also false where this can't be told. Any thread but one of the driver's. */
bool cuda_search_finds_none(const struct cuda_device *device, struct cuda_search *search,
                            const struct cuda_searched *searched);

#endif
