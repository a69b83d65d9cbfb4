/* SPDX-License-Identifier: Apache-2.0 */
/* The storage engine against pread; its files, O_DIRECT, arguments and limits. */
#include "tests/io/engine_fixture.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* ---- the same as pread ---- */

#define AREA_LENGTH (4 * MIB)
#define BATCH 16
#define SPAN (96 * KIB) /* the longest read */
#define CANARY 64

struct transfer {
    struct outcome outcome;
    uint8_t *buffer, *expected;
    size_t length;
    off_t offset;
};

struct differential {
    struct gaia_io *io;
    struct gaia_io_file *file;
    int fd;
    uint64_t random;
    uint8_t *area; /* registered */
    uint8_t *heap; /* not registered */
    struct transfer transfers[BATCH];
};

/* Aligned and not, short and long, in both kinds of memory, past the end of the file, too; each in its own
 * piece of the area. */
static void choose(struct differential *d, unsigned i, uint64_t below)
{
    struct transfer *t = &d->transfers[i];
    uint64_t align = draw(&d->random, 2) ? 4096 : draw(&d->random, 2) ? 512 : 1;
    uint8_t *memory = draw(&d->random, 2) ? d->area : d->heap;

    t->offset = (off_t)(draw(&d->random, below) / align * align);
    t->length = 1 + draw(&d->random, draw(&d->random, 4) ? 16 * KIB : SPAN);
    t->length += (align - t->length % align) % align;
    if (t->length > SPAN)
        t->length = SPAN;
    t->buffer = memory + i * (AREA_LENGTH / BATCH) + draw(&d->random, 2 * 4096 / align) * align;
}

static void submit(struct differential *d, struct transfer *t)
{
    atomic_store(&t->outcome.calls, 0);
    memset(t->buffer, 0xa5, t->length + CANARY);
    assert_int_equal(gaia_io_read(d->io, d->file, t->buffer, t->length, t->offset, note, &t->outcome), 0);
}

static void check(struct differential *d, struct transfer *t)
{
    ssize_t result = await(&t->outcome);
    ssize_t expected = pread(d->fd, t->expected, t->length, t->offset);

    if (result != expected)
        print_error("read of %zu at %lld: %zd, not %zd\n", t->length, (long long)t->offset, result, expected);
    assert_int_equal(result, expected);
    assert_int_equal(atomic_load(&t->outcome.calls), 1);
    assert_memory_equal(t->buffer, t->expected, (size_t)expected);
    for (unsigned i = 0; i < CANARY; i++)
        assert_int_equal(t->buffer[t->length + i], 0xa5);
}

static void random_batch(struct differential *d)
{
    unsigned n = 1 + (unsigned)draw(&d->random, BATCH);
    uint64_t size = (uint64_t)lseek(d->fd, 0, SEEK_END);

    for (unsigned i = 0; i < n; i++) {
        choose(d, i, size + 16384);
        submit(d, &d->transfers[i]);
    }
    gaia_io_submit(d->io);
    for (unsigned i = 0; i < n; i++)
        check(d, &d->transfers[i]);
}

/* What a direct read meets in the page cache: dirty pages, and another end of the file. */
static void change_file(struct differential *d)
{
    struct transfer *t = &d->transfers[0];

    if (draw(&d->random, 4) == 0)
        assert_int_equal(ftruncate(d->fd, (off_t)draw(&d->random, 3 * MIB)), 0);
    choose(d, 0, (uint64_t)lseek(d->fd, 0, SEEK_END) + 8192);
    for (size_t k = 0; k < t->length; k++)
        t->buffer[k] = (uint8_t)draw(&d->random, 256);
    write_all(d->fd, t->buffer, t->length, t->offset);
}

