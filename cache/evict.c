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
        copy->in_order = true;
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
    copy->in_order = false;
    pthread_mutex_unlock(&device->lock);
}

/* The policy's next copy. The file is in use on return, which file_unuse() ends: it is pinned, because the
 * copy is in its index. *length_out: of the order, up to BATCH_MAX. */
static struct replica *next_victim(struct cache_device *device, uint64_t *leaf_out, uint64_t *length_out)
{
    struct replica *replica = NULL;
    struct leaf_copy *copy;

    *length_out = 0;
    pthread_mutex_lock(&device->lock);
    if (!TAILQ_EMPTY(&device->order)) {
        copy = device->policy->victim(device);
        replica = copy->replica;
        *leaf_out = copy->leaf->number;
        replica->file->uses++;
    }
    TAILQ_FOREACH (copy, &device->order, order)
        if (++*length_out >= BATCH_MAX &&
            !device->scans) /* there, what is mapped can't go, however much it is */
            break;
    pthread_mutex_unlock(&device->lock);
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
    if (replica->scans && replica->frames->clients) /* nothing would bring back what a kernel touches */
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
    uint64_t total = 0, tries = 1, length;

    for (uint64_t i = 0; i < tries && total < pages; i++) {
        struct copy_pages victim = {0};
        struct replica *replica = next_victim(device, &victim.leaf, &length);
        if (!replica)
            break;
        if (i == 0)
            tries = length; /* once round the order, and no more */
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
        if (dropped)
            continue;
        /* Nothing could go: everything is in use by faults under way, which end by themselves, or can't be
         * written. */
        error = refused;
        if (error && ++waited > 20)
            return error;
        if (!error && device->scans && ++waited > 20) /* what is mapped there stays */
            return -ENOMEM;
        cache_device_wait(device, 10);
    }
    return 0;
}
