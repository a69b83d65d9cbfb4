/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/hosted.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
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

enum hosted hosted_of(int fd)
{
    struct statfs st;

    if (fstatfs(fd, &st))
        return HOSTED_CACHED;
    return st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC ? HOSTED_MEMORY
           : st.f_type == OVERLAYFS_SUPER_MAGIC                 ? HOSTED_LAYER
                                                                : HOSTED_CACHED;
}

#define LOOK_PAGES 1024u /* that are looked at at once */

/* An overlay's own file has no pages, for cachestat(); a mapping of it is one of the layer's file. */
static bool layer_has(int fd, off_t offset, size_t length)
{
    off_t start = offset - offset % (off_t)GAIA_PAGE_SIZE;
    size_t left = length + (size_t)(offset - start), span;
    unsigned char pages[LOOK_PAGES];
    bool all = true;

    for (; left && all; left -= span, start += (off_t)span) {
        span = left < LOOK_PAGES * GAIA_PAGE_SIZE ? left : LOOK_PAGES * GAIA_PAGE_SIZE;
        void *map = mmap(NULL, span, PROT_READ, MAP_PRIVATE, fd, start);
        if (map == MAP_FAILED)
            return false;
        all = !mincore(map, span, pages);
        for (size_t i = 0; i < (span + GAIA_PAGE_SIZE - 1) / GAIA_PAGE_SIZE && all; i++)
            all = pages[i] & 1;
        munmap(map, span);
    }
    return all;
}

bool hosted_all(int fd, enum hosted hosted, off_t offset, size_t length)
{
    struct cachestat_range range = {.offset = (uint64_t)offset, .length = length};
    struct cachestat stat;
    uint64_t first = (uint64_t)offset / GAIA_PAGE_SIZE;
    uint64_t pages = ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE - first + 1;

    static atomic_bool is_missing; /* the call; each try costs 0.1 us of a fault */

    if (length && hosted == HOSTED_LAYER)
        return layer_has(fd, offset, length);
    if (!length || atomic_load_explicit(&is_missing, memory_order_relaxed))
        return true;
    if (syscall(SYS_cachestat, fd, &range, &stat, 0)) {
        if (errno == ENOSYS)
            atomic_store_explicit(&is_missing, true, memory_order_relaxed);
        return true;
    }
    return stat.cached >= pages;
}

ssize_t hosted_read(int fd, enum hosted hosted, void *buffer, size_t length, off_t offset)
{
    struct iovec io = {.iov_base = buffer, .iov_len = length};
    ssize_t n;

    do /* the others refuse RWF_NOWAIT, in Linux 6.18 still */
        n = hosted == HOSTED_CACHED ? preadv2(fd, &io, 1, offset, RWF_NOWAIT)
                                    : pread(fd, buffer, length, offset);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)length ? n : -EAGAIN;
}
