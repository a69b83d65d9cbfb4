/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h> /* renameat2() */
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/answers.h"
#include "fs/content.h"
#include "fs/creds.h"
#include "fs/resolve.h"
#include "fs/trouble.h"

/* Gives the kernel the entry; takes the lookup back when it did not arrive. */
static void reply_entry(fuse_req_t req, const struct fuse_entry_param *entry)
{
    struct inode *inode = inode_of(req, entry->ino);

    if (fuse_reply_entry(req, entry) < 0)
        inode_forget(inode, 1);
}

static bool look(int dir_fd, const char *name, struct statx *stx_out)
{
    return !statx(dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC,
                  STATX_TYPE | STATX_INO | STATX_SIZE, stx_out);
}

/* Who is told that it failed tries again, or takes what is there for somebody else's: folders and symbolic
 * links serve as locks. No other program of the mount has seen it, as the kernel has locked its folder; what
 * those of other nodes and mounts have put in its place, or into it, stays. */
static void unmake(int dir_fd, const char *name, const struct statx *made)
{
    struct statx stx;

    if (made->stx_mask & STATX_INO && look(dir_fd, name, &stx) && stx.stx_ino == made->stx_ino &&
        stx.stx_dev_major == made->stx_dev_major && stx.stx_dev_minor == made->stx_dev_minor &&
        !(S_ISREG(stx.stx_mode) && stx.stx_size))
        unlinkat(dir_fd, name, S_ISDIR(stx.stx_mode) ? AT_REMOVEDIR : 0);
}

static void reply_made(fuse_req_t req, struct inode *parent, int dir_fd, const char *name)
{
    struct fuse_entry_param entry;
    struct statx made;

    if (!look(dir_fd, name, &made))
        made.stx_mask = 0; /* then it is left */
    int rc = resolve_entry(fs_of(req), parent, name, &entry);
    if (rc < 0) {
        unmake(dir_fd, name, &made);
        fuse_reply_err(req, (int)-trouble(parent, "looking up a name in", rc));
    } else {
        reply_entry(req, &entry);
    }
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    int rc;

    /* A file handle of the mount (NFS) leads to a node id, and only then to a name. */
    if (strcmp(name, ".") == 0)
        rc = resolve_node(fs_of(req), parent, &entry);
    else if (strcmp(name, "..") == 0)
        rc = resolve_parent(fs_of(req), inode_of(req, parent), &entry);
    else
        rc = resolve_entry(fs_of(req), inode_of(req, parent), name, &entry);
    if (!reply_if_error(req, rc))
        reply_entry(req, &entry);
}

void op_forget(fuse_req_t req, fuse_ino_t nodeid, uint64_t lookups)
{
    inode_forget(inode_of(req, nodeid), lookups);
    inode_table_sweep(fs_of(req));
    fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        inode_forget(inode_of(req, forgets[i].ino), forgets[i].nlookup);
    inode_table_sweep(fs_of(req));
    fuse_reply_none(req);
}

/* What mkdir, mknod and symlink have in common. target: of a symbolic link, else NULL. */
static void make_node(fuse_req_t req, fuse_ino_t parent_id, const char *name, mode_t mode, dev_t rdev,
                      const char *target)
{
    struct inode *parent = inode_of(req, parent_id);
    BORROWED dir = inode_borrow(parent);
    int rc;

    if (reply_if_error(req, dir.fd))
        return;
    rc = creds_become_caller(req);
    if (rc == 0) {
        mode = creds_mask(req, mode);
        if (target)
            rc = symlinkat(target, dir.fd, name);
        else if (S_ISDIR(mode))
            rc = mkdirat(dir.fd, name, mode & ~(mode_t)S_IFMT);
        else
            rc = mknodat(dir.fd, name, mode, rdev);
        rc = rc < 0 ? -errno : 0;
        creds_become_self(req);
    }
    if (rc < 0)
        fuse_reply_err(req, -rc);
    else
        reply_made(req, parent, dir.fd, name);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    make_node(req, parent, name, mode, rdev, NULL);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    make_node(req, parent, name, S_IFDIR | mode, 0, NULL);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    make_node(req, parent, name, S_IFLNK, 0, target);
}

static bool is_short(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM;
}

static void reply_link(fuse_req_t req, fuse_ino_t nodeid, struct inode *parent, const char *name)
{
    struct answer *answer = fs_of(req)->options.members ? answer_begin(nodeid) : NULL;
    struct fuse_entry_param entry;
    int rc = resolve_entry(fs_of(req), parent, name, &entry);

    if (is_short(rc)) /* the name is there: that must not be told as an error */
        rc = resolve_node(fs_of(req), nodeid, &entry);
    if (rc < 0)
        fuse_reply_err(req, (int)-trouble(parent, "looking up a name in", rc));
    else
        reply_entry(req, &entry);
    answer_sent(answer);
}

/* Where the folder is on an idmapped mount that knows no uid 0, not even a name is made in it by us. */
static bool is_nobody_here(int rc)
{
    return rc == -EOVERFLOW;
}

