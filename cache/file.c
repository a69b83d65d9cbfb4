/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc_path.h"
#include "cache/agent.h"
#include "cache/drop.h"
#include "cache/fit.h"
#include "cache/home.h"
#include "cache/home_device.h"
#include "cache/internal.h"
#include "cache/odds.h"
#include "cache/passed.h"
#include "cache/sure.h"
#include "cache/tail.h"

/* A read for a device is nobody's access, and must not change the file's time of access. But for another
 * user's file only root's daemon may ask for that. */
static int open_quietly(const struct proc_path *path, int flags)
{
    int fd = open(path->text, flags | O_CLOEXEC | O_NOATIME);

    return fd < 0 && errno == EPERM ? open(path->text, flags | O_CLOEXEC) : fd;
}

/* Why a file may be read, and not written. */
static bool is_forbidden(int error)
{
    return error == EROFS || error == EACCES || error == EPERM || error == ETXTBSY;
}

static int open_backing(int path_fd, atomic_bool *writable_out)
{
    struct proc_path path = proc_path(path_fd);

    int fd = open_quietly(&path, O_RDWR);
    *writable_out = fd >= 0;
    if (fd < 0 && is_forbidden(errno))
        fd = open_quietly(&path, O_RDONLY);
    return fd < 0 ? -errno : fd;
}

int file_open_to_write(const struct cache_file *file)
{
    struct proc_path path = proc_path(file->fd);
    int fd = open_quietly(&path, O_RDWR);

    return fd >= 0 ? fd : is_forbidden(errno) ? -EACCES : -errno;
}

int file_make_writable(struct cache_file *file)
{
    if (file->writable)
        return 0;
    int fd = file_open_to_write(file);
    if (fd < 0)
        return fd;
    int error = claim_reopen(file, fd);
    close(fd);
    return error;
}

/* Of the file itself, for the engine another one; and of each replica, for its frames and for its state. */
#define DESCRIPTORS_OF_FILE 2u
#define DESCRIPTORS_OF_REPLICA 2u

/* Lock held. */
static size_t count_descriptors(const struct cache_file *file)
{
    return DESCRIPTORS_OF_FILE + DESCRIPTORS_OF_REPLICA * (file->entries - (GAIA_REPLICA_DEVICE - 1));
}

int cache_file_open(struct cache *cache, int path_fd, void *file_context, struct durable *durable,
                    struct cache_file **file_out)
{
    struct stat st;
    struct cache_file *file = calloc(1, sizeof *file);

    if (!file)
        return -ENOMEM;
    int error = file->fd = open_backing(path_fd, &file->writable);
    if (error < 0)
        goto out_free;
    error = fstat(file->fd, &st) ? -errno : 0;
    if (!error && !S_ISREG(st.st_mode))
        error = -EINVAL;
    if (!error)
        error = gaia_io_file_open(cache->io, file->fd, &file->io);
    if (error)
        goto out_close;
    file->cache = cache;
    file->context = file_context;
    file->durable = durable;
    file->hosted = hosted_of(file->fd);
    file->number = st.st_ino;
    file->size = st.st_size;
    file->ctime = st.st_ctim;
    file->entries = GAIA_REPLICA_DEVICE - 1; /* the CPU's */
    index_init(&file->index);
    heal_window_init(&file->window);
    reads_init(&file->reads);
    SLIST_INIT(&file->replicas);
    claim_init(&file->claim);
    lock_init(&file->lock, LOCK_FILE);
    lock_condition_init(&file->changed);
    pthread_mutex_lock(&cache->lock);
    LIST_INSERT_HEAD(&cache->files, file, link);
    pthread_mutex_unlock(&cache->lock);
    cache->descriptors += DESCRIPTORS_OF_FILE;
    *file_out = file;
    return 0;

out_close:
    close(file->fd);
out_free:
    free(file);
    return error;
}

int cache_file_open_far(struct cache *cache, const struct node_name *name, void *file_context,
                        struct durable *durable, struct cache_file **file_out)
{
    struct cache_file *file = calloc(1, sizeof *file);

