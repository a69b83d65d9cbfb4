/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's own tests, with the daemon's half of the driver cuda and no mount: what only a GPU can show.
 *
 *   own [--pages N] [--seed N], or own --describe
 *
 * Needs NVIDIA's driver and nothing else (no toolkit): kernels are those of gpu/kernels.ptx. Ends with a line
 * "N passed, N failed, N skipped", and with 0 where there is no GPU. On the stand-in of tests/cuda it runs,
 * too. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "consistency/digest.h"
#include "gpu/kernels.h"
#include "tests/gpu/own.h"

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define THREADS_MAX 64
#define SHIFTS 256u /* a page may begin at every 16th byte */

static uint64_t now_ms(void)
{
    return clock_now_ns() / 1000000;
}

static void fill_random(void *memory, size_t bytes, uint64_t *state)
{
    uint64_t *words = memory;

    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = own_random(state);
}

/* --- digests --- */

struct buffers {
    size_t pages;
    uint8_t *host;
    struct gaia_digest *host_digests;
    CUdeviceptr bytes, digests;
};

/* Buffers of so many pages. 0 or an error of the driver's. GPU held. */
static CUresult buffers_make(const struct own *own, size_t pages, struct buffers *buffers_out)
{
    *buffers_out = (struct buffers){.pages = pages};
    buffers_out->host = malloc(pages * PAGE);
    buffers_out->host_digests = malloc(pages * sizeof(struct gaia_digest));
    if (!buffers_out->host || !buffers_out->host_digests)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = own->api->cuMemAlloc(&buffers_out->bytes, pages * PAGE);
    if (error == CUDA_SUCCESS)
        error = own->api->cuMemAlloc(&buffers_out->digests, pages * sizeof(struct gaia_digest));
    return error;
}

static void buffers_free(const struct own *own, struct buffers *buffers)
{
    free(buffers->host);
    free(buffers->host_digests);
    if (buffers->bytes)
        own->api->cuMemFree(buffers->bytes);
    if (buffers->digests)
        own->api->cuMemFree(buffers->digests);
}

static CUresult refill(const struct own *own, struct buffers *buffers, uint64_t *random)
{
    fill_random(buffers->host, buffers->pages * PAGE, random);
    return own->api->cuMemcpyHtoDAsync(buffers->bytes, buffers->host, buffers->pages * PAGE,
                                       own->gpu->stream);
}

/* A thread's part of a comparison. */
struct compare {
    const struct buffers *buffers;
    size_t shift;
    uint64_t from, to, wrong;
};

static void *compare_part(void *context)
{
    struct compare *part = context;
    const uint8_t *bytes = part->buffers->host + part->shift;

    for (uint64_t i = part->from; i < part->to; i++)
        part->wrong +=
            !gaia_digest_equal(part->buffers->host_digests[i], gaia_digest_of(bytes + i * PAGE, PAGE));
    return NULL;
}

/* The CPU's digests of count pages, on all processors, beside those that the GPU made. How many differ. */
static uint64_t compare_on_cpu(const struct buffers *buffers, size_t shift, uint64_t count)
{
    struct compare parts[THREADS_MAX] = {{0}};
    pthread_t threads[THREADS_MAX];
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t wrong = 0;

    n = n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : n;
    for (long i = 0; i < n; i++) {
        parts[i] = (struct compare){.buffers = buffers, .shift = shift};
        parts[i].from = count * (uint64_t)i / (uint64_t)n;
        parts[i].to = count * (uint64_t)(i + 1) / (uint64_t)n;
        if (pthread_create(&threads[i], NULL, compare_part, &parts[i]))
            abort();
    }
    for (long i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        wrong += parts[i].wrong;
    }
    return wrong;
}

/* Hashes count pages from byte `shift` on, on both sides. How many digests differ, or UINT64_MAX. */
static uint64_t compare_digests(const struct own *own, struct buffers *buffers, size_t shift, uint64_t count)
{
    CUdeviceptr from = buffers->bytes + shift, to = buffers->digests;

    if (gpu_begin(own->gpu))
        return UINT64_MAX;
    CUresult error =
        gpu_launch(own->gpu, own->gpu->stream, GPU_HASH_PAGES, count, (void *[]){&from, &count, &to});
    if (error == CUDA_SUCCESS)
        error = own->api->cuMemcpyDtoHAsync(buffers->host_digests, to, count * sizeof(struct gaia_digest),
                                            own->gpu->stream);
    int ended = gpu_wait(own->gpu, own->gpu->stream, error);
    gpu_end(own->gpu);
    return ended ? UINT64_MAX : compare_on_cpu(buffers, shift, count);
}

