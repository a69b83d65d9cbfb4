/* SPDX-License-Identifier: Apache-2.0 */
/* What an acquire costs for each page that changed, and a release for each page that was modified. The file
 * is resident as a whole; k pages at random, for several k. Microseconds, medians of the repetitions.
 *
 * acquire       after k plain write()s of whole pages, each somewhere else: the device drops k pages
 * refetch       the touches of those pages after it, one fault for each
 * store         the first store to each page: trapped, twin taken
 * release       of k stored pages that the kernel's page cache holds (they were read): found, invalidated
 * read          pread() of each page after it, 4 KiB: collected and merged on the way
 * release_again of the k pages, stored to again, that nobody read since the last release
 *
 * bench_changed FILE [--repetitions N] */
#include "tests/bench/bench.h"

#define REPETITIONS_MAX 32u

static const size_t counts[] = {1, 16, 256, 4096};
#define COUNTS (sizeof counts / sizeof counts[0])

enum kind { ACQUIRE, REFETCH, STORE, RELEASE, READ, RELEASE_AGAIN, KINDS };
static const char *const names[KINDS] = {"acquire", "refetch", "store", "release", "read", "release_again"};

struct bench {
    int fd;
    size_t length;
    uint8_t *base;
    struct gaia_device *device;
    uint64_t random, round;
    double times[KINDS][COUNTS][REPETITIONS_MAX];
};

static double since_us(uint64_t start)
{
    return (double)(now_ns() - start) / 1000;
}

/* What word 0 of a page is after a write of the round; never what it was before. */
static uint64_t word_of(const struct bench *b, uint64_t page, unsigned salt)
{
    return pattern_word(page, 0) ^ ((b->round << 8 | salt) * 0x2545f4914f6cdd1du);
}

static void acquire(struct bench *b)
{
    if (gaia_macquire(b->base, b->length, b->device))
        die("gaia_macquire");
}

static void release(struct bench *b)
{
    if (gaia_mrelease(b->base, b->length, b->device))
        die("gaia_mrelease");
}

static void be_resident(struct bench *b)
{
    acquire(b);
    advise(b->base, b->length, GAIA_ADV_WILLNEED);
    for (size_t page = 0; page < b->length / PAGE; page++)
        (void)*(volatile uint8_t *)(b->base + page * PAGE);
    acquire(b);
}

static void time_acquire(struct bench *b, const uint32_t *pages, size_t k, size_t at, unsigned r)
{
    uint64_t bytes[512];

    for (size_t i = 0; i < k; i++) {
        for (size_t w = 0; w < 512; w++)
            bytes[w] = pattern_word(pages[i], w);
        bytes[0] = word_of(b, pages[i], 1);
        if (pwrite(b->fd, bytes, PAGE, (off_t)(pages[i] * PAGE)) != (ssize_t)PAGE)
            die("pwrite");
    }
    uint64_t start = now_ns();
    acquire(b);
    b->times[ACQUIRE][at][r] = since_us(start);
    advise(b->base, b->length, GAIA_ADV_RANDOM);
    start = now_ns();
    for (size_t i = 0; i < k; i++)
        if (*(volatile uint64_t *)(b->base + pages[i] * PAGE) != word_of(b, pages[i], 1))
            die("the device does not see what was written to page %u", pages[i]);
    b->times[REFETCH][at][r] = since_us(start) / (double)k;
    advise(b->base, b->length, GAIA_ADV_NORMAL);
}

static void store(struct bench *b, const uint32_t *pages, size_t k, unsigned salt)
{
    for (size_t i = 0; i < k; i++)
        *(volatile uint64_t *)(b->base + pages[i] * PAGE) = word_of(b, pages[i], salt);
}

static void read_pages(struct bench *b, const uint32_t *pages, size_t k, unsigned salt)
{
    uint64_t bytes[512];

    for (size_t i = 0; i < k; i++) {
        if (pread(b->fd, bytes, PAGE, (off_t)(pages[i] * PAGE)) != (ssize_t)PAGE)
            die("pread");
        if (salt && (bytes[0] != word_of(b, pages[i], salt) || bytes[511] != pattern_word(pages[i], 511)))
            die("a CPU does not see what the device released in page %u", pages[i]);
    }
}

static void time_release(struct bench *b, const uint32_t *pages, size_t k, size_t at, unsigned r)
{
    read_pages(b, pages, k, 0);
    uint64_t start = now_ns();
    store(b, pages, k, 2);
    b->times[STORE][at][r] = since_us(start) / (double)k;
    start = now_ns();
    release(b);
    b->times[RELEASE][at][r] = since_us(start);
    start = now_ns();
    read_pages(b, pages, k, 2);
    b->times[READ][at][r] = since_us(start) / (double)k;
    store(b, pages, k, 3);
    release(b);
    store(b, pages, k, 4);
    start = now_ns();
    release(b);
    b->times[RELEASE_AGAIN][at][r] = since_us(start);
    read_pages(b, pages, k, 4);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.random = 11};
    struct bench *b = &bench;
    size_t repetitions = option(&argc, argv, "--repetitions", 5);
    uint32_t *pages = malloc(counts[COUNTS - 1] * sizeof *pages);

    if (argc != 2 || !repetitions || repetitions > REPETITIONS_MAX) {
        fprintf(stderr, "usage: bench_changed FILE [--repetitions N]\n");
        return 2;
    }
    b->fd = open_file(argv[1], O_RDWR);
    b->length = file_size(b->fd);
    b->device = open_device();
    b->base = map_file(b->device, b->fd, b->length, PROT_READ | PROT_WRITE);
    if (!pages)
        die("memory");
    for (unsigned r = 0; r < repetitions; r++)
        for (size_t at = 0; at < COUNTS; at++) {
            b->round++;
            pick_distinct(&b->random, pages, counts[at], b->length / PAGE);
            be_resident(b);
            time_acquire(b, pages, counts[at], at, r);
            be_resident(b);
            time_release(b, pages, counts[at], at, r);
        }
    printf("{\"bytes\": %zu, \"repetitions\": %zu", b->length, repetitions);
    for (int kind = 0; kind < KINDS; kind++) {
        printf(", \"%s_us\": {", names[kind]);
        for (size_t at = 0; at < COUNTS; at++)
            printf("%s\"%zu\": %.2f", at ? ", " : "", counts[at], median(b->times[kind][at], repetitions));
        printf("}");
    }
    printf("}\n");
    gaia_device_close(b->device);
    close(b->fd);
    free(pages);
    return 0;
}
