/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fs/nodes.h"

#define PATH_FLAGS (O_PATH | O_NOFOLLOW | O_CLOEXEC)

/* The kernel sends one component; anything else would leave parent. */
static bool is_component(const char *name)
{
    return name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/');
}

/* Is our own mount on that name? Asked without entering it: a request to ourselves could never be answered.
 */
static int check_not_own_mount(struct fs *fs, int parent_fd, const char *name)
{
    struct statx stx;

    if (statx(parent_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE, &stx))
        return -errno;
    return makedev(stx.stx_dev_major, stx.stx_dev_minor) == fs->mounted.device ? -ELOOP : 0;
}

static bool is_automount_point(int fd)
{
    struct statfs filesystem;

    return fstatfs(fd, &filesystem) == 0 && filesystem.f_type == AUTOFS_SUPER_MAGIC;
}

/* A name on which something is mounted. Where that is done on demand (autofs, systemd's .automount) O_PATH
 * alone demands nothing, and shows an empty folder, which backups would take for the truth. But where we are
 * mounted over the data directory, who is to mount there comes through us, and would wait for this. */
static int open_mounted(struct fs *fs, int parent_fd, const char *name, bool demands)
{
    int rc = check_not_own_mount(fs, parent_fd, name), fd;

    if (rc < 0)
        return rc;
    fd = openat(parent_fd, name, PATH_FLAGS);
    if (fd < 0)
        return -errno;
    if (!is_automount_point(fd) || strcmp(fs->data_path, fs->mount_path) == 0)
        return fd;
    close(fd);
    if (!demands)
        return -EREMOTE;
    atomic_fetch_add(&fs->mounting, 1);
    fd = openat(parent_fd, name, PATH_FLAGS | O_DIRECTORY); /* may wait for long */
    rc = fd < 0 ? -errno : 0;
    atomic_fetch_sub(&fs->mounting, 1);
    if (rc < 0)
        return rc;
    rc = check_not_own_mount(fs, parent_fd, name);
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : fd;
}

static int open_name(struct fs *fs, int parent_fd, const char *name, bool demands)
{
    static atomic_bool no_openat2;
    struct open_how how = {.flags = PATH_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV};
    int fd;

    if (!is_component(name))
        return -EINVAL;
    if (!atomic_load_explicit(&no_openat2, memory_order_relaxed)) {
        fd = (int)syscall(SYS_openat2, parent_fd, name, &how, sizeof(how));
        if (fd >= 0)
            return fd;
        if (errno == ENOSYS)
            atomic_store(&no_openat2, true);
        else if (errno != EXDEV)
            return -errno;
    }
    return open_mounted(fs, parent_fd, name, demands);
}

static int open_or_shed(struct fs *fs, int parent_fd, const char *name, bool demands)
{
    int fd = open_name(fs, parent_fd, name, demands);

    return fd < 0 && descriptors_shed(fs, -fd) ? open_name(fs, parent_fd, name, demands) : fd;
}

int resolve_open(struct fs *fs, int parent_fd, const char *name)
{
    return open_or_shed(fs, parent_fd, name, true);
}

ino_t resolve_number(const struct fs *fs, dev_t dev, ino_t ino)
{
    uint64_t hash = (uint64_t)dev * 0x9e3779b97f4a7c15u;

    if (dev == fs->root->dev)
        return ino;
    return ino ^ (hash >> 48 | 1) << 48; /* filesystems use the lower bits */
}

unsigned resolve_hidden(const struct inode *inode)
{
    const struct fs *fs = inode->fs;
    bool with_root = inode->volume && inode->volume == fs->root->volume;

    return with_root ? 0 : inode->refuses & fs->hides;
}

void resolve_hide(const struct inode *inode, struct stat *st)
{
    unsigned hidden = resolve_hidden(inode);

    if (hidden & REFUSES_SET_IDS && S_ISREG(st->st_mode))
        st->st_mode &= ~(mode_t)(S_ISUID | S_ISGID);
    if (hidden & REFUSES_DEVICES)
        st->st_rdev = 0;
}

static void fill_entry(struct fs *fs, struct inode *inode, struct fuse_entry_param *entry_out)
{
    entry_out->ino = nodeid_of(inode);
    entry_out->generation = inode == fs->root ? 0 : fs->generation;
    entry_out->attr.st_ino = resolve_number(fs, inode->dev, inode->ino);
    entry_out->attr.st_size = nodes_size(inode, entry_out->attr.st_size);
    resolve_hide(inode, &entry_out->attr);
    entry_out->attr_timeout = fs->options.timeout_s;
    entry_out->entry_timeout = fs->options.timeout_s;
}

int resolve_entry_fd(struct fs *fs, int fd, const struct inode *parent, const char *name,
                     struct fuse_entry_param *entry_out)
{
    struct inode *inode;
    int rc;

