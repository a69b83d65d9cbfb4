/* SPDX-License-Identifier: Apache-2.0 */
/* What demand paging costs on a GPU, beside plain memory, a kernel that pulls, and managed memory
 * (tests/gpu/bench.sh runs it). Prints one JSON object with the seconds of every repetition; ends with 1 when
 * sums are wrong or a call fails, and never because something is slow. Baselines are measured in turns with
 * the rest.
 *
 *   bench_demand faults FILE    touches of units that are in the host's arena and in none of the frames
 *   bench_demand hits FILE      sums of a file that is all in frames
 *   bench_demand add A B C      C becomes A + B, with 100, 67 and 33 % of each in frames
 *   bench_demand multiply A     MVT, ATAX and BICG of a matrix, likewise
 *
 * Files are those that bench_file makes. Each takes --repetitions N, and --kernels FILE as paging.c does, but
 * where the driver does not load FILE the kernels are those that are kept, and the JSON says so. */
#include <dlfcn.h>

#include "tests/gpu/paging_program.h"

#define REPETITIONS_MAX 64u
#define LARGE ((size_t)65536)
#define PARTS 3u

static const unsigned parts[PARTS] = {100, 150, 300}; /* of the frames: so large is the file */
static struct paging_gpu gpu;
static struct gaia_device *device;
static size_t repetitions;
static const char *given;   /* a file of kernels; NULL: those of the program */
static const char *refused; /* why it was of no use */

/* The beginning of the JSON. */
static void print_head(size_t bytes)
{
    printf("{\"bytes\": %zu, \"kernels\": \"%s\", ", bytes, given && !refused ? "given" : "kept");
    if (refused)
        printf("\"kernels_refused\": \"%s\", ", refused);
}

/* --- memory --- */

static CUdeviceptr device_memory(size_t bytes)
{
    CUdeviceptr memory;

    paging_need(&gpu, gpu.api->cuMemAlloc(&memory, bytes), "memory of the GPU");
    return memory;
}

/* Memory that CPU and GPU have in common and that the driver moves to and fro: of a driver that has it. */
static uint32_t *managed_memory(size_t bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbol;
    CUresult (*allocate)(CUdeviceptr *, size_t, unsigned);
    CUdeviceptr memory = 0;

    symbol = library ? dlsym(library, "cuMemAllocManaged") : NULL;
    memcpy(&allocate, &symbol, sizeof allocate);
    if (!allocate || allocate(&memory, bytes, 1) != CUDA_SUCCESS)
        return NULL;
    return (uint32_t *)(uintptr_t)memory;
}

/* All of it is the CPU's: what the GPU had has come back. */
static void read_file(int fd, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (uint8_t *)to + done, bytes - done, (off_t)done);
        if (got <= 0)
            die("pread");
        done += (size_t)got;
    }
}

static uint32_t word_of(uint64_t i)
{
    return (uint32_t)(pattern_word(i / 1024, i % 1024 / 2) >> i % 2 * 32);
}

static void need_sum(const struct paging_task *task, uint64_t sum, const char *what)
{
    if (task->counts[PAGING_WRONG] || task->counts[PAGING_SUM] != sum)
        die("%s: %llu and not %llu, %llu wrong", what, (unsigned long long)task->counts[PAGING_SUM],
            (unsigned long long)sum, (unsigned long long)task->counts[PAGING_WRONG]);
}

static unsigned blocks(void)
{
    return gpu.multiprocessors * (gpu.standin ? 1 : 8);
}

static void choose_arena(size_t bytes)
{
    char text[32];

    snprintf(text, sizeof text, "%zu", bytes);
    setenv("GAIA_DEMAND_ARENA_BYTES", text, 1);
}

/* --- faults --- */

struct faults {
    struct paging_map map;
    uint8_t *pinned;    /* what a plain kernel pulls from */
    CUdeviceptr pulled; /* and where to: as much as the frames */
    uint64_t sum;
};

/* A pass of touches; how many seconds each fault took, of all that the pass had. */
static double touch(const struct faults *f, enum paging_order order)
{
    struct paging_task task = {.n = f->map.demand.units, .order = order, .seed = 5, .unit = f->map.unit};
    struct gaia_demand_control before = paging_control(&gpu, &f->map), after;

    task.demand[0] = f->map.there;
    double took = paging_run(&gpu, "bench_touch", blocks(), &task);
    need_sum(&task, f->sum, "touches");
    after = paging_control(&gpu, &f->map);
    if (after.failures || after.faults == before.faults)
        die("touches without a fault, or that failed");
    if (after.head != before.head)
        die("%u requests: the arena has not all of the file", after.head - before.head);
    return took / (double)(after.faults - before.faults);
}

