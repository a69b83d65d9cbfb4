/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/set_ids.h"
#include "cache/cache.h"
#include "fs/answers.h"
#include "fs/content.h"
#include "fs/creds.h"
#include "fs/nodes.h"
#include "fs/request.h"
#include "fs/resolve.h"

static void reply_attr(fuse_req_t req, struct inode *inode, int fd)
{
    struct stat st;

    if (fstat(fd, &st)) {
        fuse_reply_err(req, errno);
        return;
    }
    st.st_ino = resolve_number(fs_of(req), inode->dev, inode->ino);
    st.st_size = nodes_size(inode, st.st_size);
    resolve_hide(inode, &st);
    fuse_reply_attr(req, &st, fs_of(req)->options.timeout_s);
}

static void reply_statx(fuse_req_t req, struct inode *inode, int fd)
{
    struct statx stx;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &stx)) {
        fuse_reply_err(req, errno);
        return;
    }
    stx.stx_ino = resolve_number(fs_of(req), inode->dev, inode->ino);
    stx.stx_size = (uint64_t)nodes_size(inode, (off_t)stx.stx_size);
    struct stat st = {.st_mode = stx.stx_mode, .st_rdev = makedev(stx.stx_rdev_major, stx.stx_rdev_minor)};
    resolve_hide(inode, &st);
    stx.stx_mode = (uint16_t)st.st_mode;
    stx.stx_rdev_major = major(st.st_rdev);
    stx.stx_rdev_minor = minor(st.st_rdev);
    request_reply_statx(req, &stx);
}

void op_getattr(fuse_req_t req, fuse_ino_t nodeid, struct fuse_file_info *fi)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));

    (void)fi;
    if (reply_if_error(req, file.fd))
        return;
    if (request_is_statx())
        reply_statx(req, inode_of(req, nodeid), file.fd);
    else
        reply_attr(req, inode_of(req, nodeid), file.fd);
}

static int set_owner(fuse_req_t req, int fd, const struct stat *attr, int to_set)
{
    uid_t uid = to_set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1;
    gid_t gid = to_set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1;

    /* Which set-id bits this clears depends on who asks. */
    int rc = creds_become_caller_grouped(req);
    if (rc < 0)
        return rc;
    rc = fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) ? -errno : 0;
    creds_become_self_ungrouped(req);
    if (rc == 0 && to_set == 0)
        set_ids_clear_rest(fd);
    return rc;
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

/* Either chown(-1, -1), or the kernel asks to clear the set-id bits of a file that is being written to: both
 * come without a bit that libfuse hands on. The first is only the owner's right if it changes a bit, as the
 * filesystem below would say if we were not root; for the second, a program that may write has the file open.
 */
static int clear_set_ids(fuse_req_t req, struct inode *inode, int fd, const struct stat *attr)
{
    uid_t uid = fuse_req_ctx(req)->uid;
    struct stat st;

    if (fstat(fd, &st))
        return -errno;
    if (uid != 0 && uid != st.st_uid && !handle_may_write(inode))
        return st.st_mode & (S_ISUID | S_ISGID) && S_ISREG(st.st_mode) ? -EPERM : 0;
    return set_owner(req, fd, attr, 0);
}

#define SETS_MTIME (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)

static int set_attributes(fuse_req_t req, struct inode *inode, int fd, const struct stat *attr, int to_set,
                          const struct handle *handle)
{
    int rc = 0;

    if (to_set == 0)
        rc = clear_set_ids(req, inode, fd, attr);
    if (to_set & FUSE_SET_ATTR_MODE)
        rc = chmod(proc_path(fd).text, attr->st_mode & 07777) ? -errno : 0;
    if (rc == 0 && to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        rc = set_owner(req, fd, attr, to_set);
    if (rc == 0 && to_set & FUSE_SET_ATTR_SIZE)
        rc = set_size(req, inode, handle, attr->st_size);
    if (rc == 0 && to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW | SETS_MTIME))
        rc = set_times(fd, attr, to_set);
    return rc;
}

/* Each collect of what devices have released before moves the time of modification again: none is left. What
 * can't be written now (ENOSPC) does so when it can. */
static void collect_before_times(struct inode *inode)
{
    nodes_await_sure(inode, CACHE_COLLECTS);
    struct cache_file *file = inode_usable(inode);

    if (file)
        cache_file_collect(file);
}

