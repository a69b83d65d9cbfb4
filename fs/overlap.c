/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/overlap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "fs/log.h"
#include "fs/mountinfo.h"

struct overlap {
    const struct fs *fs;
    bool found;
};

bool overlap_is_inside(const char *path, const char *directory)
{
    size_t length = strlen(directory);

    if (strcmp(directory, "/") == 0)
        return path[1] != '\0';
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

/* Whether a daemon that runs has locked the directory, and does not share it with us. One that can't be
 * opened has no files that we could open. */
static bool is_locked(const char *directory, bool shared)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    bool locked;

    if (fd < 0)
        return false;
    locked = flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    return locked;
}

/* This process's user as it is called outside of its user namespace: by mounts that were made there. */
static uid_t user_outside(void)
{
    FILE *map = fopen("/proc/self/uid_map", "re");
    unsigned inside, outside, count, user = geteuid(), found = user;

    while (map && fscanf(map, "%u %u %u", &inside, &outside, &count) == 3)
        if (user >= inside && user - inside < count)
            found = outside + (user - inside);
    if (map)
        fclose(map);
    return found;
}

/* Any user may mount a folder of his own, say that its source is "/", and lock that: he is not to keep others
 * from mounting. Nor is what he names opened here. */
static bool is_believed(const struct mounted_gaiafs *mount)
{
    return mount->user == 0 || mount->user == geteuid() || mount->user == user_outside();
}

static void look_at(const struct mounted_gaiafs *mount, void *context)
{
    struct overlap *overlap = context;
    const struct fs *fs = overlap->fs;
    bool above = overlap_is_inside(fs->data_path, mount->source), believed = is_believed(mount);
    const char *where = above ? "lies inside" : "is above";

    if (overlap->found || (!above && !overlap_is_inside(mount->source, fs->data_path)))
        return;
    /* Mounted over its own directory it is all that we see there: we are one of its programs. */
    if (strcmp(mount->source, mount->mountpoint) == 0)
        return;
    bool shared = options_share_directory(&fs->options);
    if (!believed)
        fs_log(LOG_WARNING,
               "data directory %s %s %s, which user %u says to have mounted at %s: use files through one of "
               "the two only%s",
               fs->data_path, where, mount->source, (unsigned)mount->user, mount->mountpoint,
               shared ? ", unless that one shares them, too" : "");
    if (!believed || !is_locked(mount->source, shared))
        return;
    overlap->found = true;
    fs_log(LOG_ERR, "data directory %s %s %s, the data directory of another gaiafs, mounted at %s",
           fs->data_path, where, mount->source, mount->mountpoint);
}

int overlap_check(const struct fs *fs)
{
    struct overlap overlap = {.fs = fs};

    mountinfo_each_gaiafs(look_at, &overlap); /* without /proc nobody is seen */
    return overlap.found ? -EBUSY : 0;
}

struct place_of {
    const char *source;
    char *mountpoint;
};

static void note_place(const struct mounted_gaiafs *mount, void *context)
{
    const struct place_of *place = context;

    if (strcmp(mount->source, place->source) == 0)
        snprintf(place->mountpoint, PATH_MAX, "%s", mount->mountpoint);
}

void overlap_find(const struct fs *fs, char mountpoint_out[PATH_MAX])
{
    struct place_of place = {fs->data_path, mountpoint_out};

    mountpoint_out[0] = '\0';
    mountinfo_each_gaiafs(note_place, &place);
}
