/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/home_device.h"

#include <errno.h>
#include <stdlib.h>

#include "cache/evict.h"
#include "cache/home.h"
#include "cache/internal.h"

struct node_device {
    unsigned member;
    uint32_t device;              /* its number there */
    struct call_session *session; /* a reference; NULL: none now. Under cache->devices_lock */
};

/* The device of a member's, or GAIA_DEVICES_MAX. devices_lock is held. */
static unsigned find(struct cache *cache, unsigned member, uint32_t device)
{
    for (unsigned i = GAIA_NODE_FIRST; i < GAIA_DEVICES_MAX && cache->devices[i]; i++) {
        const struct node_device *node = cache->devices[i]->node;
        if (node->member == member && node->device == device)
            return i;
    }
    return GAIA_DEVICES_MAX;
}

static bool scans(uint32_t device)
{
    return device >= GAIA_SOFT_MAX;
}

/* A number that nobody has had; if there is none, that of a device whose node has gone, and which is as this
 * one is: what files had there is lost, and their replicas get new frames. devices_lock is held. */
static unsigned find_place(struct cache *cache, uint32_t device)
{
    for (unsigned i = GAIA_NODE_FIRST; i < GAIA_DEVICES_MAX; i++)
        if (!cache->devices[i])
            return i;
    for (unsigned i = GAIA_NODE_FIRST; i < GAIA_DEVICES_MAX; i++)
        if (!cache->devices[i]->node->session && cache->devices[i]->scans == scans(device))
            return i;
    return GAIA_DEVICES_MAX;
}

static struct cache_device *make(struct cache *cache, unsigned number, uint32_t device)
{
    struct cache_device *made = calloc(1, sizeof *made);

    if (!made)
        return NULL;
    cache_device_init(made, number, 0, evict_policy_find(cache->config.evict));
    made->scans = scans(device);
    made->node = calloc(1, sizeof *made->node);
    if (!made->node) {
        free(made);
        return NULL;
    }
    return made;
}

/* The number that the device has here, or gets. devices_lock is held. */
static int enter(struct cache *cache, unsigned member, uint32_t device, unsigned *number_out)
{
    unsigned number = *number_out = find(cache, member, device);

    if (number < GAIA_DEVICES_MAX)
        return 0;
    number = *number_out = find_place(cache, device);
    if (number == GAIA_DEVICES_MAX)
        return -ENODEV;
    if (!cache->devices[number])
        cache->devices[number] = make(cache, number, device);
    if (!cache->devices[number])
        return -ENOMEM;
    cache->devices[number]->node->member = member;
    cache->devices[number]->node->device = device;
    return 0;
}

int home_device_get(struct home_session *agent, uint32_t device, uint64_t pages, unsigned *number_out)
{
    struct cache *cache = agent->nodes->cache;

    if (device >= GAIA_NODE_FIRST || pages < NODE_DEVICE_PAGES_MIN || pages > UINT64_MAX / GAIA_PAGE_SIZE / 2)
        return -EINVAL;
    pthread_mutex_lock(&cache->devices_lock);
    int error = enter(cache, agent->member, device, number_out);
    struct cache_device *here = error ? NULL : cache->devices[*number_out];
    if (here && !here->node->session) {
        call_session_get(agent->session);
        here->node->session = agent->session;
    } else if (here && here->node->session != agent->session) {
        error = -EBUSY;
    }
    if (here && !error) /* it may have come again with another device_cache=, or its part is another now */
        here->capacity = pages;
    pthread_mutex_unlock(&cache->devices_lock);
    return error;
}

int home_device_frames(struct cache *cache, const struct cache_device *device, uint64_t pages, bool read_only,
                       struct gaia_frames **frames_out)
{
    pthread_mutex_lock(&cache->devices_lock);
    struct call_session *session = device->node->session;
    uint32_t number = device->node->device;
    if (session)
        call_session_get(session);
    pthread_mutex_unlock(&cache->devices_lock);
    if (!session)
        return -EIO;
    const struct gaia_node_device there = {
        .session = session, .device = number, .scans = device->scans, .read_only = read_only};
    int error = gaia_node_frames_open(&there, nodes_number(cache->nodes), pages, frames_out);
    call_session_put(session);
    return error;
}

