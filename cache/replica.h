/* SPDX-License-Identifier: Apache-2.0 */
/* A replica: one device's copy of one tracked file. It lives until the file's cache ends, with or without
 * clients that map it: what a client released, or left resident, stays. */
#ifndef GAIAFS_CACHE_REPLICA_H
#define GAIAFS_CACHE_REPLICA_H

#include <sys/queue.h>
#include <sys/types.h>

#include "cache/device.h"
#include "cache/index.h"
#include "cache/placed.h"
#include "gpu/device.h"

struct cache_file;
struct gaia_shared_state;
struct handing;
struct scan_found;

/* A range with all pages of which kernels may hold the bytes from before a release that failed. */
struct untold {
    uint64_t first, end; /* end: 0: none */
    uint64_t changes; /* counts changes of it, and never goes back: a thread that tells kernels looks whether
                         there are more */
};

/* What a device has in a page from byte `from` on must still be made zeros; from 0: there is no such page. */
struct unwiped {
    uint64_t page;
    size_t from;
};

struct replica {
    struct cache_file *file;
    struct cache_device *device;
    SLIST_ENTRY(replica) link; /* file->replicas */
    uint32_t entry; /* its name in the version vectors of this file: GAIA_REPLICA_DEVICE + n-th to come */
    bool scans;     /* its device does not report stores: they are searched for (cache/scan.h) */
    bool read_only; /* of scans: no client can store to it */
    struct gaia_frames *frames;
    /* Under the device's lock: copies on its order; whether none of them can go, as the device scans and
     * clients map the replica; and which client has been given the frames (0: none yet; EVICT_MANY). */
    uint64_t ordered;
    bool stays;
    uint64_t sharer;
    _Atomic unsigned late; /* threads that take pages from it, and that others have left to it */
    _Atomic int refused;   /* why the last one of those that others wait for let go of none; 0: it did */
    int state_fd;          /* a memfd with the shared state, and a read-only descriptor of it for clients */
    struct gaia_shared_state *state;

    /* Under the file's lock: */
    TAILQ_HEAD(, leaf_copy) stored;   /* copies with twins */
    TAILQ_HEAD(, leaf_copy) suspects; /* copies that may be out of date */
    uint64_t resident;                /* pages present */
    struct departures departures;     /* of one that scans: what has left */
    /* Of cache/fit.c, which says how they go together: */
    uint64_t fits;                 /* nothing is placed from this page on */
    bool unfit, cut;               /* the frames' length is to change; what is past `fits` is to go */
    bool overfull;                 /* what nobody has placed is to be freed */
    STAILQ_HEAD(, fit_drop) drops; /* what is to be freed for others */
    bool fitting, resizing, swept; /* a thread does these things; it changes the length; it frees the rest */
    bool restless;                 /* that thread was waited for in vain */
    atomic_bool misfit;            /* the driver could not do it */
    bool acquiring;                /* an acquire is under way: the next one waits for file->changed */
    LIST_HEAD(, handing) handings; /* releases that have kernels drop pages (cache/release.c) */
    uint64_t handed;               /* how many have begun */
    struct untold untold;
    struct unwiped unwiped; /* cache/tail.h */
    uint64_t twins;
    struct cache_counters count;      /* this file's share of the device's */
    struct scan_found *_Atomic found; /* memory for the next search (cache/scan.h), or NULL; no lock */
};

/* Devices are ordered by their numbers: of two racing stores, the higher number's wins. */
static inline uint32_t replica_number(const struct replica *replica)
{
    return GAIA_REPLICA_DEVICE + replica->device->number;
}

int replica_open(struct cache_file *file, struct cache_device *device, uint64_t pages, uint32_t entry,
                 bool read_only, struct replica **replica_out);
/* Nothing is resident and no client maps it. */
void replica_close(struct replica *replica);

/* Count in both the replica and its device. */
#define replica_count(replica, field, n)               \
    do {                                               \
        count_add(&(replica)->count.field, n);         \
        count_add(&(replica)->device->count.field, n); \
    } while (0)

/* All below: the file's lock is held. */

/* So many pages more are present, or fewer. */
static inline void replica_resident(struct replica *replica, int64_t pages)
{
    replica->resident += (uint64_t)pages;
    atomic_fetch_add(&replica->device->resident, (uint64_t)pages);
}

/* Its copy of a leaf, or NULL. */
struct leaf_copy *replica_find_copy(const struct replica *replica, uint64_t leaf_number);

