/* SPDX-License-Identifier: Apache-2.0 */
/* hello: turn the text of a file by 13 letters, in place, on a device. Running it twice gives the text back.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"

/* On the device "soft:0" a kernel is code that the program's own threads run. */
static void rot13_kernel(char *text, long length)
{
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (long i = 0; i < length; i++) {
        int first = text[i] >= 'a' && text[i] <= 'z' ? 'a' : 'A';

        if (text[i] >= first && text[i] < first + 26)
            text[i] = (char)(first + (text[i] - first + 13) % 26);
    }
}

static int rot13(struct gaia_device *device, int fd, size_t length)
{
    char *text = gaia_mmap(device, length, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);

    if (text == MAP_FAILED)
        return -1;
    if (gaia_macquire(text, length, device) != 0) /* from here on the device sees what others wrote */
        return -1;
    rot13_kernel(text, (long)length);
    if (gaia_mrelease(text, length, device) != 0) /* from here on others see what the device stored */
        return -1;
    return gaia_munmap(text, length);
}

int main(int argc, char **argv)
{
    struct gaia_device *device;
    struct stat status;
    char line[81] = "";

    if (gaia_device_open(NULL, &device) != 0) { /* the device first, then files: see gaia.h */
        perror("hello: no device");
        return 1;
    }
    int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
    if (fd < 0 || fstat(fd, &status) != 0 || status.st_size == 0) {
        fprintf(stderr, "usage: hello FILE, a file of a gaiafs mount that is not empty\n");
        return 2;
    }
    if (rot13(device, fd, (size_t)status.st_size) != 0) {
        perror(argv[1]);
        return 1;
    }
    gaia_device_close(device);
    if (read(fd, line, sizeof(line) - 1) < 0) { /* a plain read(), as any program does it */
        perror(argv[1]);
        return 1;
    }
    puts(line);
    return close(fd);
}
