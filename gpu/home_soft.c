/* SPDX-License-Identifier: Apache-2.0 */
/* The soft device, the home's half: frames are the pages of a memfd. Clients map it; their faults come
 * through userfaultfd (MISSING and MINOR), first stores through its write protection, and a page goes away by
 * a hole.
 *
 * Every mapping of the memfd is registered for MINOR faults, so a page that the home has placed is seen by
 * nobody until it is exposed (UFFDIO_CONTINUE).
 */
#include "base/proc_path.h"
#include "gpu/device.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/memory_file.h"
#include "base/shared_page.h"
#include "base/thread.h"
#include "gpu/home_copy.h"
#include "gpu/uffd.h"

struct soft_frames;

struct gaia_frames_map {
    struct soft_frames *frames;
    LIST_ENTRY(gaia_frames_map) link; /* frames->maps, under frames->maps_lock */
    struct gaia_process process;
    uint64_t address;
    uint64_t first, count;
    bool writable, can_trap;
    _Atomic bool restless; /* its client was waited for in vain: be_patient() */
};

struct soft_frames {
    struct gaia_frames base;
    int fd;
    bool exposes;               /* soft_place_exposed() */
    pthread_rwlock_t maps_lock; /* read: calls on maps; write: attach, detach. Nothing is locked inside it. */
    LIST_HEAD(, gaia_frames_map) maps;
};

static struct soft_frames *soft(struct gaia_frames *frames)
{
    return (struct soft_frames *)frames;
}

