/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

static void reply_attr(fuse_req_t req, int fd)
{
    struct stat st;

    if (fstat(fd, &st))
        fuse_reply_err(req, errno);
    else
        fuse_reply_attr(req, &st, fs_of(req)->options.timeout_s);
}

void op_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));

    (void)fi;
    if (!reply_if_error(req, file.fd))
        reply_attr(req, file.fd);
}

static int set_owner(int fd, const struct stat *attr, int to_set)
{
    uid_t uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1;
    gid_t gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1;

    return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

static int set_times(int fd, const struct stat *attr, int to_set)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};

    if (to_set & FUSE_SET_ATTR_ATIME_NOW)
        times[0].tv_nsec = UTIME_NOW;
    else if (to_set & FUSE_SET_ATTR_ATIME)
        times[0] = attr->st_atim;
    if (to_set & FUSE_SET_ATTR_MTIME_NOW)
        times[1].tv_nsec = UTIME_NOW;
    else if (to_set & FUSE_SET_ATTR_MTIME)
        times[1] = attr->st_mtim;
    /* By its name in /proc: a symbolic link that fd itself stands for is not followed. */
    return utimensat(AT_FDCWD, proc_path(fd).text, times, 0) ? -errno : 0;
}

static int set_size(fuse_req_t req, struct inode *inode, const struct handle *handle, off_t size)
{
    bool writable = handle && (handle->flags & O_ACCMODE) != O_RDONLY;

    return data_truncate(req, inode, writable ? handle->fd : -1, size);
}

void op_setattr(fuse_req_t req, fuse_ino_t nodeid, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    BORROWED file = inode_borrow(inode);
    int rc = 0;

    if (reply_if_error(req, file.fd))
        return;
    /* chown(-1, -1), or the kernel asks to clear set-id bits: both come without a bit that libfuse hands on.
     */
    if (to_set == 0)
        rc = set_owner(file.fd, attr, 0);
    if (to_set & FUSE_SET_ATTR_MODE)
        rc = chmod(proc_path(file.fd).text, attr->st_mode & 07777) ? -errno : 0;
    if (rc == 0 && to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        rc = set_owner(file.fd, attr, to_set);
    if (rc == 0 && to_set & FUSE_SET_ATTR_SIZE)
        rc = set_size(req, inode, handle_of(fi), attr->st_size);
    if (rc == 0 && to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
                             FUSE_SET_ATTR_MTIME_NOW))
        rc = set_times(file.fd, attr, to_set);
    if (!reply_if_error(req, rc))
        reply_attr(req, file.fd);
}

void op_statfs(fuse_req_t req, fuse_ino_t nodeid)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    struct statvfs stv;

    if (reply_if_error(req, file.fd))
        return;
    if (fstatvfs(file.fd, &stv))
        fuse_reply_err(req, errno);
    else
        fuse_reply_statfs(req, &stv);
}

/* Answers a request for a name list or a value: size 0 asks how long it is. */
static void reply_xattr(fuse_req_t req, size_t size, char *buffer, ssize_t length)
{
    if (length < 0)
        fuse_reply_err(req, errno);
    else if (size == 0)
        fuse_reply_xattr(req, (size_t)length);
    else
        fuse_reply_buf(req, buffer, (size_t)length);
}

void op_getxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, size_t size)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    char *buffer = NULL;

    if (reply_if_error(req, file.fd))
        return;
    if (size > 0 && !(buffer = malloc(size))) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    reply_xattr(req, size, buffer, getxattr(proc_path(file.fd).text, name, buffer, size));
    free(buffer);
}

void op_listxattr(fuse_req_t req, fuse_ino_t nodeid, size_t size)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    char *buffer = NULL;

    if (reply_if_error(req, file.fd))
        return;
    if (size > 0 && !(buffer = malloc(size))) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    reply_xattr(req, size, buffer, listxattr(proc_path(file.fd).text, buffer, size));
    free(buffer);
}

void op_setxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, const char *value, size_t size,
                 int flags)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));

    if (reply_if_error(req, file.fd))
        return;
    fuse_reply_err(req, setxattr(proc_path(file.fd).text, name, value, size, flags) ? errno : 0);
}

void op_removexattr(fuse_req_t req, fuse_ino_t nodeid, const char *name)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));

    if (reply_if_error(req, file.fd))
        return;
    fuse_reply_err(req, removexattr(proc_path(file.fd).text, name) ? errno : 0);
}
