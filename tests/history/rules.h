/* SPDX-License-Identifier: Apache-2.0 */
/* What rules.c keeps of a cell while it looks at it, and report.c says about it. */
#ifndef GAIAFS_TESTS_RULES_H
#define GAIAFS_TESTS_RULES_H

#include "checker.h"

#define VIEWS (NODES_MAX + DEVICES_MAX) /* the CPUs, the devices */

struct write {
    const struct op *op; /* NULL: the zeros at the start, or a settled race */
    uint64_t id, invoked, answered, published, acquired;
    uint64_t far;           /* of a CPU's: published to other nodes' */
    uint64_t grown;         /* the zeros of a truncation: when the file was grown again */
    const uint8_t *literal; /* a settled race's bytes */
    int agent;
    uint32_t node;
    bool certain, zeros, periodic, exists, settled;
    bool unstable; /* may lie past the end, or be a killed call's: may come and go */
};

struct point { /* where somebody looks */
    int agent;
    uint32_t node;
    uint64_t invoked, acquired;
    bool settled;
};

struct live { /* what a view may find */
    struct write **writes;
    size_t count, next; /* next: of the cell's writes, the first that was not looked at */
};

struct interval {
    uint64_t invoked, answered;
};

struct intervals {
    struct interval *of;
    size_t count;
};

struct cell {
    const struct history *history;
    const struct op **ops; /* in order of `invoked` */
    size_t count;
    uint64_t offset, size;
    uint32_t file;
    struct intervals releases[DEVICES_MAX]; /* by invoked; answered: the least of this and all later ones */
    struct intervals acquires[DEVICES_MAX]; /* by answered; invoked: the most of this and all earlier ones */
    const struct intervals *syncs;          /* of each node, of the file: as releases */
    struct write *writes;                   /* by invoked; then the settled ones */
    size_t write_count, settled_count;
    struct write *ends; /* writes of whether the cell exists */
    size_t end_count;
    struct live views[VIEWS], exists;
};

bool match(const struct cell *cell, const struct write *w, const uint8_t *seen, bool *found);
bool all_found(const struct cell *cell, const bool *found);
bool overwrites(const struct write *v, const struct write *w, const struct point *at);
bool is_read(const struct op *op);

struct report {
    struct summary *summary;
    unsigned most;
};

/* report.c: counts what no order allows, and prints the first of it. */
void bad_bytes(const struct cell *cell, const struct live *live, const struct op *op, const struct point *at,
               const uint8_t *seen, const struct report *report);
void bad_end(const struct cell *cell, const struct op *op, const char *what, const struct report *report);

#endif
