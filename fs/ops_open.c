/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "fs/answers.h"
#include "fs/content.h"
#include "fs/creds.h"
#include "fs/flusher.h"
#include "fs/later.h"
#include "fs/nodes.h"
#include "fs/open_reply.h"
#include "fs/request.h"
#include "fs/resolve.h"
#include "fs/server.h"
#include "fs/session.h"
#include "fs/trouble.h"

#define DAY_S (24 * 60 * 60)

/* What of the opener's flags the backing descriptor gets. Not O_DIRECT: the backing filesystem may refuse it,
 * or the alignment of a request's buffer; the kernel has kept its cache out of the way already. Not O_TRUNC:
 * the cut comes by itself (op_init()). O_APPEND stays, so that appends behind the mount are not written
 * over. */
static int backing_flags(int flags)
{
    return (flags & (O_ACCMODE | O_APPEND | O_SYNC | O_DSYNC | O_NOATIME)) | O_CLOEXEC;
}

/* FLUSH, which close() waits for, only hands on what the backing filesystem says at close. Nobody has written
 * through a descriptor that can't write, and filesystems of a local disk say nothing at close. But where
 * write-backs are late, libgaia closes a descriptor to wait for them. */
static bool needs_no_flush(const struct fs *fs, const struct inode *inode, int flags)
{
    if (!fs->prompt_write_backs || fs->options.members) /* programs of other nodes may wait for it */
        return false;
    return (flags & O_ACCMODE) == O_RDONLY || (fs->local && inode->dev == fs->root->dev);
}

/* Close to open: pages that the kernel has from before a change behind the mount must not outlast an open.
 * They are dropped before the open is answered: an opener that was told to drop them would do so in its own
 * time, and a program that opens the file meanwhile would go on with them, and write them back with what it
 * stores. */
struct stale {
    struct cache_file *file;
    uint64_t opened, found; /* what cache_file_opened() and inode_opened() returned */
    bool deleted;           /* the file has no name */
};

static bool has_no_name(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_nlink == 0;
}

static bool is_stale(const struct stale *stale)
{
    return stale->opened || stale->found;
}

/* Nothing to do with pages: whether a read by the filesystem's rules (relatime) moves the time of access. */
static bool is_read_anew(const struct stat *st)
{
    const struct timespec *access = &st->st_atim, *changes[] = {&st->st_mtim, &st->st_ctim};

    for (unsigned i = 0; i < 2; i++)
        if (access->tv_sec < changes[i]->tv_sec ||
            (access->tv_sec == changes[i]->tv_sec && access->tv_nsec <= changes[i]->tv_nsec))
            return true;
    return time(NULL) - access->tv_sec >= DAY_S;
}

/* The kernel answers reads from the pages that it keeps, and has no times of access: the filesystem below
 * would not learn of these reads, and a mail that was delivered through the mount would be new for ever. So
 * an open for reading alone counts as a read then; an open for reading and writing does not, as a program
 * that delivers mail may use it. The read is at the end of the file, where it needs no page, and that
 * filesystem treats it like any other. */
static void date_read(const struct handle *handle, struct stat *st)
{
    struct inode *inode = handle->inode;
    struct fs *fs = inode->fs;
    char byte;

    if (handle->flags & (O_ACCMODE | O_NOATIME | O_DIRECT) || !fs->dates_reads || inode->dev != fs->root->dev)
        return;
    /* Of a tracked file nobody has asked. */
    if ((inode_file(inode) && fstat(handle->fd, st)) || !st->st_mode || !is_read_anew(st))
        return;
    if (pread(handle->fd, &byte, 1, st->st_size) < 0)
        return; /* nobody has asked for it */
    /* The kernel asks again (timeout=). If it were told to, the next open would have to wait for that. */
}

