/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of files. Each operation enters the inode's gate first (fs/content.h): an untracked file is
 * served from the backing descriptor with the gate held, a tracked one by the cache with no lock held. */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fsuid.h"
#include "base/read.h"
#include "fs/content.h"
#include "fs/creds.h"
#include "fs/later.h"
#include "fs/nodes.h"
#include "fs/request.h"
#include "fs/session.h"
#include "fs/trouble.h"

/* Each thread of the session keeps the buffer of its largest READ: allocating one a request costs more than
 * reading. */
static pthread_key_t buffer_key;
static pthread_once_t buffer_once = PTHREAD_ONCE_INIT;
static __thread void *buffer_memory;
static __thread size_t buffer_size;

static void make_buffer_key(void)
{
    pthread_key_create(&buffer_key, free);
}

static void *thread_buffer(size_t size)
{
    void *memory;

    if (size <= buffer_size)
        return buffer_memory;
    pthread_once(&buffer_once, make_buffer_key);
    if (posix_memalign(&memory, 4096, size))
        return NULL;
    free(buffer_memory);
    pthread_setspecific(buffer_key, memory); /* freed when the thread ends */
    buffer_memory = memory;
    buffer_size = size;
    return memory;
}

static unsigned io_flags(const struct fuse_file_info *fi)
{
    unsigned flags = 0;

    if (fi->flags & O_DIRECT)
        flags |= CACHE_IO_DIRECT;
    if (fi->writepage)
        flags |= CACHE_IO_WRITEBACK;
    return flags;
}

/* The kernel says whose a READ or a WRITE is when it goes past its cache, for O_DIRECT or because we said
 * FOPEN_DIRECT_IO. It does not say so when it fills its cache, writes through it or back, also for a
 * descriptor that is open for direct I/O. */
static unsigned read_flags(const struct fuse_file_info *fi)
{
    return fi->lock_owner ? io_flags(fi) | CACHE_IO_DIRECT | CACHE_IO_UNCACHED : io_flags(fi);
}

void op_read(fuse_req_t req, fuse_ino_t nodeid, size_t size, off_t offset, struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    struct handle *handle = handle_of(fi);
    char *buffer = thread_buffer(size);
    struct cache_file *file;
    struct cache_read read;
    ssize_t got;

    if (!buffer) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    /* Asked for by readahead() and posix_fadvise() alone. The kernel would fill pages of its own, of which no
     * store that is passed through takes notice, and show them when the file is not passed through any more.
     */
    if (handle->passed && !handle->asks) {
        fuse_reply_err(req, EIO);
        return;
    }
    for (;;) {
        nodes_await_sure(inode, CACHE_COLLECTS);
        file = inode_gate_enter(inode);
        if (file) {
            inode_get(inode); /* the kernel may forget it as soon as it has the answer */
            got = cache_file_read(file, handle->fd, buffer, size, offset, read_flags(fi), &read);
        } else {
            got = read_whole(handle->fd, buffer, size, offset);
            if (!(read_flags(fi) & CACHE_IO_UNCACHED))
                durable_read(inode_durable(inode), offset, (off_t)size);
        }
        inode_gate_leave(inode, file);
        if (!nodes_try_again(inode, file, got))
            break;
        cache_file_read_end(file, &read);
        inode_put(inode);
    }
    if (got < 0)
        fuse_reply_err(req, (int)-trouble(inode, "reading", got));
    else
        fuse_reply_buf(req, buffer, (size_t)got);
    if (file) {
        cache_file_read_end(file, &read);
        inode_put(inode);
    }
}

/* What is appended says so itself (write_backing(), cache/cpu.c), so the descriptor need not: not that of a
 * file that only grows (chattr +a), which keeps the flag. */
static bool stop_appending(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && !fcntl(fd, F_SETFL, flags & ~O_APPEND);
}

/* The descriptor to write a kernel's page through: the kernel takes any writable handle for it, and on one
 * opened with O_APPEND the page would land at the end of the file. A descriptor or a negative errno. */
static int handle_page_fd(struct handle *handle)
{
    int fd = atomic_load(&handle->page_fd), expected = -1;

    if (!(handle->flags & O_APPEND))
        return handle->fd;
    if (fd >= 0)
        return fd;
    fd = descriptors_openat(handle->inode->fs, AT_FDCWD, proc_path(handle->fd).text, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) /* the file's mode may keep us out, but not who has it open; or descriptors are short */
        return stop_appending(handle->fd) ? handle->fd : fd;
    if (!atomic_compare_exchange_strong(&handle->page_fd, &expected, fd)) {
        close(fd);
        fd = expected;
    }
    return fd;
}

