/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/maps.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/map.h"

/* The first entry whose key is larger. */
static uint32_t behind(struct maps *maps, const struct maps_entry *entries, uint32_t count, uint64_t key)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        maps->looked++;
        if (entries[middle].key > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Entry `at` is new, or gone: sets `reach` anew from there on, up to the first entry where it stays as it
 * was. */
static void reach_anew(struct maps_entry *entries, uint32_t count, uint32_t at)
{
    for (uint32_t i = at; i < count; i++) {
        uint64_t before = i ? entries[i - 1].reach : 0;
        uint64_t reach = entries[i].end > before ? entries[i].end : before;
        if (i > at && entries[i].reach == reach)
            return;
        entries[i].reach = reach;
    }
}

static void insert_at(struct maps_entry *entries, uint32_t *count, uint32_t at, struct maps_entry entry)
{
    memmove(&entries[at + 1], &entries[at], (*count - at) * sizeof *entries);
    entries[at] = entry;
    ++*count;
    reach_anew(entries, *count, at);
}

static void delete_at(struct maps_entry *entries, uint32_t *count, uint32_t at)
{
    --*count;
    memmove(&entries[at], &entries[at + 1], (*count - at) * sizeof *entries);
    reach_anew(entries, *count, at);
}

static int grow(struct maps_entry **entries, uint32_t room)
{
    struct maps_entry *wide = realloc(*entries, room * sizeof *wide);

    if (!wide)
        return -ENOMEM;
    *entries = wide;
    return 0;
}

int maps_add(struct maps *maps, struct cache_map *map)
{
    if (maps->count == MAPS_MAX)
        return -EMFILE;
    if (maps->count == maps->room) { /* here, so that who attaches has it */
        uint32_t room = maps->room ? maps->room * 2 : 16;
        if (grow(&maps->by_id, room) || grow(&maps->by_address, room))
            return -ENOMEM;
        maps->room = room;
    }
    do { /* they begin anew after 2^32 */
        map->id = ++maps->next_id;
    } while (maps_by_id(maps, map->id));
    insert_at(maps->by_id, &maps->count, behind(maps, maps->by_id, maps->count, map->id),
              (struct maps_entry){.key = map->id, .map = map});
    return 0;
}

void maps_attach(struct maps *maps, struct cache_map *map)
{
    insert_at(maps->by_address, &maps->attached, behind(maps, maps->by_address, maps->attached, map->address),
              (struct maps_entry){
                  .key = map->address, .end = map->address + map->count * GAIA_PAGE_SIZE, .map = map});
}

void maps_remove(struct maps *maps, const struct cache_map *map)
{
    uint32_t at = behind(maps, maps->by_address, maps->attached, map->address);

    while (at && maps->by_address[at - 1].key == map->address && maps->by_address[at - 1].map != map)
        at--;
    if (at && maps->by_address[at - 1].map == map)
        delete_at(maps->by_address, &maps->attached, at - 1);
    at = behind(maps, maps->by_id, maps->count, map->id);
    assert(at && maps->by_id[at - 1].map == map);
    delete_at(maps->by_id, &maps->count, at - 1);
}

void maps_free(struct maps *maps)
{
    assert(!maps->count && !maps->attached);
    free(maps->by_id);
    free(maps->by_address);
}

struct cache_map *maps_by_id(struct maps *maps, uint32_t id)
{
    uint32_t at = behind(maps, maps->by_id, maps->count, id);

    return at && maps->by_id[at - 1].key == id ? maps->by_id[at - 1].map : NULL;
}

struct cache_map *maps_at(struct maps *maps, uint64_t address)
{
    struct cache_map *last = NULL;

    for (uint32_t at = behind(maps, maps->by_address, maps->attached, address);
         at && maps->by_address[at - 1].reach > address; at--) {
        const struct maps_entry *entry = &maps->by_address[at - 1];
        maps->looked++;
        if (entry->end > address && (!last || (int32_t)(entry->map->id - last->id) > 0))
            last = entry->map;
    }
    return last;
}
