/* SPDX-License-Identifier: Apache-2.0 */
/* Brings a device into a state and keeps it while somebody looks at the mount's statistics: a line "ready",
 * then until the end of input.
 *
 * read      every page is resident, none was stored to
 * sparse    --pages N single pages at random are resident
 * stored    every page was stored to and not released
 * released  and released
 * collected and read by a CPU after it
 *
 * bench_resident FILE STATE [--pages N] */
#include "tests/bench/bench.h"

static void touch_random(uint8_t *base, size_t length, size_t n)
{
    uint64_t random = 5;

    advise(base, length, GAIA_ADV_RANDOM);
    for (size_t i = 0; i < n; i++) {
        uint64_t page = random_next(&random) % (length / PAGE);
        (void)*(volatile uint8_t *)(base + page * PAGE);
    }
}

static void read_all(int fd, size_t length)
{
    static uint8_t buffer[MIB];

    for (size_t at = 0; at < length;) {
        ssize_t got = pread(fd, buffer, sizeof buffer, (off_t)at);
        if (got <= 0)
            die("pread");
        for (size_t i = 0; i < (size_t)got; i += PAGE)
            if (*(uint64_t *)(void *)(buffer + i) != ~pattern_word((at + i) / PAGE, 0))
                die("a CPU does not see what the device released in page %zu", (at + i) / PAGE);
        at += (size_t)got;
    }
}

int main(int argc, char **argv)
{
    size_t pages = option(&argc, argv, "--pages", 4096);
    char byte;

    if (argc != 3) {
        fprintf(stderr, "usage: bench_resident FILE read|sparse|stored|released|collected [--pages N]\n");
        return 2;
    }
    const char *state = argv[2];
    int fd = open_file(argv[1], O_RDWR);
    size_t length = file_size(fd) / PAGE * PAGE;
    struct gaia_device *device = open_device();
    uint8_t *base = map_file(device, fd, length, PROT_READ | PROT_WRITE);
    if (!strcmp(state, "sparse")) {
        touch_random(base, length, pages);
    } else if (!strcmp(state, "read")) {
        for (size_t page = 0; page < length / PAGE; page++)
            check_page(base, page);
    } else {
        for (size_t page = 0; page < length / PAGE; page++)
            *(volatile uint64_t *)(base + page * PAGE) = ~pattern_word(page, 0);
        if (strcmp(state, "stored") && gaia_mrelease(base, length, device))
            die("gaia_mrelease");
        if (!strcmp(state, "collected"))
            read_all(fd, length);
    }
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    gaia_device_close(device);
    close(fd);
    return 0;
}
