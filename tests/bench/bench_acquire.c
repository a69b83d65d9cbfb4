/* SPDX-License-Identifier: Apache-2.0 */
/* An acquire of a mapping of which a CPU has changed k pages of n, for k/n from nothing to all. Everything is
 * resident before. Microseconds, medians of the repetitions.
 *
 * bench_acquire FILE [--repetitions N] */
#include "tests/bench/bench.h"

static const double parts[] = {0, 0.0001, 0.001, 0.01, 0.1, 1};
#define PARTS (sizeof parts / sizeof parts[0])

/* The first k entries of pages become a random choice. */
static void shuffle(uint32_t *pages, size_t n, size_t k, uint64_t *random)
{
    for (size_t i = 0; i < k; i++) {
        size_t j = i + random_next(random) % (n - i);
        uint32_t page = pages[i];
        pages[i] = pages[j];
        pages[j] = page;
    }
}

static double time_acquire(struct gaia_device *device, int fd, uint8_t *base, size_t length,
                           const uint32_t *pages, size_t k, uint64_t value)
{
    for (size_t page = 0; page < length / PAGE; page++)
        (void)*(volatile uint8_t *)(base + page * PAGE);
    if (gaia_macquire(base, length, device))
        die("gaia_macquire");
    for (size_t i = 0; i < k; i++)
        if (pwrite(fd, &value, sizeof value, (off_t)(pages[i] * PAGE)) != (ssize_t)sizeof value)
            die("pwrite");
    uint64_t start = now_ns();
    if (gaia_macquire(base, length, device))
        die("gaia_macquire");
    double us = (double)(now_ns() - start) / 1000;
    for (size_t i = 0; i < k; i += k / 16 + 1)
        if (*(volatile uint64_t *)(void *)(base + pages[i] * PAGE) != value)
            die("the device does not see what was written to page %u", pages[i]);
    return us;
}

int main(int argc, char **argv)
{
    size_t n = option(&argc, argv, "--repetitions", 5);
    uint64_t random = 11, value = 0;

    if (argc != 2 || !n) {
        fprintf(stderr, "usage: bench_acquire FILE [--repetitions N]\n");
        return 2;
    }
    int fd = open_file(argv[1], O_RDWR);
    size_t length = file_size(fd), count = length / PAGE;
    struct gaia_device *device = open_device();
    uint8_t *base = map_file(device, fd, length, PROT_READ);
    uint32_t *pages = calloc(count, sizeof *pages);
    double *times = calloc(n, sizeof *times);
    if (!pages || !times)
        die("memory");
    for (size_t i = 0; i < count; i++)
        pages[i] = (uint32_t)i;
    printf("{\"pages\": %zu, \"repetitions\": %zu, \"acquires\": [", count, n);
    for (size_t p = 0; p < PARTS; p++) {
        size_t k = (size_t)(parts[p] * (double)count + 0.5);
        for (size_t r = 0; r < n; r++) {
            shuffle(pages, count, k, &random);
            times[r] = time_acquire(device, fd, base, length, pages, k, ~++value);
        }
        printf("%s{\"changed\": %zu, \"us\": %.1f}", p ? ", " : "", k, median(times, n));
        fflush(stdout);
    }
    printf("]}\n");
    gaia_device_close(device);
    return 0;
}
