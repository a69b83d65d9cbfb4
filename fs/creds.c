/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/creds.h"

#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fsuid.h"
#include "base/set_ids.h"
#include "fs/log.h"

#define GROUPS_FEW 256 /* more need memory of their own */

static gid_t own_groups[NGROUPS_MAX];
static int own_group_count;

void creds_init(void)
{
    fsuid_init();
    own_group_count = getgroups(NGROUPS_MAX, own_groups);
}

static bool is_other(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);

    return fs_of(req)->as_root && (ctx->uid != 0 || ctx->gid != 0);
}

int creds_become_caller(fuse_req_t req)
{
    const struct fuse_ctx *ctx = fuse_req_ctx(req);

    if (is_other(req))
        syscall(SYS_setfsgid, ctx->gid);
    /* With root's rights over files groups need not be looked up (slow, from /proc) to search a directory
     * that only a supplementary group of the caller may write. */
    int rc = fsuid_set((struct fsuid){ctx->uid, true});
    if (rc < 0)
        creds_become_self(req);
    return rc;
}

void creds_become_self(fuse_req_t req)
{
    fsuid_set(FSUID_SELF);
    if (is_other(req))
        syscall(SYS_setfsgid, 0);
}

static void drop_fsetid(void)
{
    if (!fsuid_is_capable(CAP_FSETID))
        return;
    int error = fsuid_drop_capabilities(UINT64_C(1) << CAP_FSETID);
    if (error)
        fs_log(LOG_WARNING,
               "can't drop CAP_FSETID (%s): set-id bits of a written file may stay; does a sandbox forbid "
               "capset()?",
               strerror(-error));
}

static void regain_fsetid(void)
{
    if (fsuid_is_capable(CAP_FSETID))
        fsuid_drop_capabilities(0);
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

static __thread bool joined; /* the caller's groups */

static bool join_groups_of(fuse_req_t req, int fd)
{
    struct stat st = {.st_mode = 0};

    fstat(fd, &st);
    joined = (st.st_mode & (S_ISGID | S_IXGRP)) == S_ISGID;
    if (joined)
        join_groups(req);
    return st.st_mode & (S_ISUID | S_ISGID);
}

bool creds_drop_fsetid(fuse_req_t req, int fd)
{
    bool set_ids = join_groups_of(req, fd);

    drop_fsetid();
    return set_ids;
}

void creds_regain_fsetid(fuse_req_t req)
{
    regain_fsetid();
    if (joined)
        leave_groups(req);
}

bool creds_begin_writes(fuse_req_t req, int fd, bool kills)
{
    uid_t uid = fuse_req_ctx(req)->uid;

    fsuid_write_for((struct fsuid){uid, !kills});
    joined = false;
    bool set_ids = kills && join_groups_of(req, fd);
    if (kills && uid == 0) /* else it goes with the user */
        drop_fsetid();
    return set_ids;
}

void creds_end_writes(fuse_req_t req)
{
    fsuid_write_for(FSUID_SELF);
    if (fuse_req_ctx(req)->uid == 0)
        regain_fsetid();
    if (joined)
        leave_groups(req);
}

void creds_clear_set_ids(int fd)
{
    drop_fsetid(); /* a user's write() is another's thread till now */
    set_ids_clear(fd);
    regain_fsetid();
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
    else if (is_other(req) && fuse_req_ctx(req)->uid != 0) /* root may keep them, whatever its group is */
        drop_fsetid();
    return rc;
}

void creds_become_self_ungrouped(fuse_req_t req)
{
    if (is_other(req))
        regain_fsetid();
    creds_become_self(req);
    leave_groups(req);
}
