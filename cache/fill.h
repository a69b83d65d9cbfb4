/* SPDX-License-Identifier: Apache-2.0 */
/* Fill: bring the home's bytes into a device's frames, and let the client that touched them see them. */
#ifndef GAIAFS_CACHE_FILL_H
#define GAIAFS_CACHE_FILL_H

#include "cache/map.h"

/* Counts fills under way for a thread that waits for all of them. */
struct fill_group {
    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t done;
    unsigned under_way;
    int error; /* the first */
};

void fill_group_init(struct fill_group *group);
/* Waits for all; the first error or 0. Frees. */
int fill_group_finish(struct fill_group *group);

#define FILL_NO_PAGE UINT64_MAX

/* What a fill is for. */
struct fill_request {
    uint64_t first, count;
    uint64_t touched;         /* the page whose touch waits; FILL_NO_PAGE: none */
    bool store;               /* the touch is a store */
    uint32_t thread;          /* that touches: gaia_fault.thread */
    struct fill_group *group; /* or NULL */
    bool patient;             /* fit_to_place() has been called for it */
    uint64_t wide;            /* how many pages are read and sent at once; 0: STAGE_PAGES */
};

/* Place the pages of the request that the device lacks and nobody is placing, and expose them to the map's
 * client. Bytes in the host's memory are copied at once; the others are read from storage, and are there when
 * the read completes. A touched page that can't be brought is poisoned for the client. No lock is held; waits
 * for room, never for a touch. 0, or the errno because of which the rest was not begun; the group gets it,
 * too.
 */
int fill_range(struct cache_map *map, const struct fill_request *request);

/* A page whose store waits. */
struct fill_store {
    uint64_t page;        /* or FILL_NO_PAGE */
    const uint8_t *bytes; /* that were placed in it; NULL: the frames are asked */
    uint64_t truncations; /* of the file, then; */
    off_t size;           /* and how long it was */
};

/* Expose pages that are placed and that the caller has made busy. Takes the twin of store's page; for a
 * client that cannot trap stores, of every page. No lock is held. */
int fill_expose(struct cache_map *map, struct leaf_copy *copy, page_mask pages,
                const struct fill_store *store);

#endif
