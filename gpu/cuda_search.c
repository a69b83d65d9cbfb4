/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_search.h"

void cuda_search_open(struct cuda_search *search, struct cuda_module *module)
{
    lock_init(&search->lock, LOCK_SEARCH);
    search->module = module;
}

/* The context is entered, as for all below. */
static void undo(const struct cuda_api *api, struct cuda_search *search)
{
    if (search->flag_here)
        api->cuMemFreeHost(search->flag_here);
    if (search->flag)
        api->cuMemFree(search->flag);
    if (search->stream)
        api->cuStreamDestroy(search->stream);
    search->flag_here = NULL;
    search->flag = 0;
    search->stream = NULL;
}

void cuda_search_close(const struct cuda_device *device, struct cuda_search *search)
{
    if (search->state == SEARCH_READY && !cuda_enter(device)) {
        undo(device->api, search);
        cuda_leave(device);
    }
    pthread_mutex_destroy(&search->lock);
}

/* Of a stream that waits for no other: what the program has put into its own has ended, or is none of what is
 * looked for. */
static CUresult prepare(const struct cuda_device *device, struct cuda_search *search)
{
    const struct cuda_api *api = device->api;
    CUmodule module;
    void *host;

    CUresult error = cuda_module_get(device, search->module, &module);
    if (error == CUDA_SUCCESS)
        error = cuda_kernel_find(device, module, "gaia_any_modified", &search->kernel);
    if (error == CUDA_SUCCESS) {
        error = api->cuStreamCreate(&search->stream, CU_STREAM_NON_BLOCKING);
        if (error != CUDA_SUCCESS)
            search->stream = NULL;
    }
    if (error == CUDA_SUCCESS) {
        error = api->cuMemAlloc(&search->flag, sizeof *search->flag_here);
        if (error != CUDA_SUCCESS)
            search->flag = 0;
    }
    if (error == CUDA_SUCCESS) {
        error = api->cuMemHostAlloc(&host, sizeof *search->flag_here, CU_MEMHOSTALLOC_PORTABLE);
        if (error == CUDA_SUCCESS)
            search->flag_here = host;
    }
    return error;
}

static bool is_ready(const struct cuda_device *device, struct cuda_search *search)
{
    if (search->state != SEARCH_UNMADE)
        return search->state == SEARCH_READY;
    CUresult error = prepare(device, search);
    if (error == CUDA_SUCCESS) {
        search->state = SEARCH_READY;
        return true;
    }
    if (error != CUDA_ERROR_OUT_OF_MEMORY) /* which the program may have filled for a while */
        search->state = SEARCH_NONE;
    undo(device->api, search);
    return false;
}

static bool finds_none(const struct cuda_device *device, struct cuda_search *search,
                       const struct cuda_searched *searched)
{
    const struct cuda_api *api = device->api;
    struct cuda_searched s = *searched;

    *search->flag_here = 1;
    CUresult error = api->cuMemsetD8Async(search->flag, 0, sizeof *search->flag_here, search->stream);
    if (error == CUDA_SUCCESS)
        error = cuda_kernel_launch(
            device, &search->kernel, search->stream, s.count,
            (void *[]){&s.pages, &s.first, &s.count, &s.digests, &s.chunk, &s.room, &search->flag});
    if (error == CUDA_SUCCESS)
        error = api->cuMemcpyDtoHAsync(search->flag_here, search->flag, sizeof *search->flag_here,
                                       search->stream);
    CUresult ended = api->cuStreamSynchronize(search->stream); /* also after an error: it may be under way */
    return error == CUDA_SUCCESS && ended == CUDA_SUCCESS && !*search->flag_here;
}

bool cuda_search_finds_none(const struct cuda_device *device, struct cuda_search *search,
                            const struct cuda_searched *searched)
{
    bool none = false;

    pthread_mutex_lock(&search->lock);
    if (!cuda_enter(device)) {
        none = is_ready(device, search) && finds_none(device, search, searched);
        cuda_leave(device);
    }
    pthread_mutex_unlock(&search->lock);
    return none;
}
