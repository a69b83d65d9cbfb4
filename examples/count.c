/* SPDX-License-Identifier: Apache-2.0 */
/* count: a device kernel counts the lines and bytes of files of a gaiafs mount, and prints what `wc -lc`
 * prints.
 *
 *   count [--device NAME] [--stat] FILE...   count once
 *   count [--device NAME] --serve FILE...    count again for every line that comes on standard input
 *
 * --stat (always on with --serve) adds a last line "moved N bytes": what had to be moved into the device for
 * the run. A device's copy of a file stays with the mount when the program ends, so that a second run moves
 * only what changed since. A server keeps its mappings: gaia_macquire() is all that it does to see what
 * others wrote in the meantime.
 */
#include <getopt.h>

#include "common.h"

/* What one thread of the kernel counts at a time. */
enum { BLOCK_BYTES = 65536 };

struct text {
    const char *path;
    const char *map;    /* NULL: nothing is mapped (an empty file, or not looked at yet) */
    struct stat status; /* of the file that is mapped; its size is the mapping's */
    uint64_t lines;
    uint64_t bytes;
};

/* The kernel: plain loads from a plain pointer. */
static void count_kernel(const char *map, size_t length, uint64_t *lines_out, uint64_t *bytes_out)
{
    size_t blocks = (length + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t lines = 0;
    uint64_t bytes = 0;

#ifdef _OPENMP
#pragma omp parallel for schedule(static) reduction(+ : lines, bytes)
#endif
    for (size_t block = 0; block < blocks; block++) {
        size_t begin = block * BLOCK_BYTES;
        size_t end = length - begin < BLOCK_BYTES ? length : begin + BLOCK_BYTES;

        for (size_t i = begin; i < end; i++)
            lines += map[i] == '\n';
        bytes += end - begin;
    }
    *lines_out = lines;
    *bytes_out = bytes;
}

static void unmap(struct text *text)
{
    if (text->map != NULL && gaia_munmap((void *)text->map, (size_t)text->status.st_size) != 0)
        fail(errno, "%s: cannot unmap it", text->path);
    text->map = NULL;
}

/* Map the file, or map it again when it has another size or is another file by now (an editor that renames).
 */
static void map(struct text *text, struct gaia_device *device)
{
    struct stat status;
    int fd = open_regular(text->path, O_RDONLY, &status);
    bool same = text->map != NULL && status.st_size == text->status.st_size &&
                status.st_ino == text->status.st_ino && status.st_dev == text->status.st_dev;

    if (!same) {
        unmap(text);
        text->status = status;
        if (status.st_size > 0)
            text->map = map_on_device(device, fd, text->path, (size_t)status.st_size, PROT_READ);
    }
    close(fd);
}

static void count(struct text *text, struct gaia_device *device)
{
    size_t length = (size_t)text->status.st_size;

    text->lines = 0;
    text->bytes = 0;
    if (text->map == NULL)
        return;
    if (gaia_macquire((void *)text->map, length, device) != 0)
        fail(errno, "%s: acquire", text->path);
    count_kernel(text->map, length, &text->lines, &text->bytes);
}

/* As `wc -lc` does it: columns as wide as the digits of all files' bytes, a total when there are two files or
 * more. */
static void print_counts(const struct text *texts, int files)
{
    uint64_t lines = 0;
    uint64_t bytes = 0;
    int width;

    for (int i = 0; i < files; i++) {
        lines += texts[i].lines;
        bytes += texts[i].bytes;
    }
    width = snprintf(NULL, 0, "%ju", (uintmax_t)bytes);
    for (int i = 0; i < files; i++)
        printf("%*ju %*ju %s\n", width, (uintmax_t)texts[i].lines, width, (uintmax_t)texts[i].bytes,
               texts[i].path);
    if (files > 1)
        printf("%*ju %*ju total\n", width, (uintmax_t)lines, width, (uintmax_t)bytes);
}

static void run(struct text *texts, int files, struct gaia_device *device, bool with_moved)
{
    uint64_t before = 0;
    uint64_t after = 0;
    bool mapped = false;

    for (int i = 0; i < files; i++) {
        map(&texts[i], device);
        mapped = mapped || texts[i].map != NULL;
    }
    if (with_moved && mapped)
        before = bytes_moved_in(device);
    for (int i = 0; i < files; i++)
        count(&texts[i], device);
    if (with_moved && mapped)
        after = bytes_moved_in(device);
    print_counts(texts, files);
    if (with_moved)
        printf("moved %ju bytes\n", (uintmax_t)(after - before));
    finish_output();
}

/* Again for every line of standard input, until it ends. */
static void serve(struct text *texts, int files, struct gaia_device *device)
{
    int character;

    while ((character = getchar()) != EOF) {
        if (character == '\n')
            run(texts, files, device, true);
    }
}

/* Many files may be mapped at once: take as many descriptors as the system allows. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"stat", no_argument, NULL, 's'},
                                            {"serve", no_argument, NULL, 'l'},
                                            {NULL, 0, NULL, 0}};
    const char *name = NULL;
    bool with_moved = false;
    bool as_server = false;
    struct gaia_device *device;
    struct text *texts;
    int files;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'd')
            name = optarg;
        else if (option == 's')
            with_moved = true;
        else if (option == 'l')
            as_server = true;
        else
            break;
    }
    files = argc - optind;
    if (option == '?' || files < 1)
        fail(0, "usage: count [--device NAME] [--stat | --serve] FILE...");

    raise_file_limit();
    texts = allocate((size_t)files, sizeof(*texts));
    for (int i = 0; i < files; i++)
        texts[i].path = argv[optind + i];
    device = open_device(name);
    if (as_server)
        serve(texts, files, device);
    else
        run(texts, files, device, with_moved);
    for (int i = 0; i < files; i++)
        unmap(&texts[i]);
    gaia_device_close(device);
    free(texts);
    return EXIT_SUCCESS;
}
