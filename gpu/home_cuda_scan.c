/* SPDX-License-Identifier: Apache-2.0 */
/* The digests of resident pages against those of what they were granted with; and pages that change while
 * kernels may run. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/home_cuda.h"

/* A scan under way: bitmaps of several chunks, one behind the other, in two lists: pages to look at, and what
 * was found. */
#define SCAN_BYTES (GPU_LIST_BYTES / 4) /* of each list: 8 GiB are looked at at once */
#define SCAN_CHUNKS 64u

struct scan {
    struct cuda_frames *frames;
    uint64_t page, count; /* of the file: what is asked for */
    uint64_t *bits;       /* what was found, for the caller */
    size_t used;          /* bytes of each list */
    struct {
        uint64_t page, words; /* of the file, a multiple of 64; of the bitmap */
        size_t at;            /* in the area of lists */
    } chunk[SCAN_CHUNKS];
    size_t chunks;
};

/* Of the bitmap, for a part. */
static uint64_t part_words(const struct part *part)
{
    return (part->first + part->count + 63) / 64 - part->first / 64;
}

/* Pages of which nothing is known: those of a word of the bitmap, of which page 0 is this one of the file. */
static void add_unsure(struct scan *scan, uint64_t page, uint64_t unsure)
{
    for (; unsure; unsure &= unsure - 1)
        bits_set(scan->bits, page + (unsigned)__builtin_ctzll(unsure) - scan->page, 1, true);
}

/* Put a chunk's part into the lists, and its kernel into the stream. What is unsure is found at once. GPU
 * held. */
static CUresult scan_add(struct scan *scan, const struct part *part, uint64_t page)
{
    struct home_gpu *gpu = scan->frames->gpu;
    uint64_t first = part->first / 64, words = part_words(part);
    size_t found = SCAN_BYTES + scan->used;
    uint64_t *consider = (uint64_t *)(void *)(gpu_host_area(gpu, GPU_LISTS) + scan->used);
    const struct cuda_api *api = gpu->device.api;

    for (uint64_t w = 0; w < words; w++) {
        uint64_t low = (first + w) * 64, mask = ~UINT64_C(0);
        if (low < part->first)
            mask &= ~UINT64_C(0) << (part->first - low);
        if (low + 64 > part->first + part->count)
            mask &= ~UINT64_C(0) >> (low + 64 - part->first - part->count);
        mask &= part->chunk->resident[first + w];
        consider[w] = mask & ~part->chunk->unsure[first + w];
        add_unsure(scan, page - part->first + (first + w) * 64, mask & part->chunk->unsure[first + w]);
    }
    CUdeviceptr base = part->chunk->pages + first * 64 * GAIA_PAGE_SIZE;
    CUdeviceptr granted = part->chunk->granted + first * 64 * sizeof(struct gaia_digest);
    CUdeviceptr list = gpu_device_area(gpu, GPU_LISTS), to = list + scan->used, modified = list + found;
    CUdeviceptr total = list + 2 * SCAN_BYTES;
    uint64_t pages = words * 64;
    CUresult error = api->cuMemcpyHtoDAsync(to, consider, words * 8, gpu->stream);
    if (error == CUDA_SUCCESS)
        error = gpu_launch(gpu, gpu->stream, GPU_FIND_MODIFIED, pages,
                           (void *[]){&base, &pages, &granted, &to, &modified, &total});
    scan->chunk[scan->chunks].page = page - part->first + first * 64;
    scan->chunk[scan->chunks].words = words;
    scan->chunk[scan->chunks++].at = found;
    scan->used += words * 8;
    return error;
}

/* What the kernels have found becomes the caller's bits. GPU held. */
static int scan_finish(struct scan *scan, CUresult error)
{
    struct home_gpu *gpu = scan->frames->gpu;

    if (error == CUDA_SUCCESS && scan->used)
        error = gpu->device.api->cuMemcpyDtoHAsync(gpu_host_area(gpu, GPU_LISTS) + SCAN_BYTES,
                                                   gpu_device_area(gpu, GPU_LISTS) + SCAN_BYTES, scan->used,
                                                   gpu->stream);
    int result = gpu_wait(gpu, gpu->stream, error);
    for (size_t i = 0; i < scan->chunks && !result; i++) {
        const uint64_t *found = (const uint64_t *)(void *)(gpu_host_area(gpu, GPU_LISTS) + scan->chunk[i].at);
        for (uint64_t w = 0; w < scan->chunk[i].words; w++)
            for (uint64_t left = found[w]; left; left &= left - 1)
                bits_set(scan->bits,
                         scan->chunk[i].page + w * 64 + (unsigned)__builtin_ctzll(left) - scan->page, 1,
                         true);
    }
    scan->used = scan->chunks = 0;
    return result;
}

