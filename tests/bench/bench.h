/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks of a mount share. Each is a program that prints one JSON object of times; bench.py
 * mounts, runs them and compares. None fails because of a time; all end with 1, and a message, when bytes are
 * wrong or a call fails. */
#ifndef GAIAFS_TESTS_BENCH_H
#define GAIAFS_TESTS_BENCH_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/gaia.h"

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...)
{
    va_list list;
    int error = errno;

    va_start(list, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, list);
    fprintf(stderr, " (%s)\n", strerror(error));
    va_end(list);
    exit(1);
}

static inline uint64_t now_ns(void)
{
    return clock_now_ns();
}

static inline double seconds(uint64_t since_ns)
{
    return (double)(now_ns() - since_ns) / 1e9;
}

static inline uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Word i of a page of every file that bench_file makes. */
static inline uint64_t pattern_word(uint64_t page, uint64_t i)
{
    return (page * 512 + i + 1) * 0x9e3779b97f4a7c15u;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The value below which `part` of the values lie; sorts them. */
static inline double quantile(double *values, size_t n, double part)
{
    qsort(values, n, sizeof values[0], compare_doubles);
    return n ? values[(size_t)((double)(n - 1) * part + 0.5)] : 0;
}

static inline double median(double *values, size_t n)
{
    return quantile(values, n, 0.5);
}

/* A part of a JSON object, in seconds. */
static inline void print_samples(const char *name, const double *samples, size_t n)
{
    printf("\"%s\": [", name);
    for (size_t i = 0; i < n; i++)
        printf("%s%.9f", i ? ", " : "", samples[i]);
    printf("], ");
}

static inline int open_file(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);

    if (fd < 0)
        die("%s", path);
    return fd;
}

static inline size_t file_size(int fd)
{
    struct stat st;

    if (fstat(fd, &st))
        die("fstat");
    return (size_t)st.st_size;
}

static inline struct gaia_device *open_device(void)
{
    struct gaia_device *device;

    if (gaia_device_open(NULL, &device))
        die("gaia_device_open");
    return device;
}

static inline void *map_file(struct gaia_device *device, int fd, size_t length, int prot)
{
    void *address = gaia_mmap(device, length, prot, GAIA_SHARED, fd, 0);

    if (address == MAP_FAILED)
        die("gaia_mmap of %zu bytes", length);
    return address;
}

static inline void advise(void *address, size_t length, int advice)
{
    if (gaia_madvise(address, length, advice))
        die("gaia_madvise %d", advice);
}

static inline void *new_memory(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        die("mmap of %zu bytes", length);
    return memory;
}

/* Touches a page and checks it against the pattern. */
static inline void check_page(const volatile uint8_t *base, uint64_t page)
{
    uint64_t word = *(const volatile uint64_t *)(base + page * PAGE);

    if (word != pattern_word(page, 0))
        die("wrong bytes in page %llu", (unsigned long long)page);
}

/* Brings bytes of a backing file into the host's memory: a machine may take away what has not been used for a
 * while. */
static inline void warm(int backing, uint64_t offset, size_t length)
{
    static uint8_t buffer[256 * 1024];

    for (size_t done = 0; done < length;) {
        size_t n = length - done < sizeof buffer ? length - done : sizeof buffer;
        ssize_t got = pread(backing, buffer, n, (off_t)(offset + done));
        if (got <= 0)
            die("pread of the backing file");
        done += (size_t)got;
    }
}

/* n different numbers below `below`, in no order. */
static inline void pick_distinct(uint64_t *state, uint32_t *out, size_t n, size_t below)
{
    uint8_t *taken = calloc(below, 1);

    if (!taken || n > below)
        die("pick %zu of %zu", n, below);
    for (size_t i = 0; i < n;) {
        uint32_t number = (uint32_t)(random_next(state) % below);
        if (!taken[number]) {
            taken[number] = 1;
            out[i++] = number;
        }
    }
    free(taken);
}

/* A counted argument: --name N. Takes it out of argv. */
static inline size_t option(int *argc, char **argv, const char *name, size_t otherwise)
{
    for (int i = 1; i + 1 < *argc; i++)
        if (!strcmp(argv[i], name)) {
            size_t value = strtoull(argv[i + 1], NULL, 10);
            memmove(&argv[i], &argv[i + 2], (size_t)(*argc - i - 1) * sizeof argv[0]);
            *argc -= 2;
            return value;
        }
    return otherwise;
}

#endif
