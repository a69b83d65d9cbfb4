/* SPDX-License-Identifier: Apache-2.0 */
/* What files on a GPU cost, beside what programs do without gaiafs (tests/gpu/bench.sh runs it). Prints one
 * JSON object with the seconds of every repetition; ends with 1 when bytes are wrong or a call fails, and
 * never because something is slow. All baselines are measured in the same run, in turns.
 *
 *   bench memory BYTES              a GPU alone: copies, a kernel that pulls, the search for what changed
 *   bench place SMALL FILE BACKING  a file that is in the host's memory gets to the GPU, once; SMALL is
 *                                   mapped first, as a daemon starts a GPU at its first map
 *   bench sync FILE                 acquire and release, with nothing or something changed
 *   bench changed FILE BACKING      acquires of a read-only mapping, after a program has changed a part of
 *                                   the file; changed-writable: of a writable one
 *   bench sharing FILE [--rounds N] a CPU and a GPU store every second byte each, at the same time, N times
 *
 * BACKING: the file in the data directory. Each takes --repetitions N. Kernels are those of gpu/kernels.ptx:
 * no toolkit is needed. */
#include <dlfcn.h>
#include <pthread.h>

#include "consistency/digest.h"
#include "gpu/cuda_device.h"
#include "gpu/kernels.h"
#include "tests/bench/bench.h"

#define REPETITIONS_MAX 64u
#define BLOCK (4 * MIB) /* of read() into pinned memory: two of them take turns */
#define UNIT ((size_t)65536)

enum kernel { FIND, HASH, GATHER, PATCH, KERNELS };

static struct cuda_device cuda;
static const struct cuda_api *api;
static CUstream stream;
static CUfunction kernels[KERNELS];
static unsigned blocks[KERNELS]; /* as many as run at once */
static size_t repetitions;
static uint64_t random_state = 11;

static void need(CUresult error, const char *what)
{
    if (error != CUDA_SUCCESS)
        die("%s: %s", what, cuda_error_name(api, error));
}

/* A grid that is larger than what its registers let run has blocks that wait: as home_gpu.c counts them. */
static unsigned count_blocks(CUfunction kernel, int multiprocessors)
{
    int fit = 0;

    if (!api->cuOccupancyMaxActiveBlocksPerMultiprocessor ||
        api->cuOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, GAIA_KERNEL_THREADS, 0) !=
            CUDA_SUCCESS ||
        fit < 1)
        fit = 2048 / GAIA_KERNEL_THREADS;
    return (unsigned)(multiprocessors > 0 ? multiprocessors : 8) * (unsigned)fit;
}

static void start_gpu(void)
{
    static const char *const names[KERNELS] = {"gaia_find_modified", "gaia_hash_pages", "gaia_gather",
                                               "gaia_patch"};
    char why[CUDA_WHY_SIZE];
    int multiprocessors = 0;
    CUmodule module;

    if (cuda_device_open(0, &cuda, why) || cuda_enter(&cuda))
        die("no GPU: %s", why);
    api = cuda.api;
    need(api->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.device),
         "ask");
    need(api->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    need(api->cuModuleLoadData(&module, gaia_kernels_ptx), "kernels");
    for (int i = 0; i < KERNELS; i++) {
        need(api->cuModuleGetFunction(&kernels[i], module, names[i]), names[i]);
        blocks[i] = count_blocks(kernels[i], multiprocessors);
    }
}

static void wait_for_gpu(void)
{
    need(api->cuStreamSynchronize(stream), "work of the GPU");
}

/* A warp has a page at a time. */
static void launch(enum kernel kernel, uint64_t pages, void **parameters)
{
    uint64_t warps = GAIA_KERNEL_THREADS / 32, enough = (pages + warps - 1) / warps;
    unsigned grid = enough < blocks[kernel] ? (unsigned)enough : blocks[kernel];

    need(api->cuLaunchKernel(kernels[kernel], grid, 1, 1, GAIA_KERNEL_THREADS, 1, 1, 0, stream, parameters,
                             NULL),
         "a launch");
}

