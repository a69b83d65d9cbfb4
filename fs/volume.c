/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/volume.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "fs/fs.h"

#define HANDLE_FID 0x200 /* AT_HANDLE_FID, newer than the headers of Debian 12 */

struct volume {
    LIST_ENTRY(volume) link;
    int mount_id; /* that of the mount is not used again while fd is open */
    int fd;       /* -1: handles can't be opened here */
    bool reuses;  /* see volume_reuses_numbers() */
    bool local;   /* see file_is_local() */
    unsigned refuses;
    unsigned references;
};

union handle_buffer {
    struct file_handle handle;
    char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
};

void volumes_init(struct volumes *volumes)
{
    LIST_INIT(&volumes->list);
    lock_init(&volumes->lock, LOCK_VOLUMES);
}

void volumes_destroy(struct volumes *volumes)
{
    struct volume *volume;

    while ((volume = LIST_FIRST(&volumes->list))) {
        LIST_REMOVE(volume, link);
        if (volume->fd >= 0)
            close(volume->fd);
        free(volume);
    }
    pthread_mutex_destroy(&volumes->lock);
}

/* Lock held. */
static struct volume *find(struct volumes *volumes, int mount_id)
{
    struct volume *volume;

    LIST_FOREACH (volume, &volumes->list, link)
        if (volume->mount_id == mount_id)
            break;
    return volume;
}

/* What may be otherwise the next time. */
static bool is_passing(int error)
{
    return error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -EINTR || error == -EIO;
}

