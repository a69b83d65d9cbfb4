/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA examples share. Each is built twice: with nvcc for a GPU (make examples-cuda), and as C++ for
 * the CPU (make examples), where kernels run on a soft device (cpu.h). */
#ifndef GAIAFS_EXAMPLES_CUDA_EXAMPLE_H
#define GAIAFS_EXAMPLES_CUDA_EXAMPLE_H

#include <getopt.h>

#include "../common.h"
#include "gaia_device.cuh" /* installed as <gaia/gaia_device.cuh> */

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define LAUNCH(kernel, blocks, threads, stream, ...) kernel<<<blocks, threads, 0, stream>>>(__VA_ARGS__)
#define DEFAULT_DEVICE "cuda:0"
#else
#include "cpu.h"
#define DEFAULT_DEVICE "soft:0"
#endif

/* A launch that goes over all its items in a loop: these fill any GPU, and are few enough for a CPU. */
enum { BLOCKS = 1024, THREADS = 256 };

/* The first item of a thread of such a launch, and how far it is to its next one. */
__device__ static inline size_t first_item(void)
{
    return blockIdx.x * (size_t)blockDim.x + threadIdx.x;
}

__device__ static inline size_t item_step(void)
{
    return (size_t)gridDim.x * blockDim.x;
}

static inline void check_cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail(0, "%s: %s", what, cudaGetErrorString(error));
}

template <typename Item> static Item *device_array(size_t count)
{
    void *memory = NULL;

    check_cuda(cudaMalloc(&memory, count * sizeof(Item)), "memory of the device");
    return (Item *)memory;
}

/* A kernel's end, and whether it was a good one. */
static inline void wait_for_kernel(void)
{
    check_cuda(cudaGetLastError(), "a launch");
    check_cuda(cudaDeviceSynchronize(), "a kernel");
}

/* --- arguments --- */

struct arguments {
    const char *device;
    uint64_t count; /* what that is, each example says */
    uint64_t seed;
    bool check; /* nothing but the check of what lies there */
    char **rest;
    int rest_count;
};

static inline struct arguments parse_arguments(int argc, char **argv, uint64_t count, uint64_t most,
                                               const char *usage)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"count", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {"check", no_argument, NULL, 'c'},
                                            {NULL, 0, NULL, 0}};
    struct arguments arguments = {NULL, count, 1, false, NULL, 0};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'd')
            arguments.device = optarg;
        else if (option == 'n')
            arguments.count = parse_number("--count", optarg, most);
        else if (option == 'r')
            arguments.seed = parse_number("--seed", optarg, UINT64_MAX);
        else if (option == 'c')
            arguments.check = true;
        else
            fail(0, "usage: %s", usage);
    }
    arguments.rest = argv + optind;
    arguments.rest_count = argc - optind;
    if (arguments.rest_count == 0 || arguments.count == 0)
        fail(0, "usage: %s", usage);
    return arguments;
}

/* FOLDER/NAME, for the rest of the program. */
static inline const char *path_in(const char *folder, const char *name)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%s", folder, name) < 0)
        fail(errno, "no memory for a name");
    return path;
}

/* --- the device, and files on it --- */

static inline struct gaia_device *open_example_device(const char *name)
{
    struct gaia_device *device;

    if (name == NULL)
        name = getenv("GAIA_DEVICE");
    if (name == NULL || *name == '\0')
        name = DEFAULT_DEVICE;
    bool is_gpu = strncmp(name, "cuda:", 5) == 0;
#ifdef __CUDACC__
    if (!is_gpu)
        fail(0, "%s: this is built for a GPU; `make examples` makes what runs on %s", name, name);
#endif
    device = open_device(name);
#ifndef __CUDACC__
    if (is_gpu && cpu_driver_is_real())
        fail(0, "%s: this is built for the CPU; `make examples-cuda` makes what runs on a GPU", name);
#endif
    if (is_gpu)
        check_cuda(cudaSetDevice(atoi(name + 5)), name);
    printf("device: %s\n", name);
    return device;
}

