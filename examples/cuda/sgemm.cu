/* SPDX-License-Identifier: Apache-2.0 */
/* sgemm: c = a × b, three files, by cuBLAS, a closed library that gets pointers to mapped files and knows
 * nothing of gaiafs.
 *
 *   sgemm [--device NAME] [--count N] [--seed N] [--check] FOLDER
 *
 * Makes sgemm.a, .b and .c in FOLDER, which lies on a gaiafs mount: N × N numbers each, in columns. Built for
 * the CPU, a plain loop is in the place of cuBLAS. --check: looks at what an earlier run has left, only.
 *
 * The numbers are small and whole, so that all sums are exact, and are checked with Freivalds' method, modulo
 * 2^64: c × r is a × (b × r), for a random vector r of odd numbers. One wrong number in c is always found. */
#include "example.h"

#ifdef __CUDACC__
#include <cublas_v2.h>

static void multiply(const float *a, const float *b, float *c, int n)
{
    const float one = 1, zero = 0;
    cublasHandle_t handle;

    if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS)
        fail(0, "cuBLAS does not start");
    if (cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n) !=
        CUBLAS_STATUS_SUCCESS)
        fail(0, "cublasSgemm");
    wait_for_kernel();
    cublasDestroy(handle);
    printf("cublasSgemm on three mapped files\n");
}
#else
__global__ void multiply_column(const float *a, const float *b, float *c, int n)
{
    size_t column = blockIdx.x * (size_t)n;

    for (int row = 0; row < n; row++)
        c[column + row] = 0;
    for (int k = 0; k < n; k++)
        for (int row = 0; row < n; row++)
            c[column + row] += a[(size_t)k * n + row] * b[column + k];
}

static void multiply(const float *a, const float *b, float *c, int n)
{
    LAUNCH(multiply_column, (unsigned)n, 1, NULL, a, b, c, n);
    printf("a plain loop on three mapped files (no cuBLAS: this is built for the CPU)\n");
}
#endif

static void make_matrix(const char *path, size_t n, uint64_t seed)
{
    float *numbers = (float *)allocate(n * n, sizeof(*numbers));

    for (size_t i = 0; i < n * n; i++)
        numbers[i] = (float)(random_number(&seed) % 16) - 8;
    write_file(path, numbers, n * n * sizeof(*numbers));
    free(numbers);
}

/* matrix × vector, modulo 2^64. Whether all numbers are whole. */
static bool times_vector(const float *matrix, size_t n, const uint64_t *vector, uint64_t *product)
{
    bool whole = true;

    memset(product, 0, n * sizeof(*product));
    for (size_t column = 0; column < n; column++)
        for (size_t row = 0; row < n; row++) {
            float number = matrix[column * n + row];

            if (!(number > -16777216 && number < 16777216) || number != (float)(int64_t)number)
                whole = false;
            else
                product[row] += (uint64_t)(int64_t)number * vector[column];
        }
    return whole;
}

static int check(const char *const paths[3], size_t n, uint64_t seed)
{
    uint64_t *vectors[4];
    float *matrices[3];
    size_t count, wrong = 0;

    for (int i = 0; i < 3; i++) {
        matrices[i] = read_file<float>(paths[i], &count);
        if (count != n * n)
            return verdict(false, "%s has %zu numbers", paths[i], count);
    }
    for (int i = 0; i < 4; i++)
        vectors[i] = (uint64_t *)allocate(n, sizeof(uint64_t));
    for (size_t i = 0; i < n; i++)
        vectors[0][i] = random_number(&seed) >> 33 | 1;
    bool whole = times_vector(matrices[1], n, vectors[0], vectors[1]) &&
                 times_vector(matrices[0], n, vectors[1], vectors[2]) &&
                 times_vector(matrices[2], n, vectors[0], vectors[3]);
    for (size_t i = 0; i < n; i++)
        wrong += vectors[2][i] != vectors[3][i];
    for (int i = 0; i < 3; i++)
        free(matrices[i]);
    for (int i = 0; i < 4; i++)
        free(vectors[i]);
    return verdict(whole && wrong == 0, "a product of %zu x %zu, %zu rows wrong%s, by plain reads", n, n,
                   wrong, whole ? "" : " and numbers that are not whole");
}

int main(int argc, char **argv)
{
    struct arguments arguments =
        parse_arguments(argc, argv, 512, 65536, /* so that sums stay below 2^24 */
                        "sgemm [--device NAME] [--count N] [--seed N] [--check] FOLDER");
    const char *folder = arguments.rest[0];
    const char *const paths[3] = {path_in(folder, "sgemm.a"), path_in(folder, "sgemm.b"),
                                  path_in(folder, "sgemm.c")};
    size_t n = arguments.count;

    if (arguments.check)
        return check(paths, n, arguments.seed + 2);
    make_matrix(paths[0], n, arguments.seed);
    make_matrix(paths[1], n, arguments.seed + 1);
    make_file(paths[2], n * n * sizeof(float));
    struct gaia_device *device = open_example_device(arguments.device);
    struct mapped a = map_whole(device, paths[0], PROT_READ), b = map_whole(device, paths[1], PROT_READ);
    struct mapped c = map_whole(device, paths[2], PROT_READ | PROT_WRITE);
    acquire(&a, device);
    acquire(&b, device);
    acquire(&c, device);
    multiply((const float *)a.at, (const float *)b.at, (float *)c.at, (int)n);
    release(&c, device);
    unmap(&a);
    unmap(&b);
    unmap(&c);
    gaia_device_close(device);
    return check(paths, n, arguments.seed + 2);
}
