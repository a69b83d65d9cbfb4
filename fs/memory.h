/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory, and how many threads, the machine and the control groups leave the daemon, or a client.
 * All functions look at /proc and /sys, and may be called from any thread. */
#ifndef GAIAFS_FS_MEMORY_H
#define GAIAFS_FS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* How many bytes of memory the daemon may use: the machine's, or what its control groups leave it. A process
 * that uses more than its groups allow is not refused memory, but killed. */
uint64_t memory_available(void);

/* How many threads the daemon may have, with all else that counts against the same limits: its user's, or
 * what its control groups leave it. UINT64_MAX: as many as there can be. */
uint64_t threads_available(void);

/* A descriptor that says how much memory is charged to the control group, of the daemon's, that has the least
 * limit. -1: none has one, or that can't be seen from here. */
int memory_usage(uint64_t *limit_out);

/* Whether a process loses nothing when memory is charged to its control groups: they are the daemon's, or
 * they, and all that they are in, have no limit. False also where that can't be seen from here. True only for
 * now: the process may be moved, or be given a limit. */
bool memory_may_be_charged(pid_t pid);

#endif
