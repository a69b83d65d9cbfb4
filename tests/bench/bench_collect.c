/* SPDX-License-Identifier: Apache-2.0 */
/* Merging and collecting pages in which both sides changed: a byte of each page by a device, another by a CPU
 * (between the device's grant and its release). Everything is pending then; a SEEK_HOLE collects it, and does
 * nothing else. GB/s (10^9 bytes of pages), medians.
 *
 * collect  one file of all bytes, one request
 * two      two files of half the bytes each, two requests at once
 * memcpy   of as many bytes between warm buffers, on one thread
 * bare     what a collect can't do without, by one thread with nothing else to do: 64 KiB of a file are read,
 *          and of a memfd, the merge with a twin, and the file is written
 * mapped   the merge alone, in place, with the file and the memfd mapped and touched before: what memory
 * allows, and no collect can do (a client may cut its memfd off, and a store to a file has no errors)
 *
 * bench_collect FILE HALF1 HALF2 BARE [--repetitions N]; BARE: a file of the data directory, as long as FILE
 */
#include <pthread.h>

#include "consistency/merge.h"
#include "tests/bench/bench.h"

#define RUN (16 * PAGE)

#define DEVICE_AT 100
#define CPU_AT 3000

struct shared {
    const char *path;
    int fd;
    size_t length;
    uint8_t *device_bytes, *cpu_bytes;
};

static struct shared share(struct gaia_device *device, const char *path)
{
    struct shared f = {.path = path, .fd = open_file(path, O_RDWR)};

    f.length = file_size(f.fd);
    f.device_bytes = map_file(device, f.fd, f.length, PROT_READ | PROT_WRITE);
    f.cpu_bytes = mmap(NULL, f.length, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    if (f.cpu_bytes == MAP_FAILED)
        die("mmap %s", path);
    return f;
}

/* Both sides store to each page, and the device releases. */
static void change(struct gaia_device *device, const struct shared *f, uint8_t value)
{
    if (gaia_macquire(f->device_bytes, f->length, device))
        die("gaia_macquire");
    for (size_t at = 0; at < f->length; at += PAGE)
        f->device_bytes[at + DEVICE_AT] = value;
    for (size_t at = 0; at < f->length; at += PAGE)
        f->cpu_bytes[at + CPU_AT] = (uint8_t)(value + 128);
    if (sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE_AND_WAIT))
        die("sync_file_range");
    if (gaia_mrelease(f->device_bytes, f->length, device))
        die("gaia_mrelease");
}

static void check(const struct shared *f, uint8_t value)
{
    for (size_t at = 0; at < f->length; at += PAGE)
        if (f->cpu_bytes[at + DEVICE_AT] != value || f->cpu_bytes[at + CPU_AT] != (uint8_t)(value + 128))
            die("%s: a byte of page %zu is lost", f->path, at / PAGE);
}

static void *collect(void *argument)
{
    const struct shared *f = argument;

    if (lseek(f->fd, 0, SEEK_HOLE) < 0)
        die("lseek");
    return NULL;
}

static double time_collect(struct shared *files, size_t n)
{
    pthread_t threads[2];
    size_t bytes = 0;
    uint64_t start = now_ns();

    for (size_t i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, collect, &files[i]))
            die("pthread_create");
    for (size_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        bytes += files[i].length;
    }
    return (double)bytes / (double)(now_ns() - start);
}

struct bare {
    int fd, memfd;
    size_t length;
    uint8_t *twins, *frames, *home;
};

static struct bare make_bare(const char *path)
{
    struct bare b = {.fd = open_file(path, O_RDWR), .memfd = memfd_create("bench_collect", MFD_CLOEXEC)};

    b.length = file_size(b.fd) / RUN * RUN;
    b.twins = new_memory(b.length);
    if (b.memfd < 0 || ftruncate(b.memfd, (off_t)b.length))
        die("memfd");
    for (size_t at = 0; at < b.length; at += RUN)
        if (pread(b.fd, b.twins + at, RUN, (off_t)at) != RUN ||
            pwrite(b.memfd, b.twins + at, RUN, (off_t)at) != RUN)
            die("%s", path);
    b.frames = mmap(NULL, b.length, PROT_READ | PROT_WRITE, MAP_SHARED, b.memfd, 0);
    b.home = mmap(NULL, b.length, PROT_READ | PROT_WRITE, MAP_SHARED, b.fd, 0);
    if (b.frames == MAP_FAILED || b.home == MAP_FAILED)
        die("mmap");
    return b;
}