static CUdeviceptr device_memory(size_t bytes)
{
    CUdeviceptr memory;

    need(api->cuMemAlloc(&memory, bytes), "memory of the GPU");
    return memory;
}

static void *pinned_memory(size_t bytes)
{
    void *memory;

    need(api->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "pinned memory");
    memset(memory, 1, bytes);
    return memory;
}

/* --- a GPU alone --- */

/* host has host_bytes, which go over and over again until it is so many bytes. */
static double copy_pinned(CUdeviceptr to, const uint8_t *host, size_t host_bytes, size_t bytes)
{
    uint64_t start = now_ns();

    for (size_t done = 0; done < bytes; done += host_bytes) {
        size_t n = bytes - done < host_bytes ? bytes - done : host_bytes;
        need(api->cuMemcpyHtoDAsync(to + done, host, n, stream), "a copy");
    }
    wait_for_gpu();
    return seconds(start);
}

/* The search for modified pages in device memory of so many pages. */
struct search {
    CUdeviceptr bytes, granted, lists;
    uint64_t pages;
};

static struct search search_make(CUdeviceptr bytes, uint64_t pages)
{
    struct search s = {.bytes = bytes, .pages = pages};

    s.granted = device_memory(pages * sizeof(struct gaia_digest));
    s.lists = device_memory((pages / 32 + 2) * 12);
    need(api->cuMemsetD8Async(s.lists, 0xff, (pages / 32 + 1) * 4, stream), "a list");
    launch(HASH, s.pages, (void *[]){&s.bytes, &s.pages, &s.granted});
    wait_for_gpu();
    return s;
}

static double search_run(struct search *s)
{
    CUdeviceptr modified = s->lists + (s->pages / 32 + 1) * 4, total = modified + (s->pages / 32 + 1) * 4;
    uint32_t found = 1;
    uint64_t start = now_ns();

    need(api->cuMemsetD8Async(total, 0, 4, stream), "a number");
    launch(FIND, s->pages, (void *[]){&s->bytes, &s->pages, &s->granted, &s->lists, &modified, &total});
    need(api->cuMemcpyDtoHAsync(&found, total, 4, stream), "a number");
    wait_for_gpu();
    double took = seconds(start);
    if (found)
        die("%u pages are said to have changed, and none has", found);
    return took;
}

static void search_free(const struct search *s)
{
    api->cuMemFree(s->granted);
    api->cuMemFree(s->lists);
}

/* A kernel's threads pull pages from pinned memory, 16 bytes a lane. */
static double pull(CUdeviceptr to, const void *host, CUdeviceptr list, uint64_t pages)
{
    CUdeviceptr from = (CUdeviceptr)(uintptr_t)host; /* one address space: a pinned pointer is a device's */
    uint64_t start = now_ns();

    launch(GATHER, pages, (void *[]){&from, &list, &pages, &to});
    wait_for_gpu();
    return seconds(start);
}

