/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's modules and kernels: what runs is their source, compiled for the CPU. */
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>

#include "gpu/kernels.h"
#include "gpu/warp.h"
#include "tests/cuda/standin_work.h"

struct CUfunc_st {
    const struct gaia_kernel *kernel;
    CUdevice device;
    SLIST_ENTRY(CUfunc_st) link;
};
struct CUmod_st {
    LIST_ENTRY(CUmod_st) link;
    const char *ptx;
    CUdevice device;
    SLIST_HEAD(, CUfunc_st) functions;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the modules, and their functions */
static LIST_HEAD(, CUmod_st) modules;

/* Lock held. */
static void expect_module(CUmodule module)
{
    CUmodule one;

    LIST_FOREACH (one, &modules, link)
        if (one == module)
            return;
    standin_misused("a module that there is not, or not any more");
}

static void expect_function(CUfunction function)
{
    CUfunction found = NULL;
    CUmodule module;

    pthread_mutex_lock(&lock);
    LIST_FOREACH (module, &modules, link) {
        if (!found)
            SLIST_FOREACH (found, &module->functions, link)
                if (found == function)
                    break;
    }
    pthread_mutex_unlock(&lock);
    if (!found)
        standin_misused("a kernel of a module that there is not, or not any more");
}

/* Kernels of the tests (tests/gpu/paging_kernels.cc), and on how many threads each runs: blocks meet there.
 */
const struct gaia_kernel *paging_kernel_find(const char *name);
#define KERNEL_THREADS 4u

/* A thread's share of the blocks of a launch. */
struct share {
    const struct standin_work *work;
    void *const *arguments;
    unsigned first;
};

static void *run_share(void *context)
{
    const struct share *share = context;
    struct gaia_grid grid = {share->first, share->work->blocks, share->work->threads / GAIA_LANES};

    for (; grid.block < grid.blocks; grid.block += KERNEL_THREADS)
        share->work->kernel->run(grid, share->arguments);
    return NULL;
}

void standin_run_kernel(const struct standin_work *work, void *const *arguments)
{
    struct share shares[KERNEL_THREADS];
    pthread_t threads[KERNEL_THREADS];

    if (!paging_kernel_find(work->kernel->name)) {
        if (gaia_kernel_cpu(work->kernel->name, arguments, work->blocks, work->threads))
            abort();
        return;
    }
    for (unsigned i = 0; i < KERNEL_THREADS; i++) {
        shares[i] = (struct share){work, arguments, i};
        if (pthread_create(&threads[i], NULL, run_share, &shares[i]))
            abort();
    }
    for (unsigned i = 0; i < KERNEL_THREADS; i++)
        pthread_join(threads[i], NULL);
}

static CUresult load_module(CUmodule *module_out, const void *image)
{
    *module_out = (CUmodule)STANDIN_NOTHING;
    ENTER_CONTEXT("cuModuleLoadData");
    const char *target = strstr(image, ".target sm_");
    if (!strstr(image, ".version ") || !target)
        return CUDA_ERROR_INVALID_VALUE;
    if (atoi(target + strlen(".target sm_")) / 10 > standin_number("capability", 9)) /* of a younger GPU */
        return CUDA_ERROR_INVALID_PTX;
    CUmodule module = calloc(1, sizeof *module);
    if (!module)
        abort();
    module->ptx = image;
    module->device = standin_device();
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&modules, module, link);
    pthread_mutex_unlock(&lock);
    *module_out = module;
    return CUDA_SUCCESS;
}

static CUresult unload_module(CUmodule module)
{
    CUfunction function;

    ENTER_CONTEXT("cuModuleUnload");
    pthread_mutex_lock(&lock);
    expect_module(module);
    LIST_REMOVE(module, link);
    pthread_mutex_unlock(&lock);
    while ((function = SLIST_FIRST(&module->functions))) {
        SLIST_REMOVE_HEAD(&module->functions, link);
        free(function);
    }
    free(module);
    return CUDA_SUCCESS;
}

/* The PTX must have it, but what runs is its source's twin for a CPU. */
static CUresult get_function(CUfunction *function_out, CUmodule module, const char *name)
{
    const struct gaia_kernel *kernel = gaia_kernel_find(name);
    char entry[96];

    *function_out = (CUfunction)STANDIN_NOTHING;
    ENTER_CONTEXT("cuModuleGetFunction");
    snprintf(entry, sizeof entry, ".entry %s(", name);
    kernel = kernel ? kernel : paging_kernel_find(name);
    pthread_mutex_lock(&lock);
    expect_module(module);
    pthread_mutex_unlock(&lock);
    if (!strstr(module->ptx, entry) || !kernel)
        return CUDA_ERROR_NOT_FOUND;
    CUfunction function = calloc(1, sizeof *function);
    if (!function)
        abort();
    function->kernel = kernel;
    function->device = module->device;
    pthread_mutex_lock(&lock);
    SLIST_INSERT_HEAD(&module->functions, function, link);
    pthread_mutex_unlock(&lock);
    *function_out = function;
    return CUDA_SUCCESS;
}

/* As registers would have it. */
static CUresult fit_blocks(int *blocks_out, CUfunction function, int threads, size_t shared_bytes)
{
    (void)shared_bytes;
    ENTER_CONTEXT("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    expect_function(function);
    if (threads < 1)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks_out = 768 / threads;
    return CUDA_SUCCESS;
}

/* A kernel that touches another GPU's memory ends with an error that ends the context, too. */
static void check_arguments(const struct standin_work *work)
{
    for (unsigned i = 0; i < work->kernel->parameters; i++) {
        CUdevice owner = standin_owner((void *)(uintptr_t)work->arguments[i]);
        if (owner >= 0 && owner != standin_device())
            standin_misused("a kernel gets memory of another GPU");
    }
}

static CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       CUstream stream, void **parameters, void **extra)
{
    ENTER_CONTEXT("cuLaunchKernel");
    expect_function(function);
    struct standin_work work = {
        .what = KERNEL, .kernel = function->kernel, .blocks = grid_x, .threads = block_x};
    if (!grid_x || grid_y != 1 || grid_z != 1 || !block_x || block_y != 1 || block_z != 1 || shared_bytes ||
        extra)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < function->kernel->parameters; i++)
        memcpy(&work.arguments[i], parameters[i], sizeof work.arguments[i]);
    CUresult error = standin_expect_own(stream);
    if (error != CUDA_SUCCESS || function->device != standin_device())
        return CUDA_ERROR_INVALID_HANDLE;
    check_arguments(&work);
    standin_put(stream, &work);
    return CUDA_SUCCESS;
}

const struct standin_row standin_kernel_rows[] = {
    ROW("cuModuleLoadData", 2000, load_module),
    ROW("cuModuleGetFunction", 2000, get_function),
    ROW("cuModuleUnload", 2000, unload_module),
    ROW("cuLaunchKernel", 4000, launch),
    ROW("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050, fit_blocks),
    {NULL, 0, NULL},
};
