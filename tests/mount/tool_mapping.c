/* SPDX-License-Identifier: Apache-2.0 */
/* Writers of every kind share the bytes of the same pages, without pause and without a word to each other;
 * readers check every round that nobody lost a byte.
 *
 * usage: tool_mapping FILE PAGES GRAIN ROUNDS SEED WRITER...
 *
 * WRITER is "map" (a process that stores through its mapping of the file), "write" (a process that calls
 * pwrite()), or "soft:N" (a process whose kernel stores on that device, releases every round and acquires
 * every 7th). Bytes belong to the writers in turn, GRAIN bytes each. A byte holds a count, modulo 256. Before
 * a store its writer notes the count as started, and, once others have a right to see it, as published: so
 * whoever reads knows the least and the most that it may find. A read by the kernel's pages that misses a
 * write() is allowed now and then if the next one does not: its page was read in between by somebody who then
 * got no processor for some milliseconds (cache/healer.c). Exit status: 0, nothing was lost; 1, something
 * was, it says what; 2, a call failed. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gaia.h"
#include "tests/mount/tool.h"

#define WRITERS_MAX 8u
#define ACQUIRE_EVERY 7u
#define REPORTS_MAX 10u
#define STALE_MAX 4u
#define STALE_MS 100u

struct shared {
    _Atomic unsigned devices_left;
    _Atomic unsigned lost, stale;
    _Atomic uint64_t cpu_sweeps;
    _Atomic uint64_t checks;
    _Atomic uint64_t unchecked; /* bytes that were stored too often while they were read */
};

struct run_count {
    _Atomic uint32_t started;
    _Atomic uint32_t published;
};

static struct shared *shared;
static struct run_count *counts;
static uint32_t *lows; /* of this process: what was published before a read */
static const char *path;
static char *const *writers;
static unsigned writer_count;
static size_t size, grain, runs;
static unsigned rounds;
static uint64_t seed;

static bool is_device(unsigned writer)
{
    return !strncmp(writers[writer], "soft:", 5);
}

static void take_lows(void)
{
    for (size_t i = 0; i < runs; i++)
        lows[i] = atomic_load_explicit(&counts[i].published, memory_order_acquire);
}

/* Where a file is read, and how: fd < 0, on a device. */
struct source {
    int fd;
    const uint8_t *mapping; /* NULL: by pread() */
};

/* Of a run that has not what it must have: whether it has a moment later, and may have been stale till then.
 */
static bool was_stale(const struct source *source, size_t run)
{
    uint8_t bytes[PAGE];

    if (source->fd < 0 || strcmp(writers[run % writer_count], "write") ||
        atomic_load(&shared->stale) >= STALE_MAX)
        return false;
    usleep(STALE_MS * 1000);
    if (source->mapping)
        memcpy(bytes, source->mapping + run * grain, grain);
    else if (pread(source->fd, bytes, grain, (off_t)(run * grain)) != (ssize_t)grain)
        die("pread");
    uint32_t span = atomic_load_explicit(&counts[run].started, memory_order_acquire) - lows[run];
    for (size_t at = 0; at < grain; at++)
        if ((uint8_t)(bytes[at] - lows[run]) > span)
            return false;
    return atomic_fetch_add(&shared->stale, 1) < STALE_MAX; /* others may have looked meanwhile */
}

/* bytes: what a reader got after take_lows(). */
static void check(const uint8_t *bytes, const struct source *source, const char *reader, unsigned round)
{
    for (size_t i = 0; i < runs; i++) {
        uint32_t high = atomic_load_explicit(&counts[i].started, memory_order_acquire), span = high - lows[i];
        if (span >= 255) {
            atomic_fetch_add(&shared->unchecked, grain);
            continue;
        }
        for (size_t at = i * grain; at < (i + 1) * grain; at++) {
            if ((uint8_t)(bytes[at] - lows[i]) <= span)
                continue;
            if (was_stale(source, i))
                break;
            unsigned lost = atomic_fetch_add(&shared->lost, 1);
            if (lost < REPORTS_MAX)
                printf("lost: %s, round %u, byte %zu (page %zu + %zu, of writer %s): %u, not from %u to %u\n",
                       reader, round, at, at / PAGE, at % PAGE, writers[i % writer_count], bytes[at],
                       (uint8_t)lows[i], (uint8_t)high);
        }
    }
    atomic_fetch_add(&shared->checks, 1);
}

static void check_file(int fd, const uint8_t *mapping, uint8_t *buffer, const char *reader, unsigned round)
{
    const struct source source = {fd, round % 2 ? mapping : NULL};

    take_lows();
    if (round % 2)
        memcpy(buffer, mapping, size);
    else if (pread(fd, buffer, size, 0) != (ssize_t)size)
        die("pread");
    check(buffer, &source, reader, round);
}

static void store(volatile uint8_t *bytes, size_t run, uint32_t count)
{
    for (size_t at = run * grain; at < (run + 1) * grain; at++)
        bytes[at] = (uint8_t)count;
}

