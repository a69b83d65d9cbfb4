/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/passthrough.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fsuid.h"
#include "fs/content.h"
#include "fs/fs.h"
#include "fs/log.h"
#include "fs/session.h"

void passthrough_init(struct fs *fs)
{
    lock_init(&fs->passthrough_lock, LOCK_PASSTHROUGH);
}

void passthrough_end(struct fs *fs)
{
    pthread_mutex_destroy(&fs->passthrough_lock);
}

/* As linux/fuse.h has them from 6.9 on; that may be older than libfuse. */
#ifndef FUSE_DEV_IOC_BACKING_OPEN
struct fuse_backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define FUSE_DEV_IOC_BACKING_OPEN _IOW(229, 1, struct fuse_backing_map)
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)
#endif

/* The kernel reads as the data directory's own mount has it: what this one refuses, that must refuse, too. */
static bool reads_must_leave_no_trace(struct fs *fs)
{
    BORROWED root = inode_borrow(fs->root);
    struct statvfs st;

    if (!fs->options.no_atime && !fs->options.read_only)
        return false;
    return root.fd < 0 || fstatvfs(root.fd, &st) || !(st.f_flag & (ST_NOATIME | ST_RDONLY));
}

bool passthrough_is_wanted(struct fs *fs)
{
    return fs->as_root && fs->options.passthrough && fs->local && !reads_must_leave_no_trace(fs);
}

/* Tells the kernel the backing file by a descriptor. What it is called there (positive), or a negative errno.
 */
static int32_t register_fd(struct fs *fs, int fd)
{
    struct fuse_backing_map map = {.fd = fd};

    /* The kernel does what programs do to it as who tells it this. */
    fsuid_begin_write_of_owner(fd);
    int id = ioctl(fuse_session_fd(fs->session), FUSE_DEV_IOC_BACKING_OPEN, &map);
    fsuid_end_write();
    return id > 0 ? id : id < 0 ? -errno : -EIO;
}

/* An O_PATH descriptor does not count as open for writing while it is registered: programs can be executed.
 * Kernels before 6.16 want another one. */
static int32_t register_backing(struct fs *fs, struct handle *handle)
{
    BORROWED path = inode_borrow(handle->inode);
    int32_t id = path.fd < 0 ? path.fd : register_fd(fs, path.fd);

    if (id != -EBADF)
        return id;
    int fd = descriptors_openat(fs, AT_FDCWD, proc_path(handle->fd).text, O_RDONLY | O_CLOEXEC, 0);
    id = register_fd(fs, fd < 0 ? handle->fd : fd);
    if (fd >= 0)
        close(fd);
    return id;
}

static void unregister_backing(struct fs *fs, int32_t id)
{
    uint32_t backing = (uint32_t)id;

    if (ioctl(fuse_session_fd(fs->session), FUSE_DEV_IOC_BACKING_CLOSE, &backing))
        fs_log(LOG_DEBUG, "the kernel keeps backing file %u: %s", backing, strerror(errno));
}

/* The kernel opens the backing file with the opener's flags, and refuses what that refuses. */
static bool takes_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT))
        return false;
    fcntl(fd, F_SETFL, flags);
    return true;
}

/* Whether the handle is the only thing that has the file open, mappings included: then a lease is granted. */
static bool is_alone(const struct handle *handle)
{
    if (fcntl(handle->fd, F_SETLEASE, F_WRLCK))
        return false;
    fcntl(handle->fd, F_SETLEASE, F_UNLCK);
    return true;
}

/* chattr +a. The kernel does not know it of the mount's file, and would map it for stores. */
static bool only_grows(const struct handle *handle)
{
    struct statx stx;

    return !statx(handle->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &stx) &&
           stx.stx_attributes & STATX_ATTR_APPEND;
}

/* The kernel sends a write() to pages that it does not have in a request for each page, unless it may not use
 * its cache at all. On one mount its lock keeps other appends out meanwhile. Who can't read can't map,
 * either; but others who read or map the file do use the cache, and must not keep what it has of the end. */
static bool appends_beside_others(const struct fs *fs, const struct handle *handle)
{
    return fs->options.cache.shared && fs->drops_behind && (handle->flags & O_ACCMODE) == O_WRONLY &&
           handle->flags & O_APPEND;
}

