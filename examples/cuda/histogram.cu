/* SPDX-License-Identifier: Apache-2.0 */
/* histogram: how often each byte comes in a file. The counts are a file, too: 256 numbers of 64 bits.
 *
 *   histogram [--device NAME] [--check] FILE RESULT
 *
 * Both lie on a gaiafs mount. --check: looks at what an earlier run has left in RESULT, only. */
#include "example.h"

enum { VALUES = 256, COPIES = 64 };

/* Blocks have one of several copies of the counts each, so that not all wait for each other at the same few
 * numbers. */
__global__ void count_bytes(const unsigned char *bytes, size_t length, unsigned long long *copies)
{
    unsigned long long *counts = copies + blockIdx.x % COPIES * VALUES;
    const uint64_t *words = (const uint64_t *)bytes;

    for (size_t i = first_item(); i < length / 8; i += item_step()) {
        uint64_t word = words[i];

        for (int byte = 0; byte < 8; byte++)
            atomicAdd(&counts[word >> byte * 8 & 0xff], 1ull);
    }
    for (size_t i = length / 8 * 8 + first_item(); i < length; i += item_step())
        atomicAdd(&counts[bytes[i]], 1ull);
}

__global__ void sum_up(const unsigned long long *copies, unsigned long long *counts)
{
    unsigned long long sum = 0;

    for (unsigned copy = 0; copy < COPIES; copy++)
        sum += copies[copy * VALUES + threadIdx.x];
    counts[threadIdx.x] = sum;
}

static int check(const char *path, const char *result_path)
{
    size_t length, count, wrong = 0;
    unsigned char *bytes = read_file<unsigned char>(path, &length);
    uint64_t *result = read_file<uint64_t>(result_path, &count);
    uint64_t counts[VALUES] = {0};

    if (count != VALUES)
        return verdict(false, "%s has %zu numbers", result_path, count);
    for (size_t i = 0; i < length; i++)
        counts[bytes[i]]++;
    for (size_t i = 0; i < VALUES; i++)
        wrong += counts[i] != result[i];
    free(bytes);
    free(result);
    return verdict(wrong == 0, "%zu bytes, %zu of %d counts wrong, by plain reads", length, wrong, VALUES);
}

int main(int argc, char **argv)
{
    const char *usage = "histogram [--device NAME] [--check] FILE RESULT";
    struct arguments arguments = parse_arguments(argc, argv, 1, 1, usage);

    if (arguments.rest_count != 2)
        fail(0, "usage: %s", usage);
    const char *path = arguments.rest[0], *result_path = arguments.rest[1];
    if (arguments.check)
        return check(path, result_path);
    make_file(result_path, VALUES * sizeof(unsigned long long));
    struct gaia_device *device = open_example_device(arguments.device);
    struct mapped file = map_whole(device, path, PROT_READ);
    struct mapped result = map_whole(device, result_path, PROT_READ | PROT_WRITE);
    const unsigned char *bytes = (const unsigned char *)file.at;
    unsigned long long *counts = (unsigned long long *)result.at;
    unsigned long long *copies = device_array<unsigned long long>(COPIES * VALUES);
    size_t length = file.bytes;

    check_cuda(cudaMemset(copies, 0, COPIES * VALUES * sizeof(*copies)), "memory of the device");
    acquire(&file, device);
    acquire(&result, device);
    LAUNCH(count_bytes, BLOCKS, THREADS, NULL, bytes, length, copies);
    LAUNCH(sum_up, 1, VALUES, NULL, copies, counts);
    wait_for_kernel();
    release(&result, device);
    printf("%ju bytes moved into the device\n", (uintmax_t)bytes_moved_in(device));
    check_cuda(cudaFree(copies), "memory of the device");
    unmap(&file);
    unmap(&result);
    gaia_device_close(device);
    return check(path, result_path);
}
