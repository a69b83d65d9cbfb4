/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/scan.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cache/home_bytes.h"
#include "cache/passed.h"
#include "consistency/digest.h"
#include "consistency/merge.h"

#define FOUND_KEPT 131072u /* leaves: 1 MiB, for 32 GiB of a file */

static struct scan_found *get_found(struct replica *replica, uint64_t leaves)
{
    struct scan_found *found = atomic_exchange(&replica->found, NULL);

    if (found && found->room >= leaves)
        return found;
    free(found);
    found = malloc(sizeof *found + leaves * sizeof found->masks[0]);
    if (found)
        found->room = leaves;
    return found;
}

void scan_put_found(struct replica *replica, struct scan_found *found)
{
    bool keeps = found && found->room <= FOUND_KEPT;

    free(keeps ? atomic_exchange(&replica->found, found) : found);
}

int scan_find(struct replica *replica, uint64_t first, uint64_t count, struct scan_found **found_out)
{
    struct cache_file *file = replica->file;

    pthread_mutex_lock(&file->lock);
    uint64_t pages = file_pages(file->size), begin = first & ~(uint64_t)(LEAF_PAGES - 1);
    pthread_mutex_unlock(&file->lock);
    uint64_t end = count < pages && first < pages - count ? first + count : pages;
    uint64_t leaves = end > begin ? (end - begin + LEAF_PAGES - 1) / LEAF_PAGES : 0;
    struct scan_found *found = get_found(replica, leaves);

    if (!found)
        return -ENOMEM;
    found->leaves = leaves;
    int error =
        leaves ? replica->frames->ops->modified(replica->frames, begin, leaves * LEAF_PAGES, found->masks)
               : 0;
    if (error)
        scan_put_found(replica, found);
    else
        *found_out = found;
    return error;
}

#define READ_PAGES 8u /* of the home copy at once */

/* These bytes are a page's twin. There is room for its number. */
static int add_twin(struct leaf_copy *copy, unsigned page, const uint8_t *bytes)
{
    struct frame_pool *pool = &copy->replica->file->cache->twins;
    uint32_t *twin = leaf_copy_twin(copy, page);

    int error = frame_get(pool, twin);
    if (error)
        return error;
    memcpy(frame_bytes(pool, *twin), bytes, GAIA_PAGE_SIZE);
    copy->twin |= UINT64_C(1) << page;
    copy->replica->twins++;
    return 0;
}

/* A twin for each of the pages, which have none: what the leaf's bytes are, page 0 first; NULL: what the home
 * copy has. *taken_out: which have one after an error. */
static int take_scanned_twins(struct leaf_copy *copy, page_mask pages, const uint8_t *leaf_bytes,
                              page_mask *taken_out)
{
    struct cache_file *file = copy->replica->file;
    page_mask before = copy_stored(copy), had = copy->twin;
    uint8_t read[READ_PAGES * GAIA_PAGE_SIZE];
    unsigned most = READ_PAGES;

    *taken_out = 0;
    if (!pages)
        return 0;
    int error = leaf_copy_twins_reserve(&file->index, copy, pages);
    if (!error)
        error = leaf_versions_reserve(&file->index, copy->leaf, pages, file->entries);
    while (pages && !error) {
        page_mask rest = pages;
        unsigned length, first = page_mask_run(&rest, &length);
        length = length < most ? length : most;
        const uint8_t *bytes = leaf_bytes ? leaf_bytes + first * GAIA_PAGE_SIZE : read;
        if (!leaf_bytes)
            error = home_read_pages(file, (copy->leaf->number << LEAF_SHIFT) + first, length, read);
        if (error && length > 1) { /* which of them is it? */
            most = 1;
            error = 0;
            continue;
        }
        for (unsigned i = 0; i < length && !error; i++)
            error = add_twin(copy, first + i, bytes + i * GAIA_PAGE_SIZE);
        pages &= ~page_range_mask(0, first, length);
    }
    *taken_out = copy->twin & ~had;
    replica_update(copy, before);
    return error;
}

int scan_take_twins(struct leaf_copy *copy, page_mask pages, page_mask *taken_out)
{
    return take_scanned_twins(copy, pages & copy->present & ~copy->twin, NULL, taken_out);
}

int scan_take_twin_of(struct leaf_copy *copy, unsigned page, const uint8_t *bytes)
{
    /* Where the leaf's page 0 would be, of which only this page is there. */
    const uint8_t *leaf_bytes = (const uint8_t *)((uintptr_t)bytes - (size_t)page * GAIA_PAGE_SIZE);
    page_mask taken;

    return take_scanned_twins(copy, UINT64_C(1) << page, leaf_bytes, &taken);
}

/* A CPU's write does not fail for what can't be looked at. */
void scan_look_again(struct leaf_copy *copy, page_mask pages)
{
    struct replica *replica = copy->replica;
    uint64_t base = copy->leaf->number << LEAF_SHIFT;
    struct gaia_digest granted[LEAF_PAGES];
    uint8_t bytes[GAIA_PAGE_SIZE];

    pages &= copy->blind;
    int error = pages ? replica->frames->ops->recall(replica->frames, base, LEAF_PAGES, granted) : 0;
    for (; pages && !error; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        error = home_read_pages(replica->file, base + page, 1, bytes);
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
        scan_look_again(copy, pages);
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

void scan_keep_what_was_granted(struct leaf_copy *copy, unsigned page)
{
    struct gaia_frames *frames = copy->replica->frames;
    uint64_t number = (copy->leaf->number << LEAF_SHIFT) + page;
    page_mask bit = UINT64_C(1) << page;
    struct gaia_digest granted;
    uint8_t bytes[GAIA_PAGE_SIZE];

    if (copy->present & ~copy->twin & bit && !frames->ops->recall(frames, number, 1, &granted) &&
        !replica_fetch(copy->replica, number, bytes) &&
        gaia_digest_equal(granted, gaia_digest_of(bytes, GAIA_PAGE_SIZE)) &&
        !scan_take_twin_of(copy, page, bytes))
        copy->blind &= ~bit;
}

void scan_keep_twin_behind(struct leaf_copy *copy, unsigned page)
{
    scan_keep_what_was_granted(copy, page);
    scan_keep_twin_of_tail(copy, UINT64_C(1) << page);
}

void scan_keep_twin_of_end(struct leaf_copy *copy, unsigned page)
{
    page_mask bit = UINT64_C(1) << page;

    if (!(copy->present & ~copy->twin & bit))
        return;
    scan_look_again(copy, bit);
    scan_keep_twin_of_tail(copy, bit);
    scan_keep_what_was_granted(copy, page);
}

int scan_take_placed(struct leaf_copy *copy, page_mask pages, const uint8_t *leaf_bytes)
{
    page_mask taken;

    if (!copy->replica->scans || copy->replica->read_only)
        return 0;
    pages &= passed_is_unheard(copy->replica->file) ? ~UINT64_C(0) : copy->raced;
    int error = take_scanned_twins(copy, pages, leaf_bytes, &taken);
    if (error)
        replica_drop_twins(copy, taken);
    return error;
}

bool scan_home_is_twin(const struct leaf_copy *copy, const uint8_t *home, const uint8_t *twin)
{
    return copy->replica->scans && !passed_is_unheard(copy->replica->file) &&
           !gaia_differs(home, twin, GAIA_PAGE_SIZE);
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
