/* SPDX-License-Identifier: Apache-2.0 */
/* The soft device's frames against an array: placed in runs of all lengths, by copies and by writes, dropped,
 * cleared, cut and made longer, also beside each other. What is not there reads as zeros. And a client whose
 * mmap is changing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "gpu/device.h"
#include "gpu/home_copy.h"
#include "gpu/uffd.h"
#include "tests/gate.h"

#define PAGES 9000u /* more than two windows */
#define RUN_MAX 300u

struct world {
    struct gaia_frames *frames;
    uint64_t pages;
    bool present[PAGES];
    uint8_t value[PAGES]; /* of all bytes of a page that is present */
};

static uint8_t bytes[RUN_MAX * GAIA_PAGE_SIZE];
static unsigned seed;

static unsigned below(unsigned n)
{
    return (unsigned)rand_r(&seed) % n;
}

static void assert_page(struct gaia_frames *frames, uint64_t page, int value)
{
    static uint8_t got[GAIA_PAGE_SIZE];
    void *where = got;

    assert_int_equal(frames->ops->fetch(frames, page, 1, &where), 0);
    for (size_t i = 0; i < GAIA_PAGE_SIZE; i++)
        if (got[i] != value)
            fail_msg("byte %zu of page %llu is %d, not %d", i, (unsigned long long)page, got[i], value);
}

static void place(struct world *w, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        w->value[first + i] = (uint8_t)(1 + below(255));
        w->present[first + i] = true;
        memset(bytes + i * GAIA_PAGE_SIZE, w->value[first + i], GAIA_PAGE_SIZE);
    }
    assert_int_equal(w->frames->ops->place(w->frames, first, count, bytes), 0);
}

static void forget(struct world *w, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        w->present[first + i] = false;
}

static void act(struct world *w)
{
    uint64_t first = below((unsigned)w->pages), count = 1 + below(RUN_MAX), page = below((unsigned)w->pages);
    unsigned what = below(20);

    if (count > w->pages - first)
        count = w->pages - first;
    if (what < 10) { /* also over what is there */
        place(w, first, count);
    } else if (what < 15) {
        assert_int_equal(w->frames->ops->drop(w->frames, first, count), 0);
        forget(w, first, count);
    } else if (what < 18) {
        assert_page(w->frames, page, w->present[page] ? w->value[page] : 0);
    } else if (what < 19 && w->present[page]) {
        assert_int_equal(w->frames->ops->clear(w->frames, page, 0), 0);
        w->value[page] = 0;
    } else {
        uint64_t pages = PAGES / 2 + below(PAGES / 2);
        assert_int_equal(w->frames->ops->resize(w->frames, pages), 0);
        if (pages < w->pages)
            forget(w, pages, w->pages - pages);
        w->pages = pages;
    }
}

static void test_against_an_array(void **state)
{
    static struct world w;

    (void)state;
    memset(&w, 0, sizeof w);
    w.pages = PAGES / 3;
    assert_int_equal(gaia_soft_frames_open(w.pages, &w.frames), 0);
    for (unsigned i = 0; i < 600; i++)
        act(&w);
    for (uint64_t page = 0; page < w.pages; page++)
        assert_page(w.frames, page, w.present[page] ? w.value[page] : 0);
    w.frames->ops->close(w.frames);
}

