/* SPDX-License-Identifier: Apache-2.0 */
/* What each kernel may hold (cache/kernels.c), for those who have it drop that (cache/dropper.c). The file's
 * lock is held. */
#ifndef GAIAFS_CACHE_KERNELS_INTERNAL_H
#define GAIAFS_CACHE_KERNELS_INTERNAL_H

#include "cache/internal.h"
#include "cache/kernels.h"

#define KERNELS_NODES (MEMBERS_MAX + 1) /* this one is 0 */

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
    page_mask dropping; /* of old: it is being told to, and was not given the page since */
    page_mask late;     /* not old, with a twin: dropped, but a write-back of it may be on its way yet */
    uint32_t twins[LEAF_PAGES];
};

/* What is known of a leaf and a node's kernel, or NULL. */
struct kernel_leaf *kernels_find(struct kernels *kernels, unsigned node, uint64_t leaf);
/* The kernel has dropped old pages. Before Linux 6.16 that may be before what it has written back of them has
 * come: then the twins stay, until it asks for the page again (for which it waits) or the file is closed. */
void kernels_dropped(struct cache_file *file, struct kernel_leaf *k, page_mask pages);

#endif
