/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/prune.h"

#include <errno.h>
#include <linux/fuse.h>
#include <string.h>
#include <unistd.h>

#include "fs/fs.h"
#include "fs/log.h"

/* Newer than the headers of Debian 12. */
#define NOTIFY_PRUNE 9
#define IDS_MAX PRUNER_WISHES
#define ROUNDS_MAX 32 /* without a gain */
#define WAIT_MS 400   /* of a lookup, */
#define WAITS 200     /* in so many steps */
#define PAUSE_MS 10   /* for what is forgotten to arrive */

struct prune_message {
    struct fuse_out_header header;
    uint32_t count;
    uint32_t padding;
    uint64_t spare;
    uint64_t ids[IDS_MAX];
};

static bool inodes_are_many(struct fs *fs)
{
    return atomic_load(&fs->inodes.known) > fs->inodes.most - fs->inodes.most / 4;
}

static bool contents_are_many(struct fs *fs)
{
    return atomic_load(&fs->inodes.contents) > fs->inodes.contents_most - fs->inodes.contents_most / 4;
}

/* Asks the kernel to forget those of the inodes that nobody uses. A file that it has dirty pages of it writes
 * back first, so no lock is held and no handler waits for this. */
static int prune(struct fs *fs, struct prune_message *message)
{
    int rc = -ENOTCONN;

    message->header.len = (uint32_t)(offsetof(struct prune_message, ids) + message->count * sizeof(uint64_t));
    message->header.error = NOTIFY_PRUNE;
    pthread_rwlock_rdlock(&fs->notify_gate);
    if (fs->serving)
        rc = write(fuse_session_fd(fs->session), message, message->header.len) < 0 ? -errno : 0;
    pthread_rwlock_unlock(&fs->notify_gate);
    return rc;
}

int pruner_forget(struct fs *fs, uint64_t id)
{
    struct prune_message message;

    memset(&message, 0, offsetof(struct prune_message, ids));
    message.count = 1;
    message.ids[0] = id;
    return prune(fs, &message);
}

/* A part of a shard's inodes, from its *bucket on; opened: of those that were. */
static uint32_t choose(struct inode_shard *shard, uint32_t most, size_t *bucket, bool opened,
                       uint64_t ids_out[IDS_MAX])
{
    uint32_t count = 0;

    pthread_mutex_lock(&shard->lock);
    for (size_t tried = 0; tried < shard->bucket_count && count < most; tried++) {
        struct inode *inode = shard->by_id[*bucket & (shard->bucket_count - 1)];

        ++*bucket;
        for (; inode && count < most; inode = inode->next_id)
            if (inode->lookups && !inode->references && !inode->pins && inode != inode->fs->root &&
                (!opened || atomic_load(&inode->content)))
                ids_out[count++] = inode->id;
    }
    pthread_mutex_unlock(&shard->lock);
    return count;
}

/* True: to be stopped. */
static bool pause_pruning(struct pruner *pruner)
{
    struct timespec until = lock_wait_until(PAUSE_MS);
    bool stopping;

    pthread_mutex_lock(&pruner->lock);
    while (!pruner->stopping && pthread_cond_timedwait(&pruner->changed, &pruner->lock, &until) != ETIMEDOUT)
        ;
    stopping = pruner->stopping;
    pthread_mutex_unlock(&pruner->lock);
    return stopping;
}

static int prune_until_few(struct fs *fs, size_t bucket[INODE_SHARDS])
{
    struct prune_message message;
    size_t least = SIZE_MAX, sixteenth = fs->inodes.most / 16 / INODE_SHARDS;
    uint32_t part = sixteenth < IDS_MAX ? (uint32_t)sixteenth : IDS_MAX;

    if (inodes_are_many(fs))
        inode_table_unremember(&fs->inodes);
    for (int rounds = 0; rounds < ROUNDS_MAX; rounds++) {
        bool opened = !inodes_are_many(fs);
        if (opened && !contents_are_many(fs))
            break;
        memset(&message, 0, offsetof(struct prune_message, ids));
        for (unsigned i = 0; i < INODE_SHARDS; i++) {
            message.count = choose(&fs->inodes.shards[i], part, &bucket[i], opened, message.ids);
            int rc = message.count ? prune(fs, &message) : 0;
            if (rc < 0)
                return rc;
        }
        if (pause_pruning(&fs->pruner))
            return 0;
        size_t left = atomic_load(opened ? &fs->inodes.contents : &fs->inodes.known);
        if (left < least) { /* of all rounds: others come and go meanwhile */
            rounds = 0;
            least = left;
        }
    }
    return 0;
}

