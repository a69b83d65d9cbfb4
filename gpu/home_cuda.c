/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device, the home's half: frames are memory of a GPU that the daemon allocates in chunks, and
 * exports to clients, who map them into their own contexts. So all clients of a device have one copy, it
 * outlives them, and the daemon needs none of them to reach it.
 *
 * Nothing tells when a kernel touches a page, so this driver scans (gpu/device.h): each page of memory that
 * clients may write to has the digest of what it was granted with beside it, in device memory. Clients have
 * those of large chunks, too, to look by themselves (gpu/cuda_search.h): a GPU that goes from a program's
 * context to the daemon's could search hundreds of MiB meanwhile. Such a search must find what this one does.
 * So what no digest tells is counted (cuda_mark()), and a digest is zero as long as nothing was granted.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/home_cuda.h"
#include "gpu/home_untrapped.h"

#define CHUNK_MOST ((size_t)512 << 20)
/* From which size on the digests of a chunk have memory that can be exported, which comes in pieces of 2 MiB:
 * at most 1/32 more. */
#define SEARCHED_LEAST ((size_t)64 << 20)

/* --- what every driver does --- */

static int cuda_share(struct gaia_frames *base, bool writable, uint64_t index, int *fd_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    struct chunk *chunk;

    if (writable && frames->read_only)
        return -EACCES;
    pthread_mutex_lock(&frames->lock);
    int error = cuda_chunk_get(frames, index, &chunk);
    if (!error)
        error = cuda_chunk_share(frames, chunk, chunk->memory, &chunk->fd, fd_out);
    pthread_mutex_unlock(&frames->lock);
    return error;
}

static int cuda_share_digests(struct gaia_frames *base, uint64_t index, int *fd_out, uint64_t *bytes_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);

    pthread_mutex_lock(&frames->lock);
    struct chunk *chunk = index < frames->count ? frames->chunks[index] : NULL;
    int error = chunk && chunk->granted_memory
                    ? cuda_chunk_share(frames, chunk, chunk->granted_memory, &chunk->granted_fd, fd_out)
                    : -EOPNOTSUPP;
    pthread_mutex_unlock(&frames->lock);
    if (!error)
        *bytes_out = frames->granted_bytes;
    return error;
}

static int cuda_attach(struct gaia_frames *base, const struct gaia_process *process, uint64_t address,
                       uint64_t first, uint64_t count, bool writable, bool can_trap,
                       struct gaia_frames_map **map_out)
{
    struct gaia_frames_map *map = calloc(1, sizeof *map);

    (void)process, (void)address, (void)first, (void)count, (void)writable, (void)can_trap;
    if (!map)
        return -ENOMEM;
    map->frames = cuda_frames_of(base);
    *map_out = map;
    return 0;
}

static void cuda_detach(struct gaia_frames_map *map)
{
    free(map);
}

static void cuda_trim(struct gaia_frames *base)
{
    struct cuda_frames *frames = cuda_frames_of(base);

    pthread_mutex_lock(&frames->lock);
    cuda_chunks_trim(frames);
    pthread_mutex_unlock(&frames->lock);
}

static uint64_t count_unsure(const struct chunk *chunk, uint64_t first, uint64_t count)
{
    uint64_t n = 0;

    for_each_word (word, first, count)
        n += (unsigned)__builtin_popcountll(chunk->resident[word] & chunk->unsure[word] &
                                            bits_of_word(word, first, count));
    return n;
}

void cuda_mark(const struct cuda_frames *frames, struct chunk *chunk, uint64_t *bits, uint64_t first,
               uint64_t count, bool value)
{
    uint64_t before = count_unsure(chunk, first, count);

    bits_set(bits, first, count, value);
    uint64_t more = count_unsure(chunk, first, count) - before;
    if (more && frames->base.unfound)
        atomic_fetch_add(frames->base.unfound, more); /* or less, modulo 2^64 */
}

/* The next run of a chunk's pages before `end` of which `filled` says this, and which are not on their way
 * there: how many, from *first on. */
static uint64_t filled_run(const struct chunk *chunk, bool filled, uint64_t *first, uint64_t end)
{
    uint64_t behind, at = *first;

    while (at < end && (bit_get(chunk->filled, at) != filled || bit_get(chunk->coming, at)))
        at++;
    for (behind = at; behind < end; behind++)
        if (bit_get(chunk->filled, behind) != filled || bit_get(chunk->coming, behind))
            break;
    *first = at;
    return behind - at;
}

/* Nothing is granted any more either: else a client's search would find these pages, which are zeros, for
 * ever. GPU held. */
static CUresult put_zeros(const struct home_gpu *gpu, const struct chunk *chunk, uint64_t first,
                          uint64_t count)
{
    const struct cuda_api *api = gpu->device.api;
    const size_t digest = sizeof(struct gaia_digest);

    CUresult error =
        api->cuMemsetD8Async(chunk->pages + first * GAIA_PAGE_SIZE, 0, count * GAIA_PAGE_SIZE, gpu->stream);
    if (error == CUDA_SUCCESS && chunk->granted_memory)
        error = api->cuMemsetD8Async(chunk->granted + first * digest, 0, count * digest, gpu->stream);
    return error;
}

