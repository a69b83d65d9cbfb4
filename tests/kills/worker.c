/* SPDX-License-Identifier: Apache-2.0 */
/* A program that works on a mount until it is killed, or the daemon is.
 *
 * usage: worker MNT LOG NUMBER TAG DEVICE SEED ROLE
 * NUMBER (0 to 2) says which bytes of the shared files are its own; TAG is part of the names of its own
 * files. ROLE: "daemon" (the daemon is killed: an error that says so is expected, and after it everything
 * must fail quickly), "stay" (others are killed: no error may be seen), "victim" (this one is killed: no
 * write() to the shared files, which may take along others' stores through mappings when it is killed, see
 * README.md; and a file of its own that others never map).
 *
 * Every byte of the shared files belongs to one worker, and to one of its three ways of storing: write(), a
 * store through a CPU mapping, a store of the device. So the order of the stores to a byte is that of one
 * log. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"
#include "log.h"
#include "steps.h"

#define PAGE 4096
#define WORKERS 3
#define OWNERS (WORKERS * 3)
#define OWN_PAGES 24 /* of the own file that are mapped */
#define OWN_BLOCK 97
#define VICTIM_PAGES 10

enum { FINE, COARSE, OWN, PRIVATE, FILES, FOLDER = 10 }; /* numbers of files */
enum { BY_WRITE, BY_CPU, BY_DEVICE };

struct file {
    int fd;
    int64_t size, mapped;
    int64_t block; /* of bytes of one owner */
    uint8_t *cpu;  /* NULL: not mapped */
    uint8_t *device;
    struct gaia_device *on;
};

static struct log *shared_log;
static struct file files[FILES];
static const char *mnt;
static const char *tag;
static unsigned number;
static bool daemon_dies, victim;
static uint8_t shadow[OWN_PAGES * PAGE]; /* the own file, where only write() writes */
static bool own_is_stale;                /* the device may lack what write() did to the own file */

static _Noreturn void die(const char *what, int64_t a, int64_t b)
{
    fprintf(stderr, "worker %u: %s (%lld, %lld)\n", number, what, (long long)a, (long long)b);
    exit(3);
}

/* --- the log --- */

static struct record *begin(unsigned kind, unsigned file, int64_t offset, int64_t length, const void *data,
                            size_t data_length)
{
    uint32_t count = shared_log->count, used = shared_log->used;
    struct record *r = &shared_log->records[count];

    memcpy(shared_log->bytes + used, data, data_length);
    *r = (struct record){.kind = kind,
                         .file = file,
                         .offset = offset,
                         .length = length,
                         .begin = now(),
                         .data = used,
                         .data_length = (uint32_t)data_length};
    atomic_store(&shared_log->used, used + (uint32_t)data_length);
    atomic_store(&shared_log->count, count + 1);
    return r;
}

/* Whether an error says that the daemon is gone. The kernel has other words for requests that were under way:
 * ECONNABORTED, and EIO for one that was just being handed to a thread that is killed. Of libgaia's calls
 * only an acquire, and a map, let EIO through. */
static bool daemon_gone(unsigned kind, int error)
{
    bool of_libgaia = kind >= OP_release && kind <= OP_unmap;

    if (error == ENOTCONN || error == RESULT_SIGBUS)
        return true;
    return of_libgaia ? error == EIO && (kind == OP_acquire || kind == OP_map)
                      : error == ECONNABORTED || error == EIO;
}

static bool is_over; /* the daemon is gone */

static int answer(struct record *r, int64_t done, int error)
{
    r->end = now();
    r->done = done;
    r->result = error;
    atomic_store(&r->answered, 1);
    if (error && daemon_dies && daemon_gone(r->kind, error))
        is_over = true;
    else if (error)
        die("failed", r->kind, error);
    return error;
}

static int failed(int64_t result)
{
    return result < 0 ? errno : 0;
}

/* --- which bytes are whose --- */

