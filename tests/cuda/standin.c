/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's driver, for tests only: as much of libcuda.so.1 as gaiafs uses, with GPUs that are
 * not there. $STANDIN_CUDA says what is wrong with it, in words of the form NAME=VALUE, separated by commas:
 *
 * gpus=N        how many (1)
 * version=N     of the interface (12040)
 * missing=NAME  an entry point that it has not got
 * init=N, count=N, name=N   the error of cuInit, cuDeviceGetCount, cuDeviceGetName
 *
 * Built with -DSTANDIN_OLD it is a driver from before CUDA 12, which has no cuGetProcAddress_v2. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda_api.h"

#define GPU_BYTES ((size_t)80 << 30)

CUresult cuDriverGetVersion(int *version_out);

/* The value of a word, in a static buffer, or NULL. */
static const char *word(const char *name)
{
    static char value[64];
    const char *at = getenv("STANDIN_CUDA");
    size_t length = strlen(name);

    while (at && *at) {
        if (!strncmp(at, name, length) && at[length] == '=') {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(at + length + 1, ","), at + length + 1);
            return value;
        }
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return NULL;
}

static int number(const char *name, int otherwise)
{
    const char *value = word(name);

    return value ? atoi(value) : otherwise;
}

CUresult cuDriverGetVersion(int *version_out)
{
#ifdef STANDIN_OLD
    *version_out = number("version", 11080);
#else
    *version_out = number("version", 12040);
#endif
    return CUDA_SUCCESS;
}

#ifndef STANDIN_OLD
cuGetProcAddress_v2_type cuGetProcAddress_v2;

static CUresult get_error_name(CUresult error, const char **name_out)
{
    *name_out = error == 999 ? "CUDA_ERROR_UNKNOWN" : error == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : NULL;
    return *name_out ? CUDA_SUCCESS : 1;
}

static CUresult get_error_string(CUresult error, const char **text_out)
{
    return get_error_name(error, text_out);
}

static CUresult init(unsigned flags)
{
    return flags ? 1 : number("init", CUDA_SUCCESS);
}

static CUresult get_count(int *count_out)
{
    *count_out = number("gpus", 1);
    return number("count", CUDA_SUCCESS);
}

static CUresult get(CUdevice *device_out, int ordinal)
{
    if (ordinal < 0 || ordinal >= number("gpus", 1))
        return 101;
    *device_out = ordinal + 7; /* no ordinal: who takes it for one is found out */
    return CUDA_SUCCESS;
}

static CUresult get_name(char *name_out, int room, CUdevice device)
{
    snprintf(name_out, (size_t)room, "stand-in %d", device - 7);
    return number("name", CUDA_SUCCESS);
}

static CUresult total_memory(size_t *bytes_out, CUdevice device)
{
    *bytes_out = GPU_BYTES * (size_t)(device - 6);
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value_out, int attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value_out = 9;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value_out = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value_out = 132;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        *value_out = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: /* younger than this driver */
        return 1;
    default:
        *value_out = 0;
        return CUDA_SUCCESS;
    }
}

static CUresult get_bus(char *id_out, int room, CUdevice device)
{
    snprintf(id_out, (size_t)room, "0000:%02x:00.0", device);
    return CUDA_SUCCESS;
}

#define ROW(name, function)                          \
    {                                                \
        name, (void (*)(void))(uintptr_t)(function), \
    }
static const struct {
    const char *name;
    void (*function)(void);
} functions[] = {
    ROW("cuInit", init),
    ROW("cuDriverGetVersion", cuDriverGetVersion),
    ROW("cuGetErrorName", get_error_name),
    ROW("cuGetErrorString", get_error_string),
    ROW("cuDeviceGetCount", get_count),
    ROW("cuDeviceGet", get),
    ROW("cuDeviceGetName", get_name),
    ROW("cuDeviceTotalMem", total_memory),
    ROW("cuDeviceGetAttribute", get_attribute),
    ROW("cuDeviceGetPCIBusId", get_bus),
};

CUresult cuGetProcAddress_v2(const char *symbol, void **function_out, int version, uint64_t flags,
                             int *status_out)
{
    const char *missing = word("missing");

    *function_out = NULL;
    *status_out = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (flags || version < 2000)
        return 1;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(symbol, functions[i].name) || (missing && !strcmp(symbol, missing)))
            continue;
        memcpy(function_out, &functions[i].function, sizeof *function_out);
        *status_out = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
#endif
