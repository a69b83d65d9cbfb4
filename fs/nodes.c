/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs/content.h"
#include "fs/later.h"
#include "fs/log.h"
#include "fs/loop.h"
#include "fs/session.h"
#include "fs/trouble.h"

#define MOVE_PAUSE_MS 100u

bool nodes_name(const struct inode *inode, struct node_name *name_out)
{
    if (!inode->handle_bytes || inode->handle_bytes > NODE_NAME_MAX ||
        inode->volume != inode->fs->root->volume)
        return false;
    *name_out = (struct node_name){.type = inode->handle_type, .length = inode->handle_bytes};
    memcpy(name_out->bytes, inode->handle, inode->handle_bytes);
    return true;
}

struct sought {
    const struct node_name *name;
    struct inode *inode;
};

static int is_sought(struct inode *inode, void *context)
{
    struct sought *sought = context;
    struct node_name name;

    if (!nodes_name(inode, &name) || name.type != sought->name->type || name.length != sought->name->length ||
        memcmp(name.bytes, sought->name->bytes, name.length) != 0)
        return 0;
    inode_get(inode);
    sought->inode = inode;
    return 1;
}

/* Only among those whose bytes have been asked for: nobody needs another one here. */
static int opened_of_name(struct fs *fs, const struct node_name *name, struct inode **inode_out)
{
    struct sought sought = {.name = name};
    int rc = fs_each_opened(fs, is_sought, &sought);

    *inode_out = sought.inode;
    return rc < 0 ? rc : sought.inode ? 0 : -ESTALE;
}

static int open_name(struct fs *fs, const struct node_name *name, struct stat *st_out)
{
    int fd = volume_open(fs->root->volume, name->type, name->bytes, name->length);

    if (descriptors_shed(fs, -fd))
        fd = volume_open(fs->root->volume, name->type, name->bytes, name->length);
    if (fd < 0)
        return fd;
    int rc = fstat(fd, st_out) ? -errno : S_ISREG(st_out->st_mode) ? fd : -EINVAL;
    if (rc < 0)
        close(fd);
    return rc;
}

/* The inode of a name, with a reference. The kernel says ESTALE whatever went wrong as it opened a handle,
 * and for some filesystems it asks a server first. A file that somebody has open is not gone for that, nor
 * for anything else that went wrong: a home that could not tell this node would stay unknown to it. */
static int inode_of_name(struct fs *fs, const struct node_name *name, struct inode **inode_out)
{
    struct stat st;

    if (!fs->root->volume)
        return -EOPNOTSUPP;
    int fd = open_name(fs, name, &st);
    if (fd < 0) {
        int rc = opened_of_name(fs, name, inode_out);
        return rc == -ESTALE ? fd : rc;
    }
    int rc = inode_lookup(fs, fd, &st, NULL, NULL, inode_out);
    if (rc < 0)
        return rc;
    inode_get(*inode_out);
    inode_forget(*inode_out, 1);
    return 0;
}

int nodes_find(void *context, const struct node_name *name, struct cache_file **file_out)
{
    struct inode *inode;
    int rc = inode_of_name(context, name, &inode);

    if (rc < 0)
        return rc;
    struct cache_file *file = inode_usable(inode);
    if (!file || cache_file_is_far(file))
        rc = -ESTALE;
    else
        cache_file_hold(file);
    inode_put(inode);
    *file_out = file;
    return rc;
}

int nodes_track_here(void *context, const struct node_name *name, struct cache_file **file_out)
{
    struct fs *fs = context;
    struct inode *inode;
    int rc = inode_of_name(fs, name, &inode);

    if (rc < 0)
        return rc;
    struct cache_file *file = inode_usable(inode);
    /* Who asks takes us for the home; it may not know yet who is down, or we may not. */
    if (file ? cache_file_is_far(file) : !cache_is_home(fs->cache, name))
        rc = -ESTALE;
    else
        rc = inode_track(fs, inode, file_out);
    if (rc == 0)
        cache_file_hold(*file_out);
    inode_put(inode);
    return rc;
}

