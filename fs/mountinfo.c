/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mountinfo.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int mountinfo_device(const char *path, dev_t *device_out)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t size = 0;
    int rc = -ENOENT;

    if (!file)
        return -errno;
    /* "ID PARENT MAJOR:MINOR ROOT MOUNTPOINT ...", the topmost of several at one place last */
    while (getline(&line, &size, file) > 0) {
        unsigned device_major, device_minor;
        int start = 0, end = 0;

        if (sscanf(line, "%*d %*d %u:%u %*s %n%*s%n", &device_major, &device_minor, &start, &end) != 2 ||
            end == 0)
            continue;
        line[end] = '\0';
        unescape(line + start);
        if (strcmp(line + start, path) != 0)
            continue;
        *device_out = makedev(device_major, device_minor);
        rc = 0;
    }
    free(line);
    fclose(file);
    return rc;
}

/* "ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG]... - TYPE SOURCE OPTIONS"; cuts the line up. */
static bool parse_gaiafs(char *line, char **source_out, char **mountpoint_out)
{
    char *rest = NULL, *word = strtok_r(line, " \n", &rest);

    for (int field = 1; word && field < 5; field++)
        word = strtok_r(NULL, " \n", &rest);
    *mountpoint_out = word;
    while (word && strcmp(word, "-") != 0)
        word = strtok_r(NULL, " \n", &rest);
    word = word ? strtok_r(NULL, " \n", &rest) : NULL;
    if (!word || strcmp(word, "fuse.gaiafs") != 0)
        return false;
    *source_out = strtok_r(NULL, " \n", &rest);
    if (!*source_out || **source_out != '/')
        return false;
    unescape(*source_out);
    unescape(*mountpoint_out);
    return true;
}

int mountinfo_each_gaiafs(void (*seen)(const char *source, const char *mountpoint, void *context),
                          void *context)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL, *source, *mountpoint;
    size_t size = 0;

    if (!file)
        return -errno;
    while (getline(&line, &size, file) > 0)
        if (parse_gaiafs(line, &source, &mountpoint))
            seen(source, mountpoint, context);
    free(line);
    fclose(file);
    return 0;
}