/* A run of which a client has cut off the end comes all the same, as a short one does. */
static void test_past_the_end(void **state)
{
    static struct world w;
    char path[40];
    int fd;

    (void)state;
    memset(&w, 0, sizeof w);
    w.pages = RUN_MAX;
    assert_int_equal(gaia_soft_frames_open(w.pages, &w.frames), 0);
    assert_int_equal(w.frames->ops->share(w.frames, true, 0, &fd), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(truncate(path, 100 * GAIA_PAGE_SIZE), 0);
    place(&w, 50, 200);
    for (uint64_t page = 50; page < 250; page++)
        assert_page(w.frames, page, w.value[page]);
    close(fd);
    w.frames->ops->close(w.frames);
}

struct placer {
    struct gaia_frames *frames;
    uint64_t first;
    int error;
};

#define PLACED (2u * RUN_MAX)

static void *place_some(void *argument)
{
    struct placer *placer = argument;
    uint8_t *run = malloc(RUN_MAX * GAIA_PAGE_SIZE);
    unsigned last = so_many(20) - 1;

    for (unsigned round = 0; run && round <= last; round++)
        for (uint64_t page = placer->first; page < placer->first + PLACED && !placer->error;
             page += RUN_MAX) {
            const struct gaia_frames_ops *ops = placer->frames->ops;
            memset(run, (int)((page - placer->first) / RUN_MAX + round), RUN_MAX * GAIA_PAGE_SIZE);
            placer->error = ops->place(placer->frames, page, RUN_MAX, run);
            if (!placer->error && round < last)
                placer->error = ops->drop(placer->frames, page, RUN_MAX);
        }
    placer->error = run ? placer->error : -1;
    free(run);
    return NULL;
}

/* Each in its own pages, and so far from each other that they need windows of their own, of which there are
 * fewer than threads. */
static void test_beside_each_other(void **state)
{
    enum { PLACERS = 20, FILES = 3 };
    struct gaia_frames *frames[FILES];
    struct placer placers[PLACERS];
    pthread_t threads[PLACERS];

    (void)state;
    for (unsigned f = 0; f < FILES; f++) {
        assert_int_equal(gaia_soft_frames_open((uint64_t)PLACERS * PAGES, &frames[f]), 0);
        for (unsigned i = 0; i < PLACERS; i++) {
            placers[i] = (struct placer){.frames = frames[f], .first = (uint64_t)i * PAGES + 4000};
            assert_int_equal(pthread_create(&threads[i], NULL, place_some, &placers[i]), 0);
        }
        for (unsigned i = 0; i < PLACERS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(placers[i].error, 0);
        }
    }
    for (unsigned f = 0; f < FILES; f++) {
        for (unsigned i = 0; i < PLACERS; i++)
            for (uint64_t page = placers[i].first; page < placers[i].first + PLACED; page++)
                assert_page(frames[f], page,
                            (uint8_t)((page - placers[i].first) / RUN_MAX + so_many(20) - 1));
        frames[f]->ops->close(frames[f]);
    }
}

/* kB of a line of /proc/self/status. */
static unsigned long status(const char *name)
{
    unsigned long kb = 0;
    char line[128];
    FILE *file = fopen("/proc/self/status", "r");

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            kb = strtoul(line + strlen(name) + 1, NULL, 10);
    fclose(file);
    return kb;
}

/* Where the runs are, and of how many files, is nothing that a client may use up our addresses with. */
static void test_far_from_each_other(void **state)
{
    enum { FILES = 60 };
    const uint64_t pages = (UINT64_C(16) << 40) / GAIA_PAGE_SIZE;
    static struct gaia_frames *frames[FILES];
    unsigned long before = status("VmSize"), tables = status("VmPTE");

    (void)state;
    memset(bytes, 9, sizeof bytes);
    for (unsigned f = 0; f < FILES; f++) {
        assert_int_equal(gaia_soft_frames_open(pages, &frames[f]), 0);
        for (unsigned i = 1; i < 16; i++)
            assert_int_equal(frames[f]->ops->place(frames[f], pages / 16 * i - 70, 140, bytes), 0);
    }
    assert_in_range(status("VmSize"), before, before + (300 << 10));
    assert_in_range(status("VmPTE"), 0, tables + (2 << 10));
    for (unsigned f = 0; f < FILES; f++) {
        assert_page(frames[f], pages / 2 - 70, 9);
        assert_page(frames[f], pages / 2 + 69, 9);
        frames[f]->ops->close(frames[f]);
    }
}

/* The same pages of two files. */
static void test_two_files(void **state)
{
    struct gaia_frames *frames[2];

    (void)state;
    for (unsigned f = 0; f < 2; f++) {
        assert_int_equal(gaia_soft_frames_open(RUN_MAX, &frames[f]), 0);
        memset(bytes, (int)f + 1, sizeof bytes);
        assert_int_equal(frames[f]->ops->place(frames[f], 10, 100, bytes), 0);
        assert_page(frames[f], 50, (int)f + 1);
        assert_int_equal(frames[f]->ops->drop(frames[f], 10, 100), 0);
    }
    for (unsigned f = 0; f < 2; f++) {
        assert_page(frames[f], 50, 0);
        frames[f]->ops->close(frames[f]);
    }
}

/* Long runs go by the windows, so that the threads of a stream don't stand in line; else nothing above says
 * anything of them. */
static void test_long_runs_are_copied(void **state)
{
    struct gaia_frames *frames;
    struct stat st;
    int fd, other = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)state;
    memset(bytes, 7, sizeof bytes);
    assert_int_equal(home_copy_run(other, 0, 100, bytes), 0); /* no memory, and no harm is done */
    close(other);
    assert_int_equal(gaia_soft_frames_open(RUN_MAX, &frames), 0);
    assert_int_equal(frames->ops->share(frames, true, 0, &fd), 0);
    if (!home_copy_run(fd, 0, 100, bytes)) {
        close(fd);
        frames->ops->close(frames);
        skip(); /* no userfaultfd is to be had here */
    }
    assert_int_equal(home_copy_run(fd, 0, 100, bytes), 0);     /* they have bytes */
    assert_int_equal(home_copy_run(fd, 100, 300, bytes), 200); /* the rest is past the end */
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_blocks * 512, RUN_MAX * GAIA_PAGE_SIZE);
    assert_page(frames, RUN_MAX - 1, 7);
    home_copy_forget(fd);
    close(fd);
    frames->ops->close(frames);
}

