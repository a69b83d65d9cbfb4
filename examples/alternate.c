/* SPDX-License-Identifier: Apache-2.0 */
/* alternate: one writer of every second byte of a file; two of them, at the same time, share every page of
 * it.
 *
 *   alternate --device NAME | --cpu | --cpu-mmap  --odd | --even  [--seconds S] FILE
 *   alternate --check --odd-round N --even-round N FILE
 *
 * --device    stores through gaia_mmap(), between gaia_macquire() and gaia_mrelease(), as a GPU kernel would
 * --cpu       a legacy program: pwrite() of one byte at a time
 * --cpu-mmap  a legacy program: stores through an ordinary mmap() of the file
 * --check     compares every byte with what the last round of its writer wrote
 *
 * A writer goes on for S seconds (3), and gives its bytes new values in each round. After each round it reads
 * the file with plain read() and checks that all of its own bytes are there: a lost byte ends it with exit
 * code 1. At the end it prints "rounds=N start_ms=T end_ms=T": N is what --check needs, the times show
 * whether two writers overlapped.
 *
 * The byte at offset o is, after round r, (167 o + 13 (o / 256) + 7 (o / 65536) + 101 r + 1) modulo 256.
 */
#include <getopt.h>

#include "common.h"

enum { STRIDE = 2 };

struct writer {
    const char *path;
    int fd;
    size_t length;
    size_t first; /* 1: the odd bytes, 0: the even ones */
    uint64_t until_ms;
    unsigned char *buffer; /* what read() found, `length` bytes */
    struct gaia_device *device;
    unsigned char *map; /* the device's, or the CPU's */
};

static unsigned char value(size_t offset, uint64_t round)
{
    return (unsigned char)(offset * 167 + offset / 256 * 13 + offset / 65536 * 7 + round * 101 + 1);
}

/* How many bytes, of every second from `first` on, are not those of the round. The first bad one is said. */
static size_t count_wrong(const unsigned char *bytes, size_t length, size_t first, uint64_t round,
                          const char *where)
{
    size_t wrong = 0;

    for (size_t i = first; i < length; i += STRIDE) {
        if (bytes[i] == value(i, round))
            continue;
        if (wrong++ == 0)
            fprintf(stderr, "alternate: %s: byte %zu is %u, round %ju wrote %u\n", where, i, bytes[i],
                    (uintmax_t)round, value(i, round));
    }
    return wrong;
}

static void expect_own(struct writer *writer, const unsigned char *bytes, uint64_t round, const char *where)
{
    size_t wrong = count_wrong(bytes, writer->length, writer->first, round, where);

    if (wrong == 0)
        return;
    fprintf(stderr, "alternate: %s: %zu of my own bytes are lost\n", where, wrong);
    exit(EXIT_WRONG);
}

/* The kernel, and also what the CPU's mapping gets. */
static void store_round(unsigned char *map, size_t length, size_t first, uint64_t round)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (size_t i = first; i < length; i += STRIDE)
        *(volatile unsigned char *)&map[i] = value(i, round);
}

static void round_on_device(struct writer *writer, uint64_t round)
{
    if (gaia_macquire(writer->map, writer->length, writer->device) != 0)
        fail(errno, "%s: acquire", writer->path);
    if (round > 1)
        expect_own(writer, writer->map, round - 1, "the device's memory after its acquire");
    store_round(writer->map, writer->length, writer->first, round);
    if (gaia_mrelease(writer->map, writer->length, writer->device) != 0)
        fail(errno, "%s: release", writer->path);
}

static void round_by_pwrite(struct writer *writer, uint64_t round)
{
    for (size_t i = writer->first; i < writer->length; i += STRIDE) {
        unsigned char byte = value(i, round);

        write_fully(writer->fd, writer->path, &byte, 1, (off_t)i);
    }
}

static void round_by_mmap(struct writer *writer, uint64_t round)
{
    store_round(writer->map, writer->length, writer->first, round);
}

static int write_rounds(struct writer *writer, void (*do_round)(struct writer *, uint64_t), uint64_t seconds)
{
    uint64_t start_ms = now_ms();
    uint64_t round = 0;

    do {
        do_round(writer, ++round);
        read_fully(writer->fd, writer->path, writer->buffer, writer->length, 0);
        expect_own(writer, writer->buffer, round, "what read() gives after the round");
    } while (now_ms() - start_ms < seconds * 1000);
    printf("rounds=%ju start_ms=%ju end_ms=%ju\n", (uintmax_t)round, (uintmax_t)start_ms,
           (uintmax_t)now_ms());
    finish_output();
    return EXIT_SUCCESS;
}

