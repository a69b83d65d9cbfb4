/* SPDX-License-Identifier: Apache-2.0 */
/* stitch: two overlapping images become one. The GPU writes the left part of every row of the result, and the
 * CPU the right part through a plain mapping, at the same time: nearly every page of the file belongs to
 * both.
 *
 *   stitch [--device NAME] [--count ROWS] [--seed N] [--check] FOLDER
 *
 * Makes stitch.left and stitch.right, and stitch.out, in FOLDER on a gaiafs mount. --check: looks at what an
 * earlier run has left, only. */
#include "example.h"

#include <pthread.h>

enum {
    WIDTH = 1000,  /* of an image, in pixels of three bytes */
    OVERLAP = 300, /* columns that both have */
    OUT_WIDTH = 2 * WIDTH - OVERLAP,
    SPLIT = WIDTH - OVERLAP / 2, /* from this column on the result is the CPU's */
    ROW = WIDTH * 3,
    OUT_ROW = OUT_WIDTH * 3,
    BANDS = 16, /* the GPU releases its part so many times */
};

/* A byte of the result: in the overlap the right image comes in little by little. */
__host__ __device__ static inline unsigned char stitched(const unsigned char *left,
                                                         const unsigned char *right, size_t row, size_t byte)
{
    size_t column = byte / 3;

    if (column < WIDTH - OVERLAP)
        return left[row * ROW + byte];
    size_t right_byte = byte - (WIDTH - OVERLAP) * 3;
    if (column >= WIDTH)
        return right[row * ROW + right_byte];
    unsigned weight = (unsigned)(column - (WIDTH - OVERLAP));
    return (unsigned char)((left[row * ROW + byte] * (OVERLAP - weight) +
                            right[row * ROW + right_byte] * weight) /
                           OVERLAP);
}

__global__ void stitch_left(const unsigned char *left, const unsigned char *right, unsigned char *out,
                            size_t first_row, size_t rows)
{
    for (size_t i = first_item(); i < rows * SPLIT * 3; i += item_step()) {
        size_t row = first_row + i / (SPLIT * 3), byte = i % (SPLIT * 3);

        out[row * OUT_ROW + byte] = stitched(left, right, row, byte);
    }
}

/* The CPU's half: a program like any other. */
struct right_half {
    const char *const *paths;
    size_t rows;
    pthread_barrier_t *start;
    volatile size_t done; /* rows */
};

static void *stitch_right(void *context)
{
    struct right_half *half = (struct right_half *)context;
    size_t bytes, out_bytes = half->rows * OUT_ROW;
    unsigned char *left = read_file<unsigned char>(half->paths[0], &bytes);
    unsigned char *right = read_file<unsigned char>(half->paths[1], &bytes);
    int fd = open(half->paths[2], O_RDWR | O_CLOEXEC);
    unsigned char *out = (unsigned char *)mmap(NULL, out_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd < 0 || out == MAP_FAILED)
        fail(errno, "%s", half->paths[2]);
    close(fd);
    pthread_barrier_wait(half->start);
    for (size_t row = 0; row < half->rows; row++) {
        for (size_t byte = SPLIT * 3; byte < OUT_ROW; byte++)
            out[row * OUT_ROW + byte] = stitched(left, right, row, byte);
        half->done = row + 1;
    }
    munmap(out, out_bytes);
    free(left);
    free(right);
    return NULL;
}

/* What of a mapping the rows lie in, in whole pages. */
static struct mapped rows_of(const struct mapped *out, size_t first_row, size_t rows)
{
    size_t from = first_row * OUT_ROW / 4096 * 4096, end = (first_row + rows) * OUT_ROW;
    struct mapped part = {out->path, end - from, (unsigned char *)out->at + from};

    return part;
}

