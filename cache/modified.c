/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/modified.h"

#include <errno.h>
#include <stdlib.h>

#include "cache/scan.h"
#include "consistency/merge.h"

/* Where the bytes of a page are that is owned. */
static uint8_t *kept_bytes(const struct release_work *w, unsigned page)
{
    return w->bytes + (size_t)__builtin_popcountll(w->owned & ((UINT64_C(1) << page) - 1)) * GAIA_PAGE_SIZE;
}

static bool differs(struct leaf_copy *copy, unsigned page, const uint8_t *bytes)
{
    struct cache_file *file = copy->replica->file;

    return gaia_differs(frame_bytes(&file->cache->twins, *leaf_copy_twin(copy, page)), bytes,
                        file_page_bytes(file->size, (copy->leaf->number << LEAF_SHIFT) + page));
}

page_mask modified_pages(struct release_work *w, page_mask pages, int *error)
{
    struct leaf_copy *copy = w->copy;
    uint8_t bytes[GAIA_UNIT_PAGES][GAIA_PAGE_SIZE];
    void *places[GAIA_UNIT_PAGES];
    page_mask modified = 0;
    bool singly = false;

    while (pages) {
        page_mask rest = pages;
        unsigned length, first = page_mask_run(&rest, &length), most = singly ? 1 : GAIA_UNIT_PAGES;
        length = length < most ? length : most;
        page_mask run = page_range_mask(0, first, length);
        for (unsigned i = 0; i < length; i++)
            places[i] = w->bytes ? kept_bytes(w, first + i) : bytes[i];
        int one = replica_fetch_run(copy->replica, (w->leaf << LEAF_SHIFT) + first, length, places);
        if (one && length > 1) { /* which of them is it? */
            singly = true;
            continue;
        }
        if (one) {
            copy->sealed &= ~run;
            *error = *error ? *error : one;
        }
        for (unsigned i = 0; i < length && !one; i++)
            if (differs(copy, first + i, places[i]))
                modified |= UINT64_C(1) << (first + i);
        pages &= ~run;
    }
    return modified;
}

/* The same, of pages whose bytes were gathered. Lock held. */
static page_mask compare_gathered(const struct release_work *w, page_mask pages)
{
    page_mask modified = 0;

    for (; pages; pages &= pages - 1) {
        unsigned page = (unsigned)__builtin_ctzll(pages);
        if (differs(w->copy, page, kept_bytes(w, page)))
            modified |= UINT64_C(1) << page;
    }
    return modified;
}

page_mask modified_scanned(const struct release_work *w, page_mask *borrowed, int *error)
{
    *error = scan_take_twins(w->copy, w->owned, borrowed);
    page_mask modified = compare_gathered(w, w->copy->twin & w->owned);
    page_mask clean = w->copy->twin & w->owned & ~modified & ~w->copy->pending;

    scan_grant_again(w->copy, clean);
    w->copy->blind &= ~w->copy->twin; /* what a GPU kernel made of such a page is all that there is */
    *borrowed &= ~modified;
    return modified;
}

/* Before the look: what changes then is noticed. */
static void note_file(struct cache_file *file, struct release_work *work, size_t count,
                      struct gathered *gathered)
{
    pthread_mutex_lock(&file->lock);
    gathered->size = file->size;
    gathered->truncations = file->truncations;
    gathered->halves = file->halves;
    for (size_t i = 0; i < count; i++)
        work[i].fresh = work[i].owned & ~work[i].copy->pending;
    pthread_mutex_unlock(&file->lock);
}

bool modified_is_current(const struct cache_file *file, const struct gathered *gathered)
{
    return file->size == gathered->size && file->truncations == gathered->truncations &&
           file->halves == gathered->halves;
}

static int make_room(struct gathered *gathered, size_t pages)
{
    if (gathered->room >= pages)
        return 0;
    free(gathered->bytes);
    gathered->bytes = malloc(pages * GAIA_PAGE_SIZE);
    gathered->room = gathered->bytes ? pages : 0;
    return gathered->bytes ? 0 : -ENOMEM;
}

static int gather_scanned(struct replica *replica, const struct release_work *work, size_t count, size_t n,
                          uint8_t *bytes)
{
    uint64_t *pages = calloc(n, sizeof *pages);
    size_t at = 0;

    if (!pages)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        for (page_mask left = work[i].owned; left; left &= left - 1)
            pages[at++] = (work[i].leaf << LEAF_SHIFT) + (unsigned)__builtin_ctzll(left);
    int error = replica->frames->ops->gather(replica->frames, pages, n, bytes);
    free(pages);
    return error;
}

int modified_gather(struct replica *replica, struct release_work *work, size_t count,
                    struct gathered *gathered)
{
    size_t n = 0, at = 0;

    if (!replica->scans && !replica->device->node)
        return 0;
    note_file(replica->file, work, count, gathered);
    for (size_t i = 0; i < count; i++)
        n += (size_t)__builtin_popcountll(work[i].owned);
    if (!n)
        return 0;
    int error = make_room(gathered, n);
    if (error) /* who does not scan compares without it */
        return replica->scans ? error : 0;
    for (size_t i = 0; i < count; i++) {
        work[i].bytes = gathered->bytes + at * GAIA_PAGE_SIZE;
        at += (size_t)__builtin_popcountll(work[i].owned);
    }
    return replica->scans ? gather_scanned(replica, work, count, n, gathered->bytes) : 0;
}
