/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/collect.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "cache/home_bytes.h"
#include "cache/internal.h"
#include "cache/passed.h"
#include "cache/scan.h"
#include "cache/tail.h"
#include "cache/trace.h"
#include "consistency/digest.h"
#include "consistency/merge.h"

#define PART_PAGES 16u /* how much of the home copy is merged and written at once */
#define TAKEN_MAX (PART_PAGES * GAIA_DEVICES_MAX)

/* One page's bytes as they were taken from one device. */
struct taken {
    struct leaf_copy *copy;
    uint32_t frame;
    unsigned short page;
    bool home_is_twin; /* the home copy has these bytes, and need not be kept: scan_home_is_twin() */
    size_t homed; /* how much of them, from the first byte on, the home has, as far as it is not the twin's */
};

/* A run of pages under way: taken whole, as a device may be far away, and then part by part merged into the
 * home copy and written. It is on the stack of threads that have little of it. */
struct collect {
    struct cache_file *file;
    struct leaf *leaf;
    enum collect_what what;
    const struct collect_given *given; /* or NULL */
    size_t count;
    struct taken taken[TAKEN_MAX];
    /* The part: */
    unsigned first, length;
    off_t offset;
    size_t bytes;      /* of it that lie before the end of the file */
    page_mask changed; /* pages of the leaf whose home bytes changed */
    uint8_t home[PART_PAGES * GAIA_PAGE_SIZE];
};

_Static_assert(sizeof(struct collect) <= 128 * 1024, "a small ulimit -s is enough for it");

static bool in_part(const struct collect *c, const struct taken *t)
{
    return t->page >= c->first && t->page < c->first + c->length;
}

static page_mask wanted(const struct leaf_copy *copy, enum collect_what what)
{
    return copy->pending | (what == COLLECT_RELEASING ? copy->releasing : 0);
}

/* Merge one page that was taken into c->home. If that changes nothing, the home has the bytes already,
 * whatever becomes of others': but for what another device's bytes have changed there a moment ago. */
static void merge_taken(struct collect *c, struct taken *t)
{
    struct frame_pool *pool = &c->file->cache->twins;
    uint8_t *bytes = frame_bytes(pool, t->frame), *home = c->home + (t->page - c->first) * GAIA_PAGE_SIZE;
    size_t n = file_page_bytes(c->file->size, (c->leaf->number << LEAF_SHIFT) + t->page);

    memset(bytes + n, 0,
           GAIA_PAGE_SIZE - n); /* past the end is no part of the file: not of the twin either */
    if (!gaia_merge(home, frame_bytes(pool, *leaf_copy_twin(t->copy, t->page)), bytes, n)) {
        t->homed = c->changed >> t->page & 1 ? 0 : GAIA_PAGE_SIZE;
        return;
    }
    c->changed |= UINT64_C(1) << t->page;
    replica_count(t->copy->replica, pages_merged, 1);
    if (gaia_differs(home, bytes, n))
        replica_count(t->copy->replica, merges, 1);
}