/* How many bands were released while the CPU was still writing. */
static unsigned stitch_bands(struct gaia_device *device, const struct mapped maps[3], size_t rows,
                             const struct right_half *half)
{
    const unsigned char *left = (const unsigned char *)maps[0].at, *right = (const unsigned char *)maps[1].at;
    unsigned char *out = (unsigned char *)maps[2].at;
    unsigned beside = 0;

    for (size_t band = 0; band < BANDS; band++) {
        size_t first = rows * band / BANDS, count = rows * (band + 1) / BANDS - first;

        if (count == 0)
            continue;
        LAUNCH(stitch_left, BLOCKS, THREADS, NULL, left, right, out, first, count);
        wait_for_kernel();
        struct mapped part = rows_of(&maps[2], first, count);
        release(&part, device);
        beside += half->done < rows;
    }
    return beside;
}

static void make_image(const char *path, size_t rows, uint64_t seed)
{
    unsigned char *image = (unsigned char *)allocate(rows, ROW);

    for (size_t i = 0; i < rows * ROW; i++)
        image[i] = (unsigned char)(1 + random_number(&seed) % 255); /* no zeros: those are in a new file */
    write_file(path, image, rows * ROW);
    free(image);
}

static int check(const char *const paths[3])
{
    size_t left_bytes, right_bytes, out_bytes, wrong[2] = {0, 0};
    unsigned char *left = read_file<unsigned char>(paths[0], &left_bytes);
    unsigned char *right = read_file<unsigned char>(paths[1], &right_bytes);
    unsigned char *out = read_file<unsigned char>(paths[2], &out_bytes);
    size_t rows = out_bytes / OUT_ROW;

    if (rows == 0 || left_bytes != rows * ROW || right_bytes != rows * ROW || out_bytes != rows * OUT_ROW)
        return verdict(false, "files of %zu, %zu and %zu bytes", left_bytes, right_bytes, out_bytes);
    for (size_t row = 0; row < rows; row++)
        for (size_t byte = 0; byte < OUT_ROW; byte++)
            wrong[byte >= SPLIT * 3] += out[row * OUT_ROW + byte] != stitched(left, right, row, byte);
    free(left);
    free(right);
    free(out);
    return verdict(wrong[0] + wrong[1] == 0,
                   "%zu rows of %d bytes; wrong bytes: %zu of the device's, %zu of the CPU's, by plain reads",
                   rows, OUT_ROW, wrong[0], wrong[1]);
}

int main(int argc, char **argv)
{
    struct arguments arguments = parse_arguments(
        argc, argv, 800, 1 << 24, "stitch [--device NAME] [--count ROWS] [--seed N] [--check] FOLDER");
    const char *folder = arguments.rest[0];
    const char *const paths[3] = {path_in(folder, "stitch.left"), path_in(folder, "stitch.right"),
                                  path_in(folder, "stitch.out")};
    size_t rows = arguments.count;
    pthread_barrier_t start;
    pthread_t cpu;

    if (arguments.check)
        return check(paths);
    make_image(paths[0], rows, arguments.seed);
    make_image(paths[1], rows, arguments.seed + 1);
    make_file(paths[2], rows * OUT_ROW);
    struct gaia_device *device = open_example_device(arguments.device);
    struct mapped maps[3] = {map_whole(device, paths[0], PROT_READ), map_whole(device, paths[1], PROT_READ),
                             map_whole(device, paths[2], PROT_READ | PROT_WRITE)};
    struct right_half half = {paths, rows, &start, 0};
    for (int i = 0; i < 3; i++)
        acquire(&maps[i], device);
    pthread_barrier_init(&start, NULL, 2);
    int error = pthread_create(&cpu, NULL, stitch_right, &half);
    if (error != 0)
        fail(error, "a thread");
    pthread_barrier_wait(&start);
    unsigned beside = stitch_bands(device, maps, rows, &half);
    pthread_join(cpu, NULL);
    printf("%d bands of the device's, %u of them released while the CPU was writing\n", BANDS, beside);
    for (int i = 0; i < 3; i++)
        unmap(&maps[i]);
    gaia_device_close(device);
    return check(paths);
}
