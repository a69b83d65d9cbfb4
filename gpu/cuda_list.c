/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_list.h"

#include <stdio.h>

#include "gpu/kernels.h"

static const struct {
    const char *name;
    int attribute;
} abilities[] = {
    {"pageable_access", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {"host_page_tables", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES},
    {"host_native_atomics", CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED},
    {"virtual_memory", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
    {"export_descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
    {"gpudirect_rdma", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
    {"dma_buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED},
    {"host_numa_memory", CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
};

/* What a driver does not know, because it is older than the ability, the device can't do. */
static json_t *list_abilities(const struct cuda_api *api, CUdevice device)
{
    json_t *can = json_object();

    for (size_t i = 0; i < sizeof abilities / sizeof abilities[0]; i++) {
        int value = 0;
        CUresult error = api->cuDeviceGetAttribute(&value, abilities[i].attribute, device);
        json_object_set_new(can, abilities[i].name, json_boolean(error == CUDA_SUCCESS && value));
    }
    return can;
}

/* What mappings need (gpu/cuda_device.c): the first that is missing. */
static void say_not_used(json_t *object, int capability)
{
    static const char *const needed[] = {"virtual_memory", "export_descriptors"};
    const json_t *can = json_object_get(object, "can");

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (json_is_true(json_object_get(can, needed[i])))
            continue;
        json_object_set_new(object, "not_used", json_sprintf("it has no %s", needed[i]));
        return;
    }
    if (capability < GAIA_KERNELS_CAPABILITY)
        json_object_set_new(object, "not_used",
                            json_sprintf("its compute capability is %d, and %d is needed", capability,
                                         GAIA_KERNELS_CAPABILITY));
}

static CUresult describe(const struct cuda_api *api, CUdevice device, json_t *object)
{
    char name[256] = "", pci[32] = "", capability[32];
    int major = 0, minor = 0, multiprocessors = 0;
    size_t bytes = 0;

    CUresult error = api->cuDeviceGetName(name, sizeof name, device);
    if (!error)
        error = api->cuDeviceTotalMem(&bytes, device);
    if (!error)
        error = api->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (!error)
        error = api->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (!error)
        error = api->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (error)
        return error;
    name[sizeof name - 1] = '\0';
    if (api->cuDeviceGetPCIBusId && api->cuDeviceGetPCIBusId(pci, sizeof pci, device))
        pci[0] = '\0';
    snprintf(capability, sizeof capability, "%d.%d", major, minor);
    json_object_set_new(object, "name", json_string(name));
    json_object_set_new(object, "pci", json_string(pci));
    json_object_set_new(object, "total_bytes", json_integer((json_int_t)bytes));
    json_object_set_new(object, "compute_capability", json_string(capability));
    json_object_set_new(object, "multiprocessors", json_integer(multiprocessors));
    json_object_set_new(object, "can", list_abilities(api, device));
    say_not_used(object, major);
    return CUDA_SUCCESS;
}

json_t *cuda_list(char why_out[CUDA_WHY_SIZE])
{
    const struct cuda_api *api;
    int count = 0;

    if (cuda_load(&api, why_out))
        return NULL;
    json_t *list = json_array();
    CUresult error = api->cuDeviceGetCount(&count);
    if (error || !list) {
        snprintf(why_out, CUDA_WHY_SIZE, "%s", error ? cuda_error_name(api, error) : "no memory");
        json_decref(list);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        json_t *object = json_object();
        CUdevice device;
        char id[32];

        snprintf(id, sizeof id, "cuda:%d", i);
        json_object_set_new(object, "device", json_string(id));
        error = api->cuDeviceGet(&device, i);
        if (!error)
            error = describe(api, device, object);
        if (error)
            json_object_set_new(object, "error", json_string(cuda_error_name(api, error)));
        json_array_append_new(list, object);
    }
    return list;
}
