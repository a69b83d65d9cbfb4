/* SPDX-License-Identifier: Apache-2.0 */
/* Pages get into a GPU's frames: by copies that somebody waits for, or nobody; or a NIC has brought them. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "gpu/home_cuda.h"

/* What a NIC has written is seen by who comes now: whether that is so. Refused, it is no failure of the
 * GPU's, which is copied to from now on. */
static bool flush(struct home_gpu *gpu)
{
    if (gpu->windows == GPU_WINDOWS_FLUSHED &&
        gpu->device.api->cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER) !=
            CUDA_SUCCESS) {
        gpu->windows = GPU_WINDOWS_NONE;
        for (enum gaia_path path = 0; path < GAIA_PATHS; path++)
            atomic_store(&gpu->reaches.of[path], GAIA_REACH_NONE);
    }
    return gpu->windows != GPU_WINDOWS_NONE;
}

/* Put into a lane what brings a part's bytes; the lane is the caller's then, whatever *result_out is. Without
 * the lock: several are placed at a time. Nobody else has to do with these pages, which are not resident, but
 * who cuts the file off: then they are dropped when they are placed. bytes: NULL, a NIC has brought them. */
static int send_part(struct cuda_frames *frames, const struct part *part, const void *bytes,
                     CUstream *stream_out, CUresult *result_out)
{
    struct home_gpu *gpu = frames->gpu;
    CUdeviceptr address = part_address(part);
    uint64_t count = part->count;
    CUresult result = CUDA_SUCCESS;
    CUstream stream;

    int error = gpu_lane_begin(gpu, &stream);
    if (error)
        return error;
    if (bytes)
        result = gpu->device.api->cuMemcpyHtoDAsync(address, bytes, count * GAIA_PAGE_SIZE, stream);
    else if (!flush(gpu)) {
        gpu_lane_end(gpu, stream);
        return -EOPNOTSUPP;
    }
    if (result == CUDA_SUCCESS && !frames->read_only) {
        CUdeviceptr granted = part->chunk->granted + part->first * sizeof(struct gaia_digest);
        result = gpu_launch(gpu, stream, GPU_HASH_PAGES, count, (void *[]){&address, &count, &granted});
    }
    *stream_out = stream;
    *result_out = result;
    return 0;
}

static int place_part(struct cuda_frames *frames, const struct part *part, const void *bytes)
{
    CUstream stream;
    CUresult result;

    int error = send_part(frames, part, bytes, &stream, &result);
    if (error)
        return error;
    error = gpu_lane_wait(frames->gpu, stream, result);
    gpu_lane_end(frames->gpu, stream);
    return error;
}

/* A part is about to be brought. Its chunk stays until arrived(). What is on its way already, as a window's
 * that is looked at, has perhaps been cut off. Lock held, as for that. */
static void leaves(const struct part *part)
{
    struct chunk *chunk = part->chunk;

    for_each_word (word, part->first, part->count)
        chunk->filled[word] |= bits_of_word(word, part->first, part->count) & ~chunk->coming[word];
    bits_set(chunk->coming, part->first, part->count, true);
    chunk->placings++;
}

static void placed(const struct cuda_frames *frames, const struct part *part)
{
    struct chunk *chunk = part->chunk;

    for_each_word (word, part->first, part->count)
        chunk->placed += (unsigned)__builtin_popcountll(bits_of_word(word, part->first, part->count) &
                                                        ~chunk->resident[word]);
    cuda_mark(frames, chunk, chunk->unsure, part->first, part->count, false);
    cuda_mark(frames, chunk, chunk->resident, part->first, part->count, true);
}

/* good: all of it is there. */
static void arrived(struct cuda_frames *frames, const struct part *part, bool good)
{
    part->chunk->placings--;
    bits_set(part->chunk->coming, part->first, part->count, false);
    if (good)
        placed(frames, part);
    cuda_wipe_late(frames, part);
}

int cuda_place(struct gaia_frames *base, uint64_t page, uint64_t count, const void *bytes)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    const uint8_t *from = bytes;
    struct chunk *chunk;
    int error = 0;

    pthread_mutex_lock(&frames->lock);
    while (count && !error) {
        error = cuda_chunk_get(frames, page / base->chunk_pages, &chunk);
        if (error)
            break;
        struct part part = part_at(frames, page, count);
        part.chunk = chunk;
        leaves(&part);
        pthread_mutex_unlock(&frames->lock);
        error = place_part(frames, &part, from);
        pthread_mutex_lock(&frames->lock);
        arrived(frames, &part, !error);
        page += part.count;
        count -= part.count;
        from += part.count * GAIA_PAGE_SIZE;
    }
    pthread_mutex_unlock(&frames->lock);
    return error;
}

