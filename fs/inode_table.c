/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inode_table.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fs/content.h"
#include "fs/fs.h"
#include "fs/log.h"
#include "fs/memory.h"
#include "fs/place.h"

#define INITIAL_BUCKETS 256u
#define KEPT_FEW 64u
#define CONTENT_BYTES ((size_t)704) /* what an inode that was opened takes more */

uint64_t file_hash(dev_t dev, ino_t ino)
{
    uint64_t hash = (uint64_t)ino * 0x9e3779b97f4a7c15u ^ (uint64_t)dev * 0xc2b2ae3d27d4eb4fu;

    hash ^= hash >> 32;
    return hash * 0xd6e8feb86659fd93u;
}

struct inode_shard *shard_of_hash(struct inode_table *table, uint64_t hash)
{
    return &table->shards[(hash >> 32) % INODE_SHARDS];
}

/* A node id has the number of its shard in its last digits. */
struct inode_shard *shard_of_id(struct inode_table *table, uint64_t id)
{
    return &table->shards[id % INODE_SHARDS];
}

struct inode_shard *shard_of_inode(struct inode *inode)
{
    return shard_of_hash(&inode->fs->inodes, file_hash(inode->dev, inode->ino));
}

static struct inode **file_bucket(struct inode_shard *shard, uint64_t hash)
{
    return &shard->by_file[hash & (shard->bucket_count - 1)];
}

static struct inode **id_bucket(struct inode_shard *shard, uint64_t id)
{
    return &shard->by_id[id / INODE_SHARDS & (shard->bucket_count - 1)];
}

bool shard_is_unsynced(const struct inode_shard *shard, uint64_t hash)
{
    unsigned bit = hash % UNSYNCED_BITS;

    return shard->unsynced[bit / 8] >> bit % 8 & 1;
}

void shard_note_unsynced(struct inode_shard *shard, uint64_t hash)
{
    unsigned bit = hash % UNSYNCED_BITS;

    shard->unsynced[bit / 8] |= (uint8_t)(1u << bit % 8);
}

static void free_tables(struct inode_shard *shard)
{
    free(shard->by_file);
    free(shard->by_id);
    free(shard->remembered);
}

int inode_table_init(struct fs *fs, size_t most, size_t remember, unsigned descriptors)
{
    struct inode_table *table = &fs->inodes;

    memset(table, 0, sizeof(*table));
    table->most = most;
    table->contents_most = memory_available() / 8 / CONTENT_BYTES;
    atomic_init(&table->contents_next, table->contents_most);
    atomic_init(&table->kept_most, KEPT_FEW);
    table->remember_most = (remember + INODE_SHARDS - 1) / INODE_SHARDS;
    table->gone = inode_new_gone(fs);
    if (!table->gone)
        return -ENOMEM;
    for (size_t i = 0; i < INODE_SHARDS; i++) {
        struct inode_shard *shard = &table->shards[i];

        shard->bucket_count = INITIAL_BUCKETS;
        shard->by_file = calloc(INITIAL_BUCKETS, sizeof(struct inode *));
        shard->by_id = calloc(INITIAL_BUCKETS, sizeof(struct inode *));
        shard->remembered = calloc(table->remember_most + 1, sizeof(uint64_t));
        if (!shard->by_file || !shard->by_id || !shard->remembered) {
            for (size_t k = 0; k <= i; k++)
                free_tables(&table->shards[k]);
            inode_free(table->gone);
            return -ENOMEM;
        }
        lock_init(&shard->lock, LOCK_SHARD);
        descriptors_init(&shard->descriptors, (descriptors + INODE_SHARDS - 1) / INODE_SHARDS);
    }
    return 0;
}

void inode_miscounted(const char *what, const struct inode *inode)
{
    fs_log(LOG_ERR, "inode %llu of device %llu: %s: this is a bug of gaiafs, please report it",
           (unsigned long long)inode->ino, (unsigned long long)inode->dev, what);
#ifdef GAIAFS_CHECK_LOCKS
    abort();
#endif
}

void inode_table_destroy(struct fs *fs)
{
    struct inode_table *table = &fs->inodes;

    for (size_t i = 0; i < INODE_SHARDS; i++) {
        struct inode_shard *shard = &table->shards[i];

        for (size_t k = 0; k < shard->bucket_count; k++) {
            struct inode *inode = shard->by_file[k];

            while (inode) {
                struct inode *next = inode->next;

                if (inode->references > 0)
                    inode_miscounted("still referenced at the end", inode);
                inode_free(inode);
                inode = next;
            }
        }
        free_tables(shard);
        pthread_mutex_destroy(&shard->lock);
    }
    inode_free(table->gone);
}

