/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device, the client's half: frames are memory that the daemon has allocated and exported; here they
 * are mapped, one chunk behind the other, into this process's primary context. Kernels see them as any other
 * memory of the GPU. Beside them are the digests of what they were granted with, to read, where the daemon
 * has some to give: a mapping without them is as good, but for the time that its acquires and releases take.
 */
#include <errno.h>
#include <unistd.h>

#include "consistency/digest.h"
#include "consistency/page.h"
#include "gpu/demand_map.h"
#include "gpu/driver.h"
#include "gpu/mapping.h"
#include "gpu/session.h"

/* The reply has the descriptors of a chunk's memory, and of its digests, or -1. *bytes_out: of those. */
static int ask_for_chunk(struct gaia_mapping *mapping, uint64_t chunk, struct descriptors *own_out,
                         uint64_t *bytes_out)
{
    const struct gaia_message plain = {.op = GAIA_OP_CHUNK, .map = mapping->map, .value = {chunk}};
    struct gaia_message message = plain;

    if (mapping->writable)
        message.flags = GAIA_CHUNK_DIGESTS;
    int error = gaia_session_call(mapping->session, &message, own_out);
    if (error == -EMFILE && mapping->writable) { /* there may be room for one */
        message = plain;
        error = gaia_session_call(mapping->session, &message, own_out);
    }
    *bytes_out = message.value[0];
    return error;
}

