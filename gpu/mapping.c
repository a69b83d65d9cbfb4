/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/mapping.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/process.h"
#include "base/shared_page.h"
#include "gpu/driver.h"
#include "gpu/session.h"
#include "gpu/stream.h"

struct extent {
    uint8_t *address;
    size_t length;
    struct gaia_mapping *mapping;
};

static pthread_mutex_t table_lock =
    LOCK_INITIALIZER(LOCK_TABLE); /* guards the table and mappings' references */
static struct extent *table;      /* ascending addresses, no overlaps */
static size_t table_count, table_room;
static LIST_HEAD(, gaia_device) devices;  /* open ones; guarded by that lock, too */
static LIST_HEAD(, gaia_mapping) leaving; /* not in the table any more, or never; likewise */

/* Room for `more` further extents. Lock held. */
static int table_reserve(size_t more)
{
    if (table_count + more <= table_room)
        return 0;
    size_t room = (table_count + more) * 2;
    struct extent *wide = realloc(table, room * sizeof *wide);
    if (!wide)
        return -ENOMEM;
    table = wide;
    table_room = room;
    return 0;
}

/* The first extent that ends after address. Lock held. */
static size_t table_at(const uint8_t *address)
{
    size_t low = 0, high = table_count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].address + table[middle].length > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void table_insert(size_t at, struct extent extent)
{
    memmove(&table[at + 1], &table[at], (table_count - at) * sizeof *table);
    table[at] = extent;
    table_count++;
    extent.mapping->extents++;
}

static void table_delete(size_t at)
{
    table[at].mapping->extents--;
    table_count--;
    memmove(&table[at], &table[at + 1], (table_count - at) * sizeof *table);
}

void gaia_mapping_add_device(struct gaia_device *device)
{
    pthread_mutex_lock(&table_lock);
    LIST_INSERT_HEAD(&devices, device, link);
    pthread_mutex_unlock(&table_lock);
}

/* Lock held. */
static bool is_open(const struct gaia_device *device)
{
    const struct gaia_device *open;

    LIST_FOREACH (open, &devices, link)
        if (open == device)
            return open->owner == process_here();
    return false;
}

bool gaia_mapping_hold_device(struct gaia_device *device)
{
    if (!process_holds_state()) /* who held the lock is not here */
        return false;
    pthread_mutex_lock(&table_lock);
    bool held = is_open(device);
    if (held)
        atomic_fetch_add(&device->references, 1);
    pthread_mutex_unlock(&table_lock);
    return held;
}

int gaia_mapping_insert(struct gaia_mapping *mapping)
{
    pthread_mutex_lock(&table_lock);
    /* A session that died before this found nothing to kill; one that dies after it will. */
    int error = mapping->device->closed ? -EINVAL : mapping->session->dead ? -ENOTCONN : table_reserve(1);
    if (!error)
        table_insert(table_at(mapping->address), (struct extent){mapping->address, mapping->length, mapping});
    else
        LIST_INSERT_HEAD(&leaving, mapping, leave);
    pthread_mutex_unlock(&table_lock);
    return error;
}

static LIST_HEAD(, gaia_mapping) collecting; /* not in the table any more; guarded by its lock */

/* What kernels have stored. Who waits for a page meanwhile is not to wait for a daemon that dies. */
static void collect_last(struct gaia_mapping *mapping)
{
    pthread_mutex_lock(&table_lock);
    LIST_INSERT_HEAD(&collecting, mapping, link);
    if (mapping->session->dead)
        mapping->driver->kill(mapping, mapping->address, mapping->length);
    pthread_mutex_unlock(&table_lock);
    mapping->driver->collect(mapping);
    pthread_mutex_lock(&table_lock);
    LIST_REMOVE(mapping, link);
    pthread_mutex_unlock(&table_lock);
}

/* The last extent is gone: first the daemon lets go of the addresses, then they become free for others. (In a
 * stream's call the driver must not be called.) */
static void mapping_free(struct gaia_mapping *mapping)
{
    struct gaia_message message = {.op = GAIA_OP_UNMAP, .map = mapping->map};

    if (mapping->driver->collect)
        collect_last(mapping);
    else if (mapping->driver->drain && !stream_is_here())
        mapping->driver->drain(mapping->device);
    gaia_session_call(mapping->session, &message, NULL);
    pthread_mutex_lock(&table_lock);
    LIST_REMOVE(mapping, leave);
    pthread_mutex_unlock(&table_lock);
    mapping->driver->unmap(mapping);
    munmap(mapping->state, SHARED_PAGE_SIZE);
    descriptors_end(&mapping->file, gaia_session_gone(mapping->session));
    gaia_session_put(mapping->session);
    gaia_device_put(mapping->device);
    free(mapping);
}