int volume_open(const struct volume *volume, int handle_type, const unsigned char *handle,
                unsigned handle_bytes)
{
    union handle_buffer buffer;
    int fd;

    buffer.handle.handle_type = handle_type;
    buffer.handle.handle_bytes = handle_bytes;
    memcpy(buffer.handle.f_handle, handle, handle_bytes);
    fd = open_by_handle_at(volume->fd, &buffer.handle, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Does the handle lead back to its file? 1, 0, or a negative errno when it can't be told now. */
static int try_handle(const struct volume *volume, const struct file_key *key)
{
    struct stat st;
    int fd = volume_open(volume, key->handle_type, key->handle, key->handle_bytes), rc;

    if (fd < 0)
        return is_passing(fd) ? fd : 0;
    rc = fstat(fd, &st) ? -errno : st.st_dev == key->dev && st.st_ino == key->ino;
    close(fd);
    return rc;
}

static unsigned refuses_of(int fd)
{
    struct statfs filesystem;

    if (fstatfs(fd, &filesystem))
        return REFUSES_SET_IDS | REFUSES_DEVICES;
    return (filesystem.f_flags & ST_NOSUID ? REFUSES_SET_IDS : 0) |
           (filesystem.f_flags & ST_NODEV ? REFUSES_DEVICES : 0);
}

/* Filesystems without a flush method (Linux, file_operations.flush). */
bool file_is_local(int fd)
{
    struct statfs filesystem;

    if (fstatfs(fd, &filesystem))
        return false;
    return filesystem.f_type == EXT4_SUPER_MAGIC || filesystem.f_type == XFS_SUPER_MAGIC ||
           filesystem.f_type == BTRFS_SUPER_MAGIC || filesystem.f_type == TMPFS_MAGIC;
}

/* The volume in which the file fd is. It is asked of the first file of it, which is the directory that is
 * mounted, or a single file. */
static int volume_new(int fd, const struct stat *st, const struct file_key *key, int mount_id,
                      struct volume **volume_out)
{
    struct volume *volume = calloc(1, sizeof(*volume));
    int rc = 0;

    if (!volume)
        return -ENOMEM;
    volume->fd = -1;
    volume->mount_id = mount_id;
    /* Handles are not opened through an O_PATH descriptor; and opening a device may do who knows what. */
    if (S_ISDIR(st->st_mode) || S_ISREG(st->st_mode)) {
        volume->fd = open(proc_path(fd).text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        rc = volume->fd >= 0 ? try_handle(volume, key) : -errno;
    }
    if (rc < 0 && is_passing(rc)) {
        if (volume->fd >= 0)
            close(volume->fd);
        free(volume);
        return rc;
    }
    if (rc != 1 && volume->fd >= 0) {
        close(volume->fd);
        volume->fd = -1;
    }
    struct statfs filesystem;
    volume->reuses =
        volume->fd >= 0 && !fstatfs(volume->fd, &filesystem) && filesystem.f_type == NFS_SUPER_MAGIC;
    volume->refuses = refuses_of(fd);
    volume->local = file_is_local(fd);
    *volume_out = volume;
    return 0;
}

bool volume_reuses_numbers(const struct volume *volume)
{
    return volume->reuses;
}

bool volume_is_local(const struct volume *volume)
{
    return volume && volume->local;
}

/* With one more reference. */
static int volume_of(struct volumes *volumes, int fd, const struct stat *st, const struct file_key *key,
                     int mount_id, struct volume **volume_out)
{
    struct volume *volume, *made;
    int rc;

    pthread_mutex_lock(&volumes->lock);
    volume = find(volumes, mount_id);
    if (volume)
        volume->references++;
    pthread_mutex_unlock(&volumes->lock);
    if (!volume) {
        rc = volume_new(fd, st, key, mount_id, &made);
        if (rc < 0)
            return rc;
        pthread_mutex_lock(&volumes->lock);
        volume = find(volumes, mount_id);
        if (!volume) {
            volume = made;
            made = NULL;
            LIST_INSERT_HEAD(&volumes->list, volume, link);
        }
        volume->references++;
        pthread_mutex_unlock(&volumes->lock);
        if (made && made->fd >= 0)
            close(made->fd);
        free(made);
    }
    *volume_out = volume;
    return 0;
}

void volume_put(struct volumes *volumes, struct volume *volume)
{
    bool last;

    if (!volume)
        return;
    pthread_mutex_lock(&volumes->lock);
    last = --volume->references == 0;
    if (last)
        LIST_REMOVE(volume, link);
    pthread_mutex_unlock(&volumes->lock);
    if (!last)
        return;
    if (volume->fd >= 0)
        close(volume->fd);
    free(volume);
}

/* Of overlayfs. A file that is written to is copied to the upper layer, where it is born anew: what tells it
 * from a later one is a handle that leads nowhere (Linux 6.6), which stays as it was. Its digest stands for a
 * time. */
static int layered_birth(int fd, struct timespec *birth_out)
{
    union handle_buffer buffer = {.handle = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount_id;

    if (name_to_handle_at(fd, "", &buffer.handle, &mount_id, AT_EMPTY_PATH | HANDLE_FID))
        return -errno;
    XXH128_hash_t digest = XXH3_128bits(buffer.handle.f_handle, buffer.handle.handle_bytes);
    *birth_out = (struct timespec){.tv_sec = (time_t)digest.high64, .tv_nsec = (long)digest.low64};
    return 0;
}

int file_birth(int fd, struct timespec *birth_out)
{
    struct statfs filesystem;
    struct statx stx;

    if (fstatfs(fd, &filesystem))
        return -errno;
    if (filesystem.f_type == OVERLAYFS_SUPER_MAGIC)
        return layered_birth(fd, birth_out);
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BTIME, &stx))
        return -errno;
    *birth_out = (struct timespec){.tv_sec = stx.stx_btime.tv_sec, .tv_nsec = stx.stx_btime.tv_nsec};
    return stx.stx_mask & STATX_BTIME ? 0 : -ENODATA;
}

static int find_handle(struct volumes *volumes, int fd, const struct stat *st, struct file_key *key)
{
    union handle_buffer buffer;
    int mount_id, rc;

    buffer.handle.handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(fd, "", &buffer.handle, &mount_id, AT_EMPTY_PATH))
        return is_passing(-errno) ? -errno : 0;
    key->handle_type = buffer.handle.handle_type;
    key->handle_bytes = buffer.handle.handle_bytes;
    memcpy(key->handle, buffer.handle.f_handle, buffer.handle.handle_bytes);
    rc = volume_of(volumes, fd, st, key, mount_id, &key->volume);
    if (rc < 0 || key->volume->fd < 0)
        key->handle_bytes = 0;
    return rc;
}

int file_key_make(struct volumes *volumes, int fd, const struct stat *st, struct file_key *key_out)
{
    int rc;

    memset(key_out, 0, offsetof(struct file_key, handle));
    key_out->refuses = 0;
    key_out->dev = st->st_dev;
    key_out->ino = st->st_ino;
    rc = find_handle(volumes, fd, st, key_out);
    key_out->has_birth = rc == 0 && !key_out->handle_bytes && file_birth(fd, &key_out->birth) == 0;
    /* Of a mount that is not held open another one may have the number by now. */
    if (rc == 0 && key_out->volume && key_out->volume->fd >= 0)
        key_out->refuses = key_out->volume->refuses;
    else if (rc == 0 && st->st_dev != volumes->top)
        key_out->refuses = refuses_of(fd);
    return rc;
}
