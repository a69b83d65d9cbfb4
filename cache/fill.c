/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/fill.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cache/collect.h"
#include "cache/evict.h"
#include "cache/fit.h"
#include "cache/scan.h"
#include "cache/trace.h"

/* A piece of a file on its way to a device: pages of one leaf copy or more, at most a stage. */
struct fill {
    struct cache_map *map; /* a reference */
    struct fill_group *group;
    uint64_t first, count;
    uint64_t touched; /* FILL_NO_PAGE: no page of this piece */
    bool store;
    uint32_t thread;
    uint64_t truncations; /* of the file, when it began; */
    off_t size;           /* and how long it was */
    uint8_t *stage;
    struct fault_read read;      /* where a fault path brings it into the frames */
    struct gaia_placing placing; /* where the frames are brought them by somebody else */
    bool exposed;                /* was done with it */
    struct fit_drop drop;        /* if nothing came of it, */
    int error;                   /* for this */
};

void fill_group_init(struct fill_group *group)
{
    *group = (struct fill_group){0};
    lock_init(&group->lock, LOCK_GROUP);
    pthread_cond_init(&group->done, NULL);
}

int fill_group_finish(struct fill_group *group)
{
    pthread_mutex_lock(&group->lock);
    while (group->under_way)
        pthread_cond_wait(&group->done, &group->lock);
    pthread_mutex_unlock(&group->lock);
    pthread_cond_destroy(&group->done);
    pthread_mutex_destroy(&group->lock);
    return group->error;
}

static void group_begin(struct fill_group *group)
{
    if (!group)
        return;
    pthread_mutex_lock(&group->lock);
    group->under_way++;
    pthread_mutex_unlock(&group->lock);
}

static void group_end(struct fill_group *group, int error)
{
    if (!group)
        return;
    pthread_mutex_lock(&group->lock);
    if (!group->error)
        group->error = error;
    if (--group->under_way == 0)
        pthread_cond_signal(&group->done);
    pthread_mutex_unlock(&group->lock);
}

/* Rule 3, for pages that are about to be granted: the home gets what others released, and the copy its
 * vector. Lock held. */
static int grant(struct leaf_copy *copy, page_mask pages)
{
    struct cache_file *file = copy->replica->file;
    struct leaf *leaf = copy->leaf;

    int error = file_cpu_release(file, leaf, pages);
    if (!error)
        error = collect_pages(file, leaf, pages, COLLECT_PENDING);
    if (!error)
        error = replica_grant(copy, pages);
    /* It may get what a CPU of some node has written and kernels of others have not heard of. Who must know
     * that they have acquires, and that waits for them. */
    if (!error && kernels_behind(file))
        replica_changed(copy->replica);
    return error;
}

/* Of a page whose bytes are at hand the frames, which may be on another node, need not be asked; but a cut,
 * or a growth, may have made zeros of some of them meanwhile: cache/tail.h. Lock held. */
static int take_exposed_twins(struct leaf_copy *copy, page_mask pages, const struct fill_store *store)
{
    unsigned page = (unsigned)(store->page & (LEAF_PAGES - 1));

    if (store->bytes && store->page >> LEAF_SHIFT == copy->leaf->number && pages == UINT64_C(1) << page &&
        store->truncations == copy->replica->file->truncations && store->size == copy->replica->file->size)
        return replica_take_twin(copy, page, store->bytes);
    return replica_take_twins(copy, pages);
}

int fill_expose(struct cache_map *map, struct leaf_copy *copy, page_mask pages,
                const struct fill_store *store)
{
    struct replica *replica = map->replica;
    uint64_t base = copy->leaf->number << LEAF_SHIFT;
    page_mask open = 0; /* pages whose stores are not trapped */
    int error = 0;

    if (replica->scans) /* what is placed can be seen */
        return 0;
    if (map->writable && !map->can_trap)
        open = pages;
    else if (map->writable && store->page != FILL_NO_PAGE && store->page >> LEAF_SHIFT == copy->leaf->number)
        open = pages & page_bit(store->page);
    if (open) {
        pthread_mutex_lock(&replica->file->lock);
        open &= copy->present; /* a truncation may have come between */
        error = take_exposed_twins(copy, open, store);
        page_mask before = copy_stored(copy);
        copy->sealed &= ~(open & copy->twin);
        open &= copy->twin;
        replica_update(copy, before);
        pthread_mutex_unlock(&replica->file->lock);
    }
    /* To poison what can be seen would let its stores through untrapped, and without a twin: see refuse(). */
    if (error && map->can_trap && !open)
        pages &= ~page_bit(store->page);
    if (map->writable && !map->can_trap) { /* what has no twin must not be stored to; its touch finds out */
        for (page_mask left = pages & ~open; left;) {
            unsigned length, first = page_mask_run(&left, &length);
            replica->frames->ops->wake(replica->frames, base + first, length);
        }
        pages = open;
    }
    for (int trap = 0; trap < 2; trap++) {
        page_mask left = trap ? pages & ~open : open;
        while (left) {
            unsigned length, first = page_mask_run(&left, &length);
            int one = replica->frames->ops->expose(map->frames, base + first, length, trap);
            error = error ? error : one;
        }
    }
    return error;
}