static ssize_t write_backing(int fd, const char *data, size_t size, off_t offset, bool append)
{
    size_t done = 0;

    while (done < size) {
        struct iovec part = {.iov_base = (char *)(uintptr_t)data + done, .iov_len = size - done};
        /* O_APPEND may also have been set after the open (fcntl); the flag serves both. */
        fsuid_begin_write(fd);
        ssize_t put = append ? pwritev2(fd, &part, 1, offset + (off_t)done, RWF_APPEND)
                             : pwrite(fd, part.iov_base, part.iov_len, offset + (off_t)done);
        fsuid_end_write();
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return done > 0 ? (ssize_t)done : -errno;
        if (put == 0)
            return done > 0 ? (ssize_t)done : -EIO;
        done += (size_t)put;
    }
    return (ssize_t)done;
}

static ssize_t write_back(struct durable *durable, int fd, const char *data, size_t size, off_t offset)
{
    size_t done = 0;

    while (done < size) {
        size_t skipped, part = overrule_next(durable, offset + (off_t)done, size - done, &skipped);
        done += skipped;
        ssize_t put = part ? write_backing(fd, data + done, part, offset + (off_t)done, false) : 0;
        if (put < 0)
            return done > 0 ? (ssize_t)done : put;
        done += (size_t)put;
        if ((size_t)put < part)
            break;
    }
    return (ssize_t)done;
}

/* The same with other mounts: what one of them has cut off since the kernel here has heard of the file's end
 * is no part of it, and must not make it longer again. It counts as written. */
static ssize_t write_back_shared(struct durable *durable, int fd, const char *data, size_t size, off_t offset)
{
    struct stat st;
    size_t part = size;

    if (!fstat(fd, &st) && offset + (off_t)size > st.st_size)
        part = offset < st.st_size ? (size_t)(st.st_size - offset) : 0;
    ssize_t put = write_back(durable, fd, data, part, offset);
    return put == (ssize_t)part ? (ssize_t)size : put;
}

static ssize_t write_untracked(struct inode *inode, int fd, const char *data, size_t size, off_t offset,
                               const struct fuse_file_info *fi)
{
    const struct fs_options *options = &inode->fs->options;
    bool shared = fi->writepage && options->cache.shared && !options->members;
    struct durable *durable = inode_durable(inode);
    struct inode_change change;
    ssize_t put;

    if (shared)
        inode_hold_end(inode, fd);
    inode_change_begin(inode, fd, CHANGE_OF_BYTES, &change);
    if (shared)
        put = write_back_shared(durable, fd, data, size, offset);
    else if (fi->writepage)
        put = write_back(durable, fd, data, size, offset);
    else
        put = write_backing(fd, data, size, offset, fi->flags & O_APPEND);
    inode_change_end(inode, fd, &change);
    if (shared)
        inode_let_end_go(inode);
    return put;
}

/* Must this WRITE clear set-id bits? libfuse 3.14 does not hand on the flag; the header precedes the bytes.
 */
static bool kills_suidgid(const struct fs *fs, const char *data)
{
    const struct fuse_write_in *in = (const void *)(data - sizeof(struct fuse_write_in));

    return fs->kills_privileges && in->write_flags & FUSE_WRITE_KILL_SUIDGID;
}

/* The bytes behind the first `put`, or all after an error. */
static void note_failed_write(struct durable *durable, ssize_t put, off_t offset, off_t size, int error,
                              bool write_back)
{
    off_t done = put > 0 ? put : 0;

    if (write_back) /* the kernel calls the pages clean all the same */
        durable_lose(durable, offset + done, size - done, error);
    else
        durable_tried(durable, offset + done, size - done);
}

struct sync {
    fuse_req_t req;
    struct inode *inode;
    struct handle *handle; /* there until its RELEASE, which comes after the answer */
    int data_only;
    ssize_t written; /* by the WRITE that wants it; -1: none does */
};

static void sync_and_answer(const struct sync *sync)
{
    struct handle *handle = sync->handle;
    struct inode *inode = sync->inode;
    struct cache_file *file = inode_file(inode);
    int rc;

    /* Without the gate, which is for bytes: who comes to track the file need not wait, nor all behind him. */
    if (file)
        do {
            nodes_await_sure(inode, CACHE_COLLECTS);
            rc = cache_file_sync(file, handle->fd, sync->data_only, &handle->seen);
        } while (nodes_try_again(inode, file, rc) && (file = inode_file(inode)));
    else
        rc = durable_sync(inode_durable(inode), handle->fd, sync->data_only, &handle->seen);
    if (rc < 0 || sync->written < 0)
        fuse_reply_err(sync->req, (int)-trouble(inode, "syncing", rc));
    else
        fuse_reply_write(sync->req, (size_t)sync->written);
}