struct mapped {
    const char *path;
    size_t bytes;
    void *at; /* of the device */
};

/* The whole of a file. A GPU gets it all at once. */
static inline struct mapped map_whole(struct gaia_device *device, const char *path, int prot)
{
    struct stat status;
    int fd = open_regular(path, (prot & PROT_WRITE) != 0 ? O_RDWR : O_RDONLY, &status);
    struct mapped mapped = {path, (size_t)status.st_size, NULL};

    if (mapped.bytes == 0)
        fail(0, "%s: is empty", path);
    mapped.at = map_on_device(device, fd, path, mapped.bytes, prot);
    close(fd);
    return mapped;
}

/* The whole of a file, for reading, of which the device holds only what is touched, in units of 4 KiB. On a
 * GPU kernels read it through a gaia_view, whose parameters are outputs; on a soft device it is memory like
 * any other: NULL. */
static inline struct mapped map_on_demand(struct gaia_device *device, const char *path,
                                          struct gaia_demand *demand_out,
                                          const struct gaia_demand **there_out)
{
    struct stat status;
    int fd = open_regular(path, O_RDONLY, &status);
    struct mapped mapped = {path, (size_t)status.st_size, NULL};

    mapped.at = gaia_mmap(device, mapped.bytes, PROT_READ, GAIA_DEMAND | GAIA_SMALL_UNITS, fd, 0);
    if (mapped.at == MAP_FAILED && errno == ENODEV)
        fail(0, "%s: not a regular file of a gaiafs mount, or the mount has no such device", path);
    if (mapped.at == MAP_FAILED)
        fail(errno, "%s: cannot map it on demand", path);
    close(fd);
    if (gaia_demand_parameters(mapped.at, demand_out, there_out) != 0) {
        memset(demand_out, 0, sizeof(*demand_out));
        *there_out = NULL;
    }
    return mapped;
}

static inline void acquire(const struct mapped *mapped, struct gaia_device *device)
{
    if (gaia_macquire(mapped->at, mapped->bytes, device) != 0)
        fail(errno, "%s: acquire", mapped->path);
}

static inline void release(const struct mapped *mapped, struct gaia_device *device)
{
    if (gaia_mrelease(mapped->at, mapped->bytes, device) != 0)
        fail(errno, "%s: release", mapped->path);
}

static inline void unmap(const struct mapped *mapped)
{
    if (gaia_munmap(mapped->at, mapped->bytes) != 0)
        fail(errno, "%s: cannot unmap it", mapped->path);
}

/* --- files, as any program has them --- */

static inline void write_file(const char *path, const void *bytes, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0)
        fail(errno, "%s", path);
    write_fully(fd, path, bytes, length, 0);
    if (close(fd) != 0)
        fail(errno, "%s", path);
}

/* A file of zeros, which a device is to fill. */
static inline void make_file(const char *path, size_t length)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0 || ftruncate(fd, (off_t)length) != 0 || close(fd) != 0)
        fail(errno, "%s", path);
}

/* All of it by plain read(); free() ends it. */
template <typename Item> static Item *read_file(const char *path, size_t *count_out)
{
    struct stat status;
    int fd = open_regular(path, O_RDONLY, &status);
    size_t bytes = (size_t)status.st_size;
    Item *items = (Item *)allocate(bytes / sizeof(Item) + 1, sizeof(Item));

    read_fully(fd, path, items, bytes, 0);
    close(fd);
    *count_out = bytes / sizeof(Item);
    return items;
}

/* The end of every example: what the check by plain reads has found. */
__attribute__((format(printf, 2, 3))) static inline int verdict(bool right, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    printf("%s: ", right ? "right" : "WRONG");
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    finish_output();
    return right ? EXIT_SUCCESS : EXIT_WRONG;
}

#endif