static void bench_memory(size_t bytes)
{
    double copy[REPETITIONS_MAX], find[REPETITIONS_MAX], in_order[REPETITIONS_MAX],
        at_random[REPETITIONS_MAX];
    size_t host_bytes = bytes < GIB ? bytes : GIB;
    uint64_t pages = host_bytes / PAGE;
    uint8_t *host = pinned_memory(host_bytes);
    CUdeviceptr to = device_memory(bytes), order = device_memory(pages * 4), mixed = device_memory(pages * 4);
    uint32_t *list = malloc(pages * 4);

    if (!list)
        die("memory");
    for (uint32_t i = 0; i < pages; i++)
        list[i] = i;
    need(api->cuMemcpyHtoDAsync(order, list, pages * 4, stream), "a list");
    wait_for_gpu();
    pick_distinct(&random_state, list, pages, pages);
    need(api->cuMemcpyHtoDAsync(mixed, list, pages * 4, stream), "a list");
    need(api->cuMemsetD8Async(to, 3, bytes, stream), "memory");
    wait_for_gpu();
    struct search s = search_make(to, bytes / PAGE);
    search_run(&s);
    for (size_t r = 0; r < repetitions; r++) {
        find[r] = search_run(&s);
        in_order[r] = pull(to, host, order, pages);
        at_random[r] = pull(to, host, mixed, pages);
        copy[r] = copy_pinned(to, host, host_bytes, bytes);
        need(api->cuMemsetD8Async(to, 3, bytes, stream), "memory");
        wait_for_gpu();
    }
    printf("{\"bytes\": %zu, \"pulled_bytes\": %zu, ", bytes, host_bytes);
    print_samples("find_s", find, repetitions);
    print_samples("pull_s", in_order, repetitions);
    print_samples("pull_random_s", at_random, repetitions);
    print_samples("pinned_copy_s", copy, repetitions);
    printf("\"done\": true}\n");
    wait_for_gpu();
    search_free(&s);
    free(list);
}

/* --- placing --- */

/* What a program does that reads a file for a GPU and knows its trade: two pinned buffers, one of which is
 * copied while the other is read into. */
static double read_and_copy(int fd, size_t bytes, CUdeviceptr to, uint8_t *pinned)
{
    CUstream streams[2];
    size_t block = 0;

    need(api->cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING), "a stream");
    need(api->cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING), "a stream");
    uint64_t start = now_ns();
    for (size_t done = 0; done < bytes; block++) {
        uint8_t *buffer = pinned + block % 2 * BLOCK;
        size_t n = bytes - done < BLOCK ? bytes - done : BLOCK;
        need(api->cuStreamSynchronize(streams[block % 2]), "a copy");
        for (size_t have = 0; have < n;) {
            ssize_t got = pread(fd, buffer + have, n - have, (off_t)(done + have));
            if (got <= 0)
                die("pread");
            have += (size_t)got;
        }
        need(api->cuMemcpyHtoDAsync(to + done, buffer, n, streams[block % 2]), "a copy");
        done += n;
    }
    need(api->cuStreamSynchronize(streams[0]), "a copy");
    need(api->cuStreamSynchronize(streams[1]), "a copy");
    double took = seconds(start);
    api->cuStreamDestroy(streams[0]);
    api->cuStreamDestroy(streams[1]);
    return took;
}

static void check_on_gpu(const uint8_t *map, uint64_t page)
{
    uint64_t word;

    need(api->cuMemcpyDtoHAsync(&word, (CUdeviceptr)(uintptr_t)map + page * PAGE, 8, stream), "a copy");
    wait_for_gpu();
    if (word != pattern_word(page, 0))
        die("wrong bytes in page %llu on the GPU", (unsigned long long)page);
}

static void bench_place(const char *small, const char *path, const char *backing_path)
{
    struct gaia_device *device = open_device();
    int first = open_file(small, O_RDONLY), fd = open_file(path, O_RDONLY),
        backing = open_file(backing_path, O_RDONLY);
    size_t bytes = file_size(fd), host_bytes = bytes < GIB ? bytes : GIB;
    uint8_t *pinned = pinned_memory(2 * BLOCK), *host = pinned_memory(host_bytes);
    double place, plain, copy;

    map_file(device, first, file_size(first), PROT_READ);
    warm(backing, 0, bytes);
    uint64_t start = now_ns();
    uint8_t *map = map_file(device, fd, bytes, PROT_READ);
    if (gaia_macquire(map, bytes, device))
        die("gaia_macquire");
    place = seconds(start);
    check_on_gpu(map, 0);
    check_on_gpu(map, bytes / PAGE - 1);
    CUdeviceptr to = device_memory(bytes);
    plain = read_and_copy(backing, bytes, to, pinned);
    copy = copy_pinned(to, host, host_bytes, bytes);
    printf("{\"bytes\": %zu, ", bytes);
    print_samples("place_s", &place, 1);
    print_samples("read_and_copy_s", &plain, 1);
    print_samples("pinned_copy_s", &copy, 1);
    printf("\"done\": true}\n");
    gaia_device_close(device);
}

