/* SPDX-License-Identifier: Apache-2.0 */
/* Merging and collecting pages in which both sides changed: a byte of each page by a device, another by a CPU
 * (between the device's grant and its release). Everything is pending then; a SEEK_HOLE collects it, and does
 * nothing else. GB/s (10^9 bytes of pages), medians.
 *
 * collect  one file of all bytes, one request
 * two      two files of half the bytes each, two requests at once
 * memcpy   of as many bytes between warm buffers, on one thread
 *
 * bench_collect FILE HALF1 HALF2 [--repetitions N] */
#include <pthread.h>

#include "tests/bench/bench.h"

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

int main(int argc, char **argv)
{
    size_t n = option(&argc, argv, "--repetitions", 5);

    if (argc != 4 || !n) {
        fprintf(stderr, "usage: bench_collect FILE HALF1 HALF2 [--repetitions N]\n");
        return 2;
    }
    struct gaia_device *device = open_device();
    struct shared files[3];
    for (int i = 0; i < 3; i++)
        files[i] = share(device, argv[1 + i]);
    uint8_t *from = new_memory(files[0].length), *to = new_memory(files[0].length);
    memset(from, 1, files[0].length);
    memset(to, 2, files[0].length);
    double *times[3];
    for (int k = 0; k < 3; k++)
        if (!(times[k] = calloc(n, sizeof *times[k])))
            die("memory");
    for (size_t r = 0; r < n; r++) {
        for (int i = 0; i < 3; i++)
            change(device, &files[i], (uint8_t)(r + 1));
        times[0][r] = time_collect(files, 1);
        times[1][r] = time_collect(files + 1, 2);
        uint64_t start = now_ns();
        memcpy(to, from, files[0].length);
        __asm__ volatile("" : : "r"(to) : "memory");
        times[2][r] = (double)files[0].length / (double)(now_ns() - start);
        for (int i = 0; i < 3; i++)
            check(&files[i], (uint8_t)(r + 1));
    }
    double *ratios[2];
    for (int k = 0; k < 2; k++) {
        ratios[k] = calloc(n, sizeof *ratios[k]);
        for (size_t r = 0; ratios[k] && r < n; r++)
            ratios[k][r] = times[k][r] / times[2][r];
    }
    printf("{\"bytes\": %zu, \"repetitions\": %zu, \"collect_gbs\": %.3f, \"two_gbs\": %.3f, \"memcpy_gbs\": "
           "%.3f, "
           "\"collect_to_memcpy\": %.3f, \"two_to_memcpy\": %.3f}\n",
           files[0].length, n, median(times[0], n), median(times[1], n), median(times[2], n),
           median(ratios[0], n), median(ratios[1], n));
    gaia_device_close(device);
    return 0;
}
