// SPDX-License-Identifier: Apache-2.0
/* A program with a file that is mapped on demand on a GPU: the stand-in's, whose kernels are threads here.
 * What a warp's lane would do with a gaia_view, a thread does.
 *
 * usage: tool_demand FILE DEVICE read|write [small] [LENGTH]
 *
 * Commands on standard input, an answer on standard output to each ("ok", a value, or "error ERRNO"):
 *   load OFFSET LENGTH       -> the bytes, in hex
 *   store OFFSET HEX
 *   pin OFFSET LENGTH        -> the bytes, through pins
 *   acquire, release, sync, acquire-on, bye
 *   release, unmap, dontneed OFFSET LENGTH
 *   acquires THREADS ROUNDS  each thread acquires a unit of its own, all at once: "ok", or an error
 *   size                     -> of views of bytes, and of words of 8
 *   sum                      -> of the bytes of all the view, and its errors
 *   stress THREADS OPERATIONS SEED SPAN
 *                            each thread loads and stores bytes of its own (offset % THREADS) in [0, SPAN),
 *                            and knows what they are: "ok", or what was wrong
 *   error                    -> the view's, and forgets it not
 *   counters                 -> faults pulled fetched evicted given kept frames units */
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "gpu/gaia.h"
#include "gpu/gaia_device.cuh"
#include "tests/random.h"

static struct gaia_device *device;
static void *address;
static size_t length;
static struct gaia_demand parameters;
static const struct gaia_demand *parameters_there;

static gaia_view<uint8_t> view()
{
    return gaia_view<uint8_t>(parameters, parameters_there);
}

static int answer(int result)
{
    if (result)
        printf("error %d\n", errno);
    else
        printf("ok\n");
    return 0;
}

static void print_hex(const std::vector<uint8_t> &bytes)
{
    for (uint8_t byte : bytes)
        printf("%02x", byte);
    printf("\n");
}

static void load(uint64_t offset, uint64_t n)
{
    std::vector<uint8_t> bytes;

    for (uint64_t i = offset; i < offset + n; i++)
        bytes.push_back(view().load(i));
    print_hex(bytes);
}

static void load_pinned(uint64_t offset, uint64_t n)
{
    std::vector<uint8_t> bytes;

    for (uint64_t i = offset; i < offset + n;) {
        gaia_pin<const uint8_t> pin = view().pin(i);
        if (!pin)
            break;
        for (; i < offset + n && i < pin.end(); i++)
            bytes.push_back(pin[i]);
    }
    print_hex(bytes);
}

static void store(uint64_t offset, const char *hex)
{
    for (; hex[0] && hex[1]; hex += 2, offset++) {
        char digits[3] = {hex[0], hex[1], 0};
        view().store(offset, (uint8_t)strtoul(digits, nullptr, 16));
    }
    answer(0);
}

static void sum(void)
{
    gaia_view<uint8_t> all = view();
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < all.size(); i++)
        bytes += all.load(i);
    printf("%" PRIu64 " %u\n", bytes, all.error());
}

static void play(unsigned me, unsigned threads, uint64_t operations, uint64_t seed, uint64_t span,
                 std::string *wrong)
{
    std::vector<int> known(span / threads + 1, -1); /* -1: what the file had, which is not known */
    gaia_view<uint8_t> mine = view();
    uint64_t state = seed * 1000 + me;

    for (uint64_t i = 0; i < operations && wrong->empty(); i++) {
        uint64_t n = draw(&state, span / threads), at = n * threads + me;
        bool stores = draw(&state, 2);
        if (stores) {
            uint8_t value = (uint8_t)draw(&state, 256);
            mine.store(at, value);
            known[n] = value;
        } else {
            uint8_t value = mine.load(at);
            if (known[n] >= 0 && value != known[n])
                *wrong = "byte " + std::to_string(at) + " is " + std::to_string(value) + ", not " +
                         std::to_string(known[n]);
        }
    }
    /* For whoever looks at the file afterwards: bytes with a value that can be told. */
    for (uint64_t n = 0; n < span / threads; n += 97)
        mine.store(n * threads + me, (uint8_t)(n * threads + me + seed));
}

static void stress(unsigned threads, uint64_t operations, uint64_t seed, uint64_t span)
{
    std::vector<std::thread> running;
    std::vector<std::string> wrong(threads);

    for (unsigned t = 0; t < threads; t++)
        running.emplace_back(play, t, threads, operations, seed, span, &wrong[t]);
    for (std::thread &thread : running)
        thread.join();
    for (const std::string &what : wrong) {
        if (what.empty())
            continue;
        printf("%s\n", what.c_str());
        return;
    }
    answer(0);
}

