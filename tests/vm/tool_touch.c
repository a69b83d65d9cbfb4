/* SPDX-License-Identifier: Apache-2.0 */
/* Touches a file of a mount on $GAIA_DEVICE (soft:0), from several threads, and looks at every byte:
 * tool_touch MOUNT DATA SEED ROUNDS [NAME]. Each thread has pages of its own, every THREADS-th, so that units
 * are shared and what it expects is its own business. It loads, stores, releases, and acquires what it wrote
 * with write(). Ends with "touched: N loads" and 0, or says what was wrong. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gaia.h"
#include "tests/random.h"

#define PAGE 4096u
#define PAGES 1500u
#define THREADS 3u

static uint8_t expected[PAGES * PAGE];
static uint8_t *mapped;
static struct gaia_device *device;
static int fd;
static uint64_t seed;
static unsigned rounds;
static _Atomic unsigned loads, wrong;

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void round_of(unsigned thread, uint64_t *state)
{
    uint64_t at = (draw(state, PAGES / THREADS) * THREADS + thread) * PAGE + draw(state, PAGE / 2);
    size_t length = 1 + draw(state, PAGE / 2);
    uint64_t what = draw(state, 10);
    uint8_t *page = mapped + at / PAGE * PAGE;

    if (what < 6) {
        loads++;
        if (memcmp(mapped + at, expected + at, length)) {
            fprintf(stderr, "thread %u: other bytes at %llu\n", thread, (unsigned long long)at);
            wrong++;
        }
        return;
    }
    for (size_t i = 0; i < length; i++)
        expected[at + i] = (uint8_t)draw(state, 256);
    if (what < 8) {
        memcpy(mapped + at, expected + at, length);
        if (gaia_mrelease(page, PAGE, device))
            fail("gaia_mrelease");
    } else {
        if (pwrite(fd, expected + at, length, (off_t)at) != (ssize_t)length)
            fail("pwrite");
        if (gaia_macquire(page, PAGE, device))
            fail("gaia_macquire");
    }
}

static void *touch(void *argument)
{
    unsigned thread = (unsigned)(uintptr_t)argument;
    uint64_t state = seed + thread;

    for (unsigned i = 0; i < rounds && !wrong; i++)
        round_of(thread, &state);
    return NULL;
}

static void compare(const char *folder, const char *name)
{
    static uint8_t bytes[PAGES * PAGE];
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    int other = open(path, O_RDONLY);
    if (other < 0 || pread(other, bytes, sizeof bytes, 0) != sizeof bytes)
        fail(path);
    close(other);
    if (memcmp(bytes, expected, sizeof bytes)) {
        fprintf(stderr, "%s has other bytes\n", path);
        wrong++;
    }
}

int main(int argc, char **argv)
{
    const char *name = argc == 6 ? argv[5] : "touched";
    pthread_t threads[THREADS];
    char path[4096];

    if (argc != 5 && argc != 6)
        return 2;
    seed = strtoull(argv[3], NULL, 0);
    rounds = (unsigned)strtoul(argv[4], NULL, 0);
    uint64_t state = ~seed;
    for (size_t i = 0; i < sizeof expected; i++)
        expected[i] = (uint8_t)draw(&state, 256);
    snprintf(path, sizeof path, "%s/%s", argv[1], name);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || pwrite(fd, expected, sizeof expected, 0) != sizeof expected)
        fail(path);
    if (gaia_device_open(getenv("GAIA_DEVICE") ? NULL : "soft:0", &device))
        fail("gaia_device_open");
    mapped = gaia_mmap(device, sizeof expected, PROT_READ | PROT_WRITE, 0, fd, 0);
    if (mapped == MAP_FAILED)
        fail("gaia_mmap");
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, touch, (void *)(uintptr_t)i))
            fail("pthread_create");
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (gaia_mrelease(mapped, sizeof expected, device) || fsync(fd))
        fail("the last release");
    compare(argv[1], name);
    compare(argv[2], name);
    gaia_munmap(mapped, sizeof expected);
    gaia_device_close(device);
    printf("touched: %u loads, %u wrong\n", loads, wrong);
    return wrong != 0;
}
