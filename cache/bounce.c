/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/bounce.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>

#include "consistency/page.h"

#define BOUNCE_BYTES ((size_t)BOUNCE_PAGES * GAIA_PAGE_SIZE)

_Static_assert(BOUNCE_COUNT <= 64, "a bit for each");

int bounce_pool_init(struct bounce_pool *pool, struct gaia_transport *transport)
{
    size_t length = BOUNCE_COUNT * BOUNCE_BYTES;
    void *area = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (area == MAP_FAILED)
        return -ENOMEM;
    pool->area = area;
    return gaia_memory_register(transport, &(struct gaia_span){area, length, -1}, &pool->memory);
}

void bounce_pool_free(struct bounce_pool *pool)
{
    assert(!pool->taken);
    gaia_memory_release(pool->memory);
    if (pool->area)
        munmap(pool->area, BOUNCE_COUNT * BOUNCE_BYTES);
    *pool = (struct bounce_pool){0};
}

uint8_t *bounce_get(struct bounce_pool *pool)
{
    uint64_t taken = pool->taken, all = UINT64_MAX >> (64 - BOUNCE_COUNT);
    unsigned number;

    if (!pool->area)
        return NULL;
    do {
        if (taken == all)
            return NULL;
        number = (unsigned)__builtin_ctzll(~taken);
    } while (!atomic_compare_exchange_weak(&pool->taken, &taken, taken | UINT64_C(1) << number));
    return pool->area + number * BOUNCE_BYTES;
}

void bounce_put(struct bounce_pool *pool, const uint8_t *buffer)
{
    uint64_t bit = UINT64_C(1) << ((size_t)(buffer - pool->area) / BOUNCE_BYTES);
    uint64_t before = atomic_fetch_and(&pool->taken, ~bit);

    assert(before & bit);
    (void)before;
}
