/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/evict.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "cache/drop.h"

/* When nothing has been let go of for so long, and nothing was on its way to the device, a touch is told that
 * what is there can't be written (the first), and a map that all of it is mapped (the second). */
#define EVICT_REFUSED_MS 1000u
#define EVICT_FULL_MS 200u

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

void evict_shared(struct replica *replica, uint64_t client)
{
    pthread_mutex_lock(&replica->device->lock);
    replica->sharer = replica->sharer && replica->sharer != client ? EVICT_MANY : client;
    pthread_mutex_unlock(&replica->device->lock);
}

bool evict_unmapped(struct replica *replica)
{
    return !change_clients(replica, false);
}

/* How many copies are once round the order, or the part of it that is enough as a rule; 0: they all stay, so
 * none of them need be looked at. Where a device scans it is never cut short: as much as is mapped there may
 * come first. No lock is held. */
static uint64_t round_length(struct cache_device *device, bool whole)
{
    pthread_mutex_lock(&device->lock);
    uint64_t length = device->ordered > device->staying ? device->ordered : 0;
    pthread_mutex_unlock(&device->lock);
    return whole || device->scans || length < BATCH_MAX ? length : BATCH_MAX;
}

void evict_was_refused(const struct replica *replica, int *error_out)
{
    int refused = atomic_load(&replica->refused);

    if (refused)
        *error_out = refused;
}

/* Whether nobody waits for its clients just now. Lock held. */
static bool can_go(const struct replica *replica)
{
    return !replica->stays && !replica->late;
}

/* The policy's next copy that can go, of as many as one may pass under one hold of the lock, or NULL.
 * Its file is in use on return, which file_unuse() ends: it is pinned, because the copy is in its index. Of
 * those that are tried by others it is known why they could not go before. Lock held. */
static struct leaf_copy *pass_others(struct cache_device *device, uint64_t *tries, int *error_out)
{
    for (unsigned n = 0; n < BATCH_MAX && *tries && !TAILQ_EMPTY(&device->order); n++) {
        struct leaf_copy *copy = device->policy->victim(device);
        --*tries;
        if (can_go(copy->replica)) {
            copy->replica->file->uses++;
            return copy;
        }
        evict_was_refused(copy->replica, error_out);
    }
    return NULL;
}

struct victim {
    struct replica *replica;
    uint64_t leaf;
    bool apart; /* other clients than the one for whom room is made may hold up who takes its pages */
};

/* The same, for *tries copies, which are counted down. A thread that charges the device meanwhile waits for a
 * part of them only. No lock is held. */
static bool next_victim(struct cache_device *device, uint64_t client, uint64_t *tries,
                        struct victim *victim_out, int *error_out)
{
    struct leaf_copy *copy = NULL;
    bool empty = false;

    while (!copy && *tries && !empty) {
        pthread_mutex_lock(&device->lock);
        copy = pass_others(device, tries, error_out);
        if (copy) { /* it may be gone as soon as the lock is */
            uint64_t sharer = copy->replica->sharer;
            *victim_out = (struct victim){.replica = copy->replica,
                                          .leaf = copy->leaf->number,
                                          .apart = !device->scans && sharer && sharer != client};
        }
        empty = TAILQ_EMPTY(&device->order);
        pthread_mutex_unlock(&device->lock);
    }
    return copy;
}

/* About `pages` of a copy's pages that can go now, of those in `among`, in pieces of so many. Lock taken. */
static page_mask choose(struct replica *replica, uint64_t leaf_number, uint64_t pages, unsigned piece,
                        page_mask among)
{
    page_mask chosen = 0;

    pthread_mutex_lock(&replica->file->lock);
    struct leaf_copy *copy = replica_find_copy(replica, leaf_number);
    if (replica->scans && replica->frames->clients) /* nothing would bring back what a GPU kernel touches */
        copy = NULL;
    for (unsigned first = 0; copy && first < LEAF_PAGES; first += piece) {
        chosen |= copy->present & ~copy->busy & among & page_range_mask(0, first, piece);
        if ((uint64_t)__builtin_popcountll(chosen) >= pages)
            break;
    }
    pthread_mutex_unlock(&replica->file->lock);
    return chosen;
}

uint64_t evict_from(struct replica *replica, uint64_t leaf_number, uint64_t pages, int *error_out)
{
    struct copy_pages victim = {.leaf = leaf_number};
    uint64_t unit = replica->file->cache->config.unit_pages, dropped = 0, total = 0;

    victim.pages =
        choose(replica, leaf_number, pages, (unsigned)(unit < LEAF_PAGES ? unit : LEAF_PAGES), ~UINT64_C(0));
    int error = victim.pages ? drop_pages(replica, &victim, 1, DROP_EVICT, &total) : 0;
    for (page_mask left = error ? ~UINT64_C(0) : 0; left && total < pages; total += dropped) {
        victim.pages = choose(replica, leaf_number, 1, 1, left);
        if (!victim.pages)
            break;
        left &= ~(victim.pages | (victim.pages - 1));
        drop_pages(replica, &victim, 1, DROP_EVICT, &dropped);
    }
    if (error)
        *error_out = error;
    return total;
}

/* Of frames that another thread lets go of for this one, two switches of threads are paid by more than one
 * page: as many as a unit of the default, but no large part of the device. */
static uint64_t worth_a_thread(const struct cache_device *device, uint64_t pages)
{
    uint64_t part = device->capacity / 64, most = part < 16 ? part : 16;

    return pages > most ? pages : most;
}

/* Its file's use ends. */
static uint64_t take(const struct victim *victim, uint64_t pages, int *error_out)
{
    if (victim->apart)
        return evictor_take(victim->replica, victim->leaf, worth_a_thread(victim->replica->device, pages),
                            error_out);
    uint64_t total = evict_from(victim->replica, victim->leaf, pages, error_out);
    file_unuse(victim->replica->file);
    return total;
}

static uint64_t evict_some(struct cache_device *device, uint64_t pages, uint64_t client, bool whole,
                           int *error_out)
{
    uint64_t total = 0, tries = round_length(device, whole);
    struct victim victim;

    while (total < pages && next_victim(device, client, &tries, &victim, error_out))
        total += take(&victim, pages - total, error_out);
    return total;
}

uint64_t evict_some_of(struct cache_device *device, uint64_t pages)
{
    int refused = 0;

    return evict_some(device, pages, 0, false, &refused);
}

int evict_and_charge(struct cache_device *device, uint64_t pages, uint64_t client)
{
    struct cache_progress before = {0}, now;
    struct timespec until;
    bool refused = false;

    if (pages > device->capacity)
        return -ENOMEM;
    while (!cache_device_try_charge(device, pages, &now)) {
        int error = 0;
        if (evict_some(device, pages, client, refused, &error)) {
            refused = false;
            continue;
        }
        /* Nothing could go: everything is in use by faults under way, which end by themselves, or can't be
         * written. What is mapped on a device that scans stays; but a map may be ending. */
        unsigned patience_ms = error ? EVICT_REFUSED_MS : EVICT_FULL_MS;
        if (!error && device->scans)
            error = -ENOMEM;
        /* Not after so many tries: others are woken, and try, as often as they like. */
        if (error && (!refused || now.under_way || now.freed != before.freed))
            until = lock_wait_until(patience_ms);
        else if (error && lock_is_past(&until)) {
            if (error == -ENOMEM)
                atomic_store(&device->full_ns, clock_now_ns());
            return error;
        }
        refused = error != 0;
        before = now;
        cache_device_wait(device, &now, 10);
    }
    return 0;
}
