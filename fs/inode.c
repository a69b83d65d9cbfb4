/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache.h"
#include "fs/fs.h"

#define INITIAL_BUCKETS 256u

static uint64_t hash_of(dev_t dev, ino_t ino)
{
    uint64_t hash = (uint64_t)ino * 0x9e3779b97f4a7c15u ^ (uint64_t)dev * 0xc2b2ae3d27d4eb4fu;

    hash ^= hash >> 32;
    return hash * 0xd6e8feb86659fd93u;
}

static struct inode_shard *shard_of(struct inode_table *table, uint64_t hash)
{
    return &table->shards[(hash >> 32) % INODE_SHARDS];
}

static struct inode_shard *shard_of_inode(struct inode *inode)
{
    return shard_of(&inode->fs->inodes, hash_of(inode->dev, inode->ino));
}

static struct inode **bucket_of(struct inode_shard *shard, uint64_t hash)
{
    return &shard->buckets[hash & (shard->bucket_count - 1)];
}

static bool is_unsynced(const struct inode_shard *shard, uint64_t hash)
{
    unsigned bit = hash % UNSYNCED_BITS;

    return shard->unsynced[bit / 8] >> bit % 8 & 1;
}

static void note_unsynced(struct inode_shard *shard, uint64_t hash)
{
    unsigned bit = hash % UNSYNCED_BITS;

    shard->unsynced[bit / 8] |= (uint8_t)(1u << bit % 8);
}

int inode_table_init(struct inode_table *table)
{
    for (size_t i = 0; i < INODE_SHARDS; i++) {
        struct inode_shard *shard = &table->shards[i];

        shard->inode_count = 0;
        memset(shard->unsynced, 0, sizeof(shard->unsynced));
        shard->bucket_count = INITIAL_BUCKETS;
        shard->buckets = calloc(INITIAL_BUCKETS, sizeof(struct inode *));
        if (!shard->buckets) {
            while (i-- > 0)
                free(table->shards[i].buckets);
            return -ENOMEM;
        }
        lock_init(&shard->lock, LOCK_SHARD);
    }
    return 0;
}

/* The inode is in no table and nothing else knows it. */
static void inode_free(struct inode *inode)
{
    struct cache_file *file = inode_file(inode);
    struct durable *durable = atomic_load(&inode->durable);

    order_after(inode->fs); /* what was asked of it is answered */
    if (file)
        cache_file_close(file);
    if (durable)
        durable_destroy(durable);
    free(durable);
    close(inode->fd);
    pthread_rwlock_destroy(&inode->gate);
    free(inode);
}

void inode_table_destroy(struct inode_table *table)
{
    for (size_t i = 0; i < INODE_SHARDS; i++) {
        struct inode_shard *shard = &table->shards[i];

        for (size_t k = 0; k < shard->bucket_count; k++) {
            struct inode *inode = shard->buckets[k];

            while (inode) {
                struct inode *next = inode->next;

                inode->dying = true;
                inode_free(inode);
                inode = next;
            }
        }
        free(shard->buckets);
        pthread_mutex_destroy(&shard->lock);
    }
}

size_t inode_table_count(struct inode_table *table)
{
    size_t count = 0;

    for (size_t i = 0; i < INODE_SHARDS; i++) {
        pthread_mutex_lock(&table->shards[i].lock);
        count += table->shards[i].inode_count;
        pthread_mutex_unlock(&table->shards[i].lock);
    }
    return count;
}

/* Doubles the buckets of a full shard; when memory is short the chains just get longer. Shard's lock held. */
static void shard_grow(struct inode_shard *shard)
{
    size_t old_count = shard->bucket_count;
    struct inode **old = shard->buckets, **buckets;

    buckets = calloc(old_count * 2, sizeof(struct inode *));
    if (!buckets)
        return;
    shard->buckets = buckets;
    shard->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++) {
        struct inode *inode = old[i];

        while (inode) {
            struct inode *next = inode->next, **bucket = bucket_of(shard, hash_of(inode->dev, inode->ino));

            inode->next = *bucket;
            *bucket = inode;
            inode = next;
        }
    }
    free(old);
}

static struct inode *shard_find(struct inode_shard *shard, uint64_t hash, dev_t dev, ino_t ino)
{
    struct inode *inode = *bucket_of(shard, hash);

    while (inode && (inode->ino != ino || inode->dev != dev))
        inode = inode->next;
    return inode;
}

static struct inode *inode_new(struct fs *fs, int fd, const struct stat *st)
{
    struct inode *inode = calloc(1, sizeof(*inode));

    if (!inode)
        return NULL;
    inode->fs = fs;
    inode->fd = fd;
    inode->dev = st->st_dev;
    inode->ino = st->st_ino;
    inode->type = st->st_mode & S_IFMT;
    /* A stream of reads must not keep inode_track() out for ever. */
    lock_rw_init(&inode->gate, LOCK_GATE, true);
    return inode;
}

