/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver writes and the checker reads: the log of a run, and the values that are written.
 *
 * A run's folder has a file `control` (struct control) and a file `log.N` for each worker. A log is mapped
 * MAP_SHARED and lies outside the mount, so what a killed worker logged survives it. It is an array of
 * entries of different sizes: struct entry, then for reads room for the bytes that were seen.
 *
 * An entry is written before its call, with `invoked` from the run's one clock; after the call come the
 * result and, last, `answered` from the same clock. If a call was answered before another was invoked, then
 * its `answered` is less than the other's `invoked`. An entry without `answered` is of a worker that was
 * killed: once that is dead, its parent sets `answered` and ENTRY_KILLED.
 */
#ifndef GAIAFS_TESTS_HISTORY_H
#define GAIAFS_TESTS_HISTORY_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define HISTORY_MAGIC 0x3179726f74736968u
#define PAGE 4096u
#define GRAIN_MAX 64u /* sizes of files, lengths of appends and places of truncations are multiples of it */
#define WORKERS_MAX 8u
#define DEVICES_MAX 8u /* of all nodes together: those of node n are n * control.devices and on */
#define NODES_MAX 3u
#define FILES_MAX 4u
#define LOG_BYTES (UINT64_C(1) << 33) /* of address space and of a sparse file */

enum operation {
    OP_WRITE = 1,    /* pwrite(), or lseek() and write() */
    OP_APPEND,       /* write() with O_APPEND; `offset` is known from the answer on */
    OP_STORE,        /* through a mapping */
    OP_READ,         /* pread(), or lseek() and read() */
    OP_LOAD,         /* through a mapping */
    OP_DEVICE_STORE, /* through a device's mapping */
    OP_DEVICE_LOAD,
    OP_ACQUIRE,
    OP_RELEASE,
    OP_TRUNCATE,
    OP_OTHER, /* maps, unmaps, ...: `length` says which, for the reader; SYNCS are part of a history of nodes
               */
    OPERATIONS
};

/* fsync(), msync() of all, close() */
#define SYNCS "fmc"

enum entry_flag {
    ENTRY_KILLED = 1, /* the caller was killed before it had the answer */
    ENTRY_SIGBUS = 2  /* the touch of the byte at offset + result raised SIGBUS */
};

struct entry {
    uint64_t invoked, answered; /* 0: not answered */
    uint64_t offset, length;
    int64_t result; /* bytes done, or 0; -errno */
    uint32_t worker;
    uint32_t size; /* of the entry with its bytes, a multiple of 8 */
    uint8_t operation, device, file, flags;
    uint16_t incarnation; /* how often this worker was started before */
    uint16_t node;        /* where it runs */
};

struct log_header {
    _Atomic uint64_t used; /* bytes of entries after this header */
    _Atomic uint64_t last; /* where the last of them begins */
};

struct history_file {
    uint64_t size;   /* at the start, all zeros */
    uint64_t most;   /* as large as it may become */
    uint32_t varies; /* it is appended to and truncated */
};

struct control {
    uint64_t magic, seed;
    _Atomic uint64_t clock;                  /* the last number that was given out */
    _Atomic uint64_t started;                /* operations */
    uint64_t operations;                     /* to be started */
    uint32_t workers, devices, files, nodes; /* devices: of each node */
    _Atomic uint32_t kills, kills_inside;    /* workers killed; of these, how many inside a call */
    struct history_file file[FILES_MAX];
};

/* The unit of checking: a range of bytes that every operation covers wholly or not at all. Some pages begin
 * with 256 cells of one byte, all have cells of 16 bytes, then cells of 64. */
static inline uint64_t cell_size(uint64_t offset)
{
    uint64_t inside = offset % PAGE;

    if (inside < 256)
        return offset / PAGE % 4 == 3 ? 1 : 16;
    return inside < 1024 ? 16 : 64;
}

static inline uint64_t cell_start(uint64_t offset)
{
    return offset - offset % cell_size(offset);
}

static inline uint64_t value_word(uint64_t id, uint64_t word)
{
    uint64_t x = id * UINT64_C(0x9e3779b97f4a7c15) + word * UINT64_C(0xd1b54a32d192ed03);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The byte that operation `id` (its `invoked`) writes at an offset. An append does not know where it goes:
 * its bytes are those of offset % GRAIN_MAX. */
static inline uint8_t value_byte(uint64_t id, uint64_t offset)
{
    return (uint8_t)(value_word(id, offset / 8) >> offset % 8 * 8);
}

static inline void value_fill(uint8_t *bytes, uint64_t id, uint64_t offset, uint64_t length, int periodic)
{
    for (uint64_t i = 0; i < length; i++)
        bytes[i] = value_byte(id, periodic ? (offset + i) % GRAIN_MAX : offset + i);
}

#endif
