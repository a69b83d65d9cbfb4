/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a release's steps is that of docs/design.md, section 5, rule 6. Its invariant: the home copy
 * never differs from a page that the kernel may hold, except by what the kernel itself stored. Hence
 * "releasing" before "pending".
 *
 * A release takes its pages batch by batch (release_by_batches()). Those of a batch (release_work())
 *
 *  - are made busy, so that nobody else places, drops or releases them (take_free());
 *  - stand still, as their next stores are trapped (seal()). A device that scans can't be stopped: what was
 *    fetched before counts (modified_gather());
 *  - are compared with their twins. Those that differ are releasing from here on, and their leaves are marked
 *    as invalidating (mark_modified()). No page need be busy any more;
 *  - are dropped by the kernels, and become pending (hand_over()); in rounds, as a WRITE may have put a page
 *    back into a kernel's cache meanwhile (begin_round(), invalidate(), make_pending()). Where nobody would
 *    ask for what is pending it is collected at once.
 *
 * Two things are remembered beyond a batch: that it is being handed over (struct handing), for other releases
 * of the same stores; and, if that fails, what kernels may hold from before it (struct untold). */
#include "cache/release.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/clock.h"
#include "base/set_ids.h"
#include "cache/collect.h"
#include "cache/fit.h"
#include "cache/home.h"
#include "cache/modified.h"
#include "cache/passed.h"
#include "cache/runs.h"
#include "cache/scan.h"
#include "cache/tail.h"
#include "cache/trace.h"
#include "consistency/merge.h"
#include "io/protocol.h"

#define ROUNDS_MAX 8u /* of invalidations, with CPUs that write beside them */

/* A batch between its comparison and its end, while it is being handed over. Pages that a READ collects
 * meanwhile are neither releasing nor stored to any more: that one kernel asked for them, and others may hold
 * them until they have been told. So another release of the same stores of the device waits for this one,
 * though it finds nothing to do. */
struct handing {
    LIST_ENTRY(handing) link; /* replica->handings */
    struct replica *replica;
    const struct release_work *work;
    size_t count;
    uint64_t number;
};

/* Lock held, as for all that follow. It counts as something stored: a client asks. */
static void handing_begin(struct handing *handing, const struct release_work *work, size_t count)
{
    struct replica *replica = work[0].copy->replica;

    *handing =
        (struct handing){.replica = replica, .work = work, .count = count, .number = ++replica->handed};
    LIST_INSERT_HEAD(&replica->handings, handing, link);
    replica_owes(replica, 1);
}

/* Then whoever waits is told (file->changed). */
static void handing_end(struct handing *handing)
{
    LIST_REMOVE(handing, link);
    replica_owes(handing->replica, -1);
}

/* A release has failed, and READs had collected some of it, so that it is not to be released again: kernels
 * that have not dropped these pages are to be told by the next release of any of them. */
static void note_untold(const struct release_work *work, size_t count)
{
    struct replica *replica = work[0].copy->replica;
    struct untold *untold = &replica->untold;

    for (size_t i = 0; i < count; i++) {
        page_mask pages = work[i].marked; /* of which is not known what was collected, and stored to again */
        while (pages) {
            unsigned length, first = page_mask_run(&pages, &length);
            uint64_t page = (work[i].leaf << LEAF_SHIFT) + first;
            if (!untold->end) { /* counts as stored to, too */
                untold->first = untold->end = page;
                replica_owes(replica, 1);
            }
            untold->first = page < untold->first ? page : untold->first;
            untold->end = page + length > untold->end ? page + length : untold->end;
            untold->changes++;
        }
    }
}

/* Tell them, of a range. The lock is let go meanwhile. */
static int tell_untold(struct replica *replica, uint64_t first, uint64_t count)
{
    struct cache_file *file = replica->file;
    struct untold *untold = &replica->untold, before = *untold;

    if (first >= before.end || first + count <= before.first) /* or there are none */
        return 0;
    /* The whole of it: it is seldom, and then there is one range still. */
    heal_window_open(file, before.first, before.end - 1);
    pthread_mutex_unlock(&file->lock);
    int error = home_invalidate(file, (off_t)(before.first * GAIA_PAGE_SIZE),
                                (off_t)((before.end - before.first) * GAIA_PAGE_SIZE));
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    if (error == -ENOENT) /* no kernel knows the file */
        error = 0;
    if (!error && untold->changes == before.changes && untold->end) {
        untold->end = 0;
        replica_owes(replica, -1);
    }
    return error;
}