/* Zeros take the place of those of a part's pages of which `filled` says this. Lock held. */
static int put_zeros_where(const struct cuda_frames *frames, const struct part *part, bool filled)
{
    struct home_gpu *gpu = frames->gpu;
    uint64_t first = part->first, end = part->first + part->count;
    uint64_t count = filled_run(part->chunk, filled, &first, end);
    CUresult result = CUDA_SUCCESS;

    int error = count ? gpu_begin(gpu) : 0;
    if (error || !count)
        return error;
    for (; count && result == CUDA_SUCCESS; count = filled_run(part->chunk, filled, &first, end)) {
        result = put_zeros(gpu, part->chunk, first, count);
        first += count;
    }
    error = gpu_wait(gpu, gpu->stream, result);
    gpu_end(gpu);
    return error;
}

/* What can't be wiped is tried again the next time; what is on its way there is wiped when it has come. Lock
 * held. */
static int wipe(const struct cuda_frames *frames, const struct part *part)
{
    struct chunk *chunk = part->chunk;

    int error = put_zeros_where(frames, part, true);
    for (uint64_t i = part->first; i < part->first + part->count; i++)
        if (!error || bit_get(chunk->coming, i))
            bits_set(chunk->filled, i, 1, false);
    return error;
}

void cuda_wipe_late(const struct cuda_frames *frames, const struct part *part)
{
    if (put_zeros_where(frames, part, false))
        bits_set(part->chunk->filled, part->first, part->count, true);
}

/* Pages that are not resident any more. wiped: zeros take their place. Lock held. */
static int forget(struct cuda_frames *frames, uint64_t page, uint64_t count, bool wiped)
{
    uint64_t all = frames->count * frames->base.chunk_pages;
    int error = 0;

    if (page >= all)
        return 0;
    if (count > all - page)
        count = all - page;
    while (count) {
        struct part part = part_at(frames, page, count);
        /* What was there is not for who maps them next, and no part of the file. */
        int one = part.chunk && wiped ? wipe(frames, &part) : 0;
        error = error ? error : one;
        for (uint64_t i = part.first; part.chunk && i < part.first + part.count; i++)
            part.chunk->placed -= bit_get(part.chunk->resident, i);
        if (part.chunk)
            cuda_mark(frames, part.chunk, part.chunk->resident, part.first, part.count, false);
        page += part.count;
        count -= part.count;
    }
    cuda_chunks_trim(frames);
    return error;
}

static int cuda_resize(struct gaia_frames *base, uint64_t pages)
{
    struct cuda_frames *frames = cuda_frames_of(base);

    pthread_mutex_lock(&frames->lock);
    int error = forget(frames, pages, UINT64_MAX - pages, true);
    pthread_mutex_unlock(&frames->lock);
    return error;
}

static int cuda_drop(struct gaia_frames *base, uint64_t page, uint64_t count)
{
    struct cuda_frames *frames = cuda_frames_of(base);

    pthread_mutex_lock(&frames->lock);
    /* Where somebody maps them, they are placed anew: kernels see what was there until then. */
    forget(frames, page, count, !base->clients);
    pthread_mutex_unlock(&frames->lock);
    return 0;
}

static int cuda_clear(struct gaia_frames *base, uint64_t page, size_t from)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    int error = 0;

    pthread_mutex_lock(&frames->lock);
    struct part part = part_at(frames, page, 1);
    if (part.chunk && !(error = gpu_begin(frames->gpu))) {
        error = gpu_wait(frames->gpu, frames->gpu->stream,
                         frames->gpu->device.api->cuMemsetD8Async(
                             part_address(&part) + from, 0, GAIA_PAGE_SIZE - from, frames->gpu->stream));
        gpu_end(frames->gpu);
    }
    if (part.chunk)
        cuda_mark(frames, part.chunk, part.chunk->unsure, part.first, 1, true);
    pthread_mutex_unlock(&frames->lock);
    return error;
}

