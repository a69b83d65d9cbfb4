/* SPDX-License-Identifier: Apache-2.0 */
/* A program whose kernels, on a GPU, end badly (tests/mount/test_cuda_kernels.py).
 *
 * usage: tool_kernel FILE spin|wild
 *
 * Maps FILE, stores "released" to its page 1 and releases it, and "stored" to page 2. Then:
 *   spin  a kernel reads the mapping for minutes; says "started", and, were it ever done, "done"
 *   wild  a kernel stores where nothing is; says the errors of the kernel, of a release, and of an acquire
 * Exit status: 2, a call failed that should not. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "consistency/digest.h"
#include "gaia.h"
#include "gpu/cuda_device.h"
#include "gpu/kernels.h"

#define PAGE ((size_t)4096)
#define SPIN_LAUNCHES 4000u
#define NOWHERE UINT64_C(0x1000) /* the first pages of an address space are never mapped */

static struct cuda_device cuda;
static CUstream stream;

static void need(int error, const char *what)
{
    if (!error)
        return;
    printf("%s: error %d (%s)\n", what, error, strerror(errno));
    exit(2);
}

static CUfunction find_kernel(const char *name)
{
    CUfunction function;
    CUmodule module;

    need(cuda.api->cuModuleLoadData(&module, gaia_kernels_ptx), "cuModuleLoadData");
    need(cuda.api->cuModuleGetFunction(&function, module, name), name);
    return function;
}

static void store(uint8_t *map, size_t page, const char *text)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)map + page * PAGE;

    need(cuda.api->cuMemcpyHtoDAsync(at, text, strlen(text), stream), "a store");
    need(cuda.api->cuStreamSynchronize(stream), "a store");
}

static void say_done(void *context)
{
    (void)context;
    puts("done");
}

static void spin(uint8_t *map, size_t length)
{
    CUfunction hash = find_kernel("gaia_hash_pages");
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)map, digests;
    uint64_t count = length / PAGE;
    void *parameters[] = {&from, &count, &digests};

    need(cuda.api->cuMemAlloc(&digests, count * sizeof(struct gaia_digest)), "cuMemAlloc");
    for (unsigned i = 0; i < SPIN_LAUNCHES; i++) {
        need(cuda.api->cuLaunchKernel(hash, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL), "a launch");
        if (i == 0)
            puts("started");
    }
    need(cuda.api->cuLaunchHostFunc(stream, say_done, NULL), "cuLaunchHostFunc");
    need(cuda.api->cuStreamSynchronize(stream), "the kernels");
}

static void run_wild(uint8_t *map, size_t length, struct gaia_device *device)
{
    CUfunction zero = find_kernel("gaia_zero_pages");
    CUdeviceptr nowhere = NOWHERE, list;
    uint64_t count = 1;
    void *parameters[] = {&nowhere, &list, &count};

    need(cuda.api->cuMemAlloc(&list, PAGE), "cuMemAlloc");
    need(cuda.api->cuMemsetD8Async(list, 0, PAGE, stream), "cuMemsetD8Async");
    puts("started");
    int error = cuda.api->cuLaunchKernel(zero, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
    if (!error)
        error = cuda.api->cuStreamSynchronize(stream);
    printf("the kernel: %d\n", error);
    printf("release: %d\n", gaia_mrelease(map, length, device) ? errno : 0);
    printf("acquire: %d\n", gaia_macquire(map, length, device) ? errno : 0);
}

int main(int argc, char **argv)
{
    int fd = argc == 3 ? open(argv[1], O_RDWR) : -1;
    struct gaia_device *device;
    char why[CUDA_WHY_SIZE];
    struct stat st;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (fd < 0 || fstat(fd, &st) || st.st_size < (off_t)(3 * PAGE)) {
        fprintf(stderr, "usage: tool_kernel FILE spin|wild\n");
        return 2;
    }
    need(gaia_device_open("cuda:0", &device), "gaia_device_open");
    size_t length = (size_t)st.st_size;
    uint8_t *map = gaia_mmap(device, length, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    need(map == MAP_FAILED, "gaia_mmap");
    need(cuda_device_open(0, &cuda, why), "the device");
    need(cuda_enter(&cuda), "the context");
    need(cuda.api->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    store(map, 1, "released");
    need(gaia_mrelease(map, length, device), "gaia_mrelease");
    store(map, 2, "stored");
    if (!strcmp(argv[2], "spin"))
        spin(map, length);
    else
        run_wild(map, length, device);
    return 0;
}