static double pull(const struct faults *f, enum paging_order order)
{
    struct paging_task task = {.n = f->map.demand.units,
                               .order = order,
                               .seed = 5,
                               .unit = f->map.unit,
                               .stride = f->map.demand.frames_count};

    task.plain[0] = (uint32_t *)(void *)f->pinned;
    task.plain[1] = (uint32_t *)(uintptr_t)f->pulled;
    return paging_run(&gpu, "bench_pull", blocks(), &task) / (double)task.n;
}

/* Pages of managed memory that the CPU has, touched at random. */
static double touch_managed(int fd, uint32_t *managed, size_t bytes, uint64_t sum)
{
    struct paging_task task = {.n = bytes / PAGE, .order = PAGING_RANDOM, .seed = 5, .unit = PAGE};

    read_file(fd, managed, bytes);
    task.plain[0] = managed;
    double took = paging_run(&gpu, "bench_touch_plain", blocks(), &task);
    need_sum(&task, sum, "managed memory");
    return took / (double)task.n;
}

static uint64_t sum_of_touches(size_t bytes, size_t unit)
{
    uint64_t sum = 0;

    for (uint64_t at = 0; at < bytes; at += unit)
        sum += pattern_word(at / PAGE, 0);
    return sum;
}

static void bench_faults_of(int fd, size_t unit)
{
    static const char *const names[] = {"faults", "faults_random", "pull", "pull_random"};
    double took[4][REPETITIONS_MAX];
    size_t bytes = file_size(fd), frames = bytes / unit / 8 < 64 ? 64 : bytes / unit / 8;
    struct faults f = {.map = paging_map(device, fd, unit, frames, PROT_READ)};
    struct paging_task task = {.n = f.map.demand.units, .unit = unit};
    void *pinned;
    char name[32];

    f.sum = sum_of_touches(bytes, unit);
    f.pulled = device_memory(frames * unit);
    paging_need(&gpu, gpu.api->cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE), "pinned memory");
    f.pinned = pinned;
    read_file(fd, pinned, bytes);
    task.demand[0] = f.map.there;
    paging_run(&gpu, "bench_touch", blocks(), &task); /* all of it into the arena */
    need_sum(&task, f.sum, "the first touches");
    touch(&f, PAGING_RANDOM);
    pull(&f, PAGING_RANDOM);
    for (size_t r = 0; r < repetitions; r++) {
        took[0][r] = touch(&f, PAGING_IN_ORDER);
        took[2][r] = pull(&f, PAGING_IN_ORDER);
        took[1][r] = touch(&f, PAGING_RANDOM);
        took[3][r] = pull(&f, PAGING_RANDOM);
    }
    for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s_%zu_s", names[i], unit);
        print_samples(name, took[i], repetitions);
    }
    gpu.api->cuMemFree(f.pulled);
    gpu.api->cuMemFreeHost(pinned);
    gaia_munmap(f.map.at, f.map.bytes);
}

static void bench_faults(const char *path)
{
    double managed[REPETITIONS_MAX];
    int fd = open_file(path, O_RDONLY);
    size_t bytes = file_size(fd), less = bytes < 64 * MIB ? bytes : 64 * MIB;
    uint32_t *common = managed_memory(less);

    print_head(bytes);
    bench_faults_of(fd, PAGE);
    bench_faults_of(fd, LARGE);
    for (size_t r = 0; r < repetitions + 1 && common; r++) /* the first one is for nothing */
        managed[r ? r - 1 : 0] = touch_managed(fd, common, less, sum_of_touches(less, PAGE));
    print_samples("managed_s", managed, common ? repetitions : 0);
    printf("\"done\": true}\n");
}

/* --- hits --- */

