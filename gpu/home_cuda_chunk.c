/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of the CUDA device's frames: memory of the GPU that can be exported, with the digests of what
 * its pages were granted with, from when a page of it is needed first until nobody has any. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gpu/home_cuda.h"

#define CHUNKS_MAX 65536u
/* From which size on a descriptor of a chunk is kept. */
#define KEPT_LEAST ((size_t)16 << 20)
#define KEPT_SHARE 16u /* of the descriptors that the process may have: others need theirs */

static atomic_uint all_kept; /* of all GPUs */

/* Memory that can be exported; 0 of both: there is none. GPU held. */
static void free_memory(const struct home_gpu *gpu, CUmemGenericAllocationHandle memory, CUdeviceptr address,
                        size_t bytes)
{
    const struct cuda_api *api = gpu->device.api;

    if (address) {
        api->cuMemUnmap(address, bytes);
        api->cuMemAddressFree(address, bytes);
    }
    if (memory)
        api->cuMemRelease(memory);
}

/* GPU held. */
static void chunk_free_memory(const struct home_gpu *gpu, const struct chunk *chunk)
{
    if (chunk->granted_memory)
        free_memory(gpu, chunk->granted_memory, chunk->granted, chunk->granted_bytes);
    else if (chunk->granted)
        gpu->device.api->cuMemFree(chunk->granted);
    free_memory(gpu, chunk->memory, chunk->pages, chunk->bytes);
}

/* Memory that can be exported, zeroed: whatever was in it was somebody else's. After an error there is none.
 * GPU held. */
static CUresult allocate_memory(const struct cuda_frames *frames, size_t bytes,
                                CUmemGenericAllocationHandle *memory_out, CUdeviceptr *address_out)
{
    const struct cuda_api *api = frames->gpu->device.api;
    CUmemAllocationProp properties = cuda_memory_properties(&frames->gpu->device);
    CUmemAccessDesc access = cuda_memory_access(&frames->gpu->device, true);
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr address = 0, mapped = 0;

    CUresult error = api->cuMemCreate(&memory, bytes, &properties, 0);
    if (error != CUDA_SUCCESS)
        memory = 0;
    if (error == CUDA_SUCCESS)
        error = api->cuMemAddressReserve(&address, bytes, 0, 0, 0);
    if (error == CUDA_SUCCESS) {
        error = api->cuMemMap(address, bytes, 0, memory, 0);
        if (error == CUDA_SUCCESS)
            mapped = address;
        else
            api->cuMemAddressFree(address, bytes);
    }
    if (error == CUDA_SUCCESS)
        error = api->cuMemSetAccess(mapped, bytes, &access, 1);
    if (error == CUDA_SUCCESS)
        error = api->cuMemsetD8Async(mapped, 0, bytes, frames->gpu->stream);
    if (error != CUDA_SUCCESS) {
        free_memory(frames->gpu, memory, mapped, bytes);
        return error;
    }
    *memory_out = memory;
    *address_out = mapped;
    return error;
}