static void sync_later(void *argument)
{
    struct sync sync = *(struct sync *)argument;

    free(argument);
    sync_and_answer(&sync);
}

static void answer_synced(const struct sync *sync)
{
    struct fs *fs = fs_of(sync->req);
    bool waits = fs->options.members && inode_file(sync->inode);
    struct sync *copy = waits ? malloc(sizeof *copy) : NULL;

    if (!copy) {
        sync_and_answer(sync);
        return;
    }
    *copy = *sync;
    later(fs, sync_later, copy);
}

void op_fsync(fuse_req_t req, fuse_ino_t nodeid, int data_only, struct fuse_file_info *fi)
{
    answer_synced(&(struct sync){req, inode_of(req, nodeid), handle_of(fi), data_only, -1});
}

/* RWF_DSYNC or RWF_SYNC of this WRITE alone; what a descriptor is opened with, its backing one has, too, but
 * not handle_page_fd()'s, nor the one that a home elsewhere writes through. For what goes past the kernel's
 * cache alone (read_flags()): after it the kernel may send no FSYNC. It does so after others, and keeps the
 * pages of those locked until the answer: a sync within it would wait for a page that is to be dropped, as
 * another node has changed it. */
static bool wants_sync(const struct handle *handle, int fd, const struct fuse_file_info *fi,
                       const struct cache_file *file)
{
    bool far = file && cache_file_is_far(file);

    return fi->lock_owner && fi->flags & O_DSYNC && (far || fd != handle->fd || !(handle->flags & O_DSYNC));
}

struct written {
    struct sync sync;
    bool syncs;
    off_t offset;
};

static void answer_written(const struct written *written)
{
    if (written->syncs)
        answer_synced(&written->sync);
    else
        fuse_reply_write(written->sync.req, (size_t)written->sync.written);
}

static void drop_and_answer_written(void *argument)
{
    struct written written = *(struct written *)argument;
    struct inode *inode = written.sync.inode;

    free(argument);
    session_invalidate(inode->fs, inode, written.offset, 0);
    answer_written(&written);
}

/* An older kernel goes on with what others have read of the end (kernel_drops_behind_writes()). Until the
 * answer it keeps other writes out, locks no page, and takes the end to be where it was: nobody can have read
 * beyond it. */
static void drop_behind(const struct written *written)
{
    struct fs *fs = written->sync.inode->fs;
    struct written *copy = malloc(sizeof *copy);

    if (copy) {
        *copy = *written;
        if (later_drop(fs, drop_and_answer_written, copy, false))
            return;
        free(copy);
    }
    answer_written(written);
}

/* What a WRITE says, and where it goes. */
struct writing {
    struct inode *inode;
    const struct fuse_file_info *fi;
    const char *data;
    size_t size;
    off_t offset;
    int fd;
    bool append;
    struct cache_file *file; /* by which the last try went; NULL: the file is not tracked */
    bool set_ids;            /* are to be cleared */
    uint64_t settled;        /* of the content, as it came */
};

/* A page that the kernel has had since before the file's home became another one: others may have changed it
 * since, and nobody has what was between. */
static bool is_discarded(const struct writing *w)
{
    return w->fi->writepage && w->file &&
           (cache_file_discards(w->file) || atomic_load(&inode_content(w->inode)->settled) != w->settled);
}

/* What is behind the first `done` bytes. */
static ssize_t write_rest(struct writing *w, size_t done)
{
    unsigned flags = io_flags(w->fi) | (w->append ? CACHE_IO_APPEND : 0);
    const char *data = w->data + done;
    size_t size = w->size - done;
    off_t offset = w->offset + (off_t)done;
    bool again; /* not an append that may have been done before the home went */
    ssize_t put;

    do {
        w->file = NULL;
        put = nodes_await_sure(w->inode, w->fi->writepage ? CACHE_WRITES_BACK : CACHE_CHANGES);
        if (put < 0)
            return put;
        w->file = inode_gate_enter(w->inode);
        if (is_discarded(w)) {
            inode_gate_leave(w->inode, w->file);
            w->file = NULL; /* its home does not know of it */
            return -EIO;
        }
        if (w->set_ids && w->file && cache_file_is_far(w->file))
            creds_clear_set_ids(w->fd);
        again = !w->append || (w->file && cache_file_is_lost(w->file));
        if (w->file)
            put = cache_file_write(w->file, w->fd, data, size, offset, flags);
        else
            put = write_untracked(w->inode, w->fd, data, size, offset, w->fi);
        inode_gate_leave(w->inode, w->file);
    } while (again && nodes_try_again(w->inode, w->file, put));
    return put;
}

