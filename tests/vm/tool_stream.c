/* SPDX-License-Identifier: Apache-2.0 */
/* How fast faults of soft:0 are served: tool_stream MOUNT BYTES UNIT THREADS [NAME]. A file of so many bytes
 * is written through the mount, so that it is in the host's memory, then each thread touches a byte of every
 * unit of its share, in no order, so that nothing is read ahead. Prints one line of JSON: bytes a second of
 * all, and the median of a touch in microseconds. The mount has unit=UNIT and room for the file. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "gaia.h"

#define THREADS_MAX 64u

static volatile uint8_t *mapped;
static uint64_t bytes, unit;
static unsigned threads;
static double *took_us;
static uint32_t *order;

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double now_s(void)
{
    return (double)clock_now_ns() * 1e-9;
}

static uint8_t byte_of(uint64_t i)
{
    return (uint8_t)(i * 31 + 7);
}

static void *touch(void *argument)
{
    uint64_t first = (uint64_t)(uintptr_t)argument, units = bytes / unit;

    for (uint64_t turn = first; turn < units; turn += threads) {
        uint64_t i = order[turn];
        double since = now_s();
        if (mapped[i * unit] != byte_of(i)) {
            fprintf(stderr, "unit %llu has another byte\n", (unsigned long long)i);
            exit(1);
        }
        took_us[i] = (now_s() - since) * 1e6;
    }
    return NULL;
}

static void shuffle(void)
{
    uint64_t x = 88172645463325252u; /* xorshift64 */

    for (uint32_t i = 0; i < bytes / unit; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint32_t at = (uint32_t)(x % (i + 1));
        order[i] = order[at];
        order[at] = i;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    struct gaia_device *device;
    pthread_t ids[THREADS_MAX];
    char path[4096];

    if (argc != 5 && argc != 6)
        return 2;
    bytes = strtoull(argv[2], NULL, 0);
    unit = strtoull(argv[3], NULL, 0);
    threads = (unsigned)strtoul(argv[4], NULL, 0);
    if (!unit || bytes < unit || !threads || threads > THREADS_MAX)
        return 2;
    took_us = calloc(bytes / unit, sizeof *took_us);
    order = calloc(bytes / unit, sizeof *order);
    uint8_t *content = malloc(bytes);
    if (!took_us || !order || !content)
        fail("memory");
    shuffle();
    memset(content, 1, bytes); /* of memory that nobody has touched FUSE writes a part of a page at a time */
    for (uint64_t i = 0; i < bytes / unit; i++)
        content[i * unit] = byte_of(i);
    snprintf(path, sizeof path, "%s/%s", argv[1], argc == 6 ? argv[5] : "streamed");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || pwrite(fd, content, bytes, 0) != (ssize_t)bytes)
        fail(path);
    free(content);
    if (gaia_device_open("soft:0", &device))
        fail("gaia_device_open");
    uint8_t *pointer = gaia_mmap(device, bytes, PROT_READ, 0, fd, 0);
    if (pointer == MAP_FAILED)
        fail("gaia_mmap");
    mapped = pointer;
    double since = now_s();
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, touch, (void *)(uintptr_t)i))
            fail("pthread_create");
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    double took_s = now_s() - since;
    qsort(took_us, bytes / unit, sizeof *took_us, by_value);
    printf("{\"bytes_per_s\": %.0f, \"p50_us\": %.1f}\n", (double)bytes / took_s, took_us[bytes / unit / 2]);
    gaia_munmap(pointer, bytes);
    gaia_device_close(device);
    return 0;
}
