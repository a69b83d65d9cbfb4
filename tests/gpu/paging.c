/* SPDX-License-Identifier: Apache-2.0 */
/* Demand paging by kernels (GAIA_DEMAND, gaia_view) on the GPU number 0, in a folder of a gaiafs mount: a
 * file of ten times the frames, with units of 4 KiB and of 64. Every byte of it is checked by kernels, and by
 * pread().
 *
 *   paging [--seed N] [--frames N] [--kernels FILE] [--only TEXT] FOLDER
 *
 * FILE: a cubin or PTX that another compiler made of paging_kernels.cc; else those are used that clang has
 * made, so that no toolkit is needed. TEXT: a part of the names of
 * tests, " 4 KiB" or "64 KiB" before them. $GAIA_PAGING_SPOIL: a byte of each file is changed, which must be
 * noticed. Ends with a line "N passed, N failed, N skipped", and with 0 where there is no GPU. On the
 * stand-in of tests/cuda it runs, too: with threads for kernels. */
#include "tests/gpu/paging_program.h"

#define TIMES 10u /* the frames */

static struct paging_gpu gpu;
static struct gaia_device *device;
static const char *folder;
static uint64_t seed;
static size_t frames;
static const char *only = "";

/* What each test is: 0, or the first check that did not hold. */
#define EXPECT(condition)                                                       \
    do {                                                                        \
        if (!(condition)) {                                                     \
            printf("     %s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            return 1;                                                           \
        }                                                                       \
    } while (0)

/* --- a file, and what is expected of it --- */

struct paged {
    struct paging_map map;
    int fd;
    uint64_t elements, units;
    uint64_t *expected; /* what the file has */
};

static void write_all(const struct paged *paged)
{
    for (size_t done = 0; done < paged->map.bytes;) {
        ssize_t put =
            pwrite(paged->fd, (uint8_t *)paged->expected + done, paged->map.bytes - done, (off_t)done);
        if (put <= 0)
            die("pwrite");
        done += (size_t)put;
    }
}

static int check_file(const struct paged *paged)
{
    static uint64_t buffer[8192];
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < paged->elements; i += 8192) {
        size_t n = paged->elements - i < 8192 ? paged->elements - i : 8192;
        EXPECT(pread(paged->fd, buffer, n * 8, (off_t)(i * 8)) == (ssize_t)(n * 8));
        for (size_t k = 0; k < n; k++) {
            if (buffer[k] != paged->expected[i + k] && wrong++ == 0)
                printf("     element %llu of the file is %llx and not %llx\n", (unsigned long long)(i + k),
                       (unsigned long long)buffer[k], (unsigned long long)paged->expected[i + k]);
        }
    }
    EXPECT(wrong == 0);
    return 0;
}

static void expect_values(struct paged *paged, uint64_t its_seed)
{
    for (uint64_t i = 0; i < paged->elements; i++)
        paged->expected[i] = paging_value(its_seed, i);
}

/* A new file with the values of a seed, mapped. */
static struct paged paged_make(size_t unit, size_t its_frames, uint64_t units, int prot)
{
    struct paged paged = {.units = units, .elements = units * unit / 8};
    char path[4096];

    snprintf(path, sizeof path, "%s/paging", folder);
    unlink(path);
    int fd = open_file(path, O_RDWR | O_CREAT | O_EXCL);
    paged.fd = fd;
    paged.map.bytes = units * unit;
    paged.expected = malloc(units * unit);
    if (!paged.expected || ftruncate(fd, (off_t)(units * unit)))
        die("%s", path);
    expect_values(&paged, seed);
    write_all(&paged);
    if (getenv("GAIA_PAGING_SPOIL") &&
        pwrite(fd, "spoilt", 6, (off_t)(seed * 8191 % (units * unit - 6))) != 6)
        die("pwrite");
    paged.map = paging_map(device, fd, unit, its_frames, prot);
    return paged;
}

static void paged_end(struct paged *paged)
{
    if (gaia_munmap(paged->map.at, paged->map.bytes))
        die("gaia_munmap");
    close(paged->fd);
    free(paged->expected);
}

static int release(const struct paged *paged)
{
    EXPECT(!gaia_mrelease(paged->map.at, paged->map.bytes, device));
    return check_file(paged);
}

static struct paging_task task_of(const struct paged *paged, enum paging_order order)
{
    struct paging_task task = {.n = paged->elements,
                               .touches = paged->elements,
                               .order = order,
                               .stride =
                                   paged->map.unit / 8 + 1, /* odd, and the elements are no multiple of it */
                               .seed = seed,
                               .unit = paged->map.unit};

    task.demand[0] = paged->map.there;
    /* Nearly each of these is a fault of its own. */
    if (order == PAGING_STRIDED || order == PAGING_RANDOM)
        task.touches = paged->units * 20;
    return task;
}

/* As many warps as the GPU runs at a time, and more; or few, each of which may hold a frame. */
static unsigned many(void)
{
    return gpu.multiprocessors * (gpu.standin ? 1 : 12);
}

static unsigned few(void)
{
    return frames / 4 / 8 ? (unsigned)(frames / 4 / 8) : 1;
}

/* After a kernel nobody holds a unit, and nobody has it busy. */
static int check_table(const struct paged *paged)
{
    uint64_t *table = malloc(paged->units * sizeof *table), left = 0;

    EXPECT(table);
    paging_copy_out(&gpu, table, paged->map.demand.table, paged->units * sizeof *table);
    for (uint64_t unit = 0; unit < paged->units; unit++)
        left += (table[unit] & (GAIA_DEMAND_COUNT | GAIA_DEMAND_BUSY)) != 0;
    free(table);
    EXPECT(left == 0);
    return 0;
}

/* Runs a kernel that must find nothing wrong. */
static int run(const char *name, unsigned blocks, struct paging_task *task, const struct paged *paged,
               uint64_t done)
{
    struct gaia_demand_control before = paging_control(&gpu, &paged->map), after;
    double took = paging_run(&gpu, name, blocks, task);

    after = paging_control(&gpu, &paged->map);
    printf("     %s, order %llu: %llu touches, %llu faults (%llu pulled, %llu fetched), %llu evicted, %llu "
           "given, "
           "%.1f ms\n",
           name, (unsigned long long)task->order, (unsigned long long)task->counts[PAGING_DONE],
           (unsigned long long)(after.faults - before.faults),
           (unsigned long long)(after.pulled - before.pulled),
           (unsigned long long)(after.fetched - before.fetched),
           (unsigned long long)(after.evicted - before.evicted),
           (unsigned long long)(after.given - before.given), took * 1e3);
    EXPECT(task->counts[PAGING_WRONG] == 0);
    EXPECT(task->counts[PAGING_DONE] == done);
    EXPECT(after.failures == before.failures);
    return check_table(paged);
}

/* --- tests --- */

static int test_loads(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);
    struct paging_task task = task_of(&paged, PAGING_IN_ORDER);

    EXPECT(paged.map.demand.frames_count == frames && paged.map.demand.units == frames * TIMES);
    if (run("paging_load", many(), &task, &paged, task.touches))
        return 1;
    EXPECT(paging_control(&gpu, &paged.map).evicted >= frames * (TIMES - 1));
    for (enum paging_order order = PAGING_STRIDED; order <= PAGING_RANDOM; order++) {
        task = task_of(&paged, order);
        if (run("paging_load", many(), &task, &paged, task.touches) ||
            run("paging_load_many", many(), &task, &paged, task.touches))
            return 1;
    }
    task = task_of(&paged, PAGING_IN_ORDER);
    if (run("paging_load_many", many(), &task, &paged, task.touches))
        return 1;
    task.n = paged.map.bytes;
    task.touches = gpu.standin ? task.n / 8 : task.n;
    if (run("paging_load_bytes", many(), &task, &paged, task.touches))
        return 1;
    paged_end(&paged);
    return 0;
}

/* Every thread touches the same few elements, which are in no frame: all wait for one fault. */
static int test_one_fault(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ);
    struct paging_task task = task_of(&paged, PAGING_HOT);

    task.touches = (uint64_t)many() * paging_threads(&gpu) * 4;
    if (run("paging_load", many(), &task, &paged, task.touches))
        return 1;
    EXPECT(paging_control(&gpu, &paged.map).faults == 1);
    paged_end(&paged);
    return 0;
}