/* Some of the bytes that this worker stores in one way. */
static int64_t own_range(unsigned f, unsigned way, int64_t *length)
{
    int64_t block = files[f].block, blocks = (files[f].size + block - 1) / block;
    if (!blocks)
        return *length = 0;
    int64_t owners = f < OWN ? OWNERS : 2, mine = f < OWN ? number * 3 + way : way == BY_DEVICE;
    int64_t b = mine + owners * (int64_t)random_number((uint64_t)((blocks + owners - 1) / owners));
    int64_t first = b * block, end = first + block < files[f].size ? first + block : files[f].size;

    if (first >= end)
        return *length = 0;
    if (random_number(3)) {
        first += (int64_t)random_number((uint64_t)(end - first));
        end = first + 1 + (int64_t)random_number((uint64_t)(end - first));
    }
    *length = end - first;
    return first;
}

static uint8_t bytes[64 * PAGE];

static void fill_bytes(int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(random_number(255) + 1);
}

/* --- the operations on bytes --- */

static void do_write(unsigned f)
{
    int64_t length, offset = own_range(f, BY_WRITE, &length);

    if (!length)
        return;
    fill_bytes(length);
    struct record *r = begin(OP_write, f, offset, length, bytes, (size_t)length);
    ssize_t n = pwrite(files[f].fd, bytes, (size_t)length, offset);
    answer(r, n, failed(n));
    if (f == OWN && n > 0) {
        memcpy(shadow + offset, bytes, (size_t)n);
        own_is_stale = true;
    }
}

static void do_read(unsigned f)
{
    static uint8_t sink[64 * PAGE];
    int64_t offset = (int64_t)random_number((uint64_t)files[f].size);
    int64_t length = 1 + (int64_t)random_number(random_number(2) ? 3 * PAGE : 40 * PAGE);
    struct record *r = begin(OP_read, f, offset, length, NULL, 0);
    ssize_t n = pread(files[f].fd, sink, (size_t)length, offset);

    answer(r, n, failed(n));
}

static void do_store(unsigned f, unsigned way)
{
    int64_t length, offset = own_range(f, way, &length);
    uint8_t *to = way == BY_CPU ? files[f].cpu : files[f].device;

    if (!length || !to || offset + length > files[f].mapped)
        return;
    fill_bytes(length);
    struct record *r =
        begin(way == BY_CPU ? OP_store_cpu : OP_store_device, f, offset, length, bytes, (size_t)length);
    answer(r, length, store(to + offset, bytes, (size_t)length));
}

static void do_load(unsigned f)
{
    static uint8_t sink[5 * PAGE];
    int64_t end = files[f].size < files[f].mapped ? files[f].size : files[f].mapped;

    if (!files[f].device || !end)
        return;
    int64_t offset = (int64_t)random_number((uint64_t)end);
    int64_t length = 1 + (int64_t)random_number(sizeof sink);
    if (length > end - offset)
        length = end - offset;
    struct record *r = begin(OP_load_device, f, offset, length, NULL, 0);
    answer(r, length, load(files[f].device + offset, (size_t)length, sink));
}

/* The whole mapping, or some of its pages. */
static int64_t some_pages(unsigned f, int64_t *length)
{
    int64_t pages = (files[f].mapped + PAGE - 1) / PAGE, first = 0;

    *length = files[f].mapped;
    if (random_number(3) == 0) {
        first = (int64_t)random_number((uint64_t)pages);
        *length = (1 + (int64_t)random_number((uint64_t)(pages - first))) * PAGE;
    }
    return first * PAGE;
}

static void do_call_on(unsigned kind, unsigned f, int64_t offset, int64_t length)
{
    struct file *file = &files[f];
    int result = 0;

    if (!file->device)
        return;
    struct record *r = begin(kind, f, offset, length, NULL, 0);
    if (kind == OP_release)
        result = gaia_mrelease(file->device + offset, (size_t)length, file->on);
    else if (kind == OP_acquire)
        result = gaia_macquire(file->device + offset, (size_t)length, file->on);
    else if (kind == OP_gaia_msync)
        result = gaia_msync(file->device + offset, (size_t)length, MS_SYNC);
    else
        result = gaia_madvise(file->device + offset, (size_t)length, GAIA_ADV_DONTNEED);
    answer(r, 0, failed(result));
}

static void do_call(unsigned kind, unsigned f)
{
    int64_t length, offset = some_pages(f, &length);

    do_call_on(kind, f, offset, length);
}

