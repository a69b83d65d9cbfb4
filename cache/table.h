/* SPDX-License-Identifier: Apache-2.0 */
/* A growing hash table of things that have a number: one bucket per entry. An entry is the first member of
 * the thing. The table's owner guards it. */
#ifndef GAIAFS_CACHE_TABLE_H
#define GAIAFS_CACHE_TABLE_H

#include <stdint.h>

struct table_entry {
    struct table_entry *chain;
    uint64_t key;
};

/* All zero: empty. */
struct table {
    struct table_entry **buckets;
    uint64_t size; /* a power of two, or 0 */
    uint64_t count;
};

/* The entry, or NULL; of several with one key the one that was added last. */
struct table_entry *table_find(const struct table *table, uint64_t key);
/* -ENOMEM: it was not added. */
int table_add(struct table *table, struct table_entry *entry, uint64_t key);
/* An entry that was added. */
void table_remove(struct table *table, struct table_entry *entry);
/* Does not free the entries. */
void table_free(struct table *table);

#endif