/* Only filesystems that it was tried on: of others' opens below the daemon little is known (CIFS would refuse
 * one with O_EXCL, NFS cut once more). They may be mounted in the data directory, too. */
static bool is_on_tried(const struct fs *fs, const struct inode *inode)
{
    return fs->local && (inode->dev == fs->root->dev || volume_is_local(inode->volume));
}

/* The lock is held. A file that has lost bytes (cache/durable.h) is better not passed through: that they are
 * written again would not be seen; nor is one that a device may come to map (fs/programs.h). */
static bool is_to_pass(struct fs *fs, struct handle *handle, const struct passthrough *state, bool for_device)
{
    struct inode *inode = handle->inode;
    bool better_not = for_device || durable_is_lost(inode_durable(inode));

    if (state->passed && !(better_not && !state->handles && !inode_file(inode) && is_alone(handle)))
        return true;
    return fs->passes && !better_not && !inode_file(inode) && !state->cached && is_on_tried(fs, inode) &&
           !only_grows(handle);
}

/* is_to_pass(), and what has to be done before a file leaves: the kernel may have pages of its own (READs of
 * descriptors that append) from before what was written past them, and must have dropped them when anybody
 * finds the file not passed through: the next opener would be told to keep them. Nobody has it open or
 * mapped, so that no page is dirty or being read, and this waits for nobody.
 *
 * The lock is held on entry and exit, not while pages are dropped: a program that opens the file meanwhile
 * keeps it where it is. */
static bool decide(struct fs *fs, struct handle *handle, struct passthrough *state, bool for_device)
{
    bool passes = is_to_pass(fs, handle, state, for_device);

    while (!passes && state->passed && state->dropped != state->opens) {
        uint64_t opens = state->opens;
        pthread_mutex_unlock(&fs->passthrough_lock);
        session_invalidate(fs, handle->inode, 0, 0);
        pthread_mutex_lock(&fs->passthrough_lock);
        state->dropped = opens;
        passes = is_to_pass(fs, handle, state, for_device);
    }
    return passes;
}

/* The lock is held. 0, or why the file can't be passed through. */
static int pass(struct fs *fs, struct handle *handle, struct passthrough *state)
{
    if (handle->flags & O_DIRECT && !takes_direct(handle->fd))
        return -EINVAL;
    if (!state->handles) {
        int32_t id = register_backing(fs, handle);
        if (id < 0)
            return id;
        state->backing = id;
    }
    state->handles++;
    state->opens++;
    state->passed = true;
    return 0;
}

/* Why no file of this mount will ever be passed through; what lies on another filesystem, mounted below the
 * data directory, says nothing of the others. */
static void note_refusal(struct fs *fs, const struct inode *inode, int error)
{
    if (error != -EPERM && error != -ELOOP && error != -EOPNOTSUPP && error != -ENOTTY)
        return;
    if (inode->dev != fs->root->dev)
        return;
    fs_log(LOG_NOTICE, "files are not passed through to the data directory: %s",
           error == -ELOOP ? "it lies on a filesystem that is stacked on another one" : strerror(-error));
    fs->passes = false;
}

/* How the file is open, if the cache does not know it, or somebody is telling it something. The lock is held.
 */
static bool is_news(const struct fs *fs, struct passthrough *state, struct cache_passed *now_out)
{
    const struct cache_passed *told = &state->told;
    bool elsewhere =
        fs->passes && fs->options.cache.shared; /* they are mounted as this is, as far as known */

    *now_out = (struct cache_passed){.passed = state->passed,
                                     .written = state->written || (state->passed && elsewhere),
                                     .direct = state->direct,
                                     .elsewhere = elsewhere};
    if (now_out->passed == told->passed && now_out->written == told->written &&
        now_out->direct == told->direct && now_out->elsewhere == told->elsewhere &&
        told->number == state->number)
        return false;
    now_out->number = ++state->number;
    return true;
}

/* Not with the lock held: it has to wait for the file's own, which a collect or a comparison may hold for
 * long, and those that open or close other files do not. The last news counts, whoever is first to tell. */
static void tell_cache(struct fs *fs, struct passthrough *state, struct cache_file *file,
                       const struct cache_passed *now)
{
    cache_file_pass(file, now);
    pthread_mutex_lock(&fs->passthrough_lock);
    if (now->number > state->told.number)
        state->told = *now;
    pthread_mutex_unlock(&fs->passthrough_lock);
}

