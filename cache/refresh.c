/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of several leaves go together: each patch is waited for, and what is to be sent is small. */
#include "cache/refresh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/collect.h"
#include "cache/scan.h"

#define REFRESH_PAGES 256u /* 1 MiB: the lock is held until they are there */

/* One page of a batch. */
struct refresh_page {
    struct leaf_copy *copy;
    unsigned page;   /* of the leaf */
    uint8_t *device; /* where what the device has is, if that is to be the twin; else NULL */
};

/* A leaf's pages, also those that need no bytes: V follows for all of them. */
struct refresh_leaf {
    struct leaf_copy *copy;
    page_mask pages;
};

/* The lock is held from the first page that is added to the commit, so nothing of it changes meanwhile. */
struct refresh {
    struct replica *replica;
    size_t count, leaves; /* pages whose bytes are sent */
    size_t looked;        /* pages of the leaves, whose bytes may have been read */
    uint64_t number[REFRESH_PAGES];
    const void *old[REFRESH_PAGES];
    struct refresh_page page[REFRESH_PAGES];
    struct refresh_leaf leaf[REFRESH_PAGES];
    uint8_t fresh[REFRESH_PAGES * GAIA_PAGE_SIZE];
    uint8_t device[REFRESH_PAGES * GAIA_PAGE_SIZE]; /* seldom used: then it is no memory */
};

/* --- what pages become, and what they were --- */

/* The twin of a page is the home copy, if it has none of its own: then nothing is to be changed. But for one
 * that was changed behind the mount: there the device has what it was, and what GPU kernels have stored since
 * the release at the beginning of the acquire goes with it. */
static int add_page(struct refresh *r, struct leaf_copy *copy, unsigned page)
{
    struct refresh_page *p = &r->page[r->count];
    uint64_t number = (copy->leaf->number << LEAF_SHIFT) + page;
    int error = 0;

    *p = (struct refresh_page){.copy = copy, .page = page};
    if (copy->twin >> page & 1) {
        r->old[r->count] = frame_bytes(&r->replica->file->cache->twins, *leaf_copy_twin(copy, page));
    } else if (copy->blind >> page & 1) {
        r->old[r->count] = p->device = r->device + r->count * GAIA_PAGE_SIZE;
        error = replica_fetch(r->replica, number, p->device);
    } else {
        return 0;
    }
    r->number[r->count++] = number;
    return error;
}

/* The home's bytes of the pages from `first` of the batch on: side by side in one read. */
static int read_fresh(struct refresh *r, size_t first)
{
    int error = 0;

    for (size_t i = first, n; i < r->count && !error; i += n) {
        n = 1;
        while (i + n < r->count && r->number[i + n] == r->number[i] + n)
            n++;
        error = home_read_pages(r->replica->file, r->number[i], n, r->fresh + i * GAIA_PAGE_SIZE);
    }
    return error;
}

static int add_leaf(struct refresh *r, struct leaf_copy *copy, page_mask pages)
{
    size_t first = r->count;

    int error = collect_pages(r->replica->file, copy->leaf, pages, COLLECT_PENDING);
    scan_look_again(copy, pages);
    for (page_mask left = pages; left && !error; left &= left - 1)
        error = add_page(r, copy, (unsigned)__builtin_ctzll(left));
    if (!error)
        error = read_fresh(r, first);
    if (error) {
        r->count = first;
        return error;
    }
    r->leaf[r->leaves++] = (struct refresh_leaf){copy, pages};
    r->looked += (size_t)__builtin_popcountll(pages);
    return 0;
}

/* --- the device has them --- */

