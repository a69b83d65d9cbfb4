/* SPDX-License-Identifier: Apache-2.0 */
/* What mapping files on a GPU costs beside the GPU: times of a process whose GPU, and the daemon's, is the
 * stand-in of tests/cuda with free=8 for `stores`, and free=0 for the others. Bytes are not checked: they are
 * not there.
 *
 * bench_gpu place|changed|stores read|write FILE... (one for each repetition; none was mapped before)
 * bench_gpu nothing read|write FILE (acquires and releases, each of which finds that nothing has changed) */
#include "tests/bench/bench.h"

#define UNIT ((size_t)65536)
#define FILES_MAX 16

static const unsigned parts[] = {10, 50, 90};
#define PARTS (sizeof parts / sizeof parts[0])

static uint64_t state = 5;

/* A program writes so many percent of the file anew, in units of 64 KiB. How many bytes. */
static size_t rewrite(const char *path, size_t bytes, unsigned percent)
{
    static uint8_t buffer[UNIT];
    size_t units = bytes / UNIT, count = units * percent / 100;
    uint32_t *chosen = malloc(units * sizeof *chosen);
    int fd = open_file(path, O_WRONLY);

    if (!chosen)
        die("memory");
    pick_distinct(&state, chosen, count, units);
    memset(buffer, (int)random_next(&state), sizeof buffer);
    for (size_t i = 0; i < count; i++)
        if (pwrite(fd, buffer, UNIT, (off_t)(chosen[i] * UNIT)) != (ssize_t)UNIT)
            die("pwrite");
    free(chosen);
    close(fd);
    return count * UNIT;
}

/* In GB/s: */
struct result {
    double place, changed[PARTS], release, read;
};

static void measure(struct gaia_device *device, const char *path, const char *what, bool writes,
                    struct result *r)
{
    int fd = open_file(path, writes ? O_RDWR : O_RDONLY);
    size_t bytes = file_size(fd);
    int prot = writes ? PROT_READ | PROT_WRITE : PROT_READ;

    uint8_t *first = map_file(device, fd, PAGE, prot); /* so that the file is known, and stays so */
    uint64_t start = now_ns();
    uint8_t *map = map_file(device, fd, bytes, prot);
    r->place = (double)bytes / 1e9 / seconds(start);
    for (size_t i = 0; i < PARTS && !strcmp(what, "changed"); i++) {
        size_t changed = rewrite(path, bytes, parts[i]);
        start = now_ns();
        if (gaia_macquire(map, bytes, device))
            die("gaia_macquire");
        r->changed[i] = (double)changed / 1e9 / seconds(start);
    }
    if (!strcmp(what, "stores")) {
        start = now_ns();
        if (gaia_mrelease(map, bytes, device))
            die("gaia_mrelease");
        r->release = (double)bytes / 1e9 / seconds(start);
        start = now_ns();
        warm(fd, 0, bytes); /* collects */
        r->read = (double)bytes / 1e9 / seconds(start);
    }
    gaia_munmap(map, bytes);
    gaia_munmap(first, PAGE);
    close(fd);
}

#define PAIRS 200

/* Of a file of which nothing has changed between two acquires; then, of which one page has. */
static int nothing_changes(struct gaia_device *device, const char *path, bool writes)
{
    int fd = open_file(path, writes ? O_RDWR : O_RDONLY), other = open_file(path, O_RDWR);
    size_t bytes = file_size(fd);
    uint8_t *map = map_file(device, fd, bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ);
    double acquire[PAIRS], release[PAIRS], changed[PAIRS];

    for (size_t i = 0; i < PAIRS; i++) {
        uint64_t start = now_ns();
        if (gaia_macquire(map, bytes, device))
            die("gaia_macquire");
        acquire[i] = seconds(start) * 1e6;
        start = now_ns();
        if (writes && gaia_mrelease(map, bytes, device))
            die("gaia_mrelease");
        release[i] = seconds(start) * 1e6;
    }
    for (size_t i = 0; i < PAIRS; i++) {
        uint8_t byte = (uint8_t)i;
        if (pwrite(other, &byte, 1, (off_t)(bytes / PAIRS * i)) != 1)
            die("pwrite");
        uint64_t start = now_ns();
        if (gaia_macquire(map, bytes, device))
            die("gaia_macquire");
        changed[i] = seconds(start) * 1e6;
    }
    printf("{\"acquire_us\": %.4g, \"release_us\": %.4g, \"page_us\": %.4g}\n", median(acquire, PAIRS),
           median(release, PAIRS), median(changed, PAIRS));
    close(other);
    gaia_device_close(device);
    return 0;
}

static void print_median(const char *name, const struct result *results, size_t n, size_t at)
{
    double values[FILES_MAX];

    for (size_t i = 0; i < n; i++)
        values[i] = ((const double *)(const void *)&results[i])[at];
    printf("\"%s\": %.4g, ", name, median(values, n));
}

int main(int argc, char **argv)
{
    struct result results[FILES_MAX] = {0};
    size_t files = (size_t)(argc - 3);

    if (argc < 4 || files > FILES_MAX) {
        fprintf(stderr, "usage: bench_gpu place|changed|stores|nothing read|write FILE... (%d at most)\n",
                FILES_MAX);
        return 2;
    }
    struct gaia_device *device = open_device();
    if (!strcmp(argv[1], "nothing"))
        return nothing_changes(device, argv[3], !strcmp(argv[2], "write"));
    for (size_t i = 0; i < files; i++)
        measure(device, argv[3 + i], argv[1], !strcmp(argv[2], "write"), &results[i]);
    printf("{");
    print_median("place_gbs", results, files, 0);
    print_median("changed_10_gbs", results, files, 1);
    print_median("changed_50_gbs", results, files, 2);
    print_median("changed_90_gbs", results, files, 3);
    print_median("release_gbs", results, files, 4);
    print_median("read_gbs", results, files, 5);
    printf("\"files\": %zu}\n", files);
    gaia_device_close(device);
    return 0;
}