static void bench_hits(const char *path)
{
    enum { WAYS = 9 };
    static const char *const kernels[WAYS] = {
        "bench_sum",       "bench_sum_many4",      "bench_sum_many8",      "bench_sum_plain",
        "bench_sum_wide",  "bench_sum_wide_many4", "bench_sum_wide_many8", "bench_sum_plain_wide",
        "bench_sum_pinned"};
    static const char *const names[WAYS] = {
        "load_s",      "load_many4_s",      "load_many8_s",      "plain_s",
        "load_wide_s", "load_wide_many4_s", "load_wide_many8_s", "plain_wide_s",
        "pinned_s"};
    double took[WAYS][REPETITIONS_MAX];
    int fd = open_file(path, O_RDONLY);
    struct paging_map map = paging_map(device, fd, LARGE, file_size(fd) / LARGE, PROT_READ);
    struct paging_task task = {.n = map.bytes / 4, .unit = LARGE, .demand = {map.there}};
    CUdeviceptr plain = device_memory(map.bytes);
    void *host = new_memory(map.bytes);
    uint64_t sum = 0;

    for (uint64_t i = 0; i < map.bytes / 4; i++)
        sum += word_of(i);
    read_file(fd, host, map.bytes);
    paging_copy_in(&gpu, plain, host, map.bytes);
    task.plain[0] = (uint32_t *)(uintptr_t)plain;
    for (size_t r = 0; r < repetitions + 1; r++) /* the first one brings it */
        for (unsigned i = 0; i < WAYS; i++) {
            uint64_t faults = paging_control(&gpu, &map).faults;
            double seconds = paging_run(&gpu, kernels[i], blocks(), &task);
            need_sum(&task, sum, kernels[i]);
            if (r && paging_control(&gpu, &map).faults != faults)
                die("faults, and all of it should be in frames");
            took[i][r ? r - 1 : 0] = seconds;
        }
    print_head(map.bytes);
    for (unsigned i = 0; i < WAYS; i++)
        print_samples(names[i], took[i], repetitions);
    printf("\"done\": true}\n");
}

/* --- programs, with more or less of their files in frames --- */

static size_t frames_for(size_t bytes, unsigned part)
{
    size_t frames = bytes / LARGE * 100 / part;

    return frames < 64 ? 64 : frames;
}

/* Warps that hold frames are fewer than frames. */
static unsigned blocks_for(size_t frames)
{
    size_t most = frames / 2 / (paging_threads(&gpu) / (gpu.standin ? 1 : 32));

    return most == 0 ? 1 : most < blocks() ? (unsigned)most : blocks();
}

static void check_sum(int fd, size_t bytes)
{
    uint32_t *words = new_memory(bytes);

    read_file(fd, words, bytes);
    for (uint64_t i = 0; i < bytes / 4; i++)
        if (words[i] != word_of(i) * 2)
            die("word %llu of the sum is wrong", (unsigned long long)i);
    munmap(words, bytes);
}

/* From new mappings of files that are in the host's memory to what is released; and a second time. */
static void add_on_demand(const int fds[3], unsigned part, double *first_out, double *again_out)
{
    size_t bytes = file_size(fds[0]), frames = frames_for(bytes, part);
    struct paging_task task = {.n = bytes / 4, .unit = LARGE};
    struct paging_map maps[3];

    for (int i = 0; i < 3; i++) {
        maps[i] = paging_map(device, fds[i], LARGE, frames, i == 2 ? PROT_READ | PROT_WRITE : PROT_READ);
        task.demand[i] = maps[i].there;
    }
    for (int again = 0; again < 2; again++) {
        double took = paging_run(&gpu, "bench_add", blocks_for(frames), &task);
        uint64_t start = now_ns();
        if (task.counts[PAGING_WRONG] || gaia_mrelease(maps[2].at, bytes, device))
            die("bench_add");
        *(again ? again_out : first_out) = took + seconds(start);
    }
    for (int i = 0; i < 3; i++)
        gaia_munmap(maps[i].at, bytes);
}

/* The same with memory that the driver moves; a CPU touches every page of the result. */
static void add_managed(const int fds[3], uint32_t *const common[3], size_t bytes, double *first_out,
                        double *again_out)
{
    struct paging_task task = {.n = bytes / 4, .plain = {common[0], common[1], common[2]}};
    volatile uint32_t *words = common[2];

    read_file(fds[0], common[0], bytes);
    read_file(fds[1], common[1], bytes);
    memset(common[2], 0, bytes);
    for (int again = 0; again < 2; again++) {
        double took = paging_run(&gpu, "bench_add_plain", blocks(), &task);
        uint64_t start = now_ns();
        for (uint64_t i = 0; i < bytes / 4; i += PAGE / 4)
            if (words[i] != word_of(i) * 2)
                die("managed memory has a wrong sum");
        *(again ? again_out : first_out) = took + seconds(start);
    }
}