/* --- acquire and release --- */

static uint64_t bytes_out(struct gaia_device *device)
{
    struct gaia_stat stat;

    if (gaia_stat(device, &stat))
        die("gaia_stat");
    return stat.bytes_out;
}

static double time_call(int (*call)(void *, size_t, struct gaia_device *), void *map, size_t bytes,
                        struct gaia_device *device)
{
    uint64_t start = now_ns();

    if (call(map, bytes, device))
        die("an acquire or a release");
    return seconds(start);
}

/* A store to one byte of each of some pages, by the GPU. */
static void change_pages(const uint8_t *map, size_t bytes, size_t count, unsigned char value)
{
    uint32_t *pages = malloc(count * sizeof *pages);

    if (!pages)
        die("memory");
    pick_distinct(&random_state, pages, count, bytes / PAGE);
    for (size_t i = 0; i < count; i++)
        need(api->cuMemsetD8Async((CUdeviceptr)(uintptr_t)map + pages[i] * PAGE + 9, value, 1, stream),
             "a store");
    wait_for_gpu();
    free(pages);
}

/* What a program launches between an acquire and a release: a page of the file is copied. Waits for nothing.
 * Without it the two would meet no switch of the GPU between the program's context and the daemon's. */
struct small_kernel {
    CUdeviceptr file, list, to;
};

static void small_kernel_run(struct small_kernel *k)
{
    uint64_t one = 1;

    launch(GATHER, one, (void *[]){&k->file, &k->list, &one, &k->to});
}

static double small_kernel_time(struct small_kernel *k)
{
    uint64_t start = now_ns();

    small_kernel_run(k);
    wait_for_gpu();
    return seconds(start);
}

static struct small_kernel small_kernel_make(CUdeviceptr file)
{
    struct small_kernel k = {file, device_memory(4), device_memory(PAGE)};

    need(api->cuMemsetD8Async(k.list, 0, 4, stream), "a list");
    small_kernel_time(&k); /* the first launch pays for more */
    return k;
}

static void bench_sync(const char *path)
{
    double both[REPETITIONS_MAX], acquire[REPETITIONS_MAX], release[REPETITIONS_MAX],
        read_only[REPETITIONS_MAX], find[REPETITIONS_MAX], kernel[REPETITIONS_MAX], changed[REPETITIONS_MAX];
    struct gaia_device *device = open_device();
    int fd = open_file(path, O_RDWR);
    size_t bytes = file_size(fd), pages = bytes / PAGE, part = pages / 1000 ? pages / 1000 : 1;
    uint8_t *map = map_file(device, fd, bytes, PROT_READ | PROT_WRITE),
            *reader = map_file(device, fd, bytes, PROT_READ);
    struct search s = search_make((CUdeviceptr)(uintptr_t)map, pages);
    struct small_kernel small = small_kernel_make((CUdeviceptr)(uintptr_t)map);
    uint64_t out = 0;

    /* Writable and read-only mappings are two copies: stores are released in one, and then seen by the other.
     */
    for (size_t r = 0; r < repetitions; r++) {
        time_call(gaia_mrelease, map, bytes, device);
        time_call(gaia_macquire, map, bytes, device);
        time_call(gaia_macquire, reader, bytes, device);
        small_kernel_time(&small); /* what came last was the daemon's: the GPU is the program's again */
        uint64_t start = now_ns();
        acquire[r] = time_call(gaia_macquire, map, bytes, device);
        small_kernel_run(&small);
        release[r] = time_call(gaia_mrelease, map, bytes, device); /* waits for it */
        both[r] = seconds(start);
        read_only[r] = time_call(gaia_macquire, reader, bytes, device);
        kernel[r] = small_kernel_time(&small);
        launch(HASH, s.pages, (void *[]){&s.bytes, &s.pages, &s.granted});
        wait_for_gpu(); /* it is no part of the search */
        find[r] = search_run(&s);
        uint64_t before = bytes_out(device);
        change_pages(map, bytes, part, (unsigned char)(r + 1));
        changed[r] = time_call(gaia_mrelease, map, bytes, device);
        warm(fd, 0, bytes); /* collects */
        out += bytes_out(device) - before;
    }
    printf("{\"bytes\": %zu, \"changed_pages\": %zu, \"bytes_out\": %llu, ", bytes, part,
           (unsigned long long)(out / repetitions));
    print_samples("both_s", both, repetitions);
    print_samples("acquire_s", acquire, repetitions);
    print_samples("release_s", release, repetitions);
    print_samples("acquire_read_only_s", read_only, repetitions);
    print_samples("find_s", find, repetitions);
    print_samples("kernel_s", kernel, repetitions);
    print_samples("release_changed_s", changed, repetitions);
    printf("\"done\": true}\n");
    search_free(&s);
    gaia_device_close(device);
}