static void look_for_stale(const struct handle *handle, struct stale *stale_out)
{
    struct inode *inode = handle->inode;
    struct stat st = {0};
    bool again;

    *stale_out = (struct stale){.file = inode_file(inode)};
    /* Those of a tracked file the cache drops when it has to: it must know of it. */
    if (stale_out->file) {
        stale_out->opened = cache_file_opened(stale_out->file);
        stale_out->deleted = has_no_name(handle->fd);
    } else {
        inode_unchanged(inode, handle->fd, &st);
        stale_out->deleted = st.st_mode && st.st_nlink == 0;
    }
    stale_out->found = inode_opened(inode, &again);
    if (again && !is_stale(stale_out)) /* else READs come */
        date_read(handle, &st);
}

/* Waits for WRITEs and READs of those pages. */
static bool drop_stale(struct fs *fs, struct inode *inode, const struct stale *stale)
{
    if (stale->file)
        cache_file_drop_begin(stale->file);
    int rc = session_invalidate(fs, inode, 0, 0);
    bool dropped = rc == 0 || rc == -ENOENT; /* it has none */
    if (stale->file)
        cache_file_drop_end(stale->file, dropped ? stale->opened : 0);
    if (dropped)
        inode_dropped(inode, stale->found);
    return dropped;
}

struct opening {
    fuse_req_t req;
    struct fuse_file_info fi;
    struct stale stale;
};

static void answer_open(fuse_req_t req, const struct fuse_file_info *fi)
{
    if (open_reply(req, fi) < 0)
        handle_free(fs_of(req), handle_of(fi));
}

static void drop_and_answer(void *argument)
{
    struct opening opening = *(struct opening *)argument;

    free(argument);
    opening.fi.keep_cache = drop_stale(fs_of(opening.req), handle_of(&opening.fi)->inode, &opening.stale);
    answer_open(opening.req, &opening.fi);
}

/* Where the pages can't be dropped first, the opener is told to drop them. That is as good for it, and the
 * next opener has them dropped. And nobody is ever told to keep pages of a file that is far. */
static void drop_and_open(fuse_req_t req, struct fuse_file_info *fi, const struct stale *stale)
{
    struct inode *inode = handle_of(fi)->inode;
    bool far = stale->file && cache_file_is_far(stale->file);
    struct opening *opening = far ? NULL : malloc(sizeof *opening);
    struct passthrough_mode mode;

    if (opening) {
        *opening = (struct opening){req, *fi, *stale};
        passthrough_look(inode->fs, inode, &mode);
        /* Nobody else has it open or mapped: no page is dirty or being read, and to drop them takes no time.
         */
        if (later_drop_perhaps(inode->fs, drop_and_answer, opening, mode.opens <= 1))
            return;
        free(opening);
    }
    answer_open(req, fi);
}

/* Puts a handle for fd into fi. 0 or a negative errno; fd is closed then. */
static int attach_handle(fuse_req_t req, struct inode *inode, int fd, struct fuse_file_info *fi,
                         struct stale *stale_out)
{
    struct fs *fs = fs_of(req);
    struct handle *handle = handle_new(fs, inode, fd, NULL, fi->flags);

    if (!handle) {
        close(fd);
        return -ENOMEM;
    }
    fi->fh = (uint64_t)(uintptr_t)handle;
    fi->noflush = needs_no_flush(fs, inode, fi->flags);
    if (flusher_is(fs, inode, fuse_req_ctx(req)->pid)) {
        handle->flushes = true;
        fi->keep_cache = true;
        fi->noflush = fs->prompt_write_backs; /* else its close() is what waits for write-backs */
        return 0;
    }
    int rc = nodes_catch_up(inode, true);
    if (rc == 0)
        rc = inode_writers_tell(inode);
    if (rc == 0)
        rc = passthrough_open(fs, handle, fuse_req_ctx(req)->pid, fi);
    if (rc < 0) {
        handle_free(fs, handle);
        return rc;
    }
    bool passed = handle->passed;
    order_before(handle); /* see handle_of() */
    if (passed) {         /* the kernel has no pages of its own then */
        stale_out->deleted = has_no_name(handle->fd);
        return 0;
    }
    look_for_stale(handle, stale_out);
    fi->keep_cache = !is_stale(stale_out);
    return 0;
}