/* A touch can't be served. With neighbours along, it is perhaps a neighbour's fault: touches come one page at
 * a time for a while, and this one is tried again. The page is busy: to poison one that is shown meanwhile
 * would let its stores through untrapped. */
static void refuse(struct cache_map *map, uint64_t touched, uint64_t count, uint32_t thread)
{
    if (count > 1) {
        map->careful = 2 * STAGE_PAGES;
        map->replica->frames->ops->wake(map->replica->frames, touched, 1);
        trace_served(map, touched, TRACE_AGAIN);
        return;
    }
    atomic_fetch_add(&map->poisonings, 1);
    replica_changed(map->replica); /* so that the next acquire comes to the daemon, and hears of it */
    map->replica->frames->ops->poison(map->frames, touched, 1, thread);
    trace_served(map, touched, TRACE_REFUSED);
    /* Again: an acquire may have told of it before there was anything to refresh. */
    atomic_fetch_add(&map->poisonings, 1);
    replica_changed(map->replica);
}

/* The end of busy for every page of the fill. */
static void fill_unbusy(struct fill *fill)
{
    struct replica *replica = fill->map->replica;

    pthread_mutex_lock(&replica->file->lock);
    for_each_leaf (number, fill->first, fill->count) {
        page_mask pages = page_range_mask(number, fill->first, fill->count);
        page_mask wake = replica_unbusy(replica_find_copy(replica, number), pages);
        if (!wake)
            continue;
        pthread_mutex_unlock(&replica->file->lock);
        replica_wake(replica, number, wake);
        pthread_mutex_lock(&replica->file->lock);
    }
    pthread_mutex_unlock(&replica->file->lock);
}

/* Where a leaf's page 0 would be in the stage. */
static const uint8_t *leaf_in_stage(const struct fill *fill, uint64_t leaf)
{
    return (const uint8_t *)((uintptr_t)fill->stage + ((leaf << LEAF_SHIFT) - fill->first) * GAIA_PAGE_SIZE);
}

/* The frames have the bytes: they count as resident, unless the file was truncated since the fill began (what
 * was read may be what was cut off). Lock held. */
static bool fill_settle(struct fill *fill, int *error)
{
    struct replica *replica = fill->map->replica;
    struct cache_file *file = replica->file;

    if (file->truncations != fill->truncations) {
        fit_again(replica); /* place() may have made them longer */
        return false;
    }
    for_each_leaf (number, fill->first, fill->count)
        if (!*error)
            *error = scan_take_placed(replica_find_copy(replica, number),
                                      page_range_mask(number, fill->first, fill->count),
                                      leaf_in_stage(fill, number));
    if (*error) {
        for_each_leaf (number, fill->first, fill->count)
            replica_drop_twins(replica_find_copy(replica, number),
                               page_range_mask(number, fill->first, fill->count));
        return false;
    }
    for_each_leaf (number, fill->first, fill->count) {
        struct leaf_copy *copy = replica_find_copy(replica, number);
        replica_add_present(copy, page_range_mask(number, fill->first, fill->count));
        bool touched = fill->touched != FILL_NO_PAGE && fill->touched >> LEAF_SHIFT == number;
        evict_placed(replica->device, copy, touched);
    }
    replica_resident(replica, (int64_t)fill->count);
    return true;
}

/* The first error, when some could not be exposed. */
static int expose_placed(const struct fill *fill, const struct fill_store *store)
{
    struct replica *replica = fill->map->replica;
    int error = 0;

    for_each_leaf (number, fill->first, fill->count) {
        pthread_mutex_lock(&replica->file->lock);
        struct leaf_copy *copy = replica_find_copy(replica, number);
        pthread_mutex_unlock(&replica->file->lock);
        int one = fill_expose(fill->map, copy, page_range_mask(number, fill->first, fill->count), store);
        error = error ? error : one;
    }
    return error;
}