int cuda_modified(struct gaia_frames *base, uint64_t page, uint64_t count, uint64_t *bits_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    struct scan *scan = calloc(1, sizeof *scan);
    uint64_t end = page + count;
    CUresult result = CUDA_SUCCESS;

    if (!scan)
        return -ENOMEM;
    *scan = (struct scan){.frames = frames, .page = page, .count = count, .bits = bits_out};
    memset(bits_out, 0, (count + 63) / 64 * 8);
    pthread_mutex_lock(&frames->lock);
    int error = frames->read_only ? 0 : gpu_begin(frames->gpu);
    if (error || frames->read_only)
        goto out;
    uint64_t all = frames->count * base->chunk_pages;
    end = end < all ? end : all;
    while (page < end && !error && result == CUDA_SUCCESS) {
        struct part part = part_at(frames, page, end - page);
        if (part.chunk && part.chunk->placed) {
            if (scan->used + part_words(&part) * 8 > SCAN_BYTES || scan->chunks == SCAN_CHUNKS)
                error = scan_finish(scan, CUDA_SUCCESS);
            if (!error)
                result = scan_add(scan, &part, page);
        }
        page += part.count;
    }
    int finished = scan_finish(scan, result);
    error = error ? error : finished;
    gpu_end(frames->gpu);
out:
    pthread_mutex_unlock(&frames->lock);
    free(scan);
    return error;
}

/* Of the pages of a batch the first ones, which lie in one chunk: their numbers there go into the list. How
 * many. */
static size_t list_run(const struct cuda_frames *frames, const uint64_t *pages, size_t count, uint32_t *list)
{
    uint64_t each = frames->base.chunk_pages;
    size_t n = 0;

    for (; n < count && pages[n] / each == pages[0] / each; n++)
        list[n] = (uint32_t)(pages[n] % each);
    return n;
}

static CUresult list_send(struct home_gpu *gpu, size_t from, size_t n)
{
    return gpu->device.api->cuMemcpyHtoDAsync(gpu_device_area(gpu, GPU_LISTS) + from * sizeof(uint32_t),
                                              gpu_host_area(gpu, GPU_LISTS) + from * sizeof(uint32_t),
                                              n * sizeof(uint32_t), gpu->stream);
}

/* At most GPU_BATCH_PAGES pages. GPU held. */
static int gather_batch(struct cuda_frames *frames, const uint64_t *pages, size_t count, uint8_t *out)
{
    struct home_gpu *gpu = frames->gpu;
    uint32_t *numbers = (uint32_t *)(void *)gpu_host_area(gpu, GPU_LISTS);
    CUresult error = CUDA_SUCCESS;

    for (size_t from = 0; from < count && error == CUDA_SUCCESS;) {
        struct chunk *chunk = part_at(frames, pages[from], 1).chunk;
        size_t n = list_run(frames, pages + from, count - from, numbers + from);
        uint64_t n64 = n;
        CUdeviceptr list = gpu_device_area(gpu, GPU_LISTS) + from * sizeof(uint32_t);
        CUdeviceptr to = gpu_device_area(gpu, 0) + from * GAIA_PAGE_SIZE;
        if (chunk)
            error = list_send(gpu, from, n);
        else /* cut off meanwhile */
            error = gpu->device.api->cuMemsetD8Async(to, 0, n * GAIA_PAGE_SIZE, gpu->stream);
        if (chunk && error == CUDA_SUCCESS)
            error = gpu_launch(gpu, gpu->stream, GPU_GATHER, n, (void *[]){&chunk->pages, &list, &n64, &to});
        from += n;
    }
    if (error == CUDA_SUCCESS)
        error = gpu->device.api->cuMemcpyDtoHAsync(gpu_host_area(gpu, 0), gpu_device_area(gpu, 0),
                                                   count * GAIA_PAGE_SIZE, gpu->stream);
    int result = gpu_wait(gpu, gpu->stream, error);
    if (!result)
        memcpy(out, gpu_host_area(gpu, 0), count * GAIA_PAGE_SIZE);
    return result;
}

