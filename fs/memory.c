/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/memory.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
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
 * be there to be seen. at_out (of PATH_MAX bytes, or NULL): the one that has it; nothing is there if there is
 * no limit. */
static uint64_t group_limit(const char *top, const char *group, const char *name, char *at_out)
{
    char path[PATH_MAX], file[PATH_MAX + 64];
    uint64_t least = UINT64_MAX;

    if ((size_t)snprintf(path, sizeof(path), "%s%s", top, group) >= sizeof(path))
        return UINT64_MAX;
    while (strlen(path) >= strlen(top)) {
        snprintf(file, sizeof(file), "%s/%s", path, name);
        uint64_t limit = read_limit(file);
        if (limit < least) {
            least = limit;
            if (at_out)
                snprintf(at_out, PATH_MAX, "%s", path);
        }
        char *slash = strrchr(path, '/');
        *slash = '\0';
    }
    return least;
}

#define MEMORY "memory"
#define THREADS "pids"

/* The control groups that say what of one kind (MEMORY, THREADS) a process may use; "": there is none of that
 * version. */
struct groups {
    char first[PATH_MAX];  /* of version 1, under CGROUPS/<kind> */
    char second[PATH_MAX]; /* of version 2, under CGROUPS; nothing there is of the kind if there is a first */
};

static bool read_groups(const char *process, const char *kind, struct groups *groups)
{
    char path[32], line[PATH_MAX + 64];

    *groups = (struct groups){0};
    snprintf(path, sizeof(path), "/proc/%s/cgroup", process);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (fgets(line, sizeof(line), file)) { /* number:controllers:group */
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (strcmp(controllers + 1, kind) == 0)
            snprintf(groups->first, sizeof(groups->first), "%s", group);
        else if (controllers[1] == '\0')
            snprintf(groups->second, sizeof(groups->second), "%s", group);
    }
    fclose(file);
    return true;
}

static uint64_t memory_of_machine(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t memory_available(void)
{
    uint64_t least = memory_of_machine(), limit = UINT64_MAX;
    struct groups groups;

    if (!read_groups("self", MEMORY, &groups))
        return least;
    if (groups.first[0])
        limit = group_limit(CGROUPS "/" MEMORY, groups.first, "memory.limit_in_bytes", NULL);
    least = limit < least ? limit : least;
    if (groups.second[0])
        limit = group_limit(CGROUPS, groups.second, "memory.max", NULL);
    return limit < least ? limit : least;
}

uint64_t threads_available(void)
{
    uint64_t least = UINT64_MAX, limit = UINT64_MAX;
    struct rlimit user;
    struct groups groups;

    if (!getrlimit(RLIMIT_NPROC, &user) && user.rlim_cur != RLIM_INFINITY)
        least = user.rlim_cur;
    if (!read_groups("self", THREADS, &groups))
        return least;
    if (groups.first[0])
        limit = group_limit(CGROUPS "/" THREADS, groups.first, "pids.max", NULL);
    else if (groups.second[0])
        limit = group_limit(CGROUPS, groups.second, "pids.max", NULL);
    return limit < least ? limit : least;
}

int memory_usage(uint64_t *limit_out)
{
    char at[PATH_MAX], file[PATH_MAX + 64];
    const char *usage = "memory.usage_in_bytes";
    struct groups groups;

    *limit_out = UINT64_MAX;
    if (!read_groups("self", MEMORY, &groups))
        return -1;
    if (groups.first[0])
        *limit_out = group_limit(CGROUPS "/" MEMORY, groups.first, "memory.limit_in_bytes", at);
    else if (groups.second[0])
        *limit_out = group_limit(CGROUPS, groups.second, "memory.max", at);
    if (*limit_out >= memory_of_machine())
        return -1;
    snprintf(file, sizeof(file), "%s/%s", at, groups.first[0] ? usage : "memory.current");
    return open(file, O_RDONLY | O_CLOEXEC);
}

/* Whether a group is there to be seen, and has no such limit, nor has one that it is in. */
static bool group_is_free(const char *top, const char *group, const char *name)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s%s/cgroup.procs", top, group);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    fclose(file);
    return group_limit(top, group, name, NULL) > memory_of_machine();
}

bool memory_may_be_charged(pid_t pid)
{
    struct groups own, other;
    char process[16];

    snprintf(process, sizeof(process), "%d", (int)pid);
    if (pid <= 0 || !read_groups("self", MEMORY, &own) || !read_groups(process, MEMORY, &other))
        return false;
    if (strcmp(own.first, other.first) == 0 && strcmp(own.second, other.second) == 0)
        return true;
    if (other.first[0])
        return group_is_free(CGROUPS "/" MEMORY, other.first, "memory.limit_in_bytes");
    return group_is_free(CGROUPS, other.second, "memory.max") &&
           group_is_free(CGROUPS, other.second, "memory.high");
}