/* Whether the file was cut since the fill began, though it may be as long as it was by now. */
static bool was_cut_off(const struct fill *fill)
{
    struct cache_file *file = fill->map->replica->file;

    pthread_mutex_lock(&file->lock);
    bool cut = file->truncations != fill->truncations;
    pthread_mutex_unlock(&file->lock);
    return cut;
}

static void fill_end(struct fill *fill)
{
    cache_map_put(fill->map);
    free(fill);
}

/* again: the touch finds the file as it is now. */
static void fill_leave(struct fill *fill, int error, bool again)
{
    struct cache_map *map = fill->map;
    const struct gaia_frames_ops *ops = map->replica->frames->ops;
    bool refused = error && fill->touched != FILL_NO_PAGE;

    if (!refused && fill->touched != FILL_NO_PAGE)
        trace_served(map, fill->touched, again ? TRACE_AGAIN : TRACE_PLACED);
    if (refused) /* while nobody else can place and show it: see refuse() */
        refuse(map, fill->touched, fill->count, fill->thread);
    fill_unbusy(fill);
    if (!refused && again)
        ops->wake(map->replica->frames, fill->first, fill->count);
    group_end(fill->group, error);
    fill_end(fill);
}

static void fill_dropped(struct fit_drop *drop)
{
    struct fill *fill = (struct fill *)((char *)drop - offsetof(struct fill, drop));

    cache_device_uncharge(fill->map->replica->device, fill->count);
    fill_leave(fill, fill->error, true);
}

/* That waits for a lock which a client may have, and this thread may be the one that polls. */
static void fill_drop(struct fill *fill, int error)
{
    fill->error = error;
    fill->drop = (struct fit_drop){.first = fill->first, .count = fill->count, .done = fill_dropped};
    fit_drop(fill->map->replica, &fill->drop);
}

/* The frames have the bytes, or could not get them: EFAULT, if they were shorter than they should be. That is
 * a client's doing, unless the file was cut: then the touch finds it as it is now. */
static void fill_placed(struct fill *fill, int error)
{
    struct replica *replica = fill->map->replica;
    struct fill_store store = {.page = fill->store ? fill->touched : FILL_NO_PAGE,
                               .truncations = fill->truncations,
                               .size = fill->size};
    uint8_t stored[GAIA_PAGE_SIZE];
    bool settled = false;

    pthread_mutex_lock(&replica->file->lock);
    if (error == -EFAULT) {
        fit_again(replica);
        error = replica->file->truncations == fill->truncations ? error : 0;
    }
    if (!error)
        settled = fill_settle(fill, &error);
    pthread_mutex_unlock(&replica->file->lock);
    if (settled && store.page != FILL_NO_PAGE) /* others wait for the stage */
        store.bytes =
            memcpy(stored, fill->stage + (store.page - fill->first) * GAIA_PAGE_SIZE, sizeof stored);
    stage_put(&replica->file->cache->stages, fill->stage);
    trace_placed(replica, fill->first, fill->count, settled ? 0 : error ? error : -EAGAIN);
    if (!settled) {
        fill_drop(fill, error);
        return;
    }
    replica_count(replica, pages_in, fill->count);
    if (!fill->exposed && !replica->scans) /* else what is placed is seen */
        error = expose_placed(fill, &store);
    bool cut = error && was_cut_off(fill);
    fill_leave(fill, cut ? 0 : error, cut);
}

/* Pages whose first stores are trapped may be seen before they count as resident: a store that comes too
 * early finds them busy. The others must have their twins before. */
static bool may_be_seen(const struct fill *fill)
{
    const struct cache_map *map = fill->map;

    return !map->replica->scans && (!map->writable || (map->can_trap && !fill->store));
}

/* What is known to be cut off is not shown; a cut that comes now is found out by fill_settle(), and by an
 * acquire, which waits for that. */
