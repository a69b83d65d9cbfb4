/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's operations: which bytes of the shared files are its own, what it does to them, to its own file
 * and to names, and what comes next. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gaia.h"
#include "log.h"
#include "steps.h"

#define WORKERS 3
#define OWNERS (WORKERS * 3)

uint8_t shadow[OWN_PAGES * PAGE];
bool own_is_stale;

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

void do_call_on(unsigned kind, unsigned f, int64_t offset, int64_t length)
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

int map_device(unsigned f)
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
    if (n != length && !daemon_dies)
        die("a short read", n, length);
    if (n != length) /* of its first page the kernel had the bytes; the next call finds out */
        return;
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

/* --- what comes next --- */

void one_operation(void)
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