/* A random buffer has 256 times as many different strings of 4096 bytes as pages: one from every 16th byte.
 */
static uint64_t hash_all(struct own *own, struct buffers *buffers, uint64_t *done_out)
{
    uint64_t wrong = 0, done = 0;

    while (done < own->pages) {
        if (gpu_begin(own->gpu))
            return UINT64_MAX;
        CUresult error = refill(own, buffers, &own->random);
        gpu_end(own->gpu);
        if (error != CUDA_SUCCESS)
            return UINT64_MAX;
        for (size_t shift = 0; shift < SHIFTS && done < own->pages; shift++) {
            uint64_t count = buffers->pages - 1 < own->pages - done ? buffers->pages - 1 : own->pages - done;
            uint64_t found = compare_digests(own, buffers, shift * 16, count);
            if (found == UINT64_MAX)
                return found;
            wrong += found;
            done += count;
        }
    }
    *done_out = done;
    return wrong;
}

static int test_digests(struct own *own)
{
    uint64_t done = 0, started = now_ms();
    struct buffers buffers;

    EXPECT(!gpu_begin(own->gpu));
    CUresult error = buffers_make(own, own->pages < 65536 ? own->pages / 8 + 2 : 65536, &buffers);
    gpu_end(own->gpu);
    uint64_t wrong = error == CUDA_SUCCESS ? hash_all(own, &buffers, &done) : UINT64_MAX;
    EXPECT(!gpu_begin(own->gpu));
    buffers_free(own, &buffers);
    gpu_end(own->gpu);
    printf("     %llu strings of a page's length (%.1f GB; in buffers of %zu random pages, one from every "
           "16th byte), "
           "%llu digests differ, %llu ms\n",
           (unsigned long long)done, (double)done * 4096e-9, buffers.pages, (unsigned long long)wrong,
           (unsigned long long)(now_ms() - started));
    EXPECT(wrong == 0 && done == own->pages);
    return 0;
}

/* One round: some bytes become others, in random pages; the kernel finds these pages, among those that it is
 * to look at. How many words of the bitmap are wrong, or UINT64_MAX. GPU held. */
static uint64_t find_round(struct own *own, struct buffers *buffers, CUdeviceptr lists)
{
    const struct cuda_api *api = own->api;
    CUstream stream = own->gpu->stream;
    uint64_t count = buffers->pages, words = (count + 31) / 32, wrong = 0;
    uint32_t *consider = calloc(words, 4), *expected = calloc(words, 4), *found = malloc((words + 1) * 4);
    CUdeviceptr modified = lists + words * 4, total = modified + words * 4, granted = buffers->digests;
    uint32_t sum = 0;

    CUresult error = refill(own, buffers, &own->random);
    if (error == CUDA_SUCCESS)
        error = gpu_launch(own->gpu, own->gpu->stream, GPU_HASH_PAGES, count,
                           (void *[]){&buffers->bytes, &count, &granted});
    if (gpu_wait(own->gpu, own->gpu->stream, error)) /* from here on the host's copy changes */
        error = CUDA_ERROR_INVALID_VALUE;
    for (uint64_t w = 0; w < words; w++)
        consider[w] = (uint32_t)own_random(&own->random) | (uint32_t)own_random(&own->random);
    for (unsigned i = 0; i < 40 && error == CUDA_SUCCESS; i++) {
        uint64_t page = own_random(&own->random) % count, at = page * PAGE + own_random(&own->random) % PAGE;
        buffers->host[at] ^= (uint8_t)(1u << own_random(&own->random) % 8);
        error = api->cuMemcpyHtoDAsync(buffers->bytes + at, buffers->host + at, 1, stream);
        expected[page / 32] |= (uint32_t)1 << page % 32 & consider[page / 32];
    }
    if (error == CUDA_SUCCESS)
        error = api->cuMemcpyHtoDAsync(lists, consider, words * 4, stream);
    if (error == CUDA_SUCCESS)
        error = api->cuMemsetD8Async(total, 0, 4, stream);
    if (error == CUDA_SUCCESS)
        error = gpu_launch(own->gpu, own->gpu->stream, GPU_FIND_MODIFIED, count,
                           (void *[]){&buffers->bytes, &count, &granted, &lists, &modified, &total});
    if (error == CUDA_SUCCESS)
        error = api->cuMemcpyDtoHAsync(found, modified, (words + 1) * 4, stream);
    if (gpu_wait(own->gpu, own->gpu->stream, error))
        wrong = UINT64_MAX;
    for (uint64_t w = 0; w < words && !error; w++) {
        wrong += found[w] != expected[w];
        sum += (uint32_t)__builtin_popcount(expected[w]);
    }
    wrong += !error && found[words] != sum;
    free(consider);
    free(expected);
    free(found);
    return wrong;
}