/* GPU held. */
static CUresult chunk_allocate(const struct cuda_frames *frames, struct chunk *chunk)
{
    size_t digests = frames->base.chunk_pages * sizeof(struct gaia_digest);

    CUresult error = allocate_memory(frames, cuda_chunk_bytes(frames), &chunk->memory, &chunk->pages);
    if (error != CUDA_SUCCESS || frames->read_only)
        return error;
    if (frames->granted_bytes && allocate_memory(frames, frames->granted_bytes, &chunk->granted_memory,
                                                 &chunk->granted) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    /* Clients go without. */
    error = frames->gpu->device.api->cuMemAlloc(&chunk->granted, digests);
    if (error != CUDA_SUCCESS)
        chunk->granted = 0;
    return error;
}

/* Whoever asks at the same time may have one kept too many. */
static bool may_be_kept(const struct cuda_frames *frames)
{
    struct rlimit limit;

    return cuda_chunk_bytes(frames) >= KEPT_LEAST && !getrlimit(RLIMIT_NOFILE, &limit) &&
           atomic_load(&all_kept) < limit.rlim_cur / KEPT_SHARE;
}

/* fd: -1: none was kept. */
static void forget_kept(int fd)
{
    if (fd < 0)
        return;
    close(fd);
    atomic_fetch_sub(&all_kept, 1);
}

/* It has no memory of the GPU's any more. */
static void chunk_forget(struct chunk *chunk)
{
    free(chunk->resident);
    free(chunk->unsure);
    free(chunk->filled);
    free(chunk->coming);
    free(chunk);
}

/* What could not be freed as the context could not be entered is, the next time that it can. GPU not held. */
static void free_unfreed(struct home_gpu *gpu)
{
    struct chunk *chunk;

    if (gpu_begin(gpu))
        return;
    while ((chunk = SLIST_FIRST(&gpu->unfreed))) {
        SLIST_REMOVE_HEAD(&gpu->unfreed, link);
        chunk_free_memory(gpu, chunk);
        chunk_forget(chunk);
    }
    gpu_end(gpu);
}

void cuda_chunk_free(struct cuda_frames *frames, uint64_t index)
{
    struct chunk *chunk = frames->chunks[index];

    if (!chunk)
        return;
    gaia_standing_end(&chunk->standing);
    forget_kept(chunk->fd);
    forget_kept(chunk->granted_fd);
    pthread_mutex_lock(&frames->gpu->lock);
    SLIST_INSERT_HEAD(&frames->gpu->unfreed, chunk, link);
    pthread_mutex_unlock(&frames->gpu->lock);
    frames->chunks[index] = NULL;
    free_unfreed(frames->gpu);
}

void cuda_chunks_end(struct home_gpu *gpu)
{
    struct chunk *chunk;

    free_unfreed(gpu);
    while ((chunk = SLIST_FIRST(&gpu->unfreed))) {
        SLIST_REMOVE_HEAD(&gpu->unfreed, link);
        chunk_forget(chunk);
    }
}

static int chunks_grow(struct cuda_frames *frames, uint64_t index)
{
    if (index < frames->count)
        return 0;
    if (index >= CHUNKS_MAX)
        return -ENOMEM;
    size_t count = index + 1;
    struct chunk **wide = realloc(frames->chunks, count * sizeof(struct chunk *));
    if (!wide)
        return -ENOMEM;
    for (size_t i = frames->count; i < count; i++)
        wide[i] = NULL;
    frames->chunks = wide;
    frames->count = count;
    return 0;
}

/* A dma-buf of a chunk. Its frames' lock may be held, and the GPU is not. */
static int chunk_share(struct gaia_standing *standing)
{
    struct chunk *chunk = (struct chunk *)((char *)standing - offsetof(struct chunk, standing));
    const struct cuda_api *api = chunk->gpu->device.api;
    int fd = -1;

    if (!api->cuMemGetHandleForAddressRange ||
        !cuda_attribute(&chunk->gpu->device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED))
        return -EOPNOTSUPP;
    int error = gpu_begin(chunk->gpu);
    if (error)
        return error;
    /* Refused, it is no failure of the GPU's. */
    CUresult result = api->cuMemGetHandleForAddressRange(&fd, chunk->pages, standing->length,
                                                         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    gpu_end(chunk->gpu);
    if (result == CUDA_SUCCESS)
        return fd;
    bool never = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE ||
                 result == CUDA_ERROR_NOT_PERMITTED;
    return never ? -EOPNOTSUPP : -ENOMEM;
}

/* making held. */
static int chunk_make(const struct cuda_frames *frames, struct chunk **chunk_out)
{
    size_t words = (frames->base.chunk_pages + 63) / 64;
    struct chunk *chunk = calloc(1, sizeof *chunk);

    if (!chunk)
        return -ENOMEM;
    gpu_lanes_start(frames->gpu);
    chunk->bytes = cuda_chunk_bytes(frames);
    chunk->granted_bytes = frames->granted_bytes;
    chunk->resident = calloc(words, sizeof *chunk->resident);
    chunk->unsure = calloc(words, sizeof *chunk->unsure);
    chunk->filled = calloc(words, sizeof *chunk->filled);
    chunk->coming = calloc(words, sizeof *chunk->coming);
    int error =
        chunk->resident && chunk->unsure && chunk->filled && chunk->coming ? gpu_begin(frames->gpu) : -ENOMEM;
    if (!error) {
        error = gpu_note_opening(frames->gpu, chunk_allocate(frames, chunk));
        int ended = gpu_wait(frames->gpu, frames->gpu->stream, CUDA_SUCCESS);
        error = error ? error : ended;
        if (error)
            chunk_free_memory(frames->gpu, chunk);
        gpu_end(frames->gpu);
    }
    if (error) {
        chunk_forget(chunk);
        return error;
    }
    chunk->gpu = frames->gpu;
    chunk->fd = chunk->granted_fd = -1;
    chunk->standing = (struct gaia_standing){.address = (void *)(uintptr_t)chunk->pages,
                                             .length = cuda_chunk_bytes(frames),
                                             .share = chunk_share,
                                             .reaches = &frames->gpu->reaches};
    *chunk_out = chunk;
    return 0;
}

/* It takes the driver most of a millisecond, in which others go on with the chunks that there are. Lock held,
 * and let go meanwhile. */
static int chunk_add(struct cuda_frames *frames, uint64_t index)
{
    struct chunk *chunk;
    int error = 0;

    pthread_mutex_unlock(&frames->lock);
    pthread_mutex_lock(&frames->making);
    pthread_mutex_lock(&frames->lock);
    if (!frames->chunks[index]) {
        pthread_mutex_unlock(&frames->lock);
        error = chunk_make(frames, &chunk);
        pthread_mutex_lock(&frames->lock);
        if (!error)
            frames->chunks[index] = chunk;
    }
    pthread_mutex_unlock(&frames->making);
    return error;
}

int cuda_chunk_get(struct cuda_frames *frames, uint64_t index, struct chunk **chunk_out)
{
    int error = chunks_grow(frames, index);

    if (!error && !frames->chunks[index])
        error = chunk_add(frames, index);
    *chunk_out = error ? NULL : frames->chunks[index];
    return error;
}

void cuda_chunks_trim(struct cuda_frames *frames)
{
    for (uint64_t i = 0; i < frames->count && !frames->base.clients; i++)
        if (frames->chunks[i] && !frames->chunks[i]->placed && !frames->chunks[i]->placings)
            cuda_chunk_free(frames, i);
}

/* GPU not held. */
static int export_memory(const struct cuda_frames *frames, CUmemGenericAllocationHandle memory, int *fd_out)
{
    struct home_gpu *gpu = frames->gpu;

    int error = gpu_begin(gpu);
    if (error)
        return error;
    error = gpu_note_opening(gpu, gpu->device.api->cuMemExportToShareableHandle(
                                      fd_out, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    gpu_end(gpu);
    return error;
}

/* To make the first takes the driver most of a millisecond, and to end the last: of large chunks one is kept,
 * and clients have copies of it. */
int cuda_chunk_share(struct cuda_frames *frames, struct chunk *chunk, CUmemGenericAllocationHandle memory,
                     int *kept, int *fd_out)
{
    int fd = -1, error = 0;

    if (*kept < 0) {
        chunk->placings++;
        pthread_mutex_unlock(&frames->lock);
        error = export_memory(frames, memory, &fd);
        pthread_mutex_lock(&frames->lock);
        chunk->placings--;
    }
    if (!error && *kept < 0 && may_be_kept(frames)) {
        atomic_fetch_add(&all_kept, 1);
        *kept = fd;
        fd = -1;
    }
    if (!error && fd < 0) {
        fd = fcntl(*kept, F_DUPFD_CLOEXEC, 3);
        error = fd < 0 ? -errno : 0;
    }
    *fd_out = fd;
    return error;
}