static int test_pins(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);

    for (enum paging_order order = PAGING_IN_ORDER; order <= PAGING_RANDOM; order += PAGING_RANDOM) {
        struct paging_task task = task_of(&paged, order);
        task.n = task.touches = paged.units;
        if (run("paging_load_pinned", few(), &task, &paged, paged.elements))
            return 1;
    }
    struct paging_task task = task_of(&paged, PAGING_RANDOM);
    task.n = task.touches = paged.units;
    task.new_seed = seed + 1;
    if (run("paging_store_pinned", few(), &task, &paged, 0))
        return 1;
    expect_values(&paged, seed + 1);
    if (release(&paged))
        return 1;
    paged_end(&paged);
    return 0;
}

static int test_stores(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);
    struct paging_task task = task_of(&paged, PAGING_IN_ORDER);

    task.new_seed = seed + 1;
    if (run("paging_store", many(), &task, &paged, 0))
        return 1;
    expect_values(&paged, seed + 1);
    if (release(&paged))
        return 1;
    EXPECT(paging_control(&gpu, &paged.map).given >= paged.units);
    for (enum paging_order order = PAGING_STRIDED; order <= PAGING_RANDOM; order++) {
        task = task_of(&paged, order);
        task.new_seed = seed + 1 + order;
        if (run("paging_store", many(), &task, &paged, 0))
            return 1;
        for (uint64_t k = 0; k < task.touches; k++) {
            uint64_t i = paging_place(&task, k);
            paged.expected[i] = paging_value(task.new_seed, i);
        }
        if (release(&paged))
            return 1;
    }
    paged_end(&paged);
    return 0;
}

