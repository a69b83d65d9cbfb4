/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/lock.h"
#include "cache/agent.h"
#include "cache/map.h"
#include "gpu/gaia.h"

struct cache_map *client_find_map(struct cache_client *client, uint64_t address)
{
    pthread_mutex_lock(&client->lock);
    struct cache_map *map = maps_at(&client->maps, address);
    if (map)
        cache_map_get(map);
    pthread_mutex_unlock(&client->lock);
    return map;
}

struct cache_map *cache_client_find_far(struct nodes *nodes, uint32_t number, uint64_t address,
                                        const struct agent_frames *frames)
{
    struct cache_client *client;
    struct cache_map *map = NULL;

    pthread_mutex_lock(&nodes->lock);
    LIST_FOREACH (client, &nodes->clients, link)
        if (client->number == number)
            break;
    if (client)
        client->finders++;
    pthread_mutex_unlock(&nodes->lock);
    if (client) {
        map = client_find_map(client, address);
        pthread_mutex_lock(&nodes->lock);
        if (--client->finders == 0)
            pthread_cond_broadcast(&nodes->changed);
        pthread_mutex_unlock(&nodes->lock);
    }
    if (map && (!map->far || map->far->frames != frames)) {
        cache_map_put(map);
        map = NULL;
    }
    return map;
}

/* Of a client of this node's: homes elsewhere find it by its number. */
static void enter(struct cache_client *client)
{
    struct nodes *nodes = client->cache->nodes;

    client->number = nodes_number(nodes);
    pthread_mutex_lock(&nodes->lock);
    LIST_INSERT_HEAD(&nodes->clients, client, link);
    pthread_mutex_unlock(&nodes->lock);
}

static void leave(struct cache_client *client)
{
    struct nodes *nodes = client->cache->nodes;

    pthread_mutex_lock(&nodes->lock);
    LIST_REMOVE(client, link);
    while (client->finders)
        pthread_cond_wait(&nodes->changed, &nodes->lock);
    pthread_mutex_unlock(&nodes->lock);
}

int cache_client_open(struct cache *cache, const struct gaia_process *process, bool can_trap,
                      struct cache_client **client_out)
{
    int error = -EINVAL, faults = process->faults;
    struct cache_client *client = NULL;

    if (faults >= 0 && (!gaia_soft_is_faults(faults) || fcntl(faults, F_SETFL, O_NONBLOCK)))
        goto out;
    error = -ENOMEM;
    client = calloc(1, sizeof *client);
    if (!client)
        goto out;
    *client = (struct cache_client){.cache = cache, .process = *process, .can_trap = can_trap};
    client->id = atomic_fetch_add(&cache->clients, 1) + 1;
    lock_init(&client->lock, LOCK_CLIENT);
    pthread_cond_init(&client->idle, NULL);
    client->stop = eventfd(0, EFD_CLOEXEC);
    if (client->stop < 0) {
        error = -errno;
        goto out;
    }
    error = faults >= 0 ? fault_threads_start(client) : 0;
    if (error) {
        close(client->stop);
        goto out;
    }
    if (cache->nodes)
        enter(client);
    *client_out = client;
    return 0;

out:
    free(client);
    return error;
}

int cache_client_open_far(struct cache *cache, unsigned node, uint32_t number,
                          struct cache_client **client_out)
{
    int error = cache_client_open(cache, &(struct gaia_process){.faults = -1}, true, client_out);

    if (error)
        return error;
    leave(*client_out); /* homes do not ask for it */
    (*client_out)->far = node;
    (*client_out)->number = number;
    return 0;
}

int cache_client_fault(struct cache_client *client, const struct gaia_fault *fault)
{
    struct cache_map *map = client_find_map(client, fault->address);

    if (!map)
        return -ENOENT;
    fault_serve(map, fault);
    cache_map_put(map);
    return 0;
}

uint32_t cache_client_number(const struct cache_client *client)
{
    return client->number;
}

const struct gaia_process *cache_client_process(const struct cache_client *client)
{
    return &client->process;
}

void cache_client_close(struct cache_client *client)
{
    uint64_t one = 1;

    if (!client)
        return;
    while (write(client->stop, &one, sizeof one) < 0 && errno == EINTR)
        ;
    if (client->process.faults >= 0)
        fault_threads_stop(client);
    while (client->maps.count) /* nobody opens any more; from the end, where closing moves no others */
        cache_map_close(client, (uint32_t)client->maps.by_id[client->maps.count - 1].key);
    if (client->cache->nodes && !client->far) {
        leave(client);
        agent_client_gone(client->cache, client);
    }
    close(client->stop);
    maps_free(&client->maps); /* homes may have looked for one until now */
    pthread_cond_destroy(&client->idle);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

int cache_device_parse(struct cache *cache, const char *name, const uint8_t uuid[16], bool open,
                       unsigned *device_out, char why_out[GAIA_CUDA_WHY])
{
    bool soft = !strncmp(name, "soft:", 5);
    char *end;

    why_out[0] = '\0';
    if ((!soft && strncmp(name, "cuda:", 5)) || name[5] < '0' || name[5] > '9')
        return -EINVAL;
    unsigned long number = strtoul(name + 5, &end, 10);
    if (*end)
        return -EINVAL;
    if (!soft)
        return cache_open_gpu(cache, uuid, open, device_out, why_out);
    if (number >= cache->config.soft_devices)
        return -ENODEV;
    *device_out = (unsigned)number;
    return 0;
}
