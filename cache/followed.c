/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/followed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "io/members.h"

static unsigned bucket_of(const struct node_name *name)
{
    return XXH3_64bits(name->bytes, name->length) % FOLLOWED_BUCKETS;
}

static struct followed *find(const struct followed_table *table, const struct node_name *name)
{
    struct followed *followed;

    LIST_FOREACH (followed, &table->buckets[bucket_of(name)], link)
        if (followed->name.type == name->type && followed->name.length == name->length &&
            !memcmp(followed->name.bytes, name->bytes, name->length))
            return followed;
    return NULL;
}

static void forget(struct followed_table *table, struct followed *followed)
{
    LIST_REMOVE(followed, link);
    table->count--;
    free(followed);
}

const struct followed *followed_find(const struct followed_table *table, const struct node_name *name)
{
    return find(table, name);
}

int followed_add(struct followed_table *table, unsigned member, const struct node_name *name,
                 uint64_t generation, uint64_t *told_out)
{
    struct followed *followed = find(table, name);

    if (followed && followed->member != member && followed->generation > generation)
        return -EBUSY;
    if (!followed) {
        followed = malloc(sizeof *followed);
        if (!followed)
            return -ENOMEM;
        followed->name = *name;
        LIST_INSERT_HEAD(&table->buckets[bucket_of(name)], followed, link);
        table->count++;
    }
    followed->member = member;
    followed->generation = generation;
    *told_out = followed->told = ++table->told;
    return 0;
}

void followed_remove(struct followed_table *table, const struct node_name *name, uint64_t told)
{
    struct followed *followed = find(table, name);

    if (followed && followed->told == told)
        forget(table, followed);
}

void followed_end(struct followed_table *table, unsigned member, const struct node_name *name,
                  uint64_t generation)
{
    struct followed *followed = find(table, name);

    if (followed && followed->member == member && followed->generation <= generation)
        forget(table, followed);
}

/* Of a member, or of all (MEMBERS_MAX). */
static void remove_all(struct followed_table *table, unsigned member)
{
    struct followed *followed, *next;

    for (unsigned i = 0; i < FOLLOWED_BUCKETS; i++)
        for (followed = LIST_FIRST(&table->buckets[i]); followed; followed = next) {
            next = LIST_NEXT(followed, link);
            if (member == MEMBERS_MAX || followed->member == member)
                forget(table, followed);
        }
}

void followed_remove_member(struct followed_table *table, unsigned member)
{
    remove_all(table, member);
}

void followed_clear(struct followed_table *table)
{
    remove_all(table, MEMBERS_MAX);
}