static void same_as_pread(void **state)
{
    struct differential d = {.random = seed, .fd = new_file()};
    struct gaia_io_config config = {.kind = *(enum gaia_io_kind *)*state, .depth = 8, .files = 4};

    d.area = config.buffers = new_buffer(AREA_LENGTH);
    config.buffers_length = AREA_LENGTH;
    d.heap = new_buffer(AREA_LENGTH);
    for (unsigned i = 0; i < BATCH; i++)
        d.transfers[i].expected = malloc(SPAN);
    write_pattern(d.fd, 2 * MIB + 777, 1);
    d.io = new_engine_of(&config);
    d.file = open_file(d.io, d.fd);

    for (unsigned round = 0; round < 300; round++) {
        if (draw(&d.random, 2))
            change_file(&d);
        random_batch(&d);
    }
    if (is_direct(d.file))
        assert_true(stat_of(d.io).direct_reads > 0);

    gaia_io_file_close(d.file);
    gaia_io_close(d.io);
    for (unsigned i = 0; i < BATCH; i++)
        free(d.transfers[i].expected);
    free(d.area);
    free(d.heap);
    close(d.fd);
}

/* ---- files ---- */

#define FILES 40

/* More files than slots, closed and opened all the time: a stale slot would read another file's bytes. */
static void more_files_than_slots(void **state)
{
    struct gaia_io_config config = {.kind = *(enum gaia_io_kind *)*state, .depth = 32, .files = 5};
    struct gaia_io *io = new_engine_of(&config);
    struct gaia_io_file *files[FILES] = {NULL};
    struct outcome outcomes[FILES];
    int fds[FILES];
    uint64_t random = seed;
    uint8_t *buffer = new_buffer(FILES * 4096);

    for (unsigned i = 0; i < FILES; i++) {
        fds[i] = new_file();
        write_pattern(fds[i], 8192, 100 + i);
    }
    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < FILES; i++) {
            if (files[i] && draw(&random, 3) == 0) {
                gaia_io_file_close(files[i]);
                files[i] = NULL;
            } else if (!files[i] && draw(&random, 2)) {
                files[i] = open_file(io, fds[i]);
            }
        }
        for (unsigned i = 0; i < FILES; i++) {
            off_t offset = round % 2 ? 4096 : 17; /* direct, buffered */

            atomic_store(&outcomes[i].calls, 0);
            if (files[i])
                assert_int_equal(
                    gaia_io_read(io, files[i], buffer + i * 4096, 4096, offset, note, &outcomes[i]), 0);
        }
        gaia_io_submit(io);
        for (unsigned i = 0; i < FILES; i++) {
            if (!files[i])
                continue;
            assert_int_equal(await(&outcomes[i]), 4096);
            assert_true(matches(buffer + i * 4096, 4096, 100 + i, round % 2 ? 4096 : 17));
        }
    }
    for (unsigned i = 0; i < FILES; i++) {
        gaia_io_file_close(files[i]);
        close(fds[i]);
    }
    gaia_io_close(io);
    free(buffer);
}

