/* SPDX-License-Identifier: Apache-2.0 */
/* A device program to be killed: faults, stores, releases and acquires at random from two threads, until
 * then.
 *
 * usage: tool_busy FILE DEVICE SEED; it prints "ready" once it has mapped the file. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"
#include "tests/mount/tool.h"

static struct gaia_device *device;
static volatile uint8_t *bytes;
static size_t size;
static uint64_t seed;

static void *kernel(void *argument)
{
    uint64_t state = seed * 31 + (uintptr_t)argument + 1;

    for (;;) {
        size_t at = draw(&state, size);
        switch (draw(&state, 8)) {
        case 0:
            if (gaia_mrelease((void *)bytes, size, device))
                perror("gaia_mrelease");
            break;
        case 1:
            if (gaia_macquire((void *)(bytes + at / PAGE * PAGE), PAGE, device))
                perror("gaia_macquire");
            break;
        default:
            for (unsigned i = 0; i < 20; i++)
                bytes[draw(&state, size)]++;
            break;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct stat status;
    pthread_t thread;
    int fd = argc == 4 ? open(argv[1], O_RDWR) : -1;

    if (fd < 0 || fstat(fd, &status) || gaia_device_open(argv[2], &device)) {
        perror("tool_busy FILE DEVICE SEED");
        return 2;
    }
    size = (size_t)status.st_size;
    seed = strtoull(argv[3], NULL, 10);
    bytes = gaia_mmap(device, size, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        perror("gaia_mmap");
        return 2;
    }
    puts("ready");
    fflush(stdout);
    if (pthread_create(&thread, NULL, kernel, (void *)(uintptr_t)1))
        return 2;
    kernel(NULL);
    return 0;
}
