/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: random operations on the files of the run, each of them logged. */
#include "worker_internal.h"
#include "crash.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t tick(struct control *control)
{
    uint64_t now;

    atomic_thread_fence(memory_order_seq_cst); /* plain loads and stores of files stay on their side */
    now = atomic_fetch_add(&control->clock, 1) + 1;
    atomic_thread_fence(memory_order_seq_cst);
    return now;
}

_Noreturn void die(const char *what)
{
    fprintf(stderr, "driver: process %d: %s: %s\n", (int)getpid(), what, strerror(errno));
    _exit(3);
}

uint64_t below(struct worker *w, uint64_t limit)
{
    return next_random(&w->random) % limit;
}

bool chance(struct worker *w, unsigned percent)
{
    return below(w, 100) < percent;
}

/* --- the log ---------------------------------------------------------------------------------------------
 */

struct entry *begin(struct worker *w, enum operation operation, unsigned device, struct range at)
{
    struct log_header *log = w->run->logs[w->index];
    uint64_t used = atomic_load(&log->used);
    bool reads = operation == OP_READ || operation == OP_LOAD || operation == OP_DEVICE_LOAD;
    uint64_t size = sizeof(struct entry) + (reads ? (at.length + 7) / 8 * 8 : 0);
    struct entry *entry = (struct entry *)((uint8_t *)(log + 1) + used);

    if (sizeof *log + used + size > LOG_BYTES) {
        errno = ENOSPC;
        die("the log");
    }
    *entry = (struct entry){.offset = operation == OP_APPEND ? UINT64_MAX : at.offset,
                            .length = at.length,
                            .worker = w->index,
                            .size = (uint32_t)size,
                            .operation = (uint8_t)operation,
                            .device = (uint8_t)(w->node * w->run->control->devices + device),
                            .file = (uint8_t)at.file,
                            .incarnation = (uint16_t)w->incarnation,
                            .node = (uint16_t)w->node};
    entry->invoked = tick(w->run->control);
    atomic_store(&log->last, used);
    atomic_store(&log->used, used + size);
    atomic_thread_fence(memory_order_seq_cst);
    return entry;
}

/* After the call, at once: only then is `answered` written, as the last. */
void end(struct worker *w, struct entry *entry, int64_t result, unsigned flags)
{
    uint64_t now = tick(w->run->control);

    entry->result = result;
    entry->flags = (uint8_t)flags;
    if (result > 0 &&
        (entry->operation == OP_READ || entry->operation == OP_LOAD || entry->operation == OP_DEVICE_LOAD))
        memcpy(entry + 1, w->buffer + entry->offset % 8, (size_t)result);
    if (entry->operation == OP_APPEND)
        entry->offset = (uint64_t)lseek(w->appends, 0, SEEK_CUR) - (uint64_t)(result > 0 ? result : 0);
    atomic_thread_fence(memory_order_seq_cst);
    *(volatile uint64_t *)&entry->answered = now;
}

void expect(const struct entry *entry, bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "driver: entry %llu, file %u, device %u, %llu+%llu, result %lld: ",
            (unsigned long long)entry->invoked, entry->file, entry->device, (unsigned long long)entry->offset,
            (unsigned long long)entry->length, (long long)entry->result);
    die(what);
}

/* --- touching mappings -----------------------------------------------------------------------------------
 */

static sigjmp_buf escape;
static volatile sig_atomic_t guarded;

static void on_sigbus(int number)
{
    static const char message[] = "driver: SIGBUS outside of a touch\n";

    (void)number;
    if (guarded)
        siglongjmp(escape, 1);
    if (write(2, message, sizeof message - 1) < 0)
        _exit(4);
    _exit(3);
}

/* Copy as a program's loads and stores would, by words; returns how far it came before SIGBUS. */
static size_t touch(uint8_t *to, const uint8_t *from, size_t length)
{
    volatile size_t done = 0;

    if (!sigsetjmp(escape, 1)) {
        guarded = 1;
        while (done < length) {
            size_t i = done;
            if (((uintptr_t)(to + i) | (uintptr_t)(from + i)) % 8 || length - i < 8) {
                *(volatile uint8_t *)(to + i) = *(const volatile uint8_t *)(from + i);
                done = i + 1;
            } else {
                *(volatile uint64_t *)(to + i) = *(const volatile uint64_t *)(from + i);
                done = i + 8;
            }
        }
    }
    guarded = 0;
    return done;
}