static bool is_at_home(const struct cache_file *file, const struct node_name *name)
{
    return file && (!cache_file_is_far(file) || cache_file_is_at(file, name));
}

/* Whether the file is to be the inode's, as no other one is, or one that another thread has opened meanwhile
 * at who was the home when it asked: that one gives the file up, and says so to nobody. Within the gate. */
static bool is_wanted(struct inode *inode, const struct cache_file *file, const struct node_name *name)
{
    struct cache_file *usable = inode_usable(inode);

    if (usable && !is_at_home(usable, name) && is_at_home(file, name))
        cache_file_give_up(usable);
    return !inode_usable(inode);
}

enum drop { DROP_NOTHING, DROP_ALL, DROP_STALE };

/* The kernel has dropped what it had from under another home. The count first: see is_discarded() of
 * fs/ops_data.c. */
static void take_write_backs(struct inode *inode, struct cache_file *file)
{
    if (!cache_file_discards(file))
        return;
    atomic_fetch_add(&inode_content(inode)->settled, 1);
    cache_file_discard_write_backs(file, false);
}

/* From now on the home is asked. What the kernel has of the file it has from the data directory: what
 * programs have stored is written back there first; what they store meanwhile goes to the home. DROP_STALE:
 * the home has tracked the file for a while, and it would undo what was changed since: it is lost. */
static int go_far(struct fs *fs, struct inode *inode, const struct node_name *name, enum drop drop)
{
    struct durable *durable = inode_durable(inode);
    struct content *content = inode_content(inode);
    struct cache_file *file;

    if (!durable)
        return -ENOMEM;
    if (drop == DROP_ALL && !inode_file(inode))
        session_invalidate(fs, inode, 0, 0);
    int rc = cache_file_open_far(fs->cache, name, inode, durable, &file);
    if (rc == -ESTALE) /* not any more */
        return 0;
    if (rc < 0)
        return rc;
    cache_file_discard_write_backs(file, drop == DROP_STALE);
    pthread_rwlock_wrlock(&content->gate); /* no untracked operation is in flight */
    bool ours = is_wanted(inode, file, name), again = ours && inode_file(inode);
    if (ours && (rc = inode_meet_storage(inode)) == -ESTALE) /* deleted: nor is it for the home */
        rc = 0;
    if (ours && rc == 0)
        rc = inode_set_file(inode, file);
    pthread_rwlock_unlock(&content->gate);
    if (!ours || rc < 0) /* another thread was first: the file is not known any more */
        cache_file_close(file);
    if (drop && rc == 0) {
        struct cache_file *usable = ours ? file : inode_usable(inode);
        if (usable) /* WRITEs on their way may meet what follows: the home must know */
            cache_file_opened(usable);
        session_invalidate(fs, inode, 0, 0);
        if (ours) {
            take_write_backs(inode, file);
            cache_file_tell_size(file);
        }
    } else if (again && rc == 0) {
        nodes_settle(inode);
    }
    return rc ? rc : inode_writers_tell(inode);
}

/* The home begins just now, and waits for this: so does what would make this node sure, if it is not. (If two
 * tell at once, what is written may wait for longer.) */
static int go_far_in_time(struct fs *fs, struct inode *inode, const struct node_name *name, uint64_t stalls)
{
    atomic_store(&inode_content(inode)->awaited, 1 + stalls);
    int rc = go_far(fs, inode, name, DROP_ALL);
    atomic_store(&inode_content(inode)->awaited, 0);
    return rc;
}

off_t nodes_size(struct inode *inode, off_t size)
{
    /* Also while the home has gone and there is no next one yet. */
    struct cache_file *file = inode->fs->local ? NULL : inode_file(inode);
    bool cut = false;
    off_t said = file ? cache_file_said_size(file, &cut) : -1;

    return said > size || cut ? said : size;
}

static void settle(void *argument)
{
    struct inode *inode = argument;
    struct cache_file *file = inode_usable(inode);

    session_invalidate(inode->fs, inode, 0, 0);
    if (file) {
        take_write_backs(inode, file);
        cache_file_tell_size(file);
    }
    inode_put(inode);
}

