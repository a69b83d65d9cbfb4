/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that is gone: what the worker's calls and touches must end with, and how soon. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gaia.h"
#include "steps.h"

#define SOON_NS 3000000000u

enum { PWRITE, FSYNC, OPEN, ACQUIRE, RELEASE, SYNC, ADVISE, STAT, MAP, CALLS };
static const char *const call_names[] = {"pwrite",        "fsync",         "open",
                                         "gaia_macquire", "gaia_mrelease", "gaia_msync",
                                         "gaia_madvise",  "gaia_stat",     "gaia_mmap"};

static int one_call(int call, const struct file *file)
{
    size_t length = (size_t)file->mapped;
    struct gaia_stat stat;
    char path[200];

    snprintf(path, sizeof path, "%s/fine", mnt);
    switch (call) {
    case PWRITE:
        return pwrite(file->fd, "", 1, 0) < 0 ? -1 : 0;
    case FSYNC:
        return fsync(file->fd);
    case OPEN:
        return open(path, O_RDONLY) < 0 ? -1 : 0;
    case ACQUIRE:
        return gaia_macquire(file->device, length, file->on);
    case RELEASE:
        return gaia_mrelease(file->device, length, file->on);
    case SYNC:
        return gaia_msync(file->device, length, MS_SYNC);
    case ADVISE:
        return gaia_madvise(file->device, length, GAIA_ADV_WILLNEED);
    case STAT:
        return gaia_stat(file->on, &stat);
    default:
        return gaia_mmap(file->on, PAGE, PROT_READ, 0, file->fd, 0) == MAP_FAILED ? -1 : 0;
    }
}

/* The first one may still be under way when the daemon ends (daemon_gone()). An acquire or a release that has
 * nothing to do asks nobody, and learns of the end from a thread of libgaia's. */
static void must_fail(int call, const struct file *file)
{
    uint64_t since = now();
    int result, error;

    do {
        errno = 0;
        result = one_call(call, file);
        error = errno;
        if (now() - since > SOON_NS)
            die(call_names[call], (int64_t)(now() - since), error);
    } while ((call <= OPEN && (error == ECONNABORTED || error == EIO)) ||
             (!result && (call == ACQUIRE || call == RELEASE)));
    if (!result || error != ENOTCONN)
        die(call_names[call], result, error);
}

static void must_raise(struct file *file, int64_t at, bool to_store)
{
    uint64_t since = now();
    uint8_t byte = 0;

    /* The call that failed may know of the end before the thread that takes the pages away. */
    while (!(to_store ? store(file->device + at, &byte, 1) : load(file->device + at, 1, &byte))) {
        if (now() - since > SOON_NS)
            die("a touch of a dead daemon's memory goes on", file - files, at);
        usleep(200);
    }
}

/* Every call says ENOTCONN, every touch SIGBUS, and soon. */
void after_the_end(void)
{
    for (unsigned f = 0; f < FILES; f++) {
        struct file *file = &files[f];
        if (!file->device)
            continue;
        for (int call = 0; call < CALLS; call++)
            must_fail(call, file);
        must_raise(file, 0, false);
        must_raise(file, file->mapped - PAGE, true);
        if (gaia_munmap(file->device, (size_t)file->mapped))
            die("gaia_munmap", f, errno);
    }
    for (unsigned f = 0; f < FILES; f++)
        gaia_device_close(files[f].on);
}
