/* SPDX-License-Identifier: Apache-2.0 */
/* What is being healed (cache/heal.c), for those who do it (cache/healer.c). Unless it says otherwise the
 * file's lock is held. */
#ifndef GAIAFS_CACHE_HEAL_INTERNAL_H
#define GAIAFS_CACHE_HEAL_INTERNAL_H

#include "cache/heal.h"
#include "cache/internal.h"

struct heal {
    LIST_ENTRY(heal) link;    /* window->heals */
    STAILQ_ENTRY(heal) queue; /* healer->queue */
    struct cache_file *file;  /* in use, but by one that lingers */
    off_t offset;
    size_t length, cut;   /* bytes of the request, and those that were applied */
    size_t dropped;       /* of those, the leading ones whose pages are invalidated */
    uint64_t reads;       /* the last READ that may have read what was there before */
    uint64_t leaves;      /* bit i: the i-th leaf of the range is marked as being invalidated */
    uint64_t drop_reads;  /* the last READ before that */
    unsigned node;        /* whose kernel */
    bool misplaced;       /* heal_misplaced() */
    bool answered_early;  /* its WRITE, before it was done; under the file's lock, as are the next two */
    bool linked;          /* in window->heals */
    uint64_t lingers_ns;  /* not 0: it is done, and write-backs of the pages may come until then */
    bool head_done, done; /* all but the last page, everything; under healer->lock */
    unsigned references;  /* the WRITE's handler, the healer, the list while it lingers; under healer->lock */
    uint8_t bytes[]; /* of the WRITE, behind them what the home had there before, and heal_current_bits() */
};

static inline uint8_t *heal_old_bytes(struct heal *heal)
{
    return heal->bytes + heal->length;
}

/* A bit for each page that is known to be as new as the WRITE in its kernel from here on: the kernel has
 * asked for the page since the WRITE was applied, or has shown it with nothing in it that the WRITE has
 * replaced. */
static inline uint8_t *heal_current_bits(struct heal *heal)
{
    return heal->bytes + 2 * heal->length;
}

static inline bool heal_is_current(struct heal *heal, size_t page)
{
    return heal_current_bits(heal)[page / 8] >> page % 8 & 1;
}

static inline void heal_set_current(struct heal *heal, size_t page)
{
    heal_current_bits(heal)[page / 8] |= (uint8_t)(1u << page % 8);
}

/* Its number within the heal. */
static inline size_t heal_page_of(const struct heal *heal, off_t offset)
{
    return (size_t)(offset / (off_t)GAIA_PAGE_SIZE - heal->offset / (off_t)GAIA_PAGE_SIZE);
}

/* The part of a heal that lies in [offset, offset + length), as [*begin, *end). False: none. */
bool heal_overlaps(const struct heal *heal, off_t offset, off_t length, off_t *begin, off_t *end);
/* It is done, or can't be: it ends, or lingers. Others of the file that linger may end with that. */
void heal_over(struct cache_file *file, struct heal *heal, bool done);
/* With the file's lock held or without. */
void heal_put(struct healer *healer, struct heal *heal);

#endif
