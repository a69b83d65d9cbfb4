/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/shed.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache/cache.h"
#include "fs/content.h"
#include "fs/fs.h"
#include "fs/later.h"
#include "fs/memory.h"
#include "fs/passthrough.h"
#include "fs/session.h"

#define DESCRIPTORS_FOR_OTHERS 128u
#define DESCRIPTOR_BYTES ((size_t)4 << 10) /* with what is behind it: a page of each replica's state */
#define WAIT_MS 400u
#define FORGETS_MS 20u
#define WAITS 200u /* in so many steps */

void shed_init(struct fs *fs, size_t descriptors, size_t inodes)
{
    size_t left = descriptors > DESCRIPTORS_FOR_OTHERS ? descriptors - DESCRIPTORS_FOR_OTHERS : 0;
    size_t fit = memory_available() / 16 / DESCRIPTOR_BYTES;

    fs->shed.most = left * 3 / 8 + 1; /* twice as many before anybody waits */
    if (fs->shed.most > inodes)       /* each file has four at least: of the inodes a quarter, or half */
        fs->shed.most = inodes;
    if (fs->shed.most > fit)
        fs->shed.most = fit;
    atomic_store(&fs->shed.next, fs->shed.most);
}

/* The directory that a path below the data directory is in: a reference, or NULL. *name_out: in path. */
static struct inode *parent_of(struct fs *fs, char *path, const char **name_out)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    BORROWED root = inode_borrow(fs->root);
    char *slash = strrchr(path, '/');

    if (root.fd < 0)
        return NULL;
    if (slash)
        *slash = '\0';
    *name_out = slash ? slash + 1 : path;
    int fd = (int)syscall(SYS_openat2, root.fd, slash ? path : ".", &how, sizeof how);
    if (fd < 0 && descriptors_shed(fs, errno))
        fd = (int)syscall(SYS_openat2, root.fd, slash ? path : ".", &how, sizeof how);
    struct inode *parent = fd < 0 ? NULL : inode_get_known(fs, fd);
    if (fd >= 0)
        close(fd);
    return parent;
}

/* An older kernel can be asked for a name only: where that is another's by now that is looked up once more.
 * Of several names the others stay, and the inode with them. And it waits for the lock of the folder, which a
 * program that lists it has for as long as it likes (it need not take what it is told): nobody can be told to
 * look up anything there meanwhile. */
static void have_forgotten(struct inode *inode)
{
    struct fs *fs = inode->fs;
    char path[PATH_MAX];
    const char *name;

    if (pruner_forget(fs, nodeid_of(inode)) == 0)
        return;
    ssize_t length = inode_path(inode, path, sizeof path);
    struct inode *parent = length > 0 && path[0] != '/' ? parent_of(fs, path, &name) : NULL;

    if (!parent)
        return;
    session_forget_name(fs, parent, name);
    inode_put(parent);
}

struct shedding {
    size_t wanted, done; /* descriptors */
    /* Also those that somebody has mapped since they were looked at last, and those that have stayed. They
     * are no part of `done`: it would be they each time, and never those behind them. */
    bool all;
};

static int let_go(struct inode *inode, void *context)
{
    struct shedding *shedding = context;
    struct cache_file *file = inode_file(inode);
    struct passthrough_mode mode;
    size_t descriptors;

    if (!atomic_load(&inode->fs->serving))
        return 1;
    passthrough_look(inode->fs, inode, &mode);
    if (!file || mode.opens || !cache_file_shed(file, shedding->all, &descriptors))
        return 0;
    shedding->done += descriptors;
    have_forgotten(inode);
    return shedding->done >= shedding->wanted;
}

/* The kernel's FORGETs come soon after. How many descriptors are left. */
static size_t wait_for_forgets(struct fs *fs, size_t expected)
{
    for (unsigned i = 0; i < WAITS && cache_count_descriptors(fs->cache) > expected; i++)
        usleep(FORGETS_MS * 1000 / WAITS);
    return cache_count_descriptors(fs->cache);
}

/* A third of them at most. */
static void run(void *argument)
{
    struct fs *fs = argument;
    struct shed *shed = &fs->shed;
    struct shedding shedding = {.wanted = shed->most / 3 + 1};
    size_t before = cache_count_descriptors(fs->cache), step = shed->most / 8 + 1;

    fs_each_tracked(fs, let_go, &shedding);
    shedding.all = true;
    if (shedding.done < shedding.wanted)
        fs_each_tracked(fs, let_go, &shedding);
    size_t left = wait_for_forgets(fs, before > shedding.done ? before - shedding.done : 0);
    atomic_store(&shed->next, left + step > shed->most ? left + step : shed->most);
    atomic_store(&shed->running, false);
}

/* Begins, if nobody has. */
static void begin(struct fs *fs)
{
    struct shed *shed = &fs->shed;

    if (!atomic_exchange(&shed->running, true) && !later_perhaps(fs, run, fs))
        atomic_store(&shed->running, false);
}

/* Until it is over, or there are fewer than that. */
static void wait_for_it(struct fs *fs, size_t descriptors)
{
    for (unsigned i = 0; i < WAITS && atomic_load(&fs->shed.running); i++) {
        if (cache_count_descriptors(fs->cache) < descriptors)
            break;
        usleep(WAIT_MS * 1000 / WAITS);
    }
}

void shed_make_room(struct fs *fs)
{
    if (cache_count_descriptors(fs->cache) < atomic_load(&fs->shed.next))
        return;
    begin(fs);
    wait_for_it(fs, 2 * fs->shed.most);
}

bool shed_after(struct fs *fs, int error)
{
    if (error != -EMFILE && error != -ENFILE)
        return false;
    begin(fs);
    wait_for_it(fs, 0);
    return true;
}
