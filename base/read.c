/* SPDX-License-Identifier: Apache-2.0 */
#include "base/read.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

ssize_t read_whole(int fd, void *buffer, size_t length, off_t offset)
{
    size_t done = 0;

    /* Of the last page that there can be Linux reads all but the last byte: beyond that it is EINVAL. */
    if (offset >= 0 && length > (uint64_t)(INT64_MAX - offset))
        length = (size_t)(INT64_MAX - offset);
    while (done < length) {
        ssize_t n = pread(fd, (char *)buffer + done, length - done, offset + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) /* a short read would be the end of the file to the kernel, and zeros behind it */
            return -errno;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}