/* Memory that the daemon has exported, at its place. The context is entered, as for all that follow. */
static int map_memory(const struct gaia_mapping *mapping, int fd, CUdeviceptr at, size_t bytes)
{
    const struct cuda_api *api = mapping->device->cuda.api;
    CUmemGenericAllocationHandle memory;

    int error = cuda_opening_errno(api->cuMemImportFromShareableHandle(
        &memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (error)
        return error;
    error = cuda_errno(api->cuMemMap(at, bytes, 0, memory, 0));
    api->cuMemRelease(memory); /* what is mapped stays */
    return error;
}

static uint64_t chunks_of(const struct gaia_mapping *mapping)
{
    return mapping->reserved_bytes / mapping->chunk_bytes;
}

/* Those of so many chunks are mapped. */
static void unmap_digests(struct gaia_mapping *mapping, uint64_t chunks)
{
    const struct cuda_api *api = mapping->device->cuda.api;

    for (uint64_t i = 0; i < chunks && mapping->digests; i++)
        api->cuMemUnmap(mapping->digests + i * mapping->digests_bytes, mapping->digests_bytes);
    if (mapping->digests)
        api->cuMemAddressFree(mapping->digests, chunks_of(mapping) * mapping->digests_bytes);
    mapping->digests = 0;
}

/* The i-th chunk's, behind those of the others. All chunks have some, or none: who searches looks at any. */
static void map_digests(struct gaia_mapping *mapping, uint64_t i, int fd, uint64_t bytes)
{
    const struct cuda_api *api = mapping->device->cuda.api;
    CUdeviceptr digests;

    bool fits = fd >= 0 && bytes % sizeof(struct gaia_digest) == 0 && bytes <= mapping->chunk_bytes &&
                bytes / sizeof(struct gaia_digest) >= mapping->chunk_bytes / GAIA_PAGE_SIZE;
    if (!i && fits) {
        mapping->digests_bytes = bytes;
        if (api->cuMemAddressReserve(&digests, chunks_of(mapping) * bytes, 0, 0, 0) == CUDA_SUCCESS)
            mapping->digests = digests;
    }
    if (mapping->digests && (!fits || bytes != mapping->digests_bytes ||
                             map_memory(mapping, fd, mapping->digests + i * bytes, bytes)))
        unmap_digests(mapping, i);
}

static int map_chunk(struct gaia_mapping *mapping, uint64_t first, uint64_t i)
{
    struct descriptors *own = &mapping->chunk;
    uint64_t bytes;

    int error = ask_for_chunk(mapping, first + i, own, &bytes);
    if (error)
        return error;
    error =
        map_memory(mapping, own->fds[0], mapping->reserved + i * mapping->chunk_bytes, mapping->chunk_bytes);
    if (!error)
        map_digests(mapping, i, own->fds[1], bytes);
    descriptors_end(own, mapping->session->gone);
    return error;
}

static void unmap_chunks(struct gaia_mapping *mapping, uint64_t chunks)
{
    const struct cuda_api *api = mapping->device->cuda.api;

    unmap_digests(mapping, chunks);
    for (uint64_t i = 0; i < chunks; i++)
        api->cuMemUnmap(mapping->reserved + i * mapping->chunk_bytes, mapping->chunk_bytes);
    api->cuMemAddressFree(mapping->reserved, mapping->reserved_bytes);
}

/* Digests are to be read only: a kernel that goes astray must not make stores look like none. */
static void allow_digests(struct gaia_mapping *mapping)
{
    const struct cuda_device *cuda = &mapping->device->cuda;
    CUmemAccessDesc access = cuda_memory_access(cuda, false);

    if (mapping->digests &&
        cuda->api->cuMemSetAccess(mapping->digests, chunks_of(mapping) * mapping->digests_bytes, &access,
                                  1) != CUDA_SUCCESS)
        unmap_digests(mapping, chunks_of(mapping));
}

static int map_chunks(struct gaia_mapping *mapping)
{
    const struct cuda_device *cuda = &mapping->device->cuda;
    uint64_t bytes = mapping->chunk_bytes, first = (uint64_t)mapping->offset / bytes;
    uint64_t last = ((uint64_t)mapping->offset + mapping->length - 1) / bytes;
    CUmemAccessDesc access = cuda_memory_access(cuda, mapping->writable);
    CUdeviceptr reserved;
    uint64_t done = 0;

    mapping->reserved_bytes = (last - first + 1) * bytes;
    int error = cuda_errno(cuda->api->cuMemAddressReserve(&reserved, mapping->reserved_bytes, 0, 0, 0));
    if (error)
        return error;
    mapping->reserved = reserved;
    while (!error && first + done <= last) {
        error = map_chunk(mapping, first, done);
        done += !error;
    }
    if (!error)
        error = cuda_errno(cuda->api->cuMemSetAccess(reserved, mapping->reserved_bytes, &access, 1));
    if (error) {
        unmap_chunks(mapping, done);
        return error;
    }
    allow_digests(mapping);
    mapping->address = (void *)(uintptr_t)(reserved + ((uint64_t)mapping->offset - first * bytes));
    return 0;
}

static int cuda_map(struct gaia_mapping *mapping, const struct gaia_message *reply, int frames)
{
    uint64_t bytes = reply->value[0];

    (void)frames;
    if (!bytes || bytes % 4096 || bytes > (UINT64_C(1) << 40))
        return -EIO;
    mapping->chunk_bytes = bytes;
    int error = cuda_enter(&mapping->device->cuda);
    if (error)
        return error;
    error = map_chunks(mapping);
    cuda_leave(&mapping->device->cuda);
    return error;
}

static void cuda_unmap(struct gaia_mapping *mapping)
{
    if (cuda_enter(&mapping->device->cuda))
        return;
    unmap_chunks(mapping, chunks_of(mapping));
    cuda_leave(&mapping->device->cuda);
}

/* Chunks can't be unmapped in part: kernels that touch a part that is gone see what they saw. */
static int cuda_block(struct gaia_mapping *mapping, void *address, size_t length)
{
    (void)mapping, (void)address, (void)length;
    return 0;
}

/* The memory is this process's as long as it maps it; nothing makes a touch fail. */
static void cuda_kill(struct gaia_mapping *mapping, void *address, size_t length)
{
    (void)mapping, (void)address, (void)length;
}

static int cuda_settle(const struct gaia_device *device)
{
    int error = cuda_enter(&device->cuda);

    if (error)
        return error;
    CUresult result = device->cuda.api->cuCtxSynchronize();
    cuda_leave(&device->cuda);
    return cuda_errno(result);
}

/* cuMemcpyHtoD() returns when it has read what it copies, and a part of it may not have arrived: where memory
 * is unmapped before that, CUDA gives up the process. It goes through a default stream. A wait for the whole
 * context would end others' captures; one for a default stream ends none but of a stream that waits for it,
 * which cuStreamIsCapturing() tells without ending it. */
static void drain_stream(const struct cuda_api *api, CUstream stream)
{
    int capturing = CU_STREAM_CAPTURE_STATUS_NONE;

    if (api->cuStreamIsCapturing(stream, &capturing) == CUDA_SUCCESS &&
        capturing == CU_STREAM_CAPTURE_STATUS_NONE)
        api->cuStreamSynchronize(stream);
}

static void cuda_drain(const struct gaia_device *device)
{
    if (cuda_enter(&device->cuda))
        return;
    drain_stream(device->cuda.api, CU_STREAM_LEGACY);
    drain_stream(device->cuda.api, CU_STREAM_PER_THREAD);
    cuda_leave(&device->cuda);
}

static bool cuda_is_untouched(struct gaia_mapping *mapping, uint64_t offset, uint64_t length)
{
    uint64_t before = (uintptr_t)mapping->address - mapping->reserved;

    return mapping->digests &&
           cuda_search_finds_none(
               &mapping->device->cuda, &mapping->device->search,
               &(struct cuda_searched){.pages = mapping->reserved,
                                       .digests = mapping->digests,
                                       .chunk = mapping->chunk_bytes / GAIA_PAGE_SIZE,
                                       .room = mapping->digests_bytes / sizeof(struct gaia_digest),
                                       .first = (before + offset) / GAIA_PAGE_SIZE,
                                       .count = length / GAIA_PAGE_SIZE});
}

static int cuda_enqueue(const struct gaia_device *device, void *stream, void (*fn)(void *context),
                        void *context)
{
    int error = cuda_enter(&device->cuda);

    if (error)
        return error;
    const struct cuda_api *api = device->cuda.api;
    int capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    error = cuda_errno(api->cuStreamIsCapturing(stream, &capturing));
    if (!error &&
        capturing != CU_STREAM_CAPTURE_STATUS_NONE) /* fn would be called at each launch of the graph */
        error = -EOPNOTSUPP;
    if (!error)
        error = cuda_errno(api->cuLaunchHostFunc(stream, fn, context));
    cuda_leave(&device->cuda);
    return error;
}

/* Of a stream of this thread's: any says what has become of the device. What is asked of one that is being
 * captured ends its capture, but for whether it is. */
static int cuda_check(const struct gaia_device *device)
{
    const struct cuda_api *api = device->cuda.api;
    int capturing = CU_STREAM_CAPTURE_STATUS_NONE;

    if (cuda_enter(&device->cuda))
        return -EIO;
    CUresult error = api->cuStreamIsCapturing(CU_STREAM_PER_THREAD, &capturing);
    if (error == CUDA_SUCCESS && capturing == CU_STREAM_CAPTURE_STATUS_NONE)
        error = api->cuStreamQuery(CU_STREAM_PER_THREAD);
    cuda_leave(&device->cuda);
    return error == CUDA_SUCCESS || error == CUDA_ERROR_NOT_READY || cuda_is_of_capture(error) ? 0 : -EIO;
}

const struct gaia_driver gaia_cuda_driver = {
    .map = cuda_map,
    .unmap = cuda_unmap,
    .block = cuda_block,
    .kill = cuda_kill,
    .settle = cuda_settle,
    .drain = cuda_drain,
    .is_untouched = cuda_is_untouched,
    .enqueue = cuda_enqueue,
    .check = cuda_check,
    .places = true,
};

/* --- on demand --- */

static int demand_map(struct gaia_mapping *mapping, const struct gaia_message *reply, int frames)
{
    int error = gaia_soft_driver.map(mapping, reply, frames);

    if (error)
        return error;
    error = demand_map_open(&(struct demand_map_request){.cuda = &mapping->device->cuda,
                                                         .module = &mapping->device->module,
                                                         .home = mapping->address,
                                                         .state = mapping->state,
                                                         .length = mapping->length,
                                                         .bytes = mapping->bytes,
                                                         .fd = mapping->fd,
                                                         .offset = mapping->offset,
                                                         .writable = mapping->writable,
                                                         .small_units = mapping->small_units},
                            &mapping->demand);
    if (error)
        gaia_soft_driver.unmap(mapping);
    return error;
}

/* All is collected, or can't be: who still waits for a page of the copy below is not to wait for ever, should
 * the daemon die now, which kills what is in the table only. */
static void demand_unmap(struct gaia_mapping *mapping)
{
    gaia_soft_driver.kill(mapping, mapping->address, mapping->length);
    demand_map_close(mapping->demand);
    mapping->cut = 0; /* nothing was blocked: demand_block() */
    gaia_soft_driver.unmap(mapping);
}

static int demand_collect(struct gaia_mapping *mapping)
{
    int error = cuda_settle(mapping->device);

    /* Kernels have ended: who has to know waits before. What they have stored must not be lost for a capture.
     */
    return error && error != -EBUSY ? error : demand_map_collect(mapping->demand);
}

static int demand_forget(struct gaia_mapping *mapping, uint64_t offset, uint64_t length)
{
    return demand_map_forget(mapping->demand, offset, length);
}

/* Units may lie in both parts, and what the GPU has of the part that is gone is given back yet: the pages
 * stay for the thread that does so. */
static int demand_block(struct gaia_mapping *mapping, void *address, size_t length)
{
    (void)mapping, (void)address, (void)length;
    return 0;
}

static void demand_kill(struct gaia_mapping *mapping, void *address, size_t length)
{
    gaia_soft_driver.kill(mapping, address, length);
}

static void demand_refresh(struct gaia_mapping *mapping, void *address, size_t length)
{
    (void)address, (void)length; /* parts that are gone are touched yet, too */
    gaia_soft_driver.refresh(mapping, mapping->address, mapping->length);
}

const struct gaia_driver gaia_demand_driver = {
    .map = demand_map,
    .unmap = demand_unmap,
    .block = demand_block,
    .kill = demand_kill,
    .refresh = demand_refresh,
    .collect = demand_collect,
    .forget = demand_forget,
    .settle = cuda_settle,
    .soft = true,
};