/* ---- a client that has asked for events: while one is not read, its mmap is changing ---- */

#define CLIENT_PAGES 64u
#define HOLE 5u   /* a page where it has nothing of the frames mapped any more */
#define DROPS 60u /* a page that it has the kernel drop: with that the mmap is changing */

enum what { EXPOSE, PROTECT, UNPROTECT, WHATS };

struct eventful {
    struct gaia_frames *frames;
    struct gaia_frames_map *map;
    uint8_t *memory;
    int faults, frames_fd;
    pthread_t changer;
    enum what what; /* of call() */
    int read_ms;    /* of read_event(): when */
};

static struct eventful *_Atomic at_a_hole; /* whose mmap is to change when an expose() has met its hole */

static void begin_to_change(struct eventful *c);

/* The home's calls come through here. */
int ioctl(int fd, unsigned long request, ...)
{
    struct eventful *c;
    va_list arguments;

    va_start(arguments, request);
    int rc = (int)syscall(SYS_ioctl, fd, request, va_arg(arguments, void *));
    va_end(arguments);
    int error = errno;
    if (rc && request == UFFDIO_CONTINUE && error == ENOENT && (c = atomic_exchange(&at_a_hole, NULL)))
        begin_to_change(c);
    errno = error;
    return rc;
}

static struct gaia_frames_map *attach(struct eventful *c, bool writable, bool can_trap, bool charged)
{
    struct gaia_process process = {.faults = c->faults, .pid = getpid(), .charged = charged};
    struct gaia_frames_map *map;

    assert_int_equal(c->frames->ops->attach(c->frames, &process, (uintptr_t)c->memory, 0, CLIENT_PAGES,
                                            writable, can_trap, &map),
                     0);
    return map;
}

