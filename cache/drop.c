/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/drop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/collect.h"
#include "cache/home_bytes.h"
#include "cache/release.h"
#include "cache/renew.h"
#include "cache/runs.h"
#include "cache/trace.h"
#include "consistency/merge.h"

/* Mark the pages of one entry busy, as far as they are there. Clients still see a page that an eviction has
 * forgotten and not freed yet, so a thread that is to drop it waits for the eviction, too (found by a review:
 * an acquire returned, and the old frame was read). A page that was seen to be gone stays out: if it comes
 * again it is new. Lock held (and let go while waiting). */
static void take_busy(struct replica *replica, struct copy_pages *entry, enum drop_why why)
{
    struct cache_file *file = replica->file;

    for (;;) {
        struct leaf_copy *copy = entry->copy = replica_find_copy(replica, entry->leaf);
        page_mask pages = copy ? entry->pages & copy->present : 0;
        page_mask others = copy ? copy->busy | copy->releasing | copy->leaf->invalidating : 0, going = 0;
        if (why == DROP_EVICT) {
            pages &= ~others;
        } else {
            going = copy ? entry->pages & copy->busy & ~copy->present : 0;
            entry->pages = pages | going;
        }
        if (!(pages & others) && !going) {
            entry->pages = pages;
            if (pages)
                copy->busy |= pages;
            return;
        }
        pthread_cond_wait(&file->changed, &file->lock);
    }
}

/* The digests of pages of a copy on another node: to bring the bytes in order to see that they need not be
 * brought would be no gain. Which pages' are there. Lock held. */
static page_mask ask_digests(struct leaf_copy *copy, page_mask pages, struct gaia_digest *digests)
{
    struct gaia_frames *frames = copy->replica->frames;
    page_mask asked = 0;

    while (pages && frames->ops->digests) {
        unsigned count, first = page_mask_run(&pages, &count);
        if (!frames->ops->digests(frames, (copy->leaf->number << LEAF_SHIFT) + first, count, digests + first))
            asked |= page_range_mask(0, first, count);
    }
    return asked;
}

/* From so many pages on, one behind the other, that were looked at and had changed, one page of each leaf is
 * looked at, until one has not: a look costs as much as the drop. */
#define LOOKS_IN_VAIN 64u

struct looks {
    unsigned in_vain; /* those pages */
    unsigned turn;
};

/* One of the pages, each time another one: what is at the head of every leaf may differ from the rest. */
static page_mask choose_one(page_mask pages, struct looks *looks)
{
    for (unsigned skip = looks->turn++ % (unsigned)__builtin_popcountll(pages); skip; skip--)
        pages &= pages - 1;
    return pages & -pages;
}

/* Of pages of a stale copy those of which the home has the same bytes, as far as it is worth a look. Lock
 * held. */
static page_mask look_for_same(struct leaf_copy *copy, page_mask pages, struct looks *looks)
{
    struct cache_file *file = copy->replica->file;
    page_mask first = pages && looks->in_vain >= LOOKS_IN_VAIN ? choose_one(pages, looks) : pages;
    page_mask same = home_equals_pages(file, copy, first);

    if (same)
        same |= home_equals_pages(file, copy, pages & ~first);
    looks->in_vain = same ? 0 : looks->in_vain + (unsigned)__builtin_popcountll(first);
    return same;
}

/* The pages of a stale copy that need not move: the home has the same bytes. They are current from now on.
 * Lock held. */
static page_mask keep_unchanged(struct leaf_copy *copy, page_mask pages, struct looks *looks)
{
    struct cache_file *file = copy->replica->file;
    struct gaia_digest theirs[LEAF_PAGES];
    page_mask asked = ask_digests(copy, pages, theirs), placed = 0, same = 0;

    for (page_mask left = pages; left; left &= left - 1) {
        unsigned page = (unsigned)__builtin_ctzll(left);
        if (!leaf_has_versions(copy->leaf, page)) /* it was placed anew since it was found stale: current */
            placed |= UINT64_C(1) << page;
        else if (asked & page_bit(page) && home_equals_copy(file, copy, page, &theirs[page]))
            same |= UINT64_C(1) << page;
    }
    same |= look_for_same(copy, pages & ~placed & ~asked, looks);
    for (page_mask left = same; left; left &= left - 1) {
        unsigned page = (unsigned)__builtin_ctzll(left);
        struct gaia_page_versions versions = leaf_page_versions(copy->leaf, page);
        gaia_rule_grant(&versions, leaf_copy_page_vector(copy, page));
    }
    page_mask kept = placed | same;
    replica_count(copy->replica, unchanged, (uint64_t)__builtin_popcountll(kept));
    return kept;
}

/* The pages are busy, sealed and released. Collect them and forget them; entry->pages becomes what is to be
 * freed. Lock held. */
