/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/soft.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/memory_file.h"
#include "gpu/driver.h"
#include "gpu/mapping.h"
#include "gpu/session.h"
#include "gpu/uffd.h"

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* With privilege every fault is served; without it those of user mode (read(2) into device memory gives
 * EFAULT then). */
static int open_userfaultfd(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && errno == EPERM) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        if (device >= 0) {
            fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
            close(device);
        }
    }
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    fd = above_standard(fd);
    return fd < 0 ? -errno : fd;
}

static int register_range(int faults, void *address, size_t length, bool writable)
{
    struct uffdio_register registration = {.range = {.start = (uintptr_t)address, .len = length},
                                           .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR |
                                                   (writable ? UFFDIO_REGISTER_MODE_WP : 0)};

    return ioctl(faults, UFFDIO_REGISTER, &registration) ? -errno : 0;
}

/* Whether a page can be mapped write protected in one step: tried on a page of our own. */
static bool probe_traps(int faults)
{
    /* No memfd: to give it a length would be a signal for who may write no file (RLIMIT_FSIZE). */
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct uffdio_continue c = {.range = {.start = (uintptr_t)page, .len = 4096},
                                .mode = UFFDIO_CONTINUE_MODE_WP};
    bool traps = false;

    if (page == MAP_FAILED)
        return false;
    *(volatile char *)page = 0; /* the page is there, and then not in the mapping */
    if (!munlock(page, 4096) && !madvise(page, 4096, MADV_DONTNEED))
        traps = !register_range(faults, page, 4096, true) && !ioctl(faults, UFFDIO_CONTINUE, &c);
    munmap(page, 4096);
    return traps;
}

int gaia_soft_open_faults(int *faults_out, bool *traps_out)
{
    const char *wish = getenv("GAIA_SOFT_TRAP"); /* 0: behave as on an older kernel (for tests) */
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                         UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM |
                                         UFFD_FEATURE_THREAD_ID};
    int fd = open_userfaultfd();

    if (fd < 0)
        return fd;
    if (ioctl(fd, UFFDIO_API, &api)) {
        close(fd);
        return -ENOSYS;
    }
    *traps_out = !(wish && !strcmp(wish, "0")) && probe_traps(fd);
    *faults_out = fd;
    return 0;
}

/* Read-only clients map privately: userfaultfd takes no shared mapping of a descriptor that is open for
 * reading only, and a private one shows the same pages until it is stored to, which PROT_READ forbids. */
static int reserve_range(int faults, int frames, size_t length, off_t offset, bool writable,
                         void **address_out)
{
    /* Without access at first: with mlockall(MCL_FUTURE) Linux fills what can be accessed, with zeros that no
     * touch would ever come to the daemon for. Nor must it later. */
    void *address;
    int error = gaia_mapping_map(length, PROT_NONE, (writable ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE,
                                 frames, offset, &address);

    if (error)
        return error;
    /* A core dump gets none of other files either: Linux would look at each page, which takes a second for
     * each GiB. */
    error = madvise(address, length, MADV_DONTDUMP) ? -errno : 0;
    if (!error)
        error = register_range(faults, address, length, writable);
    if (!error && (munlock(address, length) ||
                   mprotect(address, length, writable ? PROT_READ | PROT_WRITE : PROT_READ)))
        error = -errno;
    if (error) {
        munmap(address, length);
        return error;
    }
    *address_out = address;
    return 0;
}

/* What stands at blocked addresses is of this file, at an offset that says where, and of which mapping: so
 * neighbours are one area to the kernel, which allows a process so many, and are told from what the program
 * has put there, or another mapping, when the program has taken that away again. */
#define BLOCKED "/memfd:gaia:blocked "

static off_t blocked_at(const struct gaia_mapping *mapping, uintptr_t address)
{
    return (off_t)((uint64_t)mapping->cut << 47 | (address & (((uint64_t)1 << 47) - 1)));
}

/* What is in the place of a mapping no child of fork() gets, as it gets no mapping; nor a core dump, in which
 * the SIGBUS may well end. */
static void keep_here(void *address, size_t length)
{
    madvise(address, length, MADV_DONTFORK);
    madvise(address, length, MADV_DONTDUMP);
}

/* Touches of a range that wait look again. (If the program has closed our descriptor they wait for the
 * daemon.)
 */
static void wake(const struct gaia_session *session, struct uffdio_range range)
{
    int faults = gaia_session_faults(session);

    if (faults >= 0)
        ioctl(faults, UFFDIO_WAKE, &range);
}

/* Unmap, but keep the addresses from being used for something else; touches that wait get SIGSEGV. file: -1:
 * they are never free again. 0, or -ENOMEM: the process has as many areas of memory as it may. Then nothing
 * has changed: to unmap a part may be possible yet, but its addresses would be free, and the daemon at them.
 */
static int block_range(const struct gaia_mapping *mapping, int file, void *address, size_t length)
{
    struct uffdio_range range = {.start = (uintptr_t)address, .len = length};
    int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED | (file < 0 ? MAP_ANONYMOUS : 0);

    if (mmap(address, length, PROT_NONE, flags, file, blocked_at(mapping, range.start)) == MAP_FAILED)
        return -ENOMEM;
    keep_here(address, length);
    wake(mapping->session, range);
    return 0;
}

/* Whether a line of /proc/thread-self/maps is of ours: blocked addresses, or those that could not be. (Where
 * all could be, what looks so is another mapping's.) */
static bool is_ours(const struct gaia_mapping *mapping, const char *line, uintptr_t first, uint64_t at)
{
    return strstr(line, BLOCKED) ? at == (uint64_t)blocked_at(mapping, first)
                                 : mapping->shown && (strstr(line, "/memfd:gaiafs:frames ") ||
                                                      strstr(line, "/memfd:gaia:gone "));
}

/* /proc/thread-self/maps, read without memory, of which the program may have none: not by stdio. (Of "self"
 * it is empty once the first thread has ended.) */
struct maps {
    int fd;
    size_t at, length;
    char bytes[1024];
};

/* The next line, of a longer one as much as there is room for. False: there is none. */
static bool next_line(struct maps *maps, char *line, size_t size)
{
    size_t used = 0;

    for (;;) {
        if (maps->at == maps->length) {
            ssize_t got;
            do
                got = read(maps->fd, maps->bytes, sizeof maps->bytes);
            while (got < 0 && errno == EINTR);
            if (got <= 0)
                return false;
            maps->at = 0;
            maps->length = (size_t)got;
        }
        char next = maps->bytes[maps->at++];
        if (next == '\n')
            break;
        if (used + 1 < size)
            line[used++] = next;
    }
    line[used] = '\0';
    return true;
}

/* What was blocked is free for others, but for what the program has put there with MAP_FIXED, unless it does
 * so just between our look and munmap(): nothing of Linux unmaps on a condition. (Where /proc is not to be
 * had it stays blocked: addresses are lost, and no memory, but for what could not be blocked.) */
static void unblock(const struct gaia_mapping *mapping)
{
    uintptr_t from = (uintptr_t)mapping->address, to = from + mapping->length;
    struct maps maps = {.fd = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC)};
    char line[256]; /* with all of our names */

    while (maps.fd >= 0 && next_line(&maps, line, sizeof line)) {
        unsigned long first, behind, at;
        if (sscanf(line, "%lx-%lx %*s %lx", &first, &behind, &at) != 3 || behind <= from || first >= to ||
            !is_ours(mapping, line, first, at))
            continue;
        first = first > from ? first : from;
        behind = behind < to ? behind : to;
        munmap((void *)first, behind - first);
    }
    if (maps.fd >= 0)
        close(maps.fd);
}