int passthrough_open(struct fs *fs, struct handle *handle, pid_t opener, struct fuse_file_info *fi)
{
    struct inode *inode = handle->inode;
    struct passthrough *state = &inode_content(inode)->passthrough;
    bool writable = (handle->flags & O_ACCMODE) != O_RDONLY;
    bool for_device = fs->passes && !fs->options.passthrough_all && programs_have(&fs->programs, opener);
    struct cache_passed now;
    int rc = 0;

    pthread_mutex_lock(&fs->passthrough_lock);
    handle->passed = decide(fs, handle, state, for_device);
    struct cache_file *file = inode_file(inode);
    if (handle->passed) {
        rc = pass(fs, handle, state);
        if (rc < 0 && !state->passed) { /* as well without */
            note_refusal(fs, inode, rc);
            handle->passed = false;
            rc = 0;
        }
    } else {
        handle->left = state->passed;
        state->passed = state->written = state->direct = false;
    }
    handle->counted = rc == 0;
    if (rc == 0 && !handle->passed) {
        state->cached++;
        /* Without the kernel's cache nobody maps it shared. */
        fi->direct_io = writable && handle->flags & O_APPEND && only_grows(handle);
        fi->direct_io |= appends_beside_others(fs, handle);
        handle->uncached = fi->direct_io;
    } else if (rc == 0) {
        handle->backing = state->backing;
        /* Its reads and writes come to the daemon, only mappings are passed through: the kernel would go on
         * appending when O_APPEND is taken back (fcntl). */
        fi->direct_io = handle->asks = writable && handle->flags & O_APPEND;
        state->written |= writable;
        state->direct |= !!(handle->flags & O_DIRECT);
    }
    bool news = file && rc == 0 && is_news(fs, state, &now);
    pthread_mutex_unlock(&fs->passthrough_lock);
    if (news)
        tell_cache(fs, state, file, &now);
    if (rc == 0 && (writable || handle->left))
        durable_blind(inode_durable(inode), handle->fd, handle->passed);
    return rc;
}

void passthrough_close(struct fs *fs, struct handle *handle)
{
    struct passthrough *state = &inode_content(handle->inode)->passthrough;
    bool last = false;

    if (!handle->counted)
        return;
    pthread_mutex_lock(&fs->passthrough_lock);
    if (!handle->passed)
        state->cached--;
    else if (!--state->handles)
        unregister_backing(fs, state->backing);
    last = handle->passed && !state->handles && inode_file(handle->inode);
    pthread_mutex_unlock(&fs->passthrough_lock);
    if (last) /* and not mapped, as will be seen: then it can leave passthrough */
        pruner_wish(fs, handle->inode->id);
}

void passthrough_track(struct fs *fs, struct inode *inode, struct cache_file *file)
{
    struct content *content = inode_content(inode);
    struct cache_passed now;

    pthread_mutex_lock(&fs->passthrough_lock);
    /* A new file knows that it is not passed. Nobody has its lock. */
    if (is_news(fs, &content->passthrough, &now)) {
        cache_file_pass(file, &now);
        content->passthrough.told = now;
    }
    order_before(file); /* see inode_file() */
    atomic_store(&content->file, file);
    pthread_mutex_unlock(&fs->passthrough_lock);
}

void passthrough_forget(struct fs *fs, struct inode *inode)
{
    struct passthrough *state = &inode_content(inode)->passthrough;

    pthread_mutex_lock(&fs->passthrough_lock);
    /* Unless it has been looked up again meanwhile: that may have gone on to an open. */
    if (!inode_is_known(inode) && !state->handles)
        state->passed = state->written = state->direct = false;
    pthread_mutex_unlock(&fs->passthrough_lock);
}

void passthrough_look(struct fs *fs, struct inode *inode, struct passthrough_mode *mode_out)
{
    struct content *content = inode_content(inode);
    const struct passthrough *state = content ? &content->passthrough : &(struct passthrough){0};

    pthread_mutex_lock(&fs->passthrough_lock);
    mode_out->opens = state->handles + state->cached;
    mode_out->name = state->passed ? "passthrough" : inode_file(inode) ? "tracked" : "cached";
    pthread_mutex_unlock(&fs->passthrough_lock);
}