static int fill_copy(struct fill *fill, const uint8_t *bytes, bool unheld)
{
    struct gaia_frames *frames = fill->map->replica->frames;
    const struct gaia_frames_ops *ops = frames->ops;
    uint64_t done = 0;
    /* Of those who are one thread for all, none has many stages. */
    bool scarce = !unheld && stage_is_scarce(&fill->map->replica->file->cache->stages);

    if (ops->place_exposed && may_be_seen(fill) && !scarce && !was_cut_off(fill))
        done = ops->place_exposed(fill->map->frames, fill->first, fill->count, bytes);
    fill->exposed = done == fill->count;
    if (fill->exposed)
        return 0;
    uint64_t first = fill->first + done, count = fill->count - done;
    bytes += done * GAIA_PAGE_SIZE;
    unheld |= scarce;
    int error = unheld && ops->place_unheld ? ops->place_unheld(frames, first, count, bytes) : -EAGAIN;
    /* Without a mapping to be placed by, or leave to: nobody's touch fails for it. */
    return error && error != -EFAULT ? ops->place(frames, first, count, bytes) : error;
}

/* What the path could not bring, for whatever reason, is copied: the stage has it. This is the one thread
 * that polls: no client is to hold it up by what it does with the frames' memory. */
static void fill_arrived(struct fault_read *read, int error)
{
    struct fill *fill = (struct fill *)((char *)read - offsetof(struct fill, read));
    const uint8_t *bytes = error ? fill->stage : read->bounced;

    fill_placed(fill, bytes ? fill_copy(fill, bytes, true) : 0);
}

static void fill_was_placed(struct gaia_placing *placing, int error)
{
    fill_placed((struct fill *)((char *)placing - offsetof(struct fill, placing)), error);
}

/* The thread is one of so many as placements may be under way: it may wait for the file's lock. */
static void fill_lent_was_placed(struct gaia_placing *placing, int error)
{
    struct fill *fill = (struct fill *)((char *)placing - offsetof(struct fill, placing));
    struct stage_pool *stages = &fill->map->replica->file->cache->stages;

    fill_placed(fill, error);
    stage_lent_back(stages);
}

/* To another node, or a GPU. */
static int fill_send(struct fill *fill)
{
    struct cache_map *map = fill->map;
    struct gaia_frames *frames = map->replica->frames;
    struct stage_pool *stages = &map->replica->file->cache->stages;
    unsigned most = frames->ops->later_most;

    if (most && !stage_lend(stages, most))
        return -EAGAIN;
    fill->placing.done = most ? fill_lent_was_placed : fill_was_placed;
    fill->exposed = may_be_seen(fill);
    /* Of those, what is placed ahead may not be attached yet. */
    struct gaia_frames_map *attached = most ? NULL : map->frames;
    int error = frames->ops->place_later(frames, attached, fill->first, fill->count, fill->stage,
                                         fill->exposed, &fill->placing);
    if (!error)
        return 0;
    fill->exposed = false;
    if (most)
        stage_lent_back(stages);
    return error;
}

/* The bytes are in the stage (got of them, the rest is past the end of the file), or got is an error. What
 * lies behind the end as it was known is left out: the file may be longer on storage and nobody has told us,
 * and twins have zeros there, so that it would be taken for what the device has stored. unheld: no client of
 * these frames is to hold up who is here by what it does with their memory. */
static void fill_finish(struct fill *fill, ssize_t got, bool unheld)
{
    struct replica *replica = fill->map->replica;
    struct fault_path *path = replica->file->cache->path;

    if (got < 0) {
        fill_placed(fill, (int)got);
        return;
    }
    off_t known = fill->size - (off_t)(fill->first * GAIA_PAGE_SIZE);
    got = got < known ? got : known;
    memset(fill->stage + got, 0, fill->count * GAIA_PAGE_SIZE - (size_t)got);
    const struct gaia_frames_ops *ops = replica->frames->ops;
    bool by_path = path && (ops->open_window || ops->bounces);
    if (!by_path && ops->place_later && !fill_send(fill))
        return;
    fill->read = (struct fault_read){.frames = replica->frames,
                                     .first = fill->first,
                                     .count = fill->count,
                                     .bytes = fill->stage,
                                     .done = fill_arrived};
    if (!path || fault_path_read(path, &fill->read))
        fill_placed(fill, fill_copy(fill, fill->stage, unheld));
}

/* The engine has one thread for what it has read of all files. */
static void fill_read(void *context, ssize_t result)
{
    fill_finish(context, result, true);
}

/* Bytes that are in the host's memory, all of them, or nothing. Asked first: a read that finds some missing
 * would have the kernel bring them into its cache, which reads for devices are to leave alone. */
static ssize_t read_cached(const struct fill *fill, size_t bytes)
{
    const struct cache_file *file = fill->map->replica->file;
    off_t offset = (off_t)(fill->first * GAIA_PAGE_SIZE);

    return hosted_all(file->fd, file->hosted, offset, bytes)
               ? hosted_read(file->fd, file->hosted, fill->stage, bytes, offset)
               : -EAGAIN;
}