static int test_modified(struct own *own)
{
    size_t pages = own->standin ? 1003 : 100003;
    struct buffers buffers;
    CUdeviceptr lists = 0;
    uint64_t wrong = 0;

    EXPECT(!gpu_begin(own->gpu));
    CUresult error = buffers_make(own, pages, &buffers);
    if (error == CUDA_SUCCESS)
        error = own->api->cuMemAlloc(&lists, (pages / 32 + 2) * 12);
    for (int round = 0; round < 5 && error == CUDA_SUCCESS && !wrong; round++)
        wrong = find_round(own, &buffers, lists);
    if (lists)
        own->api->cuMemFree(lists);
    buffers_free(own, &buffers);
    gpu_end(own->gpu);
    EXPECT(error == CUDA_SUCCESS);
    EXPECT(wrong == 0);
    return 0;
}

/* --- frames --- */

static struct gaia_frames *frames_make(const struct own *own, uint64_t pages)
{
    struct gaia_frames *frames;

    return gaia_cuda_frames_open(own->gpu, pages, false, &frames) ? NULL : frames;
}

/* All memory that can be had is filled with bytes that are no zeros, and given back. How much it was. */
static size_t dirty_memory(const struct own *own, CUdeviceptr *blocks, size_t most)
{
    size_t block = own->standin ? 16 * MIB : 512 * MIB, n = 0;

    if (gpu_begin(own->gpu))
        return 0;
    while (n < most && own->api->cuMemAlloc(&blocks[n], block) == CUDA_SUCCESS) {
        if (own->api->cuMemsetD8Async(blocks[n], 0xdb, block, own->gpu->stream) != CUDA_SUCCESS)
            break;
        n++;
    }
    gpu_wait(own->gpu, own->gpu->stream, CUDA_SUCCESS);
    for (size_t i = 0; i < n; i++)
        own->api->cuMemFree(blocks[i]);
    gpu_end(own->gpu);
    return n * block;
}

static int test_zeroed(struct own *own)
{
    static CUdeviceptr blocks[1024];
    uint64_t pages = own->standin ? 4096 : 262144;
    struct gaia_frames *frames = frames_make(own, pages);
    struct client client;
    char line[128];
    int fd;

    EXPECT(frames);
    size_t dirty = dirty_memory(own, blocks, own->standin ? 4 : 1024), chunk = frames->chunk_pages * PAGE;
    printf("     %zu MiB were filled and given back; then %llu MiB of frames\n", dirty / MIB,
           (unsigned long long)(pages * PAGE / MIB));
    EXPECT(dirty);
    for (uint64_t i = 0; i < pages / frames->chunk_pages; i++) {
        EXPECT(!frames->ops->share(frames, true, i, &fd));
        EXPECT(!client_start(own, "zeros", fd, chunk, &client));
        close(fd);
        bool said = client_line(&client, line, 60000);
        EXPECT(client_end(&client) == 0 && said);
        printf("     chunk %llu of %zu MiB: %s\n", (unsigned long long)i, chunk / MIB, line);
        EXPECT(!strcmp(line, "zeros"));
    }
    frames->ops->close(frames);
    return 0;
}

