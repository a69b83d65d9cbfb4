/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/left.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/proc_path.h"
#include "fs/fs.h"
#include "fs/log.h"

#define CLOSE_MS 1000u

/* Whether it may be a client's, so that to close it may take for ever (fs/client.h): it is not ours to keep,
 * and keeps nothing of ours. */
static bool may_be_foreign(int fd)
{
    char target[32];
    ssize_t length = readlink(proc_path(fd).text, target, sizeof target - 1);

    target[length < 0 ? 0 : length] = '\0';
    return !strncmp(target, "socket:", 7) || !strncmp(target, "anon_inode:[userfaultfd", 23);
}

/* All threads have one table, which stays as long as any of them. So something that can be neither read nor
 * written takes the place of each descriptor: none gets another meaning for a thread that comes back. */
static void *let_go(void *argument)
{
    int nothing = open("/", O_PATH | O_CLOEXEC);
    int table = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *all = nothing < 0 || table < 0 ? NULL : fdopendir(table);
    struct dirent *entry;

    (void)argument;
    while (all && (entry = readdir(all))) {
        int fd = atoi(entry->d_name);
        if (fd > STDERR_FILENO && fd != nothing && fd != table && !may_be_foreign(fd))
            dup3(nothing, fd, O_CLOEXEC);
    }
    return NULL;
}

/* In a thread of its own, as no close is known for sure to come back. */
_Noreturn void left_end(struct fs *fs, int status)
{
    pthread_t thread;

    fs_log(LOG_WARNING,
           "%s: programs hold the memory of their device, or their own: what waits for them is left behind",
           fs->mount_path);
    if (!pthread_create(&thread, NULL, let_go, NULL))
        (void)lock_join_within(thread, CLOSE_MS);
    _exit(status);
}
