/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "gpu/kernels.h"

bool cuda_is_of_capture(CUresult error)
{
    return error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

int cuda_errno(CUresult error)
{
    if (error == CUDA_SUCCESS)
        return 0;
    return error == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : cuda_is_of_capture(error) ? -EBUSY : -EIO;
}

int cuda_opening_errno(CUresult error)
{
    int lack = error == CUDA_SUCCESS ? 0 : cuda_lacks_descriptors();

    return lack ? lack : cuda_errno(error);
}

/* Whether it can do what mappings need: memory that is mapped by hand, and exported; and our kernels. */
static int check_abilities(const struct cuda_device *device, char why_out[CUDA_WHY_SIZE])
{
    static const struct {
        int attribute;
        const char *text;
    } needed[] = {
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "exports of memory as descriptors"},
    };

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        int value = 0;
        if (device->api->cuDeviceGetAttribute(&value, needed[i].attribute, device->device) != CUDA_SUCCESS ||
            !value) {
            snprintf(why_out, CUDA_WHY_SIZE, "the GPU has no %s", needed[i].text);
            return -ENODEV;
        }
    }
    int capability = cuda_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    if (capability < GAIA_KERNELS_CAPABILITY) {
        snprintf(why_out, CUDA_WHY_SIZE, "the GPU's compute capability is %d, and %d is needed", capability,
                 GAIA_KERNELS_CAPABILITY);
        return -ENODEV;
    }
    return 0;
}

static int describe(const struct cuda_api *api, int ordinal, struct cuda_device *device)
{
    *device = (struct cuda_device){.api = api, .ordinal = ordinal};
    CUresult error = api->cuDeviceGet(&device->device, ordinal);
    if (error == CUDA_SUCCESS)
        error = api->cuDeviceGetUuid(&device->uuid, device->device);
    return error == CUDA_ERROR_INVALID_DEVICE ? -ENODEV : cuda_errno(error);
}

static int retain(struct cuda_device *device, char why_out[CUDA_WHY_SIZE])
{
    int error = check_abilities(device, why_out);
    if (error)
        return error;
    CUresult result = device->api->cuDevicePrimaryCtxRetain(&device->context, device->device);
    if (result != CUDA_SUCCESS)
        snprintf(why_out, CUDA_WHY_SIZE, "the GPU's context does not start: %s",
                 cuda_error_name(device->api, result));
    return cuda_opening_errno(result);
}

int cuda_device_open(int ordinal, struct cuda_device *device_out, char why_out[CUDA_WHY_SIZE])
{
    const struct cuda_api *api;

    int error = cuda_load(&api, why_out);
    if (error)
        return error == -ECHILD ? -EIO : error;
    error = describe(api, ordinal, device_out);
    if (error) {
        snprintf(why_out, CUDA_WHY_SIZE, "there is no GPU %d", ordinal);
        return error;
    }
    return retain(device_out, why_out);
}

int cuda_device_find(const CUuuid *uuid, struct cuda_device *device_out, char why_out[CUDA_WHY_SIZE])
{
    const struct cuda_api *api;
    int count = 0;

    int error = cuda_load(&api, why_out);
    if (error)
        return error == -ECHILD ? -EIO : error;
    if (api->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        count = 0;
    for (int i = 0; i < count; i++)
        if (!describe(api, i, device_out) && !memcmp(&device_out->uuid, uuid, sizeof *uuid))
            return retain(device_out, why_out);
    snprintf(why_out, CUDA_WHY_SIZE, "no GPU with that UUID (does CUDA_VISIBLE_DEVICES hide it?)");
    return -ENODEV;
}

void cuda_device_close(const struct cuda_device *device)
{
    device->api->cuDevicePrimaryCtxRelease(device->device);
}

/* While a thread of the program captures a stream in global mode, CUDA refuses what memory is mapped with to
 * all threads, and ends the capture. But to those that say that they have nothing to do with it. */
static __thread unsigned entered;
static __thread int mode_before; /* of captures; negative: it was left alone */

static void leave_captures_alone(const struct cuda_device *device)
{
    mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!device->api->cuThreadExchangeStreamCaptureMode ||
        device->api->cuThreadExchangeStreamCaptureMode(&mode_before) != CUDA_SUCCESS)
        mode_before = -1;
}

CUresult cuda_enter_saying(const struct cuda_device *device)
{
    CUresult error = device->api->cuCtxPushCurrent(device->context);

    if (error == CUDA_SUCCESS && entered++ == 0)
        leave_captures_alone(device);
    return error;
}

int cuda_enter(const struct cuda_device *device)
{
    return cuda_errno(cuda_enter_saying(device));
}

void cuda_leave(const struct cuda_device *device)
{
    CUcontext old;

    if (--entered == 0 && mode_before >= 0)
        device->api->cuThreadExchangeStreamCaptureMode(&mode_before);
    device->api->cuCtxPopCurrent(&old);
}

/* 0 where the driver does not know the attribute. */
int cuda_attribute(const struct cuda_device *device, int attribute)
{
    int value = 0;

    return device->api->cuDeviceGetAttribute(&value, attribute, device->device) == CUDA_SUCCESS ? value : 0;
}

CUmemAllocationProp cuda_memory_properties(const struct cuda_device *device)
{
    bool rdma = cuda_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);

    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->device},
                                 .allocFlags.gpuDirectRDMACapable = rdma};
}

CUmemAccessDesc cuda_memory_access(const struct cuda_device *device, int writable)
{
    return (CUmemAccessDesc){.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->device},
                             .flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                               : CU_MEM_ACCESS_FLAGS_PROT_READ};
}
