/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction where some copies stay: of files that are mapped on a device that scans. Which go is what the
 * policy says of all, as an oracle has it that looks at each; how many are looked at is counted, or those
 * that need not be are memory that nobody may read. Seed: tests/consistency/seed.h. */
#include "tests/cache/evict_world.inc"

#include <sys/mman.h>

#include "tests/consistency/seed.h"

#define LEAVES 8u /* of a replica, in the random runs */

/* --- what need not be looked at
 * ------------------------------------------------------------------------------ */

/* Copies on the order that who reads them is ended for. */
struct unreadable {
    struct leaf_copy *copies;
    size_t bytes;
};

static struct unreadable unreadable_place(unsigned replica, unsigned count)
{
    struct unreadable u = {.bytes = (count * sizeof *u.copies + 4095) / 4096 * 4096};

    u.copies = mmap(NULL, u.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(u.copies != MAP_FAILED);
    for (unsigned i = 0; i < count; i++) {
        u.copies[i].replica = &worlds[replica].replica;
        evict_placed(&device, &u.copies[i], false);
    }
    return u;
}

static void unreadable_end(struct unreadable *u, unsigned count)
{
    assert_int_equal(mprotect(u->copies, u->bytes, PROT_READ | PROT_WRITE), 0);
    for (unsigned i = 0; i < count; i++)
        evict_forget(&device, &u->copies[i]);
    munmap(u->copies, u->bytes);
}

/* Where all that a device has is mapped, no copy is looked at to find that out. */
static void test_all_stay(void **state)
{
    (void)state;
    start("lra", true, 1000);
    evict_mapped(&worlds[0].replica);
    struct unreadable u = unreadable_place(0, 1000);
    assert_int_equal(evict_and_charge(&device, 1000, 0), 0);
    device.resident = 1000; /* nothing is on its way */
    assert_int_equal(mprotect(u.copies, u.bytes, PROT_NONE), 0);
    assert_int_equal(evict_some_of(&device, 1), 0);
    assert_int_equal(evict_and_charge(&device, 1, 0), -ENOMEM);
    unreadable_end(&u, 1000);
    device.resident = 0;
    cache_device_uncharge(&device, 1000);
    evict_unmapped(&worlds[0].replica);
    stop(0);
}

/* Nor are those behind the one that goes: how many there are is known. */
static void test_those_behind(void **state)
{
    (void)state;
    start("lra", true, 1000);
    place(1, 0, UINT64_MAX);
    place(1, 1, UINT64_MAX); /* is first afterwards, and told what is in front of it */
    struct unreadable u = unreadable_place(0, 1000);
    place(1, 2, UINT64_MAX); /* is last before: the one that goes is put behind it at first */
    assert_int_equal(mprotect(u.copies, u.bytes, PROT_NONE), 0);
    assert_int_equal(evict_some_of(&device, LEAF_PAGES), LEAF_PAGES);
    assert_int_equal(drop_count, 1);
    unreadable_end(&u, 1000);
    stop(3);
}

static const struct evict_policy *counted;
static uint64_t looked;

static struct leaf_copy *count_victim(struct cache_device *of)
{
    looked++;
    return counted->victim(of);
}

/* What is mapped comes first, and is passed once, not for each that goes; longer than one hold of the lock.
 */
static void test_once_round(void **state)
{
    const unsigned leaves = 3 * BATCH_MAX;

    (void)state;
    start("lra", true, 2 * leaves * LEAF_PAGES);
    counted = device.policy;
    struct evict_policy policy = *counted;
    policy.victim = count_victim;
    device.policy = &policy;
    looked = 0;
    evict_mapped(&worlds[0].replica);
    for (unsigned r = 0; r < 2; r++)
        for (unsigned leaf = 0; leaf < leaves; leaf++)
            place(r, leaf, UINT64_MAX);
    for (unsigned i = 0; i < leaves; i++)
        assert_int_equal(evict_and_charge(&device, LEAF_PAGES, 0), 0);
    assert_true(looked <= 2 * leaves);
    assert_int_equal(worlds[1].replica.resident, 0);
    assert_int_equal(worlds[0].replica.resident, (uint64_t)leaves * LEAF_PAGES);
    device.resident = device.charged; /* what was charged is there now */
    assert_int_equal(evict_and_charge(&device, 1, 0), -ENOMEM);
    assert_true(looked <= 2 * leaves);
    device.resident = (uint64_t)leaves * LEAF_PAGES;
    evict_unmapped(&worlds[0].replica);
    assert_int_equal(evict_and_charge(&device, 1, 0), 0);
    cache_device_uncharge(&device, (uint64_t)leaves * LEAF_PAGES + 1);
    stop(leaves);
}

/* One page of all that is there can go, and comes last. */
static void test_the_last_one_goes(void **state)
{
    const unsigned leaves = 2 * BATCH_MAX + 5;

    (void)state;
    start("fifo", true, leaves + 1);
    evict_mapped(&worlds[0].replica);
    evict_mapped(&worlds[0].replica);
    for (unsigned leaf = 0; leaf < leaves; leaf++)
        place(0, leaf, 1);
    place(1, 7, 1);
    assert_int_equal(evict_and_charge(&device, 1, 0), 0);
    assert_int_equal(drop_count, 1);
    assert_int_equal(drops[0].page, 7 * LEAF_PAGES);
    evict_unmapped(&worlds[0].replica); /* somebody else maps it yet */
    assert_int_equal(evict_some_of(&device, 1), 0);
    evict_unmapped(&worlds[0].replica);
    assert_int_equal(evict_some_of(&device, 1), 1);
    cache_device_uncharge(&device, 1);
    stop(leaves);
}

/* --- the same victims
 * ------------------------------------------------------------------------------------------ */

struct model_copy {
    unsigned replica;
    uint64_t leaf;
    page_mask present, busy;
    bool referenced;
};

/* The order of a device, looked through from the front for every page that goes. */
static struct model {
    struct model_copy order[REPLICAS * LEAVES];
    unsigned count, clients[REPLICAS];
    const char *policy;
    bool scans;
} model;

static void model_to_the_end(unsigned at)
{
    struct model_copy copy = model.order[at];

    memmove(&model.order[at], &model.order[at + 1], (model.count - at - 1) * sizeof copy);
    model.order[model.count - 1] = copy;
}

static unsigned model_find(unsigned replica, uint64_t leaf)
{
    unsigned at = 0;

    while (at < model.count && (model.order[at].replica != replica || model.order[at].leaf != leaf))
        at++;
    return at;
}

static void model_remove(unsigned at)
{
    model_to_the_end(at);
    model.count--;
}

static void model_place(unsigned replica, uint64_t leaf, page_mask pages)
{
    unsigned at = model_find(replica, leaf);

    if (at == model.count)
        model.order[model.count++] = (struct model_copy){.replica = replica, .leaf = leaf};
    model.order[at].present |= pages;
    if (!strcmp(model.policy, "lra"))
        model_to_the_end(at);
}

/* The next victim is the last one then. */
static struct model_copy *model_victim(void)
{
    struct model_copy *last = &model.order[model.count - 1];