/* A part that places itself. */
struct placement {
    struct gpu_left left;
    struct cuda_frames *frames;
    struct part part;
    struct gaia_placing *placing;
};

static void part_arrived(struct gpu_left *left, int error)
{
    struct placement *p = (struct placement *)((char *)left - offsetof(struct placement, left));
    struct gaia_placing *placing = p->placing;

    pthread_mutex_lock(&p->frames->lock);
    arrived(p->frames, &p->part, !error);
    pthread_mutex_unlock(&p->frames->lock);
    free(p);
    placing->done(placing, error);
}

/* The chunk is there, and stays. What can't be put into a lane has arrived with an error. */
static void send_placement(struct placement *p, const void *bytes)
{
    struct home_gpu *gpu = p->frames->gpu;
    CUstream stream;
    CUresult result;

    int error = send_part(p->frames, &p->part, bytes, &stream, &result);
    if (!error && result == CUDA_SUCCESS) {
        gpu_lane_leave(gpu, stream, &p->left);
        return;
    }
    if (!error) {
        error = gpu_lane_wait(gpu, stream, result);
        gpu_lane_end(gpu, stream);
    }
    part_arrived(&p->left, error);
}

/* Of one chunk only: what lies in two is waited for. */
int cuda_place_later(struct gaia_frames *base, struct gaia_frames_map *map, uint64_t page, uint64_t count,
                     const void *bytes, bool exposes, struct gaia_placing *placing)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    uint64_t pages = frames->base.chunk_pages;

    (void)map, (void)exposes; /* what is placed is seen */
    if (!gpu_lane_can_leave(frames->gpu) || page % pages + count > pages)
        return -EOPNOTSUPP;
    struct placement *p = malloc(sizeof *p);
    if (!p)
        return -ENOMEM;
    *p = (struct placement){.left.done = part_arrived, .frames = frames, .placing = placing};
    pthread_mutex_lock(&frames->lock);
    struct chunk *chunk;
    int error = cuda_chunk_get(frames, page / pages, &chunk);
    if (!error) {
        p->part = part_at(frames, page, count);
        p->part.chunk = chunk;
        leaves(&p->part);
    }
    pthread_mutex_unlock(&frames->lock);
    if (error)
        free(p);
    else
        send_placement(p, bytes);
    return error;
}

/* Of one chunk only: what lies in two is copied. */
int cuda_open_window(struct gaia_frames *base, uint64_t page, uint64_t count, struct gaia_window *window_out)
{
    struct cuda_frames *frames = cuda_frames_of(base);
    uint64_t first = page % base->chunk_pages;
    struct chunk *chunk;

    if (frames->gpu->windows == GPU_WINDOWS_NONE || first + count > base->chunk_pages)
        return -EOPNOTSUPP;
    pthread_mutex_lock(&frames->lock);
    int error = cuda_chunk_get(frames, page / base->chunk_pages, &chunk);
    if (!error) {
        leaves(&(struct part){.chunk = chunk, .first = first, .count = count});
        *window_out =
            (struct gaia_window){.page = page,
                                 .count = count,
                                 .memory = (uint8_t *)chunk->standing.address + first * GAIA_PAGE_SIZE,
                                 .standing = &chunk->standing};
    }
    pthread_mutex_unlock(&frames->lock);
    return error;
}

int cuda_close_window(struct gaia_frames *base, const struct gaia_window *window, bool good)
{
    struct cuda_frames *frames = cuda_frames_of(base);

    pthread_mutex_lock(&frames->lock);
    struct part part = part_at(frames, window->page, window->count);
    assert(part.chunk); /* it has been there since the window was opened */
    pthread_mutex_unlock(&frames->lock);
    int error = good ? place_part(frames, &part, NULL) : 0;
    pthread_mutex_lock(&frames->lock);
    arrived(frames, &part, good && !error);
    pthread_mutex_unlock(&frames->lock);
    return error;
}
