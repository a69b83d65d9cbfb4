/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NVIDIA's driver, for tests only: as much of libcuda.so.1 as gaiafs uses, with GPUs that are
 * not there. $STANDIN_CUDA says what is wrong with it, in words of the form NAME=VALUE, separated by commas:
 *
 * gpus=N        how many (1)
 * first=N       which GPU of the machine is number 0 to this process (0), as with CUDA_VISIBLE_DEVICES
 * memory=N      bytes of a GPU that this process can allocate
 * handles=N     pieces of memory that it can have for others at a time
 * slow=N        microseconds that a copy to the GPU takes longer
 * while=PATH    it does as long as there is such a file
 * late=N        microseconds after which what cuMemcpyHtoD() copies arrives: it has returned then, as a
 *               real one has when it copies 64 KiB or less of memory that is not pinned
 * free=N        a GPU that takes no time, to see what the rest costs: copies of 64 KiB or more, memsets and
 *               kernels of gpu/kernels.c do nothing, and of each 8 pages that are searched N were stored to
 * version=N     of the interface (12040)
 * missing=NAME  an entry point that it has not got
 * refuse=NAME   an entry point of which each call has CUDA_ERROR_NOT_SUPPORTED
 * capability=N  the first number of its compute capability (9)
 * cannot=N      an attribute that is 0
 * can=N         an attribute that is 1
 * init=N, count=N, name=N   the error of cuInit, cuDeviceGetCount, cuDeviceGetName
 * stuck=PATH    the context of GPU 1 does not start as long as there is such a file
 * opaque=1      the program can't load or store in its memory, as in a GPU's (else it can, at its address)
 * opaque=2      stores go nowhere, as a NIC's do where something drops them on their way
 * control=PATH  a file that is read at each call: "NAME COUNT ERROR"
 *
 * When a call of NAME (*: any) comes, the file's COUNT goes down by one, and when it is 0 the call has this
 * error; with COUNT 0 each call has it, with COUNT -N each from the Nth on.
 *
 * What is allocated is memory of this machine, and a kernel runs on a CPU, in a thread of its stream. It is
 * strict: what the interface leaves undefined is an error here, or the end of the program.
 *
 * Built with -DSTANDIN_OLD it is a driver from before CUDA 12, which has no cuGetProcAddress_v2. */
#include "tests/cuda/standin.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPU_BYTES ((size_t)80 << 30)

CUresult cuDriverGetVersion(int *version_out);

/* The value of a word, in a static buffer, or NULL. */
const char *standin_word(const char *name)
{
    static __thread char value[256];
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

long long standin_number(const char *name, long long otherwise)
{
    const char *value = standin_word(name);

    return value ? atoll(value) : otherwise;
}

static int number(const char *name, int otherwise)
{
    return (int)standin_number(name, otherwise);
}

__thread bool standin_in_host_function;

bool standin_is_device(CUdevice device)
{
    return device >= STANDIN_FIRST_DEVICE && device < STANDIN_FIRST_DEVICE + number("gpus", 1);
}

void standin_misused(const char *what)
{
    fprintf(stderr, "stand-in for CUDA: %s\n", what);
    abort();
}

/* Counts calls down in the control file. Tests write it when nothing runs; of two calls at once one may not
 * be counted. */
static pid_t starter; /* of the driver: it works nowhere else */

CUresult standin_injected(const char *name)
{
    if (starter && starter != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    const char *refused = standin_word("refuse");
    if (refused && !strcmp(refused, name))
        return CUDA_ERROR_NOT_SUPPORTED;
    const char *path = standin_word("control");
    char which[64];
    long count;
    int error;

    FILE *file = path ? fopen(path, "r+") : NULL;
    if (!file)
        return CUDA_SUCCESS;
    bool due = fscanf(file, "%63s %ld %d", which, &count, &error) == 3 &&
               (!strcmp(which, name) || !strcmp(which, "*"));
    if (due && count < -1) {
        due = false;
        rewind(file);
        fprintf(file, "%s %ld %d     \n", which, count + 1, error);
    }
    if (due && count > 0) {
        due = --count == 0;
        rewind(file);
        if (due) /* once */
            fprintf(file, "done %ld %d     \n", count, error);
        else
            fprintf(file, "%s %ld %d     \n", which, count, error);
    }
    fclose(file);
    return due ? error : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version_out)
{
    ENTER_QUIETLY();
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
    ENTER_QUIETLY();
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {
        {1, "CUDA_ERROR_INVALID_VALUE"},      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},  {218, "CUDA_ERROR_INVALID_PTX"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},  {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {802, "CUDA_ERROR_SYSTEM_NOT_READY"}, {999, "CUDA_ERROR_UNKNOWN"},
    };

    *name_out = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].error == error)
            *name_out = names[i].name;
    return *name_out ? CUDA_SUCCESS : 1;
}

