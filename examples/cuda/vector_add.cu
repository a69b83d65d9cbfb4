/* SPDX-License-Identifier: Apache-2.0 */
/* vector_add: c = a + b, three files, in the order of a stream: the acquires, the kernel and the release are
 * put into it one after the other, and the program waits once.
 *
 *   vector_add [--device NAME] [--count N] [--seed N] [--check] FOLDER
 *
 * Makes vector_add.a, .b and .c of N numbers in FOLDER, which lies on a gaiafs mount. Adds, lets the CPU
 * change a part of b with pwrite(), and adds again. --check: looks at what an earlier run has left, only. */
#include "example.h"

__global__ void add(const float *a, const float *b, float *c, size_t count)
{
    for (size_t i = first_item(); i < count; i += item_step())
        c[i] = a[i] + b[i];
}

static void make_vector(const char *path, size_t count, uint64_t seed)
{
    float *numbers = (float *)allocate(count, sizeof(*numbers));

    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)(random_number(&seed) % 1000000) / 7;
    write_file(path, numbers, count * sizeof(*numbers));
    free(numbers);
}

/* A program that knows nothing of devices: it writes a tenth anew. */
static void change_a_part(const char *path, size_t count, uint64_t seed)
{
    size_t part = count / 10 + 1, first = count / 3;
    float *numbers = (float *)allocate(part, sizeof(*numbers));
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        fail(errno, "%s", path);
    if (part > count - first)
        part = count - first;
    for (size_t i = 0; i < part; i++)
        numbers[i] = (float)(random_number(&seed) % 1000) - 2000000;
    write_fully(fd, path, numbers, part * sizeof(*numbers), (off_t)(first * sizeof(*numbers)));
    close(fd);
    free(numbers);
}

static void add_in_stream(struct gaia_device *device, const struct mapped *a, const struct mapped *b,
                          const struct mapped *c, cudaStream_t stream)
{
    const float *from = (const float *)a->at, *more = (const float *)b->at;
    float *to = (float *)c->at;
    size_t count = c->bytes / sizeof(float);

    if (gaia_macquire_on(a->at, a->bytes, device, stream) != 0 ||
        gaia_macquire_on(b->at, b->bytes, device, stream) != 0 ||
        gaia_macquire_on(c->at, c->bytes, device, stream) != 0)
        fail(errno, "acquire");
    LAUNCH(add, BLOCKS, THREADS, stream, from, more, to, count);
    if (gaia_mrelease_on(c->at, c->bytes, device, stream) != 0)
        fail(errno, "release");
    check_cuda(cudaStreamSynchronize(stream), "the stream");
    if (gaia_stream_error(device) != 0)
        fail(errno, "in the stream");
}

static int check(const char *const paths[3])
{
    size_t counts[3], wrong = 0;
    float *numbers[3];

    for (int i = 0; i < 3; i++)
        numbers[i] = read_file<float>(paths[i], &counts[i]);
    if (counts[0] != counts[2] || counts[1] != counts[2])
        return verdict(false, "the files are of different lengths");
    for (size_t i = 0; i < counts[2]; i++)
        wrong += numbers[2][i] != numbers[0][i] + numbers[1][i];
    for (int i = 0; i < 3; i++)
        free(numbers[i]);
    return verdict(wrong == 0, "%zu sums, %zu of them wrong, by plain reads", counts[2], wrong);
}

int main(int argc, char **argv)
{
    struct arguments arguments =
        parse_arguments(argc, argv, 1 << 20, UINT64_C(1) << 36,
                        "vector_add [--device NAME] [--count N] [--seed N] [--check] FOLDER");
    const char *folder = arguments.rest[0];
    const char *const paths[3] = {path_in(folder, "vector_add.a"), path_in(folder, "vector_add.b"),
                                  path_in(folder, "vector_add.c")};
    cudaStream_t stream;

    if (arguments.check)
        return check(paths);
    make_vector(paths[0], arguments.count, arguments.seed);
    make_vector(paths[1], arguments.count, arguments.seed + 1);
    make_file(paths[2], arguments.count * sizeof(float));
    struct gaia_device *device = open_example_device(arguments.device);
    check_cuda(cudaStreamCreate(&stream), "a stream");
    struct mapped a = map_whole(device, paths[0], PROT_READ), b = map_whole(device, paths[1], PROT_READ);
    struct mapped c = map_whole(device, paths[2], PROT_READ | PROT_WRITE);
    add_in_stream(device, &a, &b, &c, stream);
    int first = check(paths);
    uint64_t before = bytes_moved_in(device);
    change_a_part(paths[1], arguments.count, arguments.seed + 2);
    add_in_stream(device, &a, &b, &c, stream);
    printf("the CPU changed a part of b: %ju bytes moved for the second addition\n",
           (uintmax_t)(bytes_moved_in(device) - before));
    unmap(&a);
    unmap(&b);
    unmap(&c);
    check_cuda(cudaStreamDestroy(stream), "the stream");
    gaia_device_close(device);
    int second = check(paths);
    return first != EXIT_SUCCESS ? first : second;
}
