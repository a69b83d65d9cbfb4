/* SPDX-License-Identifier: Apache-2.0 */
/* cache/index.c against an array of leaves, and cache/table.c against a list: copies made and freed in any
 * order, versions that grow, twins, numbers that share a bucket. */
#include "cache/internal.h"
#include "cache/table.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 6000;

#define LEAVES 40u
#define REPLICAS 3u
#define ENTRIES_MAX 9u
#define ENTRIES 24u

struct copy {
    struct leaf_copy *real;
    page_mask present;
    uint32_t twins[LEAF_PAGES];
    gaia_version v[LEAF_PAGES][ENTRIES_MAX];
};

struct world {
    struct index index;
    struct cache_device devices[REPLICAS];
    struct replica replicas[REPLICAS];
    uint64_t numbers[LEAVES];
    struct copy copies[LEAVES][REPLICAS];
    gaia_version released[LEAVES][LEAF_PAGES][ENTRIES_MAX];
    unsigned entries[LEAVES][LEAF_UNITS]; /* that there are */
    struct table table;
    struct table_entry entry[ENTRIES];
    bool in_table[ENTRIES];
    unsigned order[ENTRIES], added; /* which came last */
};

static bool has_leaf(const struct world *w, unsigned leaf)
{
    bool any = false;

    for (unsigned i = 0; i < REPLICAS; i++)
        any |= w->copies[leaf][i].real != NULL;
    return any;
}

/* ---- the index ---- */

static void get(struct world *w, unsigned leaf, unsigned replica)
{
    struct copy *copy = &w->copies[leaf][replica];
    bool was = has_leaf(w, leaf);
    struct leaf_copy *got = index_get_copy(&w->index, w->numbers[leaf], &w->replicas[replica]);

    MUST(got && (!copy->real || copy->real == got));
    MUST(got->leaf->number == w->numbers[leaf] && got->replica == &w->replicas[replica]);
    if (!was) {
        MUST(got->leaf->kernel == ~UINT64_C(0) && !got->leaf->released);
        memset(w->released[leaf], 0, sizeof w->released[leaf]);
        memset(w->entries[leaf], 0, sizeof w->entries[leaf]);
    }
    if (!copy->real)
        *copy = (struct copy){.real = got};
}

static void put(struct world *w, unsigned leaf, unsigned replica)
{
    struct copy *copy = &w->copies[leaf][replica];

    if (!copy->real)
        return;
    bool goes = !copy->present;
    index_put_copy(&w->index, copy->real);
    if (goes)
        copy->real = NULL;
}

static void write_versions(struct world *w, unsigned leaf, struct copy *copy, unsigned page, unsigned n)
{
    unsigned unit = page / GAIA_UNIT_PAGES;

    if (leaf_versions_reserve(&w->index, copy->real->leaf, page_bit(page), n))
        return;
    if (n > w->entries[leaf][unit])
        w->entries[leaf][unit] = n;
    MUST(leaf_has_versions(copy->real->leaf, page));
    struct gaia_page_versions versions = leaf_page_versions(copy->real->leaf, page);
    gaia_version *v = leaf_copy_page_vector(copy->real, page);
    MUST(versions.n == w->entries[leaf][unit]);
    versions.released[n - 1] = ++w->released[leaf][page][n - 1];
    v[n - 1] = ++copy->v[page][n - 1];
    MUST(!leaf_copy_twins_reserve(&w->index, copy->real, page_bit(page)));
    *leaf_copy_twin(copy->real, page) = copy->twins[page] = page + n;
}

static void check_copy(struct world *w, unsigned leaf, const struct copy *copy)
{
    MUST(copy->real->present == copy->present);
    for (unsigned page = 0; page < LEAF_PAGES; page++) {
        unsigned n = w->entries[leaf][page / GAIA_UNIT_PAGES];
        if (copy->twins[page])
            MUST(*leaf_copy_twin(copy->real, page) == copy->twins[page]);
        MUST(leaf_has_versions(copy->real->leaf, page) == (n > 0));
        if (!n)
            continue;
        struct gaia_page_versions versions = leaf_page_versions(copy->real->leaf, page);
        MUST(versions.n == n &&
             !memcmp(versions.released, w->released[leaf][page], n * sizeof(gaia_version)));
        if (copy->real->v[page / GAIA_UNIT_PAGES])
            MUST(!memcmp(leaf_copy_page_vector(copy->real, page), copy->v[page], n * sizeof(gaia_version)));
    }
}