int home_device_renew(struct replica *replica, uint64_t pages)
{
    struct gaia_frames *fresh;

    if (replica->resident || replica->frames->clients || replica->fitting)
        return -EBUSY;
    int error = home_device_frames(replica->file->cache, replica->device, pages, replica->read_only, &fresh);
    if (error)
        return error;
    replica->frames->ops->close(replica->frames);
    replica->frames = fresh;
    replica->fits = pages;
    return 0;
}

static struct cache_device *device_of(const struct home_session *agent, unsigned number)
{
    struct cache *cache = agent->nodes->cache;

    pthread_mutex_lock(&cache->devices_lock);
    struct cache_device *device = cache->devices[number];
    bool ours = device && device->node->session == agent->session;
    pthread_mutex_unlock(&cache->devices_lock);
    return ours ? device : NULL;
}

struct lost {
    struct replica *replica;
    bool busy;
};

/* Lock held. */
static void lose_leaf(struct leaf *leaf, void *context)
{
    struct lost *lost = context;
    struct leaf_copy *copy = leaf_find_copy(leaf, lost->replica);

    if (!copy)
        return;
    if (copy->pending) /* a release has ended well, and the home could not take it */
        durable_fail(lost->replica->file->durable, -EIO);
    lost->busy |= copy->busy || copy->releasing;
    cache_device_uncharge(lost->replica->device, replica_forget(copy, ~copy->busy));
    replica_settle(copy);
}

/* What of a file was on a lost device. Whoever has pages of it busy finds every call of theirs failing, and
 * ends soon. */
void home_device_lose(struct replica *replica)
{
    struct cache_file *file = replica->file;
    struct lost lost = {.replica = replica};

    pthread_mutex_lock(&file->lock);
    do {
        lost.busy = false;
        index_each(&file->index, lose_leaf, &lost);
        if (lost.busy) {
            struct timespec until = lock_wait_until(1000);
            pthread_cond_timedwait(&file->changed, &file->lock, &until);
        }
    } while (lost.busy);
    pthread_mutex_unlock(&file->lock);
}

/* A file's next replica on a device, which has two of them if it scans; after: NULL, or the last one. */
static struct replica *next_replica(struct cache_file *file, const struct cache_device *device,
                                    struct replica *after)
{
    pthread_mutex_lock(&file->lock);
    struct replica *replica = after ? SLIST_NEXT(after, link) : SLIST_FIRST(&file->replicas);
    while (replica && replica->device != device) /* they are only ever added */
        replica = SLIST_NEXT(replica, link);
    pthread_mutex_unlock(&file->lock);
    return replica;
}

static int lose_file(struct cache_file *file, void *context)
{
    struct replica *replica = NULL;

    while ((replica = next_replica(file, context, replica)))
        home_device_lose(replica);
    return 0;
}

static int empty_file(struct cache_file *file, void *context)
{
    struct replica *replica = NULL;
    int error = 0;

    while ((replica = next_replica(file, context, replica))) {
        int one = claim_empty(replica);
        error = error ? error : one;
    }
    return error;
}

uint64_t home_device_room(struct home_session *agent, uint32_t device, uint64_t pages)
{
    struct cache *cache = agent->nodes->cache;

    pthread_mutex_lock(&cache->devices_lock);
    unsigned number = find(cache, agent->member, device);
    struct cache_device *here = number < GAIA_DEVICES_MAX ? cache->devices[number] : NULL;
    pthread_mutex_unlock(&cache->devices_lock);
    return here ? evict_some_of(here, pages) : 0;
}

int home_device_empty(struct home_session *agent)
{
    struct cache *cache = agent->nodes->cache;
    int error = 0;

    for (unsigned i = GAIA_NODE_FIRST; i < GAIA_DEVICES_MAX; i++) {
        struct cache_device *device = device_of(agent, i);
        int one = device ? cache_each_file(cache, empty_file, device) : 0;
        error = error ? error : one;
    }
    return error;
}

void home_device_lost(struct home_session *agent)
{
    struct cache *cache = agent->nodes->cache;

    for (unsigned i = GAIA_NODE_FIRST; i < GAIA_DEVICES_MAX; i++) {
        struct cache_device *device = device_of(agent, i);
        if (!device)
            continue;
        cache_each_file(cache, lose_file, device);
        pthread_mutex_lock(&cache->devices_lock);
        device->node->session = NULL;
        pthread_mutex_unlock(&cache->devices_lock);
        call_session_put(agent->session);
    }
}
