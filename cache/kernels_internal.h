/* SPDX-License-Identifier: Apache-2.0 */
/* What each kernel may hold (cache/kernels.c), for those who have it drop that (cache/dropper.c). The file's
 * lock is held. */
#ifndef GAIAFS_CACHE_KERNELS_INTERNAL_H
#define GAIAFS_CACHE_KERNELS_INTERNAL_H

#include "cache/internal.h"
#include "cache/kernels.h"

#define KERNELS_NODES (MEMBERS_MAX + 1) /* this one is 0 */

struct kernel_node {
    struct kernel_leaves droppable; /* leaves with old pages; at the end the one that was looked at last */
    bool given;                     /* any page, ever */
    uint64_t failures;              /* of its write-backs */
};

/* What one kernel may hold of a leaf. */
struct kernel_leaf {
    struct table_entry entry;           /* first */
    LIST_ENTRY(kernel_leaf) link;       /* of all */
    TAILQ_ENTRY(kernel_leaf) droppable; /* of the node's with old pages */
    unsigned node;
    uint64_t leaf;
    page_mask given;    /* it may hold the page */
    page_mask old;      /* of given: with a twin; the home copy has changed since */
    uint64_t round;     /* of the dropper, in which it was looked at last */
    page_mask dropping; /* of old: the kernel is being told to drop it, and was not given the page since */
    /* Of kernels that write back late (before Linux 6.16), of pages that are not old: */
    page_mask released; /* dropped for a release; the home copy has not changed since, but for write-backs */
    page_mask late;     /* dropped, with a twin: a write-back from before later changes may be on its way */
    uint64_t late_ns;   /* CLOCK_MONOTONIC: the last one is dropped since */
    TAILQ_ENTRY(kernel_leaf) link_late; /* of those with late pages, in that order */
    uint32_t twins[LEAF_PAGES];
};

/* There is something to drop, or a size to tell. */
static inline bool kernels_are_due(const struct kernels *kernels)
{
    return kernels->old || kernels->resized || kernels->stale;
}
/* What is known of a leaf and a node's kernel, or NULL. */
struct kernel_leaf *kernels_find(struct kernels *kernels, unsigned node, uint64_t leaf);
/* The kernel has dropped old pages. */
void kernels_dropped(struct cache_file *file, struct kernel_leaf *k, page_mask pages);

#endif