static int soft_share(struct gaia_frames *frames, bool writable, uint64_t chunk, int *fd_out)
{
    (void)chunk; /* one memfd has all */
    int fd = open(proc_path(soft(frames)->fd).text, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *fd_out = fd;
    return 0;
}

static int soft_attach(struct gaia_frames *frames, const struct gaia_process *process, uint64_t address,
                       uint64_t first, uint64_t count, bool writable, bool can_trap,
                       struct gaia_frames_map **map_out)
{
    struct gaia_frames_map *map = calloc(1, sizeof *map);

    if (!map)
        return -ENOMEM;
    *map = (struct gaia_frames_map){.frames = soft(frames),
                                    .process = *process,
                                    .address = address,
                                    .first = first,
                                    .count = count,
                                    .writable = writable,
                                    .can_trap = can_trap};
    pthread_rwlock_wrlock(&map->frames->maps_lock);
    LIST_INSERT_HEAD(&map->frames->maps, map, link);
    pthread_rwlock_unlock(&map->frames->maps_lock);
    *map_out = map;
    return 0;
}

static void soft_detach(struct gaia_frames_map *map)
{
    pthread_rwlock_wrlock(&map->frames->maps_lock);
    LIST_REMOVE(map, link);
    pthread_rwlock_unlock(&map->frames->maps_lock);
    free(map);
}

/* The part of a run that map covers, as addresses of its client. */
static bool map_range(const struct gaia_frames_map *map, uint64_t page, uint64_t count,
                      struct uffdio_range *range)
{
    uint64_t begin = page > map->first ? page : map->first;
    uint64_t end = page + count < map->first + map->count ? page + count : map->first + map->count;

    if (begin >= end)
        return false;
    range->start = map->address + (begin - map->first) * GAIA_PAGE_SIZE;
    range->len = (end - begin) * GAIA_PAGE_SIZE;
    return true;
}

/* The last page that a file can have is none of a memfd's, as all of it would lie before the end. Nor can
 * anybody map it. */
static off_t length_of(uint64_t pages)
{
    const uint64_t most = INT64_MAX / GAIA_PAGE_SIZE;

    return (off_t)((pages < most ? pages : most) * GAIA_PAGE_SIZE);
}

static int soft_resize(struct gaia_frames *frames, uint64_t pages)
{
    return ftruncate(soft(frames)->fd, length_of(pages)) ? -errno : 0;
}

/* Not stores through a mapping: these allocate pages without clearing them first, and a file that is
 * truncated meanwhile is no SIGBUS. */
static int soft_place(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes)
{
    size_t length = count * GAIA_PAGE_SIZE, done = 0;

    if (count >= HOME_COPY_LEAST)
        done = home_copy_run(soft(frames)->fd, page, count, bytes) * GAIA_PAGE_SIZE;

    while (done < length) {
        ssize_t n = pwrite(soft(frames)->fd, (const uint8_t *)bytes + done, length - done,
                           (off_t)(page * GAIA_PAGE_SIZE + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

/* The kernel refuses with EAGAIN while the client's mmap is changing: for a moment, which is waited for. A
 * client that has asked for events (libgaia has not) can keep it so: until its fault thread, which may be the
 * one that waits here, has read them, or by changing it without pause. Who gives such a one up serves its
 * touch, or traps its store, not at all: the touch comes again, and a store that was not trapped may be lost,
 * or be seen on this device alone; the client is one that may store there. Others wait for it, too: who wants
 * the same pages, or releases what it has mapped. So a call waits so long in all, whatever its range is and
 * whether anything moves meanwhile, with no lock held (who wants to attach waits for nothing of this); and
 * the next ones don't wait, until one has gone through. */
#define PATIENCE_MS 200u
#define TRIES_LEAST 100u /* though the time is over: the machine may be a busy one */

struct patience {
    unsigned tries;
    struct timespec until; /* set by the first */
};

/* Whether to try again. No lock is held. */
static bool be_patient(struct patience *patience)
{
    lock_none("be_patient");
    if (!patience->tries++)
        patience->until = lock_wait_until(PATIENCE_MS);
    if (patience->tries <= TRIES_LEAST)
        return true;
    usleep(50);
    return !lock_is_past(&patience->until);
}

/* Whether the client is worth the wait. over: there is no patience left. */
static bool is_waited_for(struct gaia_frames_map *map, bool changing, bool over)
{
    if ((!changing || over) && map->restless != changing)
        map->restless = changing;
    return changing && !map->restless;
}

/* Whether the file ends before this byte of the map, by now: the kernel says EINVAL or EFAULT then. */
static bool is_cut_off(const struct gaia_frames_map *map, uint64_t offset)
{
    struct stat st;

    return !fstat(map->frames->fd, &st) &&
           map->first * GAIA_PAGE_SIZE + offset > (uint64_t)st.st_size; /* offset is behind the page */
}

/* Continue one range in a client. A client that died, or unmapped the whole range meanwhile, is no error: it
 * waits for nothing. *done_out: bytes that are done with; -ENOENT: something is not mapped there (any more);
 * -EAGAIN: nothing is done, as the client's mmap is changing. */
static int continue_range(struct gaia_frames_map *map, struct uffdio_range range, uint64_t mode,
                          uint64_t *done_out)
{
    struct uffdio_continue c = {.range = range, .mode = mode};

    *done_out = range.len;
    if (!ioctl(map->process.faults, UFFDIO_CONTINUE, &c))
        return 0;
    int error = -errno;
    *done_out = c.mapped > 0 ? (uint64_t)c.mapped : 0;
    if (error == -EAGAIN) /* go on behind what was done */
        return *done_out ? 0 : error;
    /* One page that is exposed already, or that is not mapped any more: its touch finds out. */
    struct uffdio_range one = {.start = range.start + *done_out, .len = GAIA_PAGE_SIZE};
    ioctl(map->process.faults, UFFDIO_WAKE, &one);
    *done_out += GAIA_PAGE_SIZE;
    return error == -EEXIST || is_cut_off(map, range.start - map->address + *done_out) ? 0 : error;
}

/* No lock: the map stays, as the call is on it. */
static int soft_expose(struct gaia_frames_map *map, uint64_t page, uint64_t count, bool trap_stores)
{
    struct uffdio_range range;
    uint64_t mode = trap_stores && map->writable && map->can_trap ? UFFDIO_CONTINUE_MODE_WP : 0, done;
    struct patience patience = {0};
    bool holes = false, over = false;
    int error = 0;

    lock_none("UFFDIO_CONTINUE");
    if (!map_range(map, page, count, &range))
        return 0;
    while (range.len && !error) {
        struct uffdio_range piece = range;
        if (holes) /* the client has unmapped a part: one call stops at it, and says nothing of the rest */
            piece.len = GAIA_PAGE_SIZE;
        error = continue_range(map, piece, mode, &done);
        if (error == -ENOENT) {
            if (!holes)
                done = 0;
            holes = true;
            error = 0;
        } else if (is_waited_for(map, error == -EAGAIN, over)) {
            over = !be_patient(&patience);
            error = 0;
        }
        range.start += done;
        range.len -= done < range.len ? done : range.len;
    }
    if (error == -EAGAIN) /* who waits touches again */
        ioctl(map->process.faults, UFFDIO_WAKE, &range);
    return error == -ESRCH || error == -EAGAIN ? 0 : error;
}

/* UFFDIO_COPY allocates, fills, inserts and maps a page in one step, and takes no lock of the memfd. Not into
 * a private mapping, which is a reader's: what it puts there no other client sees. The page is charged to the
 * client's control group, so that is one that does not mind. */
static uint64_t soft_place_exposed(struct gaia_frames_map *map, uint64_t page, uint64_t count,
                                   const void *bytes)
{
    struct uffdio_range range;
    uint64_t done = 0;

    lock_none("UFFDIO_COPY");
    if (!map->frames->exposes || !map->writable || !map->can_trap || !map->process.charged ||
        !map_range(map, page, count, &range) || range.len != count * GAIA_PAGE_SIZE)
        return 0;
    while (done < range.len) {
        struct uffdio_copy copy = {.dst = range.start + done,
                                   .src = (uintptr_t)bytes + done,
                                   .len = range.len - done,
                                   .mode = UFFDIO_COPY_MODE_WP};
        if (!ioctl(map->process.faults, UFFDIO_COPY, &copy))
            return count;
        if (copy.copy <= 0) /* it has bytes, it is cut off, the client is gone, or changes its mmap */
            break;
        done += (uint64_t)copy.copy;
    }
    return done / GAIA_PAGE_SIZE;
}

static int write_protect_range(struct gaia_frames_map *map, struct uffdio_range range, uint64_t mode)
{
    struct uffdio_writeprotect wp = {.range = range, .mode = mode};

    return ioctl(map->process.faults, UFFDIO_WRITEPROTECT, &wp) ? -errno : 0;
}

/* -EAGAIN: the client's mmap is changing, and any part of it may be done. */
static int map_write_protect(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint64_t mode)
{
    struct uffdio_range range;

    if (!map->writable || !map_range(map, page, count, &range))
        return 0;
    int error = write_protect_range(map, range, mode);
    if (error ==
        -ENOENT) { /* the client has unmapped a part; what lies behind it must be protected all the same */
        struct uffdio_range one = {.start = range.start, .len = GAIA_PAGE_SIZE};
        error = 0;
        for (; one.start < range.start + range.len && (!error || error == -ENOENT); one.start += one.len)
            error = write_protect_range(map, one, mode);
    }
    return error == -ENOENT || error == -ESRCH ? 0 : error; /* who is gone stores nothing */
}

/* All of them again, when one is waited for: maps may come and go meanwhile. */
static int soft_protect(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    struct patience patience = {0};
    struct gaia_frames_map *map;
    bool again, over = false;
    int error;

    do {
        again = false;
        error = 0;
        pthread_rwlock_rdlock(&soft(frames)->maps_lock);
        LIST_FOREACH (map, &soft(frames)->maps, link) {
            int one = map_write_protect(map, page, count, UFFDIO_WRITEPROTECT_MODE_WP);
            again |= is_waited_for(map, one == -EAGAIN, over);
            error = error || one == -EAGAIN ? error : one;
        }
        pthread_rwlock_unlock(&soft(frames)->maps_lock);
        over = again && !be_patient(&patience);
    } while (again);
    return error;
}

/* No lock: the map stays, as the call is on it. */
static int soft_unprotect(struct gaia_frames_map *map, uint64_t page, uint64_t count)
{
    struct patience patience = {0};
    struct uffdio_range range;
    bool again, over = false;
    int error;

    lock_none("UFFDIO_WRITEPROTECT");
    do {
        error = map_write_protect(map, page, count, 0);
        again = is_waited_for(map, error == -EAGAIN, over);
        over = again && !be_patient(&patience);
    } while (again);
    if (error == -EAGAIN && map_range(map, page, count, &range)) /* who waits stores again */
        ioctl(map->process.faults, UFFDIO_WAKE, &range);
    return error == -EAGAIN ? 0 : error;
}

static void soft_wake(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    struct gaia_frames_map *map;
    struct uffdio_range range;

    pthread_rwlock_rdlock(&soft(frames)->maps_lock);
    LIST_FOREACH (map, &soft(frames)->maps, link)
        if (map_range(map, page, count, &range))
            ioctl(map->process.faults, UFFDIO_WAKE, &range);
    pthread_rwlock_unlock(&soft(frames)->maps_lock);
}

static bool can_poison(void)
{
    const char *wish = getenv("GAIA_SOFT_POISON"); /* 0: behave as on a kernel before 6.6 (for tests) */

    return !wish || strcmp(wish, "0");
}

static int signal_thread(const struct gaia_process *process, uint32_t thread)
{
    struct pollfd end = {.fd = process->lives, .events = POLLIN};

    if (process->lives > 0 && poll(&end, 1, 0) > 0)
        return -ESRCH;
    return thread_signal(process->pid, process->apart, process->user, (pid_t)thread, SIGBUS);
}

static int poison_range(const struct gaia_process *process, struct uffdio_range range, uint32_t thread)
{
    struct uffdio_poison poison = {.range = range};

    if (can_poison() && !ioctl(process->faults, UFFDIO_POISON, &poison))
        return 0;
    /* A page that was write protected when its frame was dropped has left a mark, which no poison replaces:
     * every touch of it would come back here. Whoever poisons has the page busy, so it is not there: what is
     * taken away is at most that mark. */
    if (can_poison() && errno == EEXIST) {
        struct uffdio_writeprotect unmark = {.range = range};
        if (!ioctl(process->faults, UFFDIO_WRITEPROTECT, &unmark) &&
            !ioctl(process->faults, UFFDIO_POISON, &poison))
            return 0;
        errno = EEXIST;
    }
    if (can_poison() && (errno == ESRCH || errno == ENOENT || errno == EEXIST))
        return 0;
    /* The signal ends the thread's wait. A thread that comes back from a handler of its touches again, and
     * gets the next one: as for a poisoned page. It waits for this very fault, so the number is still its. */
    return thread && !signal_thread(process, thread) ? 0 : -ENOSYS;
}

static int soft_poison(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint32_t thread)
{
    struct uffdio_range range;
    int error = 0;

    pthread_rwlock_rdlock(&map->frames->maps_lock);
    if (map_range(map, page, count, &range)) {
        error = poison_range(&map->process, range, thread);
        ioctl(map->process.faults, UFFDIO_WAKE, &range);
    }
    pthread_rwlock_unlock(&map->frames->maps_lock);
    return error;
}

static void soft_refuse(struct gaia_frames_map *map, uint64_t page, uint32_t thread)
{
    struct uffdio_range range;

    if (thread)
        signal_thread(&map->process, thread);
    pthread_rwlock_rdlock(&map->frames->maps_lock);
    if (map_range(map, page, 1, &range))
        ioctl(map->process.faults, UFFDIO_WAKE, &range);
    pthread_rwlock_unlock(&map->frames->maps_lock);
}

static int soft_drop(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    off_t offset = (off_t)(page * GAIA_PAGE_SIZE);

    if (fallocate(soft(frames)->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                  (off_t)(count * GAIA_PAGE_SIZE)))
        return -errno;
    return 0;
}

/* Without the memfd's lock, which a client may have for as long as it likes: the kernel stores by way of a
 * mapping of ours. What a client has cut off is no SIGBUS so, but EFAULT. */
static int store_by_mapping(struct gaia_frames *frames, uint64_t page, size_t from, const void *bytes,
                            size_t length)
{
    struct iovec source = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    off_t offset = (off_t)(page * GAIA_PAGE_SIZE);
    int error = 0;

    uint8_t *memory = mmap(NULL, from + length, PROT_READ | PROT_WRITE, MAP_SHARED, soft(frames)->fd, offset);
    if (memory == MAP_FAILED)
        return -errno;
    struct iovec place = {.iov_base = memory + from, .iov_len = length};
    ssize_t n = process_vm_writev(getpid(), &source, 1, &place, 1, 0);
    if (n != (ssize_t)length)
        error = n < 0 ? -errno : -EFAULT; /* at the first page that is cut off */
    munmap(memory, from + length);
    return error;
}

static int soft_place_unheld(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes)
{
    uint64_t done = home_copy_run(soft(frames)->fd, page, count, bytes);
    const uint8_t *rest = (const uint8_t *)bytes + done * GAIA_PAGE_SIZE;

    return done < count ? store_by_mapping(frames, page + done, 0, rest, (count - done) * GAIA_PAGE_SIZE) : 0;
}

static int soft_clear(struct gaia_frames *frames, uint64_t page, size_t from)
{
    static uint8_t zeros[GAIA_PAGE_SIZE];
    size_t length = GAIA_PAGE_SIZE - from;
    ssize_t n;

    /* A file's lock is held here. What is cut off reads as zeros anyway. */
    int error = store_by_mapping(frames, page, from, zeros, length);
    if (!error || error == -EFAULT)
        return 0;
    do
        n = pwrite(soft(frames)->fd, zeros, length, (off_t)(page * GAIA_PAGE_SIZE + from));
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)length ? 0 : n < 0 ? -errno : -EIO;
}

/* preadv2() and no mapping of the home's own: a client that may write can cut the memfd off, and a load past
 * its end would be SIGBUS for the daemon. What is cut off reads as zeros. */
static int soft_fetch(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out)
{
    struct iovec parts[GAIA_FETCH_MAX];
    size_t length = count * GAIA_PAGE_SIZE, done = 0;

    assert(count && count <= GAIA_FETCH_MAX);
    while (done < length) {
        unsigned first = (unsigned)(done / GAIA_PAGE_SIZE);
        size_t within = done % GAIA_PAGE_SIZE;
        for (unsigned i = first; i < count; i++)
            parts[i] = (struct iovec){.iov_base = pages_out[i], .iov_len = GAIA_PAGE_SIZE};
        parts[first].iov_base = (uint8_t *)pages_out[first] + within;
        parts[first].iov_len -= within;
        ssize_t n = preadv2(soft(frames)->fd, parts + first, (int)(count - first),
                            (off_t)(page * GAIA_PAGE_SIZE + done), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (!n)
            break;
        done += (size_t)n;
    }
    for (; done < length; done += GAIA_PAGE_SIZE - done % GAIA_PAGE_SIZE)
        memset((uint8_t *)pages_out[done / GAIA_PAGE_SIZE] + done % GAIA_PAGE_SIZE, 0,
               GAIA_PAGE_SIZE - done % GAIA_PAGE_SIZE);
    return 0;
}

static int soft_extent(struct gaia_frames *frames, uint64_t *length_out, uint64_t *pages_out)
{
    struct stat st;

    if (fstat(soft(frames)->fd, &st))
        return -errno;
    *length_out = ((uint64_t)st.st_size + GAIA_PAGE_SIZE - 1) / GAIA_PAGE_SIZE;
    *pages_out = (uint64_t)st.st_blocks * 512 / GAIA_PAGE_SIZE;
    return 0;
}

static void soft_close(struct gaia_frames *frames)
{
    home_copy_forget(soft(frames)->fd);
    close(soft(frames)->fd);
    pthread_rwlock_destroy(&soft(frames)->maps_lock);
    free(frames);
}

static const struct gaia_frames_ops soft_ops = {
    .share = soft_share,
    .attach = soft_attach,
    .detach = soft_detach,
    .resize = soft_resize,
    .place = soft_place,
    .place_unheld = soft_place_unheld,
    .bounces = true,
    .expose = soft_expose,
    .place_exposed = soft_place_exposed,
    .protect = soft_protect,
    .unprotect = soft_unprotect,
    .wake = soft_wake,
    .poison = soft_poison,
    .refuse = soft_refuse,
    .drop = soft_drop,
    .clear = soft_clear,
    .fetch = soft_fetch,
    .extent = soft_extent,
    .close = soft_close,
};

int gaia_soft_frames_open(uint64_t pages, struct gaia_frames **frames_out)
{
    struct soft_frames *frames = calloc(1, sizeof *frames);
    if (!frames)
        return -ENOMEM;
    const char *wish = getenv("GAIA_SOFT_COPY"); /* for tests: 0, or windows */
    frames->exposes = !wish || (strcmp(wish, "0") && strcmp(wish, "windows"));
    frames->base.ops = &soft_ops;
    LIST_INIT(&frames->maps);
    lock_rw_init(&frames->maps_lock, LOCK_MAPS, false);
    int error = 0;
    /* No seal keeps a client from filling it (cache/fit.h). F_SEAL_GROW would, past the end, but the file
     * may grow, and no seal can be taken away; and within the end a sparse file has all the room that there
     * is. F_SEAL_WRITE and F_SEAL_FUTURE_WRITE are for us and for clients' mappings, too. */
    frames->fd = memory_file("gaiafs:frames", 0);
    if (frames->fd < 0) {
        error = -errno;
        goto out_free;
    }
    /* It can be sealed, as it can't be executed: a client that did would have its frames stay for ever. */
    (void)fcntl(frames->fd, F_ADD_SEALS, F_SEAL_SEAL);
    /* A client that has only a read-only descriptor must not be able to reopen it for writing. */
    if (fchmod(frames->fd, shared_memory_mode()) || ftruncate(frames->fd, length_of(pages))) {
        error = -errno;
        goto out_close;
    }
    *frames_out = &frames->base;
    return 0;

out_close:
    close(frames->fd);
out_free:
    pthread_rwlock_destroy(&frames->maps_lock);
    free(frames);
    return error;
}

bool gaia_soft_is_faults(int fd)
{
    char link[64];

    ssize_t n = readlink(proc_path(fd).text, link, sizeof link - 1);
    if (n < 0)
        return false;
    link[n] = '\0';
    return !strcmp(link, "anon_inode:[userfaultfd]");
}

int gaia_soft_wait(int faults, int stop, struct gaia_fault *fault_out, unsigned max)
{
    struct uffd_msg messages[32];
    struct pollfd wait[2] = {{.fd = faults, .events = POLLIN}, {.fd = stop, .events = POLLIN}};

    if (max > sizeof messages / sizeof messages[0])
        max = sizeof messages / sizeof messages[0];
    lock_none("gaia_soft_wait");
    for (;;) {
        ssize_t n = read(faults, messages, max * sizeof messages[0]);
        if (n > 0) {
            int count = 0;
            for (size_t i = 0; i < (size_t)n / sizeof messages[0]; i++) {
                if (messages[i].event == UFFD_EVENT_FORK) /* not asked for by libgaia: not wanted */
                    close((int)messages[i].arg.fork.ufd);
                if (messages[i].event != UFFD_EVENT_PAGEFAULT)
                    continue;
                uint64_t flags = messages[i].arg.pagefault.flags;
                fault_out[count++] = (struct gaia_fault){
                    .address = messages[i].arg.pagefault.address & ~(uint64_t)(GAIA_PAGE_SIZE - 1),
                    .write = flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP),
                    .protection = flags & UFFD_PAGEFAULT_FLAG_WP,
                    .thread = messages[i].arg.pagefault.feat.ptid};
            }
            if (count)
                return count;
            continue;
        }
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        if (poll(wait, 2, -1) < 0 && errno != EINTR)
            return -errno;
        if (wait[1].revents)
            return 0;
        if (wait[0].revents & (POLLERR | POLLNVAL))
            return -ESRCH;
    }
}