/* The pages of a copy that a release has to look at: they have a twin and stores may have been made since it
 * was taken, or a release of them is under way; where stores are not reported, all pages. Call
 * replica_update() after any change of present, twin, sealed or releasing, with what this gave before the
 * change. */
static inline page_mask copy_stored(const struct leaf_copy *copy)
{
    if (copy->replica->scans)
        return copy->replica->read_only ? 0 : copy->present;
    return copy->twin & (~copy->sealed | copy->releasing);
}
void replica_update(struct leaf_copy *copy, page_mask stored_before);

/* The pages may be out of date now: the replica's next acquire looks at them. */
void replica_suspect(struct leaf_copy *copy);

/* Its copies on one of the two lists that have pages of a range, by leaves: how many, or -ENOMEM. Of a long
 * list and a few pages, or a short list and very many, the shorter is gone through: who releases a large file
 * piece by piece leaves all of it on the list until it is collected. */
enum replica_list { REPLICA_STORED, REPLICA_SUSPECTS };
ssize_t replica_listed(struct replica *replica, enum replica_list which, uint64_t first, uint64_t count,
                       struct leaf_copy ***copies_out);

/* A page left the replica, or may be out of date: an acquire must come to the daemon. */
void replica_changed(struct replica *replica);

/* The file has become shorter: clients that have bytes of it above the device's copy (gpu/demand_map.h) must
 * know where it ended, however long it is when they give those bytes back. */
void replica_cut(struct replica *replica, uint64_t size);
/* The same in the state that clients of another node have. */
void replica_state_cut(struct gaia_shared_state *state, uint64_t size);

/* There are so many more reasons for a release to come to the daemon though nothing may be stored; negative:
 * fewer.
 */
void replica_owes(struct replica *replica, int more);

/* From now on every release comes to the daemon, also of pages that are not stored to: it must be told that
 * the file has been given up. Lock held. */
void replica_give_up(struct replica *replica);
/* The backing file was just compared with what we know of it. */
void replica_checked(struct replica *replica);
/* What decides how often an acquire has to ask has changed. Lock held. */
void replica_set_timeout(struct replica *replica);

/* The pages are present from now on. */
static inline void replica_add_present(struct leaf_copy *copy, page_mask pages)
{
    page_mask before = copy_stored(copy);

    copy->present |= pages;
    replica_update(copy, before);
}

/* Take twins of pages that have none from the frames' bytes; the caller owns the pages (busy) and stores to
 * them are trapped: they are sealed until the caller says otherwise. 0, -ENOMEM, or what kept a page from
 * being fetched (some twins may have been taken). */
int replica_take_twins(struct leaf_copy *copy, page_mask pages);
/* The same of one page of a leaf, whose bytes are those in the frame. */
int replica_take_twin(struct leaf_copy *copy, unsigned page, const uint8_t *bytes);
void replica_drop_twins(struct leaf_copy *copy, page_mask pages);

/* The bytes of resident pages: see fetch in gpu/device.h. 0 or a negative errno. */
static inline int replica_fetch_run(struct replica *replica, uint64_t page, unsigned count,
                                    void *const *pages_out)
{
    return replica->frames->ops->fetch(replica->frames, page, count, pages_out);
}
static inline int replica_fetch(struct replica *replica, uint64_t page, void *bytes_out)
{
    return replica_fetch_run(replica, page, 1, &bytes_out);
}

/* The pages have what the home has: V follows. -ENOMEM: it may follow for some only. */
int replica_grant(struct leaf_copy *copy, page_mask pages);

/* Forget pages of a copy: present and everything about stores. Returns how many were present; the caller
 * uncharges them when their frames are free. */
unsigned replica_forget(struct leaf_copy *copy, page_mask pages);

/* Take a copy off lists that it need not be on any more, and free it when nothing is left in it. The copy may
 * be gone after. */
void replica_settle(struct leaf_copy *copy);

/* The same for every copy of a leaf, when a mark that kept them is gone. The leaf may be gone after. */
void leaf_settle(struct leaf *leaf);

/* End busy: returns the pages that touches wait for; replica_wake() must wake them, without the lock. The
 * copy may be gone after. */
page_mask replica_unbusy(struct leaf_copy *copy, page_mask pages);

/* No lock held. */
void replica_wake(struct replica *replica, uint64_t leaf, page_mask pages);

#endif