/* --- where -----------------------------------------------------------------------------------------------
 */

const struct history_file *file_of(struct worker *w, unsigned file)
{
    return &w->run->control->file[file];
}

static uint64_t random_length(struct worker *w)
{
    uint64_t kind = below(w, 100);

    if (kind < 40)
        return 1;
    if (kind < 65)
        return 1 + below(w, 128);
    if (kind < 92)
        return 1 + below(w, 1024);
    return 1 + below(w, kind < 99 ? PAGE : TRANSFER_MAX - 2 * GRAIN_MAX);
}

/* Whole cells in the pages [first, first + pages) of a file. agent: for writes, whose bytes these are; -1:
 * any. */
struct range random_range(struct worker *w, unsigned file, uint64_t first, uint64_t pages, int agent)
{
    uint64_t page = chance(w, 60) ? below(w, w->hot) : first + below(w, pages);
    uint64_t limit = file_of(w, file)->most;

    if (page < first || page >= first + pages)
        page = first + below(w, pages);
    if (limit > (first + pages) * PAGE)
        limit = (first + pages) * PAGE;
    struct range at = {file, page * PAGE + below(w, chance(w, 70) ? 1024 : PAGE), random_length(w)};
    if (agent >= 0 && !chance(w, w->race)) {
        const struct control *control = w->run->control;
        uint64_t agents = control->nodes * (control->devices + 1);
        uint64_t mine = w->node * (control->devices + 1) + (uint64_t)agent;
        uint64_t turns = (PAGE / BLOCK - mine - 1) / agents + 1;
        uint64_t block = page * PAGE + (mine + agents * below(w, turns)) * BLOCK;
        at.offset = block + at.offset % BLOCK;
        if (limit > block + BLOCK)
            limit = block + BLOCK;
    }
    if (at.offset >= limit)
        at.offset = limit - 1;
    at.offset = cell_start(at.offset);
    uint64_t stop = at.offset + at.length;
    if (cell_start(stop) != stop)
        stop = cell_start(stop) + cell_size(stop);
    at.length = (stop < limit ? stop : limit) - at.offset;
    return at;
}

static struct range file_range(struct worker *w, int agent)
{
    unsigned file = (unsigned)below(w, w->run->control->files);

    return random_range(w, file, 0, (file_of(w, file)->most + PAGE - 1) / PAGE, agent);
}

/* As file_range(), but the end of a file that varies stays a multiple of GRAIN_MAX. */
static struct range write_range(struct worker *w)
{
    struct range at = file_range(w, CPU_AGENT);

    if (!file_of(w, at.file)->varies)
        return at;
    at.length += at.offset % GRAIN_MAX + GRAIN_MAX - 1;
    at.offset -= at.offset % GRAIN_MAX;
    at.length -= at.length % GRAIN_MAX;
    return at;
}

/* --- operations of the CPU -------------------------------------------------------------------------------
 */

static void do_write(struct worker *w)
{
    struct range at = write_range(w);
    struct entry *entry = begin(w, OP_WRITE, 0, at);
    ssize_t done;

    value_fill(w->buffer, entry->invoked, at.offset, at.length, 0);
    if (chance(w, 30) && lseek(w->files[at.file], (off_t)at.offset, SEEK_SET) >= 0)
        done = write(w->files[at.file], w->buffer, at.length);
    else
        done = pwrite(w->files[at.file], w->buffer, at.length, (off_t)at.offset);
    end(w, entry, done, 0);
    expect(entry, done == (ssize_t)at.length, "write");
}

static unsigned varying_file(struct worker *w)
{
    unsigned file = 0;

    while (file + 1 < w->run->control->files && !file_of(w, file)->varies)
        file++;
    return file;
}

static void do_truncate(struct worker *w)
{
    unsigned file = varying_file(w);
    struct range at = {file, 0, below(w, file_of(w, file)->most / GRAIN_MAX + 1) * GRAIN_MAX};

    if (!file_of(w, file)->varies)
        return;
    struct entry *entry = begin(w, OP_TRUNCATE, 0, at);
    int status = ftruncate(w->files[file], (off_t)at.length);
    end(w, entry, status, 0);
    expect(entry, !status, "ftruncate");
}