/* The home's bytes are the twins. */
static void commit(const struct refresh *r)
{
    struct cache_file *file = r->replica->file;

    for (size_t i = 0; i < r->count; i++) {
        const struct refresh_page *p = &r->page[i];
        page_mask bit = UINT64_C(1) << p->page;
        if (file->passed && p->copy->twin & bit)
            memcpy(frame_bytes(&file->cache->twins, *leaf_copy_twin(p->copy, p->page)),
                   r->fresh + i * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
        else
            replica_drop_twins(p->copy, bit);
        p->copy->blind &= ~bit;
    }
}

#define FETCH_TRIES 3

/* A patch has failed, after it may have changed some of the pages. What they have become is what they were
 * granted with from now on, byte by byte: else it would be taken for a GPU kernel's store, or not be patched
 * again when the home has what was there before. (A GPU that can't be asked either, so many times, has failed
 * for good.) */
static void keep_patched(struct refresh *r)
{
    struct frame_pool *pool = &r->replica->file->cache->twins;
    uint8_t now[GAIA_PAGE_SIZE];

    for (size_t i = 0; i < r->count; i++) {
        const struct refresh_page *p = &r->page[i];
        uint8_t *old = p->device ? p->device : frame_bytes(pool, *leaf_copy_twin(p->copy, p->page));
        const uint8_t *fresh = r->fresh + i * GAIA_PAGE_SIZE;
        unsigned tries = 0;
        int error;
        do
            error = replica_fetch(r->replica, r->number[i], now);
        while (error && ++tries < FETCH_TRIES);
        for (size_t at = 0; at < GAIA_PAGE_SIZE && !error; at++)
            if (now[at] == fresh[at])
                old[at] = fresh[at];
        if (p->device && !error && !scan_take_twin_of(p->copy, p->page, old))
            p->copy->blind &= ~(UINT64_C(1) << p->page);
    }
}

/* Send the batch, which is empty then. */
static int send(struct refresh *r)
{
    struct replica *replica = r->replica;
    int error = 0;

    if (r->count)
        error = replica->frames->ops->patch(replica->frames, r->number, r->count, r->old, r->fresh);
    if (error)
        keep_patched(r);
    else
        commit(r);
    for (size_t i = 0; i < r->leaves && !error; i++)
        error = replica_grant(r->leaf[i].copy, r->leaf[i].pages);
    if (!error) {
        replica_count(replica, drops, r->count);
        replica_count(replica, pages_in, r->count);
    }
    r->count = r->leaves = r->looked = 0;
    return error;
}

/* One leaf's pages into the batch, which is sent first if they have no room, or are to be waited for. */
static int refresh_leaf(struct refresh *r, const struct copy_pages *entry)
{
    struct cache_file *file = r->replica->file;
    int error = 0;

    while (!error) {
        struct leaf *leaf = index_find(&file->index, entry->leaf);
        struct leaf_copy *copy = leaf ? leaf_find_copy(leaf, r->replica) : NULL;
        page_mask here = copy ? copy->present & entry->pages : 0;
        if (!here)
            return 0;
        bool busy = here & (copy->busy | copy->releasing | leaf->invalidating);
        size_t n = (size_t)__builtin_popcountll(here);
        if (r->leaves && (busy || r->looked + n > REFRESH_PAGES)) {
            error = send(r);
            pthread_mutex_unlock(&file->lock); /* handlers of FUSE may wait for it */
            pthread_mutex_lock(&file->lock);
        } else if (busy) {
            pthread_cond_wait(&file->changed, &file->lock);
        } else {
            return add_leaf(r, copy, here);
        }
    }
    return error;
}

int refresh_pages(struct replica *replica, const struct copy_pages *list, size_t count)
{
    struct refresh *r = count ? malloc(sizeof *r) : NULL;
    int error = count && !r ? -ENOMEM : 0;

    if (!r)
        return error;
    r->replica = replica;
    r->count = r->leaves = r->looked = 0;
    for (size_t i = 0; i < count && !error; i++)
        error = refresh_leaf(r, &list[i]);
    if (r->leaves) { /* also of those before one that failed */
        int sent = send(r);
        error = error ? error : sent;
    }
    free(r);
    return error;
}