/* The CPU writes even bytes, and kernels, that have not seen it, store the odd ones; then they see it. */
static int test_beside_the_cpu(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);
    struct paging_task task = task_of(&paged, PAGING_IN_ORDER);
    uint64_t even = UINT64_C(0x00ff00ff00ff00ff);

    if (run("paging_load", many(), &task, &paged, task.touches))
        return 1;
    for (uint64_t i = 0; i < paged.elements; i++)
        paged.expected[i] = (paging_value(seed + 1, i) & even) | (paged.expected[i] & ~even);
    write_all(&paged);
    task.n = task.touches = paged.map.bytes;
    task.new_seed = seed + 1;
    if (run("paging_store_odd_bytes", many(), &task, &paged, 0))
        return 1;
    expect_values(&paged, seed + 1);
    if (release(&paged))
        return 1;
    EXPECT(!gaia_macquire(paged.map.at, paged.map.bytes, device));
    task = task_of(&paged, PAGING_IN_ORDER);
    task.seed = seed + 1;
    if (run("paging_load", many(), &task, &paged, task.touches))
        return 1;
    paged_end(&paged);
    return 0;
}

/* An arena with room for all of the file keeps all of it, also what is given back: whatever is missed is
 * pulled, and the CPU is not asked. */
static int test_arena_for_all(size_t unit)
{
    char text[32];

    snprintf(text, sizeof text, "%zu", frames * TIMES * unit);
    setenv("GAIA_DEMAND_ARENA_BYTES", text, 1);
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);
    unsetenv("GAIA_DEMAND_ARENA_BYTES");
    struct paging_task task = task_of(&paged, PAGING_RANDOM);
    task.n = task.touches = paged.units;
    task.new_seed = seed + 1;
    if (run("paging_load_pinned", few(), &task, &paged, paged.elements) ||
        run("paging_store_pinned", few(), &task, &paged, 0))
        return 1;
    expect_values(&paged, seed + 1);
    if (release(&paged))
        return 1;
    uint32_t head = paging_control(&gpu, &paged.map).head;
    task.seed = seed + 1;
    if (run("paging_load_pinned", few(), &task, &paged, paged.elements))
        return 1;
    printf("     %u requests\n", paging_control(&gpu, &paged.map).head - head);
    EXPECT(paging_control(&gpu, &paged.map).head == head);
    paged_end(&paged);
    return 0;
}