static bool hands_over(const struct handing *handing, uint64_t first, uint64_t count)
{
    for (size_t i = 0; i < handing->count; i++)
        if (handing->work[i].marked & page_range_mask(handing->work[i].leaf, first, count))
            return true;
    return false;
}

/* Those of the range that have begun by now. */
static void await_handings(struct replica *replica, uint64_t first, uint64_t count)
{
    uint64_t last = replica->handed;
    struct handing *handing;

    do {
        LIST_FOREACH (handing, &replica->handings, link)
            if (handing->number <= last && hands_over(handing, first, count))
                break;
        if (handing)
            pthread_cond_wait(&replica->file->changed, &replica->file->lock);
    } while (handing);
}

/* Trap the next store to every page that is owned, unless it is to stay open. */
static int seal(struct replica *replica, const struct release_work *work, size_t count)
{
    struct gaia_run open = {0}, run;
    int error = 0;

    for (size_t i = 0; i < count && !error && !replica->scans; i++) {
        page_mask pages = work[i].open ? 0 : work[i].owned;
        while (pages && !error) {
            unsigned length, first = page_mask_run(&pages, &length);
            if (runs_add(&open, (work[i].leaf << LEAF_SHIFT) + first, length, &run))
                error = replica->frames->ops->protect(replica->frames, run.page, run.count);
        }
    }
    if (!error && runs_end(&open, &run))
        error = replica->frames->ops->protect(replica->frames, run.page, run.count);
    return error;
}

/* Whether what is released is brought to the file at once. What devices of other nodes release has come here
 * to be compared: if it is kept, a reader need not have it sent again, and it is not lost with its node. And
 * programs of other mounts read only the file, and nobody here learns of that. */
static bool is_collected(const struct replica *replica)
{
    return replica->device->node || claim_is_shared(replica->file);
}

/* Rule 1 for pages of a copy, whose room is reserved since they have twins. Lock held. */
static void count_release(struct leaf_copy *copy, page_mask pages)
{
    for (page_mask left = pages; left; left &= left - 1) {
        unsigned page = (unsigned)__builtin_ctzll(left);
        struct gaia_page_versions versions = leaf_page_versions(copy->leaf, page);
        gaia_rule_release(&versions, copy->replica->entry, leaf_copy_page_vector(copy, page));
    }
    file_suspect_others(copy->leaf, copy->replica, pages);
}

/* Find which of the owned pages were modified; they stand still, if the device can be made to. Those are
 * releasing then. The first error of pages that can't be looked at: they stay as they are. Lock held. */
static int mark_modified(struct release_work *w)
{
    struct leaf_copy *copy = w->copy;
    struct replica *replica = copy->replica;
    struct cache_file *file = replica->file;
    page_mask before = copy_stored(copy);
    page_mask left = copy->twin & w->owned, modified, borrowed = 0;
    int error = 0;

    if (replica->scans) {
        modified = modified_scanned(w, &borrowed, &error);
    } else {
        if (!w->open)
            copy->sealed |= left;
        modified = modified_pages(w, left, &error);
    }
    page_mask again = modified & copy->pending;
    w->again = again & before; /* the others are looked at as they are to leave the device, or be stale */
    left &= copy->sealed;
    /* Also of what is as it was: caches above this copy (gpu/demand_map.h) may have what was in between. */
    if (modified || (!replica->scans && copy->twin & w->owned))
        atomic_fetch_add(&replica->state->releases, 1);
    count_release(copy, again); /* the kernel holds no pending page: nothing to tell */
    w->pages |= modified & ~again;
    page_mask clean = replica->scans ? borrowed : left & ~modified & ~copy->pending;
    copy->releasing |= w->pages;
    copy->leaf->released |= w->pages;
    replica_update(copy, before);
    replica_drop_twins(copy, clean);
    /* What is pending was to be collected where that is done at once. */
    w->marked = w->pages | (file->passed || is_collected(replica) ? again : 0);
    copy->leaf->invalidating |= w->marked; /* keeps the copy, too */
    return error;
}

/* The pages with what lies between two that are less than a unit apart. */
static page_mask with_neighbours(page_mask pages)
{
    page_mask all = pages;
    unsigned end = 0, length;

    while (pages) {
        unsigned first = page_mask_run(&pages, &length);
        if (end && first - end < GAIA_UNIT_PAGES)
            all |= page_range_mask(0, end, first - end);
        end = first + length;
    }
    return all;
}