    headroom_keep(&fs->headroom);
    memset(entry_out, 0, sizeof(*entry_out));
    if (fstat(fd, &entry_out->attr)) {
        rc = -errno;
        close(fd);
        return rc;
    }
    rc = inode_lookup(fs, fd, &entry_out->attr, parent, name, &inode);
    if (rc < 0)
        return rc;
    fill_entry(fs, inode, entry_out);
    return 0;
}

int resolve_node(struct fs *fs, uint64_t id, struct fuse_entry_param *entry_out)
{
    struct inode *inode;
    int rc = inode_lookup_id(fs, id, &inode);

    memset(entry_out, 0, sizeof(*entry_out));
    if (rc < 0)
        return rc;
    BORROWED file = inode_borrow(inode);
    rc = file.fd < 0 ? file.fd : fstat(file.fd, &entry_out->attr) ? -errno : 0;
    /* A file that has no name, and that the kernel has forgotten: only its FORGET is not here yet. */
    if (rc == 0 && entry_out->attr.st_nlink == 0)
        rc = -ESTALE;
    if (rc < 0)
        inode_forget(inode, 1);
    else
        fill_entry(fs, inode, entry_out);
    return rc;
}

/* The path of fd below the root. Its length, or a negative errno; -ESTALE: it is not there. */
static ssize_t path_below(struct fs *fs, int fd, char path_out[PATH_MAX])
{
    BORROWED root = inode_borrow(fs->root);
    char top[PATH_MAX];
    ssize_t prefix = root.fd < 0 ? -1 : readlink(proc_path(root.fd).text, top, sizeof(top));
    ssize_t length = prefix < 0 ? -1 : readlink(proc_path(fd).text, path_out, PATH_MAX - 1);

    if (length < 0)
        return -errno;
    if (prefix == 1) /* the data directory is "/" */
        prefix = 0;
    if (length < prefix || memcmp(path_out, top, (size_t)prefix) != 0 ||
        (length > prefix && path_out[prefix] != '/'))
        return -ESTALE;
    memmove(path_out, path_out + prefix, (size_t)(length - prefix));
    path_out[length - prefix] = '\0';
    return length - prefix;
}

/* From the root down, one name at a time, as the kernel's lookups come. */
static int walk_down(struct fs *fs, char *path)
{
    BORROWED root = inode_borrow(fs->root);
    int fd = root.fd < 0 ? root.fd : descriptors_openat(fs, root.fd, ".", PATH_FLAGS, 0), next;

    if (fd < 0)
        return fd;
    for (char *rest, *name = strtok_r(path, "/", &rest); name; name = strtok_r(NULL, "/", &rest)) {
        next = resolve_open(fs, fd, name);
        close(fd);
        if (next < 0)
            return next;
        fd = next;
    }
    return fd;
}

/* "..", but a directory that somebody has moved out of the data directory must not lead there: its parent is
 * looked for from the root down. */
int resolve_parent(struct fs *fs, struct inode *inode, struct fuse_entry_param *entry_out)
{
    BORROWED dir = inode_borrow(inode);
    char path[PATH_MAX];
    struct stat seen, found;
    int fd, rc;

    if (dir.fd < 0)
        return dir.fd;
    if (inode == fs->root)
        return resolve_node(fs, FUSE_ROOT_ID, entry_out);
    fd = descriptors_openat(fs, dir.fd, "..", PATH_FLAGS, 0);
    if (fd < 0)
        return fd;
    rc = fstat(fd, &seen) ? -errno : (int)path_below(fs, fd, path);
    close(fd);
    if (rc < 0)
        return rc;
    fd = walk_down(fs, path);
    if (fd < 0)
        return fd == -ENOENT ? -ESTALE : fd;
    if (fstat(fd, &found) || found.st_dev != seen.st_dev || found.st_ino != seen.st_ino) {
        close(fd);
        return -ESTALE; /* moved meanwhile */
    }
    return resolve_entry_fd(fs, fd, NULL, NULL, entry_out);
}

static int look_up(struct fs *fs, struct inode *parent, const char *name, bool demands,
                   struct fuse_entry_param *entry_out)
{
    BORROWED dir = inode_borrow(parent);
    int fd = dir.fd < 0 ? dir.fd : open_or_shed(fs, dir.fd, name, demands);

    return fd < 0 ? fd : resolve_entry_fd(fs, fd, parent, name, entry_out);
}

int resolve_entry(struct fs *fs, struct inode *parent, const char *name, struct fuse_entry_param *entry_out)
{
    return look_up(fs, parent, name, true, entry_out);
}

int resolve_listed(struct fs *fs, struct inode *parent, const char *name, struct fuse_entry_param *entry_out)
{
    return look_up(fs, parent, name, false, entry_out);
}