static bool client_start(struct eventful *c)
{
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                         UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_EVENT_REMOVE};
    struct uffdio_register all = {.range.len = CLIENT_PAGES * GAIA_PAGE_SIZE,
                                  .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR |
                                          UFFDIO_REGISTER_MODE_WP};

    *c = (struct eventful){.faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)};
    if (c->faults < 0 || ioctl(c->faults, UFFDIO_API, &api))
        return false;
    assert_int_equal(gaia_soft_frames_open(CLIENT_PAGES, &c->frames), 0);
    assert_int_equal(c->frames->ops->share(c->frames, true, 0, &c->frames_fd), 0);
    c->memory = mmap(NULL, all.range.len, PROT_READ | PROT_WRITE, MAP_SHARED, c->frames_fd, 0);
    assert_ptr_not_equal(c->memory, MAP_FAILED);
    all.range.start = (uintptr_t)c->memory;
    assert_int_equal(ioctl(c->faults, UFFDIO_REGISTER, &all), 0);
    /* To the kernel as good as nothing; but what maps something now does not come to be there. */
    assert_ptr_not_equal(mmap(c->memory + HOLE * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                         MAP_FAILED);
    memset(bytes, 3, sizeof bytes);
    assert_int_equal(c->frames->ops->place(c->frames, 0, CLIENT_PAGES, bytes), 0);
    c->map = attach(c, true, true, true);
    return true;
}

static void client_stop(struct eventful *c)
{
    c->frames->ops->detach(c->map);
    munmap(c->memory, CLIENT_PAGES * GAIA_PAGE_SIZE);
    close(c->frames_fd);
    close(c->faults);
    c->frames->ops->close(c->frames);
}

static void *change(void *argument)
{
    struct eventful *c = argument;

    madvise(c->memory + (size_t)DROPS * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE, MADV_DONTNEED);
    return NULL;
}

/* Its mmap is changing from now on, until the event is read. */
static void begin_to_change(struct eventful *c)
{
    struct uffdio_writeprotect nothing = {.range = {.start = (uintptr_t)c->memory, .len = GAIA_PAGE_SIZE}};

    assert_int_equal(pthread_create(&c->changer, NULL, change, c), 0);
    while (!ioctl(c->faults, UFFDIO_WRITEPROTECT, &nothing))
        usleep(1000);
}

static void *read_event(void *argument)
{
    struct eventful *c = argument;
    struct uffd_msg message;

    usleep((useconds_t)c->read_ms * 1000);
    assert_int_equal(read(c->faults, &message, sizeof message), sizeof message);
    assert_int_equal(message.event, UFFD_EVENT_REMOVE);
    return NULL;
}

static void end_change(struct eventful *c)
{
    c->read_ms = 0;
    read_event(c);
    pthread_join(c->changer, NULL);
}

/* Whether the page is mapped there, without a touch. */
static bool is_exposed(const struct eventful *c, unsigned page)
{
    uint64_t entry = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

    assert_int_equal(pread(fd, &entry, sizeof entry, (off_t)((uintptr_t)c->memory / 4096 + page) * 8), 8);
    close(fd);
    return entry >> 63;
}

static void *call(void *argument)
{
    struct eventful *c = argument;
    const struct gaia_frames_ops *ops = c->frames->ops;
    int error = c->what == EXPOSE    ? ops->expose(c->map, 0, CLIENT_PAGES, true)
                : c->what == PROTECT ? ops->protect(c->frames, 0, CLIENT_PAGES)
                                     : ops->unprotect(c->map, 0, CLIENT_PAGES);

    return (void *)(intptr_t)error;
}

/* A call waits for such a client, and has an end; who attaches meanwhile waits for nothing; and the calls
 * after it don't wait again. */