/* What a measurement has of each part, and of managed memory. */
struct samples {
    double first[PARTS + 1][REPETITIONS_MAX], again[PARTS + 1][REPETITIONS_MAX];
};

static void print_parts(const char *what, const struct samples *samples, bool is_managed)
{
    char name[48], text[16];

    for (unsigned p = 0; p < PARTS + 1; p++) {
        size_t n = p < PARTS || is_managed ? repetitions : 0;
        snprintf(text, sizeof text, "%u", p < PARTS ? parts[p] : 0);
        snprintf(name, sizeof name, "%s_%s_s", what, p < PARTS ? text : "managed");
        print_samples(name, samples->first[p], n);
        snprintf(name, sizeof name, "%s_%s_again_s", what, p < PARTS ? text : "managed");
        print_samples(name, samples->again[p], n);
    }
}

static void bench_add(char **paths)
{
    static struct samples samples;
    int fds[3] = {open_file(paths[0], O_RDONLY), open_file(paths[1], O_RDONLY), open_file(paths[2], O_RDWR)};
    size_t bytes = file_size(fds[0]);
    uint32_t *common[3];
    bool is_managed = true;

    for (int i = 0; i < 3; i++) {
        common[i] = managed_memory(bytes);
        is_managed = is_managed && common[i];
    }
    for (size_t r = 0; r < repetitions; r++) {
        for (unsigned p = 0; p < PARTS; p++)
            add_on_demand(fds, parts[p], &samples.first[p][r], &samples.again[p][r]);
        if (is_managed)
            add_managed(fds, common, bytes, &samples.first[PARTS][r], &samples.again[PARTS][r]);
    }
    check_sum(fds[2], bytes);
    print_head(bytes);
    print_parts("add", &samples, is_managed);
    printf("\"done\": true}\n");
}

/* --- MVT, ATAX, BICG --- */

struct matrix {
    int fd;
    size_t bytes;
    uint64_t rows, columns;
    uint32_t *common; /* NULL: no managed memory */
    CUdeviceptr vectors, results;
    uint32_t *times, *transposed; /* what the products must be */
};

enum program { MVT, ATAX, BICG, PROGRAMS };

static uint32_t in_of(uint64_t i)
{
    return (uint32_t)(i % 5);
}

static struct matrix matrix_open(const char *path)
{
    struct matrix m = {.fd = open_file(path, O_RDONLY), .columns = 8192};
    uint32_t *vectors;

    m.bytes = file_size(m.fd);
    m.rows = m.bytes / 4 / m.columns;
    uint64_t longest = m.rows > m.columns ? m.rows : m.columns;
    vectors = malloc(longest * 4);
    m.times = calloc(m.rows, 4);
    m.transposed = calloc(m.columns, 4);
    if (!m.rows || !vectors || !m.times || !m.transposed)
        die("a matrix of %zu bytes", m.bytes);
    for (uint64_t i = 0; i < longest; i++)
        vectors[i] = in_of(i);
    m.common = managed_memory(m.bytes);
    m.vectors = device_memory(longest * 4);
    m.results = device_memory(longest * 8);
    paging_copy_in(&gpu, m.vectors, vectors, longest * 4);
    free(vectors);
    for (uint64_t r = 0; r < m.rows; r++)
        for (uint64_t c = 0; c < m.columns; c++) {
            uint32_t a = PAGING_OF_WORD(word_of(r * m.columns + c));
            m.times[r] += a * in_of(c);
            m.transposed[c] += a * in_of(r);
        }
    return m;
}

/* Results are those of a program, but for ATAX, whose second product has the first as its vector. */
static void check_product(const struct matrix *m, const struct paging_task *task, enum program program)
{
    uint32_t *found = malloc((m->rows > m->columns ? m->rows : m->columns) * 4);
    uint64_t wrong = 0;

    if (!found)
        die("memory");
    paging_copy_out(&gpu, found, task->out[0], m->rows * 4);
    for (uint64_t r = 0; r < m->rows; r++)
        wrong += found[r] != m->times[r];
    paging_copy_out(&gpu, found, task->out[1], m->columns * 4);
    for (uint64_t c = 0; c < m->columns; c++) {
        uint32_t sum = 0;
        if (program != ATAX) {
            wrong += found[c] != m->transposed[c];
            continue;
        }
        if (c % 512) /* some of them: each is as long as the file has rows */
            continue;
        for (uint64_t r = 0; r < m->rows; r++)
            sum += PAGING_OF_WORD(word_of(r * m->columns + c)) * m->times[r];
        wrong += found[c] != sum;
    }
    free(found);
    if (wrong)
        die("program %d: %llu results are wrong", program, (unsigned long long)wrong);
}