static void do_msync(unsigned f)
{
    int64_t length, offset = some_pages(f, &length);
    struct record *r = begin(OP_msync, f, offset, length, NULL, 0);

    answer(r, 0, failed(msync(files[f].cpu + offset, (size_t)length, MS_SYNC)));
}

static void do_fsync(unsigned f)
{
    bool data = random_number(2);
    struct record *r = begin(data ? OP_fdatasync : OP_fsync, f, 0, INT64_MAX / 2, NULL, 0);

    answer(r, 0, failed(data ? fdatasync(files[f].fd) : fsync(files[f].fd)));
}

static int map_device(unsigned f)
{
    struct file *file = &files[f];
    struct record *r = begin(OP_map, f, 0, file->mapped, NULL, 0);
    void *address =
        gaia_mmap(file->on, (size_t)file->mapped, PROT_READ | PROT_WRITE, GAIA_SHARED, file->fd, 0);

    if (address != MAP_FAILED)
        file->device = address;
    return answer(r, 0, address == MAP_FAILED ? errno : 0);
}

static void do_remap(unsigned f)
{
    struct file *file = &files[f];

    if (!file->device)
        return;
    struct record *r = begin(OP_unmap, f, 0, file->mapped, NULL, 0);
    int error = failed(gaia_munmap(file->device, (size_t)file->mapped));
    file->device = NULL;
    if (!answer(r, 0, error))
        map_device(f);
}

/* --- the own file: its size changes --- */

static void do_append(void)
{
    int64_t size = files[OWN].size, length = 1 + (int64_t)random_number(random_number(3) ? 300 : 9000);
    int fd;
    char path[200];

    if (size + length > (int64_t)sizeof shadow)
        return;
    snprintf(path, sizeof path, "%s/own-%s", mnt, tag);
    fill_bytes(length);
    struct record *r = begin(OP_append, OWN, size, length, bytes, (size_t)length);
    fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, bytes, (size_t)length);
    int error = failed(n);
    if (fd >= 0)
        close(fd);
    if (answer(r, n, error))
        return;
    memcpy(shadow + size, bytes, (size_t)n);
    files[OWN].size += n;
    own_is_stale = true;
}

static void do_truncate(void)
{
    int64_t old = files[OWN].size, size = (int64_t)random_number(sizeof shadow);

    if (random_number(2) && old > 2)
        size = old - 1 - (int64_t)random_number((uint64_t)old - 1);
    struct record *r = begin(OP_truncate, OWN, size, old, NULL, 0);
    if (answer(r, 0, failed(ftruncate(files[OWN].fd, size))))
        return;
    memset(shadow + (size < old ? size : old), 0, (size_t)(size < old ? old - size : size - old));
    files[OWN].size = size;
    own_is_stale = true;
}

static void do_punch(void)
{
    int64_t length, offset = own_range(OWN, BY_WRITE, &length);

    if (!length)
        return;
    memset(bytes, 0, (size_t)length);
    struct record *r = begin(OP_punch, OWN, offset, length, bytes, (size_t)length);
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (answer(r, length, failed(fallocate(files[OWN].fd, mode, offset, length))))
        return;
    memset(shadow + offset, 0, (size_t)length);
    own_is_stale = true;
}

static void do_copy(void)
{
    int64_t length, from_length, to = own_range(OWN, BY_WRITE, &length);
    int64_t from = own_range(OWN, BY_WRITE, &from_length);

    length = length < from_length ? length : from_length;
    if (!length || llabs(from - to) < length)
        return;
    memcpy(bytes, shadow + from, (size_t)length);
    struct record *r = begin(OP_copy, OWN, to, length, bytes, (size_t)length);
    off_t in = from, out = to;
    ssize_t n = copy_file_range(files[OWN].fd, &in, files[OWN].fd, &out, (size_t)length, 0);
    if (answer(r, n, failed(n)))
        return;
    memcpy(shadow + to, bytes, (size_t)n);
    own_is_stale = true;
}

/* Whole pages of one of this worker's blocks that only write() changes. */
static int64_t own_pages(int64_t *length)
{
    int64_t block = files[COARSE].block, count = files[COARSE].size / block / OWNERS;
    int64_t b = number * 3 + BY_WRITE + OWNERS * (int64_t)random_number((uint64_t)count);
    int64_t first = (b * block + PAGE - 1) / PAGE * PAGE, end = (b + 1) * block / PAGE * PAGE;

    if (random_number(2))
        end = first + PAGE;
    *length = end - first;
    return first;
}