/* --- a file that changes between runs --- */

/* A program writes a part of the file anew, in units of 64 KiB. How many bytes; which unit is one of them. */
static size_t rewrite(int fd, size_t bytes, double part, uint8_t value, size_t *unit_out)
{
    static uint8_t buffer[UNIT];
    size_t units = (bytes + UNIT - 1) / UNIT, count = (size_t)((double)units * part / 100 + 0.5);
    uint32_t *chosen = malloc(units * sizeof *chosen);

    count = count ? count : 1;
    if (!chosen)
        die("memory");
    pick_distinct(&random_state, chosen, count, units);
    memset(buffer, value, sizeof buffer);
    for (size_t i = 0; i < count; i++) {
        size_t at = chosen[i] * UNIT, n = bytes - at < UNIT ? bytes - at : UNIT;
        if (pwrite(fd, buffer, n, (off_t)at) != (ssize_t)n)
            die("pwrite");
    }
    *unit_out = chosen[count - 1];
    free(chosen);
    return count * UNIT;
}

static void check_value(const uint8_t *map, size_t unit, uint8_t value)
{
    uint8_t byte;

    need(api->cuMemcpyDtoHAsync(&byte, (CUdeviceptr)(uintptr_t)map + unit * UNIT, 1, stream), "a copy");
    wait_for_gpu();
    if (byte != value)
        die("the GPU does not see what was written to unit %zu", unit);
}

/* backing: the same file in the data directory, which programs read where there is no mount. */
static void bench_changed(const char *path, const char *backing_path, int prot)
{
    static const double parts[] = {0.1, 1, 10, 50, 90, 100};
    double acquire[REPETITIONS_MAX], whole[REPETITIONS_MAX];
    struct gaia_device *device = open_device();
    int fd = open_file(path, O_RDWR), backing = open_file(backing_path, O_RDONLY);
    size_t bytes = file_size(fd), changed = 0, unit = 0;
    uint8_t *map = map_file(device, fd, bytes, prot), *pinned = pinned_memory(2 * BLOCK);
    CUdeviceptr to = device_memory(bytes);
    char name[32];

    printf("{\"bytes\": %zu, ", bytes);
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        for (size_t r = 0; r < repetitions; r++) {
            uint8_t value = (uint8_t)((p * REPETITIONS_MAX + r) % 250 + 1);
            changed = rewrite(fd, bytes, parts[p], value, &unit);
            if (r % 2)
                whole[r] = read_and_copy(backing, bytes, to, pinned);
            acquire[r] = time_call(gaia_macquire, map, bytes, device);
            check_value(map, unit, value);
            if (r % 2 == 0)
                whole[r] = read_and_copy(backing, bytes, to, pinned);
            check_value((const uint8_t *)(uintptr_t)to, unit, value);
        }
        snprintf(name, sizeof name, "acquire_%g_s", parts[p]);
        print_samples(name, acquire, repetitions);
        snprintf(name, sizeof name, "whole_%g_s", parts[p]);
        print_samples(name, whole, repetitions);
        printf("\"changed_%g\": %zu, ", parts[p], changed);
    }
    printf("\"done\": true}\n");
    gaia_device_close(device);
}