int cuda_gather(struct gaia_frames *base, const uint64_t *pages, size_t count, void *bytes_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    uint8_t *out = bytes_out;

    pthread_mutex_lock(&frames->lock);
    int error = gpu_begin(frames->gpu);
    if (!error) {
        for (size_t done = 0; done < count && !error; done += GPU_BATCH_PAGES) {
            size_t n = count - done < GPU_BATCH_PAGES ? count - done : GPU_BATCH_PAGES;
            error = gather_batch(frames, pages + done, n, out + done * GAIA_PAGE_SIZE);
        }
        gpu_end(frames->gpu);
    }
    pthread_mutex_unlock(&frames->lock);
    return error;
}

/* Digests of pages of one chunk, to the device. They have been copied when it returns without an error of
 * gpu_wait(). GPU held. */
static CUresult send_digests(struct cuda_frames *frames, const struct part *part,
                             const struct gaia_digest *digests)
{
    struct home_gpu *gpu = frames->gpu;

    return gpu->device.api->cuMemcpyHtoDAsync(part->chunk->granted + part->first * sizeof *digests, digests,
                                              part->count * sizeof *digests, gpu->stream);
}

int cuda_granted(struct gaia_frames *base, uint64_t page, uint64_t count, const struct gaia_digest *digests)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    int error = 0;

    pthread_mutex_lock(&frames->lock);
    while (count) { /* after an error, too: what was granted before is not what is compared with */
        struct part part = part_at(frames, page, count);
        if (part.chunk && part.chunk->granted && digests && !error && !(error = gpu_begin(frames->gpu))) {
            error = gpu_wait(frames->gpu, frames->gpu->stream, send_digests(frames, &part, digests));
            gpu_end(frames->gpu);
        }
        if (part.chunk)
            cuda_mark(frames, part.chunk, part.chunk->unsure, part.first, part.count, !digests || error);
        page += part.count;
        count -= part.count;
        digests = digests ? digests + part.count : NULL;
    }
    pthread_mutex_unlock(&frames->lock);
    return error;
}

int cuda_recall(struct gaia_frames *base, uint64_t page, uint64_t count, struct gaia_digest *digests_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    struct home_gpu *gpu = frames->gpu;
    int error = 0;

    memset(digests_out, 0, count * sizeof *digests_out);
    pthread_mutex_lock(&frames->lock);
    for (uint64_t done = 0; done < count && !error;) {
        struct part part = part_at(frames, page + done, count - done);
        if (part.chunk && part.chunk->granted && !(error = gpu_begin(gpu))) {
            CUdeviceptr from = part.chunk->granted + part.first * sizeof *digests_out;
            error = gpu_wait(gpu, gpu->stream,
                             gpu->device.api->cuMemcpyDtoHAsync(
                                 digests_out + done, from, part.count * sizeof *digests_out, gpu->stream));
            gpu_end(gpu);
        }
        for (uint64_t i = 0; i < part.count && part.chunk; i++)
            if (bit_get(part.chunk->unsure, part.first + i))
                digests_out[done + i] = (struct gaia_digest){0};
        done += part.count;
    }
    pthread_mutex_unlock(&frames->lock);
    return error;
}

/* The pages of one batch, which may lie in several chunks: these stay for as long. Without an error
 * pins_end() is to follow. */
static int pins_begin(struct cuda_frames *frames, const uint64_t *pages, size_t count)
{
    int error = 0;

    pthread_mutex_lock(&frames->lock);
    for (size_t i = 0; i < count; i++)
        if (!part_at(frames, pages[i], 1).chunk)
            error = -EINVAL; /* asked by another node, which is mistaken: the GPU is not */
    for (size_t i = 0; i < count && !error; i++)
        part_at(frames, pages[i], 1).chunk->placings++;
    pthread_mutex_unlock(&frames->lock);
    return error;
}

