/* SPDX-License-Identifier: Apache-2.0 */
/* CPU reads through the mount of a file that some device maps, by where its bytes are; in turn. GB/s (10^9
 * bytes) and, for single pages at random, microseconds.
 *
 * peer     on the device, and not in the host's memory
 * storage  neither
 * memory   in the host's memory, not on the device
 * held     is how much of the backing file the host's memory holds after reading: a read from a device should
 * need none
 *
 * bench_peer FILE BACKING [--repetitions N] */
#include "tests/bench/bench.h"

#define RANDOM_READS 512u

enum source { PEER, STORAGE, MEMORY, SOURCES };
static const char *const names[SOURCES] = {"peer", "storage", "memory"};

struct bench {
    int fd, backing;
    size_t length;
    uint8_t *base;
    struct gaia_device *device;
};

static uint64_t peer_reads(const struct bench *b)
{
    struct gaia_stat stat;

    if (gaia_stat(b->device, &stat))
        die("gaia_stat");
    return stat.peer_reads;
}

static double held_part(const struct bench *b)
{
    size_t pages = b->length / PAGE, held = 0;
    unsigned char *there = malloc(pages);
    void *view = mmap(NULL, b->length, PROT_READ, MAP_SHARED, b->backing, 0);

    if (!there || view == MAP_FAILED || mincore(view, b->length, there))
        die("mincore");
    for (size_t i = 0; i < pages; i++)
        held += there[i] & 1;
    munmap(view, b->length);
    free(there);
    return (double)held / (double)pages;
}

static void forget(int fd)
{
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("posix_fadvise");
}

static void prepare(const struct bench *b, enum source source)
{
    if (source == PEER) {
        warm(b->backing, 0, b->length);
        advise(b->base, b->length, GAIA_ADV_WILLNEED);
        for (size_t page = 0; page < b->length / PAGE; page++)
            check_page(b->base, page);
    } else {
        advise(b->base, b->length, GAIA_ADV_DONTNEED);
    }
    if (source == MEMORY)
        warm(b->backing, 0, b->length);
    else
        forget(b->backing);
    forget(b->fd);
}

static double read_in_order(const struct bench *b)
{
    static uint8_t buffer[MIB];
    uint64_t start = now_ns();

    for (size_t at = 0; at < b->length;) {
        ssize_t got = pread(b->fd, buffer, sizeof buffer, (off_t)at);
        if (got <= 0)
            die("pread");
        for (size_t i = 0; i < (size_t)got; i += PAGE)
            if (*(uint64_t *)(void *)(buffer + i) != pattern_word((at + i) / PAGE, 0))
                die("wrong bytes in page %zu", (at + i) / PAGE);
        at += (size_t)got;
    }
    return (double)b->length / (double)(now_ns() - start);
}

static double read_at_random(const struct bench *b, const uint32_t *pages)
{
    uint64_t buffer[512];
    uint64_t start = now_ns();

    for (size_t i = 0; i < RANDOM_READS; i++)
        if (pread(b->fd, buffer, PAGE, (off_t)(pages[i] * PAGE)) != (ssize_t)PAGE ||
            buffer[0] != pattern_word(pages[i], 0))
            die("pread of page %u", pages[i]);
    return (double)(now_ns() - start) / 1000 / RANDOM_READS;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    double *rates[SOURCES], *times[SOURCES], held[SOURCES] = {0};
    uint64_t from_peer[SOURCES] = {0}, random = 3;
    uint32_t pages[RANDOM_READS];
    size_t n = option(&argc, argv, "--repetitions", 5);

    if (argc != 3 || !n) {
        fprintf(stderr, "usage: bench_peer FILE BACKING [--repetitions N]\n");
        return 2;
    }
    b.fd = open_file(argv[1], O_RDWR);
    b.backing = open_file(argv[2], O_RDONLY);
    b.length = file_size(b.fd) / MIB * MIB;
    b.device = open_device();
    b.base = map_file(b.device, b.fd, b.length, PROT_READ | PROT_WRITE);
    for (int s = 0; s < SOURCES; s++) {
        rates[s] = calloc(n, sizeof *rates[s]);
        times[s] = calloc(n, sizeof *times[s]);
        if (!rates[s] || !times[s])
            die("memory");
    }
    for (size_t r = 0; r < n; r++)
        for (int s = 0; s < SOURCES; s++) {
            uint64_t before = peer_reads(&b);
            pick_distinct(&random, pages, RANDOM_READS, b.length / PAGE);
            prepare(&b, (enum source)s);
            times[s][r] = read_at_random(&b, pages);
            prepare(&b, (enum source)s);
            rates[s][r] = read_in_order(&b);
            held[s] += held_part(&b) / (double)n;
            from_peer[s] += (peer_reads(&b) - before) / n;
        }
    printf("{\"bytes\": %zu, \"repetitions\": %zu", b.length, n);
    for (int s = 0; s < SOURCES; s++)
        printf(
            ", \"%s_gbs\": %.3f, \"%s_random_us\": %.2f, \"%s_pages_from_device\": %llu, \"%s_held\": %.3f",
            names[s], median(rates[s], n), names[s], median(times[s], n), names[s],
            (unsigned long long)from_peer[s], names[s], held[s]);
    printf("}\n");
    gaia_device_close(b.device);
    close(b.fd);
    close(b.backing);
    for (int s = 0; s < SOURCES; s++) {
        free(rates[s]);
        free(times[s]);
    }
    return 0;
}
