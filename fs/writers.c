/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/writers.h"

#include "cache/cache.h"
#include "fs/content.h"
#include "fs/fs.h"

void inode_writers_add(struct inode *inode)
{
    struct inode_writers *writers = &inode_content(inode)->writers;
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    writers->number += writers->count++ == 0;
    pthread_mutex_unlock(&shard->lock);
}

void inode_writers_remove(struct inode *inode)
{
    struct inode_writers *writers = &inode_content(inode)->writers;
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    bool last = --writers->count == 0;
    writers->number += last;
    uint64_t number = writers->number;
    pthread_mutex_unlock(&shard->lock);
    struct cache_file *file = last ? inode_usable(inode) : NULL;
    if (file) /* who does not hear of it goes on asking */
        cache_file_writers(file, false, number, false);
}

bool inode_has_writers(struct inode *inode)
{
    struct content *content = inode_content(inode);
    struct inode_shard *shard = shard_of_inode(inode);

    if (!content)
        return false;
    pthread_mutex_lock(&shard->lock);
    bool any = content->writers.count;
    pthread_mutex_unlock(&shard->lock);
    return any;
}

int inode_writers_tell(struct inode *inode)
{
    struct inode_writers *writers = &inode_content(inode)->writers;
    struct inode_shard *shard = shard_of_inode(inode);
    struct cache_file *file;

    if (!inode->fs->options.members)
        return 0;
    while ((file = inode_usable(inode))) { /* else its next home is told */
        pthread_mutex_lock(&shard->lock);
        uint64_t number = writers->number;
        bool any = writers->count, told = writers->told == file && writers->told_number == number;
        pthread_mutex_unlock(&shard->lock);
        if (told || number == 0)
            return 0;
        int rc = cache_file_writers(file, any, number, true);
        if (rc < 0 && !cache_file_is_lost(file))
            return rc;
        pthread_mutex_lock(&shard->lock);
        if (rc == 0) {
            writers->told = file;
            writers->told_number = number;
        }
        pthread_mutex_unlock(&shard->lock);
    }
    return 0;
}
