/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/place.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "fs/fs.h"
#include "fs/resolve.h"

#define DEPTH_MAX 2048u /* as deep as a path can be */

struct place {
    uint64_t parent; /* a node id: it may be forgotten, and holds nothing */
    struct timespec birth;
    char name[];
};

struct place *place_new(const struct inode *parent, const char *name, const struct file_key *key)
{
    size_t length = strlen(name) + 1;
    struct place *place;

    if (length > NAME_MAX + 1 || !key->has_birth)
        return NULL;
    place = malloc(sizeof(*place) + length);
    if (!place)
        return NULL;
    place->parent = nodeid_of(parent);
    place->birth = key->birth;
    memcpy(place->name, name, length);
    return place;
}

bool place_is_born(const struct place *place, const struct timespec *birth)
{
    return place && clock_same(place->birth, *birth);
}

void place_free(struct place *place)
{
    free(place);
}

struct place *place_set(struct inode *inode, struct place *place)
{
    struct place *old = inode->place;

    if (!place || inode->handle_bytes)
        return place;
    inode->place = place;
    return old;
}

static bool is_same(const struct inode *inode, const struct place *place, int fd)
{
    struct timespec birth;
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_dev == inode->dev && st.st_ino == inode->ino &&
           file_birth(fd, &birth) == 0 && place_is_born(place, &birth);
}

/* The folder's descriptor may have to be opened by its own place first. */
static int open_at(struct inode *inode, struct inode *parent, const struct place *place)
{
    BORROWED dir = inode_borrow(parent);
    int fd;

    if (dir.fd < 0)
        return dir.fd;
    fd = resolve_open(inode->fs, dir.fd, place->name);
    if (fd < 0) /* EINVAL: it was made without a name (fs/request.h) */
        return fd == -ENOENT || fd == -ENOTDIR || fd == -EINVAL ? -ESTALE : fd;
    if (is_same(inode, place, fd))
        return fd;
    close(fd);
    return -ESTALE;
}

int place_open(struct inode *inode)
{
    static __thread unsigned depth; /* folders that were moved may stand in each other's places */
    union {
        struct place place;
        char bytes[sizeof(struct place) + NAME_MAX + 1];
    } copy;
    struct inode_shard *shard = shard_of_inode(inode);
    struct inode *parent;
    bool placed;
    int fd = -ESTALE;

    pthread_mutex_lock(&shard->lock);
    placed = inode->place;
    if (placed)
        memcpy(&copy, inode->place, sizeof(struct place) + strlen(inode->place->name) + 1);
    pthread_mutex_unlock(&shard->lock);
    if (!placed || depth == DEPTH_MAX || inode_get_id(inode->fs, copy.place.parent, &parent) < 0)
        return -ESTALE;
    depth++;
    fd = open_at(inode, parent, &copy.place);
    depth--;
    inode_put(parent);
    return fd;
}
