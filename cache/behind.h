/* SPDX-License-Identifier: Apache-2.0 */
/* Files of this home that others have changed without asking it. Nodes that take this one to be dead (it
 * stood still, or is cut off) go on alone, and nobody tracks what they open then: they change it in the data
 * directory. When they have met this node again they ask it; but kernels here, and on nodes that stood still
 * with it, hold pages from before. Only the file's times tell of such changes. */
#ifndef GAIAFS_CACHE_BEHIND_H
#define GAIAFS_CACHE_BEHIND_H

#include <stdbool.h>
#include <stdint.h>

struct home_session;
struct nodes;

/* An agent that has entered knows by now of all that is tracked here, so that it changes these files only by
 * this home from now on: the kernels of the other nodes drop what it has changed before. Does nothing if this
 * node is not sure, as behind_settle() follows then. No lock is held; waits for storage. */
void behind_look_for(const struct home_session *agent);

/* To be called before this node, which stood still for the n-th time, is sure again. alone: others may have
 * gone on alone meanwhile. Kernels that hold pages from before drop all of the files that the others have
 * changed, and what these kernels write back of them is lost, as if another node had become the home: their
 * pages would undo what may be on storage. No lock is held; waits for storage. */
void behind_settle(struct nodes *nodes, uint64_t stall, bool alone);

#endif
