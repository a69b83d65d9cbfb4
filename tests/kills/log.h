/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker did, in a file that outlives it: run.py reads it when the worker, or the daemon, has been
 * killed.
 *
 * A record is complete in the file before its operation begins, and gets its result when the operation has
 * been answered. So of a killed worker exactly the last record can be without. */
#ifndef KILLS_LOG_H
#define KILLS_LOG_H

#include <stdatomic.h>
#include <stdint.h>

enum {
#define KIND(name) OP_##name,
#include "kinds.h"
#undef KIND
    OP_KINDS
};

/* What run.py wants, in the order in which it does. */
enum { WANT_RUN, WANT_SETTLE, WANT_COMPARE, WANT_END };

#define LOG_RECORDS 16384u
#define LOG_BYTES (16u << 20)
#define RESULT_SIGBUS 1000 /* for an errno */

struct record {
    uint32_t kind;
    uint32_t file;
    int32_t result; /* an errno, RESULT_SIGBUS, or 0 */
    _Atomic uint32_t answered;
    int64_t offset, length;
    int64_t done; /* write() may come short */
    uint64_t begin, end;
    uint32_t data; /* where its bytes, or its names, lie in log.bytes */
    uint32_t data_length;
};

struct log {
    _Atomic uint32_t ready; /* it has mapped all, and waits for go */
    _Atomic uint32_t go;
    _Atomic uint32_t want; /* WANT_*: of run.py */
    _Atomic uint32_t have; /* what of it is done */
    _Atomic uint32_t count;
    _Atomic uint32_t used;  /* of bytes */
    _Atomic uint32_t full;  /* nothing more is done */
    _Atomic uint32_t limit; /* of run.py: how many records are enough */
    uint32_t unused[8];
    struct record records[LOG_RECORDS];
    uint8_t bytes[LOG_BYTES];
};

#endif
