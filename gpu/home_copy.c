/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/home_copy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/lock.h"
#include "consistency/page.h"
#include "gpu/uffd.h"

/* Each thread that places uses one for some milliseconds, and comes back to it for the next run: 16 MiB are
 * 32 runs of a stream, a hundred times what it takes to move the window. */
#define WINDOWS 16u
#define WINDOW_PAGES 4096u
#define WINDOW_BYTES ((size_t)WINDOW_PAGES * GAIA_PAGE_SIZE)

struct window {
    uint8_t *area;  /* NULL: none */
    int fd;         /* whose pages it shows; -1: nobody's */
    uint64_t first; /* page */
    unsigned users; /* copies under way: it stays where it is */
    bool finished;  /* one has come to its end: the stream goes on elsewhere */
    uint64_t used;  /* when, last */
};

static struct {
    pthread_once_t once;
    pthread_mutex_t lock; /* guards the rest; a leaf: nothing is locked inside it */
    struct window windows[WINDOWS];
    uint64_t uses;
    int faults; /* one userfaultfd for all windows, which serves no faults and needs no privilege; -1: none */
    bool refused;
} copies = {.once = PTHREAD_ONCE_INIT, .faults = -1};

static void init_copies(void)
{
    const char *wish = getenv("GAIA_SOFT_COPY");

    lock_init(&copies.lock, LOCK_COPIES);
    for (unsigned i = 0; i < WINDOWS; i++)
        copies.windows[i].fd = -1;
    copies.refused = wish && !strcmp(wish, "0");
}

/* Whether there is a userfaultfd. What the kernel does not have, or does not give us, is not asked for again;
 * what is only used up is. Lock held. */
static bool have_faults(void)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_SHMEM};

    if (copies.faults >= 0 || copies.refused)
        return !copies.refused;
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd < 0) {
        copies.refused = errno != EMFILE && errno != ENFILE && errno != ENOMEM;
        return false;
    }
    if (ioctl(fd, UFFDIO_API, &api)) {
        close(fd);
        copies.refused = true;
        return false;
    }
    copies.faults = fd;
    return true;
}

static void empty_window(struct window *window)
{
    if (window->area)
        munmap(window->area, WINDOW_BYTES);
    *window = (struct window){.fd = -1};
}

/* Lock held. */
static bool move_window(struct window *window, int fd, uint64_t first)
{
    empty_window(window);
    void *area =
        mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(first * GAIA_PAGE_SIZE));
    struct uffdio_register registration = {.range = {.start = (uintptr_t)area, .len = WINDOW_BYTES},
                                           .mode = UFFDIO_REGISTER_MODE_MISSING};

    if (area == MAP_FAILED)
        return false;
    *window = (struct window){.area = area, .fd = fd, .first = first};
    /* MADV_RANDOM: that a page was in the window does not make it a young one. */
    if (!madvise(area, WINDOW_BYTES, MADV_RANDOM) && !madvise(area, WINDOW_BYTES, MADV_DONTDUMP) &&
        !madvise(area, WINDOW_BYTES, MADV_DONTFORK) && !ioctl(copies.faults, UFFDIO_REGISTER, &registration))
        return true;
    empty_window(window);
    return false;
}

/* Which window to move to these pages: that of the stream that comes on to them, or else the one that was
 * used the longest ago. NULL: all are in use. Lock held. */
static struct window *choose_window(int fd, uint64_t first)
{
    struct window *oldest = NULL;

    for (struct window *w = copies.windows; w < copies.windows + WINDOWS; w++) {
        if (w->users)
            continue;
        if (w->fd == fd && w->first + WINDOW_PAGES == first)
            return w;
        if (!oldest || w->used < oldest->used)
            oldest = w;
    }
    return oldest;
}

/* The window that shows the page. It stays until put_window(). NULL: there is none. */
static struct window *get_window(int fd, uint64_t page)
{
    uint64_t first = page - page % WINDOW_PAGES;
    struct window *found = NULL;

    pthread_once(&copies.once, init_copies);
    pthread_mutex_lock(&copies.lock);
    for (struct window *w = copies.windows; w < copies.windows + WINDOWS && !found; w++)
        if (w->fd == fd && w->first == first)
            found = w;
    if (!found && have_faults()) {
        found = choose_window(fd, first);
        if (found && !move_window(found, fd, first))
            found = NULL;
    }
    if (found) {
        found->users++;
        found->used = ++copies.uses;
    }
    pthread_mutex_unlock(&copies.lock);
    return found;
}

/* Whether a stream has gone on to the next one. Lock held. */
static bool is_behind(const struct window *window)
{
    for (const struct window *w = copies.windows; w < copies.windows + WINDOWS; w++)
        if (w->fd == window->fd && w->first == window->first + WINDOW_PAGES)
            return true;
    return false;
}

/* Of a stream: ended: the copy has come to the window's end. It goes at once then, as a page takes longer to
 * drop where a window shows it; and so does one that a thread has come back to which the others have
 * overtaken. Touches in no order come back to any. */
static void put_window(struct window *window, bool stream, bool ended)
{
    pthread_mutex_lock(&copies.lock);
    window->finished |= stream && ended;
    if (!--window->users && (window->finished || (stream && is_behind(window))))
        empty_window(window);
    pthread_mutex_unlock(&copies.lock);
}

/* As home_copy_run(), for pages of one window. No lock is held: it has users. */
static uint64_t copy_pages(const struct window *window, uint64_t page, uint64_t count, const uint8_t *bytes)
{
    uint64_t done = 0;

    while (done < count) {
        struct uffdio_copy copy = {.dst = (uintptr_t)window->area +
                                          (page - window->first + done) * GAIA_PAGE_SIZE,
                                   .src = (uintptr_t)bytes + done * GAIA_PAGE_SIZE,
                                   .len = (count - done) * GAIA_PAGE_SIZE,
                                   .mode = UFFDIO_COPY_MODE_DONTWAKE};
        if (!ioctl(copies.faults, UFFDIO_COPY, &copy))
            return count;
        if (copy.copy > 0)
            done += (uint64_t)copy.copy / GAIA_PAGE_SIZE;
        if (errno != EAGAIN || copy.copy <= 0)
            break;
    }
    return done;
}

uint64_t home_copy_run(int fd, uint64_t page, uint64_t count, const void *bytes)
{
    bool stream = count >= HOME_COPY_LEAST;
    uint64_t done = 0, wanted, got;

    do {
        struct window *window = get_window(fd, page + done);
        if (!window)
            break;
        wanted = window->first + WINDOW_PAGES - (page + done);
        if (wanted > count - done)
            wanted = count - done;
        got = copy_pages(window, page + done, wanted, (const uint8_t *)bytes + done * GAIA_PAGE_SIZE);
        done += got;
        put_window(window, stream, (page + done) % WINDOW_PAGES == 0);
    } while (got == wanted && done < count);
    return done;
}

void home_copy_forget(int fd)
{
    pthread_once(&copies.once, init_copies);
    pthread_mutex_lock(&copies.lock);
    for (unsigned i = 0; i < WINDOWS; i++)
        if (copies.windows[i].fd == fd) {
            assert(!copies.windows[i].users);
            empty_window(&copies.windows[i]);
        }
    pthread_mutex_unlock(&copies.lock);
}