static int collect_and_forget(struct copy_pages *entry, enum drop_why why, struct looks *looks)
{
    struct leaf_copy *copy = entry->copy;
    page_mask pages = entry->pages & copy->present; /* a truncation may have taken some */
    int error = collect_pages(copy->replica->file, copy->leaf, pages, COLLECT_PENDING);

    entry->pages = 0;
    if (error)
        return error;
    /* A page that is stored to but neither pending nor clean can't be: it was sealed before it was released.
     */
    assert(!(copy->pending & pages));
    /* Mapped since it was chosen: that acquire may have counted on its pages already. */
    if (why == DROP_EVICT && copy->replica->scans && copy->replica->frames->clients)
        return 0;
    replica_drop_twins(copy, pages);
    if (why == DROP_STALE && !copy->replica->scans) /* there, asking costs more than moving */
        pages &= ~keep_unchanged(copy, pages, looks);
    if (why == DROP_STALE && (error = renew_grant(copy, pages))) {
        file_cpu_modified(copy->leaf, pages); /* V of some may have what is not there */
        return error;
    }
    replica_forget(copy, pages);
    entry->pages = pages;
    if (why == DROP_EVICT || why == DROP_ADVISED) {
        replica_changed(copy->replica);
        replica_count(copy->replica, evictions, (uint64_t)__builtin_popcountll(pages));
    } else {
        replica_count(copy->replica, drops, (uint64_t)__builtin_popcountll(pages));
    }
    return 0;
}

/* What could not be freed: clients go on seeing the frames, so they are the replica's, as old as they are. */
static void remember(struct replica *replica, const struct copy_pages *work, size_t count,
                     struct gaia_run run)
{
    pthread_mutex_lock(&replica->file->lock);
    for (size_t i = 0; i < count; i++) {
        page_mask pages =
            work[i].pages ? work[i].pages & page_range_mask(work[i].leaf, run.page, run.count) : 0;
        if (!pages)
            continue;
        replica_add_present(work[i].copy, pages);
        replica_resident(replica, __builtin_popcountll(pages));
        /* V may say that they have what the home has: they were to be renewed. */
        file_cpu_modified(work[i].copy->leaf, pages);
    }
    pthread_mutex_unlock(&replica->file->lock);
}

/* Free the frames of what was forgotten. No lock held; the pages are busy. */
static int free_frames(struct replica *replica, const struct copy_pages *work, size_t count,
                       enum drop_why why, uint64_t *dropped_out)
{
    struct gaia_run open = {0}, run;
    int error = 0;

    for (size_t i = 0; i <= count; i++) {
        page_mask pages = i < count ? work[i].pages : 0;
        do {
            bool full = runs_take(&open, pages ? work[i].leaf : 0, &pages, i == count, &run);
            int one = full ? replica->frames->ops->drop(replica->frames, run.page, run.count) : 0;
            if (full)
                trace_dropped(replica, run.page, run.count, why, one);
            if (one)
                remember(replica, work, count, run);
            else if (full)
                *dropped_out += run.count;
            error = error ? error : one;
        } while (pages);
    }
    return error;
}

static void let_go(struct replica *replica, struct copy_pages *busy, size_t count)
{
    struct cache_file *file = replica->file;

    pthread_mutex_lock(&file->lock);
    for (size_t i = 0; i < count; i++)
        busy[i].pages = replica_unbusy(busy[i].copy, busy[i].pages);
    pthread_mutex_unlock(&file->lock);
    for (size_t i = 0; i < count; i++)
        replica_wake(replica, busy[i].leaf, busy[i].pages);
}

/* Of the leaves of `busy` the pages that GPU kernels have stored to, one word for each; one question for
 * leaves that lie side by side: the GPU, or its node, is waited for in each. */
static int ask_modified(struct replica *replica, const struct copy_pages *busy, size_t count,
                        page_mask *modified_out)
{
    int error = 0;

    for (size_t i = 0, n; i < count && !error; i += n) {
        n = 1;
        while (i + n < count && busy[i + n].leaf == busy[i].leaf + n)
            n++;
        error = replica->frames->ops->modified(replica->frames, busy[i].leaf << LEAF_SHIFT, n * LEAF_PAGES,
                                               modified_out + i);
    }
    return error;
}

/* Which pages of `busy` have to be released: those with twins, or, where nothing tells of stores, those that
 * were stored to. Into `release`; how many entries, or a negative errno. No lock held. */
static ssize_t choose_release(struct replica *replica, const struct copy_pages *busy, size_t count,
                              struct copy_pages *release)
{
    page_mask *modified = replica->scans ? calloc(count, sizeof *modified) : NULL;
    ssize_t n = 0;

    if (replica->scans && !modified)
        return -ENOMEM;
    int error = modified ? ask_modified(replica, busy, count, modified) : 0;
    for (size_t i = 0; i < count && !error; i++) {
        page_mask pages = busy[i].pages & (modified ? modified[i] : ~UINT64_C(0));
        if (pages)
            release[n++] = (struct copy_pages){.copy = busy[i].copy, .leaf = busy[i].leaf, .pages = pages};
    }
    free(modified);
    return error ? error : n;
}