static void acquire_rounds(unsigned me, uint64_t rounds, int *wrong)
{
    const size_t unit = 64 << 10;

    for (uint64_t i = 0; i < rounds && !*wrong; i++)
        if (gaia_macquire((char *)address + me * unit, unit, device))
            *wrong = errno;
}

static void acquire_at_once(unsigned threads, uint64_t rounds)
{
    std::vector<std::thread> running;
    std::vector<int> wrong(threads);

    for (unsigned t = 0; t < threads; t++)
        running.emplace_back(acquire_rounds, t, rounds, &wrong[t]);
    for (std::thread &thread : running)
        thread.join();
    for (int error : wrong) {
        if (!error)
            continue;
        errno = error;
        answer(-1);
        return;
    }
    answer(0);
}

static void serve(const char *line)
{
    uint64_t a = 0, b = 0, c = 0, d = 0;
    static char hex[65536];

    if (sscanf(line, "load %" SCNu64 " %" SCNu64, &a, &b) == 2)
        load(a, b);
    else if (sscanf(line, "pin %" SCNu64 " %" SCNu64, &a, &b) == 2)
        load_pinned(a, b);
    else if (sscanf(line, "store %" SCNu64 " %65535s", &a, hex) == 2)
        store(a, hex);
    else if (sscanf(line, "stress %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c, &d) == 4)
        stress((unsigned)a, b, c, d);
    else if (sscanf(line, "release %" SCNu64 " %" SCNu64, &a, &b) == 2)
        answer(gaia_mrelease((char *)address + a, b, device));
    else if (sscanf(line, "unmap %" SCNu64 " %" SCNu64, &a, &b) == 2)
        answer(gaia_munmap((char *)address + a, b));
    else if (sscanf(line, "dontneed %" SCNu64 " %" SCNu64, &a, &b) == 2)
        answer(gaia_madvise((char *)address + a, b, GAIA_ADV_DONTNEED));
    else if (sscanf(line, "acquires %" SCNu64 " %" SCNu64, &a, &b) == 2)
        acquire_at_once((unsigned)a, b);
    else if (!strcmp(line, "size"))
        printf("%" PRIu64 " %" PRIu64 "\n", view().size(),
               gaia_view<uint64_t>(parameters, parameters_there).size());
    else if (!strcmp(line, "sum"))
        sum();
    else if (!strcmp(line, "acquire"))
        answer(gaia_macquire(address, length, device));
    else if (!strcmp(line, "release"))
        answer(gaia_mrelease(address, length, device));
    else if (!strcmp(line, "sync"))
        answer(gaia_msync(address, length, MS_SYNC));
    else if (!strcmp(line, "acquire-on"))
        answer(gaia_macquire_on(address, length, device, nullptr));
    else if (!strcmp(line, "error"))
        printf("%u\n", view().error());
    else if (!strcmp(line, "counters"))
        printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %u %u\n",
               parameters.control->faults, parameters.control->pulled, parameters.control->fetched,
               parameters.control->evicted, parameters.control->given, parameters.control->kept,
               parameters.frames_count, parameters.units);
    else
        printf("what?\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char line[140000];
    struct stat st;

    if (argc < 4)
        return 2;
    bool writes = !strcmp(argv[3], "write"), small = argc > 4 && !strcmp(argv[4], "small");
    int fd = open(argv[1], writes ? O_RDWR : O_RDONLY);
    if (fd < 0 || fstat(fd, &st) || gaia_device_open(argv[2], &device)) {
        answer(-1);
        return 1;
    }
    length = atoll(argv[argc - 1]) ? (size_t)atoll(argv[argc - 1]) : (size_t)st.st_size;
    address = gaia_mmap(device, length, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                        GAIA_DEMAND | (small ? GAIA_SMALL_UNITS : 0), fd, 0);
    close(fd);
    if (address == MAP_FAILED || gaia_demand_parameters(address, &parameters, &parameters_there)) {
        answer(-1);
        return 1;
    }
    answer(0);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (!strcmp(line, "bye"))
            break;
        if (!strcmp(line, "exit"))
            return 0;
        serve(line);
    }
    if (gaia_munmap(address, length))
        return 1;
    gaia_device_close(device);
    return 0;
}
