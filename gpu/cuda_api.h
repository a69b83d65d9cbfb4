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

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_FOUND = 500,
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
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
};

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
 * this is. What is not required may be NULL. */
#define CUDA_ENTRY_POINTS(X)                                                           \
    X(cuInit, 2000, 1, (unsigned flags))                                               \
    X(cuDriverGetVersion, 2020, 1, (int *version_out))                                 \
    X(cuGetErrorName, 6000, 1, (CUresult error, const char **name_out))                \
    X(cuGetErrorString, 6000, 1, (CUresult error, const char **text_out))              \
    X(cuDeviceGetCount, 2000, 1, (int *count_out))                                     \
    X(cuDeviceGet, 2000, 1, (CUdevice * device_out, int ordinal))                      \
    X(cuDeviceGetName, 2000, 1, (char *name_out, int room, CUdevice device))           \
    X(cuDeviceTotalMem, 3020, 1, (size_t * bytes_out, CUdevice device))                \
    X(cuDeviceGetAttribute, 2000, 1, (int *value_out, int attribute, CUdevice device)) \
    X(cuDeviceGetPCIBusId, 4010, 0, (char *id_out, int room, CUdevice device))

struct cuda_api {
#define X(name, version, required, parameters) CUresult(*name) parameters;
    CUDA_ENTRY_POINTS(X)
#undef X
};

#endif