/* unsure: nobody knows what has become of them. */
static void pins_end(struct cuda_frames *frames, const uint64_t *pages, size_t count, bool unsure)
{
    pthread_mutex_lock(&frames->lock);
    for (size_t i = 0; i < count; i++) {
        struct part part = part_at(frames, pages[i], 1);
        assert(part.chunk); /* it is pinned */
        cuda_mark(frames, part.chunk, part.chunk->unsure, part.first, 1, unsure);
        part.chunk->placings--;
    }
    pthread_mutex_unlock(&frames->lock);
}

/* That of a page that is pinned: the array of chunks may be another any time. */
static struct chunk *pinned_chunk(struct cuda_frames *frames, uint64_t page)
{
    pthread_mutex_lock(&frames->lock);
    struct chunk *chunk = part_at(frames, page, 1).chunk;
    pthread_mutex_unlock(&frames->lock);
    assert(chunk);
    return chunk;
}

/* At most GPU_DESK_PAGES pages, which are pinned. The desk is the caller's. */
static CUresult patch_at_desk(struct cuda_frames *frames, const struct gpu_desk *desk, const uint64_t *pages,
                              size_t count, const void *const *old, const uint8_t *fresh)
{
    struct home_gpu *gpu = frames->gpu;
    const struct cuda_api *api = gpu->device.api;
    size_t lists = 2 * GPU_DESK_AREA;
    uint32_t *numbers = (uint32_t *)(void *)(desk->host + lists);

    for (size_t i = 0; i < count; i++)
        memcpy(desk->host + i * GAIA_PAGE_SIZE, old[i], GAIA_PAGE_SIZE);
    CUresult error = api->cuMemcpyHtoDAsync(desk->device, desk->host, count * GAIA_PAGE_SIZE, desk->stream);
    memcpy(desk->host + GPU_DESK_AREA, fresh, count * GAIA_PAGE_SIZE);
    if (error == CUDA_SUCCESS)
        error = api->cuMemcpyHtoDAsync(desk->device + GPU_DESK_AREA, desk->host + GPU_DESK_AREA,
                                       count * GAIA_PAGE_SIZE, desk->stream);
    for (size_t from = 0, n; from < count && error == CUDA_SUCCESS; from += n) {
        struct chunk *chunk = pinned_chunk(frames, pages[from]);
        n = list_run(frames, pages + from, count - from, numbers + from);
        uint64_t n64 = n;
        CUdeviceptr list = desk->device + lists + from * sizeof(uint32_t);
        CUdeviceptr before = desk->device + from * GAIA_PAGE_SIZE, after = before + GPU_DESK_AREA;
        error = api->cuMemcpyHtoDAsync(list, desk->host + lists + from * sizeof(uint32_t),
                                       n * sizeof(uint32_t), desk->stream);
        if (error == CUDA_SUCCESS)
            error = gpu_launch(gpu, desk->stream, GPU_PATCH, n,
                               (void *[]){&chunk->pages, &list, &n64, &before, &after, &chunk->granted});
    }
    return error;
}

/* Several at a time: a search that comes between may take a page for modified that is being patched, which is
 * found out when its bytes are looked at, but miss none: what kernels stored is in none of the digests. */
static int patch_batch(struct cuda_frames *frames, const uint64_t *pages, size_t count,
                       const void *const *old, const uint8_t *fresh)
{
    struct gpu_desk *desk;

    int error = pins_begin(frames, pages, count);
    if (error)
        return error;
    int result = gpu_desk_begin(frames->gpu, &desk);
    if (!result) {
        CUresult put = patch_at_desk(frames, desk, pages, count, old, fresh);
        result = gpu_wait(frames->gpu, desk->stream, put);
        gpu_desk_end(frames->gpu, desk);
    }
    pins_end(frames, pages, count, result != 0);
    return result;
}

int cuda_patch(struct gaia_frames *base, const uint64_t *pages, size_t count, const void *const *old,
               const void *fresh)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    int error = 0;

    for (size_t done = 0; done < count && !error; done += GPU_DESK_PAGES) {
        size_t n = count - done < GPU_DESK_PAGES ? count - done : GPU_DESK_PAGES;
        error =
            patch_batch(frames, pages + done, n, old + done, (const uint8_t *)fresh + done * GAIA_PAGE_SIZE);
    }
    return error;
}
