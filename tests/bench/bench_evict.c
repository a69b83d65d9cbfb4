/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming through a file that is larger than the device: GB/s (10^9 bytes) of one pass, medians. The device
 * begins empty, the bytes are in the host's memory. Two devices of different capacities, each with a file of
 * its own, in turn: the second is the baseline.
 *
 * read   a word of each page is loaded
 * write  a word of each page is stored to, and everything released at the end
 *
 * bench_evict DEVICE FILE BACKING DEVICE2 FILE2 BACKING2 [--repetitions N] */
#include "tests/bench/bench.h"

struct stream {
    struct gaia_device *device;
    int fd, backing;
    size_t length;
    uint8_t *base;
};

/* names: device, file, backing */
static struct stream open_stream(char **names)
{
    struct stream s = {.fd = open_file(names[1], O_RDWR), .backing = open_file(names[2], O_RDONLY)};

    if (gaia_device_open(names[0], &s.device))
        die("gaia_device_open %s", names[0]);
    s.length = file_size(s.fd) / PAGE * PAGE;
    s.base = map_file(s.device, s.fd, s.length, PROT_READ | PROT_WRITE);
    return s;
}

static double pass(struct stream *s, bool write, uint64_t value)
{
    advise(s->base, s->length, GAIA_ADV_DONTNEED);
    warm(s->backing, 0, s->length);
    uint64_t start = now_ns();
    for (size_t page = 0; page < s->length / PAGE; page++) {
        volatile uint64_t *words = (volatile uint64_t *)(void *)(s->base + page * PAGE);
        if (words[1] != pattern_word(page, 1))
            die("page %zu has other bytes", page);
        if (write)
            words[0] = value;
    }
    if (write && gaia_mrelease(s->base, s->length, s->device))
        die("gaia_mrelease");
    return (double)s->length / (double)(now_ns() - start);
}

/* What the last pass stored is there for CPUs. */
static void check(struct stream *s, uint64_t value)
{
    uint64_t words[512];

    for (size_t page = 0; page < s->length / PAGE; page += 97)
        if (pread(s->fd, words, PAGE, (off_t)(page * PAGE)) != (ssize_t)PAGE || words[0] != value)
            die("what was stored to page %zu is lost", page);
}

int main(int argc, char **argv)
{
    size_t n = option(&argc, argv, "--repetitions", 5);

    if (argc != 7 || !n) {
        fprintf(stderr, "usage: bench_evict DEVICE FILE BACKING DEVICE2 FILE2 BACKING2 [--repetitions N]\n");
        return 2;
    }
    struct stream streams[2] = {open_stream(argv + 1), open_stream(argv + 4)};
    printf("{\"bytes\": %zu, \"repetitions\": %zu", streams[0].length, n);
    for (int write = 0; write < 2; write++) {
        double *rates[2] = {calloc(n, sizeof(double)), calloc(n, sizeof(double))};
        double *ratios = calloc(n, sizeof *ratios);
        if (!rates[0] || !rates[1] || !ratios)
            die("memory");
        for (size_t r = 0; r < n; r++) {
            for (unsigned i = 0; i < 2; i++) {
                unsigned which = (unsigned)(r & 1) ^ i;
                rates[which][r] = pass(&streams[which], write, ~(uint64_t)r);
                if (write)
                    check(&streams[which], ~(uint64_t)r);
            }
            ratios[r] = rates[0][r] / rates[1][r];
        }
        const char *name = write ? "write" : "read";
        printf(", \"%s_gbs\": %.3f, \"%s_all_gbs\": %.3f, \"%s_ratio\": %.3f", name, median(rates[0], n),
               name, median(rates[1], n), name, median(ratios, n));
        fflush(stdout);
    }
    printf("}\n");
    for (int i = 0; i < 2; i++)
        gaia_device_close(streams[i].device);
    return 0;
}
