/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of several nodes' tests share. A test ends with one line, "node test NAME: ok (...)" or
 * "node test NAME: failed: ...", which tests/vm/rdma_nodes.py counts. */
#ifndef GAIAFS_TESTS_VM_NODES_TOOL_H
#define GAIAFS_TESTS_VM_NODES_TOOL_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/clock.h"
#include "io/members.h"
#include "io/node.h"
#include "tests/random.h"

#define PAGE ((size_t)4096)

static inline _Noreturn void fail(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline uint64_t now_us(void)
{
    return clock_now_ns() / 1000;
}

/* The home of a file of the data directory among the nodes a and b: 0 or 1. Only their names count. */
static inline unsigned home_of(const char *path)
{
    union {
        struct file_handle handle;
        char bytes[sizeof(struct file_handle) + NODE_NAME_MAX];
    } buffer = {.handle.handle_bytes = NODE_NAME_MAX};
    static struct members *members;
    struct node_name name = {0};
    char why[MEMBERS_WHY];
    int mount_id;

    if (!members && members_parse("a@local:a/b@local:b", "a", &members, why))
        fail(why);
    if (name_to_handle_at(AT_FDCWD, path, &buffer.handle, &mount_id, 0))
        fail(path);
    name.type = buffer.handle.handle_type;
    name.length = buffer.handle.handle_bytes;
    memcpy(name.bytes, buffer.handle.f_handle, name.length);
    return members_home(members, UINT32_MAX, &name, offsetof(struct node_name, bytes) + name.length);
}

/* Make an empty file in the data directory whose home is that node, and that no mount has looked for. */
static inline void make_homed(const char *data, unsigned home, const char *what, char name_out[64])
{
    char path[4096];

    for (unsigned i = 0; i < 200; i++) {
        snprintf(name_out, 64, "%.40s-%u", what, i);
        snprintf(path, sizeof path, "%s/%s", data, name_out);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            fail(path);
        close(fd);
        if (home_of(path) == home)
            return;
        unlink(path);
    }
    fail("a file of that home");
}

static inline int open_in(const char *folder, const char *name, int flags)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, flags);
    if (fd < 0)
        fail(path);
    return fd;
}

#endif
