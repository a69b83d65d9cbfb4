/* SPDX-License-Identifier: Apache-2.0 */
/* The set-id bits of a file that is written to. */
#ifndef GAIAFS_BASE_SET_IDS_H
#define GAIAFS_BASE_SET_IDS_H

#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/proc_path.h"

/* Those that go, whoever writes. */
static inline mode_t set_ids_lost(mode_t mode)
{
    const mode_t group = S_ISGID | S_IXGRP; /* without the latter the former means mandatory locking */

    if (S_ISDIR(mode))
        return 0;
    return (mode & S_ISUID) | ((mode & group) == group ? S_ISGID : 0);
}

/* Takes away those that chown(-1, -1) has left: NFS, CIFS and some filesystems of FUSE leave it to their
 * servers, and tell these nothing of a chown() that changes no owner. fd may be of O_PATH. Whether there was
 * anything to do, and it is done. */
static inline bool set_ids_clear_rest(int fd)
{
    struct stat st;

    return !fstat(fd, &st) && set_ids_lost(st.st_mode) &&
           !chmod(proc_path(fd).text, st.st_mode & 07777 & ~set_ids_lost(st.st_mode));
}

/* Takes them away, as the kernel would for this thread, of what the mode is at that moment, where that can
 * be: a chmod() may come between. */
static inline bool set_ids_clear(int fd)
{
    bool done = !fchownat(fd, "", (uid_t)-1, (gid_t)-1, AT_EMPTY_PATH);

    return set_ids_clear_rest(fd) || done;
}

#endif
