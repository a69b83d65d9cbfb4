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
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia.h"
#include "log.h"
#include "steps.h"

static struct log *shared_log;
bool daemon_dies;
struct file files[FILES];
const char *mnt;
const char *tag;
unsigned number;
bool victim, is_over;

_Noreturn void die(const char *what, int64_t a, int64_t b)
{
    fprintf(stderr, "worker %u: %s (%lld, %lld)\n", number, what, (long long)a, (long long)b);
    exit(3);
}

/* --- the log --- */

struct record *begin(unsigned kind, unsigned file, int64_t offset, int64_t length, const void *data,
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

/* The kernel has other words for requests that were under way: ECONNABORTED, and EIO for one that was just
 * being handed to a thread that is killed. Of libgaia's calls only an acquire, and a map, let EIO through. */
bool daemon_gone(unsigned kind, int error)
{
    bool of_libgaia = kind >= OP_release && kind <= OP_unmap;

    if (error == ENOTCONN || error == RESULT_SIGBUS)
        return true;
    return of_libgaia ? error == EIO && (kind == OP_acquire || kind == OP_map)
                      : error == ECONNABORTED || error == EIO;
}

int answer(struct record *r, int64_t done, int error)
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

int failed(int64_t result)
{
    return result < 0 ? errno : 0;
}

/* --- what run.py wants --- */

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
