/* SPDX-License-Identifier: Apache-2.0 */
/* The sparse page index of a tracked file: a leaf for each 256 KiB of it that some device holds a page of
 * (GAIA's leaf of the page cache's radix tree, section 5.1), and in it a leaf_copy for each device. State is
 * one bit per page; version vectors and twins are allocated when they are first needed, so that a leaf that
 * is only read costs a few hundred bytes.
 *
 * Everything here is guarded by the file's lock (cache/file.h).
 */
#ifndef GAIAFS_CACHE_INDEX_H
#define GAIAFS_CACHE_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "cache/table.h"
#include "consistency/rules.h"

#define LEAF_SHIFT 6
#define LEAF_PAGES (1u << LEAF_SHIFT)
#define LEAF_UNITS (LEAF_PAGES / GAIA_UNIT_PAGES)

struct replica;
struct leaf;

typedef uint64_t page_mask; /* bit i: page i of a leaf */

/* What one device has of a leaf's pages. */
struct leaf_copy {
    struct leaf *leaf;
    struct replica *replica;
    SLIST_ENTRY(leaf_copy) link; /* leaf->copies, by ascending replica number */

    page_mask present; /* the device's frame holds the page */
    page_mask busy;    /* one thread is placing, exposing, protecting or dropping it; only that thread may */
    page_mask waited;  /* of busy: a touch waits and must be woken when busy ends */
    /* Of devices that scan (cache/scan.h): */
    page_mask raced; /* of busy: the home copy has changed since */
    page_mask blind; /* of present, without a twin: the home copy, changed behind the mount, is none either */
    /* Of all devices: */
    page_mask twin;      /* has a twin; without one the page is write protected in every client */
    page_mask sealed;    /* of twin: write protected nevertheless, so its bytes can't change */
    page_mask releasing; /* of twin: found modified; the kernel's copies are being invalidated (rule 6) */
    page_mask touched;   /* of releasing: a WRITE may have put it back into the kernel's cache meanwhile */
    page_mask pending;   /* of twin: released, not collected */

    /* By unit, allocated when first needed: frame numbers of twins, and V of this copy (NULL: all zero). */
    uint32_t *twins[LEAF_UNITS];
    gaia_version *v[LEAF_UNITS];

    TAILQ_ENTRY(leaf_copy) order;   /* the device's, of eviction; under the device's lock */
    TAILQ_ENTRY(leaf_copy) stored;  /* the replica's copies with twins */
    TAILQ_ENTRY(leaf_copy) suspect; /* the replica's copies that may be out of date */
    bool in_order, referenced;      /* the same */
    bool in_stored, in_suspects;
};

struct leaf {
    struct table_entry entry;
    uint64_t number;        /* page >> LEAF_SHIFT */
    page_mask kernel;       /* the kernel may hold it: at first all pages, later those that it has got */
    page_mask invalidating; /* somebody is telling the kernel to drop it */
    page_mask refilled;     /* the kernel has read the page since it was told to drop it (cache/heal.h) */
    page_mask reread;       /* ... since the oldest of the invalidations that are under way began */
    page_mask dropped;      /* what those invalidations are about */
    uint32_t invalidations; /* how many are under way; the leaf stays meanwhile */
    page_mask cpu_modified; /* written by a CPU since the last acquire (rule 4) */
    /* At least the pages that are releasing or pending in some copy: spares a read the walk through the
     * copies of many devices. */
    page_mask released;
    /* By unit, allocated when first needed (NULL: all zero): R of the unit's pages, then V of their home
     * copies. A vector has n entries, which grows with the file's replicas. */
    gaia_version *versions[LEAF_UNITS];
    uint16_t n[LEAF_UNITS];
    SLIST_HEAD(leaf_copies, leaf_copy) copies;
};

struct index {
    struct table leaves; /* by number */
    uint64_t copies;
    uint64_t bytes; /* of leaves and copies */
};

static inline page_mask page_bit(uint64_t page)
{
    return UINT64_C(1) << (page & (LEAF_PAGES - 1));
}

/* Bits of the pages of leaf number `leaf` that lie in [first, first + count). */
page_mask page_range_mask(uint64_t leaf, uint64_t first, uint64_t count);

/* The numbers of the leaves in which those pages lie; count is not 0. */
#define for_each_leaf(number, first, count) \
    for (uint64_t number = (first) >> LEAF_SHIFT; number <= ((first) + (count)-1) >> LEAF_SHIFT; number++)

/* In how many leaves they lie. */
static inline uint64_t page_range_leaves(uint64_t first, uint64_t count)
{
    uint64_t last = count <= UINT64_MAX - first ? first + count - 1 : UINT64_MAX;

    return count ? (last >> LEAF_SHIFT) - (first >> LEAF_SHIFT) + 1 : 0;
}

/* Take the lowest run of set bits out of *mask: its first bit number, and its length. *mask is not 0. */
unsigned page_mask_run(page_mask *mask, unsigned *length_out);

void index_init(struct index *index);
/* Frees the table; every leaf is gone. */
void index_free(struct index *index);

/* Bytes of all metadata of the file but twins: for the statistics. */
uint64_t index_bytes(const struct index *index);

/* The leaf, or NULL. */
struct leaf *index_find(const struct index *index, uint64_t number);
/* The leaf's copy at a replica, or NULL. */
struct leaf_copy *leaf_find_copy(const struct leaf *leaf, const struct replica *replica);
/* Find or make. NULL: out of memory. The kernel is taken to hold every page of a new leaf. */
struct leaf_copy *index_get_copy(struct index *index, uint64_t number, struct replica *replica);
/* Free the copy when no state is left in it, and its leaf with the last copy. The copy must be on no list. */
void index_put_copy(struct index *index, struct leaf_copy *copy);

/* Make room for version vectors of n entries for the pages' units, and for the frame numbers of their twins.
 * 0 or -ENOMEM; after 0 the rules cannot fail for want of memory. */
int leaf_versions_reserve(struct index *index, struct leaf *leaf, page_mask pages, uint32_t n);
int leaf_copy_twins_reserve(struct index *index, struct leaf_copy *copy, page_mask pages);

/* Whether anything was ever released of the page, by a device or the CPU: else all its versions are zero. */
static inline bool leaf_has_versions(const struct leaf *leaf, unsigned page)
{
    return leaf->versions[page / GAIA_UNIT_PAGES] != NULL;
}
/* The vectors of one page for consistency/rules.h; they must be allocated. */
struct gaia_page_versions leaf_page_versions(struct leaf *leaf, unsigned page);
gaia_version *leaf_copy_page_vector(struct leaf_copy *copy, unsigned page);
/* Where the number of a page's twin is kept; reserved before. */
uint32_t *leaf_copy_twin(struct leaf_copy *copy, unsigned page);

/* Call fn for each leaf, in no order. fn may remove its leaf (by index_put_copy()), and no other. */
void index_each(const struct index *index, void (*fn)(struct leaf *leaf, void *context), void *context);

#endif