void nodes_settle(struct inode *inode)
{
    inode_get(inode);
    if (later_perhaps(inode->fs, settle, inode))
        return;
    /* Not here: the kernel may hold a write back until this request of its own is answered. */
    atomic_store(&inode_content(inode)->unsettled, true);
    inode_put(inode);
}

/* Of two that are homes of one file the one keeps it that has become it later: the other was taken to be
 * dead, and may have been still, or cut off, for a while. An older one than that which is followed does not
 * come here. */
static int give_way(struct cache_file *file, const struct node_name *name, uint64_t generation)
{
    if (cache_file_is_far(file) && cache_file_is_at(file, name))
        return 0;
    return cache_file_give_way(file, generation);
}

static bool try_later(unsigned *waited_ms, unsigned most_ms)
{
    if (*waited_ms >= most_ms)
        return false;
    usleep(MOVE_PAUSE_MS * 1000);
    *waited_ms += MOVE_PAUSE_MS;
    return true;
}

/* The inode's file is lost: find its next home. Who has found one may wait long for the kernel to drop a page
 * that it keeps locked for a WRITE, which finds that home gone, too, and waits for the one after it. */
static void find_home(struct fs *fs, struct inode *inode)
{
    struct content *content = inode_content(inode);
    struct cache_file *lost = inode_file(inode), *file;
    unsigned waited_ms = 0;
    int rc;

    atomic_store(&content->sought, lost);
    do
        rc = fs->serving ? inode_track(fs, inode, &file) : 0;
    while (rc < 0 && fs->serving && try_later(&waited_ms, cache_move_ms(fs->cache)));
    if (rc < 0 && fs->serving)
        fs_log(LOG_ERR, "a file whose home has gone has no other: %s: programs get EIO", strerror(-rc));
    atomic_compare_exchange_strong(&content->sought, &lost, NULL);
    /* What the kernel holds may be older than what others have written since. */
    session_invalidate(fs, inode, 0, 0);
}

static void find_home_later(void *argument)
{
    struct inode *inode = argument;

    find_home(inode->fs, inode);
    inode_put(inode);
}

int nodes_follow(void *context, const struct node_name *name, uint64_t generation,
                 const struct cache_told *told)
{
    struct inode *inode;
    int rc = inode_of_name(context, name, &inode);

    if (rc < 0) /* deleted meanwhile, or not to be had: nor is it for anybody here */
        return rc == -ESTALE || rc == -EINVAL ? 0 : rc;
    struct cache_file *file = inode_usable(inode);
    bool was_home = file && !cache_file_is_far(file);
    rc = file ? give_way(file, name, generation) : 0;
    bool gave_up = file && rc == 0 && !inode_usable(inode);
    if (was_home && rc == 0) /* also where another thread has found the next home meanwhile */
        trouble_of_a_home(inode, cache_file_has_lost_stores(file));
    if (rc == 0 && inode_content(inode) && !is_at_home(inode_usable(inode), name))
        rc = told->late ? go_far(context, inode, name, DROP_STALE)
                        : go_far_in_time(context, inode, name, told->stalls);
    else if (rc == 0 && inode_usable(inode)) /* by another thread, which may not have told yet */
        rc = inode_writers_tell(inode);
    /* Who has taken it over has died, too, and nobody else knows, or can't be asked now. Not here: for the
     * answer to this the one waits whom find_home() may have to wait for. Without a thread nobody does until
     * the file is used: nodes_try_again(). */
    if (gave_up && !inode_usable(inode) && inode_get_if_used(inode) &&
        !later_perhaps(context, find_home_later, inode))
        inode_put(inode);
    inode_put(inode);
    return rc;
}

/* Tried again until another is known to be the home, or this node is it. */
static bool home_moves(const struct inode *inode, bool here, int error)
{
    struct node_name name;

    return error < 0 && !here && inode->fs->serving && nodes_name(inode, &name) &&
           cache_home_moves(inode->fs->cache, &name, error);
}

/* 0 also when it is not followed (any more). */
static int follow(struct fs *fs, struct inode *inode, const struct node_name *name, bool opening)
{
    return inode_usable(inode) || !cache_follows(fs->cache, name)
               ? 0
               : go_far(fs, inode, name, opening ? DROP_ALL : DROP_NOTHING);
}

