/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's contexts: the primary one of each GPU, and which of them threads have. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda/standin.h"

struct CUctx_st {
    unsigned retained;
};

static struct CUctx_st contexts[16];
static __thread CUcontext stack[8];
static __thread unsigned depth;

bool standin_has_context(void)
{
    return depth > 0;
}

CUcontext standin_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUdevice standin_device(void)
{
    return depth ? (CUdevice)(stack[depth - 1] - contexts) + STANDIN_FIRST_DEVICE : -1;
}

static CUresult retain(CUcontext *context_out, CUdevice device)
{
    *context_out = (CUcontext)STANDIN_NOTHING;
    ENTER("cuDevicePrimaryCtxRetain");
    if (!standin_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    const char *path = device == STANDIN_FIRST_DEVICE + 1 ? standin_word("stuck") : NULL;
    while (path && !access(path, F_OK))
        usleep(1000);
    contexts[device - STANDIN_FIRST_DEVICE].retained++;
    *context_out = &contexts[device - STANDIN_FIRST_DEVICE];
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRelease");
    if (!standin_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!contexts[device - STANDIN_FIRST_DEVICE].retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    contexts[device - STANDIN_FIRST_DEVICE].retained--;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    ENTER("cuCtxPushCurrent");
    if (!context->retained || depth == sizeof stack / sizeof stack[0])
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context_out)
{
    ENTER_QUIETLY();
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_out = stack[--depth];
    return CUDA_SUCCESS;
}

/* --- what tests call by their names, as a program that is linked with the driver would --- */

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice *device_out, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context_out, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context_out);

CUresult cuInit(unsigned flags)
{
    ENTER_QUIETLY();
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device_out, int ordinal)
{
    ENTER_QUIETLY();
    *device_out = ordinal + STANDIN_FIRST_DEVICE;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context_out, CUdevice device)
{
    return retain(context_out, device);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER_QUIETLY();
    stack[0] = context;
    depth = depth ? depth : 1;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context_out)
{
    ENTER_QUIETLY();
    *context_out = depth ? standin_context() : NULL;
    return CUDA_SUCCESS;
}

const struct standin_row standin_context_rows[] = {
    ROW("cuDevicePrimaryCtxRetain", 7000, retain),
    ROW("cuDevicePrimaryCtxRelease", 11000, release),
    ROW("cuCtxPushCurrent", 4000, push),
    ROW("cuCtxPopCurrent", 4000, pop),
    {NULL, 0, NULL},
};
