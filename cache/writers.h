/* SPDX-License-Identifier: Apache-2.0 */
/* Whose programs may have stored to a tracked file through mappings: those of a node, of several, that have
 * it open for writing (a mapping keeps its descriptor's description). What they have stored there only their
 * kernel knows, until it writes it back; and an acquire promises a device every such store that was made
 * before. On its own node the acquiring process sees to that itself (gpu/piece.c). The others' kernels the
 * home has write back, but only where there are writers: so an acquire of a file that programs elsewhere only
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
    uint64_t number; /* of what was told last: what is told with a lower one is older */
};

/* All: the file's lock is held; the file's home is this node. */

/* A node has told. writers: the file's, or a home_open's. */
void writers_told(struct cache_file *file, struct writers *writers, bool any, uint64_t number);
/* An agent that had told is gone. */
void writers_changed(struct cache_file *file);
/* Whether programs of other nodes may store to it: acquires of this node's devices have to ask each time. */
bool writers_elsewhere(const struct cache_file *file);

#endif
