/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: memory of frames that a NIC writes to. There may be no NIC: a copy of the driver's to the window's
 * address is it, and what of the rest the driver and the kernel allow is looked at: that the memory can be
 * had as a dma-buf. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/own.h"

#define PAGES UINT64_C(512)
#define FIRST UINT64_C(100) /* pages of the window */
#define COUNT UINT64_C(128)
#define BYTES ((size_t)COUNT * GAIA_PAGE_SIZE)

/* Bring the bytes into the window, behind the frames' back. 0, or an errno. */
static int bring(const struct own *own, const struct gaia_window *window, const void *bytes)
{
    int error = gpu_begin(own->gpu);

    if (error)
        return error;
    error = gpu_wait(own->gpu, own->gpu->stream,
                     own->api->cuMemcpyHtoDAsync((uintptr_t)window->memory, bytes, BYTES, own->gpu->stream));
    gpu_end(own->gpu);
    return error;
}

/* The pages are placed, and what they were granted with is known: nothing is modified, then one page is. */
static int check_placed(const struct own *own, struct gaia_frames *frames, const struct gaia_window *window,
                        const uint8_t *bytes)
{
    struct gaia_digest digests[COUNT];
    uint64_t bits[(COUNT + 63) / 64], zeros[32] = {0};
    const uint64_t page = FIRST + 70;

    EXPECT(!frames->ops->recall(frames, FIRST, COUNT, digests));
    for (uint64_t i = 0; i < COUNT; i++)
        EXPECT(gaia_digest_equal(digests[i], gaia_digest_of(bytes + i * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE)));
    EXPECT(!frames->ops->modified(frames, FIRST, COUNT, bits));
    EXPECT(!bits[0] && !bits[1]);
    EXPECT(!gpu_begin(own->gpu));
    int error = gpu_wait(own->gpu, own->gpu->stream,
                         own->api->cuMemcpyHtoDAsync((uintptr_t)window->memory + 70 * GAIA_PAGE_SIZE + 256,
                                                     zeros, sizeof zeros, own->gpu->stream));
    gpu_end(own->gpu);
    EXPECT(!error);
    EXPECT(!frames->ops->modified(frames, FIRST, COUNT, bits));
    EXPECT(!bits[0] && bits[1] == UINT64_C(1) << (page - FIRST) % 64);
    return 0;
}

static int say_dma_buf(const struct own *own, struct gaia_standing *standing)
{
    bool can = cuda_attribute(&own->gpu->device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    int fd = standing->share(standing);

    printf("     a dma-buf of %zu MiB: %s\n", standing->length >> 20, fd >= 0 ? "yes" : strerror(-fd));
    EXPECT((fd >= 0) == (can && own->api->cuMemGetHandleForAddressRange));
    if (fd >= 0)
        close(fd);
    return 0;
}

int own_window(struct own *own)
{
    static const char *const ways[] = {"not known", "after a flush", "in order"};
    struct gaia_frames *frames = NULL;
    struct gaia_window window;

    printf("     what a NIC writes is seen: %s\n", ways[own->gpu->windows]);
    EXPECT(!gaia_cuda_frames_open(own->gpu, PAGES, false, &frames));
    int error = frames->ops->open_window(frames, FIRST, COUNT, &window);
    EXPECT(error == (own->gpu->windows == GPU_WINDOWS_NONE ? -EOPNOTSUPP : 0));
    if (error) {
        frames->ops->close(frames);
        return 0;
    }
    EXPECT(window.standing &&
           frames->ops->open_window(frames, frames->chunk_pages - 1, 2, &window) == -EOPNOTSUPP);
    uint8_t *bytes = malloc(BYTES);
    EXPECT(bytes);
    for (size_t i = 0; i < BYTES; i += 8)
        memcpy(bytes + i, &(uint64_t){own_random(&own->random)}, 8);
    EXPECT(!bring(own, &window, bytes));
    EXPECT(!frames->ops->close_window(frames, &window, true));
    if (check_placed(own, frames, &window, bytes) || say_dma_buf(own, window.standing))
        return 1;
    /* Nothing has arrived: nothing is placed. */
    EXPECT(!frames->ops->open_window(frames, 0, 4, &window));
    EXPECT(!frames->ops->close_window(frames, &window, false));
    free(bytes);
    frames->ops->close(frames);
    return 0;
}