static void do_append(struct worker *w)
{
    unsigned file = varying_file(w);
    struct range at = {file, 0, (1 + below(w, chance(w, 80) ? 4 : 32)) * GRAIN_MAX};
    off_t size = lseek(w->appends, 0, SEEK_END);

    if (!file_of(w, file)->varies)
        return;
    if (size + (off_t)(at.length + 64 * GRAIN_MAX) > (off_t)file_of(w, file)->most) {
        do_truncate(w);
        return;
    }
    struct entry *entry = begin(w, OP_APPEND, 0, at);
    value_fill(w->buffer, entry->invoked, 0, at.length, 1);
    ssize_t done = write(w->appends, w->buffer, at.length);
    end(w, entry, done, 0);
    expect(entry, done == (ssize_t)at.length, "append");
}

static void read_range(struct worker *w, struct range at)
{
    struct entry *entry = begin(w, OP_READ, 0, at);
    uint8_t *buffer = w->buffer + at.offset % 8;
    ssize_t done;

    if (chance(w, 30) && lseek(w->files[at.file], (off_t)at.offset, SEEK_SET) >= 0)
        done = read(w->files[at.file], buffer, at.length);
    else
        done = pread(w->files[at.file], buffer, at.length, (off_t)at.offset);
    end(w, entry, done, 0);
    expect(entry, done >= 0 && (file_of(w, at.file)->varies || done == (ssize_t)at.length), "read");
}

static void do_read(struct worker *w)
{
    read_range(w, file_range(w, -1));
}

void load_range(struct worker *w, enum operation operation, unsigned device, uint8_t *from, struct range at)
{
    struct entry *entry = begin(w, operation, device, at);
    size_t done = touch(w->buffer + at.offset % 8, from, at.length);

    end(w, entry, (int64_t)done, done < at.length ? ENTRY_SIGBUS : 0);
    expect(entry, done == at.length || file_of(w, at.file)->varies, "SIGBUS in a load");
}

void store_range(struct worker *w, enum operation operation, unsigned device, uint8_t *to, struct range at)
{
    struct entry *entry = begin(w, operation, device, at);

    value_fill(w->buffer + at.offset % 8, entry->invoked, at.offset, at.length, 0);
    size_t done = touch(to, w->buffer + at.offset % 8, at.length);
    end(w, entry, (int64_t)done, done < at.length ? ENTRY_SIGBUS : 0);
    expect(entry, done == at.length || file_of(w, at.file)->varies, "SIGBUS in a store");
}

static void do_load(struct worker *w)
{
    struct range at = file_range(w, -1);

    load_range(w, OP_LOAD, 0, w->maps[at.file] + at.offset, at);
}

static void do_store(struct worker *w)
{
    struct range at = file_range(w, CPU_AGENT);

    store_range(w, OP_STORE, 0, w->maps[at.file] + at.offset, at);
}

/* Calls that have no part in the history, logged for whoever reads it: `length` is a letter. */
struct entry *begin_other(struct worker *w, char letter, unsigned device, unsigned file)
{
    return begin(w, OP_OTHER, device, (struct range){file, 0, (uint64_t)letter});
}

static void map_file(struct worker *w, unsigned file)
{
    w->maps[file] = mmap(NULL, file_of(w, file)->most, PROT_READ | PROT_WRITE, MAP_SHARED, w->files[file], 0);
    if (w->maps[file] == MAP_FAILED)
        die("mmap");
}

static void open_file(struct worker *w, unsigned file)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/file.%u", w->run->mounts[w->node], file);
    w->files[file] = open(path, O_RDWR | O_CLOEXEC);
    if (w->files[file] < 0)
        die(path);
    if (!file_of(w, file)->varies)
        return;
    w->appends = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
    if (w->appends < 0)
        die(path);
}

static void do_sync(struct worker *w)
{
    unsigned file = (unsigned)below(w, w->run->control->files);
    bool maps = chance(w, 50);
    struct entry *entry = begin_other(w, maps ? 'm' : 'f', 0, file);
    int status = maps ? msync(w->maps[file], file_of(w, file)->most, MS_SYNC) : fsync(w->files[file]);

    end(w, entry, status, 0);
    expect(entry, !status, "fsync, msync");
}