void inode_table_stat(struct inode_table *table, struct inode_table_stat *stat_out)
{
    *stat_out = (struct inode_table_stat){0};
    for (size_t i = 0; i < INODE_SHARDS; i++) {
        struct inode_shard *shard = &table->shards[i];

        pthread_mutex_lock(&shard->lock);
        stat_out->inodes += shard->inode_count;
        stat_out->lookups += shard->lookups;
        for (size_t k = 0; k < shard->bucket_count; k++)
            for (const struct inode *inode = shard->by_file[k]; inode; inode = inode->next)
                stat_out->used += inode_is_used(inode);
        for (unsigned kind = 0; kind < DESCRIPTOR_KINDS; kind++)
            stat_out->descriptors[kind] += shard->descriptors.count[kind];
        pthread_mutex_unlock(&shard->lock);
    }
}

static void chain(struct inode_shard *shard, struct inode *inode)
{
    struct inode **bucket = file_bucket(shard, file_hash(inode->dev, inode->ino));

    inode->next = *bucket;
    *bucket = inode;
    bucket = id_bucket(shard, inode->id);
    inode->next_id = *bucket;
    *bucket = inode;
}

/* Doubles the buckets of a full shard; when memory is short the chains just get longer. */
static void grow(struct inode_shard *shard)
{
    size_t old_count = shard->bucket_count;
    struct inode **old = shard->by_file, **by_file, **by_id;

    by_file = calloc(old_count * 2, sizeof(struct inode *));
    by_id = calloc(old_count * 2, sizeof(struct inode *));
    if (!by_file || !by_id) {
        free(by_file);
        free(by_id);
        return;
    }
    free(shard->by_id);
    shard->by_file = by_file;
    shard->by_id = by_id;
    shard->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++) {
        struct inode *inode = old[i];

        while (inode) {
            struct inode *next = inode->next;

            chain(shard, inode);
            inode = next;
        }
    }
    free(old);
}

/* An inode number is not used again while a descriptor of the file is open (but see volume_reuses_numbers());
 * else the handles must be the same, or the times of birth. */
static bool is_of(const struct inode *inode, const struct file_key *key)
{
    bool handles = inode->handle_bytes && key->handle_bytes;

    if (inode->ino != key->ino || inode->dev != key->dev)
        return false;
    if (inode->open && !(handles && volume_reuses_numbers(key->volume)))
        return true;
    if (!handles)
        return key->has_birth && place_is_born(inode->place, &key->birth);
    return inode->handle_bytes == key->handle_bytes && inode->handle_type == key->handle_type &&
           memcmp(inode->handle, key->handle, key->handle_bytes) == 0;
}

struct inode *shard_find(struct inode_shard *shard, uint64_t hash, const struct file_key *key)
{
    struct inode *inode = *file_bucket(shard, hash);

    while (inode && !is_of(inode, key))
        inode = inode->next;
    return inode;
}

struct inode *shard_find_id(struct inode_shard *shard, uint64_t id)
{
    struct inode *inode = *id_bucket(shard, id);

    while (inode && inode->id != id)
        inode = inode->next_id;
    return inode;
}

bool shard_insert(struct inode_table *table, struct inode_shard *shard, struct inode *inode)
{
    if (atomic_fetch_add(&table->known, 1) >= table->most) {
        atomic_fetch_sub(&table->known, 1);
        return false;
    }
    inode->id = ++shard->last_id * INODE_SHARDS + (uint64_t)(shard - table->shards);
    if (++shard->inode_count > shard->bucket_count)
        grow(shard);
    chain(shard, inode);
    return true;
}

void shard_remove(struct inode_table *table, struct inode_shard *shard, struct inode *inode)
{
    struct inode **link = file_bucket(shard, file_hash(inode->dev, inode->ino));

    while (*link != inode)
        link = &(*link)->next;
    *link = inode->next;
    link = id_bucket(shard, inode->id);
    while (*link != inode)
        link = &(*link)->next_id;
    *link = inode->next_id;
    shard->inode_count--;
    atomic_fetch_sub(&table->known, 1);
}

/* The place in the ring that the next one gets. An inode that came back since it got its own place keeps that
 * for a round more. */