int inode_lookup(struct fs *fs, int fd, const struct stat *st, struct inode **inode_out)
{
    uint64_t hash = hash_of(st->st_dev, st->st_ino);
    struct inode_shard *shard = shard_of(&fs->inodes, hash);
    struct inode *inode, **bucket;

    pthread_mutex_lock(&shard->lock);
    inode = shard_find(shard, hash, st->st_dev, st->st_ino);
    if (inode) {
        inode->lookups++;
        pthread_mutex_unlock(&shard->lock);
        close(fd);
        *inode_out = inode;
        return 0;
    }
    inode = inode_new(fs, fd, st);
    if (inode) {
        inode->lookups = 1;
        if (++shard->inode_count > shard->bucket_count)
            shard_grow(shard);
        bucket = bucket_of(shard, hash);
        inode->next = *bucket;
        *bucket = inode;
    }
    pthread_mutex_unlock(&shard->lock);
    if (!inode) {
        close(fd);
        return -ENOMEM;
    }
    order_before(inode); /* see inode_of() */
    *inode_out = inode;
    return 0;
}

struct durable *inode_durable(struct inode *inode)
{
    struct durable *durable = atomic_load(&inode->durable), *expected = NULL;

    if (durable)
        return durable;
    durable = malloc(sizeof(*durable));
    if (!durable)
        return NULL;
    durable_init(durable);
    uint64_t hash = hash_of(inode->dev, inode->ino);
    struct inode_shard *shard = shard_of(&inode->fs->inodes, hash);
    pthread_mutex_lock(&shard->lock);
    bool unsynced = is_unsynced(shard, hash);
    pthread_mutex_unlock(&shard->lock);
    if (unsynced)
        durable_tried(durable, 0, INT64_MAX);
    if (atomic_compare_exchange_strong(&inode->durable, &expected, durable))
        return durable;
    durable_destroy(durable);
    free(durable);
    return expected;
}

/* Lost bytes must not be forgotten with the inode: the next fsync would succeed. */
static bool is_to_be_kept(struct inode *inode)
{
    struct durable *durable = atomic_load(&inode->durable);
    struct stat st;

    return durable && durable_is_lost(durable) && fstat(inode->fd, &st) == 0 && st.st_nlink > 0;
}

/* Unlocks the shard and frees the inode if nothing holds it any more. */
static void unlock_and_free_if_unused(struct inode_shard *shard, struct inode *inode)
{
    struct inode **link;

    if (inode->lookups > 0 || inode->references > 0 || inode->pins > 0 || inode->dying ||
        is_to_be_kept(inode)) {
        pthread_mutex_unlock(&shard->lock);
        return;
    }
    inode->dying = true;
    uint64_t hash = hash_of(inode->dev, inode->ino);
    struct durable *durable = atomic_load(&inode->durable);
    if (durable && durable_is_written(durable))
        note_unsynced(shard, hash);
    link = bucket_of(shard, hash);
    while (*link != inode)
        link = &(*link)->next;
    *link = inode->next;
    shard->inode_count--;
    pthread_mutex_unlock(&shard->lock);
    inode_free(inode);
}

void inode_forget(struct inode *inode, uint64_t lookups)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;

    if (inode == inode->fs->root)
        return; /* the root stays until the end, however often the kernel forgets it */
    pthread_mutex_lock(&shard->lock);
    inode->lookups -= lookups < inode->lookups ? lookups : inode->lookups;
    if (inode->lookups || !inode_file(inode)) {
        unlock_and_free_if_unused(shard, inode);
        return;
    }
    inode->references++;
    pthread_mutex_unlock(&shard->lock);
    /* The last name of a deleted file, and nobody has it open: what devices still hold of it is of no use to
     * anybody. */
    if (fstat(inode->fd, &st) == 0 && st.st_nlink == 0)
        cache_file_discard(inode_file(inode));
    inode_put(inode);
}

void inode_get(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    inode->references++;
    pthread_mutex_unlock(&shard->lock);
}

void inode_put(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    inode->references--;
    unlock_and_free_if_unused(shard, inode);
}

void inode_pin(struct inode *inode, bool pinned)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    if (pinned)
        inode->pins++;
    else if (inode->pins > 0)
        inode->pins--;
    unlock_and_free_if_unused(shard, inode);
}

int inode_track(struct fs *fs, struct inode *inode, struct cache_file **file_out)
{
    struct cache_file *file = inode_file(inode);
    int rc = 0;

    if (!file) {
        pthread_rwlock_wrlock(&inode->gate);
        file = inode_file(inode);
        if (!file) {
            rc = inode_durable(inode)
                     ? cache_file_open(fs->cache, inode->fd, inode, inode_durable(inode), &file)
                     : -ENOMEM;
            if (rc == 0) {
                order_before(file); /* see inode_file() */
                atomic_store(&inode->file, file);
            }
        }
        pthread_rwlock_unlock(&inode->gate);
    }
    if (rc == 0)
        *file_out = file;
    return rc;
}