/* Start one fill whose pages are busy, charged and granted. bytes: those before the end of the file. */
static void fill_start(struct fill *fill, size_t bytes)
{
    struct cache *cache = fill->map->replica->file->cache;

    group_begin(fill->group);
    fill->stage = stage_get(&cache->stages, fill->count);
    ssize_t got = read_cached(fill, bytes);
    trace_place(fill->map->replica, fill->first, fill->count, got >= 0 ? TRACE_MEMORY : TRACE_STORAGE);
    if (got >= 0) {
        fill_finish(fill, got, false);
        return;
    }
    /* Whole blocks, so that the read can bypass the host's page cache; the file's end makes it short. */
    size_t whole = fill->count * GAIA_PAGE_SIZE;
    int error = gaia_io_read(cache->io, fill->map->replica->file->io, fill->stage, whole,
                             (off_t)(fill->first * GAIA_PAGE_SIZE), fill_read, fill);
    if (error)
        fill_finish(fill, error, false);
    else /* at once: whoever waits for a stage waits for reads to complete */
        gaia_io_submit(cache->io);
}

/* How many pages of its leaf from `at` on, before end, are in the mask if that page is, or are not. */
static uint64_t run_of(page_mask mask, uint64_t at, uint64_t end)
{
    page_mask from = mask >> (at % LEAF_PAGES), others = from & 1 ? ~from : from;
    uint64_t left = LEAF_PAGES - at % LEAF_PAGES, run = others ? (uint64_t)__builtin_ctzll(others) : left;

    if (run > left)
        run = left;
    return run < end - at ? run : end - at;
}

/* The next run of absent pages at or after *page: how long it is now, 0 when there is none before end. At
 * most `most` pages. Lock held. */
static uint64_t find_absent(struct replica *replica, uint64_t *page, uint64_t end, uint64_t most)
{
    uint64_t count = 0;

    for (uint64_t at = *page; at < end && count < most;) {
        struct leaf_copy *copy = replica_find_copy(replica, at >> LEAF_SHIFT);
        page_mask taken = copy ? copy->present | copy->busy : 0;
        bool absent = !(taken & page_bit(at));
        uint64_t run = run_of(taken, at, end);
        if (!absent && count)
            break;
        if (absent && !count)
            *page = at;
        count += absent ? run : 0;
        at += run;
    }
    return count < most ? count : most;
}

/* The next run of absent pages at or after *page, marked busy and granted: its length, or 0 when there is
 * none before end. At most `most` pages. Lock held. An error leaves nothing busy. */
static uint64_t take_absent(struct replica *replica, uint64_t *page, uint64_t end, uint64_t most, int *error)
{
    struct index *index = &replica->file->index;
    uint64_t count = 0;

    for (uint64_t at = *page; at < end && count < most;) {
        struct leaf_copy *copy = index_get_copy(index, at >> LEAF_SHIFT, replica);
        if (!copy) {
            *error = -ENOMEM;
            break;
        }
        page_mask taken = copy->present | copy->busy;
        bool absent = !(taken & page_bit(at));
        if (!absent && count)
            break;
        uint64_t run = run_of(taken, at, end);
        if (!absent) {
            at += run;
            *page = at;
            continue;
        }
        if (!count)
            *page = at;
        if (run > most - count)
            run = most - count;
        page_mask pages = page_range_mask(at >> LEAF_SHIFT, at, run);
        copy->busy |= pages;
        *error = grant(copy, pages);
        if (*error) {
            replica_unbusy(copy, pages);
            break;
        }
        at += run;
        count += run;
    }
    return count;
}

/* Charge the next run of absent pages at or after *page: at most `most` of them, and how many. Not a page
 * more than is wanted: to make room, pages may go that were placed a moment ago. Where there is no room,
 * another thread that was to place the same pages may have charged and placed them meanwhile. No lock is
 * held. */
static int charge_absent(const struct cache_map *map, uint64_t *page, uint64_t end, uint64_t *most)
{
    struct replica *replica = map->replica;
    struct cache_file *file = replica->file;
    uint64_t all = *most, refused = 0, refused_at = 0;
    int error = 0;

    do {
        pthread_mutex_lock(&file->lock);
        *most = find_absent(replica, page, end < fit_pages(replica) ? end : fit_pages(replica), all);
        pthread_mutex_unlock(&file->lock);
        if (!*most)
            return 0;
        if (*most == refused && *page == refused_at)
            return error;
        refused = *most;
        refused_at = *page;
        error = evict_and_charge(replica->device, *most, map->client->id);
    } while (error);
    return 0;
}

