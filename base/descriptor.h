/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that are ours in a program that is not. */
#ifndef GAIAFS_BASE_DESCRIPTOR_H
#define GAIAFS_BASE_DESCRIPTOR_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* One more descriptor of the same, which is not 0, 1 or 2. -1 and errno EMFILE: there is none left, which the
 * kernel calls EINVAL where RLIMIT_NOFILE allows no others than those. Any thread. */
static inline int duplicate_above_standard(int fd)
{
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);

    if (above < 0 && errno == EINVAL)
        errno = EMFILE;
    return above;
}

/* Takes `fd`, and returns a descriptor of the same that is not 0, 1 or 2: if a program has closed these, what
 * it prints must not go to the daemon, or into a device's memory. A negative fd comes back as it is, with
 * errno. -1 and errno EMFILE: there is none left. Any thread. */
static inline int above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int above = duplicate_above_standard(fd);
    int error = errno;
    close(fd);
    errno = error;
    return above;
}

/* Takes those of the numbers 0, 1 and 2 that are free, by what can be neither read nor written, before
 * descriptors come from elsewhere: else one stood there for a moment, and what another thread prints just
 * then would go into it. held_out: to be closed by standard_leave(). */
static inline void standard_hold(int held_out[STDERR_FILENO + 1])
{
    for (int number = 0; number <= STDERR_FILENO; number++) {
        held_out[number] = -1;
        if (fcntl(number, F_GETFD) >= 0)
            continue;
        int fd = open("/", O_PATH | O_CLOEXEC);
        if (fd > number) /* another thread has taken it */
            close(fd);
        else
            held_out[number] = fd;
    }
}

/* But for what another thread has put there meanwhile (dup2()), unless it does so just between our look and
 * close(): nothing of Linux closes on a condition. */
static inline void standard_leave(const int held[STDERR_FILENO + 1])
{
    for (int i = 0; i <= STDERR_FILENO; i++) {
        int flags = held[i] >= 0 ? fcntl(held[i], F_GETFL) : -1;
        if (flags >= 0 && flags & O_PATH)
            close(held[i]);
    }
}

#endif
