/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/grow.h"

#include <assert.h>
#include <errno.h>
#include <linux/fuse.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/answers.h"
#include "fs/inode.h"

/* The kernel makes a page for the first byte, empty, which a READ of its own must fill when it is read. So it
 * is always the same one, of each GiB, and not one for each growth. */
#define GROW_SPAN ((off_t)1 << 30)

/* Not fuse_lowlevel_notify_store(): that says on stderr that it failed, as it is to here. And not writev(): a
 * sanitizer would look at what it is given. */
static int store_nothing(int fd, uint64_t nodeid, off_t size)
{
    off_t from = (size - 1) & ~(GROW_SPAN - 1);
    struct fuse_notify_store_out store = {
        .nodeid = nodeid, .offset = (uint64_t)from, .size = (uint32_t)(size - from)};
    struct fuse_out_header header = {.error = FUSE_NOTIFY_STORE,
                                     .len = sizeof header + sizeof store + store.size};
    struct iovec parts[] = {{&header, sizeof header}, {&store, sizeof store}, {NULL, store.size}};

    return syscall(SYS_writev, fd, parts, 3) < 0 ? -errno : 0;
}

int grow_kernel(void *context, void *file_context, off_t size)
{
    struct fs *fs = context;
    int rc = -ENOENT;

    assert(size > 0);
    answers_wait(nodeid_of(file_context));
    pthread_rwlock_rdlock(&fs->notify_gate);
    if (fs->serving)
        rc = store_nothing(fuse_session_fd(fs->session), nodeid_of(file_context), size);
    pthread_rwlock_unlock(&fs->notify_gate);
    /* The size comes first, then the page: without memory for that it is known as well. */
    if (rc == -EFAULT || rc == -ENOMEM)
        return 0;
    /* The mount has gone meanwhile. */
    return rc == -ENODEV || rc == -ENOTCONN || rc == -EBADF ? -ENOENT : rc;
}
