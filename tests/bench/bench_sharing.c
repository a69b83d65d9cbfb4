/* SPDX-License-Identifier: Apache-2.0 */
/* False sharing: a CPU thread stores to the first half of every page, a device to the second, both at once,
 * pass after pass. Against private buffers: the same two threads, each with a buffer of its own, merged at
 * the end. Seconds, medians; for several numbers of passes, because what sharing costs is there once: the
 * first stores (trapped), the release, and that a CPU looks at the merged bytes.
 *
 * shared   the mapping of a file and the device's mapping of it; release; a CPU loads a word of each page
 * private  two buffers of the same size; then the device's halves are copied into the CPU's buffer
 *
 * bench_sharing FILE [--repetitions N] */
#include <pthread.h>

#include "tests/bench/bench.h"

#define HALF (PAGE / 2)

static const unsigned counts[] = {1, 10, 100, 1000, 10000};
#define COUNTS (sizeof counts / sizeof counts[0])

struct side {
    uint8_t *bytes; /* of the first page's half */
    size_t pages;
    unsigned passes;
    uint64_t value;
    pthread_barrier_t *start;
};

static void *store(void *argument)
{
    const struct side *s = argument;

    pthread_barrier_wait(s->start);
    for (unsigned pass = 0; pass < s->passes; pass++)
        for (size_t page = 0; page < s->pages; page++) {
            volatile uint64_t *words = (volatile uint64_t *)(void *)(s->bytes + page * PAGE);
            for (size_t w = 0; w < HALF / sizeof *words; w++)
                words[w] = s->value + pass;
        }
    return NULL;
}

static void both(uint8_t *cpu, uint8_t *device, size_t pages, unsigned passes, uint64_t value)
{
    pthread_barrier_t start;
    struct side sides[2] = {{cpu, pages, passes, value, &start},
                            {device + HALF, pages, passes, ~value, &start}};
    pthread_t thread;

    pthread_barrier_init(&start, NULL, 2);
    if (pthread_create(&thread, NULL, store, &sides[0]))
        die("pthread_create");
    store(&sides[1]);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&start);
}

/* What a CPU sees in the end. */
static void look(const uint8_t *bytes, size_t pages, unsigned passes, uint64_t value)
{
    for (size_t page = 0; page < pages; page++) {
        const volatile uint64_t *words = (const volatile uint64_t *)(const void *)(bytes + page * PAGE);
        if (words[0] != value + passes - 1 || words[PAGE / 8 - 1] != ~value + passes - 1)
            die("page %zu is not what both sides stored", page);
    }
}

int main(int argc, char **argv)
{
    size_t n = option(&argc, argv, "--repetitions", 5);

    if (argc != 2 || !n) {
        fprintf(stderr, "usage: bench_sharing FILE [--repetitions N]\n");
        return 2;
    }
    int fd = open_file(argv[1], O_RDWR);
    size_t length = file_size(fd), pages = length / PAGE;
    struct gaia_device *device = open_device();
    uint8_t *on_device = map_file(device, fd, length, PROT_READ | PROT_WRITE);
    uint8_t *on_cpu = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *mine = new_memory(length), *yours = new_memory(length);
    double *shared = calloc(n, sizeof *shared), *private = calloc(n, sizeof *private),
           *ratios = calloc(n, sizeof *ratios);
    if (on_cpu == MAP_FAILED || !shared || !private || !ratios)
        die("memory");
    memset(mine, 1, length);
    memset(yours, 1, length);
    uint64_t value = 0;
    printf("{\"bytes\": %zu, \"repetitions\": %zu, \"passes\": [", length, n);
    for (size_t c = 0; c < COUNTS; c++) {
        for (size_t r = 0; r < n; r++) {
            value += 1000003;
            if (gaia_macquire(on_device, length, device))
                die("gaia_macquire");
            for (size_t page = 0; page < pages;
                 page++) /* both have every page, as the private buffers are there */
                (void)(*(volatile uint8_t *)(on_device + page * PAGE) +
                       *(volatile uint8_t *)(on_cpu + page * PAGE));
            uint64_t start = now_ns();
            both(on_cpu, on_device, pages, counts[c], value);
            if (gaia_mrelease(on_device, length, device))
                die("gaia_mrelease");
            look(on_cpu, pages, counts[c], value);
            shared[r] = seconds(start);
            start = now_ns();
            both(mine, yours, pages, counts[c], value);
            for (size_t page = 0; page < pages; page++)
                memcpy(mine + page * PAGE + HALF, yours + page * PAGE + HALF, HALF);
            look(mine, pages, counts[c], value);
            private[r] = seconds(start);
            ratios[r] = shared[r] / private[r];
        }
        printf("%s{\"passes\": %u, \"shared_s\": %.4f, \"private_s\": %.4f, \"ratio\": %.3f}", c ? ", " : "",
               counts[c], median(shared, n), median(private, n), median(ratios, n));
        fflush(stdout);
    }
    printf("]}\n");
    gaia_device_close(device);
    return 0;
}