static double time_bare(const struct bare *b, uint8_t value)
{
    static uint8_t home[RUN], device[RUN];

    for (size_t at = 0; at < b->length; at += PAGE)
        b->frames[at + DEVICE_AT] = value;
    uint64_t start = now_ns();
    for (size_t at = 0; at < b->length; at += RUN) {
        if (pread(b->fd, home, RUN, (off_t)at) != RUN || pread(b->memfd, device, RUN, (off_t)at) != RUN)
            die("pread");
        for (size_t page = 0; page < RUN; page += PAGE)
            gaia_merge(home + page, b->twins + at + page, device + page, PAGE);
        if (pwrite(b->fd, home, RUN, (off_t)at) != RUN)
            die("pwrite");
    }
    return (double)b->length / (double)(now_ns() - start);
}

static double time_mapped(const struct bare *b, uint8_t value)
{
    uint64_t start = 0;

    for (int turn = 0; turn < 2; turn++) { /* the first one has the page faults */
        for (size_t at = 0; at < b->length; at += PAGE)
            b->frames[at + DEVICE_AT] = (uint8_t)(value + turn);
        start = now_ns();
        for (size_t at = 0; at < b->length; at += PAGE)
            gaia_merge(b->home + at, b->twins + at, b->frames + at, PAGE);
    }
    return (double)b->length / (double)(now_ns() - start);
}

enum kind { COLLECT, TWO, COPY, BARE, MAPPED, KINDS };

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"collect", "two", "memcpy", "bare", "mapped"};
    size_t n = option(&argc, argv, "--repetitions", 5);

    if (argc != 5 || !n) {
        fprintf(stderr, "usage: bench_collect FILE HALF1 HALF2 BARE [--repetitions N]\n");
        return 2;
    }
    struct gaia_device *device = open_device();
    struct shared files[3];
    for (int i = 0; i < 3; i++)
        files[i] = share(device, argv[1 + i]);
    uint8_t *from = new_memory(files[0].length), *to = new_memory(files[0].length);
    memset(from, 1, files[0].length);
    memset(to, 2, files[0].length);
    struct bare bare = make_bare(argv[4]);
    double *times[KINDS], *ratios[KINDS];
    for (int k = 0; k < KINDS; k++) {
        times[k] = calloc(n, sizeof *times[k]);
        ratios[k] = calloc(n, sizeof *ratios[k]);
        if (!times[k] || !ratios[k])
            die("memory");
    }
    for (size_t r = 0; r < n; r++) {
        for (int i = 0; i < 3; i++)
            change(device, &files[i], (uint8_t)(r + 1));
        times[COLLECT][r] = time_collect(files, 1);
        times[TWO][r] = time_collect(files + 1, 2);
        uint64_t start = now_ns();
        memcpy(to, from, files[0].length);
        __asm__ volatile("" : : "r"(to) : "memory");
        times[COPY][r] = (double)files[0].length / (double)(now_ns() - start);
        times[BARE][r] = time_bare(&bare, (uint8_t)(r + 1));
        times[MAPPED][r] = time_mapped(&bare, (uint8_t)(r + 101));
        for (int i = 0; i < 3; i++)
            check(&files[i], (uint8_t)(r + 1));
        for (int k = 0; k < KINDS; k++)
            ratios[k][r] = times[k][r] / times[COPY][r];
    }
    printf("{\"bytes\": %zu, \"repetitions\": %zu", files[0].length, n);
    for (int k = 0; k < KINDS; k++)
        printf(", \"%s_gbs\": %.3f, \"%s_to_memcpy\": %.3f", names[k], median(times[k], n), names[k],
               median(ratios[k], n));
    printf("}\n");
    gaia_device_close(device);
    return 0;
}