/* --- a CPU and a GPU store to the same pages --- */

static unsigned rounds; /* how often each side stores to all of its bytes; even: see bench_sharing() */

struct cpu_half {
    volatile uint8_t *bytes;
    size_t length;
    double took;
};

/* Every even byte, some times over. */
static void *store_even(void *context)
{
    struct cpu_half *half = context;
    uint64_t start = now_ns();

    for (unsigned round = 1; round <= rounds; round++)
        for (size_t i = 0; i < half->length; i += 2)
            half->bytes[i] = (uint8_t)(round + i / 2);
    half->took = seconds(start);
    return NULL;
}

/* gaia_patch() stores bytes in which two pages differ: with these, the odd ones. */
struct gpu_half {
    CUdeviceptr list, pages[2];
};

#define HALF_PAGES 4096u /* a launch */

static struct gpu_half gpu_half_make(void)
{
    struct gpu_half half = {device_memory(HALF_PAGES * 4),
                            {device_memory(HALF_PAGES * PAGE), device_memory(HALF_PAGES * PAGE)}};
    static uint8_t bytes[HALF_PAGES * PAGE];
    uint32_t list[HALF_PAGES];

    for (uint32_t i = 0; i < HALF_PAGES; i++)
        list[i] = i;
    need(api->cuMemcpyHtoDAsync(half.list, list, sizeof list, stream), "a list");
    for (int which = 0; which < 2; which++) {
        for (size_t i = 1; i < sizeof bytes; i += 2)
            bytes[i] = which ? 'g' : 'h';
        need(api->cuMemcpyHtoDAsync(half.pages[which], bytes, sizeof bytes, stream), "pages");
        wait_for_gpu();
    }
    return half;
}

static double store_odd(struct gpu_half *half, CUdeviceptr at, size_t bytes)
{
    uint64_t start = now_ns();

    for (unsigned round = 0; round < rounds; round++)
        for (size_t done = 0; done < bytes; done += HALF_PAGES * PAGE) {
            uint64_t count = (bytes - done) / PAGE < HALF_PAGES ? (bytes - done) / PAGE : HALF_PAGES;
            CUdeviceptr base = at + done, granted = 0;
            launch(PATCH, count,
                   (void *[]){&base, &half->list, &count, &half->pages[round % 2],
                              &half->pages[1 - round % 2], &granted});
        }
    wait_for_gpu();
    return seconds(start);
}

/* Both at once; until both are done. */
static double store_both(struct gpu_half *half, CUdeviceptr gpu, uint8_t *cpu, size_t bytes)
{
    struct cpu_half other = {.bytes = cpu, .length = bytes};
    pthread_t thread;

    if (pthread_create(&thread, NULL, store_even, &other))
        die("a thread");
    double took = store_odd(half, gpu, bytes);
    pthread_join(thread, NULL);
    return took > other.took ? took : other.took;
}

/* Memory that CPU and GPU have in common and that the driver moves to and fro: of a driver that has it. */
static CUdeviceptr managed_memory(size_t bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbol;
    CUresult (*allocate)(CUdeviceptr *, size_t, unsigned);
    CUdeviceptr memory = 0;

    symbol = library ? dlsym(library, "cuMemAllocManaged") : NULL;
    memcpy(&allocate, &symbol, sizeof allocate);
    return allocate && allocate(&memory, bytes, 1) == CUDA_SUCCESS ? memory : 0;
}

