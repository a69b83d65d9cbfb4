/* SPDX-License-Identifier: Apache-2.0 */
/* Files that other nodes track, by name: what their homes have told this node (FOLLOW). A table for its
 * owner's lock (nodes->lock), which is held in all calls. */
#ifndef GAIAFS_CACHE_FOLLOWED_H
#define GAIAFS_CACHE_FOLLOWED_H

#include <stdint.h>
#include <sys/queue.h>

#include "io/node.h"

struct followed {
    LIST_ENTRY(followed) link;
    unsigned member;     /* its home, */
    uint64_t generation; /* since when: see nodes_generation() */
    uint64_t told;       /* when it said so last, by the table's count */
    struct node_name name;
};

#define FOLLOWED_BUCKETS 1024u

/* All zeros is an empty one. */
struct followed_table {
    LIST_HEAD(, followed) buckets[FOLLOWED_BUCKETS];
    uint64_t told, count;
};

/* Valid until the lock is let go; NULL: no home has said that it tracks the file. */
const struct followed *followed_find(const struct followed_table *table, const struct node_name *name);
/* A member says that it tracks the file. told_out: the count of this time. -ENOMEM; -EBUSY: another member
 * does, with a higher generation. */
int followed_add(struct followed_table *table, unsigned member, const struct node_name *name,
                 uint64_t generation, uint64_t *told_out);
/* The home does not track the file (any more); unless a home has said again since `told` that it does. */
void followed_remove(struct followed_table *table, const struct node_name *name, uint64_t told);
/* The member tracks the file no longer; unless another does, or it has said so with a higher generation. */
void followed_end(struct followed_table *table, unsigned member, const struct node_name *name,
                  uint64_t generation);
/* All that one member has said. */
void followed_remove_member(struct followed_table *table, unsigned member);
void followed_clear(struct followed_table *table);

#endif
