/* SPDX-License-Identifier: Apache-2.0 */
/* As much of CUDA's language and runtime API as the examples use, for a C++ compiler and a CPU: a kernel is a
 * loop over its blocks and threads. It works where a device pointer is a pointer of this process: on a soft
 * device, and on the stand-in for NVIDIA's driver that the tests have. Threads of a block can't wait for each
 * other here, so the examples have no __syncthreads(). */
#ifndef GAIAFS_EXAMPLES_CUDA_CPU_H
#define GAIAFS_EXAMPLES_CUDA_CPU_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __global__ static
#define __device__
#define __host__

struct cpu_index {
    unsigned x;
};
static thread_local struct cpu_index threadIdx, blockIdx, blockDim, gridDim;

typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

/* --- the driver, where libgaia has opened one --- */

static inline void *cpu_driver(void)
{
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
}

/* A function of the driver's; NULL where there is none. */
template <typename Function> static Function *cpu_driver_function(const char *name)
{
    void *driver = cpu_driver();

    return driver != NULL ? (Function *)(uintptr_t)dlsym(driver, name) : NULL;
}

/* Device pointers of a real driver are none of this process's. */
static inline bool cpu_driver_is_real(void)
{
    return cpu_driver() != NULL && dlsym(cpu_driver(), "standin_number") == NULL;
}

static inline cudaError_t cudaSetDevice(int ordinal)
{
    int (*get)(int *, int) = cpu_driver_function<int(int *, int)>("cuDeviceGet");
    int (*retain)(void **, int) = cpu_driver_function<int(void **, int)>("cuDevicePrimaryCtxRetain");
    int (*use)(void *) = cpu_driver_function<int(void *)>("cuCtxSetCurrent");
    int device;
    void *context;

    if (get == NULL || retain == NULL || use == NULL)
        return cudaSuccess; /* a soft device: it has none of these */
    int error = get(&device, ordinal);
    if (error == 0)
        error = retain(&context, device);
    return error == 0 ? use(context) : error;
}

/* --- memory, and what waits --- */

static inline cudaError_t cudaMalloc(void **memory_out, size_t bytes)
{
    *memory_out = malloc(bytes);
    return *memory_out != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

static inline cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

static inline cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess; /* kernels of the default stream have run when their launch returns */
}

static inline cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static inline const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "no memory" : "an error of the driver's";
}

/* NULL on a soft device, which has no streams. */
static inline cudaError_t cudaStreamCreate(cudaStream_t *stream_out)
{
    int (*create)(cudaStream_t *, unsigned) =
        cpu_driver_function<int(cudaStream_t *, unsigned)>("cuStreamCreate");

    *stream_out = NULL;
    return create != NULL ? create(stream_out, 0) : cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    int (*wait)(cudaStream_t) = cpu_driver_function<int(cudaStream_t)>("cuStreamSynchronize");

    return stream != NULL ? wait(stream) : cudaSuccess;
}

static inline cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream; /* it ends with the program */
    return cudaSuccess;
}

/* --- kernels --- */

template <typename Kernel> static void cpu_run(unsigned blocks, unsigned threads, const Kernel &kernel)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1)
#endif
    for (unsigned block = 0; block < blocks; block++) {
        gridDim.x = blocks;
        blockDim.x = threads;
        blockIdx.x = block;
        for (unsigned thread = 0; thread < threads; thread++) {
            threadIdx.x = thread;
            kernel();
        }
    }
}

template <typename Kernel> struct cpu_launch {
    unsigned blocks, threads;
    Kernel kernel;

    static void run(void *context)
    {
        struct cpu_launch *launch = (struct cpu_launch *)context;

        cpu_run(launch->blocks, launch->threads, launch->kernel);
        delete launch;
    }
};

/* In a stream, a kernel is a function that the driver calls when the stream gets there. */
template <typename Kernel>
static void cpu_put(unsigned blocks, unsigned threads, cudaStream_t stream, const Kernel &kernel)
{
    typedef int put_type(cudaStream_t, void (*)(void *), void *);

    if (stream == NULL) {
        cpu_run(blocks, threads, kernel);
        return;
    }
    struct cpu_launch<Kernel> *launch = new cpu_launch<Kernel> {
        blocks, threads, kernel
    };
    if (cpu_driver_function<put_type>("cuLaunchHostFunc")(stream, cpu_launch<Kernel>::run, launch) != 0)
        abort();
}

/* Arguments are variables of the caller's, by value. */
#define LAUNCH(kernel, blocks, threads, stream, ...) \
    cpu_put(blocks, threads, stream, [=] { kernel(__VA_ARGS__); })

template <typename Number> static Number atomicAdd(Number *at, Number more)
{
    return __atomic_fetch_add(at, more, __ATOMIC_RELAXED);
}

template <typename Number> static Number atomicMin(Number *at, Number value)
{
    Number old = __atomic_load_n(at, __ATOMIC_RELAXED);

    while (value < old &&
           !__atomic_compare_exchange_n(at, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return old;
}

#endif
