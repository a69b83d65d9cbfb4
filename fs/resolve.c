/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

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
    return makedev(stx.stx_dev_major, stx.stx_dev_minor) == fs->mount_dev ? -ELOOP : 0;
}

int resolve_open(struct fs *fs, int parent_fd, const char *name)
{
    static atomic_bool no_openat2;
    struct open_how how = {.flags = PATH_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV};
    int fd, rc;

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
    rc = check_not_own_mount(fs, parent_fd, name);
    if (rc < 0)
        return rc;
    fd = openat(parent_fd, name, PATH_FLAGS);
    return fd < 0 ? -errno : fd;
}

int resolve_entry_fd(struct fs *fs, int fd, struct fuse_entry_param *entry_out)
{
    struct inode *inode;
    int rc;

    memset(entry_out, 0, sizeof(*entry_out));
    if (fstat(fd, &entry_out->attr)) {
        rc = -errno;
        close(fd);
        return rc;
    }
    rc = inode_lookup(fs, fd, &entry_out->attr, &inode);
    if (rc < 0)
        return rc;
    entry_out->ino = nodeid_of(inode);
    entry_out->attr_timeout = fs->options.timeout_s;
    entry_out->entry_timeout = fs->options.timeout_s;
    return 0;
}

int resolve_entry(struct fs *fs, struct inode *parent, const char *name, struct fuse_entry_param *entry_out)
{
    BORROWED dir = inode_borrow(parent);
    int fd = dir.fd < 0 ? dir.fd : resolve_open(fs, dir.fd, name);

    return fd < 0 ? fd : resolve_entry_fd(fs, fd, entry_out);
}