/* Frames of random bytes, placed as the daemon places them, with the first chunk exported. */
struct placed {
    struct gaia_frames *frames;
    uint8_t *bytes;
    uint64_t pages;
    int fd;
};

static int placed_make(struct own *own, uint64_t pages, struct placed *placed_out)
{
    *placed_out = (struct placed){.frames = frames_make(own, pages), .pages = pages, .fd = -1};
    EXPECT(placed_out->frames);
    placed_out->bytes = malloc(pages * PAGE);
    EXPECT(placed_out->bytes);
    fill_random(placed_out->bytes, pages * PAGE, &own->random);
    EXPECT(!placed_out->frames->ops->place(placed_out->frames, 0, pages, placed_out->bytes));
    EXPECT(!placed_out->frames->ops->share(placed_out->frames, true, 0, &placed_out->fd));
    return 0;
}

/* What a client stored is found, and what it did not store is as it was placed. */
static int find_stored(const struct placed *placed)
{
    const struct gaia_frames_ops *ops = placed->frames->ops;
    uint64_t words = (placed->pages + 63) / 64, *bits = calloc(words, 8);
    uint8_t page[PAGE];
    void *place = page;

    EXPECT(bits);
    EXPECT(!ops->modified(placed->frames, 0, placed->pages, bits));
    EXPECT(bits[0] == (UINT64_C(1) << OWN_STORED_AT / PAGE));
    for (uint64_t i = 1; i < words; i++)
        EXPECT(!bits[i]);
    EXPECT(!ops->fetch(placed->frames, OWN_STORED_AT / PAGE, 1, &place));
    memcpy(placed->bytes + OWN_STORED_AT, OWN_STORED, strlen(OWN_STORED));
    EXPECT(!memcmp(page, placed->bytes + OWN_STORED_AT / PAGE * PAGE, PAGE));
    EXPECT(!ops->fetch(placed->frames, placed->pages - 1, 1, &place));
    EXPECT(!memcmp(page, placed->bytes + (placed->pages - 1) * PAGE, PAGE));
    free(bits);
    return 0;
}

/* The daemon's half and new clients go on as if nothing had been. */
static int still_works(struct own *own)
{
    struct placed placed;
    struct client client;
    char line[128];

    if (placed_make(own, 512, &placed))
        return 1;
    EXPECT(!client_start(own, "store", placed.fd, placed.frames->chunk_pages * PAGE, &client));
    bool said = client_line(&client, line, 60000);
    EXPECT(client_end(&client) == 0 && said && !strcmp(line, "stored"));
    if (find_stored(&placed))
        return 1;
    close(placed.fd);
    placed.frames->ops->close(placed.frames);
    free(placed.bytes);
    return 0;
}

static int test_killed(struct own *own)
{
    struct placed placed;
    struct client client;
    char line[128];

    if (placed_make(own, 16384, &placed))
        return 1;
    EXPECT(!client_start(own, "spin", placed.fd, placed.frames->chunk_pages * PAGE, &client));
    EXPECT(client_line(&client, line, 60000) && !strcmp(line, "started"));
    bool ended = client_line(&client, line, 300); /* the proof that it is at work: it does not say "done" */
    printf("     300 ms after the first launch it has said: '%s'\n", line);
    EXPECT(!ended);
    uint64_t killed = now_ms();
    kill(client.pid, SIGKILL);
    int status = client_end(&client);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (find_stored(&placed) || still_works(own))
        return 1;
    printf("     killed; what it had stored was found, and another client worked, after %llu ms\n",
           (unsigned long long)(now_ms() - killed));
    close(placed.fd);
    placed.frames->ops->close(placed.frames);
    free(placed.bytes);
    return 0;
}

