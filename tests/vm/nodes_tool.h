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
#include "tests/mount/member.h"
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
    static struct members *members;
    struct node_name name;
    char why[MEMBERS_WHY];

    if (!members && members_parse("a@local:a/b@local:b", "a", &members, why))
        fail(why);
    if (member_name(path, &name))
        fail(path);
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

/* A range somewhere in a file's bytes, of three pages at most, gets others. */
static inline void change_some(uint8_t *bytes, size_t length, uint64_t *state, size_t *at_out, size_t *n_out)
{
    *at_out = draw(state, length - 1);
    *n_out = 1 + draw(state, length - *at_out < 3 * PAGE ? length - *at_out : 3 * PAGE);
    for (size_t i = 0; i < *n_out; i++)
        bytes[*at_out + i] = (uint8_t)draw(state, 256);
}

#endif
