/* SPDX-License-Identifier: Apache-2.0 */
/* Which members live, and how long a mount waits for them. */
#ifndef GAIAFS_CACHE_LIVING_H
#define GAIAFS_CACHE_LIVING_H

#include "cache/nodes.h"

/* Bit i: there is a session with the i-th member of the list; epoch_out: of the list. */
uint64_t nodes_living(struct nodes *nodes, uint64_t *epoch_out);
/* XXH3-64 of the name of the which-th of them, from 1 on, if there is one; else 0. count_out: how many
 * members there are. */
uint64_t nodes_living_one(struct nodes *nodes, uint64_t which, uint64_t *count_out);
/* A member that there is a session with, and that a new list lacks, or has at another address: it listens
 * where it did when it was mounted, and could not be met there again. Nor can this node. Its number, or
 * MEMBERS_MAX. nodes->lock is held. */
unsigned nodes_left_out(const struct nodes *nodes, const struct members *fresh);
/* Before this node serves anything: nodes_meet_all(), and wait until those that live have met this node, too,
 * for twice timeout_ms, and a minute for a node that is being unmounted, or is not done with an earlier
 * session. Otherwise one of the two would not learn what the other tracks. -ETIMEDOUT, or why one that lives
 * could not be met (call_is_short(), -EBUSY, -ESHUTDOWN; -ENODEV: this node's device has gone). */
int nodes_meet_before_all(struct nodes *nodes, char why_out[CALL_WHY]);

#endif