static CUresult get_error_string(CUresult error, const char **text_out)
{
    return get_error_name(error, text_out);
}

static CUresult init(unsigned flags)
{
    ENTER_QUIETLY();
    starter = getpid();
    return flags ? 1 : number("init", CUDA_SUCCESS);
}

static CUresult get_count(int *count_out)
{
    ENTER_QUIETLY();
    *count_out = number("gpus", 1);
    ENTER("cuDeviceGetCount");
    return number("count", CUDA_SUCCESS);
}

static CUresult get(CUdevice *device_out, int ordinal)
{
    ENTER_QUIETLY();
    if (ordinal < 0 || ordinal >= number("gpus", 1))
        return 101;
    *device_out = ordinal + STANDIN_FIRST_DEVICE;
    return CUDA_SUCCESS;
}

/* An ordinal is none. */
#define ENTER_DEVICE(device)                  \
    do {                                      \
        ENTER_QUIETLY();                      \
        if (!standin_is_device(device))       \
            return CUDA_ERROR_INVALID_DEVICE; \
    } while (0)

static CUresult get_name(char *name_out, int room, CUdevice device)
{
    ENTER_DEVICE(device);
    snprintf(name_out, (size_t)room, "stand-in %d", device - STANDIN_FIRST_DEVICE);
    return number("name", CUDA_SUCCESS);
}

static CUresult get_uuid(CUuuid *uuid_out, CUdevice device)
{
    ENTER_DEVICE(device);
    memset(uuid_out, 0, sizeof *uuid_out);
    snprintf(uuid_out->bytes, sizeof uuid_out->bytes, "stand-in %d",
             device - STANDIN_FIRST_DEVICE + number("first", 0));
    return CUDA_SUCCESS;
}

static CUresult total_memory(size_t *bytes_out, CUdevice device)
{
    ENTER_DEVICE(device);
    *bytes_out = GPU_BYTES * (size_t)(device - STANDIN_FIRST_DEVICE + 1);
    if (standin_word("memory"))
        *bytes_out = (size_t)standin_number("memory", 0);
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value_out, int attribute, CUdevice device)
{
    ENTER_DEVICE(device);
    *value_out = 0;
    if (attribute == number("cannot", -1))
        return CUDA_SUCCESS;
    if (attribute == number("can", -1)) {
        *value_out = 1;
        return CUDA_SUCCESS;
    }
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value_out = number("capability", 9);
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value_out = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value_out = 132;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        *value_out = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        *value_out = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
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
    ENTER_DEVICE(device);
    snprintf(id_out, (size_t)room, "0000:%02x:00.0", device);
    return CUDA_SUCCESS;
}

static const struct standin_row functions[] = {
    ROW("cuInit", 2000, init),
    ROW("cuDriverGetVersion", 2020, cuDriverGetVersion),
    ROW("cuGetErrorName", 6000, get_error_name),
    ROW("cuGetErrorString", 6000, get_error_string),
    ROW("cuDeviceGetCount", 2000, get_count),
    ROW("cuDeviceGet", 2000, get),
    ROW("cuDeviceGetName", 2000, get_name),
    ROW("cuDeviceTotalMem", 3020, total_memory),
    ROW("cuDeviceGetAttribute", 2000, get_attribute),
    ROW("cuDeviceGetPCIBusId", 4010, get_bus),
    ROW("cuDeviceGetUuid", 11040, get_uuid),
    {NULL, 0, NULL},
};

CUresult cuGetProcAddress_v2(const char *symbol, void **function_out, int version, uint64_t flags,
                             int *status_out)
{
    const char *missing = standin_word("missing");

    ENTER_QUIETLY();
    *function_out = NULL;
    *status_out = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (flags || version < 2000)
        return 1;
    if (missing && !strcmp(symbol, missing)) /* no error: the status says it */
        return CUDA_SUCCESS;
    const struct standin_row *const tables[] = {functions, standin_context_rows, standin_memory_rows,
                                                standin_run_rows, standin_kernel_rows};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        for (const struct standin_row *row = tables[t]; row->name; row++) {
            if (strcmp(symbol, row->name))
                continue;
            if (version < row->version) { /* a real one may have an older form of it */
                *status_out = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
                return CUDA_SUCCESS;
            }
            memcpy(function_out, &row->function, sizeof *function_out);
            *status_out = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_SUCCESS;
}
#endif
