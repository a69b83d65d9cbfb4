/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/replica.h"

page_mask page_range_mask(uint64_t leaf, uint64_t first, uint64_t count)
{
    uint64_t begin = leaf << LEAF_SHIFT, end = begin + LEAF_PAGES;
    uint64_t from = first > begin ? first : begin;
    uint64_t to = count < end && first < end - count ? first + count : end;

    if (from >= end || to <= from)
        return 0;
    page_mask mask = to - from == LEAF_PAGES ? ~UINT64_C(0) : (UINT64_C(1) << (to - from)) - 1;
    return mask << (from - begin);
}

unsigned page_mask_run(page_mask *mask, unsigned *length_out)
{
    assert(*mask);
    unsigned first = (unsigned)__builtin_ctzll(*mask);
    page_mask shifted = *mask >> first;
    unsigned length = ~shifted ? (unsigned)__builtin_ctzll(~shifted) : LEAF_PAGES;
    page_mask run = length == LEAF_PAGES ? ~UINT64_C(0) : ((UINT64_C(1) << length) - 1) << first;

    *mask &= ~run;
    *length_out = length;
    return first;
}

void index_init(struct index *index)
{
    *index = (struct index){0};
}

void index_free(struct index *index)
{
    assert(!index->leaves.count);
    table_free(&index->leaves);
}

struct leaf *index_find(const struct index *index, uint64_t number)
{
    return (struct leaf *)table_find(&index->leaves, number);
}

uint64_t index_bytes(const struct index *index)
{
    return index->bytes + index->leaves.size * sizeof *index->leaves.buckets;
}

struct leaf_copy *leaf_find_copy(const struct leaf *leaf, const struct replica *replica)
{
    struct leaf_copy *copy;

    SLIST_FOREACH (copy, &leaf->copies, link)
        if (copy->replica == replica)
            return copy;
    return NULL;
}

static struct leaf *index_get(struct index *index, uint64_t number)
{
    struct leaf *leaf = index_find(index, number);

    if (leaf)
        return leaf;
    leaf = calloc(1, sizeof *leaf);
    if (!leaf || table_add(&index->leaves, &leaf->entry, number)) {
        free(leaf);
        return NULL;
    }
    leaf->number = number;
    leaf->kernel = ~UINT64_C(0);
    leaf->refilled = ~UINT64_C(0);
    SLIST_INIT(&leaf->copies);
    index->bytes += sizeof *leaf;
    return leaf;
}

/* Of one vector for each page of a unit. */
static size_t vectors_size(uint32_t n)
{
    return (size_t)GAIA_UNIT_PAGES * n * sizeof(gaia_version);
}

#define TWINS_SIZE (GAIA_UNIT_PAGES * sizeof(uint32_t))

static void index_put(struct index *index, struct leaf *leaf)
{
    if (!SLIST_EMPTY(&leaf->copies))
        return;
    table_remove(&index->leaves, &leaf->entry);
    index->bytes -= sizeof *leaf;
    for (unsigned unit = 0; unit < LEAF_UNITS; unit++) {
        index->bytes -= leaf->versions[unit] ? 2 * vectors_size(leaf->n[unit]) : 0;
        free(leaf->versions[unit]);
    }
    free(leaf);
}

struct leaf_copy *index_get_copy(struct index *index, uint64_t number, struct replica *replica)
{
    struct leaf *leaf = index_get(index, number);

    if (!leaf)
        return NULL;
    struct leaf_copy *copy = leaf_find_copy(leaf, replica);
    if (copy)
        return copy;
    copy = calloc(1, sizeof *copy);
    if (!copy) {
        index_put(index, leaf);
        return NULL;
    }
    copy->leaf = leaf;
    copy->replica = replica;
    struct leaf_copy *before = NULL, *at;
    SLIST_FOREACH (at, &leaf->copies, link)
        if (replica_number(at->replica) < replica_number(replica))
            before = at;
    if (before)
        SLIST_INSERT_AFTER(before, copy, link);
    else
        SLIST_INSERT_HEAD(&leaf->copies, copy, link);
    index->copies++;
    index->bytes += sizeof *copy;
    return copy;
}

void index_put_copy(struct index *index, struct leaf_copy *copy)
{
    struct leaf *leaf = copy->leaf;

    if (copy->present | copy->busy | copy->twin | leaf->invalidating | leaf->invalidations)
        return;
    assert(!copy->in_order && !copy->in_stored && !copy->in_suspects);
    SLIST_REMOVE(&leaf->copies, copy, leaf_copy, link);
    index->copies--;
    index->bytes -= sizeof *copy;
    for (unsigned unit = 0; unit < LEAF_UNITS; unit++) {
        index->bytes -= copy->twins[unit] ? TWINS_SIZE : 0;
        index->bytes -= copy->v[unit] ? vectors_size(leaf->n[unit]) : 0;
        free(copy->twins[unit]);
        free(copy->v[unit]);
    }
    free(copy);
    index_put(index, leaf);
}

