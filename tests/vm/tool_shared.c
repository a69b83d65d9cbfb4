/* SPDX-License-Identifier: Apache-2.0 */
/* Who may have a file of a shared data directory on a device.
 *
 * tool_shared turns A B DATA SEED: two mounts with -o shared. By turns one of them has a file on soft:0, with
 * what the other has written before; meanwhile the other can't map it. Ends with a line "nfs test shared: ok"
 * or "nfs test shared: failed: ...".
 * tool_shared map PATH SECONDS HOLD NAME: tries for so long to map a file, loads a byte of it, and keeps it
 * mapped for HOLD seconds. Says "nfs test NAME: ok", and when it was mapped. */
#include <stdbool.h>
#include <sys/mman.h>

#include "gaia.h"
#include "nodes_tool.h"

#define PAGES 32u
#define BYTES (PAGES * PAGE)
#define ROUNDS 12u
#define WAIT_US 5000000u /* for the other mount to write what it had */

static const char *mounts[2];
static struct gaia_device *device;
static uint8_t expected[BYTES];
static uint64_t state;

static uint8_t *map(int fd)
{
    return gaia_mmap(device, BYTES, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
}

static void change(uint8_t *bytes, int fd)
{
    for (unsigned n = 0; n < 20; n++) {
        size_t at = draw(&state, BYTES);
        expected[at] = (uint8_t)draw(&state, 256);
        if (n % 2)
            bytes[at] = expected[at];
        else if (pwrite(fd, expected + at, 1, (off_t)at) != 1)
            fail("pwrite");
    }
}

static const char *turn(unsigned who)
{
    int fd = open_in(mounts[who], "shared", O_RDWR), other = open_in(mounts[!who], "shared", O_RDWR);
    uint64_t began_us = now_us();
    uint8_t *bytes = map(fd);

    while (bytes == MAP_FAILED && errno == EBUSY && now_us() - began_us < WAIT_US) {
        usleep(10000);
        bytes = map(fd);
    }
    if (bytes == MAP_FAILED)
        return strerror(errno);
    if (gaia_macquire(bytes, BYTES, device))
        return "gaia_macquire";
    if (memcmp(bytes, expected, BYTES) != 0)
        return "not what the other has written";
    if (map(other) != MAP_FAILED || errno != EBUSY)
        return "mapped through both";
    change(bytes, fd);
    if (gaia_mrelease(bytes, BYTES, device) || gaia_munmap(bytes, BYTES))
        return "gaia_mrelease, gaia_munmap";
    return close(fd) || close(other) ? "close" : NULL;
}

static int turns(char **argv)
{
    mounts[0] = argv[0];
    mounts[1] = argv[1];
    state = strtoull(argv[3], NULL, 0);
    for (size_t i = 0; i < BYTES; i++)
        expected[i] = (uint8_t)draw(&state, 256);
    char path[4200];
    snprintf(path, sizeof path, "%s/shared", argv[2]);
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0644);
    if (fd < 0 || write(fd, expected, BYTES) != (ssize_t)BYTES || close(fd))
        fail(path);
    const char *problem = NULL;
    unsigned round = 0;
    for (; round < ROUNDS && !problem; round++)
        problem = turn(round % 2);
    printf("nfs test shared: %s%s (%u turns)\n", problem ? "failed: " : "ok", problem ? problem : "", round);
    return problem != NULL;
}

/* Each try opens the file anew: its home may have gone. */
static int map_once(const char *path)
{
    int fd = open(path, O_RDWR), error = 0;
    uint8_t *bytes =
        fd < 0 ? MAP_FAILED : gaia_mmap(device, PAGE, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);

    if (bytes == MAP_FAILED || gaia_macquire(bytes, PAGE, device))
        error = errno;
    if (fd >= 0)
        close(fd);
    if (bytes != MAP_FAILED && error)
        gaia_munmap(bytes, PAGE);
    return error;
}

static int map_in_time(char **argv)
{
    uint64_t began_us = now_us(), limit_us = strtoull(argv[1], NULL, 0) * 1000000;
    int error;

    while ((error = map_once(argv[0])) && now_us() - began_us < limit_us)
        usleep(200000);
    printf("nfs test %s: %s%s (after %.1f s)\n", argv[3], error ? "failed: " : "ok",
           error ? strerror(error) : "", (double)(now_us() - began_us) / 1e6);
    fflush(stdout);
    sleep((unsigned)strtoul(argv[2], NULL, 0));
    return error != 0;
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    if (gaia_device_open("soft:0", &device))
        fail("soft:0");
    return strcmp(argv[1], "map") ? turns(argv + 2) : map_in_time(argv + 2);
}