void gaia_mapping_put(struct gaia_mapping *mapping)
{
    pthread_mutex_lock(&table_lock);
    unsigned left = --mapping->references;
    pthread_mutex_unlock(&table_lock);
    if (!left)
        mapping_free(mapping);
}

int gaia_mapping_find(void *address, size_t length, const struct gaia_device *device,
                      struct gaia_piece **pieces_out, size_t *count_out)
{
    uint8_t *at = address, *end = at + length;
    struct gaia_piece *pieces = NULL;
    size_t count = 0;
    int error = 0;

    if (!process_holds_state())
        return -EINVAL;
    pthread_mutex_lock(&table_lock);
    for (size_t i = table_at(at); at < end && !error; i++) {
        if (i >= table_count || table[i].address > at || (device && table[i].mapping->device != device)) {
            error = -EINVAL;
            break;
        }
        uint8_t *stop = table[i].address + table[i].length < end ? table[i].address + table[i].length : end;
        struct gaia_piece *more = realloc(pieces, (count + 1) * sizeof *pieces);
        if (!more) {
            error = -ENOMEM;
            break;
        }
        pieces = more;
        struct gaia_mapping *mapping = table[i].mapping;
        pieces[count++] = (struct gaia_piece){.mapping = mapping,
                                              .address = at,
                                              .offset = (uint64_t)mapping->offset +
                                                        (uint64_t)(at - (uint8_t *)mapping->address),
                                              .length = (uint64_t)(stop - at)};
        mapping->references++;
        at = stop;
    }
    pthread_mutex_unlock(&table_lock);
    if (error) {
        gaia_pieces_free(pieces, count);
        return error;
    }
    *pieces_out = pieces;
    *count_out = count;
    return 0;
}

void gaia_pieces_free(struct gaia_piece *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        gaia_mapping_put(pieces[i].mapping);
    free(pieces);
}

/* whole: it is an extent. 0, or -ENOMEM: nothing has changed. Lock held. */
static int block(struct gaia_mapping *mapping, void *address, size_t length, bool whole)
{
    static unsigned cuts;
    bool is_first = !mapping->cut;

    if (is_first)
        mapping->cut = cuts++ % 0x7fff + 1;
    int error = mapping->driver->block(mapping, address, length);
    if (error && whole) {
        mapping->shown = true;
        error = mapping->driver->bar ? mapping->driver->bar(mapping, address, length) : error;
    }
    if (error && is_first)
        mapping->cut = 0;
    return error;
}

/* Cut [address, end) out of extent i: what is left of it may be two extents. The addresses stay blocked until
 * the whole mapping is gone, because the daemon may touch its pages until then. 0 or -ENOMEM. Lock held;
 * there is room for one extent, if two are left. */
static int cut(size_t i, uint8_t *address, uint8_t *end)
{
    struct extent *extent = &table[i];
    uint8_t *extent_end = extent->address + extent->length;
    uint8_t *from = address > extent->address ? address : extent->address;
    uint8_t *to = end < extent_end ? end : extent_end;

    int error = block(extent->mapping, from, (size_t)(to - from), false);
    if (error)
        return error;
    if (from > extent->address && to < extent_end) {
        extent->length = (size_t)(from - extent->address);
        extent->mapping->references++;
        table_insert(i + 1, (struct extent){to, (size_t)(extent_end - to), extent->mapping});
    } else if (from > extent->address) {
        extent->length = (size_t)(from - extent->address);
    } else {
        extent->length = (size_t)(extent_end - to);
        extent->address = to;
    }
    return 0;
}

/* Nobody is to use extent i any more, which is about to be taken out of the table, whole. 0 or -ENOMEM. Lock
 * held. */
static int close_off(size_t i)
{
    const struct extent *extent = &table[i];
    struct gaia_mapping *mapping = extent->mapping;

    return mapping->references > 1 || mapping->cut || extent->length != mapping->length
               ? block(mapping, extent->address, extent->length, true)
               : 0;
}

/* Its mapping, for the caller to put. Lock held. */
static struct gaia_mapping *take_out(size_t i)
{
    struct gaia_mapping *mapping = table[i].mapping;

    table_delete(i);
    if (!mapping->extents)
        LIST_INSERT_HEAD(&leaving, mapping, leave);
    return mapping;
}

