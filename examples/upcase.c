/* SPDX-License-Identifier: Apache-2.0 */
/* upcase: a device kernel turns the text of files of a gaiafs mount to upper case, in place, through a
 * mapping.
 *
 *   upcase [--device NAME] FILE...
 *
 * Only a-z change, as with `LC_ALL=C tr a-z A-Z`. The kernel stores only the bytes that it changes: all the
 * others keep what CPUs and other devices write to them meanwhile.
 */
#include <getopt.h>

#include "common.h"

enum { BLOCK_BYTES = 65536 };

/* The kernel: plain loads and stores. */
static uint64_t upcase_kernel(char *map, size_t length)
{
    size_t blocks = (length + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t changed = 0;

#ifdef _OPENMP
#pragma omp parallel for schedule(static) reduction(+ : changed)
#endif
    for (size_t block = 0; block < blocks; block++) {
        size_t begin = block * BLOCK_BYTES;
        size_t end = length - begin < BLOCK_BYTES ? length : begin + BLOCK_BYTES;

        for (size_t i = begin; i < end; i++) {
            if (map[i] >= 'a' && map[i] <= 'z') {
                map[i] = (char)(map[i] - 'a' + 'A');
                changed++;
            }
        }
    }
    return changed;
}

/* The number of bytes that were changed. */
static uint64_t upcase(const char *path, struct gaia_device *device)
{
    struct stat status;
    int fd = open_regular(path, O_RDWR, &status);
    size_t length = (size_t)status.st_size;
    uint64_t changed;
    char *map;

    if (length == 0) {
        close(fd);
        return 0;
    }
    map = map_on_device(device, fd, path, length, PROT_READ | PROT_WRITE);
    close(fd);
    if (gaia_macquire(map, length, device) != 0)
        fail(errno, "%s: acquire", path);
    changed = upcase_kernel(map, length);
    if (gaia_mrelease(map, length, device) != 0)
        fail(errno, "%s: release", path);
    if (gaia_munmap(map, length) != 0)
        fail(errno, "%s: cannot unmap it", path);
    return changed;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'}, {NULL, 0, NULL, 0}};
    const char *name = NULL;
    struct gaia_device *device;
    uint64_t changed = 0;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) == 'd')
        name = optarg;
    if (option == '?' || optind == argc)
        fail(0, "usage: upcase [--device NAME] FILE...");

    device = open_device(name);
    for (int i = optind; i < argc; i++)
        changed += upcase(argv[i], device);
    gaia_device_close(device);
    printf("changed %ju bytes\n", (uintmax_t)changed);
    finish_output();
    return EXIT_SUCCESS;
}
