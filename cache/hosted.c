/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/hosted.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
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

    static atomic_bool is_missing; /* the call; each try costs 0.1 us of a fault */

    if (!length || atomic_load_explicit(&is_missing, memory_order_relaxed))
        return true;
    if (syscall(SYS_cachestat, fd, &range, &stat, 0)) {
        if (errno == ENOSYS)
            atomic_store_explicit(&is_missing, true, memory_order_relaxed);
        return true;
    }
    return stat.cached >= pages;
}

bool hosted_is_memory(int fd)
{
    struct statfs st;

    return !fstatfs(fd, &st) && (st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC);
}

ssize_t hosted_read(int fd, bool in_memory, void *buffer, size_t length, off_t offset)
{
    struct iovec io = {.iov_base = buffer, .iov_len = length};
    ssize_t n;

    do /* a tmpfs refuses RWF_NOWAIT, in Linux 6.18 still; and it need not be asked */
        n = in_memory ? pread(fd, buffer, length, offset) : preadv2(fd, &io, 1, offset, RWF_NOWAIT);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)length ? n : -EAGAIN;
}
