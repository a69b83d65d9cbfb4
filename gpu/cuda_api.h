/* SPDX-License-Identifier: Apache-2.0 */
/* What gaiafs uses of the CUDA Driver API: its own declarations, so that it builds where no toolkit is.
 * Names, numbers and argument types are the interface's (NVIDIA's documentation of the Driver API); where a
 * toolkit is installed a test compares them with its cuda.h. */
#ifndef GAIAFS_GPU_CUDA_API_H
#define GAIAFS_GPU_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice; /* an ordinal, as far as anybody may know */
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef void (*CUhostFn)(void *context);

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;

typedef struct CUmemLocation_st {
    int type; /* CU_MEM_LOCATION_TYPE_* */
    int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st {
    int type;                 /* CU_MEM_ALLOCATION_TYPE_* */
    int requestedHandleTypes; /* CU_MEM_HANDLE_TYPE_* */
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    int flags; /* CU_MEM_ACCESS_FLAGS_* */
} CUmemAccessDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, /* the first and the last of the errors about captures */
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
};

/* CUdevice_attribute */
enum {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED = 86,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
};

enum {
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1,
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0,
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100,
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

/* The context's default stream, and the calling thread's, which waits for no other. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

/* CUdriverProcAddressQueryResult */
enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

/* The one name that is looked up by dlsym(): it finds the others. flags: 0, the default. */
typedef CUresult cuGetProcAddress_v2_type(const char *symbol, void **function_out, int version,
                                          uint64_t flags, int *status_out);

/* X(name, version, required, parameters): each entry point with the version of the interface whose signature
 * this is. Those that are not required may be NULL. */
#define CUDA_ENTRY_POINTS(X)                                                                           \
    X(cuInit, 2000, 1, (unsigned flags))                                                               \
    X(cuDriverGetVersion, 2020, 1, (int *version_out))                                                 \
    X(cuGetErrorName, 6000, 1, (CUresult error, const char **name_out))                                \
    X(cuGetErrorString, 6000, 1, (CUresult error, const char **text_out))                              \
    X(cuDeviceGetCount, 2000, 1, (int *count_out))                                                     \
    X(cuDeviceGet, 2000, 1, (CUdevice * device_out, int ordinal))                                      \
    X(cuDeviceGetName, 2000, 1, (char *name_out, int room, CUdevice device))                           \
    X(cuDeviceGetUuid, 11040, 1, (CUuuid * uuid_out, CUdevice device))                                 \
    X(cuDeviceTotalMem, 3020, 1, (size_t * bytes_out, CUdevice device))                                \
    X(cuDeviceGetAttribute, 2000, 1, (int *value_out, int attribute, CUdevice device))                 \
    X(cuDeviceGetPCIBusId, 4010, 0, (char *id_out, int room, CUdevice device))                         \
    X(cuDevicePrimaryCtxRetain, 7000, 1, (CUcontext * context_out, CUdevice device))                   \
    X(cuDevicePrimaryCtxRelease, 11000, 1, (CUdevice device))                                          \
    X(cuCtxPushCurrent, 4000, 1, (CUcontext context))                                                  \
    X(cuCtxPopCurrent, 4000, 1, (CUcontext * context_out))                                             \
    X(cuCtxSynchronize, 2000, 1, (void))                                                               \
    X(cuStreamCreate, 2000, 1, (CUstream * stream_out, unsigned flags))                                \
    X(cuStreamDestroy, 4000, 1, (CUstream stream))                                                     \
    X(cuStreamSynchronize, 2000, 1, (CUstream stream))                                                 \
    X(cuStreamQuery, 2000, 1, (CUstream stream))                                                       \
    X(cuStreamIsCapturing, 10000, 1, (CUstream stream, int *status_out))                               \
    X(cuThreadExchangeStreamCaptureMode, 10010, 0, (int *mode))                                        \
    X(cuLaunchHostFunc, 10000, 1, (CUstream stream, CUhostFn function, void *context))                 \
    X(cuModuleLoadData, 2000, 1, (CUmodule * module_out, const void *image))                           \
    X(cuModuleUnload, 2000, 1, (CUmodule module))                                                      \
    X(cuModuleGetFunction, 2000, 1, (CUfunction * function_out, CUmodule module, const char *name))    \
    X(cuLaunchKernel, 4000, 1,                                                                         \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,  \
       void **extra))                                                                                  \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, 0,                                            \
      (int *blocks_out, CUfunction function, int threads, size_t shared_bytes))                        \
    X(cuMemGetInfo, 3020, 1, (size_t * free_out, size_t * total_out))                                  \
    X(cuMemAlloc, 3020, 1, (CUdeviceptr * pointer_out, size_t bytes))                                  \
    X(cuMemFree, 3020, 1, (CUdeviceptr pointer))                                                       \
    X(cuMemHostAlloc, 2020, 1, (void **pointer_out, size_t bytes, unsigned flags))                     \
    X(cuMemFreeHost, 2000, 1, (void *pointer))                                                         \
    X(cuMemHostRegister, 6050, 0, (void *pointer, size_t bytes, unsigned flags))                       \
    X(cuMemHostUnregister, 4000, 0, (void *pointer))                                                   \
    X(cuMemcpyHtoDAsync, 3020, 1, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))   \
    X(cuMemcpyDtoHAsync, 3020, 1, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))         \
    X(cuMemsetD8Async, 3020, 1, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream))  \
    X(cuMemGetAllocationGranularity, 10020, 1,                                                         \
      (size_t * bytes_out, const CUmemAllocationProp *properties, int option))                         \
    X(cuMemCreate, 10020, 1,                                                                           \
      (CUmemGenericAllocationHandle * handle_out, size_t bytes, const CUmemAllocationProp *properties, \
       unsigned long long flags))                                                                      \
    X(cuMemRelease, 10020, 1, (CUmemGenericAllocationHandle handle))                                   \
    X(cuMemExportToShareableHandle, 10020, 1,                                                          \
      (void *handle_out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))     \
    X(cuMemImportFromShareableHandle, 10020, 1,                                                        \
      (CUmemGenericAllocationHandle * handle_out, void *os_handle, int type))                          \
    X(cuMemAddressReserve, 10020, 1,                                                                   \
      (CUdeviceptr * pointer_out, size_t bytes, size_t alignment, CUdeviceptr wish,                    \
       unsigned long long flags))                                                                      \
    X(cuMemAddressFree, 10020, 1, (CUdeviceptr pointer, size_t bytes))                                 \
    X(cuMemMap, 10020, 1,                                                                              \
      (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,          \
       unsigned long long flags))                                                                      \
    X(cuMemUnmap, 10020, 1, (CUdeviceptr pointer, size_t bytes))                                       \
    X(cuMemSetAccess, 10020, 1,                                                                        \
      (CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count))                \
    X(cuMemGetHandleForAddressRange, 11070, 0,                                                         \
      (void *handle_out, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags))       \
    X(cuFlushGPUDirectRDMAWrites, 11030, 0, (int target, int scope))

struct cuda_api {
#define X(name, version, required, parameters) CUresult(*name) parameters;
    CUDA_ENTRY_POINTS(X)
#undef X
};

#endif