/* A closed file is let go of at once: its bytes are free once the last descriptor is closed. */
static void closed_files_are_let_go(void **state)
{
    struct gaia_io *io = new_engine(state, 4);
    int fd = new_file(), lease;
    char path[64];
    struct gaia_io_file *file;

    write_pattern(fd, 4096, 1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file = open_file(io, fd);
    gaia_io_file_close(file);
    lease = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(lease >= 0);
    close(fd);
    /* A write lease is granted only while no other open of the file exists. The kernel's last step is in a
     * work item: it may take a moment. */
    while (fcntl(lease, F_SETLEASE, F_WRLCK) < 0) {
        assert_true(errno == EAGAIN || errno == EBUSY);
        usleep(1000);
    }
    close(lease);
    gaia_io_close(io);
}

/* tmpfs: kernels before 6.6 refuse O_DIRECT, later ones accept it. The bytes are the same. */
static void on_tmpfs(void **state)
{
    struct gaia_io *io;
    struct gaia_io_file *file;
    uint8_t *buffer;
    int fd;

    if (access("/dev/shm", W_OK) != 0)
        skip();
    fd = new_file_in("/dev/shm", O_RDWR);
    write_pattern(fd, 10000, 3);
    io = new_engine(state, 4);
    file = open_file(io, fd);
    buffer = new_buffer(16384);
    assert_int_equal(read_once(io, file, buffer, 16384, 0), 10000);
    assert_true(matches(buffer, 10000, 3, 0));
    assert_int_equal(read_once(io, file, buffer, 4096, 4096), 4096);
    assert_true(matches(buffer, 4096, 3, 4096));
    assert_int_equal(stat_of(io).direct_reads, is_direct(file) ? 2 : 0);
    gaia_io_file_close(file);
    gaia_io_close(io);
    free(buffer);
    close(fd);
}

/* ---- O_DIRECT ---- */

static void direct_when_aligned(void **state)
{
    struct gaia_io *io = new_engine(state, 4);
    int fd = new_file(), only_write;
    uint8_t *buffer = new_buffer(64 * KIB);
    struct gaia_io_file *file;
    char path[64];

    write_pattern(fd, 3 * 4096 + 100, 5);
    file = open_file(io, fd);
    if (!is_direct(file)) {
        print_message("no O_DIRECT in %s: skipped\n", directory);
        gaia_io_file_close(file);
        gaia_io_close(io);
        free(buffer);
        close(fd);
        skip();
    }
    assert_int_equal(read_once(io, file, buffer, 8192, 4096), 8192);
    assert_true(matches(buffer, 8192, 5, 4096));
    assert_int_equal(stat_of(io).direct_reads, 1);
    assert_int_equal(stat_of(io).resubmits, 0);
    /* Over the tail: direct, then buffered to see the end. */
    assert_int_equal(read_once(io, file, buffer, 64 * KIB, 0), 3 * 4096 + 100);
    assert_true(matches(buffer, 3 * 4096 + 100, 5, 0));
    assert_int_equal(stat_of(io).direct_reads, 2);
    /* Unaligned in each of the three ways. */
    assert_int_equal(read_once(io, file, buffer + 1, 4096, 0), 4096);
    assert_int_equal(read_once(io, file, buffer, 4095, 0), 4095);
    assert_int_equal(read_once(io, file, buffer, 4096, 1), 4096);
    assert_true(matches(buffer, 4096, 5, 1));
    assert_int_equal(stat_of(io).direct_reads, 2);
    assert_int_equal(stat_of(io).resubmits, 1); /* the tail's */
    assert_int_equal(read_once(io, file, buffer, 4096, 16384), 0);
    gaia_io_file_close(file);

    /* A descriptor that may not read gets no second one that may. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    only_write = open(path, O_WRONLY | O_CLOEXEC);
    file = open_file(io, only_write);
    assert_false(is_direct(file));
    assert_int_equal(read_once(io, file, buffer, 4096, 0), -EBADF);
    gaia_io_file_close(file);
    gaia_io_close(io);
    free(buffer);
    close(only_write);
    close(fd);
}

/* A direct read sees bytes that are dirty in the page cache: written, and stored through a mapping. */
static void direct_reads_see_the_page_cache(void **state)
{
    struct gaia_io *io = new_engine(state, 4);
    int fd = new_file();
    uint8_t *buffer = new_buffer(4096), *mapping;
    struct gaia_io_file *file;

    write_pattern(fd, 64 * KIB, 1);
    file = open_file(io, fd);
    mapping = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(mapping != MAP_FAILED);
    for (int i = 0; i < 50; i++) {
        off_t offset = 4096 * (i % 16);
        uint8_t byte = (uint8_t)(i + 1);

        assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
        mapping[offset + 7] = byte;
        assert_int_equal(pwrite(fd, &byte, 1, offset + 4095), 1);
        assert_int_equal(read_once(io, file, buffer, 4096, offset), 4096);
        assert_int_equal(buffer[0], byte);
        assert_int_equal(buffer[7], byte);
        assert_int_equal(buffer[4095], byte);
    }
    if (is_direct(file))
        assert_int_equal(stat_of(io).direct_reads, 50);
    munmap(mapping, 64 * KIB);
    gaia_io_file_close(file);
    gaia_io_close(io);
    free(buffer);
    close(fd);
}

/* ---- arguments and limits ---- */

static void bad_arguments(void **state)
{
    enum gaia_io_kind kind = *(enum gaia_io_kind *)*state;
    struct gaia_io_config configs[] = {
        {.kind = kind, .depth = 0},
        {.kind = kind, .depth = 4097},
        {.kind = kind, .depth = 1, .files = 65537},
        {.kind = (enum gaia_io_kind)9, .depth = 1},
        {.kind = kind, .depth = 1, .buffers = configs},
        {.kind = kind, .depth = 1, .buffers_length = 4096},
    };
    struct gaia_io *io = NULL;
    struct gaia_io_file *file = NULL;
    struct outcome never = {.calls = 0};
    char byte = 0;
    int fd = new_file(), folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), path_only;

    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        assert_int_equal(gaia_io_open(&configs[i], &io), -EINVAL);
    assert_null(io);
    io = new_engine(state, 1);
    path_only = open("/proc/self/exe", O_PATH | O_CLOEXEC);
    assert_int_equal(gaia_io_file_open(io, -1, &file), -EBADF);
    assert_int_equal(gaia_io_file_open(io, path_only, &file), -EBADF);
    assert_int_equal(gaia_io_file_open(io, folder, &file), -EINVAL);
    assert_null(file);
    file = open_file(io, fd);
    assert_int_equal(gaia_io_read(io, file, &byte, 0, 0, note, &never), -EINVAL);
    assert_int_equal(gaia_io_read(io, file, &byte, (1 << 30) + 1, 0, note, &never), -EINVAL);
    assert_int_equal(gaia_io_read(io, file, &byte, 1, -1, note, &never), -EINVAL);
    assert_int_equal(gaia_io_read(io, file, &byte, 2, INT64_MAX - 1, note, &never), -EINVAL);
    assert_int_equal(gaia_io_read(io, file, NULL, 1, 0, note, &never), -EINVAL);
    assert_int_equal(gaia_io_read(io, file, &byte, 1, 0, NULL, &never), -EINVAL);
    assert_int_equal(gaia_io_read(io, NULL, &byte, 1, 0, note, &never), -EINVAL);
    assert_int_equal(atomic_load(&never.calls), 0);
    gaia_io_file_close(file);
    gaia_io_close(io);
    close(path_only);
    close(folder);
    close(fd);
}

/* The reads and their bytes are counted. */
static void counters(void **state)
{
    struct gaia_io *io = new_engine(state, 4);
    int fd = new_file();
    struct gaia_io_file *file = open_file(io, fd);
    uint8_t *buffer = new_buffer(4096);
    struct gaia_io_stat status;

    write_pattern(fd, 1024, 1);
    assert_int_equal(read_once(io, file, buffer + 1, 1000, 0), 1000);
    assert_int_equal(read_once(io, file, buffer + 1, 1000, 1000), 24);
    status = stat_of(io);
    assert_int_equal(status.reads, 2);
    assert_int_equal(status.direct_reads, 0);
    assert_int_equal(status.bytes_read, 1024);
    gaia_io_file_close(file);
    gaia_io_close(io);
    free(buffer);
    close(fd);
}

/* In a child process that may lock 64 KiB: 0 when an engine with 8 MiB of buffers works and says they're not
 * registered; 77 when the limit can't be made to hold. */
static int read_with_little_memlock(enum gaia_io_kind kind, int fd)
{
    struct gaia_io_config config = {.kind = kind, .depth = 8, .buffers_length = 8 * MIB, .files = 8};
    struct rlimit limit = {.rlim_cur = 64 * KIB, .rlim_max = 64 * KIB};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2];
    struct gaia_io *io;
    struct gaia_io_file *file;
    int error;

    memset(none, 0, sizeof none);
    /* What is locked counts for the user: of nobody else's (perf's, say) here. */
    if (!geteuid() && setresuid(61937, 61937, 61937))
        return 77;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || syscall(SYS_capset, &header, none) < 0)
        return 77;
    config.buffers = new_buffer(config.buffers_length);
    error = gaia_io_open(&config, &io);
    if (error == -EPERM || error == -ENOSYS)
        return 77;
    if (error || gaia_io_registered(io) || gaia_io_file_open(io, fd, &file))
        return 1;
    if (read_once(io, file, config.buffers, MIB, 0) != (ssize_t)MIB || !matches(config.buffers, MIB, 17, 0))
        return 2;
    gaia_io_file_close(file);
    gaia_io_close(io);
    free(config.buffers);
    return 0;
}