    if (!file)
        return -ENOMEM;
    file->cache = cache;
    file->context = file_context;
    file->durable = durable;
    file->fd = -1;
    file->writable = true; /* the home knows better */
    index_init(&file->index);
    lock_init(&file->lock, LOCK_FILE);
    lock_condition_init(&file->changed);
    int error = agent_file_open(cache, name, file);
    if (!error) {
        *file_out = file;
        return 0;
    }
    pthread_cond_destroy(&file->changed);
    pthread_mutex_destroy(&file->lock);
    free(file);
    return error;
}

bool cache_file_is_far(const struct cache_file *file)
{
    return file->far;
}

bool cache_file_is_lost(const struct cache_file *file)
{
    return file->given_up || (file->far && call_session_error(file->far->session));
}

bool cache_file_has_died(const struct cache_file *file)
{
    return file->far && !file->far->handed;
}

bool cache_file_home_knows(const struct cache_file *file)
{
    return file->far && !file->far->handed && !file->discards && !cache_file_is_lost(file);
}

bool cache_file_is_sure(struct cache_file *file, enum cache_change change)
{
    return file->far || !file->cache->nodes ||
           nodes_need_not_wait(file, change == CACHE_WRITES_BACK ? 0
                                     : change == CACHE_COLLECTS  ? SURE_COLLECTS
                                                                 : KERNELS_NOBODY);
}

bool cache_is_sure(const struct cache *cache)
{
    return !cache->nodes || !nodes_must_wait(cache->nodes);
}

bool cache_is_at_odds(const struct cache *cache)
{
    return cache->nodes && nodes_at_odds(cache->nodes);
}

uint64_t cache_stalls(const struct cache *cache)
{
    return nodes_stalls(cache->nodes);
}

bool cache_file_is_at(const struct cache_file *file, const struct node_name *name)
{
    return file->far && file->far->member == nodes_home_of(file->cache->nodes, name);
}

void cache_file_discard_write_backs(struct cache_file *file, bool discard)
{
    file->discards = discard;
}

bool cache_file_discards(const struct cache_file *file)
{
    return file->discards;
}

/* Whether anything of this node's devices has been released and not collected. Lock held. */
static void note_stores(struct leaf *leaf, void *context)
{
    struct leaf_copy *copy;
    bool *stores = context;

    SLIST_FOREACH (copy, &leaf->copies, link)
        *stores |= !copy->replica->device->node && (copy->pending || copy->releasing);
}

int cache_file_give_way(struct cache_file *file, uint64_t generation)
{
    struct replica *replica = NULL;
    bool stores = false;

    /* What is released later is not acknowledged: replica_give_up(), cache_map_release(). Agents' programs
     * are told by what takes the file's place there. */
    pthread_mutex_lock(&file->lock);
    if (!file->far && file->generation >= generation) {
        pthread_mutex_unlock(&file->lock);
        return -EBUSY;
    }
    if (!file->far && !file->given_up)
        index_each(&file->index, note_stores, &stores);
    if (stores)
        file->lost_stores = true;
    bool before = atomic_exchange(&file->given_up, true);
    while (!before && !file->far &&
           (replica = replica ? SLIST_NEXT(replica, link) : SLIST_FIRST(&file->replicas)))
        replica_give_up(replica); /* before what it holds is forgotten */
    uint64_t pages = file_pages(file->size);
    pthread_mutex_unlock(&file->lock);
    if (before || file->far)
        return 0;
    while ((replica = file_next_replica(file, replica))) {
        home_device_lose(replica);
        replica_changed(replica); /* an acquire is to come, and fail */
        replica->frames->ops->drop(replica->frames, 0, pages);
    }
    claim_give_up(file);
    return 0;
}

void cache_file_give_up(struct cache_file *file)
{
    cache_file_give_way(file, UINT64_MAX);
}

bool cache_file_has_lost_stores(const struct cache_file *file)
{
    return file->lost_stores;
}

static void close_far(struct cache_file *file)
{
    agent_file_close(file);
    pthread_cond_destroy(&file->changed);
    pthread_mutex_destroy(&file->lock);
    free(file);
}