static uint64_t before_chunk_ends(const struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    uint64_t left = frames->chunk_pages - page % frames->chunk_pages;

    return count < left ? count : left;
}

/* The next piece of a request: 0 when there is none left. Its length is charged and busy. */
static uint64_t fill_next(struct cache_map *map, const struct fill_request *request, uint64_t *page,
                          struct fill *fill, size_t *bytes, int *error)
{
    struct replica *replica = map->replica;
    struct cache_file *file = replica->file;
    uint64_t end = request->first + request->count, most = end - *page;
    uint64_t stage = request->wide ? request->wide : STAGE_PAGES;

    if (most > stage)
        most = stage;
    if (request->wide) /* what lies in two chunks is waited for */
        most = before_chunk_ends(replica->frames, *page, most);
    if (most > replica->device->capacity / 4)
        most = replica->device->capacity / 4;
    *error = charge_absent(map, page, end, &most);
    if (*error || !most)
        return 0;
    pthread_mutex_lock(&file->lock);
    if (end > fit_pages(replica))
        end = fit_pages(replica);
    uint64_t got = take_absent(replica, page, end, most, error);
    off_t offset = (off_t)(*page * GAIA_PAGE_SIZE);
    *bytes = got * GAIA_PAGE_SIZE;
    if (got && file->size - offset < (off_t)*bytes)
        *bytes = (size_t)(file->size - offset);
    bool touched = request->touched >= *page && request->touched < *page + got;
    *fill = (struct fill){.map = map,
                          .group = request->group,
                          .first = *page,
                          .count = got,
                          .touched = touched ? request->touched : FILL_NO_PAGE,
                          .store = request->store,
                          .thread = request->thread,
                          .truncations = file->truncations,
                          .size = file->size};
    pthread_mutex_unlock(&file->lock);
    cache_device_uncharge(replica->device, most - got);
    return got;
}

/* Of a page that was not even begun to be placed; unless somebody else has it, or is placing it, by now: the
 * touch finds out. */
static void refuse_unbegun(struct cache_map *map, const struct fill_request *request)
{
    struct replica *replica = map->replica;
    uint64_t number = request->touched >> LEAF_SHIFT;
    page_mask page = page_bit(request->touched);

    pthread_mutex_lock(&replica->file->lock);
    struct leaf_copy *copy = index_get_copy(&replica->file->index, number, replica);
    bool taken = copy && (copy->present | copy->busy) & page;
    if (copy && !taken)
        copy->busy |= page;
    pthread_mutex_unlock(&replica->file->lock);
    if (taken) {
        replica->frames->ops->wake(replica->frames, request->touched, 1);
        trace_served(map, request->touched, TRACE_AGAIN);
        return;
    }
    refuse(map, request->touched, request->count, request->thread);
    if (!copy) /* no memory */
        return;
    pthread_mutex_lock(&replica->file->lock);
    page_mask wake = replica_unbusy(copy, page);
    pthread_mutex_unlock(&replica->file->lock);
    replica_wake(replica, number, wake);
}

int fill_range(struct cache_map *map, const struct fill_request *request)
{
    uint64_t page = request->first, end = request->first + request->count;
    bool served = request->touched == FILL_NO_PAGE;
    int error = 0;

    if (!request->patient && (request->group || !served)) /* what is placed ahead only is not worth a wait */
        fit_to_place(map->replica);
    while (!error && page < end) {
        size_t bytes;
        struct fill *fill = calloc(1, sizeof *fill);
        if (!fill) {
            error = -ENOMEM;
            break;
        }
        uint64_t got = fill_next(map, request, &page, fill, &bytes, &error);
        if (!got) {
            free(fill);
            break;
        }
        served |= fill->touched != FILL_NO_PAGE;
        cache_map_get(map);
        fill_start(fill, bytes);
        page += got;
    }
    if (!served && error)
        refuse_unbegun(map, request);
    else if (!served) { /* somebody placed it meanwhile, or the file ends before it: the touch finds out */
        map->replica->frames->ops->wake(map->replica->frames, request->touched, 1);
        trace_served(map, request->touched, TRACE_AGAIN);
    }
    if (error) {
        group_begin(request->group);
        group_end(request->group, error);
    }
    return error;
}
