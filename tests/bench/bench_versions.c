/* SPDX-License-Identifier: Apache-2.0 */
/* What the versions of many devices cost the CPU: reads of 4 KiB at random, of three files of one size, block
 * by block in turn. The kernel's own copies are dropped before each block, so that every read comes to the
 * daemon. Microseconds a read, medians.
 *
 * versions   N devices hold all pages, and each has released a store to each
 * none       one device holds all pages; nothing was ever stored
 * untracked  no device maps it
 *
 * bench_versions VERSIONS NONE UNTRACKED DEVICES [--blocks N] */
#include "tests/bench/bench.h"

/* Every device stores to and releases a byte of its own in every page, and a CPU reads it all: every page has
 * a version of every device, and nothing is pending. */
static void make_versions(int fd, size_t length, unsigned devices)
{
    static uint8_t buffer[MIB];

    for (unsigned d = 0; d < devices; d++) {
        char name[16];
        struct gaia_device *device;
        snprintf(name, sizeof name, "soft:%u", d);
        if (gaia_device_open(name, &device))
            die("gaia_device_open %s", name);
        uint8_t *base = map_file(device, fd, length, PROT_READ | PROT_WRITE);
        for (size_t at = 0; at < length; at += PAGE)
            base[at + d * 8] = (uint8_t)(d + 1);
        if (gaia_mrelease(base, length, device))
            die("gaia_mrelease");
    }
    for (size_t at = 0; at < length; at += sizeof buffer)
        if (pread(fd, buffer, sizeof buffer, (off_t)at) <= 0)
            die("pread");
}

/* One device holds all pages. */
static void make_resident(int fd, size_t length)
{
    uint8_t *base = map_file(open_device(), fd, length, PROT_READ);

    for (size_t at = 0; at < length; at += PAGE)
        (void)*(volatile uint8_t *)(base + at);
}

/* Microseconds a read. */
static double time_reads(int fd, const uint32_t *pages, size_t n, uint64_t *sum)
{
    uint8_t bytes[PAGE];

    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("posix_fadvise");
    uint64_t start = now_ns();
    for (size_t i = 0; i < n; i++) {
        if (pread(fd, bytes, PAGE, (off_t)(pages[i] * PAGE)) != (ssize_t)PAGE)
            die("pread");
        *sum += bytes[1000];
    }
    return (double)(now_ns() - start) / 1000 / (double)n;
}

static void shuffle(uint32_t *pages, size_t count, uint64_t *random)
{
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = random_next(random) % (i + 1);
        uint32_t page = pages[i];
        pages[i] = pages[j];
        pages[j] = page;
    }
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"versions", "none", "untracked"};
    size_t blocks = option(&argc, argv, "--blocks", 42);
    uint64_t random = 7, sum = 0;
    double *times[3], *ratios[3];
    int fds[3];

    if (argc != 5 || !blocks) {
        fprintf(stderr, "usage: bench_versions VERSIONS NONE UNTRACKED DEVICES [--blocks N]\n");
        return 2;
    }
    for (int i = 0; i < 3; i++)
        fds[i] = open_file(argv[1 + i], O_RDWR);
    size_t length = file_size(fds[0]), count = length / PAGE;
    make_versions(fds[0], length, (unsigned)atoi(argv[4]));
    make_resident(fds[1], length);
    uint32_t *pages = calloc(count, sizeof *pages);
    if (!pages)
        die("memory");
    for (size_t i = 0; i < count; i++)
        pages[i] = (uint32_t)i;
    for (int i = 0; i < 3; i++) {
        times[i] = calloc(blocks, sizeof(double));
        ratios[i] = calloc(blocks, sizeof(double));
        if (!times[i] || !ratios[i])
            die("memory");
        if (posix_fadvise(fds[i], 0, 0, POSIX_FADV_RANDOM))
            die("posix_fadvise");
    }
    for (size_t b = 0; b < blocks; b++) {
        shuffle(pages, count, &random);
        for (size_t i = 0; i < 3; i++) {
            size_t which = (b + i) % 3;
            times[which][b] = time_reads(fds[which], pages, count, &sum);
        }
        for (int i = 0; i < 3; i++)
            ratios[i][b] = times[0][b] / times[i][b];
    }
    printf("{\"devices\": %s, \"blocks\": %zu, \"reads_a_block\": %zu, \"sum\": %llu", argv[4], blocks, count,
           (unsigned long long)sum);
    for (int i = 0; i < 3; i++)
        printf(", \"%s_us\": %.3f, \"to_%s\": %.4f", names[i], median(times[i], blocks), names[i],
               median(ratios[i], blocks));
    printf("}\n");
    return 0;
}
