/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/content.h"
#include "fs/fs.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static bool is_writer(const struct handle *handle)
{
    return handle->inode->fs->options.members && !handle->dir && (handle->flags & O_ACCMODE) != O_RDONLY;
}

struct handle *handle_new(struct fs *fs, struct inode *inode, int fd, DIR *dir, int flags)
{
    struct handle *handle = inode_durable(inode) ? calloc(1, sizeof(*handle)) : NULL;

    if (!handle)
        return NULL;
    durable_open(inode_durable(inode), false, &handle->seen);
    handle->fd = fd;
    handle->flags = flags;
    handle->dir = dir;
    handle->inode = inode;
    atomic_init(&handle->page_fd, -1);
    lock_init(&handle->lock, LOCK_HANDLE);
    inode_get_opened(inode);

    pthread_mutex_lock(&fs->handles_lock);
    handle->next = fs->handles;
    if (fs->handles)
        fs->handles->previous = handle;
    fs->handles = handle;
    pthread_mutex_unlock(&fs->handles_lock);
    if (is_writer(handle))
        inode_writers_add(inode);
    order_before(handle); /* see handle_of() */
    return handle;
}

bool handle_may_write(const struct inode *inode)
{
    struct fs *fs = inode->fs;

    pthread_mutex_lock(&fs->handles_lock);
    struct handle *handle = fs->handles;
    while (handle && (handle->inode != inode || (handle->flags & O_ACCMODE) == O_RDONLY))
        handle = handle->next;
    pthread_mutex_unlock(&fs->handles_lock);
    return handle;
}

void handle_free(struct fs *fs, struct handle *handle)
{
    int page_fd = atomic_load(&handle->page_fd);

    order_after(fs); /* what was asked of it is answered */
    inode_closing(handle->inode, handle->fd);
    pthread_mutex_lock(&fs->handles_lock);
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        fs->handles = handle->next;
    if (handle->next)
        handle->next->previous = handle->previous;
    pthread_mutex_unlock(&fs->handles_lock);

    if (is_writer(handle))
        inode_writers_remove(handle->inode);
    passthrough_close(fs, handle);
    if (handle->dir)
        closedir(handle->dir);
    else
        close(handle->fd);
    if (page_fd >= 0)
        close(page_fd);
    durable_close(inode_durable(handle->inode));
    inode_put(handle->inode);
    pthread_mutex_destroy(&handle->lock);
    free(handle);
}
