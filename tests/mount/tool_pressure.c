/* SPDX-License-Identifier: Apache-2.0 */
/* A file far larger than the device's memory, stored to at random by several threads while a CPU writes other
 * bytes of the same pages: nothing is lost.
 *
 * usage: tool_pressure FILE MIB THREADS STORES SEED
 *
 * Byte i belongs to writer i % (THREADS + 1); the last writer is the CPU. Every thread knows what its bytes
 * are, looks at them now and then through the device, and releases ranges. Exit status: 0, nothing was lost;
 * 1, something was, it says what; 2, a call failed. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "gaia.h"
#include "tests/mount/tool.h"

#define THREADS_MAX 16u
#define REPORTS_MAX 10u

static struct gaia_device *device;
static volatile uint8_t *bytes;
static uint8_t *expected; /* byte i is touched by its own writer only */
static size_t size;
static unsigned writers, stores;
static uint64_t seed;
static int fd;
static _Atomic unsigned lost;

static void report(const char *reader, size_t at, uint8_t seen)
{
    if (atomic_fetch_add(&lost, 1) < REPORTS_MAX)
        printf("lost: %s, page %zu byte %zu (writer %zu): %u, not %u\n", reader, at / PAGE, at % PAGE,
               at % writers, seen, expected[at]);
}

static size_t own_byte(uint64_t *state, unsigned writer)
{
    size_t at = draw(state, size) / writers * writers + writer;

    return at < size ? at : writer;
}

static void *device_thread(void *argument)
{
    unsigned writer = (unsigned)(uintptr_t)argument;
    uint64_t state = seed + 977 * writer + 1;

    for (unsigned i = 0; i < stores; i++) {
        size_t at = own_byte(&state, writer);
        if (bytes[at] != expected[at])
            report("device", at, bytes[at]);
        bytes[at] = ++expected[at];
        if (draw(&state, 64))
            continue;
        size_t start = at / PAGE * PAGE, length = 1 + draw(&state, size - start);
        if (draw(&state, 4) ? gaia_mrelease((void *)(bytes + start), length, device)
                            : gaia_macquire((void *)(bytes + start), length, device))
            die("gaia_mrelease, gaia_macquire");
    }
    return NULL;
}

static void *cpu_thread(void *argument)
{
    unsigned writer = writers - 1;
    uint64_t state = seed + 977 * writer + 1;

    (void)argument;
    for (unsigned i = 0; i < stores; i++) {
        size_t at = own_byte(&state, writer);
        uint8_t value, next = ++expected[at];
        if (pread(fd, &value, 1, (off_t)at) != 1)
            die("pread");
        if (value != (uint8_t)(next - 1))
            report("file", at, value);
        if (pwrite(fd, &next, 1, (off_t)at) != 1)
            die("pwrite");
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];

    if (argc != 6) {
        fprintf(stderr, "usage: %s FILE MIB THREADS STORES SEED\n", argv[0]);
        return 2;
    }
    size = strtoul(argv[2], NULL, 10) << 20;
    writers = (unsigned)strtoul(argv[3], NULL, 10) + 1;
    stores = (unsigned)strtoul(argv[4], NULL, 10);
    seed = strtoull(argv[5], NULL, 10);
    expected = malloc(size);
    static uint8_t *seen; /* static, as `expected` is: both are needed to the end */
    seen = malloc(size);
    fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (!expected || !seen || fd < 0 || writers > THREADS_MAX)
        die(argv[1]);
    uint64_t state = seed + 1;
    for (size_t i = 0; i < size; i++)
        expected[i] = (uint8_t)draw(&state, 256);
    if (pwrite(fd, expected, size, 0) != (ssize_t)size)
        die("pwrite");
    if (gaia_device_open(NULL, &device))
        die("gaia_device_open");
    bytes = gaia_mmap(device, size, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        die("gaia_mmap");
    for (unsigned i = 0; i < writers; i++)
        if (pthread_create(&threads[i], NULL, i == writers - 1 ? cpu_thread : device_thread,
                           (void *)(uintptr_t)i))
            die("pthread_create");
    for (unsigned i = 0; i < writers; i++)
        pthread_join(threads[i], NULL);
    if (gaia_mrelease((void *)bytes, size, device))
        die("gaia_mrelease");
    if (pread(fd, seen, size, 0) != (ssize_t)size)
        die("pread");
    for (size_t i = 0; i < size; i++)
        if (seen[i] != expected[i])
            report("file at the end", i, seen[i]);
    if (gaia_macquire((void *)bytes, size, device))
        die("gaia_macquire");
    memcpy(seen, (const void *)bytes, size);
    for (size_t i = 0; i < size; i++)
        if (seen[i] != expected[i])
            report("device at the end", i, seen[i]);
    printf("lost %u\n", lost);
    return lost != 0;
}