static int cuda_fetch(struct gaia_frames *base, uint64_t page, unsigned count, void *const *pages_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    struct home_gpu *gpu = frames->gpu;

    assert(count && count <= GAIA_FETCH_MAX);
    pthread_mutex_lock(&frames->lock);
    int error = gpu_begin(gpu);
    if (!error) {
        CUresult result = CUDA_SUCCESS;
        for (uint64_t done = 0; done < count && result == CUDA_SUCCESS;) {
            struct part part = part_at(frames, page + done, count - done);
            uint8_t *to = gpu_host_area(gpu, 0) + done * GAIA_PAGE_SIZE;
            if (part.chunk)
                result = gpu->device.api->cuMemcpyDtoHAsync(to, part_address(&part),
                                                            part.count * GAIA_PAGE_SIZE, gpu->stream);
            else
                memset(to, 0, part.count * GAIA_PAGE_SIZE);
            done += part.count;
        }
        error = gpu_wait(gpu, gpu->stream, result);
        for (unsigned i = 0; i < count && !error; i++)
            memcpy(pages_out[i], gpu_host_area(gpu, 0) + i * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
        gpu_end(gpu);
    }
    pthread_mutex_unlock(&frames->lock);
    return error;
}

static void cuda_close(struct gaia_frames *base)
{
    struct cuda_frames *frames = cuda_frames_of(base);

    assert(!base->clients);
    for (uint64_t i = 0; i < frames->count; i++)
        cuda_chunk_free(frames, i);
    free(frames->chunks);
    pthread_mutex_destroy(&frames->lock);
    pthread_mutex_destroy(&frames->making);
    free(frames);
}

static const struct gaia_frames_ops cuda_ops = {
    .scans = true,
    .later_most = GPU_FINISHERS,
    .share = cuda_share,
    .share_digests = cuda_share_digests,
    .attach = cuda_attach,
    .detach = cuda_detach,
    .resize = cuda_resize,
    .place = cuda_place,
    .place_later = cuda_place_later,
    .open_window = cuda_open_window,
    .close_window = cuda_close_window,
    .expose = untrapped_expose,
    .protect = untrapped_protect,
    .unprotect = untrapped_unprotect,
    .wake = untrapped_wake,
    .poison = untrapped_poison,
    .refuse = untrapped_refuse,
    .drop = cuda_drop,
    .clear = cuda_clear,
    .fetch = cuda_fetch,
    .close = cuda_close,
    .modified = cuda_modified,
    .granted = cuda_granted,
    .recall = cuda_recall,
    .gather = cuda_gather,
    .patch = cuda_patch,
    .trim = cuda_trim,
};

/* Few and large, but not so large that a small mapping of a small file takes much: about eight to a file. */
static uint64_t choose_chunk(const struct home_gpu *gpu, uint64_t pages)
{
    size_t bytes = gpu->granularity;

    while (bytes < CHUNK_MOST && bytes * 8 < pages * GAIA_PAGE_SIZE)
        bytes *= 2;
    return bytes / GAIA_PAGE_SIZE;
}

int gaia_cuda_frames_open(struct home_gpu *gpu, uint64_t pages, bool read_only,
                          struct gaia_frames **frames_out)
{
    struct cuda_frames *frames = calloc(1, sizeof *frames);

    if (!frames)
        return -ENOMEM;
    frames->base.ops = &cuda_ops;
    frames->base.chunk_pages = choose_chunk(gpu, pages);
    assert(frames->base.chunk_pages % 64 == 0); /* chunks are whole words of bitmaps: 256 KiB */
    frames->gpu = gpu;
    gpu_lanes_start(gpu);
    frames->read_only = read_only;
    if (!read_only && cuda_chunk_bytes(frames) >= SEARCHED_LEAST)
        frames->granted_bytes =
            (frames->base.chunk_pages * sizeof(struct gaia_digest) + gpu->granularity - 1) /
            gpu->granularity * gpu->granularity;
    lock_init(&frames->making, LOCK_CUDA_CHUNKS);
    lock_init(&frames->lock, LOCK_CUDA_FRAMES);
    *frames_out = &frames->base;
    return 0;
}

int gaia_cuda_open(const uint8_t uuid[16], void *memory, size_t length, bool windows,
                   struct home_gpu **gpu_out, unsigned *ordinal_out, char why_out[GAIA_CUDA_WHY])
{
    CUuuid id;

    static_assert(GAIA_CUDA_WHY == CUDA_WHY_SIZE, "one sentence");
    memcpy(&id, uuid, sizeof id);
    int error = home_gpu_open(&id, memory, length, gpu_out, why_out);
    if (error)
        return error;
    *ordinal_out = (unsigned)(*gpu_out)->device.ordinal;
    if (!windows)
        (*gpu_out)->windows = GPU_WINDOWS_NONE;
    return 0;
}

const char *gaia_cuda_reach(const struct home_gpu *gpu, enum gaia_path path)
{
    static const char *const words[] = {
        [GAIA_REACH_UNKNOWN] = "unknown", [GAIA_REACH_PROVEN] = "proven", [GAIA_REACH_NONE] = "unreachable"};

    enum gaia_reach reach = atomic_load(&gpu->reaches.of[path]);

    if (reach != GAIA_REACH_NONE && gpu->windows == GPU_WINDOWS_NONE)
        return "off";
    return reach == GAIA_REACH_UNKNOWN && gpu->reaches.refused[path] ? "refused" : words[reach];
}

void gaia_cuda_close(struct home_gpu *gpu)
{
    cuda_chunks_end(gpu);
    home_gpu_close(gpu);
}

const char *gaia_cuda_failure(struct home_gpu *gpu)
{
    int failed = atomic_load(&gpu->failed);

    return failed ? cuda_error_name(gpu->device.api, (CUresult)failed) : NULL;
}

uint64_t gaia_cuda_short_ns(const struct home_gpu *gpu)
{
    return gpu->short_ns;
}

uint64_t gaia_cuda_bytes(const struct home_gpu *gpu)
{
    size_t bytes = 0;

    return gpu->device.api->cuDeviceTotalMem(&bytes, gpu->device.device) == CUDA_SUCCESS ? bytes : 0;
}
