/* SPDX-License-Identifier: Apache-2.0 */
/* What programs share that launch the kernels of paging_kernels.cc: the GPU number 0, its kernels, tasks. */
#ifndef GAIAFS_TESTS_GPU_PAGING_PROGRAM_H
#define GAIAFS_TESTS_GPU_PAGING_PROGRAM_H

#include "gpu/cuda_device.h"
#include "gpu/demand.h"
#include "tests/bench/bench.h"
#include "tests/gpu/paging.h"

extern const char paging_kernels_ptx[]; /* paging_kernels.ptx, as a string */

struct paging_gpu {
    struct cuda_device device;
    const struct cuda_api *api;
    CUmodule module;
    CUstream stream;
    CUdeviceptr task;
    unsigned multiprocessors;
    bool standin; /* for a driver: kernels run on a few threads of this machine */
};

static inline void paging_need(const struct paging_gpu *gpu, CUresult error, const char *what)
{
    if (error != CUDA_SUCCESS)
        die("%s: %s", what, cuda_error_name(gpu->api, error));
}

/* A file's bytes and a NUL: kernels that another compiler has made. */
static inline char *paging_read_kernels(const char *path)
{
    int fd = open_file(path, O_RDONLY);
    size_t bytes = file_size(fd);
    char *image = malloc(bytes + 1);

    if (!image || read(fd, image, bytes) != (ssize_t)bytes)
        die("%s", path);
    image[bytes] = '\0';
    close(fd);
    return image;
}

/* kernels: a file with them; NULL: those that are part of the program. refused_out: these are taken, too,
 * where the driver does not load the file, as of a toolkit that is newer than it, and its error's name is
 * here; NULL: the program ends then. The context stays entered. false: there is no GPU, and why is printed.
 */
static inline bool paging_start(struct paging_gpu *gpu, const char *kernels, const char **refused_out)
{
    char why[CUDA_WHY_SIZE], name[96] = "";
    int number = 0;

    if (cuda_device_open(0, &gpu->device, why) || cuda_enter(&gpu->device)) {
        printf("no GPU here: %s\n", why);
        return false;
    }
    gpu->api = gpu->device.api;
    gpu->api->cuDeviceGetName(name, sizeof name, gpu->device.device);
    gpu->standin = !strncmp(name, "stand-in", 8);
    paging_need(
        gpu,
        gpu->api->cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device.device),
        "ask");
    gpu->multiprocessors = gpu->standin ? 4 : (unsigned)number;
    paging_need(gpu, gpu->api->cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING), "a stream");
    CUresult error =
        gpu->api->cuModuleLoadData(&gpu->module, kernels ? paging_read_kernels(kernels) : paging_kernels_ptx);
    if (error != CUDA_SUCCESS && kernels && refused_out) {
        *refused_out = cuda_error_name(gpu->api, error);
        error = gpu->api->cuModuleLoadData(&gpu->module, paging_kernels_ptx);
    }
    paging_need(gpu, error, "kernels");
    paging_need(gpu, gpu->api->cuMemAlloc(&gpu->task, sizeof(struct paging_task)), "memory of the GPU");
    return true;
}

static inline CUfunction paging_find(const struct paging_gpu *gpu, const char *name)
{
    CUfunction function;

    paging_need(gpu, gpu->api->cuModuleGetFunction(&function, gpu->module, name), name);
    return function;
}

static inline void paging_wait(const struct paging_gpu *gpu)
{
    paging_need(gpu, gpu->api->cuStreamSynchronize(gpu->stream), "work of the GPU");
}

static inline void paging_copy_in(const struct paging_gpu *gpu, CUdeviceptr to, const void *from,
                                  size_t bytes)
{
    paging_need(gpu, gpu->api->cuMemcpyHtoDAsync(to, from, bytes, gpu->stream), "a copy");
    paging_wait(gpu);
}

static inline void paging_copy_out(const struct paging_gpu *gpu, void *to, const void *from, size_t bytes)
{
    paging_need(gpu, gpu->api->cuMemcpyDtoHAsync(to, (uintptr_t)from, bytes, gpu->stream), "a copy");
    paging_wait(gpu);
}

/* Of a block. A thread for a thread is slow on a CPU. */
static inline unsigned paging_threads(const struct paging_gpu *gpu)
{
    return gpu->standin ? 32 : 256;
}

/* Launches a kernel on a task, waits for it, and brings back what it has counted.
 * The seconds of launch and wait. */
static inline double paging_run(const struct paging_gpu *gpu, const char *name, unsigned blocks,
                                struct paging_task *task)
{
    CUfunction function = paging_find(gpu, name);
    CUdeviceptr at = gpu->task;

    memset(task->counts, 0, sizeof task->counts);
    paging_copy_in(gpu, at, task, sizeof *task);
    uint64_t start = now_ns();
    paging_need(gpu,
                gpu->api->cuLaunchKernel(function, blocks, 1, 1, paging_threads(gpu), 1, 1, 0, gpu->stream,
                                         (void *[]){&at}, NULL),
                name);
    paging_wait(gpu);
    double seconds = (double)(now_ns() - start) / 1e9;
    paging_copy_out(gpu, task, (const void *)(uintptr_t)at, sizeof *task);
    return seconds;
}

/* A file that is mapped on demand. */
struct paging_map {
    uint8_t *at;
    size_t bytes, unit;
    struct gaia_demand demand;
    const struct gaia_demand *there;
};

/* frames: of the mapping. Acquired. */
static inline struct paging_map paging_map(struct gaia_device *device, int fd, size_t unit, size_t frames,
                                           int prot)
{
    struct paging_map map = {.bytes = file_size(fd), .unit = unit};
    char text[32];

    snprintf(text, sizeof text, "%zu", frames * unit);
    setenv("GAIA_DEMAND_BYTES", text, 1);
    map.at = gaia_mmap(device, map.bytes, prot, GAIA_DEMAND | (unit == PAGE ? GAIA_SMALL_UNITS : 0), fd, 0);
    if (map.at == MAP_FAILED || gaia_demand_parameters(map.at, &map.demand, &map.there))
        die("a demand mapping of %zu bytes", map.bytes);
    if (gaia_macquire(map.at, map.bytes, device))
        die("gaia_macquire");
    return map;
}

static inline struct gaia_demand_control paging_control(const struct paging_gpu *gpu,
                                                        const struct paging_map *map)
{
    struct gaia_demand_control control;

    paging_copy_out(gpu, &control, map->demand.control, sizeof control);
    return control;
}

#endif