static void buffers_that_may_not_be_locked(void **state)
{
    struct gaia_io_config config = {
        .kind = *(enum gaia_io_kind *)*state, .depth = 1, .buffers_length = 16 * KIB};
    struct gaia_io *io;
    int fd = new_file();
    pid_t child;

    config.buffers = new_buffer(config.buffers_length);
    io = new_engine_of(&config);
    assert_int_equal(gaia_io_registered(io), config.kind == GAIA_IO_URING);
    gaia_io_close(io);
    free(config.buffers);

    write_pattern(fd, MIB, 17);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(read_with_little_memlock(config.kind, fd));
    bool could = child_could(child);
    close(fd);
    if (!could)
        skip();
}

static int open_where_refused(enum gaia_io_kind kind, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    struct gaia_io_config config = {.kind = kind, .depth = 8};
    struct gaia_io *io = NULL;
    int expected = kind == GAIA_IO_URING ? -error : 0;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return 77;
    if (gaia_io_open(&config, &io) != expected || !io != (expected < 0))
        return 1;
    gaia_io_close(io);
    return 0;
}

/* Containers refuse io_uring in either way. */
static void io_uring_refused(void **state)
{
    static const int errors[] = {EPERM, ENOSYS};

    for (unsigned i = 0; i < 2; i++) {
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0)
            _exit(open_where_refused(*(enum gaia_io_kind *)*state, errors[i]));
        if (!child_could(child))
            skip();
    }
}