static double multiply(const struct matrix *m, struct paging_task *task, const char *kernel, unsigned n,
                       enum program program)
{
    uint64_t longest = m->rows > m->columns ? m->rows : m->columns;
    double took = 0;

    task->n = m->bytes / 4;
    task->unit = LARGE;
    task->columns = m->columns;
    task->in[0] = (const uint32_t *)(uintptr_t)m->vectors;
    task->out[0] = (uint32_t *)(uintptr_t)m->results;
    task->out[1] = task->out[0] + longest;
    task->in[1] = program == ATAX ? task->out[0] : task->in[0];
    paging_need(&gpu, gpu.api->cuMemsetD8Async(m->results, 0, longest * 8, gpu.stream), "memory");
    for (task->product = program == BICG ? PAGING_BOTH : PAGING_TIMES; task->product <= PAGING_BOTH;
         task->product++) {
        if (program != BICG && task->product == PAGING_BOTH)
            break;
        took += paging_run(&gpu, kernel, n, task);
        if (task->counts[PAGING_WRONG])
            die("%s: units that could not be had", kernel);
    }
    check_product(m, task, program);
    return took;
}

static void multiply_on_demand(const struct matrix *m, unsigned part, enum program program, double *first_out,
                               double *again_out)
{
    size_t frames = frames_for(m->bytes, part);
    struct paging_map map = paging_map(device, m->fd, LARGE, frames, PROT_READ);
    struct paging_task task = {.demand = {map.there}};

    *first_out = multiply(m, &task, "bench_multiply", blocks_for(frames), program);
    *again_out = multiply(m, &task, "bench_multiply", blocks_for(frames), program);
    gaia_munmap(map.at, map.bytes);
}

static void bench_multiply(const char *path)
{
    static const char *const names[PROGRAMS] = {"mvt", "atax", "bicg"};
    static struct samples samples;
    struct matrix m = matrix_open(path);

    print_head(m.bytes);
    printf("\"columns\": %llu, ", (unsigned long long)m.columns);
    for (int program = 0; program < PROGRAMS; program++) {
        for (size_t r = 0; r < repetitions; r++) {
            for (unsigned p = 0; p < PARTS; p++)
                multiply_on_demand(&m, parts[p], (enum program)program, &samples.first[p][r],
                                   &samples.again[p][r]);
            if (!m.common)
                continue;
            struct paging_task task = {.plain = {m.common}};
            read_file(m.fd, m.common, m.bytes);
            samples.first[PARTS][r] =
                multiply(&m, &task, "bench_multiply_plain", blocks(), (enum program)program);
            samples.again[PARTS][r] =
                multiply(&m, &task, "bench_multiply_plain", blocks(), (enum program)program);
        }
        print_parts(names[program], &samples, m.common);
    }
    printf("\"done\": true}\n");
}

int main(int argc, char **argv)
{
    repetitions = option(&argc, argv, "--repetitions", 5);
    if (argc > 3 && !strcmp(argv[argc - 2], "--kernels")) {
        given = argv[argc - 1];
        argc -= 2;
    }
    if (argc < 3 || !repetitions || repetitions > REPETITIONS_MAX) {
        fprintf(stderr, "usage: bench_demand faults FILE|hits FILE|add A B C|multiply A\n");
        return 2;
    }
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* no first launch is to pay for it */
    if (!paging_start(&gpu, given, &refused) || gaia_device_open("cuda:0", &device))
        die("no GPU");
    int fd = open_file(argv[2], O_RDONLY);
    size_t bytes = file_size(fd);
    if (bytes % LARGE)
        die("%s is no multiple of 64 KiB", argv[2]);
    choose_arena(bytes);
    close(fd);
    if (!strcmp(argv[1], "faults"))
        bench_faults(argv[2]);
    else if (!strcmp(argv[1], "hits"))
        bench_hits(argv[2]);
    else if (!strcmp(argv[1], "add") && argc == 5)
        bench_add(argv + 2);
    else if (!strcmp(argv[1], "multiply"))
        bench_multiply(argv[2]);
    else
        die("what is %s?", argv[1]);
    gaia_device_close(device);
    return 0;
}
