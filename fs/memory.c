/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/memory.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CGROUPS "/sys/fs/cgroup"

/* The number in a file; UINT64_MAX: no limit ("max"), or no such file. */
static uint64_t read_limit(const char *path)
{
    unsigned long long limit;
    FILE *file = fopen(path, "re");
    int found;

    if (!file)
        return UINT64_MAX;
    found = fscanf(file, "%llu", &limit);
    fclose(file);
    return found == 1 ? limit : UINT64_MAX;
}

/* The least of a group and of those that it is in. In a container the upper ones, or all but the own, may not
 * be there to be seen. */
static uint64_t group_limit(const char *top, const char *group, const char *name)
{
    char path[PATH_MAX], file[PATH_MAX + 64];
    uint64_t least = UINT64_MAX;

    if ((size_t)snprintf(path, sizeof(path), "%s%s", top, group) >= sizeof(path))
        return UINT64_MAX;
    while (strlen(path) >= strlen(top)) {
        snprintf(file, sizeof(file), "%s/%s", path, name);
        uint64_t limit = read_limit(file);
        if (limit < least)
            least = limit;
        char *slash = strrchr(path, '/');
        *slash = '\0';
    }
    return least;
}

uint64_t memory_available(void)
{
    uint64_t least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), limit = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX + 64];

    if (!file)
        return least;
    while (fgets(line, sizeof(line), file)) { /* number:controllers:group */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (strcmp(controllers, ":memory") == 0)
            limit = group_limit(CGROUPS "/memory", group, "memory.limit_in_bytes");
        else if (strcmp(controllers, ":") == 0)
            limit = group_limit(CGROUPS, group, "memory.max");
        if (limit < least)
            least = limit;
    }
    fclose(file);
    return least;
}