static int open_file(fuse_req_t req, struct inode *inode, struct fuse_file_info *fi, struct stale *stale_out)
{
    struct fs *fs = fs_of(req);
    BORROWED path = inode_borrow(inode);

    if (path.fd < 0)
        return path.fd;
    int fd = descriptors_open_quietly(fs, AT_FDCWD, proc_path(path.fd).text, backing_flags(fi->flags), 0,
                                      atime_flag(fs));
    if (fd < 0)
        return fd;
    return attach_handle(req, inode, fd, fi, stale_out);
}

void op_open(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    struct stale stale = {0};
    int rc = open_file(req, inode, fi, &stale);

    /* Whoever took the name away behind the mount, or gave it to another file, the kernel goes by what it
     * knew, and what is written would be nobody's. It is to look the name up anew; a program that came by a
     * descriptor, and not by a name, it has ask once more. */
    if (rc == 0 && stale.deleted && inode_note_deleted(inode)) {
        handle_free(fs_of(req), handle_of(fi));
        rc = -ESTALE;
    }
    if (rc < 0)
        fuse_reply_err(req, (int)-trouble(inode, "opening", rc));
    else if (is_stale(&stale))
        drop_and_open(req, fi, &stale);
    else
        answer_open(req, fi);
}

static int create_backing(fuse_req_t req, struct inode *parent, const char *name, mode_t mode, int flags)
{
    BORROWED dir = inode_borrow(parent);
    int rc = dir.fd < 0 ? dir.fd : creds_become_caller(req), backing = backing_flags(flags);

    if (rc < 0)
        return rc;
    mode = creds_mask(req, mode);
    if (strcmp(name, REQUEST_TMPFILE_NAME) == 0)
        rc = descriptors_open_quietly(fs_of(req), dir.fd, ".", backing | O_TMPFILE | (flags & O_EXCL), mode,
                                      atime_flag(fs_of(req)));
    else
        rc = descriptors_open_quietly(fs_of(req), dir.fd, name, backing | O_CREAT | O_EXCL | O_NOFOLLOW, mode,
                                      atime_flag(fs_of(req)));
    creds_become_self(req);
    /* Somebody made it behind the kernel's back. Let the kernel look again: it then checks the permissions of
     * what is there and sends an ordinary open. */
    return rc == -EEXIST && !(flags & O_EXCL) ? -ESTALE : rc;
}

/* Who is told that it failed tries again, and must not find a file. It is closed, so that there is a
 * descriptor for its folder. No other program of the mount has seen it, as the kernel has locked that; what
 * those of other nodes and mounts have written to it stays. */
static void uncreate(struct inode *parent, const char *name, const struct stat *made)
{
    BORROWED dir = inode_borrow(parent);
    struct statx stx;

    if (dir.fd >= 0 &&
        !statx(dir.fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_INO | STATX_SIZE, &stx) &&
        stx.stx_ino == made->st_ino && makedev(stx.stx_dev_major, stx.stx_dev_minor) == made->st_dev &&
        !stx.stx_size)
        unlinkat(dir.fd, name, 0);
}

