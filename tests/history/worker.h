/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GAIAFS_TESTS_WORKER_H
#define GAIAFS_TESTS_WORKER_H

#include "history.h"

struct run {
    struct control *control;
    struct log_header *logs[WORKERS_MAX + 1]; /* the last: of those that prepare and finish the run */
    const char *mounts[NODES_MAX];            /* of each node */
    const char *mutes;                        /* operations that are not done: letters, see worker.c */
    const char *needs;                        /* operations that every worker does: letters */
    uint32_t mean_ops; /* operations after which a worker ends by itself, on the average */
};

uint64_t next_random(uint64_t *state);
uint64_t tick(struct control *control);

/* Each is a process: it ends by exit(). */
_Noreturn void prepare_files(struct run *run);
_Noreturn void run_worker(struct run *run, uint32_t index, uint32_t incarnation);
/* Of several nodes: maps each file on a device, from when on all nodes ask its home. */
_Noreturn void track_files(struct run *run);
/* What programs of a node have written the others see. */
_Noreturn void sync_files(struct run *run, uint32_t node);
_Noreturn void finish_run(struct run *run, uint32_t node);
_Noreturn void read_backing(struct run *run, const char *folder);

_Noreturn void die(const char *what);

#endif