/* By the daemon: a copy to a part of a page, as above, it leaves to the kernel, which reads and writes. */
static void do_copy_pages(void)
{
    int64_t length, from_length, to = own_pages(&length), from = own_pages(&from_length);

    length = length < from_length ? length : from_length;
    if (llabs(from - to) < length)
        return;
    struct record *r = begin(OP_read, COARSE, from, length, NULL, 0);
    ssize_t n = pread(files[COARSE].fd, bytes, (size_t)length, from);
    if (answer(r, n, failed(n)))
        return;
    if (n != length)
        die("a short read", n, length);
    r = begin(OP_copy, COARSE, to, length, bytes, (size_t)length);
    off_t in = from, out = to;
    n = copy_file_range(files[COARSE].fd, &in, files[COARSE].fd, &out, (size_t)length, 0);
    answer(r, n, failed(n));
}

static void do_own(void)
{
    switch (random_number(8)) {
    case 0:
        do_append();
        break;
    case 1:
        do_truncate();
        break;
    case 2:
        do_punch();
        break;
    case 3:
        do_copy();
        break;
    case 4:
        do_write(OWN);
        break;
    default:
        /* Rule: a store of what the page held before others changed it is none. So it acquires first. */
        if (own_is_stale)
            do_call_on(OP_acquire, OWN, 0, files[OWN].mapped);
        own_is_stale = false;
        if (!is_over)
            do_store(OWN, BY_DEVICE);
        if (!is_over && random_number(2))
            do_call(OP_release, OWN);
    }
}

/* --- names --- */

#define NAMES 6

static void name_path(unsigned n, char *path, size_t room, char name[8])
{
    snprintf(name, 8, "n%u", n);
    snprintf(path, room, "%s/names-%s/%s", mnt, tag, name);
}

/* Refusals are as good an answer as any: ENOENT, EEXIST and the like change nothing. */
static void do_name(void)
{
    char path[200], other[200], name[8], other_name[8], data[64], text[24];
    unsigned kind = OP_create + (unsigned)random_number(OP_KINDS - OP_create);

    name_path((unsigned)random_number(NAMES), path, sizeof path, name);
    name_path((unsigned)random_number(NAMES), other, sizeof other, other_name);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)random_number(UINT64_MAX));
    int n = snprintf(data, sizeof data, "%s %s %s", name, other_name, text);
    struct record *r = begin(kind, FOLDER, 0, 0, data, (size_t)n);
    int error = failed(name_call(kind, path, other, text));
    if (error && !daemon_gone(kind, error)) {
        r->done = error; /* a refusal */
        r->end = now();
        atomic_store(&r->answered, 1);
        return;
    }
    answer(r, 0, error);
}

/* --- what run.py wants --- */

static void one_operation(void)
{
    unsigned f = random_number(3) ? FINE : COARSE;

    if (victim && random_number(3) == 0)
        f = PRIVATE;
    switch (random_number(20)) {
    case 0:
    case 1:
    case 2:
        if (f == COARSE && !victim && random_number(4) == 0)
            do_copy_pages();
        else if (f < OWN && !victim)
            do_write(f);
        else
            do_store(f, BY_DEVICE);
        break;
    case 3:
        do_read(f);
        break;
    case 4:
    case 5:
        if (f < OWN)
            do_store(f, BY_CPU);
        break;
    case 6:
        if (f < OWN)
            do_msync(f);
        break;
    case 7:
        do_fsync(f);
        break;
    case 8:
    case 9:
    case 10:
        do_store(f, BY_DEVICE);
        break;
    case 11:
        do_load(f);
        break;
    case 12:
    case 13:
        do_call(OP_release, f);
        break;
    case 14:
        do_call(OP_acquire, f);
        break;
    case 15:
        do_call(random_number(3) ? OP_gaia_msync : OP_dontneed, f);
        break;
    case 16:
        if (random_number(4) == 0)
            do_remap(f);
        break;
    case 17:
        for (unsigned i = 0; i < 3 && !is_over; i++) /* there are many kinds */
            do_name();
        break;
    default:
        do_own();
    }
}

