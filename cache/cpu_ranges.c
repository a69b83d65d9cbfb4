/* SPDX-License-Identifier: Apache-2.0 */
/* What CPUs do to ranges of a tracked file: cuts, holes, zeros, copies; and where data is. All that
 * cache/cpu.c says holds here, too. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fsuid.h"
#include "cache/agent.h"
#include "cache/collect.h"
#include "cache/cpu.h"
#include "cache/fit.h"
#include "cache/passed.h"

/* What could not be opened for writing when a device came to map it (it was being executed, say) is cut by
 * its name, which says why if that can't be. */
static int cut(struct cache_file *file, int fd, off_t size, bool unchanged)
{
    int by = fd < 0 && file->writable ? file->fd : fd;
    struct cache_end end;

    cache_end_hold(file->cache, by, file->fd, NULL, &end);
    int error = cache_cut(by, file->fd, size);
    cpu_look_at_size(file, unchanged);
    cache_end_let_go(&end);
    return error;
}

int cache_file_truncate(struct cache_file *file, int fd, off_t size)
{
    if (file->given_up)
        return -EIO;
    if (file->far)
        return agent_truncate(file, size);

    file_use(file); /* dropping the last pages may end the file's pin */
    int error = cpu_lock(file);
    if (error) {
        file_unuse(file);
        return error;
    }
    bool unchanged = file_unchanged(file);
    passed_look_at_size(file);
    error = kernels_change(file, KERNELS_NOBODY, size, INT64_MAX);
    if (error == -EIO) /* what can't be read, as a GPU has failed, can be cut off all the same */
        error = 0;
    if (!error) {
        file_shrinks(file, size);
        error = file_grows(file, size);
    }
    if (!error)
        error = cut(file, fd, size, unchanged);
    if (!error)
        heal_changed(file, size, INT64_MAX - size);
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
    kernels_settle(file);
    file_unuse(file);
    return error;
}

/* After a change; no lock is held. */
static void settle(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    bool emptied = !file->index.leaves.count && file->pinned;
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
    kernels_settle(file);
    if (emptied)
        file_unpin_if_empty(file);
}

static bool changes_bytes(int mode)
{
    return mode & ~FALLOC_FL_KEEP_SIZE;
}

int cache_file_fallocate(struct cache_file *file, int fd, int mode, off_t offset, off_t length,
                         struct overrule *overrule)
{
    if (file->given_up)
        return -EIO;
    if (file->far)
        return agent_fallocate(file, mode, offset, length);
    int error = cpu_lock(file);

    if (error)
        return error;
    bool unchanged = file_unchanged(file), unread = false;
    passed_look_at_size(file);
    /* Allocating alone changes no byte; punching and zeroing are writes. */
    if (changes_bytes(mode)) {
        error = cpu_before_change(file, offset, (uint64_t)length, 0, &unread);
        if (!error)
            error =
                kernels_change(file, KERNELS_NOBODY, offset, INT64_MAX); /* what lies behind may move, too */
    }
    if (!error && !(mode & FALLOC_FL_KEEP_SIZE))
        error = file_grows(file, offset + length);
    if (!error) {
        fsuid_begin_write(fd);
        error = fallocate(fd, mode, offset, length) ? -errno : 0;
        fsuid_end_write();
    }
    if (!error && unread)
        error = cpu_replaced(file, offset, (uint64_t)length);
    cpu_look_at_size(file, unchanged);
    if (changes_bytes(mode))
        heal_changed(file, offset, length);
    if (!error && overrule && changes_bytes(mode))
        overrule_begin(overrule, file->durable, offset, offset + length);
    pthread_mutex_unlock(&file->lock);
    settle(file);
    return error;
}

off_t cache_file_seek(struct cache_file *file, int fd, off_t offset, int whence)
{
    if (file->given_up)
        return -EIO;
    if (file->far)
        return agent_seek(file, offset, whence);
    int error = cpu_lock(file);
    if (error)
        return error;
    error = collect_all(file); /* released bytes may lie in what is a hole yet */
    if (!error && file->given_up)
        error = -EIO;
    off_t result = error ? error : lseek(fd, offset, whence);
    if (!error && result < 0)
        result = -errno;
    pthread_mutex_unlock(&file->lock);
    return result;
}

int cache_file_collect(struct cache_file *file)
{
    off_t found = cache_file_seek(file, file->fd, 0, SEEK_HOLE); /* which collects, here or at the home */

    return found < 0 && found != -ENXIO ? (int)found : 0;
}

static int collect_range(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags)
{
    (void)flags;
    return collect_pages(file, leaf, pages, COLLECT_PENDING);
}

#define COPY_MAX (4u << 20) /* bytes at once */

/* Whatever is done to its bytes here would bypass its home. */
static bool is_elsewhere(const struct cache_file *file)
{
    return file->far || file->given_up;
}

ssize_t cache_file_copy_range(struct cache_file *in, int fd_in, off_t offset_in, struct cache_file *out,
                              int fd_out, off_t offset_out, size_t length, unsigned flags,
                              struct overrule *overrule)
{
    if ((in && is_elsewhere(in)) || (out && is_elsewhere(out))) /* the kernel reads and writes instead */
        return -EXDEV;
    int error = 0;
    ssize_t done = 0;
    bool unchanged = false, unread = false;

    if (length > COPY_MAX) /* a short copy is asked for again: others wait for the lock meanwhile */
        length = COPY_MAX;
    if (in && in != out) {
        pthread_mutex_lock(&in->lock);
        error = cpu_each_leaf(in, offset_in, length, 0, collect_range);
        pthread_mutex_unlock(&in->lock);
    }
    if (error)
        return error;
    if (out) {
        if (cpu_lock(out))
            return -EXDEV;
        unchanged = file_unchanged(out);
        passed_look_at_size(out);
        if (in == out)
            error = cpu_each_leaf(in, offset_in, length, 0, collect_range);
        if (!error)
            error = cpu_before_change(out, offset_out, length, 0, &unread);
        if (!error)
            error = kernels_change(out, KERNELS_NOBODY, offset_out, length);
    }
    if (!error && out)
        error = file_grows(out, offset_out + (off_t)length);
    if (!error) {
        fsuid_begin_write(fd_out);
        done = copy_file_range(fd_in, &offset_in, fd_out, &offset_out, length, flags);
        error = done < 0 ? -errno : 0;
        fsuid_end_write();
    }
    if (done > 0 && unread)
        error = cpu_replaced(out, offset_out - done, (uint64_t)done);
    if (out) {
        cpu_look_at_size(out, unchanged);
        if (done > 0) {
            heal_changed(out, offset_out - done, done);
            if (overrule)
                overrule_begin(overrule, out->durable, offset_out - done, offset_out);
        }
        pthread_mutex_unlock(&out->lock);
    }
    return error ? error : done;
}

void cache_file_copy_end(struct cache_file *out)
{
    if (!out->far)
        settle(out);
}