/* Extent by extent: what was unmapped may be the program's own memory by now. */
void gaia_mapping_refresh(struct gaia_mapping *mapping)
{
    pthread_mutex_lock(&table_lock);
    for (size_t i = 0; i < table_count; i++)
        if (table[i].mapping == mapping)
            mapping->driver->refresh(mapping, table[i].address, table[i].length);
    pthread_mutex_unlock(&table_lock);
}

/* All of it happens under one hold of the lock: as soon as a mapping is freed, another thread's may stand at
 * its addresses. Nothing is allocated but for what leaves two parts. */
int gaia_mapping_remove(void *address, size_t length)
{
    uint8_t *begin = address, *end = begin + length;
    LIST_HEAD(, gaia_mapping) gone = LIST_HEAD_INITIALIZER(gone);
    struct gaia_mapping *mapping;
    int error = 0;

    if (!process_holds_state()) /* they are its parent's */
        return -EINVAL;
    pthread_mutex_lock(&table_lock);
    size_t first = table_at(begin);
    if (first < table_count && table[first].address < begin &&
        table[first].address + table[first].length > end)
        error = table_reserve(1);
    for (size_t i = first; !error && i < table_count && table[i].address < end;) {
        struct extent *extent = &table[i];
        if (begin > extent->address || extent->address + extent->length > end) {
            error = cut(i, begin, end);
            i += table[i].address <
                 begin; /* what is left of it in front of the range; behind it the loop ends */
            continue;
        }
        error = close_off(i);
        if (error)
            break;
        mapping = take_out(i);
        if (!--mapping->references) /* nobody else finds it any more */
            LIST_INSERT_HEAD(&gone, mapping, link);
    }
    pthread_mutex_unlock(&table_lock);
    while ((mapping = LIST_FIRST(&gone))) {
        LIST_REMOVE(mapping, link);
        mapping_free(mapping);
    }
    return error;
}

void gaia_mapping_take_back(void *address)
{
    struct gaia_mapping *gone = NULL;

    pthread_mutex_lock(&table_lock);
    size_t i = table_at(address);
    if (i < table_count && table[i].address == address) {
        (void)close_off(i); /* nobody uses it */
        gone = take_out(i);
    }
    pthread_mutex_unlock(&table_lock);
    if (gone)
        gaia_mapping_put(gone);
}

bool gaia_mapping_remove_device(struct gaia_device *device)
{
    pthread_mutex_lock(&table_lock);
    bool open = is_open(device);
    if (open) {
        LIST_REMOVE(device, link);
        device->closed = true;
    }
    pthread_mutex_unlock(&table_lock);
    /* One by one, and with nothing to allocate: this can't fail. */
    while (open) {
        struct gaia_mapping *gone = NULL;
        pthread_mutex_lock(&table_lock);
        for (size_t i = table_count; i > 0 && !gone; i--)
            if (table[i - 1].mapping->device == device) {
                (void)close_off(i - 1); /* else calls under way use it until they end */
                gone = take_out(i - 1);
            }
        pthread_mutex_unlock(&table_lock);
        if (!gone)
            break;
        gaia_mapping_put(gone);
    }
    return open;
}

/* Who has become another user has two sessions with the daemon of one mount. */
static bool is_same_daemon(const struct gaia_session *one, const struct gaia_session *other)
{
    return !strncmp(one->name, other->name, sizeof one->name);
}

int gaia_mapping_each_daemon(const struct gaia_device *device,
                             int (*fn)(struct gaia_session *session, void *context), void *context)
{
    size_t count = 0;
    int error = 0;

    pthread_mutex_lock(&table_lock);
    struct gaia_mapping **held = calloc(table_count + 1, sizeof(struct gaia_mapping *));
    for (size_t i = 0; held && i < table_count; i++) {
        bool known = table[i].mapping->device != device;
        for (size_t j = 0; j < count && !known; j++)
            known = is_same_daemon(held[j]->session, table[i].mapping->session);
        if (!known) {
            held[count++] = table[i].mapping;
            table[i].mapping->references++;
        }
    }
    pthread_mutex_unlock(&table_lock);
    if (!count)
        error = held ? -ENOTCONN : -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        if (!error)
            error = fn(held[i]->session, context);
        gaia_mapping_put(held[i]);
    }
    free(held);
    return error;
}

/* What is still mapped from a daemon that is gone must not look like data: the bytes that it would have
 * brought can't be had, and a touch that waits for it would wait for ever. */