/* Tell the kernel to drop the pages that it may hold. No lock held. */
static int invalidate(struct cache_file *file, const struct release_work *work, size_t count)
{
    struct gaia_run open = {0}, run;
    int error = 0;

    for (size_t i = 0; i <= count && !error; i++) {
        page_mask pages = i < count ? work[i].dropped : 0;
        do {
            bool full = runs_take(&open, pages ? work[i].leaf : 0, &pages, i == count, &run);
#ifdef GAIAFS_BREAK_NO_INVALIDATE
            full = false;
#endif
            if (full)
                error = home_invalidate(file, (off_t)(run.page * GAIA_PAGE_SIZE),
                                        (off_t)(run.count * GAIA_PAGE_SIZE));
            if (error == -ENOENT) /* the kernel does not know the file: it holds nothing */
                error = 0;
        } while (pages && !error);
    }
    return error;
}

/* Who may only write the file, and does not own it, may set both times to now, or none. */
static void stamp_times(struct cache_file *file)
{
    futimens(file->fd, NULL);
}

/* What a write() does to a file besides its bytes: rule 1. Without times only what must not stay. Whether
 * anything was done. Lock held. */
static bool stamp_modified(struct cache_file *file, bool times)
{
    const struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    struct stat st;
    bool unchanged = file_unchanged(file), done = times;

    if (times && futimens(file->fd, now) && errno == EPERM)
        stamp_times(file);
    if (!fstat(file->fd, &st) && set_ids_lost(st.st_mode))
        done |= set_ids_clear(file->fd);
    done |= !fremovexattr(file->fd, "security.capability");
    file_stamp(file, unchanged);
    return done;
}

/* The lock is let go meanwhile: the kernel is to ask for the file's times. */
static void stamp_and_tell(struct cache_file *file, bool times)
{
    if (!stamp_modified(file, times))
        return;
    pthread_mutex_unlock(&file->lock);
    home_invalidate(file, -1, 0);
    pthread_mutex_lock(&file->lock);
}

/* After an invalidation: what is still releasing becomes pending, but for pages that a WRITE has put back
 * into the kernel's cache meanwhile: those go another round. Lock held. Returns whether there are such pages.
 */
static bool make_pending(struct release_work *w, bool failed)
{
    struct leaf_copy *copy = w->copy;
    page_mask before = copy_stored(copy);
    page_mask still = copy->releasing & w->pages;
    page_mask again = failed ? 0 : copy->touched & still;

    copy->touched &= ~still;
    still &= ~again;
    copy->releasing &= ~still;
    w->pages = again;
    if (failed) { /* nobody may collect what the kernel may still hold: as if not released yet */
        copy->sealed &= ~still;
        copy->leaf->kernel |= w->held;
        replica_update(copy, before);
        return false;
    }
    assert((still & ~copy->leaf->released) == 0);
    kernels_released(copy->replica->file, copy->leaf->number, still & w->held);
    copy->pending |= still;
    count_release(copy, still);
    replica_update(copy, before);
    return again;
}

/* Until the next WRITE after the invalidation: see cache/heal.h. Lock held. */
static bool open_window(struct cache_file *file, const struct release_work *work, size_t count)
{
    uint64_t first = UINT64_MAX, last = 0;

    for (size_t i = 0; i < count; i++) {
        if (!work[i].held)
            continue;
        uint64_t base = work[i].leaf << LEAF_SHIFT;
        first = base < first ? base : first;
        last = base + LEAF_PAGES - 1;
    }
    if (first == UINT64_MAX)
        return false;
    heal_window_open(file, first, last);
    return true;
}

/* Pages that are released and could not be collected, for the next release. Lock held. */
static void count_as_stored(struct leaf_copy *copy, page_mask pages)
{
    page_mask before = copy_stored(copy);

    copy->sealed &= ~pages;
    replica_update(copy, before);
}

/* From releasing to pending, and collected, in a file that CPUs have open in passthrough: the kernel holds no
 * pages of its own, and nobody will ask for what is pending. What can't be collected stays pending, and
 * counts as stored to: the next release tries again. Lock held. */
static int collect_work(struct cache_file *file, struct release_work *work, size_t count)
{
    int error = 0;

    for (size_t i = 0; i < count; i++) {
        struct leaf_copy *copy = work[i].copy;
        copy->touched &= ~work[i].pages; /* that only matters to who has pages of the kernel's dropped */
        make_pending(&work[i], false);
        int one = collect_pages(file, copy->leaf, work[i].marked, COLLECT_PENDING);
        count_as_stored(copy, copy->pending & work[i].marked);
        error = error ? error : one;
    }
    return error;
}

