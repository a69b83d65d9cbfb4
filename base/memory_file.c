/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory_file.h"

#include <errno.h>
#include <sys/mman.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u /* Linux 6.3 */
#endif

int memory_file(const char *name, unsigned flags)
{
    int fd = memfd_create(name, flags | MFD_CLOEXEC | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, flags | MFD_CLOEXEC);
    return fd;
}
