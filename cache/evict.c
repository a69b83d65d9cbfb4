/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/evict.h"

#include <errno.h>
#include <string.h>

#include "cache/drop.h"

static void to_the_end(struct cache_device *device, struct leaf_copy *copy)
{
    TAILQ_REMOVE(&device->order, copy, order);
    TAILQ_INSERT_TAIL(&device->order, copy, order);
}

/* The copy is on the order from now on, or not any more. Lock held. */
static void count_in_order(struct cache_device *device, struct leaf_copy *copy, bool there)
{
    uint64_t one = there ? 1 : -UINT64_C(1);

    copy->in_order = there;
    device->ordered += one;
    copy->replica->ordered += one;
    if (copy->replica->stays)
        device->staying += one;
}

static void ignore(struct cache_device *device, struct leaf_copy *copy)
{
    (void)device;
    (void)copy;
}

static struct leaf_copy *first(struct cache_device *device)
{
    struct leaf_copy *copy = TAILQ_FIRST(&device->order);

    to_the_end(device, copy);
    return copy;
}

static void reference(struct cache_device *device, struct leaf_copy *copy)
{
    (void)device;
    copy->referenced = true;
}

/* Ends: each copy that is passed loses its chance. */
static struct leaf_copy *first_without_chance(struct cache_device *device)
{
    struct leaf_copy *copy;

    while ((copy = first(device))->referenced)
        copy->referenced = false;
    return copy;
}

static const struct evict_policy policies[] = {
    {.name = "lra", .placed = to_the_end, .touched = ignore, .victim = first},
    {.name = "fifo", .placed = ignore, .touched = ignore, .victim = first},
    {.name = "clock", .placed = ignore, .touched = reference, .victim = first_without_chance},
};

const struct evict_policy *evict_policy_find(const char *name)
{
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
        if (!strcmp(policies[i].name, name))
            return &policies[i];
    return NULL;
}

void evict_placed(struct cache_device *device, struct leaf_copy *copy, bool touched)
{
    pthread_mutex_lock(&device->lock);
    if (!copy->in_order) {
        TAILQ_INSERT_TAIL(&device->order, copy, order);
        count_in_order(device, copy, true);
        copy->referenced = false;
    }
    device->policy->placed(device, copy);
    if (touched)
        device->policy->touched(device, copy);
    pthread_mutex_unlock(&device->lock);
}

void evict_touched(struct cache_device *device, struct leaf_copy *copy)
{
    pthread_mutex_lock(&device->lock);
    if (copy->in_order)
        device->policy->touched(device, copy);
    pthread_mutex_unlock(&device->lock);
}

void evict_forget(struct cache_device *device, struct leaf_copy *copy)
{
    if (!copy->in_order)
        return;
    pthread_mutex_lock(&device->lock);
    TAILQ_REMOVE(&device->order, copy, order);
    count_in_order(device, copy, false);
    pthread_mutex_unlock(&device->lock);
}

/* A client's map more, or less. How many there are then. */
static unsigned change_clients(struct replica *replica, bool more)
{
    struct cache_device *device = replica->device;

    pthread_mutex_lock(&device->lock);
    unsigned clients = more ? ++replica->frames->clients : --replica->frames->clients;
    bool stays = replica->scans && clients;
    if (stays && !replica->stays)
        device->staying += replica->ordered;
    else if (!stays && replica->stays)
        device->staying -= replica->ordered;
    replica->stays = stays;
    pthread_mutex_unlock(&device->lock);
    return clients;
}

void evict_mapped(struct replica *replica)
{
    change_clients(replica, true);
}

bool evict_unmapped(struct replica *replica)
{
    return !change_clients(replica, false);
}

/* How many copies are once round the order; 0: they all stay, so none of them need be looked at. Where a
 * device scans it is not cut short: as much as is mapped there may come first. No lock is held. */
static uint64_t round_length(struct cache_device *device)
{
    pthread_mutex_lock(&device->lock);
    uint64_t length = device->ordered > device->staying ? device->ordered : 0;
    pthread_mutex_unlock(&device->lock);
    return device->scans || length < BATCH_MAX ? length : BATCH_MAX;
}

