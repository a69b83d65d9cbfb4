/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the CUDA device, as the home has them: home_cuda_chunk.c has their memory, home_cuda_place.c
 * places them, home_cuda_scan.c looks for what kernels stored, and changes pages in place. */
#ifndef GAIAFS_GPU_HOME_CUDA_H
#define GAIAFS_GPU_HOME_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"
#include "gpu/home_gpu.h"
#include "io/standing.h"

struct chunk {
    SLIST_ENTRY(chunk) link; /* home_gpu.unfreed */
    size_t bytes, granted_bytes;
    CUmemGenericAllocationHandle memory;
    CUdeviceptr pages;   /* where it is in the daemon's context */
    CUdeviceptr granted; /* a struct gaia_digest for each page; 0 where nobody stores */
    CUmemGenericAllocationHandle granted_memory; /* of it, if clients may have it, too; else 0 */
    int fd, granted_fd; /* of memory, and of granted_memory: cuda_chunk_share(); or -1 */
    uint64_t placed;    /* how many bits of `resident` are set */
    unsigned placings;  /* and patches, under way without the frames' lock, and windows: meanwhile the chunk
                           stays */
    struct gaia_standing standing; /* the pages, for those who write to them by a NIC */
    struct home_gpu *gpu;
    uint64_t *resident; /* bit i: page i was placed */
    uint64_t *unsure;   /* of resident: granted[i] says nothing */
    uint64_t *filled;   /* page i was brought, or bringing it was begun, since it was zeros: it may have left
                           again */
    uint64_t *coming;   /* page i is on its way there */
};

struct cuda_frames {
    struct gaia_frames base;
    struct home_gpu *gpu;
    bool read_only;
    size_t granted_bytes;   /* of a chunk's digests, if clients may have them; else 0 */
    pthread_mutex_t making; /* of the thread that makes a chunk; taken before the lock */
    pthread_mutex_t lock;   /* guards all below */
    struct chunk **chunks;
    size_t count; /* length of chunks; those that nobody needed yet are NULL */
};

struct gaia_frames_map {
    struct cuda_frames *frames;
};

static inline struct cuda_frames *cuda_frames_of(struct gaia_frames *frames)
{
    return (struct cuda_frames *)frames;
}

/* The words that have bits of [first, first + count), and of one of them, these bits. */
#define for_each_word(word, first, count) \
    for (uint64_t word = (first) / 64; word * 64 < (first) + (count); word++)
static inline uint64_t bits_of_word(uint64_t word, uint64_t first, uint64_t count)
{
    uint64_t low = first > word * 64 ? first - word * 64 : 0, high = first + count - word * 64;

    return (high < 64 ? (UINT64_C(1) << high) - 1 : UINT64_MAX) & ~((UINT64_C(1) << low) - 1);
}

static inline void bits_set(uint64_t *bits, uint64_t first, uint64_t count, bool value)
{
    for_each_word (word, first, count)
        if (value)
            bits[word] |= bits_of_word(word, first, count);
        else
            bits[word] &= ~bits_of_word(word, first, count);
}

static inline bool bit_get(const uint64_t *bits, uint64_t i)
{
    return bits[i / 64] >> i % 64 & 1;
}

/* The part of [page, page + count) that lies in the chunk of page. */
struct part {
    struct chunk *chunk; /* NULL: there is none */
    uint64_t first;      /* page of the chunk */
    uint64_t count;
};

static inline struct part part_at(const struct cuda_frames *frames, uint64_t page, uint64_t count)
{
    uint64_t pages = frames->base.chunk_pages, index = page / pages;
    struct part part = {.first = page % pages};

    part.chunk = index < frames->count ? frames->chunks[index] : NULL;
    part.count = count < pages - part.first ? count : pages - part.first;
    return part;
}

static inline CUdeviceptr part_address(const struct part *part)
{
    return part->chunk->pages + part->first * GAIA_PAGE_SIZE;
}

/* Pages' bits of `resident` or of `unsure`. Clients that search by themselves are told how many have both.
 * Lock held. */
void cuda_mark(const struct cuda_frames *frames, struct chunk *chunk, uint64_t *bits, uint64_t first,
               uint64_t count, bool value);

/* The chunk, made if there is none. The frames' lock is held, and let go while one is made. */
int cuda_chunk_get(struct cuda_frames *frames, uint64_t index, struct chunk **chunk_out);
static inline size_t cuda_chunk_bytes(const struct cuda_frames *frames)
{
    return frames->base.chunk_pages * GAIA_PAGE_SIZE;
}
/* For all frames of a GPU that closes; if the GPU is lost, the driver frees what they had. */
void cuda_chunks_end(struct home_gpu *gpu);
/* Free a chunk that nobody uses any more. It need not exist. Lock held. */
void cuda_chunk_free(struct cuda_frames *frames, uint64_t index);
/* Chunks that hold nothing, and that no client has, give their memory back. A client that was given a chunk's
 * descriptor may not have attached yet. Lock held. */
void cuda_chunks_trim(struct cuda_frames *frames);
/* A descriptor of a chunk's memory, for the caller to close; kept: where the chunk's own descriptor is, or
 * -1. Lock held, and let go meanwhile: the chunk stays. 0, or what the driver says, -EMFILE ... */
int cuda_chunk_share(struct cuda_frames *frames, struct chunk *chunk, CUmemGenericAllocationHandle memory,
                     int *kept, int *fd_out);

/* A part has come, or could not be brought, all of which was `filled` when that was begun: wipe what was to
 * be wiped meanwhile. Lock held. */
void cuda_wipe_late(const struct cuda_frames *frames, const struct part *part);

/* How pages get there (home_cuda_place.c): see gpu/device.h. */
int cuda_place(struct gaia_frames *base, uint64_t page, uint64_t count, const void *bytes);
int cuda_place_later(struct gaia_frames *base, struct gaia_frames_map *map, uint64_t page, uint64_t count,
                     const void *bytes, bool exposes, struct gaia_placing *placing);
int cuda_open_window(struct gaia_frames *base, uint64_t page, uint64_t count, struct gaia_window *window_out);
int cuda_close_window(struct gaia_frames *base, const struct gaia_window *window, bool good);

/* What a driver does that scans: see gpu/device.h. */
int cuda_modified(struct gaia_frames *base, uint64_t page, uint64_t count, uint64_t *bits_out);
int cuda_granted(struct gaia_frames *base, uint64_t page, uint64_t count, const struct gaia_digest *digests);
int cuda_recall(struct gaia_frames *base, uint64_t page, uint64_t count, struct gaia_digest *digests_out);
int cuda_gather(struct gaia_frames *base, const uint64_t *pages, size_t count, void *bytes_out);
int cuda_patch(struct gaia_frames *base, const uint64_t *pages, size_t count, const void *const *old,
               const void *fresh);

#endif
