/* SPDX-License-Identifier: Apache-2.0 */
/* One read of the batch reader, by a thread that waits for it, and polls meanwhile. */
#ifndef GAIAFS_TESTS_IO_PULL_FETCH_H
#define GAIAFS_TESTS_IO_PULL_FETCH_H

#include "io/pull.h"

struct fetch {
    struct gaia_pull_read read; /* first */
    _Atomic bool ended;
    int error;
};

static inline void fetch_done(struct gaia_pull_read *read, int error)
{
    struct fetch *fetch = (struct fetch *)read;

    fetch->error = error;
    fetch->ended = true; /* last: who waits goes away with it */
}

static inline bool fetch_has_ended(void *fetch)
{
    return ((struct fetch *)fetch)->ended;
}

/* starved: as gaia_pull_open() has it. 0, or the read's error. */
static inline int fetch(struct gaia_transport *transport, struct gaia_pull *pull, const _Atomic bool *starved,
                        const struct gaia_pull_read *read)
{
    struct fetch fetch = {.read = *read};

    fetch.read.done = fetch_done;
    gaia_pull_add(pull, &fetch.read);
    gaia_pull_ring(pull);
    while (!gaia_transport_wait(transport, fetch_has_ended, &fetch, *starved ? 5 : 1000))
        if (*starved) /* else the link's time limit ends it */
            gaia_pull_ring(pull);
    return fetch.error;
}

#endif