/* Copy `count` vectors of old entries into vectors of n entries; new entries are zero. */
static gaia_version *vectors_widen(const gaia_version *vectors, unsigned count, uint32_t old, uint32_t n)
{
    gaia_version *wide = calloc(count, n * sizeof *wide);

    if (wide && vectors)
        for (unsigned i = 0; i < count; i++)
            memcpy(wide + (size_t)i * n, vectors + (size_t)i * old, old * sizeof *wide);
    return wide;
}

static bool unit_has_room(const struct leaf *leaf, unsigned unit, uint32_t n)
{
    struct leaf_copy *copy;

    if (!leaf->versions[unit] || leaf->n[unit] < n)
        return false;
    SLIST_FOREACH (copy, &leaf->copies, link)
        if (!copy->v[unit])
            return false;
    return true;
}

static int unit_reserve(struct index *index, struct leaf *leaf, unsigned unit, uint32_t n)
{
    struct leaf_copy *copy;
    gaia_version *wide[GAIA_REPLICAS_MAX + 1];
    uint32_t old = leaf->n[unit];
    unsigned count = 0;

    n = n > old ? n : old;
    /* Allocate everything first: after a failure nothing has changed. */
    SLIST_FOREACH (copy, &leaf->copies, link)
        if (!(wide[count++] = vectors_widen(copy->v[unit], GAIA_UNIT_PAGES, old, n)))
            goto out_of_memory;
    /* R and V lie behind each other: as many vectors twice. */
    if (!(wide[count++] = vectors_widen(leaf->versions[unit], 2 * GAIA_UNIT_PAGES, old, n)))
        goto out_of_memory;
    unsigned i = 0;
    SLIST_FOREACH (copy, &leaf->copies, link) {
        index->bytes += vectors_size(n) - (copy->v[unit] ? vectors_size(old) : 0);
        free(copy->v[unit]);
        copy->v[unit] = wide[i++];
    }
    index->bytes += 2 * (vectors_size(n) - (leaf->versions[unit] ? vectors_size(old) : 0));
    free(leaf->versions[unit]);
    leaf->versions[unit] = wide[i];
    leaf->n[unit] = (uint16_t)n;
    return 0;

out_of_memory:
    while (count--)
        free(wide[count]);
    return -ENOMEM;
}

int leaf_versions_reserve(struct index *index, struct leaf *leaf, page_mask pages, uint32_t n)
{
    int error = 0;

    for (unsigned unit = 0; unit < LEAF_UNITS && !error; unit++)
        if (pages & page_range_mask(0, unit * GAIA_UNIT_PAGES, GAIA_UNIT_PAGES) &&
            !unit_has_room(leaf, unit, n))
            error = unit_reserve(index, leaf, unit, n);
    return error;
}

int leaf_copy_twins_reserve(struct index *index, struct leaf_copy *copy, page_mask pages)
{
    for (unsigned unit = 0; unit < LEAF_UNITS; unit++) {
        if (copy->twins[unit] || !(pages & page_range_mask(0, unit * GAIA_UNIT_PAGES, GAIA_UNIT_PAGES)))
            continue;
        copy->twins[unit] = calloc(1, TWINS_SIZE);
        if (!copy->twins[unit])
            return -ENOMEM;
        index->bytes += TWINS_SIZE;
    }
    return 0;
}

struct gaia_page_versions leaf_page_versions(struct leaf *leaf, unsigned page)
{
    unsigned unit = page / GAIA_UNIT_PAGES, at = page % GAIA_UNIT_PAGES, n = leaf->n[unit];

    assert(page < LEAF_PAGES && leaf->versions[unit]);
    return (struct gaia_page_versions){.released = leaf->versions[unit] + (size_t)at * n,
                                       .home = leaf->versions[unit] + (size_t)(GAIA_UNIT_PAGES + at) * n,
                                       .n = n};
}

gaia_version *leaf_copy_page_vector(struct leaf_copy *copy, unsigned page)
{
    unsigned unit = page / GAIA_UNIT_PAGES;

    assert(page < LEAF_PAGES && copy->v[unit]);
    return copy->v[unit] + (size_t)(page % GAIA_UNIT_PAGES) * copy->leaf->n[unit];
}

uint32_t *leaf_copy_twin(struct leaf_copy *copy, unsigned page)
{
    assert(page < LEAF_PAGES && copy->twins[page / GAIA_UNIT_PAGES]);
    return &copy->twins[page / GAIA_UNIT_PAGES][page % GAIA_UNIT_PAGES];
}

void index_each(const struct index *index, void (*fn)(struct leaf *leaf, void *context), void *context)
{
    for (uint64_t i = 0; i < index->leaves.size; i++)
        for (struct table_entry *leaf = index->leaves.buckets[i], *next; leaf; leaf = next) {
            next = leaf->chain;
            fn((struct leaf *)leaf, context);
        }
}