/* An area of more than one piece of 1 GiB: 2 MiB of memory, mapped again and again. */
static void more_than_one_piece(void **state)
{
    const size_t length = ((size_t)1 << 30) + 2 * MIB;
    struct gaia_io_config config = {
        .kind = *(enum gaia_io_kind *)*state, .depth = 4, .buffers_length = length};
    uint8_t *area = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int memory = memfd_create("area", MFD_CLOEXEC), fd = new_file();
    const size_t places[] = {0, length - MIB, ((size_t)1 << 30) - MIB, ((size_t)1 << 30) - 8192,
                             (size_t)1 << 30};
    struct gaia_io *io;
    struct gaia_io_file *file;

    assert_true(area != MAP_FAILED && memory >= 0);
    assert_int_equal(ftruncate(memory, 2 * MIB), 0);
    for (size_t i = 0; i < length; i += 2 * MIB)
        assert_true(mmap(area + i, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) !=
                    MAP_FAILED);
    write_pattern(fd, MIB, 19);
    config.buffers = area;
    config.buffers_length = length - 8192; /* the last place below begins inside and ends outside */
    io = new_engine_of(&config);
    file = open_file(io, fd);
    if (config.kind == GAIA_IO_URING && !gaia_io_registered(io))
        print_message("1 GiB may not be locked here: read without\n");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        memset(area + places[i], 0, MIB);
        assert_int_equal(read_once(io, file, area + places[i], MIB, 0), MIB);
        assert_true(matches(area + places[i], MIB, 19, 0));
    }
    gaia_io_file_close(file);
    gaia_io_close(io);
    munmap(area, length);
    close(memory);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        // clang-format off
        CASE(same_as_pread),
        CASE(more_files_than_slots),
        CASE(closed_files_are_let_go),
        CASE(on_tmpfs),
        CASE(direct_when_aligned),
        CASE(direct_reads_see_the_page_cache),
        CASE(bad_arguments),
        CASE(counters),
        CASE(buffers_that_may_not_be_locked),
        CASE(io_uring_refused),
        CASE(more_than_one_piece),
        // clang-format on
    };

    return RUN("io/engine", tests);
}