static int test_lanes_that_part(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);
    struct paging_task task = task_of(&paged, PAGING_RANDOM);
    uint64_t stored = 0;

    task.new_seed = seed + 1;
    for (uint64_t k = 0; k < task.touches; k++) {
        uint64_t i = paging_place(&task, k);
        if (i % 2) {
            paged.expected[i] = paging_value(seed + 1, i);
            stored++;
        }
    }
    paging_run(&gpu, "paging_divergent", few(), &task);
    printf("     %llu touches, of which %llu are stores\n", (unsigned long long)task.counts[PAGING_DONE],
           (unsigned long long)stored);
    EXPECT(task.counts[PAGING_WRONG] == 0 && task.counts[PAGING_DONE] > stored);
    EXPECT(paging_control(&gpu, &paged.map).failures == 0);
    if (check_table(&paged) || release(&paged))
        return 1;
    paged_end(&paged);
    return 0;
}

static int test_outside(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ | PROT_WRITE);
    struct paging_task task = task_of(&paged, PAGING_IN_ORDER);

    uint64_t touches = (uint64_t)few() * paging_threads(&gpu);

    paging_run(&gpu, "paging_outside", few(), &task);
    EXPECT(task.counts[PAGING_WRONG] == 0 && task.counts[PAGING_DONE] == touches);
    EXPECT(task.counts[PAGING_ERROR] == GAIA_DEMAND_E_OUTSIDE);
    EXPECT(paging_control(&gpu, &paged.map).failures == touches * 5);
    /* The file is cut to half: zeros from there on, and what is stored there is lost. */
    EXPECT(!ftruncate(paged.fd, (off_t)(paged.map.bytes / 2)));
    EXPECT(!gaia_macquire(paged.map.at, paged.map.bytes, device));
    paging_run(&gpu, "paging_load", many(), &task);
    EXPECT(task.counts[PAGING_WRONG] == paged.elements / 2 && task.counts[PAGING_DONE] == paged.elements);
    task.new_seed = seed + 1;
    paging_run(&gpu, "paging_store", many(), &task);
    EXPECT(!gaia_mrelease(paged.map.at, paged.map.bytes, device));
    EXPECT(file_size(paged.fd) == paged.map.bytes / 2);
    expect_values(&paged, seed + 1);
    paged.elements /= 2;
    if (check_file(&paged) || check_table(&paged))
        return 1;
    paged_end(&paged);
    return 0;
}

static int test_read_only(size_t unit)
{
    struct paged paged = paged_make(unit, frames, frames * TIMES, PROT_READ);
    struct paging_task task = task_of(&paged, PAGING_IN_ORDER);

    task.new_seed = seed + 1;
    paging_run(&gpu, "paging_store", few(), &task);
    struct gaia_demand_control control = paging_control(&gpu, &paged.map);
    EXPECT((uint32_t)control.error == GAIA_DEMAND_E_ACCESS && control.failures == task.touches);
    EXPECT(gaia_mrelease(paged.map.at, paged.map.bytes, device) == -1 && errno == EACCES);
    if (check_file(&paged))
        return 1;
    paged_end(&paged);
    return 0;
}

/* 64 frames, the fewest that there are, for 80 pins of one thread: it is told, in time, and the others stay.
 */