    model_to_the_end(0);
    while (last->referenced) {
        last->referenced = false;
        model_to_the_end(0);
    }
    return last;
}

static unsigned model_evict(unsigned pages)
{
    unsigned total = 0, tries = model.count;

    for (unsigned i = 0; i < tries && total < pages; i++) {
        struct model_copy *copy = model_victim();
        page_mask chosen = 0;
        if (model.scans && model.clients[copy->replica])
            continue;
        for (unsigned unit = 0; unit < LEAF_PAGES; unit += UNIT) {
            chosen |= copy->present & ~copy->busy & page_range_mask(0, unit, UNIT);
            if (total + (unsigned)__builtin_popcountll(chosen) >= pages)
                break;
        }
        copy->present &= ~chosen;
        total += (unsigned)__builtin_popcountll(chosen);
        for (uint64_t base = copy->leaf << LEAF_SHIFT; chosen;) {
            unsigned length, first = page_mask_run(&chosen, &length);
            note(copy->replica, base + first, length);
        }
        if (!(copy->present | copy->busy))
            model.count--;
    }
    return total;
}

static void evict_both(void)
{
    static struct dropped real[DROPS_MAX];
    unsigned pages = 1 + seed_below(3 * LEAF_PAGES);

    drop_count = 0;
    uint64_t went = evict_some_of(&device, pages);
    unsigned count = drop_count;
    memcpy(real, drops, count * sizeof *real);
    drop_count = 0;
    assert_int_equal(model_evict(pages), went);
    assert_int_equal(drop_count, count);
    for (unsigned i = 0; i < count; i++)
        if (drops[i].replica != real[i].replica || drops[i].page != real[i].page ||
            drops[i].count != real[i].count)
            fail_msg("drop %u: of %u the pages from %u, not of %u those from %u", i, real[i].replica,
                     (unsigned)real[i].page, drops[i].replica, (unsigned)drops[i].page);
}

/* Some fault has pages of a copy, or has done with them. */
static void change_busy(unsigned replica, uint64_t leaf)
{
    struct world *world = &worlds[replica];
    unsigned at = model_find(replica, leaf);

    if (at == model.count)
        return;
    page_mask was = model.order[at].busy;
    model.order[at].busy =
        was ? 0 : model.order[at].present & page_range_mask(0, seed_below(LEAF_PAGES), UNIT);
    if (!(model.order[at].present | model.order[at].busy))
        model_remove(at);
    pthread_mutex_lock(&world->file.lock);
    struct leaf_copy *copy = find(replica, leaf);
    if (was)
        replica_unbusy(copy, was);
    else
        copy->busy = model.order[at].busy;
    pthread_mutex_unlock(&world->file.lock);
}

static void change_map(unsigned replica)
{
    if (model.clients[replica] < 2 && seed_below(2)) {
        model.clients[replica]++;
        evict_mapped(&worlds[replica].replica);
    } else if (model.clients[replica]) {
        model.clients[replica]--;
        evict_unmapped(&worlds[replica].replica);
    }
}

static void step(void)
{
    unsigned replica = seed_below(REPLICAS), at;
    uint64_t leaf = seed_below(LEAVES);
    page_mask pages = page_range_mask(0, seed_below(LEAF_PAGES), 1 + seed_below(LEAF_PAGES));

    switch (seed_below(8)) {
    case 0:
    case 1:
    case 2:
        place(replica, leaf, pages);
        model_place(replica, leaf, pages);
        break;
    case 3:
        change_map(replica);
        break;
    case 4:
        change_busy(replica, leaf);
        break;
    case 5: /* where nothing tells of touches there are none */
        at = model_find(replica, leaf);
        if (at == model.count || model.scans)
            break;
        model.order[at].referenced = !strcmp(model.policy, "clock");
        evict_touched(&device, find(replica, leaf));
        break;
    case 6: /* it is cut off */
        at = model_find(replica, leaf);
        if (at == model.count || model.order[at].busy)
            break;
        model_remove(at);
        forget(replica, leaf);
        break;
    default:
        evict_both();
    }
}

static void test_same_victims(void **state)
{
    static const char *const names[] = {"lra", "fifo", "clock"};

    (void)state;
    for (unsigned run = 0; run < 600; run++) {
        model = (struct model){.policy = names[run % 3], .scans = run % 2};
        start(model.policy, model.scans, REPLICAS * LEAVES * LEAF_PAGES);
        for (unsigned i = 0; i < 200; i++)
            step();
        for (unsigned i = 0; i < REPLICAS * LEAVES; i++) {
            unsigned at = model_find(i % REPLICAS, i / REPLICAS);
            if (at < model.count && model.order[at].busy)
                change_busy(i % REPLICAS, i / REPLICAS);
        }
        stop(LEAVES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_stay),     cmocka_unit_test(test_those_behind),
        cmocka_unit_test(test_once_round),   cmocka_unit_test(test_the_last_one_goes),
        cmocka_unit_test(test_same_victims),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