/* The policy's next copy that does not stay, of as many as one may pass under one hold of the lock, or NULL.
 * Its file is in use on return, which file_unuse() ends: it is pinned, because the copy is in its index. Lock
 * held. */
static struct leaf_copy *pass_staying(struct cache_device *device, uint64_t *tries)
{
    for (unsigned n = 0; n < BATCH_MAX && *tries && !TAILQ_EMPTY(&device->order); n++) {
        struct leaf_copy *copy = device->policy->victim(device);
        --*tries;
        if (!copy->replica->stays) {
            copy->replica->file->uses++;
            return copy;
        }
    }
    return NULL;
}

/* The same, of *tries copies, which it counts down. Who charges the device meanwhile waits for a part of them
 * only. No lock is held. */
static struct replica *next_victim(struct cache_device *device, uint64_t *tries, uint64_t *leaf_out)
{
    struct replica *replica = NULL;
    bool empty = false;

    while (!replica && *tries && !empty) {
        pthread_mutex_lock(&device->lock);
        struct leaf_copy *copy = pass_staying(device, tries);
        if (copy) { /* it may be gone as soon as the lock is */
            replica = copy->replica;
            *leaf_out = copy->leaf->number;
        }
        empty = TAILQ_EMPTY(&device->order);
        pthread_mutex_unlock(&device->lock);
    }
    return replica;
}

/* About `pages` of a copy's pages that can go now, whole units. Lock taken. */
static page_mask choose(struct replica *replica, uint64_t leaf_number, uint64_t pages)
{
    unsigned unit_pages = (unsigned)replica->file->cache->config.unit_pages;
    page_mask chosen = 0;

    if (unit_pages > LEAF_PAGES)
        unit_pages = LEAF_PAGES;
    pthread_mutex_lock(&replica->file->lock);
    struct leaf *leaf = index_find(&replica->file->index, leaf_number);
    struct leaf_copy *copy = leaf ? leaf_find_copy(leaf, replica) : NULL;
    if (replica->scans && replica->frames->clients) /* nothing would bring back what a GPU kernel touches */
        copy = NULL;
    for (unsigned unit = 0; copy && unit < LEAF_PAGES; unit += unit_pages) {
        chosen |= copy->present & ~copy->busy & page_range_mask(0, unit, unit_pages);
        if ((uint64_t)__builtin_popcountll(chosen) >= pages)
            break;
    }
    pthread_mutex_unlock(&replica->file->lock);
    return chosen;
}

static uint64_t evict_some(struct cache_device *device, uint64_t pages, int *error_out)
{
    uint64_t total = 0, tries = round_length(device);

    while (total < pages) {
        struct copy_pages victim = {0};
        struct replica *replica = next_victim(device, &tries, &victim.leaf);
        if (!replica)
            break;
        victim.pages = choose(replica, victim.leaf, pages - total);
        uint64_t dropped = 0;
        int error = victim.pages ? drop_pages(replica, &victim, 1, DROP_EVICT, &dropped) : 0;
        if (error)
            *error_out = error;
        total += dropped;
        file_unuse(replica->file);
    }
    return total;
}

uint64_t evict_some_of(struct cache_device *device, uint64_t pages)
{
    int refused = 0;

    return evict_some(device, pages, &refused);
}

int evict_and_charge(struct cache_device *device, uint64_t pages)
{
    int error = 0;
    unsigned waited = 0;

    if (pages > device->capacity)
        return -ENOMEM;
    while (!cache_device_try_charge(device, pages)) {
        int refused = 0;
        uint64_t dropped = evict_some(device, pages, &refused);
        if (dropped) {
            waited = 0;
            continue;
        }
        /* Nothing could go: everything is in use by faults under way, which end by themselves, or can't be
         * written. */
        error = refused;
        if (error && ++waited > 20)
            return error;
        /* What is mapped there stays; but a map may be ending, what somebody else evicts may be charged yet,
         * and who has charged for pages may fail to place them. */
        if (!error && device->scans && ++waited > 20)
            return -ENOMEM;
        cache_device_wait(device, 10);
    }
    return 0;
}