static void do_reopen(struct worker *w)
{
    unsigned file = (unsigned)below(w, w->run->control->files);
    bool closes = chance(w, 50);
    struct entry *entry = begin_other(w, closes ? 'c' : 'o', 0, file);

    if (closes) {
        close(w->files[file]);
        if (file_of(w, file)->varies)
            close(w->appends);
        open_file(w, file);
    } else {
        munmap(w->maps[file], file_of(w, file)->most);
        map_file(w, file);
    }
    end(w, entry, 0, 0);
}

/* --- the processes ---------------------------------------------------------------------------------------
 */

static const struct {
    void (*act)(struct worker *w);
    unsigned weight;
    char letter; /* for struct run's mutes */
} actions[] = {{do_write, 120, 'w'},       {do_append, 30, 'p'},      {do_store, 120, 's'},
               {do_read, 140, 'r'},        {do_load, 120, 'l'},       {do_device_store, 150, 'S'},
               {do_device_load, 130, 'L'}, {do_acquire, 70, 'A'},     {do_release, 80, 'R'},
               {do_truncate, 10, 't'},     {do_sync, 8, 'f'},         {do_reopen, 6, 'o'},
               {do_advise, 10, 'a'},       {do_device_sync, 8, 'F'},  {do_device_map, 40, 'M'},
               {do_device_unmap, 12, 'U'}, {do_device_reopen, 2, 'D'}};
#define ACTIONS (sizeof actions / sizeof *actions)

/* The seed of the run decides how much agents race and how hot the hot pages are, that of the worker what it
 * does most. */
static void choose_habits(struct worker *w)
{
    static const unsigned factors[] = {0, 1, 1, 1, 3, 6}, races[] = {0, 5, 30, 100}, hots[] = {1, 3, 8, 24};
    uint64_t seed = w->run->control->seed;

    w->race = races[next_random(&seed) % 4];
    w->hot = hots[next_random(&seed) % 4];
    for (unsigned i = 0; i < ACTIONS; i++) {
        unsigned factor = factors[below(w, sizeof factors / sizeof *factors)];
        if (!factor && strchr(w->run->needs, actions[i].letter))
            factor = 1;
        w->weights[i] = strchr(w->run->mutes, actions[i].letter) ? 0 : actions[i].weight * factor;
    }
}

static void start_worker(struct worker *w, struct run *run, uint32_t index, uint32_t incarnation,
                         uint32_t node)
{
    struct sigaction action = {.sa_handler = on_sigbus};

    *w = (struct worker){.run = run, .index = index, .incarnation = incarnation, .node = node, .appends = -1};
    w->random = run->control->seed * 1000003 + index * 65537 + incarnation;
    w->buffer = malloc(TRANSFER_MAX + 16);
    if (!w->buffer || sigaction(SIGBUS, &action, NULL))
        die("a worker's start");
    tell_crashes();
}

static void open_all(struct worker *w)
{
    for (unsigned i = 0; i < w->run->control->files; i++) {
        open_file(w, i);
        map_file(w, i);
    }
    for (unsigned i = 0; i < w->run->control->devices; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s:%u", on_gpus() ? "cuda" : "soft", i);
        if (gaia_device_open(name, &w->devices[i]))
            die(name);
    }
}

static void act(struct worker *w, unsigned total)
{
    uint64_t pick = below(w, total);
    unsigned i = 0;

    while (pick >= w->weights[i])
        pick -= w->weights[i++];
    actions[i].act(w);
}

_Noreturn void run_worker(struct run *run, uint32_t index, uint32_t incarnation)
{
    struct worker w;
    unsigned total = 0;

    start_worker(&w, run, index, incarnation, index % run->control->nodes);
    open_all(&w);
    choose_habits(&w);
    for (unsigned i = 0; i < ACTIONS; i++)
        total += w.weights[i];
    while (total && atomic_fetch_add(&run->control->started, 1) < run->control->operations) {
        act(&w, total);
        if (!below(&w, run->mean_ops))
            break; /* without a word to libgaia, or with one */
    }
    if (chance(&w, 30))
        for (unsigned i = 0; i < run->control->devices; i++)
            gaia_device_close(w.devices[i]);
    exit(0);
}

