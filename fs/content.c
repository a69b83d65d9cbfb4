/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/content.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc_path.h"
#include "cache/cache.h"
#include "fs/fs.h"
#include "fs/nodes.h"

#define END_TOGETHER_NS UINT64_C(100000000)
#define END_PAUSE_US 1000u

struct content *inode_content(struct inode *inode)
{
    struct content *content = atomic_load_explicit(&inode->content, memory_order_acquire);

    if (content)
        order_after(content);
    return content;
}

static struct content *content_new(struct fs *fs)
{
    struct content *content = calloc(1, sizeof(*content));

    if (!content)
        return NULL;
    atomic_fetch_add(&fs->inodes.contents, 1);
    durable_init(&content->durable);
    /* A stream of reads must not keep inode_track() out for ever. */
    lock_rw_init(&content->gate, LOCK_GATE, true);
    return content;
}

void content_free(struct fs *fs, struct content *content)
{
    struct cache_file *file = content_file(content);

    if (file)
        cache_file_close(file);
    for (struct lost_file *lost; (lost = content->lost);) {
        content->lost = lost->next;
        cache_file_close(lost->file);
        free(lost);
    }
    durable_destroy(&content->durable);
    pthread_rwlock_destroy(&content->gate);
    free(content);
    atomic_fetch_sub(&fs->inodes.contents, 1);
}

struct durable *inode_durable(struct inode *inode)
{
    struct content *content = inode_content(inode), *expected = NULL;

    if (content)
        return &content->durable;
    content = content_new(inode->fs);
    if (!content)
        return NULL;
    pruner_look(inode->fs);
    uint64_t hash = file_hash(inode->dev, inode->ino);
    struct inode_shard *shard = shard_of_hash(&inode->fs->inodes, hash);
    pthread_mutex_lock(&shard->lock);
    bool unsynced = shard_is_unsynced(shard, hash);
    pthread_mutex_unlock(&shard->lock);
    if (unsynced) { /* here, or at a home; by programs, or by devices */
        durable_wrote(&content->durable, 0, 0, INT64_MAX, DURABLE_MERGED);
        durable_ask(&content->durable);
    }
    order_before(content); /* see inode_content() */
    if (atomic_compare_exchange_strong(&inode->content, &expected, content))
        return &content->durable;
    content_free(inode->fs, content);
    return &expected->durable;
}

struct cache_file *inode_usable(struct inode *inode)
{
    struct cache_file *file = inode_file(inode);

    return file && cache_file_is_lost(file) ? NULL : file;
}

int inode_set_file(struct inode *inode, struct cache_file *file)
{
    struct content *content = inode_content(inode);
    struct cache_file *old = inode_file(inode);

    if (old) {
        struct lost_file *lost = malloc(sizeof *lost);
        if (!lost)
            return -ENOMEM;
        *lost = (struct lost_file){content->lost, old};
        content->lost = lost;
        /* What its home had answered may have been in that machine's memory only: told before anybody can
         * sync at the next one. */
        uint64_t asked = durable_asked(&content->durable);
        if (cache_file_has_lost_stores(old))
            durable_fail(&content->durable, -EIO);
        else if (cache_file_has_died(old) && durable_is_asked(&content->durable))
            durable_fail_elsewhere(&content->durable, -EIO);
        durable_asked_synced(&content->durable, asked);
        cache_file_discard_write_backs(file, true); /* of the kernel, until nodes_settle() or the like */
    }
    passthrough_track(inode->fs, inode, file);
    return 0;
}