static void wait_in_vain(struct eventful *c, bool hole)
{
    struct gaia_process process = {.faults = -1};
    struct gaia_frames_map *other;
    pthread_t thread;

    if (hole)
        at_a_hole = c;
    else
        begin_to_change(c);
    assert_int_equal(pthread_create(&thread, NULL, call, c), 0);
    usleep(50000);
    struct timespec soon = lock_wait_until(100);
    assert_int_equal(c->frames->ops->attach(c->frames, &process, 1 << 20, 0, 1, false, false, &other), 0);
    c->frames->ops->detach(other);
    assert_false(lock_is_past(&soon));
    assert_true(lock_join_within(thread, 5000));
    soon = lock_wait_until(1000);
    for (unsigned i = 0; i < 30; i++)
        assert_null(call(c));
    assert_false(lock_is_past(&soon));
    end_change(c);
    assert_null(call(c)); /* from now on it is worth a wait again */
}

static void test_a_client_that_reads_no_events(void **state)
{
    static struct eventful c;

    (void)state;
    if (!client_start(&c))
        skip();
    wait_in_vain(&c, true); /* first: what is exposed already is met before the hole */
    for (; c.what < WHATS; c.what++)
        wait_in_vain(&c, false);
    assert_true(is_exposed(&c, 0) && is_exposed(&c, CLIENT_PAGES - 1));
    client_stop(&c);
}

/* One whose mmap is changing for a moment loses nothing. */
static void test_a_client_that_reads_its_events(void **state)
{
    static struct eventful c;
    pthread_t reader;

    (void)state;
    if (!client_start(&c))
        skip();
    for (; c.what < WHATS; c.what++) {
        begin_to_change(&c);
        c.read_ms = 30;
        assert_int_equal(pthread_create(&reader, NULL, read_event, &c), 0);
        assert_null(call(&c));
        pthread_join(reader, NULL);
        pthread_join(c.changer, NULL);
        assert_true(is_exposed(&c, 0) && is_exposed(&c, HOLE + 1));
    }
    client_stop(&c);
}

enum { SEALED = 10, NOT_SEALED, NO_NAMESPACE };

/* In a PID namespace of its own, as that setting is one's. */
static int try_to_seal(void)
{
    struct gaia_frames *frames;
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, fd;
    int setting = open("/proc/sys/vm/memfd_noexec", O_WRONLY | O_CLOEXEC);

    if (setting < 0 || write(setting, "1", 1) != 1)
        return NO_NAMESPACE;
    int own = memfd_create("own", MFD_CLOEXEC);
    if (own < 0 || fcntl(own, F_ADD_SEALS, F_SEAL_GROW)) /* else the test shows nothing */
        return NO_NAMESPACE;
    if (gaia_soft_frames_open(4, &frames) || frames->ops->share(frames, true, 0, &fd))
        return NOT_SEALED;
    return fcntl(fd, F_ADD_SEALS, seals) && errno == EPERM ? NOT_SEALED : SEALED;
}

/* ---- placed and exposed in one step ---- */

static uint64_t in_one_step(struct eventful *c, uint64_t page, uint64_t count)
{
    return c->frames->ops->place_exposed(c->map, page, count, bytes);
}

/* Whether a thread of this process has touched a page, or stored to it, within a while. */
struct touch {
    uint8_t *at;
    bool store;
    _Atomic bool done;
};

static void *touch(void *argument)
{
    struct touch *t = argument;

    if (t->store)
        *t->at = 9;
    else
        (void)*(volatile uint8_t *)t->at;
    t->done = true;
    return NULL;
}

/* A load goes through, a store waits until it is let through. */
static void assert_trapped(struct eventful *c, uint64_t page)
{
    struct touch load = {.at = c->memory + page * GAIA_PAGE_SIZE}, store = {.at = load.at, .store = true};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, touch, &load), 0);
    assert_true(lock_join_within(thread, 5000));
    assert_int_equal(pthread_create(&thread, NULL, touch, &store), 0);
    usleep(20000);
    assert_false(store.done);
    assert_int_equal(c->frames->ops->unprotect(c->map, page, 1), 0);
    assert_true(lock_join_within(thread, 5000));
    assert_int_equal(*load.at, 9);
}

/* As many as can be, from the first on: the frames have them, and the client sees them; it stops at what has
 * bytes, and at the end. */
