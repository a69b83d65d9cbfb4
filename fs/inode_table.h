/* SPDX-License-Identifier: Apache-2.0 */
/* The table of known inodes: by file, and by node id, which is the kernel's name for an inode. Node ids count
 * up and are never used again while the mount lives, so that one which was forgotten leads nowhere. */
#ifndef GAIAFS_FS_INODE_TABLE_H
#define GAIAFS_FS_INODE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "fs/borrow.h"
#include "fs/volume.h"

struct fs;
struct inode;

#define INODE_SHARDS 16u
#define UNSYNCED_BITS (1u << 15)

struct inode_shard {
    pthread_mutex_t lock;   /* guards everything in the shard; with it held only durable.lock is taken */
    struct inode **by_file; /* buckets; chained by inode.next */
    struct inode **by_id;   /* as many; chained by inode.next_id */
    size_t bucket_count;    /* a power of two */
    size_t inode_count;
    uint64_t lookups; /* of all its inodes together */
    uint64_t last_id; /* how many node ids the shard has given out */
    struct descriptors descriptors;
    uint64_t *remembered; /* node ids that the kernel forgot last, a ring of remember_most; 0: none */
    size_t remember_next;
    /* By hash: a file that was forgotten with bytes that no good sync has followed. When such a file is known
     * again, or another with the same hash, all of it counts as written. Never cleared. */
    uint8_t unsynced[UNSYNCED_BITS / 8];
};

struct inode_table {
    struct inode_shard shards[INODE_SHARDS];
    size_t most;         /* so many inodes may be known */
    atomic_size_t known; /* and so many are */
    /* Of these, which take several times the memory: those with content (fs/content.h); so many may be; and
     * from how many on the kernel is asked to forget some next: more, where they are all in use. */
    atomic_size_t contents, contents_next;
    size_t contents_most;
    size_t remember_most; /* in each shard */
    /* How often an inode was kept only for its lost bytes since those were last looked through, and how often
     * it may be. */
    atomic_uint kept, kept_most;
    atomic_uint shedding;        /* threads that close descriptors because there is none left; */
    _Atomic uint64_t shed_at_ns; /* when one did last (CLOCK_MONOTONIC), 0: never */
    struct inode *gone; /* stands for every node id that is not known: requests to it end with ESTALE */
};

/* remember: about how many inodes stay known after the kernel has forgotten them, for those who have a file
 * handle of them. descriptors: about how many, at most, may be kept open for inodes that nobody uses. */
int inode_table_init(struct fs *fs, size_t most, size_t remember, unsigned descriptors);
/* Frees every inode left, whatever holds it: nothing may run any more. What is still referenced then was
 * leaked: checked builds (base/lock.h) end the program. The kernel's lookups may be left, it forgets none at
 * an unmount. */
void inode_table_destroy(struct fs *fs);
struct inode_table_stat {
    size_t inodes;
    size_t used;                          /* those that are not only remembered */
    uint64_t lookups;                     /* that the kernel has not forgotten; the root's one among them */
    size_t descriptors[DESCRIPTOR_KINDS]; /* that are open */
};
void inode_table_stat(struct inode_table *table, struct inode_table_stat *stat_out);

/* An inode is kept for its lost bytes as long as the file has a name, and the daemon is not told when
 * somebody removes that name behind the mount. Looks for such inodes when many are kept. No lock held. */
void inode_table_sweep(struct fs *fs);

/* Those that the kernel has forgotten are not remembered any longer. */
void inode_table_unremember(struct inode_table *table);

uint64_t file_hash(dev_t dev, ino_t ino);
struct inode_shard *shard_of_hash(struct inode_table *table, uint64_t hash);
struct inode_shard *shard_of_id(struct inode_table *table, uint64_t id);
struct inode_shard *shard_of_inode(struct inode *inode);

/* A bug of ours: says so, and in checked builds ends the program. */
void inode_miscounted(const char *what, const struct inode *inode);

/* All of these with the shard's lock held. */
struct inode *shard_find(struct inode_shard *shard, uint64_t hash, const struct file_key *key);
struct inode *shard_find_id(struct inode_shard *shard, uint64_t id);
/* Gives the inode its node id. False: there are too many already. */
bool shard_insert(struct inode_table *table, struct inode_shard *shard, struct inode *inode);
void shard_remove(struct inode_table *table, struct inode_shard *shard, struct inode *inode);
/* The inode is used by nobody any more. Returns the one that is to be freed for it, taken out of the table,
 * or NULL. */
struct inode *shard_remember(struct inode_table *table, struct inode_shard *shard, struct inode *inode);
bool shard_is_unsynced(const struct inode_shard *shard, uint64_t hash);
void shard_note_unsynced(struct inode_shard *shard, uint64_t hash);

#endif