/* Bytes of a run of pages, if they are there. */
static bool take_given(const struct collect *c, const struct leaf_copy *copy, unsigned first, unsigned length,
                       void *const bytes[])
{
    const struct collect_given *given = c->given;
    page_mask run = page_range_mask(0, first, length);

    if (!given || !given->bytes || given->copy != copy || run & ~(given->pages & given->fresh))
        return false;
    size_t at = (size_t)__builtin_popcountll(given->pages & ((UINT64_C(1) << first) - 1));
    for (unsigned i = 0; i < length; i++)
        memcpy(bytes[i], given->bytes + (at + i) * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
    return true;
}

/* A run of pages of one copy. */
static int take_run(struct collect *c, struct leaf_copy *copy, unsigned first, unsigned length)
{
    struct frame_pool *pool = &c->file->cache->twins;
    struct taken *run = &c->taken[c->count];
    void *bytes[LEAF_PAGES];

    for (unsigned i = 0; i < length; i++) {
        run[i] = (struct taken){.copy = copy, .page = (unsigned short)(first + i)};
        int error = frame_get(pool, &run[i].frame);
        if (error)
            return error;
        c->count++;
        bytes[i] = frame_bytes(pool, run[i].frame);
    }
    int error = tail_wipe(copy->replica);
    if (error || take_given(c, copy, first, length, bytes))
        return error;
    return replica_fetch_run(copy->replica, (c->leaf->number << LEAF_SHIFT) + first, length, bytes);
}

/* Take the bytes of every device that has some, in ascending replica number. They are taken once: what is
 * compared and what becomes the twin is the same, so a store that arrives now is seen next time. */
static int take(struct collect *c, unsigned first, unsigned length)
{
    struct leaf_copy *copy;
    int error = 0;

    SLIST_FOREACH (copy, &c->leaf->copies, link) {
        page_mask left = wanted(copy, c->what) & page_range_mask(0, first, length);
        while (left && !error) {
            unsigned n, at = page_mask_run(&left, &n);
            error = take_run(c, copy, at, n);
        }
        if (error)
            break;
    }
    return error;
}

/* What another mount has cut off is not to come back, though nobody has told us yet. It cuts nothing
 * meanwhile: claim_hold_end(). */
static off_t end_now(const struct cache_file *file)
{
    struct stat st;

    return claim_is_shared(file) && !fstat(file->fd, &st) && st.st_size < file->size ? st.st_size
                                                                                     : file->size;
}

/* As write_changed(), of a file that CPUs change unheard (cache/passed.h). The twins are still what they
 * were; of two devices' bytes the later ones win, as in the merge. */
static int write_runs(struct collect *c)
{
    struct frame_pool *pool = &c->file->cache->twins;
    off_t end = end_now(c->file);
    int error = 0;

    for (size_t i = 0; i < c->count && !error; i++) {
        struct taken *t = &c->taken[i];
        uint64_t page = (c->leaf->number << LEAF_SHIFT) + t->page;
        if (!in_part(c, t))
            continue;
        t->homed = GAIA_PAGE_SIZE;
        if (c->changed >> t->page & 1)
            error = passed_write(c->file, page, frame_bytes(pool, *leaf_copy_twin(t->copy, t->page)),
                                 frame_bytes(pool, t->frame), file_page_bytes(end, page), &t->homed);
    }
    return error;
}

/* A page that is collected while it is being released: one kernel has asked for it, and so does not hold it;
 * those of other nodes may hold it yet, and write it back whole. A pending page: no kernel holds it; but what
 * kernels wrote back of it may be on its way, unless the only one asks for it. */
static int tell_kernels(struct collect *c)
{
    page_mask releasing = 0;
    int error = 0;

    if (c->file->cache->nodes || c->what == COLLECT_PENDING)
        error = kernels_collect(c->file, c->leaf->number, c->changed);
    for (size_t i = 0; i < c->count; i++)
        releasing |= c->taken[i].copy->releasing;
    for (releasing &= c->changed; releasing && !error;) {
        unsigned length, first = page_mask_run(&releasing, &length);
        error =
            kernels_change(c->file, KERNELS_NOBODY, c->offset + (off_t)((first - c->first) * GAIA_PAGE_SIZE),
                           length * GAIA_PAGE_SIZE);
    }
    return error;
}

/* The home has so many bytes of what begins at this page. */
static void note_homed(struct collect *c, unsigned first, size_t done)
{
    for (size_t i = 0; i < c->count; i++) {
        struct taken *t = &c->taken[i];
        size_t before = t->page < first ? 0 : (t->page - first) * GAIA_PAGE_SIZE;

        if (t->page >= first && done > before && t->homed < done - before)
            t->homed = done - before < GAIA_PAGE_SIZE ? done - before : GAIA_PAGE_SIZE;
    }
}

static int write_changed(struct collect *c)
{
    page_mask changed = c->changed;
    int error = 0;

    if (!changed)
        return 0;
    error = scan_keep_twins(c->leaf, changed);
    if (!error)
        error = tell_kernels(c);
    if (error)
        return error;
    bool unchanged = file_unchanged(c->file);
    if (passed_is_unheard(c->file)) {
        error = write_runs(c);
        changed = 0;
    }
    while (changed && !error) {
        unsigned length, first = page_mask_run(&changed, &length);
        size_t from = (first - c->first) * GAIA_PAGE_SIZE, to = from + length * GAIA_PAGE_SIZE, done;
        error = home_write(c->file, c->home + from, (to < c->bytes ? to : c->bytes) - from,
                           c->offset + (off_t)from, DURABLE_MERGED, &done);
        note_homed(c, first, error ? done : length * GAIA_PAGE_SIZE);
    }
    file_stamp(c->file, unchanged);
    return error;
}

/* The home has the bytes now: twins become exactly what was taken. */
static void twins_become_taken(struct collect *c)
{
    struct frame_pool *pool = &c->file->cache->twins;

    for (size_t i = 0; i < c->count; i++) {
        struct taken *t = &c->taken[i];
        struct leaf_copy *copy = t->copy;
        page_mask bit = UINT64_C(1) << t->page, before = copy_stored(copy);
        struct gaia_page_versions versions = leaf_page_versions(c->leaf, t->page);
        if (copy->releasing & bit) {
            /* A READ was faster than the release: it is released by being collected. */
            gaia_rule_release(&versions, copy->replica->entry, leaf_copy_page_vector(copy, t->page));
            file_suspect_others(c->leaf, copy->replica, bit);
        }
        gaia_rule_collected(&versions, copy->replica->entry);
#ifndef GAIAFS_BREAK_TWIN_MERGED
        /* Its bytes stand still and are in the home copy: the next store takes a new twin. Or the home's are
         * the twin. */
        if (copy->sealed & bit || t->home_is_twin) {
            frame_put(pool, t->frame);
            replica_drop_twins(copy, bit);
            replica_count(copy->replica, collects, 1);
            continue;
        }
#endif
        frame_put(pool, *leaf_copy_twin(copy, t->page));
        *leaf_copy_twin(copy, t->page) = t->frame;
        copy->releasing &= ~bit;
        copy->touched &= ~bit;
        copy->pending &= ~bit;
        replica_update(copy, before);
        replica_count(copy->replica, collects, 1);
    }
}

/* What a device that is scanned was taken from is what its pages are compared with from now on. */
static void grant_taken(const struct collect *c)
{
    struct gaia_digest digests[LEAF_PAGES];
    size_t n = 0;

    for (size_t i = 0; i < c->count; i += n) {
        const struct taken *t = &c->taken[i];
        struct gaia_frames *frames = t->copy->replica->frames;
        for (n = 1; n < LEAF_PAGES && i + n < c->count && t[n].copy == t->copy && t[n].page == t->page + n;
             n++)
            ;
        if (!t->copy->replica->scans)
            continue;
        for (size_t k = 0; k < n; k++)
            digests[k] = gaia_digest_of(frame_bytes(&c->file->cache->twins, t[k].frame), GAIA_PAGE_SIZE);
        frames->ops->granted(frames, (c->leaf->number << LEAF_SHIFT) + t->page, n, digests);
    }
}

/* Not all could be brought to the home. The twin must show what the home has: else a store that takes it back
 * would not be seen as one. A page of which the home has a part stays to be collected, and its twin is of two
 * parts. */
static void keep_homed(struct collect *c)
{
    struct frame_pool *pool = &c->file->cache->twins;
    size_t kept = 0;

    for (size_t i = 0; i < c->count; i++) {
        struct taken *t = &c->taken[i];

        if (t->homed == GAIA_PAGE_SIZE) {
            c->taken[kept++] = *t;
            continue;
        }
        if (t->homed) {
            c->file->halves++;
            struct gaia_frames *frames = t->copy->replica->frames;
            memcpy(frame_bytes(pool, *leaf_copy_twin(t->copy, t->page)), frame_bytes(pool, t->frame),
                   t->homed);
            if (t->copy->replica->scans) /* it is none of what is known by its digest */
                frames->ops->granted(frames, (c->leaf->number << LEAF_SHIFT) + t->page, 1, NULL);
        }
        frame_put(pool, t->frame);
    }
    c->count = kept;
}

/* What was taken of some pages becomes the home's. */
static int collect_part(struct collect *c, unsigned first, unsigned length)
{
    c->first = first;
    c->length = length;
    c->offset = (off_t)(((c->leaf->number << LEAF_SHIFT) + first) * GAIA_PAGE_SIZE);
    c->changed = 0;
    assert(c->offset < c->file->size);
    c->bytes = length * GAIA_PAGE_SIZE;
    if (c->file->size - c->offset < (off_t)c->bytes)
        c->bytes = (size_t)(c->file->size - c->offset);
    int error = home_read(c->file, c->home, c->bytes, c->offset);
    if (error)
        return error;
    memset(c->home + c->bytes, 0, length * GAIA_PAGE_SIZE - c->bytes);
    for (size_t i = 0; i < c->count; i++)
        if (in_part(c, &c->taken[i]))
            merge_taken(c, &c->taken[i]);
    error = write_changed(c);
    trace_collected(c->file, (c->leaf->number << LEAF_SHIFT) + first, length,
                    (unsigned)__builtin_popcountll(c->changed), error);
    for (size_t i = 0; i < c->count; i++) {
        struct taken *t = &c->taken[i];
        if (!in_part(c, t))
            continue;
        uint8_t *bytes = frame_bytes(&c->file->cache->twins, t->frame);
        const uint8_t *home = c->home + (t->page - first) * GAIA_PAGE_SIZE;
        t->home_is_twin = !error && scan_home_is_twin(t->copy, home, bytes);
#ifdef GAIAFS_BREAK_TWIN_MERGED
        /* Broken on purpose: GAIA's released code kept the merged page as the twin. */
        memcpy(bytes, home, GAIA_PAGE_SIZE);
#endif
    }
    return error;
}

static int collect_run(struct collect *c, unsigned first, unsigned length)
{
    c->count = 0;
    int error = take(c, first, length);
    bool holds_end = claim_is_shared(c->file) && claim_hold_end(c->file->fd, &c->file->claim.end_missed);

    for (unsigned done = 0; done < length && !error && c->what != COLLECT_REPLACED; done += PART_PAGES)
        error = collect_part(c, first + done, length - done < PART_PAGES ? length - done : PART_PAGES);
    if (holds_end)
        claim_let_end_go(c->file->fd);
    if (error)
        keep_homed(c);
    for (size_t i = 0; i < c->count; i++)
        replica_count(c->taken[i].copy->replica, pages_out, 1);
    grant_taken(c);
    twins_become_taken(c);
    return error;
}

/* Lock held. */
static page_mask wanted_of(const struct leaf *leaf, enum collect_what what)
{
    const struct leaf_copy *copy;
    page_mask all = 0;

    SLIST_FOREACH (copy, &leaf->copies, link)
        all |= wanted(copy, what);
    return all;
}

/* Of a run of pages not all could be collected: perhaps for want of room, or of a frame, for one of them.
 * The others must not be lost with it when the mount ends, nor kept from who asks for them. */
static int collect_singly(struct collect *c, page_mask pages)
{
    int error = 0;

    for (pages &= wanted_of(c->leaf, c->what); pages; pages &= pages - 1) {
        int one = collect_run(c, (unsigned)__builtin_ctzll(pages), 1);
        error = error ? error : one;
    }
    return error;
}

/* How many pages of a leaf are collected at once. */
static unsigned run_pages(const struct leaf *leaf)
{
    const struct leaf_copy *copy;
    unsigned copies = 0;

    SLIST_FOREACH (copy, &leaf->copies, link)
        copies++;
    return copies * LEAF_PAGES <= TAKEN_MAX ? LEAF_PAGES : PART_PAGES;
}

/* What was to be collected from devices of nodes that have gone is lost with them, and the next sync says so.
 * Whether there was any. */
static bool lose_gone(struct cache_file *file, struct leaf *leaf)
{
    struct leaf_copy *copy;
    bool any = false;

    SLIST_FOREACH (copy, &leaf->copies, link) {
        page_mask lost = copy->pending | copy->releasing;
        if (!lost || !gaia_node_frames_gone(copy->replica->frames))
            continue;
        if (copy->pending) /* a release has ended well, and the home could not take it */
            durable_fail(file->durable, -EIO);
        for (page_mask left = copy->pending; left; left &= left - 1) {
            struct gaia_page_versions versions = leaf_page_versions(leaf, (unsigned)__builtin_ctzll(left));
            gaia_rule_collected(&versions, copy->replica->entry);
        }
        replica_drop_twins(copy, lost);
        any = true;
    }
    return any;
}

static int collect_released(struct cache_file *file, struct leaf *leaf, page_mask pages,
                            enum collect_what what, const struct collect_given *given)
{
    page_mask todo;
    int error = 0;

    if (!(leaf->released & pages))
        return 0;
    unsigned most = run_pages(leaf);
    todo = wanted_of(leaf, what) & pages;
    while (todo) {
        unsigned length, first = page_mask_run(&todo, &length);
        for (unsigned done = 0; done < length; done += most) {
            unsigned part = length - done < most ? length - done : most;
            struct collect c; /* not cleared: it is large, and only what was taken is read */
            c.file = file;
            c.leaf = leaf;
            c.what = what;
            c.given = given;
            int one = collect_run(&c, first + done, part);
            if (one && part > 1)
                one = collect_singly(&c, page_range_mask(0, first + done, part));
            error = error ? error : one;
        }
    }
    leaf->released = wanted_of(leaf, COLLECT_RELEASING); /* what is left */
    return error;
}

static int collect(struct cache_file *file, struct leaf *leaf, page_mask pages, enum collect_what what,
                   const struct collect_given *given)
{
    int error = collect_released(file, leaf, pages, what, given);

    if (error == -EIO && lose_gone(file, leaf))
        error = collect_released(file, leaf, pages, what, given);
    return error;
}

int collect_pages(struct cache_file *file, struct leaf *leaf, page_mask pages, enum collect_what what)
{
    return collect(file, leaf, pages, what, NULL);
}

int collect_given(struct cache_file *file, struct leaf *leaf, page_mask pages,
                  const struct collect_given *given)
{
    return collect(file, leaf, pages, COLLECT_PENDING, given);
}

/* The leaves of which something is pending: how many, or -ENOMEM. */
static ssize_t list_pending(struct cache_file *file, uint64_t **leaves_out)
{
    struct replica *replica;
    struct leaf_copy *copy;
    size_t max = 0, n = 0;

    SLIST_FOREACH (replica, &file->replicas, link)
        TAILQ_FOREACH (copy, &replica->stored, stored)
            max += copy->pending != 0;
    uint64_t *leaves = *leaves_out = max ? calloc(max, sizeof *leaves) : NULL;
    if (!leaves)
        return max ? -ENOMEM : 0;
    SLIST_FOREACH (replica, &file->replicas, link)
        TAILQ_FOREACH (copy, &replica->stored, stored)
            if (copy->pending)
                leaves[n++] = copy->leaf->number;
    return (ssize_t)n;
}

/* Where there is no memory for a list. Collecting never frees a copy (only replica_settle() does), so the
 * file's own lists stand still as long as the lock is held. */
static int collect_unlisted(struct cache_file *file)
{
    struct replica *replica;
    struct leaf_copy *copy;
    int error = 0;

    SLIST_FOREACH (replica, &file->replicas, link) {
        TAILQ_FOREACH (copy, &replica->stored, stored) {
            int one = copy->pending ? collect_pages(file, copy->leaf, copy->pending, COLLECT_PENDING) : 0;
            error = error ? error : one;
        }
    }
    return error;
}

int collect_all(struct cache_file *file)
{
    uint64_t *leaves, since = clock_now_ns();
    ssize_t n = list_pending(file, &leaves);
    int error = 0;

    if (n < 0)
        return collect_unlisted(file);
    for (ssize_t i = 0; i < n; i++) {
        struct leaf *leaf = index_find(&file->index, leaves[i]);
        int one = leaf ? collect_pages(file, leaf, ~UINT64_C(0), COLLECT_PENDING) : 0;
        error = error ? error : one;
        file_let_others_in(file, &since);
    }
    free(leaves);
    return error;
}
