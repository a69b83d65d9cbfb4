/* SPDX-License-Identifier: Apache-2.0 */
/* What the versions of many devices cost the CPU: reads of 4 KiB at random of a file that N devices have
 * mapped and released stores to, against reads of a file of the same size that no device maps, block by block
 * in turn. The kernel's own copies are dropped before each block, so that every read comes to the daemon.
 *
 * bench_versions FILE OTHER DEVICES [--blocks N] */
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

int main(int argc, char **argv)
{
    size_t blocks = option(&argc, argv, "--blocks", 41);
    uint64_t random = 7, sum = 0;

    if (argc != 4 || !blocks) {
        fprintf(stderr, "usage: bench_versions FILE OTHER DEVICES [--blocks N]\n");
        return 2;
    }
    int fds[2] = {open_file(argv[1], O_RDWR), open_file(argv[2], O_RDWR)};
    size_t length = file_size(fds[0]), count = length / PAGE;
    make_versions(fds[0], length, (unsigned)atoi(argv[3]));
    uint32_t *pages = calloc(count, sizeof *pages);
    double *times[2] = {calloc(blocks, sizeof(double)), calloc(blocks, sizeof(double))};
    double *ratios = calloc(blocks, sizeof *ratios);
    if (!pages || !times[0] || !times[1] || !ratios)
        die("memory");
    for (size_t i = 0; i < count; i++)
        pages[i] = (uint32_t)i;
    for (int i = 0; i < 2; i++)
        if (posix_fadvise(fds[i], 0, 0, POSIX_FADV_RANDOM))
            die("posix_fadvise");
    for (size_t b = 0; b < blocks; b++) {
        for (size_t i = count - 1; i > 0; i--) {
            size_t j = random_next(&random) % (i + 1);
            uint32_t page = pages[i];
            pages[i] = pages[j];
            pages[j] = page;
        }
        for (unsigned i = 0; i < 2; i++) {
            unsigned which = (unsigned)(b & 1) ^ i;
            times[which][b] = time_reads(fds[which], pages, count, &sum);
        }
        ratios[b] = times[0][b] / times[1][b];
    }
    printf(
        "{\"devices\": %s, \"blocks\": %zu, \"reads_a_block\": %zu, \"mapped_us\": %.3f, \"other_us\": %.3f, "
        "\"ratio\": %.4f, \"ratio_quarter\": %.4f, \"ratio_three_quarters\": %.4f, \"sum\": %llu}\n",
        argv[3], blocks, count, median(times[0], blocks), median(times[1], blocks), median(ratios, blocks),
        quantile(ratios, blocks, 0.25), quantile(ratios, blocks, 0.75), (unsigned long long)sum);
    return 0;
}