static void forget_leaf(struct leaf *leaf, void *context)
{
    (void)context;
    for (struct leaf_copy *copy = SLIST_FIRST(&leaf->copies), *next; copy; copy = next) {
        next = SLIST_NEXT(copy, link);
        cache_device_uncharge(copy->replica->device, replica_forget(copy, ~UINT64_C(0)));
        replica_settle(copy);
    }
}

void cache_file_close(struct cache_file *file)
{
    struct replica *replica;

    if (file->far) {
        close_far(file);
        return;
    }
    pthread_mutex_lock(&file->cache->lock);
    LIST_REMOVE(file, link);
    pthread_mutex_unlock(&file->cache->lock);
    pthread_mutex_lock(&file->lock);
    file->cache->descriptors -= count_descriptors(file);
    pthread_mutex_unlock(&file->lock);
    /* Nobody else has the file now: no map, no operation. What is still resident was unlinked, or flushed
     * before. */
    pthread_mutex_lock(&file->lock);
    index_each(&file->index, forget_leaf, NULL);
    pthread_mutex_unlock(&file->lock);
    while ((replica = SLIST_FIRST(&file->replicas))) {
        SLIST_REMOVE_HEAD(&file->replicas, link);
        replica_close(replica);
    }
    home_untrack(file);
    kernels_free(file);
    heal_window_free(file);
    index_free(&file->index);
    gaia_io_file_close(file->io);
    close(file->fd);
    pthread_cond_destroy(&file->changed);
    pthread_mutex_destroy(&file->lock);
    claim_destroy(&file->claim);
    free(file);
}

void file_use(struct cache_file *file)
{
    file->uses++;
    pthread_mutex_lock(&file->lock);
    bool tell = !file->pinned;
    file->pinned = true;
    pthread_mutex_unlock(&file->lock);
    lock_none("cache_host.pin");
    if (tell)
        file->cache->host.pin(file->cache->host.context, file->context, true);
}

/* Lock held, and no use left but the caller's: no map, and no operation is under way. */
static void drop_all(struct cache_file *file)
{
    struct replica *replica;

    index_each(&file->index, forget_leaf, NULL);
    file->size = 0;
    file->truncations++;
    SLIST_FOREACH (replica, &file->replicas, link)
        fit_later(replica);
}

void file_unuse(struct cache_file *file)
{
    struct cache *cache = file->cache;
    void *context = file->context;

    pthread_mutex_lock(&file->lock);
    /* With nothing in the index nobody can come by a use through a device's list: 0 stays 0 but for
     * file_use(). */
    if (file->uses == 1 && file->discarded && (file->size || file->index.leaves.count)) {
        drop_all(file);
        fit_begin(file); /* nobody is told anything: not waited for */
    }
    bool tell = --file->uses == 0 && file->pinned && !file->index.leaves.count;
    if (tell)
        file->pinned = false;
    pthread_mutex_unlock(&file->lock);
    lock_none("cache_host.pin");
    if (tell)
        cache->host.pin(cache->host.context, context, false);
}

void file_unpin_if_empty(struct cache_file *file)
{
    file_use(file);
    file_unuse(file);
}

void cache_file_hold(struct cache_file *file)
{
    file_use(file);
}

size_t cache_count_descriptors(struct cache *cache)
{
    return atomic_load(&cache->descriptors);
}

bool cache_file_shed(struct cache_file *file, bool all, size_t *descriptors_out)
{
    struct replica *replica = NULL;
    bool recent = atomic_exchange(&file->recent, false);
    bool before = file->let_go; /* in vain: somebody has the inode all the same */

    *descriptors_out = 0;
    if (file->far || file->given_up || ((recent || before) && !all))
        return false;
    if (file->cache->nodes && !nodes_are_sure(file->cache->nodes))
        return false;
    file_use(file);
    bool shed = file->uses == 1; /* who comes now finds the pages there, or has them brought */
    while (shed && (replica = file_next_replica(file, replica)))
        shed = drop_range(replica, 0, INT64_MAX / GAIA_PAGE_SIZE) == 0;
    pthread_mutex_lock(&file->lock);
    shed &= file->uses == 1 && !file->index.leaves.count;
    if (shed && !before)
        *descriptors_out = count_descriptors(file);
    file->let_go = shed; /* who maps it clears that after file_use(), which waits for the lock */
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
    return shed;
}