void op_setattr(fuse_req_t req, fuse_ino_t nodeid, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    BORROWED file = inode_borrow(inode);
    struct inode_change change;

    if (reply_if_error(req, file.fd))
        return;
    if (to_set & SETS_MTIME && !(to_set & FUSE_SET_ATTR_SIZE))
        collect_before_times(inode);
    inode_change_begin(inode, file.fd, to_set & SETS_MTIME ? CHANGE_OF_TIMES : CHANGE_OF_NAMES, &change);
    int rc = set_attributes(req, inode, file.fd, attr, to_set, handle_of(fi));
    inode_change_end(inode, file.fd, &change);
    if (reply_if_error(req, rc))
        return;
    struct answer *answer = fs_of(req)->options.members ? answer_begin(nodeid) : NULL;
    reply_attr(req, inode, file.fd);
    answer_sent(answer);
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

#define ACL_PREFIX "system.posix_acl_"

/* ACLs of other kinds (NFSv4's, CIFS's). Only the filesystem below knows who may set them; the kernel does
 * not check it, and that filesystem would see us ask, and not the program. */
static bool is_not_his_to_set(fuse_req_t req, const char *name)
{
    uid_t uid = fuse_req_ctx(req)->uid;

    return strncmp(name, "system.", 7) == 0 && strncmp(name, ACL_PREFIX, strlen(ACL_PREFIX)) != 0 &&
           uid != 0 && uid != geteuid();
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
    bool hidden =
        resolve_hidden(inode_of(req, nodeid)) & REFUSES_SET_IDS && !strcmp(name, "security.capability");
    ssize_t length = hidden ? -1 : getxattr(proc_path(file.fd).text, name, buffer, size);
    if (hidden)
        errno = ENODATA;
    /* The kernel asks for the ACL of what it is to check; "not supported" would fail the check. */
    if (length < 0 && errno == EOPNOTSUPP && strncmp(name, ACL_PREFIX, strlen(ACL_PREFIX)) == 0)
        errno = ENODATA;
    reply_xattr(req, size, buffer, length);
    free(buffer);
}

/* Takes the names that only root may see out of a list; the kernel does not. Returns what is left of it. */
static ssize_t drop_trusted(char *list, size_t length)
{
    size_t left = 0;

    for (size_t at = 0, next; at < length; at = next) {
        next = at + strnlen(list + at, length - at) + 1;
        if (next > length)
            next = length;
        if (strncmp(list + at, "trusted.", 8) == 0)
            continue;
        memmove(list + left, list + at, next - at);
        left += next - at;
    }
    return (ssize_t)left;
}

/* The number of bytes must not count what is not shown: a caller with room for the rest has enough. */
void op_listxattr(fuse_req_t req, fuse_ino_t nodeid, size_t size)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    bool all = fuse_req_ctx(req)->uid == 0;
    size_t room = all ? size : XATTR_LIST_MAX;
    char *buffer = NULL;

    if (reply_if_error(req, file.fd))
        return;
    if (room > 0 && !(buffer = malloc(room))) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    ssize_t length = listxattr(proc_path(file.fd).text, buffer, room);
    if (length > 0 && !all)
        length = drop_trusted(buffer, (size_t)length);
    if (length > 0 && size > 0 && (size_t)length > size) {
        length = -1;
        errno = ERANGE;
    }
    reply_xattr(req, size, buffer, length);
    free(buffer);
}

void op_setxattr(fuse_req_t req, fuse_ino_t nodeid, const char *name, const char *value, size_t size,
                 int flags)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    struct inode_change change;
    bool acl = strcmp(name, ACL_PREFIX "access") == 0;
    int rc = is_not_his_to_set(req, name) ? -EOPNOTSUPP : 0;

    if (reply_if_error(req, rc < 0 ? rc : file.fd))
        return;
    inode_change_begin(inode_of(req, nodeid), file.fd, CHANGE_OF_NAMES, &change);
    rc = acl ? creds_become_caller_grouped(req) : creds_become_caller(req);
    if (rc == 0) {
        rc = setxattr(proc_path(file.fd).text, name, value, size, flags) ? -errno : 0;
        if (acl)
            creds_become_self_ungrouped(req);
        else
            creds_become_self(req);
    }
    inode_change_end(inode_of(req, nodeid), file.fd, &change);
    fuse_reply_err(req, -rc);
}

void op_removexattr(fuse_req_t req, fuse_ino_t nodeid, const char *name)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    struct inode_change change;

    if (reply_if_error(req, is_not_his_to_set(req, name) ? -EOPNOTSUPP : file.fd))
        return;
    inode_change_begin(inode_of(req, nodeid), file.fd, CHANGE_OF_NAMES, &change);
    int rc = removexattr(proc_path(file.fd).text, name) ? -errno : 0;
    inode_change_end(inode_of(req, nodeid), file.fd, &change);
    fuse_reply_err(req, -rc);
}
