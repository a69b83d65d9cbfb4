/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/creds.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/log.h"

#define GROUPS_FEW 256 /* more need memory of their own */

static struct __user_cap_data_struct own_capabilities[_LINUX_CAPABILITY_U32S_3];
static bool can_fsetid;
static gid_t own_groups[NGROUPS_MAX];
static int own_group_count;

static int set_capabilities(const struct __user_cap_data_struct *data)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};

    return syscall(SYS_capset, &header, data) ? -errno : 0;
}

void creds_init(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};

    if (syscall(SYS_capget, &header, own_capabilities))
        memset(own_capabilities, 0, sizeof(own_capabilities));
    own_group_count = getgroups(NGROUPS_MAX, own_groups);
    can_fsetid = own_capabilities[CAP_TO_INDEX(CAP_FSETID)].effective & CAP_TO_MASK(CAP_FSETID);
}

static bool is_other(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);

    return fs_of(req)->as_root && (ctx->uid != 0 || ctx->gid != 0);
}

int creds_become_caller(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    int rc;

    if (!is_other(req))
        return 0;
    syscall(SYS_setfsgid, ctx->gid);
    syscall(SYS_setfsuid, ctx->uid);
    /* Leaving uid 0 took the filesystem capabilities away; with them back, groups need not be looked up
     * (slow, from /proc) to search a directory that only a supplementary group of the caller may write. */
    rc = set_capabilities(own_capabilities);
    if (rc < 0)
        creds_become_self(req);
    return rc;
}

void creds_become_self(fuse_req_t req)
{
    if (!is_other(req))
        return;
    syscall(SYS_setfsuid, 0);
    syscall(SYS_setfsgid, 0);
}

static void drop_fsetid(void)
{
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (!can_fsetid)
        return;
    memcpy(data, own_capabilities, sizeof(data));
    data[CAP_TO_INDEX(CAP_FSETID)].effective &= ~CAP_TO_MASK(CAP_FSETID);
    if (set_capabilities(data) < 0)
        fs_log(LOG_WARNING,
               "can't drop CAP_FSETID (%s): set-id bits of a written file may stay; does a sandbox forbid "
               "capset()?",
               strerror(errno));
}

static void regain_fsetid(void)
{
    if (can_fsetid)
        set_capabilities(own_capabilities);
}

/* All groups of the caller, in few or in *many_out, which the caller frees; returns where they are. */
static const gid_t *find_groups(fuse_req_t req, gid_t few[GROUPS_FEW], gid_t **many_out, int *count_out)
{
    int room = GROUPS_FEW, count = fuse_req_getgroups(req, room, few); /* read from /proc */

    *many_out = NULL;
    while (count > room) {
        gid_t *more = realloc(*many_out, (size_t)count * sizeof(gid_t));
        if (!more) {
            count = room;
            break;
        }
        *many_out = more;
        room = count;
        count = fuse_req_getgroups(req, room, more); /* there may be others by now */
    }
    *count_out = count < 0 ? 0 : count; /* of a process that we can't see: none */
    return *many_out ? *many_out : few;
}

/* The thread's groups are the caller's: kept until leave_groups(). */
static void join_groups(fuse_req_t req)
{
    gid_t few[GROUPS_FEW], *many;
    int count;

    if (!is_other(req) || own_group_count < 0)
        return;
    const gid_t *groups = find_groups(req, few, &many, &count);
    syscall(SYS_setgroups, count, groups);
    free(many);
    syscall(SYS_setfsgid, fuse_req_ctx(req)->gid);
}

static void leave_groups(fuse_req_t req)
{
    if (!is_other(req) || own_group_count < 0)
        return;
    syscall(SYS_setgroups, own_group_count, own_groups);
    syscall(SYS_setfsgid, 0);
}

bool creds_lose_set_ids(fuse_req_t req)
{
    return fs_of(req)->kills_privileges && fuse_req_ctx(req)->uid != 0;
}

static __thread bool joined; /* by creds_drop_fsetid() */

bool creds_drop_fsetid(fuse_req_t req, int fd)
{
    struct stat st = {.st_mode = 0};

    fstat(fd, &st);
    joined = (st.st_mode & (S_ISGID | S_IXGRP)) == S_ISGID;
    if (joined)
        join_groups(req);
    drop_fsetid();
    return st.st_mode & (S_ISUID | S_ISGID);
}

void creds_regain_fsetid(fuse_req_t req)
{
    regain_fsetid();
    if (joined)
        leave_groups(req);
}

mode_t creds_mask(fuse_req_t req, mode_t mode)
{
    static __thread bool apart; /* the threads of a process share one umask until they part */
    mode_t mask = fuse_req_ctx(req)->umask;

    if (!apart && syscall(SYS_unshare, CLONE_FS))
        return mode & ~mask;
    apart = true;
    umask(mask);
    return mode;
}

int creds_become_caller_grouped(fuse_req_t req)
{
    int rc;

    join_groups(req);
    rc = creds_become_caller(req);
    if (rc < 0)
        leave_groups(req);
    else if (is_other(req))
        drop_fsetid();
    return rc;
}

void creds_become_self_ungrouped(fuse_req_t req)
{
    if (!is_other(req))
        return;
    regain_fsetid();
    creds_become_self(req);
    leave_groups(req);
}
