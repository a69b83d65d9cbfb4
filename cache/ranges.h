/* SPDX-License-Identifier: Apache-2.0 */
/* A set of byte ranges of a file, of bounded size: when there are too many ranges, or memory is short, it
 * holds more bytes than were put in, never fewer. */
#ifndef GAIAFS_CACHE_RANGES_H
#define GAIAFS_CACHE_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RANGES_FEW 2u
#define RANGES_MAX 512u

struct range {
    int64_t start, end; /* end is not part of it */
};

/* All zero: empty. Ascending, and neither overlapping nor touching. */
struct ranges {
    struct range few[RANGES_FEW];
    struct range *many; /* instead, when there were more */
    unsigned count, room;
};

static inline bool ranges_empty(const struct ranges *ranges)
{
    return !ranges->count;
}

void ranges_add(struct ranges *ranges, int64_t start, int64_t end);
/* Adds all of from. */
void ranges_add_all(struct ranges *ranges, const struct ranges *from);
/* Adds those of from that lie in [start, end). */
void ranges_add_part(struct ranges *ranges, const struct ranges *from, int64_t start, int64_t end);
/* Takes bytes out; where that would make one range too many, they stay in. */
void ranges_remove(struct ranges *ranges, int64_t start, int64_t end);
/* Whether one of the bytes is in it. */
bool ranges_touch(struct ranges *ranges, int64_t start, int64_t end);
/* Empties it, and frees what it has allocated. */
void ranges_clear(struct ranges *ranges);

/* What all sets together may allocate, in bytes, as anybody can write to every second byte of any number of
 * files. Beyond that memory is short. Before there are threads; without it there is no bound. */
void ranges_bound(size_t most);
/* What they have allocated: for the tests. */
size_t ranges_allocated(void);

#endif