int release_chosen(struct replica *replica, const struct copy_pages *busy, size_t count, bool seals)
{
    struct copy_pages *release = calloc(count, sizeof *release);

    if (!release)
        return -ENOMEM;
    ssize_t n = choose_release(replica, busy, count, release);
    int error = n > 0 ? release_busy(replica, release, (size_t)n, seals) : (int)n;
    free(release);
    return error;
}

int drop_pages(struct replica *replica, const struct copy_pages *pages, size_t count, enum drop_why why,
               uint64_t *dropped_out)
{
    struct cache_file *file = replica->file;
    struct copy_pages *busy = calloc(2 * count, sizeof *busy);
    struct copy_pages *work = busy + count;
    struct looks looks = {0};
    size_t n = 0;

    *dropped_out = 0;
    if (!busy)
        return -ENOMEM;
    pthread_mutex_lock(&file->lock);
    for (size_t i = 0; i < count; i++) {
        busy[n] = pages[i];
        take_busy(replica, &busy[n], why);
        n += busy[n].pages != 0;
    }
    bool stored = false;
    for (size_t i = 0; i < n; i++) {
        work[i] = busy[i];
        stored |= ((busy[i].copy->twin | copy_stored(busy[i].copy)) & busy[i].pages) != 0;
    }
    pthread_mutex_unlock(&file->lock);
    int error = stored ? release_chosen(replica, busy, n, true) : 0;
    if (!error) {
        pthread_mutex_lock(&file->lock);
        struct renew_granted granted = renew_begin(file);
        uint64_t since = clock_now_ns();
        for (size_t i = 0; i < n; i++) {
            int one = collect_and_forget(&work[i], why, &looks);
            error = error ? error : one;
            file_let_others_in(file, &since);
        }
        renew_granted_all(&granted, file);
        pthread_mutex_unlock(&file->lock);
        for (size_t i = 0; i < n && why == DROP_STALE; i++)
            work[i].pages &= ~renew_pages(replica, &work[i], &granted);
        int one = free_frames(replica, work, n, why, dropped_out);
        error = error ? error : one;
    }
    let_go(replica, busy, n);
    if (*dropped_out)
        cache_device_uncharge(replica->device, *dropped_out);
    free(busy);
    return error;
}

struct copies {
    const struct replica *replica;
    uint64_t first, count;
    struct copy_pages *list;
    size_t n, room;
};

/* Lock held. */
static void add_copy(struct leaf *leaf, void *context)
{
    struct copies *copies = context;
    page_mask pages = page_range_mask(leaf->number, copies->first, copies->count);

    if (pages && leaf_find_copy(leaf, copies->replica) && copies->n < copies->room)
        copies->list[copies->n++] = (struct copy_pages){.leaf = leaf->number, .pages = pages};
}

int copy_pages_order(const void *a, const void *b)
{
    uint64_t x = ((const struct copy_pages *)a)->leaf, y = ((const struct copy_pages *)b)->leaf;

    return x < y ? -1 : x > y;
}

/* Of a few pages of a large file, or of all pages of a small one: by whichever are fewer. Lock held. */
static void add_copies(struct copies *copies, uint64_t leaves)
{
    const struct index *index = &copies->replica->file->index;

    if (leaves >= index->leaves.count) {
        index_each(index, add_copy, copies);
        return;
    }
    for (uint64_t i = 0; i < leaves; i++) {
        struct leaf *leaf = index_find(index, (copies->first >> LEAF_SHIFT) + i);
        if (leaf)
            add_copy(leaf, copies);
    }
}

int drop_range(struct replica *replica, uint64_t first, uint64_t count)
{
    struct cache_file *file = replica->file;
    struct copies copies = {.replica = replica, .first = first, .count = count};
    uint64_t leaves = page_range_leaves(first, count);
    int error = 0;

    pthread_mutex_lock(&file->lock);
    copies.room = leaves < file->index.leaves.count ? leaves : file->index.leaves.count;
    copies.list = calloc(copies.room + 1, sizeof *copies.list);
    if (copies.list)
        add_copies(&copies, leaves);
    pthread_mutex_unlock(&file->lock);
    if (!copies.list)
        return -ENOMEM;
    qsort(copies.list, copies.n, sizeof *copies.list, copy_pages_order);
    for (size_t i = 0; i < copies.n; i += BATCH_MAX) {
        size_t n = copies.n - i < BATCH_MAX ? copies.n - i : BATCH_MAX;
        uint64_t dropped;
        int one = drop_pages(replica, copies.list + i, n, DROP_ADVISED, &dropped);
        error = error ? error : one;
    }
    free(copies.list);
    return error;
}
