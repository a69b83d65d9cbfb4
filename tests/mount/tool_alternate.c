/* SPDX-License-Identifier: Apache-2.0 */
/* Rule 2: a CPU and a device write alternate bytes of the same pages in turn, release many times, and lose
 * nothing.
 *
 * usage: tool_alternate FILE DEVICE ROUNDS SEED
 *
 * One process and no races, so that every byte has exactly one right value at every step. A round: the CPU
 * writes some of the even bytes (a byte, a run over its own odd neighbours' last released values, or a whole
 * page), the device stores to some of the odd ones, releases, and the file is read. Now and then the device
 * acquires and must see all. Exit status: 0, nothing was lost; 1, something was, it says what; 2, a call
 * failed. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "gaia.h"
#include "tests/mount/tool.h"

#define PAGES 3u
#define SIZE (PAGES * PAGE)
#define REPORTS_MAX 10u

static uint8_t expected[SIZE], seen[SIZE];
static bool unseen[SIZE]; /* by the device: odd bytes that the CPU wrote since the last acquire */
static uint64_t random_state;
static unsigned lost;

static void compare(const char *reader, unsigned round)
{
    for (unsigned i = 0; i < SIZE; i++)
        if (seen[i] != expected[i] && lost++ < REPORTS_MAX)
            printf("lost: %s, round %u, page %u byte %u: %u, not %u\n", reader, round, i / PAGE, i % PAGE,
                   seen[i], expected[i]);
}

/* Plain writes; what the device stored has been released. */
static void cpu_round(int fd)
{
    unsigned start = (unsigned)draw(&random_state, SIZE), length = 1;

    switch (draw(&random_state, 4)) {
    case 0:
        start = start / PAGE * PAGE;
        length = PAGE;
        break;
    case 1:
        length = 1 + (unsigned)draw(&random_state, SIZE - start < 300 ? SIZE - start : 300);
        break;
    default:
        start &= ~1u;
        break;
    }
    for (unsigned i = start; i < start + length; i++) {
        expected[i]++;
        unseen[i] = true;
    }
    if (pwrite(fd, expected + start, length, start) != (ssize_t)length)
        die("pwrite");
}

static void device_round(volatile uint8_t *bytes)
{
    unsigned stores = 1 + (unsigned)draw(&random_state, 64);

    while (stores--) {
        unsigned i = (unsigned)draw(&random_state, SIZE) | 1u;
        if (!unseen[i])
            bytes[i] = ++expected[i];
    }
}

int main(int argc, char **argv)
{
    struct gaia_device *device;

    if (argc != 5) {
        fprintf(stderr, "usage: %s FILE DEVICE ROUNDS SEED\n", argv[0]);
        return 2;
    }
    unsigned rounds = (unsigned)strtoul(argv[3], NULL, 10);
    random_state = strtoull(argv[4], NULL, 10) * 2 + 1;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || pwrite(fd, expected, SIZE, 0) != (ssize_t)SIZE)
        die(argv[1]);
    if (gaia_device_open(argv[2], &device))
        die(argv[2]);
    uint8_t *bytes = gaia_mmap(device, SIZE, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        die("gaia_mmap");
    for (unsigned round = 0; round < rounds; round++) {
        bool device_first = draw(&random_state, 2);
        if (device_first)
            device_round(bytes);
        if (device_first && draw(&random_state, 2) && gaia_mrelease(bytes, SIZE, device))
            die("gaia_mrelease");
        else if (!device_first)
            cpu_round(fd);
        if (!device_first)
            device_round(bytes);
        if (gaia_mrelease(bytes, SIZE, device))
            die("gaia_mrelease");
        if (device_first)
            cpu_round(fd);
        if (pread(fd, seen, SIZE, 0) != (ssize_t)SIZE)
            die("pread");
        compare("file", round);
        for (unsigned i = 1; i < SIZE; i += 2) /* its own stores, whatever became of the page */
            seen[i] = unseen[i] ? seen[i] : bytes[i];
        compare("device, own bytes", round);
        if (draw(&random_state, 8))
            continue;
        if (gaia_macquire(bytes, SIZE, device))
            die("gaia_macquire");
        memset(unseen, 0, sizeof unseen);
        memcpy(seen, bytes, SIZE);
        compare("device, acquired", round);
    }
    printf("lost %u\n", lost);
    return lost != 0;
}