static int write_as_device(struct writer *writer, const char *name, uint64_t seconds)
{
    int result;

    writer->device = open_device(name);
    writer->map =
        map_on_device(writer->device, writer->fd, writer->path, writer->length, PROT_READ | PROT_WRITE);
    result = write_rounds(writer, round_on_device, seconds);
    if (gaia_munmap(writer->map, writer->length) != 0)
        fail(errno, "%s: cannot unmap it", writer->path);
    gaia_device_close(writer->device);
    return result;
}

static int write_by_mmap(struct writer *writer, uint64_t seconds)
{
    int result;

    writer->map = mmap(NULL, writer->length, PROT_READ | PROT_WRITE, MAP_SHARED, writer->fd, 0);
    if (writer->map == MAP_FAILED)
        fail(errno, "%s: mmap", writer->path);
    result = write_rounds(writer, round_by_mmap, seconds);
    munmap(writer->map, writer->length);
    return result;
}

static int check(struct writer *file, uint64_t odd_round, uint64_t even_round)
{
    size_t wrong;

    read_fully(file->fd, file->path, file->buffer, file->length, 0);
    wrong = count_wrong(file->buffer, file->length, 1, odd_round, "odd bytes");
    wrong += count_wrong(file->buffer, file->length, 0, even_round, "even bytes");
    printf("%zu bytes checked, %zu wrong\n", file->length, wrong);
    finish_output();
    return wrong == 0 ? EXIT_SUCCESS : EXIT_WRONG;
}

__attribute__((noreturn)) static void usage(void)
{
    fail(0, "usage: alternate --device NAME|--cpu|--cpu-mmap --odd|--even [--seconds S] FILE\n"
            "       alternate --check --odd-round N --even-round N FILE");
}

struct arguments {
    int mode; /* 'd', 'c', 'm' or 'k' */
    int half; /* 'o' or 'e' */
    const char *device;
    uint64_t seconds;
    uint64_t odd_round;
    uint64_t even_round;
    const char *path;
};

static struct arguments parse_arguments(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"cpu", no_argument, NULL, 'c'},
                                            {"cpu-mmap", no_argument, NULL, 'm'},
                                            {"check", no_argument, NULL, 'k'},
                                            {"odd", no_argument, NULL, 'o'},
                                            {"even", no_argument, NULL, 'e'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"odd-round", required_argument, NULL, 'O'},
                                            {"even-round", required_argument, NULL, 'E'},
                                            {NULL, 0, NULL, 0}};
    struct arguments arguments = {.seconds = 3};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'o' || option == 'e')
            arguments.half = option;
        else if (option == 's')
            arguments.seconds = parse_number("--seconds", optarg, 86400);
        else if (option == 'O')
            arguments.odd_round = parse_number("--odd-round", optarg, UINT64_MAX);
        else if (option == 'E')
            arguments.even_round = parse_number("--even-round", optarg, UINT64_MAX);
        else if (option == '?' || arguments.mode != 0)
            usage();
        else
            arguments.mode = option;
        if (option == 'd')
            arguments.device = optarg;
    }
    if (arguments.mode == 0 || optind != argc - 1)
        usage();
    if (arguments.mode == 'k' ? arguments.odd_round == 0 || arguments.even_round == 0 : arguments.half == 0)
        usage();
    arguments.path = argv[optind];
    return arguments;
}

int main(int argc, char **argv)
{
    struct arguments arguments = parse_arguments(argc, argv);
    struct writer writer = {.path = arguments.path, .first = arguments.half == 'o' ? 1 : 0};
    struct stat status;
    int result;

    writer.fd = open_regular(arguments.path, arguments.mode == 'k' ? O_RDONLY : O_RDWR, &status);
    if (status.st_size == 0)
        fail(0, "%s: it is empty: make it as long as it shall be", arguments.path);
    writer.length = (size_t)status.st_size;
    writer.buffer = allocate(writer.length, 1);
    if (arguments.mode == 'k')
        result = check(&writer, arguments.odd_round, arguments.even_round);
    else if (arguments.mode == 'd')
        result = write_as_device(&writer, arguments.device, arguments.seconds);
    else if (arguments.mode == 'm')
        result = write_by_mmap(&writer, arguments.seconds);
    else
        result = write_rounds(&writer, round_by_pwrite, arguments.seconds);
    free(writer.buffer);
    close(writer.fd);
    return result;
}