int inode_meet_storage(struct inode *inode)
{
    struct durable *durable = &inode_content(inode)->durable;
    struct fs *fs = inode->fs;

    if (fs->local || !fs->options.members)
        return 0;
    BORROWED path = inode_borrow(inode);
    int fd = path.fd;
    if (fd >= 0)
        fd = descriptors_openat(fs, AT_FDCWD, proc_path(fd).text, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    if (durable_is_written(durable))
        durable_store(durable, fd); /* of its errors it tells whoever syncs */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return 0;
}

/* The gate is held exclusively. */
static int become_home(struct inode *inode, int fd, struct durable *durable, struct cache_file **file_out)
{
    int rc = inode_meet_storage(inode);

    return rc < 0 ? rc : cache_file_open(inode->fs->cache, fd, inode, durable, file_out);
}

int inode_track(struct fs *fs, struct inode *inode, struct cache_file **file_out)
{
    struct cache_file *file = inode_usable(inode);
    struct durable *durable = inode_durable(inode);
    struct content *content = inode_content(inode);
    struct node_name name;
    struct stat st;
    bool again = false; /* one whose home has gone is replaced */
    int rc = 0;

    if (!durable)
        return -ENOMEM;
    if (fs->options.members && !nodes_name(inode, &name))
        return -EOPNOTSUPP;
    if (fs->options.members && !file) { /* who takes itself for the home by mistake is believed */
        rc = nodes_await_known(fs);
        file = inode_usable(inode);
        if (!file && rc < 0)
            return rc;
        rc = 0;
    }
    if (fs->options.members && (file ? cache_file_is_far(file) : !cache_is_home(fs->cache, &name)))
        return nodes_track(fs, inode, &name, file_out);
    if (!file) {
        BORROWED path = inode_borrow(inode);

        if (path.fd < 0)
            return path.fd;
        pthread_rwlock_wrlock(&content->gate);
        file = inode_usable(inode);
        if (!file) {
            rc = become_home(inode, path.fd, durable, &file);
            if (rc < 0 && descriptors_shed(fs, -rc))
                rc = become_home(inode, path.fd, durable, &file);
            /* After it: what changes in between one of the two sees. */
            if (rc == 0 && !inode_unchanged(inode, path.fd, &st))
                cache_file_behind(file);
            if (rc == 0) {
                again = inode_file(inode);
                rc = inode_set_file(inode, file);
                if (rc < 0)
                    cache_file_close(file);
            }
        }
        pthread_rwlock_unlock(&content->gate);
        if (again && rc == 0)
            nodes_settle(inode);
    }
    if (rc == 0) /* also where another thread has opened the file, and may not have told yet */
        rc = inode_writers_tell(inode);
    if (rc == 0 && fs->options.members && !cache_file_is_far(file)) /* by who was told of a home meanwhile */
        rc = cache_file_announce(file, &name);
    if (rc == 0)
        *file_out = file;
    return rc;
}

static struct cache_file *enter(struct inode *inode, bool alone)
{
    struct cache_file *file = inode_file(inode);
    struct content *content = inode_content(inode);

    if (!file) {
        if (alone)
            pthread_rwlock_wrlock(&content->gate);
        else
            pthread_rwlock_rdlock(&content->gate);
        file = inode_file(inode);
        if (file)
            pthread_rwlock_unlock(&content->gate);
    }
    return file;
}

struct cache_file *inode_gate_enter(struct inode *inode)
{
    return enter(inode, false);
}

struct cache_file *inode_gate_enter_alone(struct inode *inode)
{
    return enter(inode, true);
}

void inode_gate_leave(struct inode *inode, const struct cache_file *file)
{
    if (!file)
        pthread_rwlock_unlock(&inode_content(inode)->gate);
}

/* Two changes within one tick of the filesystem's clock look alike: a fresh change time proves nothing. */
static bool is_settled(struct timespec ctime)
{
    struct timespec now;
    int64_t age_ns;

    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    age_ns = (int64_t)(now.tv_sec - ctime.tv_sec) * 1000000000 + (now.tv_nsec - ctime.tv_nsec);
    return age_ns > 50000000;
}

static bool seen_is(const struct content *content, const struct stat *st)
{
    return content->seen.size == st->st_size && clock_same(content->seen.mtime, st->st_mtim) &&
           clock_same(content->seen.ctime, st->st_ctim);
}

static void see(struct content *content, const struct stat *st)
{
    content->seen.size = st->st_size;
    content->seen.mtime = st->st_mtim;
    content->seen.ctime = st->st_ctim;
}

/* But for the time of the last change of names and attributes. Lock held. */
static bool has_same_bytes(const struct content *content, const struct stat *st)
{
    return content->seen.size == st->st_size &&
           (content->seen.setting || clock_same(content->seen.mtime, st->st_mtim));
}

/* Whether it was as it was seen; otherwise as it is now is what was seen. Lock held. */
static bool compare(struct content *content, const struct stat *st)
{
    /* Beside a change of ours st says nothing; somebody else's is found out by the next open. */
    if (content->seen.changing)
        return true;
    if (content->seen.touching && content->seen.valid && has_same_bytes(content, st))
        return true;
    bool same = content->seen.valid && seen_is(content, st);
    content->seen.found += !same && content->seen.opened; /* with see(): the next finds it the same */
    content->seen.valid = same || is_settled(st->st_ctim);
    see(content, st);
    return same;
}

bool inode_unchanged(struct inode *inode, int fd, struct stat *st_out)
{
    struct content *content = inode_content(inode);
    struct inode_shard *shard = shard_of_inode(inode);
    uint64_t changes, touches;
    bool known, same;

    pthread_mutex_lock(&shard->lock);
    do { /* what a change of ours has moved meanwhile is seen, and st is from before it */
        changes = content->seen.changes;
        touches = content->seen.touches;
        pthread_mutex_unlock(&shard->lock);
        known = !fstat(fd, st_out);
        pthread_mutex_lock(&shard->lock);
    } while (known && touches != content->seen.touches && changes == content->seen.changes);
    same = known && (changes != content->seen.changes || compare(content, st_out));
    if (!known) /* nobody knows */
        content->seen.found += content->seen.opened;
    pthread_mutex_unlock(&shard->lock);
    if (!known)
        *st_out = (struct stat){0};
    return same;
}

uint64_t inode_opened(struct inode *inode, bool *again_out)
{
    struct content *content = inode_content(inode);
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    uint64_t found = content->seen.found != content->seen.dropped ? content->seen.found : 0;
    *again_out = content->seen.opened;
    content->seen.opened = true;
    pthread_mutex_unlock(&shard->lock);
    return found;
}

void inode_dropped(struct inode *inode, uint64_t found)
{
    struct content *content = inode_content(inode);
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    if (found > content->seen.dropped)
        content->seen.dropped = found;
    pthread_mutex_unlock(&shard->lock);
}

/* Whether nobody else has changed it until now. While others of ours are under way the times may be theirs.
 * Lock held. */
static bool is_ours(const struct content *content, const struct stat *st)
{
    if (content->seen.changing)
        return content->seen.change_ours;
    if (content->seen.touching)
        return content->seen.touch_ours && has_same_bytes(content, st);
    return seen_is(content, st);
}

void inode_change_begin(struct inode *inode, int fd, enum inode_change_kind kind,
                        struct inode_change *change_out)
{
    struct content *content = inode_content(inode);
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;
    bool known = content && !fstat(fd, &st);

    *change_out = (struct inode_change){.kind = kind, .content = content};
    if (!content)
        return;
    pthread_mutex_lock(&shard->lock);
    change_out->ours = known && is_ours(content, &st);
    if (kind == CHANGE_OF_BYTES) {
        content->seen.change_ours = change_out->ours;
        content->seen.changing++;
    } else {
        content->seen.touch_ours = change_out->ours;
        content->seen.touching++;
        content->seen.setting += kind == CHANGE_OF_TIMES;
    }
    pthread_mutex_unlock(&shard->lock);
}

void inode_change_end(struct inode *inode, int fd, const struct inode_change *change)
{
    struct content *content = change->content;
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;
    bool known = content && change->ours && !fstat(fd, &st);

    if (!content)
        return;
    pthread_mutex_lock(&shard->lock);
    if (change->kind == CHANGE_OF_BYTES) {
        content->seen.changing--;
        content->seen.changes++;
        content->seen.valid |= known;
    } else {
        known = known && has_same_bytes(content, &st);
        content->seen.touching--;
        content->seen.setting -= change->kind == CHANGE_OF_TIMES;
        content->seen.touches++;
    }
    if (known)
        see(content, &st);
    pthread_mutex_unlock(&shard->lock);
}

/* Whether this write-back is one of those that hold the end already; else, whether it is to take it. */
static bool join(struct inode *inode, bool *takes_out)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct content *content = inode_content(inode);

    pthread_mutex_lock(&shard->lock);
    bool held = content->end.users;
    bool joins = held && clock_now_ns() - content->end.since_ns < END_TOGETHER_NS;
    *takes_out = !held && !content->end.taking;
    content->end.users += joins;
    content->end.taking |= *takes_out;
    pthread_mutex_unlock(&shard->lock);
    return joins;
}

/* By a description of its own, which is nobody else's to let go of. */
static void take_end(struct inode *inode, int fd)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct content *content = inode_content(inode);
    struct cache_end held;

    cache_end_hold(inode->fs->cache, -1, fd, &content->end.missed, &held);
    pthread_mutex_lock(&shard->lock);
    content->end.held = held;
    content->end.since_ns = clock_now_ns();
    content->end.users = 1;
    content->end.taking = false;
    pthread_mutex_unlock(&shard->lock);
}

void inode_hold_end(struct inode *inode, int fd)
{
    bool takes;

    while (!join(inode, &takes)) {
        if (takes) {
            take_end(inode, fd);
            break;
        }
        usleep(END_PAUSE_US);
    }
}

void inode_let_end_go(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct content *content = inode_content(inode);

    pthread_mutex_lock(&shard->lock);
    struct cache_end held = content->end.held;
    bool last = --content->end.users == 0;
    pthread_mutex_unlock(&shard->lock);
    if (last)
        cache_end_let_go(&held);
}