static int test_illegal_access(struct own *own)
{
    struct placed placed;
    struct client client;
    char line[128];

    if (placed_make(own, 512, &placed))
        return 1;
    /* It uses page 16 for a list of zeros, which are stores, too. */
    memset(placed.bytes + 16 * PAGE, 0, PAGE);
    EXPECT(!placed.frames->ops->place(placed.frames, 16, 1, placed.bytes + 16 * PAGE));
    EXPECT(!client_start(own, "wild", placed.fd, placed.frames->chunk_pages * PAGE, &client));
    EXPECT(client_line(&client, line, 60000) && !strcmp(line, "stored"));
    bool said = client_line(&client, line, 60000);
    int status = client_end(&client);
    if (WIFSIGNALED(status))
        printf("     the client died of signal %d\n", WTERMSIG(status));
    else
        printf("     the client had: %s\n", line);
    if (own->standin) /* whose kernels are code of the client */
        EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    else
        EXPECT(status == 0 && said && strcmp(line, "error 0"));
    if (find_stored(&placed) || still_works(own))
        return 1;
    close(placed.fd);
    placed.frames->ops->close(placed.frames);
    free(placed.bytes);
    return 0;
}

/* --- all of them --- */

static const struct {
    const char *name;
    int (*run)(struct own *own);
} tests[] = {
    {"digests are the CPU's", test_digests},
    {"modified pages are found, and no others", test_modified},
    {"frames are zeroed between owners", test_zeroed},
    {"bytes that a NIC brings are placed", own_window},
    {"a client is killed in mid-kernel", test_killed},
    {"a client's kernel stores where nothing is", test_illegal_access},
};
#define TESTS (sizeof tests / sizeof tests[0])

static void describe(const struct cuda_device *device, const char *name)
{
    int major = 0, minor = 0, version = 0;
    size_t bytes = 0;

    device->api->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->device);
    device->api->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->device);
    device->api->cuDriverGetVersion(&version);
    device->api->cuDeviceTotalMem(&bytes, device->device);
    printf("GPU: %s, %zu MiB, compute capability %d.%d, driver of CUDA %d.%d\n", name, bytes / MIB, major,
           minor, version / 1000, version % 1000 / 10);
}

static int open_gpu(struct own *own, char why[CUDA_WHY_SIZE])
{
    struct cuda_device device;
    char name[96] = "";

    int error = cuda_device_open(0, &device, why);
    if (error)
        return error;
    device.api->cuDeviceGetName(name, sizeof name, device.device);
    void *memory = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    error = memory == MAP_FAILED ? -ENOMEM : home_gpu_open(&device.uuid, memory, 2 * MIB, &own->gpu, why);
    if (error)
        return error;
    own->api = own->gpu->device.api;
    own->standin = !strncmp(name, "stand-in", 8);
    describe(&device, name);
    return 0;
}

static int run_all(struct own *own)
{
    unsigned failed = 0;

    for (size_t i = 0; i < TESTS; i++) {
        printf("---- %s\n", tests[i].name);
        int bad = tests[i].run(own);
        failed += bad != 0;
        printf("%s %s\n", bad ? "FAIL" : "ok  ", tests[i].name);
        fflush(stdout);
    }
    printf("%zu passed, %u failed, 0 skipped\n", TESTS - failed, failed);
    return failed != 0;
}

int main(int argc, char **argv)
{
    struct own own = {.pages = 1000000, .random = (uint64_t)time(NULL), .self = "/proc/self/exe"};
    char why[CUDA_WHY_SIZE] = "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && !strcmp(argv[1], "--client"))
        return client_main(argv[2], 3, strtoull(argv[3], NULL, 10));
    bool only_describe = argc == 2 && !strcmp(argv[1], "--describe");
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--pages"))
            own.pages = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--seed"))
            own.random = strtoull(argv[i + 1], NULL, 10);
    if ((argc % 2 == 0 && !only_describe) || !own.pages) {
        fprintf(stderr, "usage: own [--pages N] [--seed N], or own --describe\n");
        return 2;
    }
    if (!only_describe)
        printf("--seed %llu\n", (unsigned long long)own.random);
    int error = open_gpu(&own, why);
    if (error == -ENODEV) {
        printf("no GPU here: %s\n", why);
        if (!only_describe)
            printf("0 passed, 0 failed, %zu skipped\n", TESTS);
        return 0;
    }
    if (error) {
        printf("the GPU does not start: %s\n0 passed, 1 failed, %zu skipped\n", why, TESTS);
        return 1;
    }
    int result = only_describe ? 0 : run_all(&own);
    home_gpu_close(own.gpu);
    return result;
}
