/* SPDX-License-Identifier: Apache-2.0 */
/* hold FILE...: map files of a gaiafs mount into a device, say so, and keep them until standard input ends.
 * From the first mapping on gaiafs tracks a file: it sees all that CPUs write to it. Nothing is placed on the
 * device.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"

static int map_whole(struct gaia_device *device, const char *path)
{
    struct stat status;
    int fd = open(path, O_RDWR);
    void *at = MAP_FAILED;

    if (fd >= 0 && fstat(fd, &status) == 0)
        at = gaia_mmap(device, (size_t)status.st_size, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (at == MAP_FAILED)
        perror(path);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct gaia_device *device;
    char byte;

    if (gaia_device_open(NULL, &device) != 0) {
        perror("gaia_device_open");
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        if (map_whole(device, argv[i]) != 0)
            return 1;
    }
    puts("mapped");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    gaia_device_close(device);
    return 0;
}
