/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_module.h"

#include "gpu/kernels.h"

void cuda_module_open(struct cuda_module *module)
{
    lock_init(&module->lock, LOCK_MODULE);
    module->module = NULL;
}

void cuda_module_close(const struct cuda_device *device, struct cuda_module *module)
{
    if (module->module && !cuda_enter(device)) {
        device->api->cuModuleUnload(module->module);
        cuda_leave(device);
    }
    pthread_mutex_destroy(&module->lock);
}

CUresult cuda_module_get(const struct cuda_device *device, struct cuda_module *module, CUmodule *module_out)
{
    CUmodule loaded; /* after an error a driver may have left anything in it */
    CUresult error = CUDA_SUCCESS;

    pthread_mutex_lock(&module->lock);
    if (!module->module) {
        error = device->api->cuModuleLoadData(&loaded, gaia_kernels_ptx);
        if (error == CUDA_SUCCESS)
            module->module = loaded;
    }
    *module_out = module->module;
    pthread_mutex_unlock(&module->lock);
    return error;
}