static uint64_t *next_place(struct inode_table *table, struct inode_shard *shard, struct inode **oldest_out)
{
    for (;;) {
        uint64_t *slot = &shard->remembered[shard->remember_next];
        struct inode *oldest = *slot ? shard_find_id(shard, *slot) : NULL;

        shard->remember_next = (shard->remember_next + 1) % table->remember_most;
        if (!oldest || oldest->remembered != REMEMBERED_AGAIN) {
            *oldest_out = oldest;
            return slot;
        }
        oldest->remembered = REMEMBERED;
    }
}

struct inode *shard_remember(struct inode_table *table, struct inode_shard *shard, struct inode *inode)
{
    struct inode *oldest;

    if (inode->remembered) { /* a second place would be at another's cost */
        inode->remembered = REMEMBERED_AGAIN;
        return NULL;
    }
    *next_place(table, shard, &oldest) = inode->id;
    inode->remembered = REMEMBERED;
    if (!oldest)
        return NULL;
    oldest->remembered = REMEMBERED_NOT;
    if (inode_is_used(oldest) || oldest->open || inode_is_lost(oldest))
        return NULL;
    shard_remove(table, shard, oldest);
    return oldest;
}

void inode_table_unremember(struct inode_table *table)
{
    for (unsigned i = 0; i < INODE_SHARDS; i++) {
        struct inode_shard *shard = &table->shards[i];
        struct inode *freed = NULL, *inode;

        pthread_mutex_lock(&shard->lock);
        for (size_t k = 0; k < table->remember_most; k++) {
            inode = shard->remembered[k] ? shard_find_id(shard, shard->remembered[k]) : NULL;
            shard->remembered[k] = 0;
            if (inode)
                inode->remembered = REMEMBERED_NOT;
            if (!inode || inode_is_used(inode) || inode->open || inode_is_lost(inode))
                continue;
            shard_remove(table, shard, inode);
            inode->next = freed;
            freed = inode;
        }
        pthread_mutex_unlock(&shard->lock);
        while ((inode = freed)) {
            freed = inode->next;
            inode_free(inode);
        }
    }
}

/* References to a shard's inodes. Their number or -ENOMEM. */
static ssize_t shard_snapshot(struct inode_shard *shard, bool (*is_wanted)(struct inode *inode),
                              struct inode ***inodes_out)
{
    struct inode **inodes;
    size_t count = 0;

    pthread_mutex_lock(&shard->lock);
    inodes = malloc((shard->inode_count + 1) * sizeof(struct inode *));
    for (size_t i = 0; inodes && i < shard->bucket_count; i++) {
        for (struct inode *inode = shard->by_file[i]; inode; inode = inode->next) {
            if (is_wanted && !is_wanted(inode))
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

static int each(struct fs *fs, bool (*is_wanted)(struct inode *inode),
                int (*visit)(struct inode *inode, void *context), void *context)
{
    int rc = 0;

    for (size_t i = 0; i < INODE_SHARDS && rc == 0; i++) {
        struct inode **inodes;
        ssize_t count = shard_snapshot(&fs->inodes.shards[i], is_wanted, &inodes);

        if (count < 0)
            return (int)count;
        for (ssize_t k = 0; k < count; k++) {
            if (rc == 0 && visit)
                rc = visit(inodes[k], context);
            inode_put(inodes[k]);
        }
        free(inodes);
    }
    return rc;
}

static bool is_tracked(struct inode *inode)
{
    return inode_file(inode);
}

int fs_each_tracked(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context)
{
    return each(fs, is_tracked, visit, context);
}

static bool is_opened(struct inode *inode)
{
    return atomic_load(&inode->content);
}

int fs_each_opened(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context)
{
    return each(fs, is_opened, visit, context);
}

int fs_each_inode(struct fs *fs, int (*visit)(struct inode *inode, void *context), void *context)
{
    return each(fs, NULL, visit, context);
}

static bool is_kept(struct inode *inode)
{
    return !inode_is_used(inode) && inode_is_lost(inode);
}

void inode_table_sweep(struct fs *fs)
{
    struct inode_table *table = &fs->inodes;

    if (atomic_load_explicit(&table->kept, memory_order_relaxed) < atomic_load(&table->kept_most))
        return;
    atomic_store(&table->kept_most, UINT_MAX); /* nobody else meanwhile */
    atomic_store(&table->kept, 0);
    each(fs, is_kept, NULL, NULL); /* who is let go without a name is freed, the others are counted again */
    unsigned left = atomic_exchange(&table->kept, 0);
    atomic_store(&table->kept_most, left > UINT_MAX / 4 ? UINT_MAX / 2 : KEPT_FEW + 2 * left);
}
