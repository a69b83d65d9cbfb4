/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/collect.h"
#include "consistency/digest.h"
#include "consistency/merge.h"

int scan_find(struct replica *replica, uint64_t first, uint64_t count, page_mask **masks_out)
{
    struct cache_file *file = replica->file;

    pthread_mutex_lock(&file->lock);
    uint64_t pages = file_pages(file->size), begin = first & ~(uint64_t)(LEAF_PAGES - 1);
    pthread_mutex_unlock(&file->lock);
    uint64_t end = count < pages && first < pages - count ? first + count : pages;
    uint64_t leaves = end > begin ? (end - begin + LEAF_PAGES - 1) / LEAF_PAGES : 0;
    /* One for each leaf of the range, also where the file ends before it. */
    page_mask *masks = calloc((first + count - begin + LEAF_PAGES - 1) / LEAF_PAGES, sizeof *masks);

    if (!masks)
        return -ENOMEM;
    int error =
        leaves ? replica->frames->ops->modified(replica->frames, begin, leaves * LEAF_PAGES, masks) : 0;
    if (error)
        free(masks);
    else
        *masks_out = masks;
    return error;
}

bool scan_is_placed(struct replica *replica, uint64_t first, uint64_t count)
{
    struct cache_file *file = replica->file;
    bool placed = true;

    pthread_mutex_lock(&file->lock);
    for (uint64_t page = first; page < first + count && placed && page < file_pages(file->size);) {
        uint64_t number = page >> LEAF_SHIFT, end = (number + 1) << LEAF_SHIFT;
        struct leaf *leaf = index_find(&file->index, number);
        struct leaf_copy *copy = leaf ? leaf_find_copy(leaf, replica) : NULL;
        uint64_t pages = file_pages(file->size), stop = first + count < pages ? first + count : pages;
        page_mask wanted = page_range_mask(number, page, stop - page);
        page_mask missing = copy ? wanted & ~copy->present : wanted;
        if (copy && missing & copy->busy) {
            pthread_cond_wait(&file->changed, &file->lock);
            continue;
        }
        placed = !missing;
        page = end;
    }
    pthread_mutex_unlock(&file->lock);
    return placed;
}

/* The home's bytes of a page, zeros past the end of the file. */
static int read_page(struct cache_file *file, uint64_t page, uint8_t *bytes)
{
    size_t n = file_page_bytes(file->size, page);

    memset(bytes + n, 0, GAIA_PAGE_SIZE - n);
    return n ? home_read(file, bytes, n, (off_t)(page * GAIA_PAGE_SIZE)) : 0;
}

/* A twin for each of the pages, which have none: what the leaf's bytes are, page 0 first; NULL: what the home
 * copy has. *taken_out: which have one after an error. */