/* Whether somebody else has noted what of a write-back could not be written. */
static bool home_notes(const struct writing *w)
{
    return w->fi->writepage && w->file && cache_file_home_knows(w->file);
}

/* Bytes written, and in *error_out why not all, if that is an error of the whole for who asks: a program goes
 * on behind a part and finds out by itself, but of its own write-backs the kernel looks only whether they
 * have failed, and would tell nobody. */
static ssize_t write_all_of(struct writing *w, int *error_out)
{
    ssize_t put = write_rest(w, 0), more = put;

    while (more > 0 && put < (ssize_t)w->size && w->fi->writepage && !home_notes(w)) {
        more = write_rest(w, (size_t)put);
        put += more > 0 ? more : 0;
    }
    *error_out = more < 0 ? (int)more : 0;
    return put;
}

void op_write(fuse_req_t req, fuse_ino_t nodeid, const char *data, size_t size, off_t offset,
              struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    struct handle *handle = handle_of(fi);
    bool append = !fi->writepage && fi->flags & O_APPEND;
    int fd = append ? handle->fd : handle_page_fd(handle), error;
    struct writing writing = {inode, fi, data, size, offset, fd, append, NULL, false, 0};
    struct durable *durable = inode_durable(inode);

    writing.settled = atomic_load(&inode_content(inode)->settled);
    if (fd < 0) {
        if (fi->writepage)
            durable_lose(durable, offset, (off_t)size, fd);
        fuse_reply_err(req, -fd);
        return;
    }
    if (!fi->writepage) /* else whose it is is not known */
        writing.set_ids = creds_begin_writes(req, fd, kills_suidgid(fs_of(req), data));
    unsigned begun = durable_begin(durable, fd);
    ssize_t put = write_all_of(&writing, &error);
    if (append)
        durable_appended(durable, begun, fd, offset, put);
    else
        durable_wrote(durable, begun, offset, put, fi->writepage ? DURABLE_WRITTEN_BACK : DURABLE_STORED);
    if (put < (ssize_t)size && !home_notes(&writing))
        note_failed_write(durable, put, offset, (off_t)size, error ? error : -EIO, fi->writepage);
    if (!fi->writepage)
        creds_end_writes(req);
    /* Past its cache the kernel keeps the mode that it knew. */
    if (writing.set_ids && (handle->asks || handle->uncached))
        session_invalidate(inode->fs, inode, -1, 0);
    if (error) {
        if (fi->writepage)
            trouble_of_stores(inode, error);
        fuse_reply_err(req, (int)-trouble(inode, "writing", error));
        return;
    }
    struct written written = {{req, inode, handle, (fi->flags & O_SYNC) != O_SYNC, put},
                              put > 0 && wants_sync(handle, fd, fi, writing.file),
                              offset};
    if (handle->uncached && !fi->writepage && !inode->fs->drops_behind)
        drop_behind(&written);
    else
        answer_written(&written);
}

int data_truncate(fuse_req_t req, struct inode *inode, int fd, off_t size)
{
    bool kills = fs_of(req)->kills_privileges && request_kills_set_ids();
    struct durable *durable = inode_durable(inode); /* also when nobody has it open */
    struct inode_change change;
    struct cache_end end;
    struct cache_file *file;
    BORROWED path = inode_borrow(inode);
    int rc;

    if (path.fd < 0 || !durable)
        return path.fd < 0 ? path.fd : -ENOMEM;
    rc = nodes_catch_up(inode, false);
    if (rc < 0)
        return rc;
    bool set_ids = kills && creds_drop_fsetid(req, path.fd);
    durable_begin(durable, path.fd);
    do {
        rc = nodes_await_sure(inode, CACHE_CHANGES);
        if (rc < 0)
            break;
        file = inode_gate_enter(inode);
        if (file && set_ids && cache_file_is_far(file))
            creds_clear_set_ids(path.fd);
        if (file) {
            rc = cache_file_truncate(file, fd, size);
        } else {
            cache_end_hold(inode->fs->cache, fd, path.fd, NULL, &end);
            inode_change_begin(inode, path.fd, CHANGE_OF_BYTES, &change);
            rc = cache_cut(fd, path.fd, size);
            inode_change_end(inode, path.fd, &change);
            cache_end_let_go(&end);
        }
        inode_gate_leave(inode, file);
    } while (nodes_try_again(inode, file, rc));
    if (rc == 0)
        durable_cut(durable, size);
    if (kills)
        creds_regain_fsetid(req);
    return rc;
}