static int test_more_pins_than_frames(size_t unit)
{
    struct paged paged = paged_make(unit, 64, 640, PROT_READ);
    struct paging_task task = task_of(&paged, PAGING_IN_ORDER);
    struct gaia_demand hurried = paged.map.demand;
    CUdeviceptr at;

    EXPECT(hurried.frames_count == 64);
    hurried.wait_ns = 50000000; /* as the mapping says it, but not for a minute each */
    paging_need(&gpu, gpu.api->cuMemAlloc(&at, sizeof hurried), "memory of the GPU");
    paging_copy_in(&gpu, at, &hurried, sizeof hurried);
    task.demand[0] = (const struct gaia_demand *)(uintptr_t)at;
    double took = paging_run(&gpu, "paging_hold", 1, &task);
    printf("     %llu pins of 80, and an error after %.1f s\n", (unsigned long long)task.counts[PAGING_DONE],
           took);
    EXPECT(task.counts[PAGING_DONE] == 64 && task.counts[PAGING_WRONG] == 0);
    EXPECT(task.counts[PAGING_ERROR] == GAIA_DEMAND_E_NO_FRAME);
    EXPECT(paging_control(&gpu, &paged.map).failures == 16);
    gpu.api->cuMemFree(at);
    task = task_of(&paged, PAGING_IN_ORDER); /* they are let go, and all goes on */
    if (run("paging_load", many(), &task, &paged, task.touches))
        return 1;
    paged_end(&paged);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(size_t unit);
} tests[] = {
    {"loads in order, strided, at random, of ten times the frames", test_loads},
    {"all threads touch one unit", test_one_fault},
    {"pinned loads and stores", test_pins},
    {"stores in order, strided, at random, and their release", test_stores},
    {"stores beside a CPU's, byte by byte", test_beside_the_cpu},
    {"an arena with room for all of the file", test_arena_for_all},
    {"lanes that do different things", test_lanes_that_part},
    {"past the end", test_outside},
    {"stores to what is mapped for reading", test_read_only},
    {"more pins than frames", test_more_pins_than_frames},
};
#define TESTS (sizeof tests / sizeof tests[0])

static int run_all(void)
{
    static const size_t units[] = {4096, 65536};
    unsigned passed = 0, failed = 0;

    for (size_t u = 0; u < 2; u++)
        for (size_t i = 0; i < TESTS; i++) {
            char name[128];
            snprintf(name, sizeof name, "%s%zu KiB: %s", units[u] < 10 * 1024 ? " " : "", units[u] / 1024,
                     tests[i].name);
            if (!strstr(name, only))
                continue;
            printf("---- %s\n", name);
            int bad = tests[i].run(units[u]);
            *(bad ? &failed : &passed) += 1;
            printf("%s %s\n", bad ? "FAIL" : "ok  ", name);
        }
    printf("%u passed, %u failed, 0 skipped\n", passed, failed);
    return failed != 0;
}

int main(int argc, char **argv)
{
    const char *kernels = NULL;
    int at = 1;

    setvbuf(stdout, NULL, _IOLBF, 0);
    seed = now_ns() >> 10 & 0xffff;
    for (; at + 1 < argc && !strncmp(argv[at], "--", 2); at += 2)
        if (!strcmp(argv[at], "--seed"))
            seed = strtoull(argv[at + 1], NULL, 10);
        else if (!strcmp(argv[at], "--frames"))
            frames = strtoull(argv[at + 1], NULL, 10);
        else if (!strcmp(argv[at], "--kernels"))
            kernels = argv[at + 1];
        else if (!strcmp(argv[at], "--only"))
            only = argv[at + 1];
        else
            break;
    if (at + 1 != argc || (frames && frames < 64)) {
        fprintf(stderr,
                "usage: paging [--seed N] [--frames N, 64 or more] [--kernels FILE] [--only TEXT] FOLDER\n");
        return 2;
    }
    folder = argv[at];
    printf("--seed %llu\n", (unsigned long long)seed);
    if (!paging_start(&gpu, kernels, NULL)) {
        printf("0 passed, 0 failed, %zu skipped\n", 2 * TESTS);
        return 0;
    }
    frames = frames ? frames : gpu.standin ? 64 : 256;
    if (gaia_device_open("cuda:0", &device))
        die("gaia_device_open");
    int result = run_all();
    gaia_device_close(device);
    return result;
}
