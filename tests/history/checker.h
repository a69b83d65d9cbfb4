/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GAIAFS_TESTS_CHECKER_H
#define GAIAFS_TESTS_CHECKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "history.h"

#define NEVER UINT64_MAX
#define CPU (-1) /* of node 0; of node n: CPU - n */

/* An operation of the history, from a log or from a text. */
struct op {
    uint64_t invoked, answered; /* NEVER: not known */
    uint64_t offset, length;
    int64_t result;
    const uint8_t *bytes; /* of a read: `result` bytes seen */
    uint32_t worker, incarnation, node;
    uint8_t operation, device, file, flags;
};

struct history {
    struct op *ops; /* in ascending order of `invoked` */
    size_t count;
    uint32_t files, nodes;
    struct history_file file[FILES_MAX];
};

struct summary {
    uint64_t reads, cells, bytes;     /* checked */
    uint64_t open_cells;              /* reads of cells with more than one value allowed */
    uint64_t settled;                 /* races whose outcome a read showed */
    uint64_t most_live;               /* most values allowed at once */
    uint64_t undone;                  /* reads of cells where a value that was brought back was undone */
    uint64_t violations;              /* reads of cells that no order allows */
    char first[256], first_rule[128]; /* the first of them */
};

/* Check the whole history; violations are printed, the first `reports` of them with all that happened to
 * their cell. */
void check_history(const struct history *history, unsigned reports, struct summary *summary);

const char *op_name(const struct op *op);
void print_op(const struct op *op);

#endif
