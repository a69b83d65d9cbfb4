/* SPDX-License-Identifier: Apache-2.0 */
/* What the example programs share: clear errors, numbers from the command line, random numbers, the device's
 * counters. Exit codes of all examples: 0, all is well; 1, a result is wrong; 2, it could not be done (usage,
 * an error). */
#ifndef GAIAFS_EXAMPLES_COMMON_H
#define GAIAFS_EXAMPLES_COMMON_H

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gaia.h"

enum { EXIT_WRONG = 1, EXIT_ERROR = 2 };

/* Say what went wrong (and why, unless error is 0) and exit. */
__attribute__((noreturn, format(printf, 2, 3))) static inline void fail(int error, const char *format, ...)
{
    va_list arguments;

    fflush(stdout);
    va_start(arguments, format);
    if (error == 0)
        verrx(EXIT_ERROR, format, arguments);
    errno = error;
    verr(EXIT_ERROR, format, arguments);
}

/* A whole number of at most `most` from the command line. */
static inline uint64_t parse_number(const char *name, const char *text, uint64_t most)
{
    char *end;
    unsigned long long number;

    errno = 0;
    number = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || *text == '-' || number > most)
        fail(0, "%s: a whole number from 0 to %ju is needed, not '%s'", name, (uintmax_t)most, text);
    return number;
}

static inline uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Everything that was printed has been written, or the program says so: a full disk is an error, too. */
static inline void finish_output(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(errno, "standard output");
}

static inline struct gaia_device *open_device(const char *name)
{
    struct gaia_device *device;

    if (gaia_device_open(name, &device) != 0)
        fail(errno, "cannot open the device %s", name != NULL ? name : "(default)");
    return device;
}

/* Map the first `length` bytes of an open file, for reading only unless `prot` says more. */
static inline void *map_on_device(struct gaia_device *device, int fd, const char *path, size_t length,
                                  int prot)
{
    void *map = gaia_mmap(device, length, prot, GAIA_SHARED, fd, 0);

    if (map == MAP_FAILED && errno == ENODEV)
        fail(0, "%s: not a regular file of a gaiafs mount, or the mount has no such device", path);
    if (map == MAP_FAILED)
        fail(errno, "%s: cannot map it into the device", path);
    return map;
}

/* Bytes moved into the device so far. Something must be mapped. */
static inline uint64_t bytes_moved_in(struct gaia_device *device)
{
    struct gaia_stat stat;

    if (gaia_stat(device, &stat) != 0)
        fail(errno, "cannot read the device's counters");
    return stat.bytes_in;
}

/* Open a regular file and give its state. */
static inline int open_regular(const char *path, int flags, struct stat *stat_out)
{
    int fd = open(path, flags | O_CLOEXEC);

    if (fd < 0)
        fail(errno, "%s", path);
    if (fstat(fd, stat_out) != 0)
        fail(errno, "%s", path);
    if (!S_ISREG(stat_out->st_mode))
        fail(0, "%s: not a regular file", path);
    return fd;
}

/* The whole of [0, length) with plain read(), as a program does that knows nothing of devices. */
static inline void read_fully(int fd, const char *path, void *buffer, size_t length, off_t offset)
{
    size_t done = 0;

    while (done < length) {
        ssize_t got = pread(fd, (char *)buffer + done, length - done, offset + (off_t)done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail(errno, "%s: read", path);
        if (got == 0)
            fail(0, "%s: ends at byte %ju, but %ju bytes were expected", path, (uintmax_t)offset + done,
                 (uintmax_t)offset + length);
        done += (size_t)got;
    }
}

static inline void write_fully(int fd, const char *path, const void *buffer, size_t length, off_t offset)
{
    size_t done = 0;

    while (done < length) {
        ssize_t put = pwrite(fd, (const char *)buffer + done, length - done, offset + (off_t)done);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            fail(errno, "%s: write", path);
        done += (size_t)put;
    }
}

static inline void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);

    if (memory == NULL)
        fail(errno, "no memory for %zu × %zu bytes", count, size);
    return memory;
}

/* Random numbers that are the same on every machine (splitmix64). */
static inline uint64_t random_number(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

#endif