void op_create(fuse_req_t req, fuse_ino_t parent_id, const char *name, mode_t mode, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *parent = inode_of(req, parent_id), *inode;
    struct fuse_entry_param entry = {0};
    struct stat made;
    struct stale stale;
    int fd = create_backing(req, parent, name, mode, fi->flags), path_fd, rc;

    if (fd < 0) {
        fuse_reply_err(req, (int)-trouble(parent, "creating a file in", fd));
        return;
    }
    if (fstat(fd, &made))
        made = (struct stat){0}; /* then it is left */
    /* Not by its name: that may be another file's by now. */
    path_fd = descriptors_openat(fs, AT_FDCWD, proc_path(fd).text, O_PATH | O_CLOEXEC, 0);
    rc = path_fd < 0 ? path_fd : resolve_entry_fd(fs, path_fd, parent, name, &entry);
    if (rc < 0) {
        close(fd);
        uncreate(parent, name, &made);
        fuse_reply_err(req, -rc);
        return;
    }
    inode = inode_of(req, entry.ino);
    rc = attach_handle(req, inode, fd, fi, &stale); /* of a new file there is nothing to drop */
    if (rc < 0) {
        inode_forget(inode, 1);
        uncreate(parent, name, &made);
        fuse_reply_err(req, -rc);
    } else if (open_reply_create(req, &entry, fi) < 0) {
        handle_free(fs, handle_of(fi));
        inode_forget(inode, 1);
    }
}

static void answer_flush(fuse_req_t req, const struct handle *handle)
{
    int copy = dup(handle->fd), why = errno; /* if it can't be; who is asked below may change it */
    struct cache_file *file;
    int rc;

    do {
        file = inode_file(handle->inode);
        rc = file ? cache_file_flush(file) : 0;
    } while (nodes_try_again(handle->inode, file, rc));
    if (copy < 0 && descriptors_shed(fs_of(req), why)) {
        copy = dup(handle->fd);
        why = errno;
    }
    /* A backing filesystem that reports errors at close (NFS, a quota) reports them to this close. That
     * descriptors are short is no error of it. */
    if (copy < 0)
        fuse_reply_err(req, why == EMFILE ? -rc : why);
    else
        fuse_reply_err(req, close(copy) ? errno : -rc);
}

struct flush {
    fuse_req_t req;
    struct handle *handle; /* there until its RELEASE, which comes after the answer */
};

static void flush_later(void *argument)
{
    struct flush flush = *(struct flush *)argument;

    free(argument);
    answer_flush(flush.req, flush.handle);
}

void op_flush(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    struct handle *handle = handle_of(fi);
    bool waits = fs_of(req)->options.members && inode_file(inode_of(req, nodeid));
    struct flush *flush = waits && !handle->flushes ? malloc(sizeof *flush) : NULL;

    if (handle->flushes) { /* an acquire waits for it */
        fuse_reply_err(req, 0);
        return;
    }
    if (!flush) {
        answer_flush(req, handle);
        return;
    }
    *flush = (struct flush){req, handle};
    later(fs_of(req), flush_later, flush);
}

void op_release(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    (void)nodeid;
    server_forget(fs_of(req)->server, handle_of(fi));
    handle_free(fs_of(req), handle_of(fi));
    fuse_reply_err(req, 0);
}

/* What lsattr(1) shows, and xfs_io. They can't be changed through the mount: the kernel would not know of it.
 */
static void reply_flags(fuse_req_t req, const struct handle *handle, unsigned int cmd, size_t out_size)
{
    union {
        int flags;
        struct fsxattr extended;
    } answer = {0};
    size_t size = cmd == (unsigned)FS_IOC_GETFLAGS ? sizeof(answer.flags) : sizeof(answer.extended);

    if (out_size < size)
        fuse_reply_err(req, EINVAL);
    else if (ioctl(handle->fd, cmd, &answer))
        fuse_reply_err(req, errno);
    else
        fuse_reply_ioctl(req, 0, &answer, size);
}

void op_ioctl(fuse_req_t req, fuse_ino_t nodeid, unsigned int cmd, void *arg, struct fuse_file_info *fi,
              unsigned flags, const void *in, size_t in_size, size_t out_size)
{
    (void)arg;
    if (cmd == (unsigned)FS_IOC_GETFLAGS || cmd == (unsigned)FS_IOC_FSGETXATTR) {
        reply_flags(req, handle_of(fi), cmd, out_size);
        return;
    }
    server_ioctl(fs_of(req)->server, req, inode_of(req, nodeid),
                 flags & FUSE_IOCTL_DIR ? NULL : handle_of(fi), cmd, in, in_size, out_size);
}