/* What can't be (no space, no memory) stays pending, and the release is good: whoever reads it has it
 * collected. But programs of other mounts have nobody to ask: for them it is as in passthrough. Lock held. */
static int collect_at_once(struct cache_file *file, const struct release_work *work, size_t count,
                           const struct gathered *gathered)
{
    bool current = modified_is_current(file, gathered);
    int error = 0;

    for (size_t i = 0; i < count; i++) {
        struct leaf_copy *copy = work[i].copy;
        const struct collect_given given = {.copy = copy,
                                            .pages = work[i].owned,
                                            .fresh = current ? work[i].fresh : 0,
                                            .bytes = work[i].bytes};
        int one = collect_given(file, copy->leaf, copy->pending & work[i].marked, &given);
        if (!one || !claim_is_shared(file))
            continue;
        count_as_stored(copy, copy->pending & work[i].marked);
        error = error ? error : one;
    }
    return error;
}

/* CPUs that write on and on would keep a release going round where a round takes longer than a WRITE, with
 * kernels on other nodes. Then they get what is released at once, as if each had read it: what their kernels
 * hold of it is merged (cache/kernels.h), and dropped once more. Lock held. */
static int collect_busy(struct cache_file *file, const struct release_work *work, size_t count)
{
    int error = 0;

    for (size_t i = 0; i < count && !error; i++)
        error = collect_pages(file, work[i].copy->leaf, work[i].pages, COLLECT_RELEASING);
    return error;
}

/* What the kernels may hold is to be dropped from here on. -ENOMEM: and can't be noted. Lock held. */
static int begin_round(struct cache_file *file, struct release_work *work, size_t count)
{
    int error = 0;

    for (size_t i = 0; i < count; i++) {
        struct leaf *leaf = work[i].copy->leaf;
        work[i].held = leaf->kernel & work[i].pages;
        leaf->kernel &= ~work[i].held; /* before, not after: a READ meanwhile sets it again */
        work[i].dropped = with_neighbours(work[i].held);
        heal_drop_begin(leaf, work[i].dropped);
        if (work[i].held && !error)
            error = kernels_reserve(file, leaf->number);
    }
    return error;
}

/* Rule 6, from releasing to pending. Lock held on entry and exit, not in between; the caller broadcasts. */
static int hand_over(struct cache_file *file, struct release_work *work, size_t count,
                     const struct gathered *gathered)
{
    /* No open is answered that would have the kernel hold pages before it has the lock. */
    bool again = !file->passed;
    int kept = again ? 0 : collect_work(file, work, count), busy = 0, error = 0;

    for (unsigned round = 0; again; round++) {
        bool collects = round >= ROUNDS_MAX && file->cache->nodes;
        if (collects)
            busy = collect_busy(file, work, count);
        uint64_t reads = file->reads.number;
        error = begin_round(file, work, count);
        bool window = open_window(file, work, count);
        pthread_mutex_unlock(&file->lock);
        if (collects)
            kernels_settle(file);
        error = error ? error : invalidate(file, work, count);
        error = error ? error : busy;
        pthread_mutex_lock(&file->lock);
        if (window)
            heal_window_close(file);
        for (size_t i = 0; i < count; i++)
            heal_drop_end(file, work[i].copy->leaf, work[i].dropped, reads, !error);
        again = false;
        for (size_t i = 0; i < count; i++)
            again |= make_pending(&work[i], error);
    }
    if (!error && !kept && is_collected(work[0].copy->replica))
        kept = collect_at_once(file, work, count, gathered);
    if (!error) { /* also when READs were faster, and have collected it all; or a part of it could be */
        stamp_and_tell(file, true);
    } else {
        note_untold(work, count);
        stamp_modified(file, true);
    }
    for (size_t i = 0; i < count; i++) {
        struct leaf *leaf = work[i].copy->leaf;
        leaf->invalidating &= ~work[i].marked;
        leaf_settle(leaf);
    }
    return error ? error : kept;
}

/* Another device may have begun to release these pages since we took ours: until the kernel has dropped them
 * nothing of ours may be pending. Leaves are marked in ascending order, so that two releases can't wait for
 * each other; the one that is waited for needs nothing of what is busy here. Lock held, let go meanwhile. */