_Noreturn void prepare_files(struct run *run)
{
    struct worker w;
    char path[4096];

    start_worker(&w, run, run->control->workers, 0, 0);
    for (unsigned i = 0; i < run->control->files; i++) {
        snprintf(path, sizeof path, "%s/file.%u", run->mounts[0], i);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0 || ftruncate(fd, (off_t)file_of(&w, i)->size))
            die(path);
        for (uint64_t at = 0; at < file_of(&w, i)->size; at += TRANSFER_MAX) {
            struct range range = {i, at, file_of(&w, i)->size - at};
            if (range.length > TRANSFER_MAX)
                range.length = TRANSFER_MAX;
            if (chance(&w, 30))
                continue; /* a hole */
            struct entry *entry = begin(&w, OP_WRITE, 0, range);
            value_fill(w.buffer, entry->invoked, at, range.length, 0);
            ssize_t done = pwrite(fd, w.buffer, range.length, (off_t)at);
            end(&w, entry, done, 0);
            expect(entry, done == (ssize_t)range.length, "the first write");
        }
        close(fd);
    }
    exit(0);
}

/* Everything that any device holds is released by an acquire; then all look at all. */
static void look_at_file(struct worker *w, unsigned file)
{
    struct slot slots[DEVICES_MAX];
    struct stat status;
    unsigned devices = w->run->control->devices;

    if (fstat(w->files[file], &status))
        die("fstat");
    /* An append that found room may have come after a truncation that took it: then the file is longer than
     * what is mapped of it, here as everywhere. */
    uint64_t size = (uint64_t)status.st_size, most = file_of(w, file)->most;
    if (size > most)
        size = most;
    for (unsigned d = 0; d < devices; d++) {
        slots[d] = (struct slot){.file = file, .device = d, .length = file_of(w, file)->most};
        slots[d].address =
            gaia_mmap(w->devices[d], slots[d].length, PROT_READ | PROT_WRITE, GAIA_SHARED, w->files[file], 0);
        if (slots[d].address == MAP_FAILED)
            die("gaia_mmap");
        acquire_range(w, &slots[d], (struct range){file, 0, slots[d].length});
    }
    for (unsigned d = 0; d < devices; d++)
        acquire_range(w, &slots[d], (struct range){file, 0, slots[d].length});
    for (uint64_t at = 0; at < size; at += PAGE) {
        struct range range = {file, at, size - at < PAGE ? size - at : PAGE};
        for (unsigned d = 0; d < devices; d++)
            load_range(w, OP_DEVICE_LOAD, d, slots[d].address + at, range);
        read_range(w, range);
        load_range(w, OP_LOAD, 0, w->maps[file] + at, range);
    }
    for (unsigned d = 0; d < devices; d++)
        gaia_munmap(slots[d].address, slots[d].length);
}

_Noreturn void track_files(struct run *run)
{
    struct worker w;

    start_worker(&w, run, run->control->workers, 1, 0);
    open_all(&w);
    for (unsigned file = 0; file < run->control->files; file++)
        if (gaia_mmap(w.devices[0], file_of(&w, file)->most, PROT_READ, GAIA_SHARED, w.files[file], 0) ==
            MAP_FAILED)
            die("gaia_mmap");
    exit(0);
}

_Noreturn void sync_files(struct run *run, uint32_t node)
{
    struct worker w;

    start_worker(&w, run, run->control->workers, 2, node);
    for (unsigned file = 0; file < run->control->files; file++) {
        open_file(&w, file);
        struct entry *entry = begin_other(&w, 'f', 0, file);
        int status = fsync(w.files[file]);
        end(&w, entry, status, 0);
        expect(entry, !status, "the last fsync");
    }
    exit(0);
}

_Noreturn void finish_run(struct run *run, uint32_t node)
{
    struct worker w;

    start_worker(&w, run, run->control->workers, 3, node);
    open_all(&w);
    for (unsigned file = 0; file < run->control->files; file++)
        look_at_file(&w, file);
    exit(0);
}

/* After the unmount: the data directory's files are what the CPU would see. */
_Noreturn void read_backing(struct run *run, const char *folder)
{
    struct worker w;
    struct stat status;

    run->mounts[0] = folder;
    start_worker(&w, run, run->control->workers, 4, 0);
    for (unsigned file = 0; file < run->control->files; file++) {
        open_file(&w, file);
        if (fstat(w.files[file], &status))
            die("fstat");
        uint64_t size = (uint64_t)status.st_size;
        for (uint64_t at = 0; at < size; at += PAGE)
            read_range(&w, (struct range){file, at, size - at < PAGE ? size - at : PAGE});
    }
    exit(0);
}
