/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/trust.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "io/protocol.h"

#define UNKNOWN_USER 65534u /* whom this user namespace has no number for; and nobody */

extern int capget(cap_user_header_t header, cap_user_data_t data); /* of the C library, in no header of its */

static bool has_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};

    return capget(&header, data) || data[0].permitted || data[1].permitted;
}

/* As the kernel asks for ptrace(): of all its numbers, of what it may and of what it was. Also one that has
 * become this user after it was another has that one's memory. */
static bool is_more_than_its_user(uid_t user)
{
    uid_t real, effective, saved;
    gid_t real_group, effective_group, saved_group;

    if (getresuid(&real, &effective, &saved) || real != user || effective != user || saved != user)
        return true;
    if (getresgid(&real_group, &effective_group, &saved_group) || effective_group != real_group ||
        saved_group != real_group)
        return true;
    return getauxval(AT_SECURE) || prctl(PR_GET_DUMPABLE) != 1 || has_capabilities();
}

/* Whether each user has a number here, so that nobody is shown as another. */
static bool every_user_is_known(void)
{
    unsigned long first, behind, count;
    FILE *map = fopen("/proc/self/uid_map", "re");
    bool known = map && fscanf(map, "%lu %lu %lu", &first, &behind, &count) == 3 && count == UINT32_MAX;

    if (map)
        fclose(map);
    return known;
}

/* Of a line of /proc/thread-self/mountinfo: the mount is of a device, and root's. The last word has what the
 * kernel says of it, and no name that anybody has chosen. */
static bool is_roots(const char *line, dev_t device)
{
    unsigned device_major, device_minor;
    const char *options = strrchr(line, ' ');

    return sscanf(line, "%*d %*d %u:%u", &device_major, &device_minor) == 2 &&
           makedev(device_major, device_minor) == device && options && strstr(options, ",user_id=0,");
}

/* 0, -EPERM, or why that can't be said. "self" has no mounts once the first thread has ended, as it may
 * before the others. */
static int look_for_a_mount_of_roots(int fd)
{
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    struct stat st;
    FILE *mounts = fstat(fd, &st) ? NULL : fopen("/proc/thread-self/mountinfo", "re");

    if (!mounts)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -EPERM;
    while (!found && getline(&line, &room, mounts) > 0)
        found = is_roots(line, st.st_dev);
    free(line);
    fclose(mounts);
    return found ? 0 : -EPERM;
}

/* Of somebody outside of this user namespace. Root is then that of one that this is in, as FUSE lets nobody
 * else use its mounts (fuse_allow_current_process()). And it is the daemon who was met: it answers, so nobody
 * else can have had its name. */
static int expect_root_outside(int fd)
{
    struct gaia_ioctl_token token;
    int error = look_for_a_mount_of_roots(fd);

    return error ? error : ioctl(fd, GAIA_IOCTL_TOKEN, &token) ? -EPERM : 0;
}

int trust_check(int socket, int fd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length))
        return -errno;
    if (!peer.uid)
        return 0;
    if (peer.uid == UNKNOWN_USER && !every_user_is_known())
        return expect_root_outside(fd);
    return is_more_than_its_user(peer.uid) ? -EPERM : 0;
}