static void check_shared(int fd, size_t bytes)
{
    uint8_t page[PAGE];

    for (size_t at = 0; at + PAGE <= bytes; at += PAGE) {
        if (pread(fd, page, PAGE, (off_t)at) != (ssize_t)PAGE)
            die("pread");
        for (size_t i = 0; i < PAGE; i++)
            if (page[i] != (i % 2 ? 'h' : (uint8_t)(rounds + (at + i) / 2)))
                die("byte %zu of the file is %u: somebody's store is lost", at + i, page[i]);
    }
}

/* With managed memory each round may move each page to and fro, many times: it is for few rounds. */
static void bench_sharing(const char *path, bool with_managed)
{
    double shared[REPETITIONS_MAX], release[REPETITIONS_MAX], own[REPETITIONS_MAX], managed[REPETITIONS_MAX];
    struct gaia_device *device = open_device();
    int fd = open_file(path, O_RDWR);
    size_t bytes = file_size(fd) / PAGE * PAGE;
    uint8_t *map = map_file(device, fd, bytes, PROT_READ | PROT_WRITE), *buffer = new_memory(bytes);
    uint8_t *file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CUdeviceptr alone = device_memory(bytes), common = with_managed ? managed_memory(bytes) : 0;
    struct gpu_half half = gpu_half_make();

    if (file == MAP_FAILED)
        die("mmap");
    store_both(&half, alone, buffer, bytes); /* first touches */
    store_both(&half, (CUdeviceptr)(uintptr_t)map, file, bytes);
    for (size_t r = 0; r < repetitions; r++) {
        own[r] = store_both(&half, alone, buffer, bytes);
        /* What the GPU stores last is 'h' for an even number of rounds: so that it stores anything, others
         * come first. */
        need(api->cuMemsetD8Async((CUdeviceptr)(uintptr_t)map, '.', bytes, stream), "stores");
        wait_for_gpu();
        time_call(gaia_mrelease, map, bytes, device);
        shared[r] = store_both(&half, (CUdeviceptr)(uintptr_t)map, file, bytes);
        release[r] = time_call(gaia_mrelease, map, bytes, device);
        check_shared(fd, bytes);
        if (common)
            managed[r] = store_both(&half, common, (uint8_t *)(uintptr_t)common, bytes);
    }
    printf("{\"bytes\": %zu, \"rounds\": %u, ", bytes, rounds);
    print_samples("shared_s", shared, repetitions);
    print_samples("release_s", release, repetitions);
    print_samples("private_s", own, repetitions);
    print_samples("managed_s", managed, common ? repetitions : 0);
    printf("\"done\": true}\n");
    munmap(file, bytes);
    gaia_device_close(device);
}

int main(int argc, char **argv)
{
    repetitions = option(&argc, argv, "--repetitions", 5);
    rounds = (unsigned)option(&argc, argv, "--rounds", 4);
    if (argc < 3 || !repetitions || repetitions > REPETITIONS_MAX || !rounds || rounds % 2) {
        fprintf(stderr, "usage: bench memory BYTES|place SMALL FILE BACKING|sync FILE|changed FILE BACKING|"
                        "changed-writable FILE BACKING|sharing FILE [--rounds N, even]\n");
        return 2;
    }
    start_gpu();
    if (!strcmp(argv[1], "memory"))
        bench_memory(strtoull(argv[2], NULL, 10) / PAGE * PAGE);
    else if (!strcmp(argv[1], "place") && argc == 5)
        bench_place(argv[2], argv[3], argv[4]);
    else if (!strcmp(argv[1], "sync"))
        bench_sync(argv[2]);
    else if (!strcmp(argv[1], "changed") && argc == 4)
        bench_changed(argv[2], argv[3], PROT_READ);
    else if (!strcmp(argv[1], "changed-writable") && argc == 4)
        bench_changed(argv[2], argv[3], PROT_READ | PROT_WRITE);
    else if (!strcmp(argv[1], "sharing"))
        bench_sharing(argv[2], rounds <= 4);
    else
        die("what is %s?", argv[1]);
    return 0;
}
