/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/request.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* Of the kernel's fuse.h; Debian 12's ends before the second. */
#define OPCODE_TMPFILE 51u
#define OPCODE_STATX 52u

struct statx_answer {
    uint64_t attr_valid;
    uint32_t attr_valid_nsec;
    uint32_t flags;
    uint64_t spare[2];
    struct statx stat; /* fuse_statx has its fields in the same places, and zeros for those behind dev */
};
_Static_assert(sizeof(struct statx_answer) == 288, "the kernel's struct fuse_statx_out");

/* A thread of libfuse reads a request and serves it before it reads the next. */
static __thread bool is_statx, kills_set_ids;

/* readv() and writev() are not in tests/faults: what happens then is libfuse's. To a thread that takes a
 * request just as the connection ends (an unmount's last RELEASE) Linux says ECONNABORTED; to all others, and
 * here, it is ENODEV, which is no failure. */
static ssize_t read_request(int fd, void *buffer, size_t size, void *userdata)
{
    struct iovec part = {.iov_base = buffer, .iov_len = size};
    ssize_t got = readv(fd, &part, 1);
    struct fuse_in_header *in = buffer;

    (void)userdata;
    if (got < 0 && errno == ECONNABORTED)
        errno = ENODEV;
    is_statx = kills_set_ids = false;
    if (got < (ssize_t)sizeof(*in))
        return got;
    /* Nothing here looks whether a request was interrupted, and the kernel waits for no answer to this. (To
     * one that says ENOSYS it would send no more, and have all who wait for this mount wait in the state D
     * from then on.) libfuse 3.14 would keep one that comes behind the answer to its request until the next
     * request, or for ever. */
    if (in->opcode == FUSE_INTERRUPT) {
        errno = EINTR; /* the thread reads again */
        return -1;
    }
    if (in->opcode == FUSE_SETATTR) {
        const struct fuse_setattr_in *set = (const void *)(in + 1);
        kills_set_ids = got >= (ssize_t)(sizeof(*in) + sizeof(*set)) && set->valid & FATTR_KILL_SUIDGID;
    } else if (in->opcode == OPCODE_TMPFILE) {
        in->opcode = FUSE_CREATE;
    } else if (in->opcode == OPCODE_STATX) {
        in->opcode = FUSE_GETATTR;
        is_statx = true;
    }
    return got;
}

/* What the data directory says for an answer that its own daemon is gone (it may be a FUSE filesystem, too)
 * would say of this mount's that it is. */
static int told(int error)
{
    return error == -ENOTCONN || error == -ECONNABORTED ? -EIO : error;
}

static ssize_t write_answer(int fd, struct iovec *parts, int count, void *userdata)
{
    struct fuse_out_header *out = parts[0].iov_base;

    (void)userdata;
    out->error = told(out->error); /* of a notification it is a positive number */
    return writev(fd, parts, count);
}

int request_start(struct fuse_session *session)
{
    static const struct fuse_custom_io io = {.read = read_request, .writev = write_answer};

    return fuse_session_custom_io(session, &io, fuse_session_fd(session));
}

bool request_is_statx(void)
{
    return is_statx;
}

bool request_kills_set_ids(void)
{
    return kills_set_ids;
}

void request_reply_statx(fuse_req_t req, const struct statx *stx)
{
    double timeout = fs_of(req)->options.timeout_s;
    struct statx_answer answer = {.attr_valid = (uint64_t)timeout};

    answer.attr_valid_nsec = (uint32_t)((timeout - (double)answer.attr_valid) * 1e9);
    /* What follows in struct statx (of mounts, direct I/O and atomic writes) has no place in the answer. */
    memcpy(&answer.stat, stx, offsetof(struct statx, stx_dev_minor) + sizeof(stx->stx_dev_minor));
    fuse_reply_buf(req, (const void *)&answer, sizeof(answer));
}