void cache_file_discard(struct cache_file *file)
{
    struct stat st;

    if (file->far) /* its home finds out */
        return;
    if (!fstat(file->fd, &st) && st.st_nlink) /* the way to it was lost (fs/place.h), and not the file */
        return;
    file_use(file);
    pthread_mutex_lock(&file->lock);
    file->discarded = true; /* a client's maps, or an operation that is under way, may be there yet */
    pthread_mutex_unlock(&file->lock);
    file_unuse(file);
}

int file_get_replica(struct cache_file *file, unsigned device_number, bool read_only,
                     struct replica **replica_out)
{
    struct cache_device *device;
    struct replica *replica, *before = NULL;

    if (file->given_up) /* cache_file_give_up() has seen to those that are there */
        return -EIO;
    int error = cache_get_device(file->cache, device_number, &device);
    if (error)
        return error;
    read_only &= device->scans; /* the others' descriptors can be made read only */
    SLIST_FOREACH (replica, &file->replicas, link) {
        if (replica->device == device && replica->read_only == read_only) {
            *replica_out = replica;
            return gaia_node_frames_gone(replica->frames) ? home_device_renew(replica, file_pages(file->size))
                                                          : 0;
        }
        if (replica->device->number < device_number)
            before = replica;
    }
    error = replica_open(file, device, file_pages(file->size), file->entries + 1, read_only, &replica);
    if (error)
        return error;
    file->entries++;
    file->cache->descriptors += DESCRIPTORS_OF_REPLICA;
    if (before)
        SLIST_INSERT_AFTER(before, replica, link);
    else
        SLIST_INSERT_HEAD(&file->replicas, replica, link);
    *replica_out = replica;
    return 0;
}

struct replica *file_next_replica(struct cache_file *file, struct replica *replica)
{
    pthread_mutex_lock(&file->lock);
    replica = replica ? SLIST_NEXT(replica, link) : SLIST_FIRST(&file->replicas);
    pthread_mutex_unlock(&file->lock);
    return replica;
}

#define HELD_NS UINT64_C(4000000)
#define LET_IN_US 50u

void file_let_others_in(struct cache_file *file, uint64_t *since_ns)
{
    if (clock_now_ns() - *since_ns < HELD_NS)
        return;
    pthread_mutex_unlock(&file->lock);
    usleep(LET_IN_US);
    pthread_mutex_lock(&file->lock);
    *since_ns = clock_now_ns();
}

void file_suspect_others(struct leaf *leaf, const struct replica *except, page_mask pages)
{
    struct leaf_copy *copy;

    SLIST_FOREACH (copy, &leaf->copies, link)
        if (copy->replica != except && (copy->present | copy->busy) & pages)
            replica_suspect(copy);
}

void file_cpu_modified(struct leaf *leaf, page_mask pages)
{
    leaf->cpu_modified |= pages;
    file_suspect_others(leaf, NULL, pages);
}

int file_cpu_release(struct cache_file *file, struct leaf *leaf, page_mask pages)
{
    page_mask modified = leaf->cpu_modified & pages;

    if (!modified)
        return 0;
    int error = leaf_versions_reserve(&file->index, leaf, modified, file->entries);
    if (error)
        return error;
    leaf->cpu_modified &= ~modified;
    for (; modified; modified &= modified - 1) {
        struct gaia_page_versions page = leaf_page_versions(leaf, (unsigned)__builtin_ctzll(modified));
        gaia_rule_cpu_release(&page);
    }
    return 0;
}

int file_grows(struct cache_file *file, off_t size)
{
    if (size <= file->size || file->passed)
        return 0;
    tail_keep_twins(file, file->size);
    int error = tail_clear(file, file->size, TAIL_GROWS);
    file->tail_cleared = !error;
    return error;
}

