/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/content.h"
#include "fs/resolve.h"

void op_opendir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    BORROWED path = inode_borrow(inode);
    struct handle *handle = NULL;
    DIR *dir;
    int fd;

    if (reply_if_error(req, path.fd))
        return;
    /* Not by ".": who may read a folder need not be allowed to search it. */
    fd = descriptors_open_quietly(fs_of(req), AT_FDCWD, proc_path(path.fd).text,
                                  O_RDONLY | O_DIRECTORY | O_CLOEXEC | (fi->flags & O_NOATIME), 0,
                                  folder_atime_flag(fs_of(req)));
    if (reply_if_error(req, fd))
        return;
    dir = fdopendir(fd);
    if (!dir) {
        fuse_reply_err(req, errno);
        close(fd);
        return;
    }
    handle = handle_new(fs_of(req), inode, fd, dir, fi->flags);
    if (!handle) {
        closedir(dir);
        fuse_reply_err(req, ENOMEM);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)handle;
    if (fuse_reply_open(req, fi) < 0)
        handle_free(fs_of(req), handle);
}

void op_releasedir(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    (void)nodeid;
    handle_free(fs_of(req), handle_of(fi));
    fuse_reply_err(req, 0);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t nodeid, int data_only, struct fuse_file_info *fi)
{
    struct handle *handle = handle_of(fi);

    (void)nodeid;
    fuse_reply_err(req, -durable_sync(inode_durable(handle->inode), handle->fd, data_only, &handle->seen));
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Who looks at a name on which something is being mounted waits for that, however he looks: a listing looks
 * at no folder meanwhile. */
static bool may_be_awaited(struct fs *fs, const struct dirent *entry)
{
    return atomic_load(&fs->mounting) && (entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN);
}

/* Adds one name, with its attributes if plus. The bytes that it takes; more than size: it was not added. */
static size_t add_entry(fuse_req_t req, struct inode *parent, char *buffer, size_t size,
                        const struct dirent *entry, bool plus)
{
    struct fs *fs = fs_of(req);
    ino_t number = resolve_number(fs, parent->dev, entry->d_ino);
    struct fuse_entry_param param = {.attr = {.st_ino = number, .st_mode = (mode_t)entry->d_type << 12}};
    size_t taken;

    if (!plus)
        return fuse_add_direntry(req, buffer, size, entry->d_name, &param.attr, entry->d_off);
    /* Only what fits gets a lookup. A name that can't be looked up (gone, our own mount, mounted on demand)
     * is listed without one. */
    taken = fuse_add_direntry_plus(req, NULL, 0, entry->d_name, NULL, 0);
    if (taken > size)
        return taken;
    if (!is_dots(entry->d_name) &&
        (may_be_awaited(fs, entry) || resolve_listed(fs, parent, entry->d_name, &param) < 0))
        param = (struct fuse_entry_param){.attr = {.st_ino = number, .st_mode = (mode_t)entry->d_type << 12}};
    return fuse_add_direntry_plus(req, buffer, size, entry->d_name, &param, entry->d_off);
}

/* Fills buffer from offset on. Bytes, or a negative errno when there are none. handle->lock held. */
static ssize_t fill(fuse_req_t req, struct handle *handle, char *buffer, size_t size, off_t offset, bool plus)
{
    size_t used = 0;

    /* Also from the start to the start: it may be a rewinddir(), and a filesystem (btrfs) may show what was
     * there at the open until then. */
    if (offset != handle->position || offset == 0) {
        seekdir(handle->dir, offset);
        handle->entry = NULL;
        handle->position = offset;
    }
    for (;;) {
        size_t taken;

        if (!handle->entry) {
            errno = 0;
            handle->entry = readdir(handle->dir);
            if (!handle->entry)
                return used > 0 || errno == 0 ? (ssize_t)used : -errno;
        }
        taken = add_entry(req, handle->inode, buffer + used, size - used, handle->entry, plus);
        if (taken > size - used)
            return (ssize_t)used;
        used += taken;
        handle->position = handle->entry->d_off;
        handle->entry = NULL;
    }
}

static void list(fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi, bool plus)
{
    struct handle *handle = handle_of(fi);
    char *buffer = malloc(size);
    ssize_t used;

    if (!buffer) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    pthread_mutex_lock(&handle->lock);
    used = fill(req, handle, buffer, size, offset, plus);
    pthread_mutex_unlock(&handle->lock);
    if (used < 0)
        fuse_reply_err(req, (int)-used);
    else
        fuse_reply_buf(req, buffer, (size_t)used);
    free(buffer);
}

void op_readdir(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)nodeid;
    list(req, size, offset, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)nodeid;
    list(req, size, offset, fi, true);
}
