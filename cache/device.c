/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/device.h"

#include <assert.h>

#include "cache/index.h"

void cache_device_init(struct cache_device *device, unsigned number, uint64_t capacity_bytes,
                       const struct evict_policy *policy)
{
    device->number = number;
    device->capacity = capacity_bytes / GAIA_PAGE_SIZE;
    device->policy = policy;
    device->charged = device->freed = 0;
    device->resident = 0;
    lock_init(&device->lock, LOCK_DEVICE);
    lock_condition_init(&device->changed);
    TAILQ_INIT(&device->order);
}

static uint64_t beyond_share(const struct cache_pool *pool, uint64_t charged)
{
    return charged > pool->share ? charged - pool->share : 0;
}

/* A device can always have what is in its share, and what it begins in its share may end beyond it: else a
 * device that has nothing to evict would wait for others. The device's lock is held. */
static bool pool_charge(struct cache_pool *pool, uint64_t charged, uint64_t pages)
{
    uint64_t more = beyond_share(pool, charged + pages) - beyond_share(pool, charged);

    if (!more)
        return true;
    uint64_t before = atomic_fetch_add(&pool->beyond, more);
    if (charged < pool->share || before + more <= pool->limit)
        return true;
    atomic_fetch_sub(&pool->beyond, more);
    return false;
}

bool cache_device_try_charge(struct cache_device *device, uint64_t pages, struct cache_progress *progress_out)
{
    pthread_mutex_lock(&device->lock);
    bool fits = device->charged + pages <= device->capacity; /* which may have become less */
    if (fits && device->pool)
        fits = pool_charge(device->pool, device->charged, pages);
    if (fits)
        device->charged += pages;
    else
        *progress_out = (struct cache_progress){
            .freed = device->freed, .under_way = device->charged > atomic_load(&device->resident)};
    pthread_mutex_unlock(&device->lock);
    return fits;
}

void cache_device_uncharge(struct cache_device *device, uint64_t pages)
{
    pthread_mutex_lock(&device->lock);
    assert(device->charged >= pages);
    device->charged -= pages;
    device->freed += pages != 0;
    if (device->pool)
        atomic_fetch_sub(&device->pool->beyond, beyond_share(device->pool, device->charged + pages) -
                                                    beyond_share(device->pool, device->charged));
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
}

uint64_t cache_device_charged(struct cache_device *device)
{
    pthread_mutex_lock(&device->lock);
    uint64_t charged = device->charged;
    pthread_mutex_unlock(&device->lock);
    return charged;
}

/* The device's lock is held. */
static bool pool_has_room(struct cache_pool *pool, uint64_t charged, uint64_t pages)
{
    uint64_t more = beyond_share(pool, charged + pages) - beyond_share(pool, charged);

    return !more || atomic_load(&pool->beyond) + more <= pool->limit - pool->limit / 8;
}

bool cache_device_has_room(struct cache_device *device, uint64_t pages)
{
    pthread_mutex_lock(&device->lock);
    bool has = device->charged + pages <= device->capacity - device->capacity / 8 &&
               (!device->pool || pool_has_room(device->pool, device->charged, pages));
    pthread_mutex_unlock(&device->lock);
    return has;
}

void cache_device_wait(struct cache_device *device, const struct cache_progress *since, unsigned timeout_ms)
{
    struct timespec until = lock_wait_until(timeout_ms);

    pthread_mutex_lock(&device->lock);
    if (device->freed == since->freed)
        pthread_cond_timedwait(&device->changed, &device->lock, &until);
    pthread_mutex_unlock(&device->lock);
}

void cache_device_notify(struct cache_device *device)
{
    pthread_mutex_lock(&device->lock);
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
}