static int take_scanned_twins(struct leaf_copy *copy, page_mask pages, const uint8_t *leaf_bytes,
                              page_mask *taken_out)
{
    struct cache_file *file = copy->replica->file;
    struct frame_pool *pool = &file->cache->twins;
    uint64_t base = copy->leaf->number << LEAF_SHIFT;
    page_mask before = copy_stored(copy);

    *taken_out = 0;
    if (!pages)
        return 0;
    int error = leaf_copy_twins_reserve(&file->index, copy, pages);
    if (!error)
        error = leaf_versions_reserve(&file->index, copy->leaf, pages, file->entries);
    for (; pages && !error; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        uint32_t *twin = leaf_copy_twin(copy, page);
        error = frame_get(pool, twin);
        if (error)
            break;
        if (leaf_bytes)
            memcpy(frame_bytes(pool, *twin), leaf_bytes + page * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
        else
            error = read_page(file, base + page, frame_bytes(pool, *twin));
        if (error) {
            frame_put(pool, *twin);
            break;
        }
        copy->twin |= UINT64_C(1) << page;
        copy->replica->twins++;
        *taken_out |= UINT64_C(1) << page;
    }
    replica_update(copy, before);
    return error;
}

int scan_take_twins(struct leaf_copy *copy, page_mask pages, page_mask *taken_out)
{
    return take_scanned_twins(copy, pages & copy->present & ~copy->twin, NULL, taken_out);
}

/* A file's times say that it was changed behind the mount, but so they do after a chmod(), which changes no
 * byte. Pages whose home copy is what was granted all the same, by the digests, have it for a twin again.
 * What can't be looked at stays as it is: a CPU's write does not fail for that. */
static void look_again(struct leaf_copy *copy, page_mask pages)
{
    struct replica *replica = copy->replica;
    uint64_t base = copy->leaf->number << LEAF_SHIFT;
    struct gaia_digest granted[LEAF_PAGES];
    uint8_t bytes[GAIA_PAGE_SIZE];

    pages &= copy->blind;
    int error = pages ? replica->frames->ops->recall(replica->frames, base, LEAF_PAGES, granted) : 0;
    for (; pages && !error; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        error = read_page(replica->file, base + page, bytes);
        if (!error && gaia_digest_equal(granted[page], gaia_digest_of(bytes, GAIA_PAGE_SIZE)))
            copy->blind &= ~(UINT64_C(1) << page);
    }
}

int scan_keep_twins(struct leaf *leaf, page_mask pages)
{
    struct leaf_copy *copy;
    int error = 0;

    SLIST_FOREACH (copy, &leaf->copies, link) {
        page_mask taken;
        if (!copy->replica->scans || copy->replica->read_only || error)
            continue;
        copy->raced |= copy->busy & ~copy->present & pages;
        look_again(copy, pages);
        error = scan_take_twins(copy, pages & ~copy->blind, &taken);
    }
    return error;
}

/* Without a twin, for want of memory, the page counts as stored to as a whole at the next release. */
void scan_keep_twin_of_tail(struct leaf_copy *copy, page_mask page)
{
    page_mask taken;

    copy->raced |= copy->busy & ~copy->present & page;
    scan_take_twins(copy, page & ~copy->blind, &taken);
}

int scan_take_placed(struct leaf_copy *copy, page_mask pages, const uint8_t *leaf_bytes)
{
    page_mask taken;

    if (!copy->replica->scans || copy->replica->read_only)
        return 0;
    pages &= copy->replica->file->passed ? ~UINT64_C(0) : copy->raced;
    int error = take_scanned_twins(copy, pages, leaf_bytes, &taken);
    if (error)
        replica_drop_twins(copy, taken);
    return error;
}

bool scan_home_is_twin(const struct leaf_copy *copy, const uint8_t *home, const uint8_t *twin)
{
    return copy->replica->scans && !copy->replica->file->passed && !gaia_differs(home, twin, GAIA_PAGE_SIZE);
}

void scan_grant_again(struct leaf_copy *copy, page_mask pages)
{
    struct replica *replica = copy->replica;
    struct frame_pool *pool = &replica->file->cache->twins;
    struct gaia_digest digests[LEAF_PAGES];

    for (pages &= copy->twin; pages;) {
        unsigned length, first = page_mask_run(&pages, &length);
        for (unsigned i = 0; i < length; i++)
            digests[i] = gaia_digest_of(frame_bytes(pool, *leaf_copy_twin(copy, first + i)), GAIA_PAGE_SIZE);
        replica->frames->ops->granted(replica->frames, (copy->leaf->number << LEAF_SHIFT) + first, length,
                                      digests);
    }
}

/* --- refresh --- */

/* What a leaf's stale pages become, and what they were. */
struct refresh {
    size_t count;
    uint64_t pages[LEAF_PAGES];
    uint8_t old[LEAF_PAGES * GAIA_PAGE_SIZE], fresh[LEAF_PAGES * GAIA_PAGE_SIZE];
};

/* The twin of a page is the home copy, if it has none of its own: then nothing is to be changed. But for one
 * that was changed behind the mount: there the device has what it was, and what GPU kernels have stored since
 * the release at the beginning of the acquire goes with it. */
static int add_page(struct refresh *r, struct leaf_copy *copy, unsigned page)
{
    struct replica *replica = copy->replica;
    struct cache_file *file = replica->file;
    uint64_t number = (copy->leaf->number << LEAF_SHIFT) + page;
    uint8_t *old = r->old + r->count * GAIA_PAGE_SIZE, *fresh = r->fresh + r->count * GAIA_PAGE_SIZE;
    int error = 0;

    if (copy->twin >> page & 1)
        memcpy(old, frame_bytes(&file->cache->twins, *leaf_copy_twin(copy, page)), GAIA_PAGE_SIZE);
    else if (copy->blind >> page & 1)
        error = replica_fetch(replica, number, old);
    else
        return 0;
    if (!error)
        error = read_page(file, number, fresh);
    r->pages[r->count++] = number;
    return error;
}

/* The device has what the home has: the home's bytes are the twins, */
static void refresh_commit(const struct refresh *r, struct leaf_copy *copy)
{
    struct cache_file *file = copy->replica->file;

    for (size_t i = 0; i < r->count; i++) {
        unsigned page = (unsigned)(r->pages[i] & (LEAF_PAGES - 1));
        page_mask bit = UINT64_C(1) << page;
        if (file->passed && copy->twin & bit)
            memcpy(frame_bytes(&file->cache->twins, *leaf_copy_twin(copy, page)),
                   r->fresh + i * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
        else
            replica_drop_twins(copy, bit);
        copy->blind &= ~bit;
    }
}

/* and V follows. */
static int grant(struct leaf_copy *copy, page_mask pages)
{
    struct cache_file *file = copy->replica->file;
    int error = 0;

    for (; pages && !error; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        if (!leaf_has_versions(copy->leaf, page))
            continue;
        error = leaf_versions_reserve(&file->index, copy->leaf, UINT64_C(1) << page, file->entries);
        if (error)
            break;
        struct gaia_page_versions versions = leaf_page_versions(copy->leaf, page);
        gaia_rule_grant(&versions, leaf_copy_page_vector(copy, page));
    }
    return error;
}

/* Where a leaf's page 0 would be, of which only this page is there. */
static const uint8_t *page_0_of(const uint8_t *bytes, unsigned page)
{
    return (const uint8_t *)((uintptr_t)bytes - (size_t)page * GAIA_PAGE_SIZE);
}

#define FETCH_TRIES 3

/* A patch has failed, after it may have changed some of the pages. What they have become is what they were
 * granted with from now on, byte by byte: else it would be taken for a GPU kernel's store, or not be patched
 * again when the home has what was there before. (A GPU that can't be asked either, so many times, has failed
 * for good.) */
static void keep_patched(struct refresh *r, struct leaf_copy *copy)
{
    struct frame_pool *pool = &copy->replica->file->cache->twins;
    uint8_t device[GAIA_PAGE_SIZE];

    for (size_t i = 0; i < r->count; i++) {
        unsigned page = (unsigned)(r->pages[i] & (LEAF_PAGES - 1)), tries = 0;
        page_mask bit = UINT64_C(1) << page, taken;
        uint8_t *old = r->old + i * GAIA_PAGE_SIZE;
        const uint8_t *fresh = r->fresh + i * GAIA_PAGE_SIZE;
        int error;
        do
            error = replica_fetch(copy->replica, r->pages[i], device);
        while (error && ++tries < FETCH_TRIES);
        for (size_t at = 0; at < GAIA_PAGE_SIZE && !error; at++)
            if (device[at] == fresh[at])
                old[at] = fresh[at];
        if (copy->twin & bit)
            memcpy(frame_bytes(pool, *leaf_copy_twin(copy, page)), old, GAIA_PAGE_SIZE);
        else if (!error && !take_scanned_twins(copy, bit, page_0_of(old, page), &taken))
            copy->blind &= ~bit;
    }
}

static int refresh_copy(struct leaf_copy *copy, page_mask pages)
{
    struct replica *replica = copy->replica;
    struct refresh *r = malloc(sizeof *r);

    if (!r)
        return -ENOMEM;
    r->count = 0;
    int error = collect_pages(replica->file, copy->leaf, pages, COLLECT_PENDING);
    look_again(copy, pages);
    for (page_mask left = pages; left && !error; left &= left - 1)
        error = add_page(r, copy, (unsigned)__builtin_ctzll(left));
    if (!error && r->count) {
        error = replica->frames->ops->patch(replica->frames, r->pages, r->count, r->old, r->fresh);
        if (error)
            keep_patched(r, copy);
    }
    if (!error) {
        refresh_commit(r, copy);
        error = grant(copy, pages);
    }
    if (!error) {
        replica_count(replica, drops, r->count);
        replica_count(replica, pages_in, r->count);
    }
    free(r);
    return error;
}

int scan_refresh(struct replica *replica, uint64_t leaf_number, page_mask pages)
{
    struct cache_file *file = replica->file;

    for (;;) {
        struct leaf *leaf = index_find(&file->index, leaf_number);
        struct leaf_copy *copy = leaf ? leaf_find_copy(leaf, replica) : NULL;
        page_mask here = copy ? copy->present & pages : 0;
        if (!here)
            return 0;
        if (!(here & (copy->busy | copy->releasing | leaf->invalidating)))
            return refresh_copy(copy, here);
        pthread_cond_wait(&file->changed, &file->lock);
    }
}