/* Of a file of which a node that stood still is just being told, what the kernel has is dropped by who is
 * told, and knows whether it is stale: nodes_follow(). */
static void await_follower(struct fs *fs, struct inode *inode, const struct node_name *name)
{
    unsigned waited_ms = 0;

    if (cache_is_sure(fs->cache) || !cache_follows(fs->cache, name) || !loop_wait_begin())
        return;
    while (!inode_usable(inode) && !cache_is_sure(fs->cache) && fs->serving &&
           try_later(&waited_ms, cache_sure_ms(fs->cache)))
        ;
    loop_wait_end();
}

int nodes_catch_up(struct inode *inode, bool opening)
{
    struct fs *fs = inode->fs;
    struct node_name name;
    unsigned waited_ms = 0;

    if (inode_content(inode) && atomic_exchange(&inode_content(inode)->unsettled, false))
        nodes_settle(inode);
    if (!fs->options.members || inode_usable(inode) || !nodes_name(inode, &name))
        return 0;
    await_follower(fs, inode, &name);
    bool here = cache_is_home(fs->cache, &name);
    int rc = follow(fs, inode, &name, opening);
    if (home_moves(inode, here, rc) && loop_wait_begin()) {
        while (home_moves(inode, here, rc) && try_later(&waited_ms, cache_move_ms(fs->cache))) {
            here = cache_is_home(fs->cache, &name);
            rc = follow(fs, inode, &name, opening);
        }
        loop_wait_end();
    }
    return rc;
}

int nodes_track(struct fs *fs, struct inode *inode, const struct node_name *name,
                struct cache_file **file_out)
{
    if (!inode_durable(inode))
        return -ENOMEM;
    if (!inode_usable(inode)) {
        int rc = cache_track_far(fs->cache, name);
        /* It may have told us before, when we still took another for the home: it does so once only. */
        if (rc == 0 && !inode_usable(inode))
            rc = go_far(fs, inode, name, DROP_ALL);
        if (rc < 0)
            return rc;
    }
    *file_out = inode_usable(inode);
    return *file_out && cache_file_is_far(*file_out) ? 0 : -EIO;
}

int nodes_track_to_map(struct inode *inode, struct cache_file **file_out)
{
    struct fs *fs = inode->fs;
    struct node_name name;
    unsigned waited_ms = 0;
    bool here;
    int rc;

    do {
        here = !fs->options.members || !nodes_name(inode, &name) || cache_is_home(fs->cache, &name);
        rc = inode_track(fs, inode, file_out);
    } while (home_moves(inode, here, rc) && try_later(&waited_ms, cache_move_ms(fs->cache)));
    return rc;
}

bool nodes_map_again(struct fs *fs, int error, unsigned *waited_ms)
{
    return error == -EINPROGRESS && fs->serving && try_later(waited_ms, cache_move_ms(fs->cache));
}

bool nodes_keep(void *context, void *file_context)
{
    (void)context;
    return inode_get_if_used(file_context);
}

/* Ends what nodes_keep() began. */
void nodes_moved(void *context, void *file_context)
{
    find_home(context, file_context);
    inode_put(file_context);
}

void nodes_sync(void *context)
{
    struct fs *fs = context;
    BORROWED path = inode_borrow(fs->root);
    int error = path.fd < 0 ? path.fd : 0;
    int fd = -1;

    if (!error)
        fd = error = descriptors_openat(fs, path.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0)
        error = syncfs(fd) ? -errno : 0;
    /* Perhaps of a file of somebody else's; nobody has ours open. */
    if (error < 0)
        fs_log(LOG_WARNING,
               "data directory %s: its filesystem could not be synced: %s: what nobody has open may be lost",
               fs->data_path, strerror(-error));
    if (fd >= 0)
        close(fd);
}

void nodes_warn(void *context, const char *text)
{
    (void)context;
    fs_log(LOG_WARNING, "%s", text);
}