void file_shrinks(struct cache_file *file, off_t size)
{
    if (size < file->size && !file->passed)
        tail_keep_twins(file, size);
}

struct shrink {
    struct cache_file *file;
    uint64_t pages;
};

static void shrink_leaf(struct leaf *leaf, void *context)
{
    const struct shrink *shrink = context;
    page_mask gone = ~page_range_mask(leaf->number, 0, shrink->pages);

    if (!gone)
        return;
    leaf->cpu_modified &= ~gone;
    /* A write() past the end gives them to the kernel without being seen here. */
    leaf->kernel |= gone;
    leaf->refilled |= gone;
    for (struct leaf_copy *copy = SLIST_FIRST(&leaf->copies), *next; copy; copy = next) {
        next = SLIST_NEXT(copy, link);
        replica_changed(copy->replica);
        /* What is being placed may be seen already where it is (place_later()): an acquire waits for its end.
         */
        if (copy->busy & ~copy->present & gone)
            replica_suspect(copy);
        cache_device_uncharge(copy->replica->device, replica_forget(copy, gone));
        replica_settle(copy);
    }
}

void file_resized(struct cache_file *file, off_t size)
{
    off_t old = file->size;
    off_t end = size < old ? size : old;
    enum tail when = size < old ? TAIL_CUT : file->tail_cleared ? TAIL_GROWN_REST : TAIL_GROWN;
    struct replica *replica;

    file->tail_cleared = false;
    if (size == old)
        return;
    file->size = size;
    kernels_resized(file);
    if (size < old) {
        file->truncations++;
        SLIST_FOREACH (replica, &file->replicas, link)
            replica_cut(replica, (uint64_t)size);
        index_each(&file->index, shrink_leaf, &(struct shrink){file, file_pages(size)});
    }
    tail_clear(file, end, when);
    if (file_pages(size) == file_pages(old))
        return;
    SLIST_FOREACH (replica, &file->replicas, link) {
        fit_later(replica);
        /* An acquire must come: no touch brings what is new to a device that scans, and what is above a soft
         * device (gpu/demand_map.h) has zeros of it. */
        replica_changed(replica);
    }
}

bool file_unchanged(struct cache_file *file)
{
    struct stat st;

    return !fstat(file->fd, &st) && clock_same(st.st_ctim, file->ctime);
}

void file_stamp(struct cache_file *file, bool unchanged_before)
{
    struct stat st;

    /* What other mounts have changed beside it is in these times, too: then all is looked at. */
    if (unchanged_before && !claim_is_shared(file) && !fstat(file->fd, &st))
        file->ctime = st.st_ctim;
}

static void mark_leaf(struct leaf *leaf, void *context)
{
    struct leaf_copy *copy;
    page_mask held = 0;

    (void)context;
    SLIST_FOREACH (copy, &leaf->copies, link) {
        held |= copy->present | copy->busy;
        if (copy->replica->scans && !copy->replica->read_only) {
            copy->blind |= copy->present & ~copy->twin;
            copy->raced |= copy->busy & ~copy->present;
        }
    }
    file_cpu_modified(leaf, held);
}

void file_all_modified(struct cache_file *file)
{
    index_each(&file->index, mark_leaf, NULL);
}

int file_check_behind(struct cache_file *file)
{
    struct stat st;
    struct replica *replica;

    if (fstat(file->fd, &st)) {
        if (errno != ESTALE)
            return -errno;
        /* Deleted at the server, where descriptors still lead to its bytes: nobody finds it to change it. */
        st = (struct stat){.st_ctim = file->ctime, .st_size = file->size};
    }
    if (!clock_same(st.st_ctim, file->ctime) || st.st_size != file->size) {
        file_resized(file, st.st_size);
        if (!passed_is_compared(file)) /* else its times say nothing, and acquires look at the bytes */
            file_all_modified(file);
        file->ctime = st.st_ctim;
        file->behind++;
        file->suspect |= file->cache->nodes && !nodes_are_sure(file->cache->nodes);
    }
    SLIST_FOREACH (replica, &file->replicas, link)
        replica_checked(replica);
    return 0;
}