static void check_leaf(struct world *w, unsigned leaf)
{
    struct leaf *real = index_find(&w->index, w->numbers[leaf]);
    const struct leaf_copy *copy;
    unsigned last = 0;

    MUST((real != NULL) == has_leaf(w, leaf));
    if (!real)
        return;
    for (unsigned i = 0; i < REPLICAS; i++) {
        MUST(leaf_find_copy(real, &w->replicas[i]) == w->copies[leaf][i].real);
        if (w->copies[leaf][i].real)
            check_copy(w, leaf, &w->copies[leaf][i]);
    }
    SLIST_FOREACH (copy, &real->copies, link) { /* ascending */
        MUST(replica_number(copy->replica) > last);
        last = replica_number(copy->replica);
    }
}

static void count(struct leaf *leaf, void *context)
{
    struct leaf_copy *copy;

    SLIST_FOREACH (copy, &leaf->copies, link)
        ++*(uint64_t *)context;
}

static void check_all(struct world *w)
{
    uint64_t copies = 0;

    for (unsigned leaf = 0; leaf < LEAVES; leaf++)
        check_leaf(w, leaf);
    index_each(&w->index, count, &copies);
    MUST(copies == w->index.copies);
}

/* ---- the table ---- */

static void check_table(struct world *w, uint64_t key)
{
    struct table_entry *expected = NULL;
    unsigned last = 0;

    for (unsigned i = 0; i < ENTRIES; i++)
        if (w->in_table[i] && w->entry[i].key == key && w->order[i] > last) {
            expected = &w->entry[i];
            last = w->order[i];
        }
    struct table_entry *found = table_find(&w->table, key);
    MUST(found == expected || (found && expected && found->key == key)); /* a table that grew turns them */
}

static void use_table(struct world *w, unsigned i, uint64_t key)
{
    if (w->in_table[i]) {
        table_remove(&w->table, &w->entry[i]);
    } else {
        MUST(!table_add(&w->table, &w->entry[i], key));
        w->order[i] = ++w->added;
    }
    w->in_table[i] = !w->in_table[i];
    check_table(w, key);
}

/* ---- */

static void step(struct world *w, struct input *in)
{
    uint8_t op = take_u8(in), which = take_u8(in), page = take_u8(in) % LEAF_PAGES;
    unsigned leaf = which % LEAVES, replica = which / LEAVES % REPLICAS;
    struct copy *copy = &w->copies[leaf][replica];

    switch (op % 7) {
    case 0:
    case 1:
        get(w, leaf, replica);
        break;
    case 2:
        put(w, leaf, replica);
        break;
    case 3:
        if (copy->real)
            copy->real->present = copy->present ^= page_range_mask(0, page, op);
        break;
    case 4:
        if (copy->real)
            write_versions(w, leaf, copy, page, op / 7 % ENTRIES_MAX + 1);
        break;
    default:
        use_table(w, which % ENTRIES, op % 7 == 5 ? page : take_odd(in));
    }
    check_leaf(w, leaf);
}

static void end(struct world *w)
{
    for (unsigned leaf = 0; leaf < LEAVES; leaf++)
        for (unsigned i = 0; i < REPLICAS; i++)
            if (w->copies[leaf][i].real) {
                w->copies[leaf][i].real->present = w->copies[leaf][i].present = 0;
                put(w, leaf, i);
            }
    MUST(!w->index.leaves.count && !w->index.copies);
    MUST(index_bytes(&w->index) == w->index.leaves.size * sizeof(struct table_entry *));
    index_free(&w->index);
    table_free(&w->table);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct world *w = calloc(1, sizeof *w);
    unsigned shift = take_u8(&in) % 58;

    MUST(w);
    index_init(&w->index);
    for (unsigned i = 0; i < REPLICAS; i++) {
        w->devices[i].number = i;
        w->replicas[i].device = &w->devices[i];
    }
    for (unsigned i = 0; i < LEAVES; i++)
        w->numbers[i] = (uint64_t)i << shift;
    for (unsigned steps = 0; in.left && steps < 300; steps++)
        step(w, &in);
    check_all(w);
    end(w);
    free(w);
    return 0;
}