/* Behind whatever a program can print in the moment in which that memory is its standard output, when it has
 * closed that before its session was made. */
#define NOTHING_AT ((off_t)1 << 50)

/* Whatever touches the range gets SIGBUS, now and later, also touches that wait for the daemon: every touch
 * is past the end of that memory. */
static void kill_range(const struct gaia_mapping *mapping, void *address, size_t length)
{
    struct uffdio_range range = {.start = (uintptr_t)address, .len = length};

    if (mmap(address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             gaia_session_gone(mapping->session), NOTHING_AT) != MAP_FAILED)
        keep_here(address, length);
    else if (block_range(mapping, -1, address, length) && /* SIGSEGV, then: never wrong bytes */
             mprotect(address, length, PROT_NONE)) /* which needs no further area, and keeps the addresses */
        munmap(address, length);
    wake(mapping->session, range);
}

/* --- as a driver --- */

static int soft_map(struct gaia_mapping *mapping, const struct gaia_message *reply, int frames)
{
    (void)reply;
    return reserve_range(mapping->session->faults, frames, mapping->length, mapping->offset,
                         mapping->writable, &mapping->address);
}

static void soft_unmap(struct gaia_mapping *mapping)
{
    /* The daemon was not told, and may still touch its pages: the addresses stay blocked. */
    if (mapping->session->dead && gaia_session_is_lost(mapping->session)) {
        if (!mapping->cut)
            kill_range(mapping, mapping->address, mapping->length);
        return;
    }
    if (mapping->cut) { /* then all of it was, piece by piece */
        unblock(mapping);
        return;
    }
    kill_range(mapping, mapping->address, mapping->length);
    munmap(mapping->address, mapping->length);
}

static int soft_block(struct gaia_mapping *mapping, void *address, size_t length)
{
    struct gaia_session *session = mapping->session;

    if (!descriptor_is_ours(session->blocked, &session->blocked_mark)) {
        session->blocked = above_standard(memory_file("gaia:blocked", 0));
        session->blocked_mark = descriptor_mark(session->blocked);
    }
    return block_range(mapping, session->blocked, address, length);
}

/* A process that has as many areas of memory as it may gets none in the place of another one. But what is an
 * area, or several, may lose its access. */
static int soft_bar(struct gaia_mapping *mapping, void *address, size_t length)
{
    struct uffdio_range range = {.start = (uintptr_t)address, .len = length};
    int error = mprotect(address, length, PROT_NONE) ? -ENOMEM : 0;

    if (!error)
        wake(mapping->session, range);
    return error;
}

static void soft_kill(struct gaia_mapping *mapping, void *address, size_t length)
{
    kill_range(mapping, address, length);
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* Linux 5.18 */
#endif

static void soft_refresh(struct gaia_mapping *mapping, void *address, size_t length)
{
    (void)mapping;
    if (madvise(address, length, MADV_DONTNEED)) /* the program has locked it (mlock) */
        madvise(address, length, MADV_DONTNEED_LOCKED);
}

const struct gaia_driver gaia_soft_driver = {
    .soft = true,
    .map = soft_map,
    .unmap = soft_unmap,
    .block = soft_block,
    .bar = soft_bar,
    .kill = soft_kill,
    .refresh = soft_refresh,
};