/* A process that knows nothing of devices, until the devices are done. */
static void cpu_writer(unsigned writer)
{
    int fd = open(path, O_RDWR);
    bool maps = !strcmp(writers[writer], "map");
    uint8_t *mapping, *buffer = malloc(size + grain);
    uint64_t state = seed + 1000 * writer + 1;

    if (fd < 0 || !buffer ||
        (mapping = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        die("map the file");
    for (unsigned round = 0; atomic_load(&shared->devices_left); round++) {
        for (size_t i = writer; i < runs; i += writer_count) {
            if (!maps && draw(&state, 4))
                continue;
            uint32_t count = atomic_load(&counts[i].started) + 1;
            atomic_store(&counts[i].started, count);
            if (maps) {
                store(mapping, i, count);
            } else {
                memset(buffer + size, (int)count, grain);
                if (pwrite(fd, buffer + size, grain, (off_t)(i * grain)) != (ssize_t)grain)
                    die("pwrite");
            }
            atomic_store(&counts[i].published, count);
        }
        check_file(fd, mapping, buffer, writers[writer], round);
        atomic_fetch_add(&shared->cpu_sweeps, 1);
    }
    check_file(fd, mapping, buffer, writers[writer], 0);
    check_file(fd, mapping, buffer, writers[writer], 1);
    exit(0);
}

static void device_writer(unsigned writer)
{
    int fd = open(path, O_RDWR);
    uint8_t *mapping, *bytes, *buffer = malloc(size);
    size_t *stored = malloc(runs * sizeof *stored);
    uint64_t state = seed + 1000 * writer + 1;
    struct gaia_device *device;

    if (fd < 0 || !buffer || !stored ||
        (mapping = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        die("map the file");
    if (gaia_device_open(writers[writer], &device))
        die(writers[writer]);
    bytes = gaia_mmap(device, size, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        die("gaia_mmap");
    for (unsigned round = 0; round <= rounds; round++) {
        size_t count = 0;
        if (round == rounds) { /* the last: the CPU's writers end, what they did must be seen */
            atomic_fetch_sub(&shared->devices_left, 1);
            while (atomic_load(&shared->devices_left))
                usleep(1000);
        }
        uint64_t rarity = 1 + draw(&state, 8);
        for (size_t i = writer; i < runs && round < rounds; i += writer_count) {
            if (draw(&state, rarity))
                continue;
            uint32_t value = atomic_load(&counts[i].started) + 1;
            atomic_store(&counts[i].started, value);
            store(bytes, i, value);
            stored[count++] = i;
        }
        if (gaia_mrelease(bytes, size, device))
            die("gaia_mrelease");
        for (size_t i = 0; i < count; i++)
            atomic_store(&counts[stored[i]].published, atomic_load(&counts[stored[i]].started));
        check_file(fd, mapping, buffer, "file", round);
        if (round % ACQUIRE_EVERY && round != rounds)
            continue;
        take_lows();
        if (gaia_macquire(bytes, size, device))
            die("gaia_macquire");
        memcpy(buffer, bytes, size);
        check(buffer, &(struct source){.fd = -1}, writers[writer], round);
    }
    exit(0);
}

int main(int argc, char **argv)
{
    int failed = 0;

    if (argc < 7 || argc > 6 + (int)WRITERS_MAX) {
        fprintf(stderr, "usage: %s FILE PAGES GRAIN ROUNDS SEED WRITER...\n", argv[0]);
        return 2;
    }
    path = argv[1];
    size = strtoul(argv[2], NULL, 10) * PAGE;
    grain = strtoul(argv[3], NULL, 10);
    rounds = (unsigned)strtoul(argv[4], NULL, 10);
    seed = strtoull(argv[5], NULL, 10);
    writers = argv + 6;
    writer_count = (unsigned)argc - 6;
    if (grain < 1 || grain > PAGE)
        die("GRAIN");
    runs = size / grain;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)size) || close(fd))
        die(path);
    shared = mmap(NULL, sizeof *shared + runs * sizeof *counts, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    lows = malloc(runs * sizeof *lows);
    if (shared == MAP_FAILED || !lows)
        die("memory");
    counts = (struct run_count *)(shared + 1);
    for (unsigned i = 0; i < writer_count; i++)
        shared->devices_left += is_device(i);
    for (unsigned i = 0; i < writer_count; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (child > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (is_device(i))
            device_writer(i);
        cpu_writer(i);
    }
    for (unsigned i = 0; i < writer_count; i++) {
        int status;
        if (wait(&status) < 0)
            die("wait");
        if (status) { /* the others would wait for ever */
            failed = 2;
            printf("a writer ended with status %#x\n", (unsigned)status);
            kill(0, SIGTERM);
        }
    }
    printf("lost %u; stale %u, checks %llu, sweeps of CPU writers %llu, bytes not checked %llu\n",
           shared->lost, shared->stale, (unsigned long long)shared->checks,
           (unsigned long long)shared->cpu_sweeps, (unsigned long long)shared->unchecked);
    return failed ? failed : shared->lost != 0;
}
