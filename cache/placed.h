/* SPDX-License-Identifier: Apache-2.0 */
/* What a map knows to be still on a device that scans, of what the map has had placed: looking at each page
 * of GiB takes longer than searching for what kernels have stored there. It is known for one range, except
 * the pages that have left the replica since; the last few of these are known by their leaves. */
#ifndef GAIAFS_CACHE_PLACED_H
#define GAIAFS_CACHE_PLACED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct replica;

/* Of a replica, under the file's lock. All zero: none have left. */
#define DEPARTURES_MIN 16u
#define DEPARTURES_MAX 4096u
struct departures {
    uint64_t count;   /* how often pages of a leaf have left */
    uint64_t since;   /* those before can't be told */
    uint64_t *leaves; /* of the last `room`, the n-th at n % room; NULL: none yet */
    uint32_t room;
};

/* Pages of a leaf leave; the file has so many leaves. Twice as many departures are remembered, between
 * DEPARTURES_MIN and DEPARTURES_MAX, so that many small files take little memory. Without memory it is known
 * that some have left, but not which. */
void departures_add(struct departures *departures, uint64_t leaf, uint64_t of_leaves);
void departures_free(struct departures *departures);

/* A range of which all pages before the end of the file were there when so many `departures` had left; under
 * the file's lock. Of a map. All zero: none. */
struct placed {
    uint64_t first, end; /* pages; equal: none */
    uint64_t departures, pages;
};

/* Leaves of a range, ascending, some of whose pages are not there. */
struct lacking {
    size_t count;
    uint64_t leaves[];
};

/* What of [first, first + count) is not there any more; NULL: all of it is there. The caller frees. Waits for
 * pages that somebody is placing. False: that is not known, and placed_look() finds out. No lock is held. */
bool placed_lacks(struct replica *replica, uint64_t first, uint64_t count, struct placed *placed,
                  struct lacking **lacking_out);
/* Whether all of it is there, looked at page by page; waits likewise. If all is there, placed has the range
 * from now on, and keeps an adjacent range that it had. */
bool placed_look(struct replica *replica, uint64_t first, uint64_t count, struct placed *placed);

#endif
