/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static int octal(const char *text)
{
    int value = 0;

    for (int i = 0; i < 3; i++) {
        if (text[i] < '0' || text[i] > '7')
            return -1;
        value = value * 8 + (text[i] - '0');
    }
    return value;
}

/* The kernel writes space, tab, newline and backslash as \040 and so on. In place. */
static void unescape(char *text)
{
    char *out = text;

    while (*text) {
        int value = *text == '\\' ? octal(text + 1) : -1;

        if (value >= 0) {
            *out++ = (char)value;
            text += 4;
        } else {
            *out++ = *text++;
        }
    }
    *out = '\0';
}

/* "ID PARENT MAJOR:MINOR ROOT MOUNTPOINT ...". The path lies in the line. */
static bool parse_mount(char *line, struct mounted *mounted_out, char **path_out)
{
    unsigned device_major, device_minor;
    int number, start = 0, end = 0;

    if (sscanf(line, "%d %*d %u:%u %*s %n%*s%n", &number, &device_major, &device_minor, &start, &end) != 3 ||
        end == 0)
        return false;
    line[end] = '\0';
    unescape(line + start);
    *path_out = line + start;
    *mounted_out = (struct mounted){number, makedev(device_major, device_minor)};
    return true;
}

/* 0 or a negative errno. */
static int each_mount(void (*seen)(const struct mounted *mounted, const char *path, void *context),
                      void *context)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, *path;
    size_t size = 0;
    struct mounted mounted;

    if (!file)
        return -errno;
    while (getline(&line, &size, file) > 0)
        if (parse_mount(line, &mounted, &path))
            seen(&mounted, path, context);
    free(line);
    fclose(file);
    return 0;
}

struct search {
    const char *path; /* is asked for */
    struct mounted mounted;
    char *found;
    bool any;
};

/* The topmost of several at one place is last, if none was moved there: mountinfo_is_covered(). */
static void look_at_path(const struct mounted *mounted, const char *path, void *context)
{
    struct search *search = context;

    if (strcmp(path, search->path) != 0)
        return;
    search->mounted = *mounted;
    search->any = true;
}

int mountinfo_at(const char *path, struct mounted *mounted_out)
{
    struct search search = {.path = path};
    int rc = each_mount(look_at_path, &search);

    if (rc == 0 && search.any)
        *mounted_out = search.mounted;
    return rc == 0 && !search.any ? -ENOENT : rc;
}

static void look_for_mount(const struct mounted *mounted, const char *path, void *context)
{
    struct search *search = context;

    if (mounted->number == search->mounted.number && mounted->device == search->mounted.device &&
        !search->found) /* a list that changes while it is read may have it twice */
        search->found = strdup(path);
}

char *mountinfo_path(const struct mounted *mounted)
{
    struct search search = {.mounted = *mounted};

    each_mount(look_for_mount, &search); /* without /proc it is nowhere */
    return search.found;
}

bool mountinfo_is_covered(const struct mounted *mounted, const char *path)
{
    const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC; /* asks no daemon */
    struct statx stx;

    if (statx(AT_FDCWD, path, flags, STATX_MNT_ID, &stx))
        return false;
    return makedev(stx.stx_dev_major, stx.stx_dev_minor) != mounted->device ||
           (stx.stx_mask & STATX_MNT_ID && stx.stx_mnt_id != (uint64_t)mounted->number);
}

/* "ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG]... - TYPE SOURCE OPTIONS"; cuts the line up. */
static bool parse_gaiafs(char *line, struct mounted_gaiafs *mount_out)
{
    char *rest = NULL, *word = strtok_r(line, " \n", &rest);

    for (int field = 1; word && field < 5; field++)
        word = strtok_r(NULL, " \n", &rest);
    char *mountpoint = word;
    while (word && strcmp(word, "-") != 0)
        word = strtok_r(NULL, " \n", &rest);
    word = word ? strtok_r(NULL, " \n", &rest) : NULL;
    if (!word || strcmp(word, "fuse.gaiafs") != 0)
        return false;
    char *source = strtok_r(NULL, " \n", &rest);
    if (!source || *source != '/')
        return false;
    const char *user = strstr(rest, ",user_id="); /* of a FUSE filesystem the kernel's words alone */
    if (!user)
        return false;
    unescape(source);
    unescape(mountpoint);
    *mount_out =
        (struct mounted_gaiafs){source, mountpoint, (uid_t)strtoul(user + strlen(",user_id="), NULL, 10)};
    return true;
}

int mountinfo_each_gaiafs(void (*seen)(const struct mounted_gaiafs *mount, void *context), void *context)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    struct mounted_gaiafs mount;
    char *line = NULL;
    size_t size = 0;

    if (!file)
        return -errno;
    while (getline(&line, &size, file) > 0)
        if (parse_gaiafs(line, &mount))
            seen(&mount, context);
    free(line);
    fclose(file);
    return 0;
}