static void await_invalidation(struct cache_file *file, const struct release_work *w)
{
    while (w->copy->leaf->invalidating & w->owned)
        pthread_cond_wait(&file->changed, &file->lock);
}

/* The pages need not be busy any more. The copy may be gone then, unless pages of it are releasing. Lock
 * held, let go while touches are woken. */
static void end_busy(struct replica *replica, const struct release_work *w)
{
    page_mask wake = replica_unbusy(w->copy, w->owned);

    if (!wake)
        return;
    pthread_mutex_unlock(&replica->file->lock);
    replica_wake(replica, w->leaf, wake);
    pthread_mutex_lock(&replica->file->lock);
}

/* Nothing behind an earlier end of the file is taken for stores. */
static int wipe_tail(struct replica *replica)
{
    pthread_mutex_lock(&replica->file->lock);
    int error = tail_wipe(replica);
    pthread_mutex_unlock(&replica->file->lock);
    return error;
}

/* The whole of a release of one batch, whose pages are busy: without keep_busy, no longer than they must be.
 * The first error. Pages that could not be looked at stay as they are; the others are released nevertheless.
 */
static int release_work(struct replica *replica, struct release_work *work, size_t count, bool keep_busy,
                        struct gathered *gathered)
{
    struct cache_file *file = replica->file;
    struct handing handing;
    size_t modified = 0;
    bool open = work[0].open, again = false;
    int unread = 0, error = wipe_tail(replica);

    if (!error)
        error = modified_gather(replica, work, count, gathered);
    if (!error)
        error = seal(replica, work, count);

    pthread_mutex_lock(&file->lock);
    passed_look_at_size(file);
    /* From here on, as the lock is let go below when some pages are marked already. */
    handing_begin(&handing, work, count);
    uint64_t since = clock_now_ns();
    for (size_t i = 0; i < count; i++) {
        struct release_work w = work[i];
        if (!error) {
            await_invalidation(file, &w);
            int one = mark_modified(&w);
            unread = unread ? unread : one;
        }
        again |= w.again != 0;
        if (w.marked)
            work[modified++] = w;
        file_let_others_in(file, &since);
        if (!keep_busy)
            end_busy(replica, &w);
    }
    if (modified)
        error = hand_over(file, work, modified, gathered);
    else if (again) /* no kernel holds them; of a GPU's nobody knows whether they were stored to since */
        stamp_and_tell(file, !replica->scans);
    handing_end(&handing);
    if (modified) /* nobody has waited for another one */
        pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
    if (!open)
        fit_frames(file);
    return error ? error : unread;
}

int release_busy(struct replica *replica, struct copy_pages *batch, size_t count, bool seals)
{
    struct release_work *work = calloc(count, sizeof *work);
    struct gathered gathered = {0};

    if (!work)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        work[i] = (struct release_work){
            .copy = batch[i].copy, .leaf = batch[i].leaf, .owned = batch[i].pages, .open = !seals};
    int error = release_work(replica, work, count, true, &gathered);
    free(gathered.bytes);
    free(work);
    return error;
}

static void add_todo(const struct leaf_copy *copy, page_mask pages, uint64_t first, uint64_t count,
                     struct release_work *todo, size_t *n)
{
    pages &= copy_stored(copy) & page_range_mask(copy->leaf->number, first, count);
    if (pages)
        todo[(*n)++] = (struct release_work){.leaf = copy->leaf->number, .owned = pages};
}

/* list_stored(), of a device that scans and whose pages nobody releases just now, from what it has found
 * alone: a file may have many leaves, and nothing in most of them. Lock held. */
static int list_found(struct replica *replica, uint64_t first, uint64_t count, const struct scan_found *found,
                      struct release_work **todo_out, size_t *n_out)
{
    uint64_t begin = first >> LEAF_SHIFT;
    size_t max = 0;

    for (uint64_t i = 0; i < found->leaves; i++)
        max += found->masks[i] != 0;
    struct release_work *todo = calloc(max + 1, sizeof *todo);
    if (!todo)
        return -ENOMEM;
    *n_out = 0;
    for (uint64_t i = 0; i < found->leaves && max; i++) {
        struct leaf_copy *copy = found->masks[i] ? replica_find_copy(replica, begin + i) : NULL;
        if (copy)
            add_todo(copy, found->masks[i], first, count, todo, n_out);
    }
    *todo_out = todo;
    return 0;
}

