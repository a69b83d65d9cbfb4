/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of faults over a file in the host's memory against memcpy() of as many bytes, in turn. GB/s (10^9
 * bytes).
 *
 * stream      every page of a fresh mapping is touched in order; the device's copy of the file is away at the
 * start memcpy      between two buffers whose pages are all there, destination warm: the goal's baseline
 * memcpy_new  into a buffer that was just mapped: page faults included
 * two_copies  pread() of 256 KiB into a buffer, pwrite() of it into a memfd that had a hole there: what a
 * stream does at least when a stage is between the host's memory and the device's, without a fault
 *
 * bench_stream FILE BACKING [--repetitions N] */
#include "tests/bench/bench.h"

#define PIECE (256 * 1024)

static double rate(size_t bytes, uint64_t start)
{
    return (double)bytes / (double)(now_ns() - start);
}

static double time_stream(struct gaia_device *device, int fd, size_t length)
{
    uint8_t *base = map_file(device, fd, length, PROT_READ | PROT_WRITE);

    advise(base, length, GAIA_ADV_DONTNEED);
    uint64_t start = now_ns();
    for (size_t page = 0; page < length / PAGE; page++)
        check_page(base, page);
    double gbs = rate(length, start);
    advise(base, length, GAIA_ADV_DONTNEED);
    if (gaia_munmap(base, length))
        die("gaia_munmap");
    return gbs;
}

static double time_copy(uint8_t *to, const uint8_t *from, size_t length)
{
    uint64_t start = now_ns();

    memcpy(to, from, length);
    __asm__ volatile("" : : "r"(to) : "memory"); /* nobody may say that the bytes are not looked at */
    return rate(length, start);
}

static double time_two_copies(int fd, size_t length, uint8_t *buffer)
{
    int memfd = memfd_create("bench_stream", MFD_CLOEXEC);

    if (memfd < 0 || ftruncate(memfd, (off_t)length))
        die("memfd");
    uint64_t start = now_ns();
    for (size_t at = 0; at < length; at += PIECE)
        if (pread(fd, buffer, PIECE, (off_t)at) != PIECE || pwrite(memfd, buffer, PIECE, (off_t)at) != PIECE)
            die("pread or pwrite");
    double gbs = rate(length, start);
    close(memfd);
    return gbs;
}

enum kind { STREAM, WARM, NEW, TWO_COPIES, KINDS };

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"stream", "memcpy", "memcpy_new", "two_copies"};
    size_t n = option(&argc, argv, "--repetitions", 5);

    if (argc != 3 || !n) {
        fprintf(stderr, "usage: bench_stream FILE BACKING [--repetitions N]\n");
        return 2;
    }
    int fd = open_file(argv[1], O_RDWR), backing = open_file(argv[2], O_RDONLY);
    size_t length = file_size(fd) / PIECE * PIECE;
    struct gaia_device *device = open_device();
    uint8_t *from = new_memory(length), *to = new_memory(length);
    for (size_t at = 0; at < length;) {
        ssize_t got = pread(backing, from + at, length - at, (off_t)at);
        if (got <= 0)
            die("pread %s", argv[2]);
        at += (size_t)got;
    }
    memcpy(to, from, length);
    double *times[KINDS], *ratios[KINDS];
    for (int k = 0; k < KINDS; k++) {
        times[k] = calloc(n, sizeof *times[k]);
        ratios[k] = calloc(n, sizeof *ratios[k]);
        if (!times[k] || !ratios[k])
            die("memory");
    }
    warm(backing, 0, length);
    time_stream(device, fd, length); /* the first of all warms up */
    for (size_t r = 0; r < n; r++) {
        warm(backing, 0, length);
        times[STREAM][r] = time_stream(device, fd, length);
        times[WARM][r] = time_copy(to, from, length);
        uint8_t *fresh = new_memory(length);
        times[NEW][r] = time_copy(fresh, from, length);
        munmap(fresh, length);
        warm(backing, 0, length);
        times[TWO_COPIES][r] = time_two_copies(backing, length, to);
        for (int k = 0; k < KINDS; k++)
            ratios[k][r] = times[STREAM][r] / times[k][r];
    }
    printf("{\"bytes\": %zu, \"repetitions\": %zu", length, n);
    for (int k = 0; k < KINDS; k++)
        printf(", \"%s_gbs\": %.3f, \"stream_to_%s\": %.3f", names[k], median(times[k], n), names[k],
               median(ratios[k], n));
    printf("}\n");
    gaia_device_close(device);
    for (int k = 0; k < KINDS; k++) {
        free(times[k]);
        free(ratios[k]);
    }
    munmap(from, length);
    munmap(to, length);
    close(fd);
    close(backing);
    return 0;
}