struct cache_file *inode_gate_enter(struct inode *inode)
{
    struct cache_file *file = inode_file(inode);

    if (!file) {
        pthread_rwlock_rdlock(&inode->gate);
        file = inode_file(inode);
        if (file)
            pthread_rwlock_unlock(&inode->gate);
    }
    return file;
}

void inode_gate_leave(struct inode *inode, const struct cache_file *file)
{
    if (!file)
        pthread_rwlock_unlock(&inode->gate);
}

ssize_t inode_path(struct inode *inode, char *path_out, size_t size)
{
    BORROWED file = inode_borrow(inode);
    const char *data = inode->fs->data_path;
    size_t prefix = strlen(data), length;
    ssize_t got;

    if (size == 0)
        return -EINVAL;
    if (file.fd < 0)
        return file.fd;
    got = readlink(proc_path(file.fd).text, path_out, size - 1);
    if (got < 0)
        return -errno;
    path_out[got] = '\0';
    length = (size_t)got;
    if (prefix == 1) /* the data directory is "/" */
        prefix = 0;
    if (strncmp(path_out, data, prefix) != 0 || (path_out[prefix] != '/' && path_out[prefix] != '\0'))
        return got;
    if (path_out[prefix] == '/')
        prefix++;
    memmove(path_out, path_out + prefix, length - prefix + 1);
    return (ssize_t)(length - prefix);
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
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

static bool seen_is(const struct inode *inode, const struct stat *st)
{
    return inode->seen.size == st->st_size && same_time(inode->seen.mtime, st->st_mtim) &&
           same_time(inode->seen.ctime, st->st_ctim);
}

static void see(struct inode *inode, const struct stat *st)
{
    inode->seen.size = st->st_size;
    inode->seen.mtime = st->st_mtim;
    inode->seen.ctime = st->st_ctim;
}

bool inode_unchanged(struct inode *inode, int fd)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;
    bool same;

    pthread_mutex_lock(&shard->lock);
    uint64_t changes = inode->seen.changes;
    pthread_mutex_unlock(&shard->lock);
    if (fstat(fd, &st))
        return false;
    pthread_mutex_lock(&shard->lock);
    /* Beside a change of ours st says nothing; somebody else's is found out by the next open. */
    same = inode->seen.changing || inode->seen.changes != changes;
    if (!same) {
        same = inode->seen.valid && seen_is(inode, &st);
        inode->seen.valid = same || is_settled(st.st_ctim);
        see(inode, &st);
    }
    pthread_mutex_unlock(&shard->lock);
    return same;
}

void inode_change_begin(struct inode *inode, int fd, struct inode_change *change_out)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;
    bool known = !fstat(fd, &st);

    pthread_mutex_lock(&shard->lock);
    /* While others of ours are under way the times are theirs, too. */
    change_out->ours = inode->seen.changing || (known && seen_is(inode, &st));
    inode->seen.changing++;
    pthread_mutex_unlock(&shard->lock);
}

void inode_change_end(struct inode *inode, int fd, const struct inode_change *change)
{
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;
    bool known = change->ours && !fstat(fd, &st);

    pthread_mutex_lock(&shard->lock);
    inode->seen.changing--;
    inode->seen.changes++;
    if (known) {
        inode->seen.valid = true;
        see(inode, &st);
    }
    pthread_mutex_unlock(&shard->lock);
}

/* References to a shard's inodes. Their number or -ENOMEM. */
static ssize_t shard_snapshot(struct inode_shard *shard, bool tracked_only, struct inode ***inodes_out)
{
    struct inode **inodes;
    size_t count = 0;

    pthread_mutex_lock(&shard->lock);
    inodes = malloc((shard->inode_count + 1) * sizeof(struct inode *));
    for (size_t i = 0; inodes && i < shard->bucket_count; i++) {
        for (struct inode *inode = shard->buckets[i]; inode; inode = inode->next) {
            if (tracked_only && !inode_file(inode))
                continue;
            inode->references++;
            inodes[count++] = inode;
        }
    }
    pthread_mutex_unlock(&shard->lock);
    if (!inodes)
        return -ENOMEM;
    *inodes_out = inodes;
    return (ssize_t)count;
}

static int each(struct fs *fs, bool tracked_only, int (*visit)(struct inode *inode, void *context),
                void *context)
{
    int rc = 0;

    for (size_t i = 0; i < INODE_SHARDS && rc == 0; i++) {
        struct inode **inodes;
        ssize_t count = shard_snapshot(&fs->inodes.shards[i], tracked_only, &inodes);

        if (count < 0)
            return (int)count;
        for (ssize_t k = 0; k < count; k++) {
            if (rc == 0)
                rc = visit(inodes[k], context);
            inode_put(inodes[k]);
        }
        free(inodes);
    }
    return rc;
}

int fs_each_tracked(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context)
{
    return each(fs, true, visit, context);
}

int fs_each_inode(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context)
{
    return each(fs, false, visit, context);
}