/* What has to be looked at: copies of the range with stores, as they are now, by leaves. Stores that are made
 * during the release may be left out, so each page is done once, however fast the device writes. found: what
 * a device that scans has found modified, leaf by leaf; NULL: another device. Lock held. */
static int list_stored(struct replica *replica, uint64_t first, uint64_t count,
                       const struct scan_found *found, struct release_work **todo_out, size_t *n_out)
{
    struct leaf_copy **copies;

    if (found && LIST_EMPTY(&replica->handings))
        return list_found(replica, first, count, found, todo_out, n_out);
    ssize_t listed = replica_listed(replica, REPLICA_STORED, first, count, &copies);
    if (listed < 0)
        return (int)listed;
    struct release_work *todo = calloc((size_t)listed + 1, sizeof *todo);
    *n_out = 0;
    for (ssize_t i = 0; i < listed && todo; i++) {
        const struct leaf_copy *copy = copies[i];
        uint64_t leaf = copy->leaf->number - (first >> LEAF_SHIFT);
        page_mask stored = found && leaf < found->leaves ? found->masks[leaf] : 0;
        add_todo(copy, found ? stored | copy->releasing : ~UINT64_C(0), first, count, todo, n_out);
    }
    free(copies);
    *todo_out = todo;
    return todo ? 0 : -ENOMEM;
}

#define GATHER_MAX 4096u /* pages of a batch whose bytes are kept, at most: 16 MiB */

/* Take what is free of the pages still to do: mark it busy, and put it into batch. Lock held. */
static size_t take_free(struct replica *replica, struct release_work *todo, size_t n,
                        struct release_work *batch)
{
    size_t taken = 0, most = BATCH_MAX;

    if (replica->scans || replica->device->node)
        most = GATHER_MAX / LEAF_PAGES;

    for (size_t i = 0; i < n && taken < most; i++) {
        struct leaf_copy *copy = todo[i].owned ? replica_find_copy(replica, todo[i].leaf) : NULL;
        page_mask others = copy ? copy->busy | copy->releasing | copy->leaf->invalidating : 0;
        todo[i].owned &= copy ? copy_stored(copy) | others : 0;
        page_mask pages = todo[i].owned & ~others;
        if (!pages)
            continue;
        todo[i].owned &= ~pages;
        copy->busy |= pages;
        batch[taken++] = (struct release_work){.copy = copy, .leaf = todo[i].leaf, .owned = pages};
    }
    return taken;
}

static bool work_left(const struct release_work *todo, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (todo[i].owned)
            return true;
    return false;
}

static int release_by_batches(struct replica *replica, uint64_t first, uint64_t count)
{
    struct cache_file *file = replica->file;
    struct release_work *todo = NULL, *batch = NULL;
    struct gathered gathered = {0};
    struct scan_found *found = NULL;
    size_t n = 0;

    int error = replica->scans && !replica->read_only ? scan_find(replica, first, count, &found) : 0;
    if (error)
        return error;
    pthread_mutex_lock(&file->lock);
    error = list_stored(replica, first, count, found, &todo, &n);
    if (!error && n && !(batch = calloc(n < BATCH_MAX ? n : BATCH_MAX, sizeof *batch)))
        error = -ENOMEM;
    for (bool more = !error && n; more;) {
        size_t taken = take_free(replica, todo, n, batch);
        if (taken) {
            pthread_mutex_unlock(&file->lock);
            int one = release_work(replica, batch, taken, false, &gathered);
            pthread_mutex_lock(&file->lock);
            error = error ? error : one;
            /* Where a release brings its bytes to the file nobody else will: what lies behind some that find
             * no space may have its own. Elsewhere what fails is a device or a node, and might be waited for
             * in vain once more. */
            more = !error || passed_is_unheard(file);
        } else if (work_left(todo, n)) {
            /* Somebody else releases, places or drops these pages: what he leaves is looked at again. */
            pthread_cond_wait(&file->changed, &file->lock);
        } else {
            more = false;
        }
    }
    await_handings(replica, first, count);
    if (!error)
        error = tell_untold(replica, first, count);
    pthread_mutex_unlock(&file->lock);
    scan_put_found(replica, found);
    free(gathered.bytes);
    free(batch);
    free(todo);
    return error;
}

int release_range(struct replica *replica, uint64_t first, uint64_t count)
{
    trace_release(replica, first, count);
    int error = release_by_batches(replica, first, count);
    trace_released(replica, first, count, error);
    return error;
}
