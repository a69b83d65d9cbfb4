/* SPDX-License-Identifier: Apache-2.0 */
/* The maps of a client, by their ids and by where they are attached. Each fault and each call looks for one,
 * and a program may have thousands: two sorted arrays. Guarded by the client's lock. */
#ifndef GAIAFS_CACHE_MAPS_H
#define GAIAFS_CACHE_MAPS_H

#include <stdint.h>

#define MAPS_MAX 4096u

struct cache_map;

/* key: ids; or addresses, where a map ends behind its last byte, and no map up to this one ends behind
 * `reach`. A search reads only these entries, and of the maps only those that are found. */
struct maps_entry {
    uint64_t key, end, reach;
    struct cache_map *map;
};

struct maps {
    struct maps_entry *by_id, *by_address; /* each has the room */
    uint32_t count, attached, room;
    uint32_t next_id;
    uint64_t looked; /* at how many entries: for the tests */
};

/* Gives the map its id. -EMFILE (MAPS_MAX), -ENOMEM. */
int maps_add(struct maps *maps, struct cache_map *map);
/* A map that was added is at its address from now on. */
void maps_attach(struct maps *maps, struct cache_map *map);
/* A map that was added, attached or not. */
void maps_remove(struct maps *maps, const struct cache_map *map);
/* All have been removed. */
void maps_free(struct maps *maps);

/* The map, or NULL. Of several maps at one address, which no libgaia makes, the one that was added last. */
struct cache_map *maps_by_id(struct maps *maps, uint32_t id);
struct cache_map *maps_at(struct maps *maps, uint64_t address);

#endif
