/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that are ours in a program that is not. */
#ifndef GAIAFS_BASE_DESCRIPTOR_H
#define GAIAFS_BASE_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Takes `fd`, and returns a descriptor of the same that is not 0, 1 or 2: if a program has closed these, what
 * it prints must not go to the daemon, or into a device's memory. A negative fd comes back as it is, with
 * errno. -1 and errno EMFILE: there is none left. Any thread. */
static inline int above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error = errno;
    close(fd);
    errno = error;
    return above;
}

#endif
