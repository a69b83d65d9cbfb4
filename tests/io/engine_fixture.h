/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the storage engine share: a directory, files of known bytes, random numbers with a
 * printed seed, a time limit for each test, and counting callbacks.
 *
 * GAIA_TEST_SEED repeats a run's random choices; GAIA_TEST_FILTER (a pattern such as "deep/uring") picks
 * cases; TMPDIR says where the files lie (/var/tmp if unset).
 */
#ifndef GAIAFS_TESTS_IO_ENGINE_FIXTURE_H
#define GAIAFS_TESTS_IO_ENGINE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/engine_internal.h"
#include "tests/bytes.h"

#define TIME_LIMIT_S 240 /* a machine may have other work */
#define KIB ((size_t)1024)
#define MIB ((size_t)1024 * 1024)

/* Every case runs over both backends; its state says over which. */
static enum gaia_io_kind kinds[] = {GAIA_IO_URING, GAIA_IO_THREADS};
#define CASE_OVER(f, kind, name) ((struct CMUnitTest){#f "/" name, f, begin, end, &kinds[kind]})
#define CASE(f) CASE_OVER(f, 0, "uring"), CASE_OVER(f, 1, "threads")

#define RUN(name, tests)                                 \
    (cmocka_set_test_filter(getenv("GAIA_TEST_FILTER")), \
     cmocka_run_group_tests_name(name, tests, begin_all, end_all))

static char directory[256];
static uint64_t seed;
static const char *running = "";

/* ---- files ---- */

static inline int new_file_in(const char *where, int flags)
{
    char path[320];
    int made, fd;

    snprintf(path, sizeof path, "%s/engine-XXXXXX", where);
    made = mkstemp(path);
    assert_true(made >= 0);
    fd = open(path, flags | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(made), 0);
    assert_int_equal(unlink(path), 0);
    return fd;
}

static inline int new_file(void)
{
    return new_file_in(directory, O_RDWR);
}

static inline void write_all(int fd, const uint8_t *buffer, size_t length, off_t offset)
{
    for (size_t moved = 0; moved < length;) {
        ssize_t n = pwrite(fd, buffer + moved, length - moved, offset + (off_t)moved);

        assert_true(n > 0);
        moved += (size_t)n;
    }
}

static inline void write_pattern(int fd, size_t length, uint64_t salt)
{
    uint8_t *bytes = malloc(length);

    assert_non_null(bytes);
    fill_at(bytes, length, salt, 0);
    write_all(fd, bytes, length, 0);
    assert_int_equal(fsync(fd), 0);
    free(bytes);
}

static inline uint8_t *new_buffer(size_t length)
{
    void *buffer = NULL;

    assert_int_equal(posix_memalign(&buffer, 4096, length), 0);
    memset(buffer, 0x5a, length);
    return buffer;
}

/* ---- engines ---- */

static inline struct gaia_io *new_engine_of(const struct gaia_io_config *config)
{
    struct gaia_io *io = NULL;
    struct rlimit limit;
    int error = gaia_io_open(config, &io);

    if (config->kind == GAIA_IO_URING && (error == -ENOSYS || error == -EPERM)) {
        print_message("io_uring is refused here (%s): skipped\n", strerror(-error));
        skip();
    }
    if (config->kind == GAIA_IO_URING && error == -ENOMEM && config->depth > 1000 &&
        getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < MIB) {
        print_message("a ring for %u requests may not be locked here: skipped\n", config->depth);
        skip();
    }
    assert_int_equal(error, 0);
    assert_non_null(io);
    return io;
}

static inline struct gaia_io *new_engine(void **state, unsigned depth)
{
    struct gaia_io_config config = {.kind = *(enum gaia_io_kind *)*state, .depth = depth, .files = 64};

    return new_engine_of(&config);
}

static inline struct gaia_io_file *open_file(struct gaia_io *io, int fd)
{
    struct gaia_io_file *file = NULL;

    assert_int_equal(gaia_io_file_open(io, fd, &file), 0);
    assert_non_null(file);
    return file;
}

/* Whether aligned reads go through O_DIRECT. */
static inline bool is_direct(const struct gaia_io_file *file)
{
    return file->direct.fd >= 0;
}

static inline struct gaia_io_stat stat_of(const struct gaia_io *io)
{
    struct gaia_io_stat status;

    gaia_io_stat(io, &status);
    return status;
}

/* ---- completions ---- */

/* cmocka's assertions are for the main thread only: callbacks note, the main thread checks. */
struct outcome {
    _Atomic int calls;
    _Atomic ssize_t result;
};

static inline void note(void *context, ssize_t result)
{
    struct outcome *outcome = context;

    atomic_store(&outcome->result, result);
    atomic_fetch_add(&outcome->calls, 1); /* last: what await() waits for */
}

static inline ssize_t await(struct outcome *outcome)
{
    const struct timespec nap = {.tv_nsec = 50000};

    while (atomic_load(&outcome->calls) == 0)
        nanosleep(&nap, NULL);
    return atomic_load(&outcome->result);
}

static inline void await_count(_Atomic int *counter, int wanted)
{
    const struct timespec nap = {.tv_nsec = 200000};

    while (atomic_load(counter) < wanted)
        nanosleep(&nap, NULL);
}

static inline ssize_t read_once(struct gaia_io *io, struct gaia_io_file *file, void *buffer, size_t length,
                                off_t offset)
{
    struct outcome outcome = {.calls = 0};

    assert_int_equal(gaia_io_read(io, file, buffer, length, offset, note, &outcome), 0);
    gaia_io_submit(io);
    return await(&outcome);
}

/* ---- begin and end ---- */

static inline void too_late(int signal_number)
{
    static const char text[] = ": time limit\n";
    ssize_t ignored;

    (void)signal_number;
    ignored = write(STDERR_FILENO, running, strlen(running));
    ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(1);
}

static inline int begin(void **state)
{
    running = *(enum gaia_io_kind *)*state == GAIA_IO_URING ? "a case over io_uring" : "a case over threads";
    signal(SIGALRM, too_late);
    alarm(TIME_LIMIT_S);
    return 0;
}

static inline int end(void **state)
{
    (void)state;
    alarm(0);
    gaia_io_test_result = NULL;
    return 0;
}

/* Waits for a child that ends with 0: false when it could not try (77). */
static inline bool child_could(pid_t child)
{
    int status = 0;

    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        return false;
    assert_int_equal(WEXITSTATUS(status), 0);
    return true;
}

static inline int begin_all(void **state)
{
    const char *where = getenv("TMPDIR"), *wanted = getenv("GAIA_TEST_SEED");
    struct timespec now;

    (void)state;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = wanted ? strtoull(wanted, NULL, 0) : mix((uint64_t)now.tv_nsec ^ ((uint64_t)now.tv_sec << 30));
    print_message("GAIA_TEST_SEED=0x%llx\n", (unsigned long long)seed);
    snprintf(directory, sizeof directory, "%s/gaiafs-io-XXXXXX", where ? where : "/var/tmp");
    return mkdtemp(directory) ? 0 : -1;
}

static inline int end_all(void **state)
{
    (void)state;
    return rmdir(directory);
}

#endif
