/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/table.h"

#include <errno.h>
#include <stdlib.h>

/* Numbers are dense, or so are multiples: the upper bits of a product with the golden ratio spread them
 * (Knuth, vol. 3, 6.4). */
static struct table_entry **bucket_of(const struct table *table, uint64_t key)
{
    return &table->buckets[key * UINT64_C(0x9E3779B97F4A7C15) >> (64 - __builtin_ctzll(table->size))];
}

static void insert(struct table *table, struct table_entry *entry)
{
    struct table_entry **bucket = bucket_of(table, entry->key);

    entry->chain = *bucket;
    *bucket = entry;
}

/* A table that can't grow only gets slower. */
static int grow(struct table *table)
{
    uint64_t size = table->size ? table->size * 2 : 16;
    struct table_entry **buckets = calloc(size, sizeof *buckets);
    struct table old = *table;

    if (!buckets)
        return table->size ? 0 : -ENOMEM;
    table->buckets = buckets;
    table->size = size;
    for (uint64_t i = 0; i < old.size; i++)
        for (struct table_entry *entry = old.buckets[i], *next; entry; entry = next) {
            next = entry->chain;
            insert(table, entry);
        }
    free(old.buckets);
    return 0;
}

struct table_entry *table_find(const struct table *table, uint64_t key)
{
    if (!table->size)
        return NULL;
    for (struct table_entry *entry = *bucket_of(table, key); entry; entry = entry->chain)
        if (entry->key == key)
            return entry;
    return NULL;
}

int table_add(struct table *table, struct table_entry *entry, uint64_t key)
{
    if (table->count >= table->size && grow(table))
        return -ENOMEM;
    entry->key = key;
    insert(table, entry);
    table->count++;
    return 0;
}

void table_remove(struct table *table, struct table_entry *entry)
{
    struct table_entry **at = bucket_of(table, entry->key);

    while (*at != entry)
        at = &(*at)->chain;
    *at = entry->chain;
    table->count--;
}

void table_free(struct table *table)
{
    free(table->buckets);
    *table = (struct table){0};
}
