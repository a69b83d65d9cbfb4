/* SPDX-License-Identifier: Apache-2.0 */
/* Files of this home that others have changed without asking it. Nodes that take this one to be dead (it
 * stood still, or is cut off) go on alone, and what they open then is tracked by nobody: they change it in
 * the data directory. When they have met this node again they ask it; but kernels here, and on nodes that
 * stood still with it, hold pages from before. Only the file's times tell of it. */
#ifndef GAIAFS_CACHE_BEHIND_H
#define GAIAFS_CACHE_BEHIND_H

#include <stdbool.h>
#include <stdint.h>

struct home_session;
struct nodes;

/* An agent that has entered knows by now of all that is tracked here, so that it changes nothing of it any
 * more but by this home: what it has changed before, the kernels of the others drop. Nothing if this node is
 * not sure, as behind_settle() follows. No lock is held; waits for storage. */
void behind_look_for(const struct home_session *agent);

/* Before this node, which stood still for the n-th time, is sure again. alone: others may have gone on alone
 * meanwhile. Of what they have changed the kernels of before drop all, and what these write back of it is
 * lost, as if another node had become its home: their pages would undo what may be on storage. No lock is
 * held; waits for storage. */
void behind_settle(struct nodes *nodes, uint64_t stall, bool alone);

#endif
