/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes' programs may have stored to a tracked file through mappings: those that have it open for
 * writing (a mapping keeps its descriptor's description). Only their kernel knows what they have stored
 * there, until it writes that back; and an acquire promises a device every such store that was made before.
 * On its own node the acquiring process has this done itself (gpu/piece.c). The home has the kernels of other
 * nodes write back, but only where there are writers: so an acquire of a file that programs elsewhere only
 * read is one round trip.
 *
 * Each node counts its own, and tells the home when there are some and when there are none any more
 * (fs/writers.h). */
#ifndef GAIAFS_CACHE_WRITERS_H
#define GAIAFS_CACHE_WRITERS_H

#include <stdbool.h>
#include <stdint.h>

struct cache_file;

/* Of a file and a node. All zero: none yet. */
struct writers {
    bool any;
    uint64_t number; /* of what was told last: news with a lower number is older */
};

/* All: the file's lock is held; the file's home is this node. */

/* A node has told whether it has writers. writers: the file's, or a home_open's. */
void writers_told(struct cache_file *file, struct writers *writers, bool any, uint64_t number);
/* An agent that had told is gone. */
void writers_changed(struct cache_file *file);
/* Whether programs of other nodes may store to the file: then acquires of this node's devices have to ask
 * each time. */
bool writers_elsewhere(const struct cache_file *file);

#endif