/* Not at each that is opened, where those that were are in use. */
static void look_again(struct fs *fs)
{
    struct inode_table *table = &fs->inodes;
    size_t next = atomic_load(&table->contents) + table->contents_most / 8;

    atomic_store(&table->contents_next, next > table->contents_most ? next : table->contents_most);
}

/* Those that were wished for when it began. */
static int prune_wished(struct fs *fs)
{
    struct pruner *pruner = &fs->pruner;
    struct prune_message message;

    memset(&message, 0, offsetof(struct prune_message, ids));
    if (pause_pruning(pruner)) /* who has closed it last may have it for a moment more */
        return 0;
    pthread_mutex_lock(&pruner->lock);
    message.count = pruner->wishes;
    memcpy(message.ids, pruner->wished, pruner->wishes * sizeof pruner->wished[0]);
    pruner->wishes = 0;
    pthread_mutex_unlock(&pruner->lock);
    return message.count ? prune(fs, &message) : 0;
}

static void *run(void *argument)
{
    struct fs *fs = argument;
    struct pruner *pruner = &fs->pruner;
    size_t bucket[INODE_SHARDS] = {0};

    pthread_mutex_lock(&pruner->lock);
    for (;;) {
        while (!pruner->wanted && !pruner->wishes && !pruner->stopping)
            pthread_cond_wait(&pruner->changed, &pruner->lock);
        if (pruner->stopping)
            break;
        bool wanted = pruner->wanted, wishes = pruner->wishes;
        pruner->wanted = false;
        pthread_mutex_unlock(&pruner->lock);
        if (wishes)
            prune_wished(fs); /* where the kernel can't be asked, it forgets when it likes */
        int rc = wanted ? prune_until_few(fs, bucket) : 0;
        if (wanted) /* else nothing was done about those that there are */
            look_again(fs);
        if (rc < 0 && rc != -ENOTCONN && !atomic_exchange(&pruner->refused, true)) {
            fs_log(
                LOG_NOTICE,
                "%zu inodes are known, and the kernel can't be asked to forget some (%s): more than %zu are "
                "refused (-o inodes=)",
                atomic_load(&fs->inodes.known), strerror(-rc), fs->inodes.most);
        }
        pthread_mutex_lock(&pruner->lock);
    }
    pthread_mutex_unlock(&pruner->lock);
    return NULL;
}

void pruner_init(struct fs *fs)
{
    lock_init(&fs->pruner.lock, LOCK_PRUNER);
    lock_condition_init(&fs->pruner.changed);
}

int pruner_start(struct fs *fs)
{
    int rc = -pthread_create(&fs->pruner.thread, NULL, run, fs);

    fs->pruner.running = rc == 0;
    return rc;
}

void pruner_stop(struct fs *fs)
{
    struct pruner *pruner = &fs->pruner;

    if (!pruner->running)
        return;
    pthread_mutex_lock(&pruner->lock);
    pruner->stopping = true;
    pthread_cond_broadcast(&pruner->changed);
    pthread_mutex_unlock(&pruner->lock);
    pthread_join(pruner->thread, NULL);
    pruner->running = false;
}

static void wake(struct pruner *pruner)
{
    pthread_mutex_lock(&pruner->lock);
    if (!pruner->wanted) {
        pruner->wanted = true;
        pthread_cond_signal(&pruner->changed);
    }
    pthread_mutex_unlock(&pruner->lock);
}

void pruner_wish(struct fs *fs, uint64_t id)
{
    struct pruner *pruner = &fs->pruner;

    pthread_mutex_lock(&pruner->lock);
    if (pruner->wishes < PRUNER_WISHES) {
        pruner->wished[pruner->wishes++] = id;
        pthread_cond_signal(&pruner->changed);
    }
    pthread_mutex_unlock(&pruner->lock);
}

void pruner_look(struct fs *fs)
{
    if (atomic_load(&fs->inodes.contents) > atomic_load(&fs->inodes.contents_next) &&
        !atomic_load(&fs->pruner.refused))
        wake(&fs->pruner);
}

bool pruner_is_needed(struct fs *fs)
{
    return atomic_load(&fs->inodes.known) > fs->inodes.most - fs->inodes.most / 8;
}

void pruner_make_room(struct fs *fs)
{
    struct pruner *pruner = &fs->pruner;
    struct timespec pause = {.tv_nsec = WAIT_MS * 1000000 / WAITS};

    if (!pruner_is_needed(fs))
        return;
    wake(pruner);
    /* Not on a condition: a folder that is being listed is locked. */
    for (int i = 0; i < WAITS && !atomic_load(&pruner->refused); i++) {
        if (atomic_load(&fs->inodes.known) < fs->inodes.most)
            break;
        nanosleep(&pause, NULL);
    }
}