/* All that this worker's devices hold is seen by everybody. */
static void settle(void)
{
    for (unsigned f = 0; f < FILES && !is_over; f++)
        if (files[f].device) {
            do_call_on(OP_release, f, 0, files[f].mapped);
            do_call_on(OP_acquire, f, 0, files[f].mapped);
        }
}

/* Nobody changes anything: device, mapping and read() show the same bytes. */
static void compare(void)
{
    static uint8_t by_read[64 * PAGE], by_device[64 * PAGE];

    for (unsigned f = 0; f < OWN; f++) {
        struct file *file = &files[f];
        if (gaia_macquire(file->device, (size_t)file->mapped, file->on))
            die("acquire", f, errno);
        if (load(file->device, (size_t)file->size, by_device))
            die("SIGBUS", f, 0);
        ssize_t n = pread(file->fd, by_read, (size_t)file->size, 0);
        if (n != file->size)
            die("read", n, errno);
        for (int64_t i = 0; i < file->size; i++)
            if (by_read[i] != by_device[i])
                die(f == FINE ? "device and read() differ in file 0 at"
                              : "device and read() differ in file 1 at",
                    i, by_read[i] << 8 | by_device[i]);
        if (memcmp(file->cpu, by_read, (size_t)file->size))
            die("mapping and read() differ", f, 0);
    }
}

/* --- a daemon that is gone --- */

#define SOON_NS 3000000000u

enum { PWRITE, FSYNC, OPEN, ACQUIRE, RELEASE, SYNC, ADVISE, STAT, MAP, CALLS };
static const char *const call_names[] = {"pwrite",        "fsync",         "open",
                                         "gaia_macquire", "gaia_mrelease", "gaia_msync",
                                         "gaia_madvise",  "gaia_stat",     "gaia_mmap"};

static int one_call(int call, const struct file *file)
{
    size_t length = (size_t)file->mapped;
    struct gaia_stat stat;
    char path[200];

    snprintf(path, sizeof path, "%s/fine", mnt);
    switch (call) {
    case PWRITE:
        return pwrite(file->fd, "", 1, 0) < 0 ? -1 : 0;
    case FSYNC:
        return fsync(file->fd);
    case OPEN:
        return open(path, O_RDONLY) < 0 ? -1 : 0;
    case ACQUIRE:
        return gaia_macquire(file->device, length, file->on);
    case RELEASE:
        return gaia_mrelease(file->device, length, file->on);
    case SYNC:
        return gaia_msync(file->device, length, MS_SYNC);
    case ADVISE:
        return gaia_madvise(file->device, length, GAIA_ADV_WILLNEED);
    case STAT:
        return gaia_stat(file->on, &stat);
    default:
        return gaia_mmap(file->on, PAGE, PROT_READ, 0, file->fd, 0) == MAP_FAILED ? -1 : 0;
    }
}

/* The first one may still be under way when the daemon ends (daemon_gone()). An acquire or a release that has
 * nothing to do asks nobody, and learns of the end from a thread of libgaia's. */
static void must_fail(int call, const struct file *file)
{
    uint64_t since = now();
    int result, error;

    do {
        errno = 0;
        result = one_call(call, file);
        error = errno;
        if (now() - since > SOON_NS)
            die(call_names[call], (int64_t)(now() - since), error);
    } while ((call <= OPEN && (error == ECONNABORTED || error == EIO)) ||
             (!result && (call == ACQUIRE || call == RELEASE)));
    if (!result || error != ENOTCONN)
        die(call_names[call], result, error);
}

static void must_raise(struct file *file, int64_t at, bool to_store)
{
    uint64_t since = now();
    uint8_t byte = 0;

    /* The call that failed may know of the end before the thread that takes the pages away. */
    while (!(to_store ? store(file->device + at, &byte, 1) : load(file->device + at, 1, &byte))) {
        if (now() - since > SOON_NS)
            die("a touch of a dead daemon's memory goes on", file - files, at);
        usleep(200);
    }
}

