/* SPDX-License-Identifier: Apache-2.0 */
/* hello FILE: turn the text of a file by 13 letters, in place, on a device. Twice gives the text back. */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"

/* On the device "soft:0" a kernel is code that the program's own threads run. */
static void rot13_kernel(char *text, size_t length)
{
#pragma omp parallel for
    for (size_t i = 0; i < length; i++) {
        int first = text[i] >= 'a' && text[i] <= 'z' ? 'a' : 'A';

        if (text[i] >= first && text[i] < first + 26)
            text[i] = (char)(first + (text[i] - first + 13) % 26);
    }
}

int main(int argc, char **argv)
{
    struct gaia_device *device;
    struct stat status;
    char line[81] = "";

    if (argc != 2)
        errx(2, "usage: hello FILE");
    if (gaia_device_open("soft:0", &device) != 0) /* the device first, then files: gaia.h says why */
        err(1, "soft:0");
    int fd = open(argv[1], O_RDWR);
    if (fd < 0 || fstat(fd, &status) != 0)
        err(1, "%s", argv[1]);
    size_t length = (size_t)status.st_size;
    char *text = gaia_mmap(device, length, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (text == MAP_FAILED)
        err(1, "%s", argv[1]);
    if (gaia_macquire(text, length, device) != 0) /* from here on the device sees what others wrote */
        err(1, "gaia_macquire");
    rot13_kernel(text, length);
    if (gaia_mrelease(text, length, device) != 0) /* from here on others see what the device stored */
        err(1, "gaia_mrelease");
    if (gaia_munmap(text, length) != 0)
        err(1, "gaia_munmap");
    gaia_device_close(device);
    if (read(fd, line, sizeof(line) - 1) < 0) /* a plain read(), as any program does it */
        err(1, "%s", argv[1]);
    puts(line);
    return close(fd);
}