void gaia_mapping_session_died(struct gaia_session *session)
{
    pthread_mutex_lock(&table_lock);
    struct gaia_mapping *mapping;
    for (size_t i = 0; i < table_count; i++) {
        mapping = table[i].mapping;
        if (mapping->session != session)
            continue;
        /* What of that driver's was unmapped is still in its place, and threads of libgaia may wait there. */
        if (mapping->driver->collect)
            mapping->driver->kill(mapping, mapping->address, mapping->length);
        else
            mapping->driver->kill(mapping, table[i].address, table[i].length);
    }
    LIST_FOREACH (mapping, &collecting, link)
        if (mapping->session == session)
            mapping->driver->kill(mapping, mapping->address, mapping->length);
    pthread_mutex_unlock(&table_lock);
}

static bool overlaps(const struct gaia_mapping *mapping, const uint8_t *address, size_t length)
{
    const uint8_t *other = mapping->address;

    return mapping->driver == &gaia_soft_driver && address < other + mapping->length &&
           other < address + length;
}

/* One at whose addresses this is: the program has put something into a hole of it, and taken that away again.
 * What it has around the hole stands there in the table. NULL: none. Lock held. */
static struct gaia_mapping *find_owner(const uint8_t *address, size_t length)
{
    struct gaia_mapping *mapping;
    size_t i = table_at(address);

    if (i < table_count && overlaps(table[i].mapping, address, length))
        return table[i].mapping;
    if (i && overlaps(table[i - 1].mapping, address, length))
        return table[i - 1].mapping;
    LIST_FOREACH (mapping, &leaving, leave)
        if (overlaps(mapping, address, length))
            break;
    return mapping;
}

/* Whether nothing was there. What is there now keeps others out. */
static bool take_free(uint8_t *address, size_t length)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;

    return mmap(address, length, PROT_NONE, flags, -1, 0) == address;
}

/* Takes what is free from an address on, or down from it, `most` bytes at most. How many they were. */
static size_t take_all_free(uint8_t *address, size_t most, bool down)
{
    size_t taken = 0;

    for (size_t step = (size_t)1 << 46; step >= SHARED_PAGE_SIZE; step /= 2)
        if (step <= most - taken && take_free(down ? address - taken - step : address + taken, step))
            taken += step;
    return taken;
}

/* Take what was mapped there away: what of it is the other mapping's is blocked, as it was before, so that
 * nothing else comes there; and with it all of its hole, which may have room for a million of what was
 * mapped. 0 or -ENOMEM. Lock held. */
static int give_back(struct gaia_mapping *mapping, uint8_t *address, size_t length)
{
    uint8_t *end = address + length, *other = mapping->address, *other_end = other + mapping->length;
    uint8_t *from = address > other ? address : other, *to = end < other_end ? end : other_end;

    from -= take_all_free(from, (size_t)(from - other), true);
    to += take_all_free(to, (size_t)(other_end - to), false);
    bool stands = !mapping->extents && !mapping->cut; /* as it was mapped, and is to end so */
    int error = block(mapping, from, (size_t)(to - from), false);
    if (error)
        munmap(from, (size_t)(to - from));
    else
        mapping->shown |= stands;
    if (address < from)
        munmap(address, (size_t)(from - address));
    if (end > to)
        munmap(to, (size_t)(end - to));
    return error;
}

/* Lock held. */
static int map(size_t length, int prot, int flags, int fd, off_t offset, void **address_out)
{
    void *address = mmap(NULL, length, prot, flags, fd, offset);

    if (address == MAP_FAILED)
        return errno == EAGAIN ? -ENOMEM : -errno;
    *address_out = address;
    if (!madvise(address, length, MADV_DONTFORK))
        return 0;
    int error = -errno;
    munmap(address, length);
    return error;
}

int gaia_mapping_map(size_t length, int prot, int flags, int fd, off_t offset, void **address_out)
{
    struct gaia_mapping *other = NULL;
    int error;

    pthread_mutex_lock(&table_lock);
    do { /* each time there is a hole less */
        error = map(length, prot, flags, fd, offset, address_out);
        other = error ? NULL : find_owner(*address_out, length);
        if (other)
            error = give_back(other, *address_out, length);
    } while (other && !error);
    pthread_mutex_unlock(&table_lock);
    return error;
}

void gaia_mapping_before_fork(void)
{
    pthread_mutex_lock(&table_lock);
}

void gaia_mapping_after_fork(bool child)
{
    if (child) { /* which has none of the mappings (MADV_DONTFORK) */
        table_count = 0;
        LIST_INIT(&collecting);
        LIST_INIT(&leaving);
        LIST_INIT(&devices);
        lock_init(&table_lock, LOCK_TABLE);
    } else {
        pthread_mutex_unlock(&table_lock);
    }
}