static int link_as(fuse_req_t req, bool caller, int fd, int dir_fd, const char *name)
{
    int rc = caller ? creds_become_caller(req) : 0;

    if (rc == 0) {
        rc = linkat(AT_FDCWD, proc_path(fd).text, dir_fd, name, AT_SYMLINK_FOLLOW) ? -errno : 0;
        if (caller)
            creds_become_self(req);
    }
    return rc;
}

void op_link(fuse_req_t req, fuse_ino_t nodeid, fuse_ino_t parent, const char *name)
{
    BORROWED file = inode_borrow(inode_of(req, nodeid));
    BORROWED dir = inode_borrow(inode_of(req, parent));

    struct inode_change change;

    if (reply_if_error(req, file.fd < 0 ? file.fd : dir.fd))
        return;
    inode_change_begin(inode_of(req, nodeid), file.fd, CHANGE_OF_NAMES, &change);
    int rc = link_as(req, false, file.fd, dir.fd, name);
    if (is_nobody_here(rc))
        rc = link_as(req, true, file.fd, dir.fd, name);
    inode_change_end(inode_of(req, nodeid), file.fd, &change);
    if (rc == 0)
        inode_linked(inode_of(req, nodeid));
    if (!reply_if_error(req, rc))
        reply_link(req, nodeid, inode_of(req, parent), name);
}

/* A file of whose names one is taken away or changed, and with that its change time. */
struct renamed {
    int fd;              /* negative: there is none */
    struct inode *inode; /* NULL: not known */
    struct inode_change change;
};

/* Before it: after it the name leads nowhere. */
static void rename_begin(struct fs *fs, int dir_fd, const char *name, struct renamed *file_out)
{
    int fd = resolve_open(fs, dir_fd, name);

    *file_out = (struct renamed){.fd = fd, .inode = fd < 0 ? NULL : inode_get_known(fs, fd)};
    if (file_out->inode)
        inode_change_begin(file_out->inode, fd, CHANGE_OF_NAMES, &file_out->change);
}

/* removed: the name is gone, and with it perhaps the file. */
static void rename_end(struct renamed *file, bool removed)
{
    if (file->inode) {
        inode_change_end(file->inode, file->fd, &file->change);
        if (removed)
            file->fd = inode_unlinked(file->inode, file->fd);
        inode_put(file->inode);
    }
    if (file->fd >= 0)
        close(file->fd);
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, int flags)
{
    BORROWED dir = inode_borrow(inode_of(req, parent));
    struct renamed file;

    if (reply_if_error(req, dir.fd))
        return;
    rename_begin(fs_of(req), dir.fd, name, &file);
    int rc = unlinkat(dir.fd, name, flags) ? -errno : 0;
    rename_end(&file, rc == 0);
    fuse_reply_err(req, -rc);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    remove_name(req, parent, name, 0);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    remove_name(req, parent, name, AT_REMOVEDIR);
}

/* Where there are no file handles, the name is the way to the file (fs/place.h). */
static void note_move(struct fs *fs, struct inode *parent, const char *name)
{
    struct fuse_entry_param entry;

    if (!parent->handle_bytes && resolve_entry(fs, parent, name, &entry) == 0)
        inode_forget(inode_find(fs, entry.ino), 1);
}

static int rename_as(fuse_req_t req, bool caller, int from_fd, const char *name, int to_fd,
                     const char *new_name, unsigned flags)
{
    int rc = caller ? creds_become_caller(req) : 0;

    if (rc == 0) {
        rc = renameat2(from_fd, name, to_fd, new_name, flags) ? -errno : 0;
        if (caller)
            creds_become_self(req);
    }
    return rc;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned int flags)
{
    BORROWED from = inode_borrow(inode_of(req, parent));
    BORROWED to = inode_borrow(inode_of(req, new_parent));
    bool creates = flags & RENAME_WHITEOUT; /* leaves a device node that is the caller's */
    struct renamed moved, there = {.fd = -ENOENT};

    if (reply_if_error(req, from.fd < 0 ? from.fd : to.fd))
        return;
    rename_begin(fs_of(req), from.fd, name, &moved);
    if (!(flags & RENAME_NOREPLACE))
        rename_begin(fs_of(req), to.fd, new_name, &there);
    int rc = rename_as(req, creates, from.fd, name, to.fd, new_name, flags);
    if (is_nobody_here(rc))
        rc = rename_as(req, true, from.fd, name, to.fd, new_name, flags);
    rename_end(&moved, false);
    rename_end(&there, rc == 0 && !(flags & RENAME_EXCHANGE));
    if (rc == 0)
        note_move(fs_of(req), inode_of(req, new_parent), new_name);
    if (rc == 0 && flags & RENAME_EXCHANGE)
        note_move(fs_of(req), inode_of(req, parent), name);
    fuse_reply_err(req, -rc);
}

void op_readlink(fuse_req_t req, fuse_ino_t nodeid)
{
    BORROWED link = inode_borrow(inode_of(req, nodeid));
    char target[PATH_MAX + 1];
    ssize_t length;

    if (reply_if_error(req, link.fd))
        return;
    length = readlinkat(link.fd, "", target, sizeof(target));
    if (length < 0) {
        fuse_reply_err(req, errno);
    } else if ((size_t)length >= sizeof(target)) {
        fuse_reply_err(req, ENAMETOOLONG);
    } else {
        target[length] = '\0';
        fuse_reply_readlink(req, target);
    }
}
