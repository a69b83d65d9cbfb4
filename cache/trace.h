/* SPDX-License-Identifier: Apache-2.0 */
/* The tracepoints of the cache; docs/tracing.md has them for who looks. A file is told by its inode number, a
 * device by cache_device.number; pages are counted in the file. Errors are negative errno values.
 *
 * Names of events that begin something are verbs, those of its end are participles. */
#ifndef GAIAFS_CACHE_TRACE_H
#define GAIAFS_CACHE_TRACE_H

#include "base/trace.h"
#include "cache/map.h"

#define TRACE_OF(replica) (replica)->file->number, (replica)->device->number

/* A touch that the kernel has stopped: of a page that the device or the client lacks, or the first store to
 * one. thread: that touches (0: not known). */
enum trace_touch { TRACE_LOAD, TRACE_STORE, TRACE_TRAPPED };
static inline void trace_fault(const struct cache_map *map, uint64_t page, const struct gaia_fault *fault)
{
    TRACE(fault, TRACE_OF(map->replica), page, fault->thread,
          fault->protection ? TRACE_TRAPPED
          : fault->write    ? TRACE_STORE
                            : TRACE_LOAD);
}

/* The touch goes on: the page was placed; the device had it, and it was shown; its stores are let through; it
 * is to look again (the file was cut, say), maybe when who has the page busy is done; or it gets SIGBUS. One
 * for each fault. */
enum trace_served { TRACE_PLACED, TRACE_SHOWN, TRACE_LET_THROUGH, TRACE_AGAIN, TRACE_LEFT, TRACE_REFUSED };
static inline void trace_served(const struct cache_map *map, uint64_t page, enum trace_served how)
{
    TRACE(served, TRACE_OF(map->replica), page, how);
}

/* Pages on their way to a device, and where they are read; and that they are there, or not. */
enum trace_source { TRACE_MEMORY, TRACE_STORAGE };
static inline void trace_place(const struct replica *replica, uint64_t page, uint64_t count,
                               enum trace_source source)
{
    TRACE(place, TRACE_OF(replica), page, count, source);
}
static inline void trace_placed(const struct replica *replica, uint64_t page, uint64_t count, int error)
{
    TRACE(placed, TRACE_OF(replica), page, count, error);
}

/* Pages that nobody has touched yet are to be placed by others. */
static inline void trace_ahead(const struct replica *replica, uint64_t page, uint64_t count)
{
    TRACE(ahead, TRACE_OF(replica), page, count);
}

static inline void trace_acquire(const struct replica *replica, uint64_t page, uint64_t count)
{
    TRACE(acquire, TRACE_OF(replica), page, count);
}
static inline void trace_acquired(const struct replica *replica, uint64_t page, uint64_t count, int error)
{
    TRACE(acquired, TRACE_OF(replica), page, count, error);
}
static inline void trace_release(const struct replica *replica, uint64_t page, uint64_t count)
{
    TRACE(release, TRACE_OF(replica), page, count);
}
static inline void trace_released(const struct replica *replica, uint64_t page, uint64_t count, int error)
{
    TRACE(released, TRACE_OF(replica), page, count, error);
}

/* Released bytes of these pages were merged into the file, from all devices that had some: so many pages of
 * it have changed. */
static inline void trace_collected(const struct cache_file *file, uint64_t page, uint64_t count,
                                   unsigned changed, int error)
{
    TRACE(collected, file->number, page, count, changed, error);
}

/* Frames were freed, or not; why: an enum drop_why. */
static inline void trace_dropped(const struct replica *replica, uint64_t page, uint64_t count, unsigned why,
                                 int error)
{
    TRACE(dropped, TRACE_OF(replica), page, count, why, error);
}
/* Pages that were out of date have the file's bytes again, where they are. */
static inline void trace_renewed(const struct replica *replica, uint64_t page, uint64_t count)
{
    TRACE(renewed, TRACE_OF(replica), page, count);
}

#endif