/* Of a file that nobody tracks: who is about to waits for what the kernel writes back. */
static bool is_awaited(struct inode *inode)
{
    const struct content *content = inode_content(inode);
    uint64_t awaited = content ? atomic_load(&content->awaited) : 0;

    return awaited && awaited == 1 + cache_stalls(inode->fs->cache);
}

/* What collects concerns tracked files only. */
static bool is_sure(struct inode *inode, struct cache_file *file, enum cache_change change)
{
    if (file)
        return cache_file_is_sure(file, change);
    return change == CACHE_COLLECTS || !inode->fs->options.members || cache_is_sure(inode->fs->cache) ||
           (change == CACHE_WRITES_BACK && is_awaited(inode));
}

static void await_sure(struct inode *inode, struct cache_file *file, enum cache_change change)
{
    unsigned waited_ms = 0;

    if (is_sure(inode, file, change))
        return;
    bool begun = loop_wait_begin(); /* where many wait already this one does, too */
    while (inode_file(inode) == file && !is_sure(inode, file, change) && inode->fs->serving &&
           try_later(&waited_ms, cache_sure_ms(inode->fs->cache)))
        ;
    if (begun)
        loop_wait_end();
}

int nodes_await_sure(struct inode *inode, enum cache_change change)
{
    struct cache_file *file = inode_file(inode);

    await_sure(inode, file, change);
    bool far = file && cache_file_is_far(file);
    return change != CACHE_COLLECTS && !far && cache_is_at_odds(inode->fs->cache) ? -EIO : 0;
}

int nodes_await_known(const struct fs *fs)
{
    unsigned waited_ms = 0;

    while (!cache_is_sure(fs->cache) && fs->serving && try_later(&waited_ms, cache_sure_ms(fs->cache)))
        ;
    return cache_is_at_odds(fs->cache) ? -EIO : 0;
}

/* Nobody looks for another one any more, if there was none to be had when it had gone; or who does has found
 * this one. */
static void seek_home(struct inode *inode, struct cache_file *file)
{
    struct content *content = inode_content(inode);

    if (inode_file(inode) != file || atomic_exchange(&content->sought, file) == file)
        return;
    inode_get(inode);
    if (!later_perhaps(inode->fs, find_home_later, inode)) {
        atomic_compare_exchange_strong(&content->sought, &file, NULL);
        inode_put(inode);
    }
}

bool nodes_try_again(struct inode *inode, struct cache_file *file, ssize_t result)
{
    unsigned waited_ms = 0;

    if (result != -EIO || !file || !cache_file_is_lost(file))
        return false;
    seek_home(inode, file);
    if (loop_wait_begin()) {
        unsigned most_ms = cache_move_ms(inode->fs->cache);
        while (inode_file(inode) == file && inode->fs->serving && try_later(&waited_ms, most_ms))
            ;
        loop_wait_end();
    }
    return inode_file(inode) != file;
}

void nodes_reread(struct fs *fs)
{
    const struct members *old = fs->members ? fs->members : fs->options.members;
    struct members *fresh;
    char why[MEMBERS_WHY], met[CACHE_WHY];

    int rc = members_read(fs->options.peers, fs->options.node, &fresh, why);
    if (rc < 0) {
        fs_log(LOG_ERR, "reading %.300s again: %s: the members stay as they were", fs->options.peers, why);
        return;
    }
    if (fresh->epoch == old->epoch) {
        members_free(fresh);
        return;
    }
    rc = cache_set_members(fs->cache, fresh, met);
    if (rc == -EBUSY) {
        fs_log(LOG_ERR, "reading %.300s again: %s; the members stay as they were", fs->options.peers, met);
        members_free(fresh);
        return;
    }
    if (rc < 0) {
        fs_log(LOG_ERR,
               "reading %.300s again: more than %u nodes in the course of this mount: the members stay as "
               "they were",
               fs->options.peers, MEMBERS_MAX);
        members_free(fresh);
        return;
    }
    fs_log(LOG_NOTICE, "there are %u nodes now%s%s", fresh->count, *met ? ": " : "", met);
    members_free(fs->members); /* those of the options stay: that there are members is asked everywhere */
    fs->members = fresh;
}
