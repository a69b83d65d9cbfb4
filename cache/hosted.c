/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/hosted.h"

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "consistency/page.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* the same number on every architecture */
#endif

/* As in include/uapi/linux/mman.h. */
struct cachestat_range {
    uint64_t offset, length;
};
struct cachestat {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

bool hosted_all(int fd, off_t offset, size_t length)
{
    struct cachestat_range range = {.offset = (uint64_t)offset, .length = length};
    struct cachestat stat;
    uint64_t first = (uint64_t)offset / GAIA_PAGE_SIZE;
    uint64_t pages = ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE - first + 1;

    if (!length)
        return true;
    if (syscall(SYS_cachestat, fd, &range, &stat, 0))
        return true;
    return stat.cached >= pages;
}
