/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/acquire.h"

#include <errno.h>
#include <stdlib.h>

#include "cache/drop.h"
#include "cache/fit.h"
#include "cache/passed.h"
#include "cache/refresh.h"
#include "cache/release.h"
#include "cache/tail.h"
#include "cache/trace.h"
#include "io/protocol.h"

/* The pages of a copy that lack something released. Lock held. */
static page_mask stale_pages(const struct leaf_copy *copy, page_mask pages)
{
    page_mask stale = 0;

    for (page_mask left = pages & copy->present; left; left &= left - 1) {
        unsigned page = (unsigned)__builtin_ctzll(left);
        if (!leaf_has_versions(copy->leaf, page))
            continue;
        struct gaia_page_versions versions = leaf_page_versions(copy->leaf, page);
        if (gaia_rule_stale(&versions, copy->replica->entry,
                            leaf_copy_page_vector((struct leaf_copy *)copy, page)))
            stale |= UINT64_C(1) << page;
    }
    return stale;
}

/* Take the suspects that overlap the range, by leaves. Those that lie in it whole leave the list: a change
 * from now on puts them back. Lock held. */
static int take_suspects(struct replica *replica, uint64_t first, uint64_t count,
                         struct copy_pages **list_out, size_t *n_out)
{
    struct leaf_copy **copies;
    ssize_t n = replica_listed(replica, REPLICA_SUSPECTS, first, count, &copies);

    if (n < 0)
        return (int)n;
    struct copy_pages *list = calloc((size_t)n + 1, sizeof *list);
    for (ssize_t i = 0; i < n && list; i++) {
        struct leaf_copy *copy = copies[i];
        page_mask pages = page_range_mask(copy->leaf->number, first, count);
        list[i] = (struct copy_pages){.leaf = copy->leaf->number, .pages = pages};
        if (pages == ~UINT64_C(0)) {
            TAILQ_REMOVE(&replica->suspects, copy, suspect);
            copy->in_suspects = false;
        }
    }
    free(copies);
    *list_out = list;
    *n_out = list ? (size_t)n : 0;
    return list ? 0 : -ENOMEM;
}

/* The CPU's release, and what is stale then. A page that is being placed now was perhaps read before the
 * change: it is waited for. Lock held, let go while waiting. */
static int find_stale(struct replica *replica, struct copy_pages *entry)
{
    struct cache_file *file = replica->file;

    for (;;) {
        struct leaf_copy *copy = replica_find_copy(replica, entry->leaf);
        if (!copy) {
            entry->pages = 0;
            return 0;
        }
        if (copy->busy & ~copy->present & entry->pages) {
            pthread_cond_wait(&file->changed, &file->lock);
            continue;
        }
        int error = file_cpu_release(file, copy->leaf, entry->pages);
        if (!error)
            entry->pages = stale_pages(copy, entry->pages);
        return error;
    }
}

/* After an error: the next acquire must look again. Lock taken. */
static void suspect_again(struct replica *replica, const struct copy_pages *list, size_t n)
{
    pthread_mutex_lock(&replica->file->lock);
    for (size_t i = 0; i < n; i++) {
        struct leaf_copy *copy = replica_find_copy(replica, list[i].leaf);
        if (copy)
            replica_suspect(copy);
    }
    pthread_mutex_unlock(&replica->file->lock);
}

static int drop_some(struct replica *replica, const struct copy_pages *list, size_t count)
{
    uint64_t dropped;

#ifndef GAIAFS_BREAK_NO_DROP
    return drop_pages(replica, list, count, DROP_STALE, &dropped);
#else
    (void)replica, (void)list, (void)count, (void)dropped;
    return 0;
#endif
}

/* One leaf's pages singly. */
static int drop_singly(struct replica *replica, struct copy_pages entry)
{
    int error = 0;

    for (page_mask left = entry.pages; left; left &= left - 1) {
        entry.pages = left & -left;
        int one = drop_some(replica, &entry, 1);
        error = error ? error : one;
    }
    return error;
}

/* apart: where a release brings its bytes to the file, a page that finds no space there keeps all that is
 * dropped with it: then that is done leaf by leaf, and page by page. The first error. */
static int drop_stale(struct replica *replica, const struct copy_pages *list, size_t count, bool apart)
{
    int error = 0;

    for (size_t done = 0, n; done < count && (!error || apart); done += n) {
        n = count - done < BATCH_MAX ? count - done : BATCH_MAX;
        int some = drop_some(replica, list + done, n);
        for (size_t i = done; i < done + n && some && apart; i++) {
            int one = n > 1 ? drop_some(replica, list + i, 1) : some;
            one = one ? drop_singly(replica, list[i]) : 0;
            error = error ? error : one;
        }
        error = apart ? error : some;
    }
    return error;
}

static int acquire_alone(struct replica *replica, uint64_t first, uint64_t count, uint64_t *changes_out)
{
    struct cache_file *file = replica->file;
    struct copy_pages *list = NULL;
    size_t n = 0, stale = 0;
    /* Nothing can be taken away from a GPU kernel: what is out of date changes in place. */
    bool in_place = replica->scans && !replica->read_only;

    /* What is stored in the range counts as released from now on, whether its page is stale or not. */
    int released = atomic_load(&replica->state->stored) ? release_range(replica, first, count) : 0;
    pthread_mutex_lock(&file->lock);
    /* What a device keeps, as there is no space for it, is no reason not to look at the rest. */
    bool unheard = passed_is_unheard(file);
    if (released && (in_place || !unheard)) {
        pthread_mutex_unlock(&file->lock);
        return released;
    }
    int error = file_check_behind(file);
    if (!error)
        error = tail_wipe(replica);
    if (!error && passed_is_compared(file))
        error = passed_compare(replica, first, count);
    else if (!error && file->elsewhere) /* stores through mappings move no times but the first */
        file_all_modified(file);
    *changes_out = atomic_load(&replica->state->changes);
    if (!error)
        error = take_suspects(replica, first, count, &list, &n);
    for (size_t i = 0; i < n && !error; i++) {
        struct copy_pages entry = list[i];
        error = find_stale(replica, &entry);
        if (entry.pages || error)
            list[stale++] = entry;
    }
    if (in_place && !error)
        error = refresh_pages(replica, list, stale);
    pthread_mutex_unlock(&file->lock);
    fit_frames_for_device(file);
    if (!error && replica->misfit)
        error = -EIO;
    if (!in_place && !error) {
        error = drop_stale(replica, list, stale, unheard);
        fit_frames_for_device(file); /* for a cut meanwhile: cache/renew.c */
    }
    if (error)
        suspect_again(replica, list, n);
    free(list);
    return released ? released : error;
}

int acquire_range(struct replica *replica, uint64_t first, uint64_t count, uint64_t *changes_out)
{
    struct cache_file *file = replica->file;

    trace_acquire(replica, first, count);
    /* One at a time: a second one would find the list empty that the first has taken, and return while the
     * first is still dropping what is stale. */
    pthread_mutex_lock(&file->lock);
    while (replica->acquiring)
        pthread_cond_wait(&file->changed, &file->lock);
    replica->acquiring = true;
    pthread_mutex_unlock(&file->lock);
    int error = acquire_alone(replica, first, count, changes_out);
    pthread_mutex_lock(&file->lock);
    replica->acquiring = false;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
    trace_acquired(replica, first, count, error);
    return error;
}