/* Every call says ENOTCONN, every touch SIGBUS, and soon. */
static void after_the_end(void)
{
    for (unsigned f = 0; f < FILES; f++) {
        struct file *file = &files[f];
        if (!file->device)
            continue;
        for (int call = 0; call < CALLS; call++)
            must_fail(call, file);
        must_raise(file, 0, false);
        must_raise(file, file->mapped - PAGE, true);
        if (gaia_munmap(file->device, (size_t)file->mapped))
            die("gaia_munmap", f, errno);
    }
    for (unsigned f = 0; f < FILES; f++)
        gaia_device_close(files[f].on);
}

/* --- the start --- */

static void open_file(unsigned f, const char *name, int64_t block, const char *device)
{
    char path[200];
    struct stat st;
    struct file *file = &files[f];

    snprintf(path, sizeof path, "%s/%s", mnt, name);
    file->fd = open(path, O_RDWR | O_CLOEXEC | (f >= OWN ? O_CREAT : 0), 0644);
    if (file->fd < 0 || fstat(file->fd, &st) || gaia_device_open(device, &file->on))
        die(name, errno, 0);
    file->size = st.st_size;
    file->block = block;
    file->mapped = f == OWN       ? OWN_PAGES * PAGE
                   : f == PRIVATE ? VICTIM_PAGES * PAGE
                                  : (st.st_size + PAGE - 1) / PAGE * PAGE;
    if (f < OWN) {
        file->cpu = mmap(NULL, (size_t)file->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
        if (file->cpu == MAP_FAILED)
            die("mmap", f, errno);
    }
}

static void set_up(const char *device)
{
    char name[100];

    open_file(FINE, "fine", 113, device);
    open_file(COARSE, "coarse", 12388, device);
    snprintf(name, sizeof name, "own-%s", tag);
    open_file(OWN, name, OWN_BLOCK, device);
    if (pread(files[OWN].fd, shadow, sizeof shadow, 0) < 0)
        die("read", OWN, errno);
    if (victim) {
        snprintf(name, sizeof name, "private-%s", tag);
        open_file(PRIVATE, name, OWN_BLOCK, "soft:2");
        if (ftruncate(files[PRIVATE].fd, VICTIM_PAGES * PAGE))
            die("ftruncate", PRIVATE, errno);
        files[PRIVATE].size = VICTIM_PAGES * PAGE;
    }
    own_is_stale = true;
}

static void attend(void)
{
    for (unsigned f = 0; f < FILES && !is_over; f++)
        if (files[f].on)
            map_device(f);
    atomic_store(&shared_log->ready, 1);
    while (!atomic_load(&shared_log->go))
        usleep(200);
    while (!is_over) {
        uint32_t want = atomic_load(&shared_log->want), have = atomic_load(&shared_log->have);
        if (want != have) {
            if (want == WANT_SETTLE)
                settle();
            if (want == WANT_COMPARE)
                compare();
            if (want == WANT_RUN)
                shared_log->count = shared_log->used = shared_log->full = 0;
            atomic_store(&shared_log->have, want);
            if (want == WANT_END)
                return;
            continue;
        }
        bool full = shared_log->count + 64 > LOG_RECORDS || shared_log->count > shared_log->limit ||
                    shared_log->used + (1u << 20) > LOG_BYTES;
        atomic_store(&shared_log->full, full);
        if (want != WANT_RUN || full) {
            if (fcntl(files[FINE].fd, F_GETFL) >= 0 && access(mnt, F_OK) && daemon_dies)
                return; /* the daemon is gone */
            usleep(500);
            continue;
        }
        one_operation();
    }
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return 2;
    mnt = argv[1];
    number = (unsigned)atoi(argv[3]);
    tag = argv[4];
    daemon_dies = !strcmp(argv[7], "daemon");
    victim = !strcmp(argv[7], "victim");
    random_state = strtoull(argv[6], NULL, 10) * 0x9E3779B97F4A7C15u | 1;
    int fd = open(argv[2], O_RDWR | O_CLOEXEC);
    shared_log = mmap(NULL, sizeof *shared_log, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared_log == MAP_FAILED)
        die("log", errno, 0);
    catch_touches();
    set_up(argv[5]);
    attend();
    if (daemon_dies && atomic_load(&shared_log->want) != WANT_END)
        after_the_end();
    return 0;
}