static void test_in_one_step(void **state)
{
    static struct eventful c;

    (void)state;
    if (!client_start(&c))
        skip();
    memset(bytes, 5, sizeof bytes);
    assert_int_equal(in_one_step(&c, 0, 4), 0); /* these have bytes */
    assert_int_equal(c.frames->ops->drop(c.frames, 0, CLIENT_PAGES), 0);
    assert_int_equal(in_one_step(&c, 0, HOLE + 3), 0); /* Linux looks at all of it before it begins */
    assert_int_equal(in_one_step(&c, 0, HOLE), HOLE);
    assert_int_equal(in_one_step(&c, HOLE + 1, 10), 10);
    assert_int_equal(c.frames->ops->drop(c.frames, HOLE + 1, 4), 0);
    assert_int_equal(in_one_step(&c, HOLE + 1, 10), 4);
    assert_int_equal(in_one_step(&c, CLIENT_PAGES - 4, 8), 0); /* not all of it is of this map */
    for (unsigned page = 0; page < HOLE + 11; page++)
        assert_page(c.frames, page, page == HOLE ? 0 : 5);
    for (unsigned page = 0; page < HOLE + 12; page++)
        assert_int_equal(is_exposed(&c, page), page != HOLE && page != HOLE + 11);
    assert_trapped(&c, 0);
    assert_trapped(&c, HOLE + 10);
    assert_int_equal(c.frames->ops->drop(c.frames, 0, CLIENT_PAGES), 0);
    assert_false(is_exposed(&c, 0));
    assert_int_equal(in_one_step(&c, 0, 1), 1); /* with the mark of a trapped store, too */
    assert_trapped(&c, 0);
    assert_int_equal(c.frames->ops->resize(c.frames, 20), 0);
    assert_int_equal(in_one_step(&c, 18, 10), 2);
    client_stop(&c);
}

/* Not for who maps privately, whose stores are not trapped, or whose control group it would be a burden to;
 * nor while the client's mmap is changing. */
static void test_not_in_one_step(void **state)
{
    static struct eventful c;
    struct gaia_frames_map *map;

    (void)state;
    if (!client_start(&c))
        skip();
    assert_int_equal(c.frames->ops->drop(c.frames, 0, CLIENT_PAGES), 0);
    map = c.map;
    for (unsigned i = 0; i < 3; i++) {
        c.map = attach(&c, i != 0, i != 1, i != 2);
        assert_int_equal(in_one_step(&c, 0, 1), 0);
        c.frames->ops->detach(c.map);
    }
    c.map = map;
    begin_to_change(&c);
    assert_int_equal(in_one_step(&c, 0, 4), 0);
    end_change(&c);
    assert_int_equal(in_one_step(&c, 0, 4), 4);
    client_stop(&c);
}

/* With vm.memfd_noexec=1 a memfd can be sealed though nobody has asked for that. */
static void test_a_client_that_seals_the_frames(void **state)
{
    int status = 0;

    (void)state;
    pid_t child = fork(), inner;
    if (child == 0) {
        if (unshare(CLONE_NEWPID) || (inner = fork()) < 0)
            _exit(NO_NAMESPACE);
        if (inner == 0)
            _exit(try_to_seal());
        _exit(waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : SEALED);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_NAMESPACE)
        skip();
    assert_int_equal(WEXITSTATUS(status), NOT_SEALED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_an_array),
        cmocka_unit_test(test_past_the_end),
        cmocka_unit_test(test_beside_each_other),
        cmocka_unit_test(test_far_from_each_other),
        cmocka_unit_test(test_long_runs_are_copied),
        cmocka_unit_test(test_two_files),
        cmocka_unit_test(test_a_client_that_reads_no_events),
        cmocka_unit_test(test_a_client_that_reads_its_events),
        cmocka_unit_test(test_in_one_step),
        cmocka_unit_test(test_not_in_one_step),
        cmocka_unit_test(test_a_client_that_seals_the_frames),
    };

    seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
