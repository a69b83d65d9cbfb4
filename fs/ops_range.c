/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for ranges of a file: holes, zeros, copies, and where data is. Of a file that is not passed
 * through the kernel has pages of its own, of which it takes less care here than at a write(): it sends
 * SEEK_DATA without writing back what is dirty, and while it waits for the answer to the others, pages that
 * it has written back and is about to drop become dirty again. So it is made to write back and drop them
 * before it has the answer. It holds the inode's lock meanwhile: no plain WRITE is on its way. */
#include "fs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fsuid.h"
#include "cache/overrule.h"
#include "consistency/page.h"
#include "fs/content.h"
#include "fs/creds.h"
#include "fs/later.h"
#include "fs/nodes.h"
#include "fs/session.h"

/* A change that was made: the kernel drops the range, then it is answered. */
struct changed {
    fuse_req_t req;
    struct inode *inode;
    struct overrule overrule;
    int rc; /* also where a part of the range was changed before an error */
    bool copies;
    ssize_t copied; /* of copy_file_range() */
};

/* NULL: answered, as memory is short. */
static struct changed *changed_new(fuse_req_t req, struct inode *inode, bool copies)
{
    struct changed *changed = malloc(sizeof *changed);

    if (changed)
        *changed = (struct changed){.req = req, .inode = inode, .copies = copies};
    else
        fuse_reply_err(req, ENOMEM);
    return changed;
}

static void answer(struct changed *changed)
{
    if (changed->rc < 0)
        fuse_reply_err(changed->req, -changed->rc);
    else if (changed->copies)
        fuse_reply_write(changed->req, (size_t)changed->copied);
    else
        fuse_reply_err(changed->req, 0);
    free(changed);
}

/* Twice: stores to pages that were read anew meanwhile were left out, too, and are written back the second
 * time. Between that and the answer's arrival stores can still be lost, as without all this. */
static void drop_and_answer(void *argument)
{
    struct changed *changed = argument;
    struct inode *inode = changed->inode;
    off_t start = changed->overrule.start, length = changed->overrule.end - start;

    session_invalidate(inode->fs, inode, start, length);
    overrule_end(&changed->overrule, inode_durable(inode));
    session_invalidate(inode->fs, inode, start, length);
    answer(changed);
}

static void changed_end(struct changed *changed)
{
    bool overrules = overrule_has_begun(&changed->overrule);

    if (overrules && later_drop(changed->inode->fs, drop_and_answer, changed, true))
        return;
    if (overrules)
        overrule_end(&changed->overrule, inode_durable(changed->inode));
    answer(changed);
}

static int fallocate_untracked(struct inode *inode, int fd, int mode, off_t offset, off_t length,
                               struct overrule *overrule)
{
    struct inode_change change;

    inode_change_begin(inode, fd, CHANGE_OF_BYTES, &change);
    fsuid_begin_write(fd);
    int rc = fallocate(fd, mode, offset, length) ? -errno : 0;
    fsuid_end_write();
    inode_change_end(inode, fd, &change);
    if (rc == 0 && overrule)
        overrule_begin(overrule, inode_durable(inode), offset, offset + length);
    return rc;
}

/* A part of a change during which others wait for the gate: its time goes with what is allocated there. Parts
 * end where blocks do, else what lies across two of them would be zeroed, but not freed. */
#define PART_LEAST ((off_t)1 << 20)
#define PART_MOST ((off_t)64 << 20) /* what is a hole is done at once */
#define PART_NS UINT64_C(2000000)

struct zeroing {
    struct inode *inode;
    int fd, mode;
    off_t offset, left, part;
    struct overrule *overrule; /* of the kernel's pages, if it has any: else it is done at once */
};

static off_t next_part(const struct zeroing *z)
{
    off_t part = z->part - z->offset % PART_LEAST, data;

    if (!z->overrule || z->left <= part)
        return z->left;
    data = lseek(z->fd, z->offset, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
        return z->left;
    if (data - data % PART_LEAST > z->offset + part)
        part = data - data % PART_LEAST - z->offset;
    return part < z->left ? part : z->left;
}

/* Holes and zeros, or room; with overrule a part of it. */
static int fallocate_some(struct zeroing *z)
{
    off_t length = next_part(z);
    struct cache_file *file;
    int rc;

    do {
        rc = nodes_await_sure(z->inode, CACHE_CHANGES);
        if (rc < 0)
            return rc;
        file = z->overrule ? inode_gate_enter_alone(z->inode) : inode_gate_enter(z->inode);
        uint64_t begun = clock_now_ns();
        if (file) {
            length = z->left;
            rc = cache_file_fallocate(file, z->fd, z->mode, z->offset, length, z->overrule);
        } else {
            rc = fallocate_untracked(z->inode, z->fd, z->mode, z->offset, length, z->overrule);
            bool slow = clock_now_ns() - begun > PART_NS;
            z->part = slow ? PART_LEAST : z->part < PART_MOST ? 2 * z->part : PART_MOST;
        }
        inode_gate_leave(z->inode, file);
    } while (nodes_try_again(z->inode, file, rc));
    if (rc == 0) {
        z->offset += length;
        z->left -= length;
    }
    return rc;
}

void op_fallocate(fuse_req_t req, fuse_ino_t nodeid, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi)
{
    struct inode *inode = inode_of(req, nodeid);
    struct handle *handle = handle_of(fi);
    bool zeroes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
    struct durable *durable = inode_durable(inode);
    struct zeroing zeroing = {inode, handle->fd, mode, offset, length, PART_LEAST, NULL};
    struct changed *changed = changed_new(req, inode, false);

    if (!changed) /* the handle may be gone */
        return;
    if (zeroes && !handle->passed)
        zeroing.overrule = &changed->overrule;
    creds_begin_writes(req, handle->fd, creds_lose_set_ids(req));
    unsigned begun = durable_begin(durable, handle->fd);
    do
        changed->rc = fallocate_some(&zeroing);
    while (changed->rc == 0 && zeroing.left > 0);
    if (zeroes)
        durable_wrote(durable, begun, offset, zeroing.offset - offset, DURABLE_STORED);
    creds_end_writes(req);
    changed_end(changed);
}

static off_t seek(struct handle *handle, off_t offset, int whence)
{
    struct cache_file *file;
    off_t found;

    do {
        nodes_await_sure(handle->inode, CACHE_COLLECTS);
        file = inode_gate_enter(handle->inode);
        if (file) {
            found = cache_file_seek(file, handle->fd, offset, whence);
        } else {
            found = lseek(handle->fd, offset, whence);
            found = found < 0 ? -errno : found;
        }
        inode_gate_leave(handle->inode, file);
    } while (nodes_try_again(handle->inode, file, found));
    return found;
}

struct seeking {
    fuse_req_t req;
    struct handle *handle; /* there until its RELEASE, which comes after the answer */
    off_t offset, found;
    int whence;
};

static void answer_seek(const struct seeking *seeking)
{
    if (seeking->found < 0)
        fuse_reply_err(seeking->req, (int)-seeking->found);
    else
        fuse_reply_lseek(seeking->req, seeking->found);
}

/* The hole that was found, or was passed on the way to data, if there is any. end_out: 0 is that of the
 * file. */
static bool has_hole(const struct seeking *seeking, off_t *start_out, off_t *end_out)
{
    off_t found = seeking->found;
    struct stat st;

    if (seeking->whence == SEEK_DATA) {
        *start_out = seeking->offset;
        *end_out = found < 0 ? 0 : found;
        return found == -ENXIO || found > seeking->offset;
    }
    *start_out = found;
    if (found < 0 || fstat(seeking->handle->fd, &st) || found >= st.st_size) /* behind the end is one, too */
        return false;
    found = seek(seeking->handle, found, SEEK_DATA);
    *end_out = found < 0 ? 0 : found;
    return true;
}

/* What is dirty there is data, too. Once the kernel has written it back the same question has another answer,
 * which is right where it lies in what was a hole: that is as old as the question. */
static void drop_and_seek(void *argument)
{
    struct seeking *seeking = argument;
    struct handle *handle = seeking->handle;
    off_t start, end, dropped = seeking->offset;

    while (has_hole(seeking, &start, &end) && start >= dropped) {
        session_invalidate(handle->inode->fs, handle->inode, start, end ? end - start : 0);
        seeking->found = seek(handle, seeking->offset, seeking->whence);
        if (!end || seeking->whence == SEEK_DATA)
            break;
        dropped = end;
    }
    answer_seek(seeking);
    free(seeking);
}

void op_lseek(fuse_req_t req, fuse_ino_t nodeid, off_t offset, int whence, struct fuse_file_info *fi)
{
    struct handle *handle = handle_of(fi);
    struct seeking seeking = {req, handle, offset, seek(handle, offset, whence), whence}, *later;
    off_t start, end;

    (void)nodeid;
    if (!handle->passed && has_hole(&seeking, &start, &end) && (later = malloc(sizeof *later))) {
        *later = seeking;
        if (later_drop(fs_of(req), drop_and_seek, later, true))
            return;
        free(later);
    }
    answer_seek(&seeking);
}

/* Enters both gates, that of the copy alone; the lower address first (they lie beside the durables): with
 * writers waiting for both, the other order could be a deadlock. */
static void enter_two(struct inode *inodes[2], struct cache_file *files[2])
{
    bool out_first = inode_durable(inodes[1]) < inode_durable(inodes[0]);

    if (inodes[0] == inodes[1]) {
        files[0] = files[1] = inode_gate_enter_alone(inodes[1]);
        return;
    }
    if (out_first)
        files[1] = inode_gate_enter_alone(inodes[1]);
    files[0] = inode_gate_enter(inodes[0]);
    if (!out_first)
        files[1] = inode_gate_enter_alone(inodes[1]);
}

static void leave_two(struct inode *inodes[2], struct cache_file *files[2])
{
    inode_gate_leave(inodes[0], files[0]);
    if (inodes[0] != inodes[1])
        inode_gate_leave(inodes[1], files[1]);
}

/* Whether a page is copied to in part that others may store to: the kernel drops it, with what they have
 * stored while it waited for the answer. */
static bool tears_pages(int fd, off_t offset, size_t length)
{
    off_t end = offset + (off_t)length;
    struct stat st;

    return offset % GAIA_PAGE_SIZE || (end % GAIA_PAGE_SIZE && (fstat(fd, &st) || end < st.st_size));
}

/* The gates of untracked files are held for that much at a time; a request asks for as much as the kernel
 * likes, and can't be killed. */
#define COPY_PART ((size_t)4 << 20)
#define COPY_MOST ((size_t)256 << 20)

struct copying {
    struct inode *inodes[2]; /* from, to */
    int fds[2];
    off_t offsets[2];
    size_t length;
    unsigned flags;
    struct overrule *overrule; /* of the kernel's pages, if it has any */
};

/* Bytes copied, fewer than asked for if one is tracked or of many. */
static ssize_t copy_some(struct copying *c)
{
    size_t length = c->length < COPY_PART ? c->length : COPY_PART;
    struct inode_change change;
    struct cache_file *files[2];
    ssize_t copied;

    nodes_await_sure(c->inodes[0], CACHE_COLLECTS);
    int at_odds = nodes_await_sure(c->inodes[1], CACHE_CHANGES);
    if (at_odds)
        return at_odds;
    enter_two(c->inodes, files);
    if (files[0] || files[1]) {
        copied = cache_file_copy_range(files[0], c->fds[0], c->offsets[0], files[1], c->fds[1], c->offsets[1],
                                       length, c->flags, c->overrule);
        c->offsets[0] += copied > 0 ? copied : 0;
        c->offsets[1] += copied > 0 ? copied : 0;
    } else {
        inode_change_begin(c->inodes[1], c->fds[1], CHANGE_OF_BYTES, &change);
        fsuid_begin_write(c->fds[1]);
        copied = copy_file_range(c->fds[0], &c->offsets[0], c->fds[1], &c->offsets[1], length, c->flags);
        copied = copied < 0 ? -errno : copied;
        fsuid_end_write();
        inode_change_end(c->inodes[1], c->fds[1], &change);
    }
    if (!files[1] && copied > 0 && c->overrule)
        overrule_begin(c->overrule, inode_durable(c->inodes[1]), c->offsets[1] - copied, c->offsets[1]);
    leave_two(c->inodes, files);
    if (files[1])
        cache_file_copy_end(files[1]);
    return copied;
}

/* Bytes copied, or a negative errno if there are none. What was copied to a part of a page that others may
 * store to is not told: see tears_pages(). */
static ssize_t copy(struct copying *c)
{
    off_t start = c->offsets[1];
    ssize_t done = 0, copied;

    do {
        copied = copy_some(c);
        done += copied > 0 ? copied : 0;
        c->length -= copied > 0 ? (size_t)copied : 0;
    } while (copied > 0 && c->length > 0);
    if (c->length > 0 && done > GAIA_PAGE_SIZE && tears_pages(c->fds[1], start, (size_t)done))
        done -= (start + done) % GAIA_PAGE_SIZE;
    return done > 0 ? done : copied;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t nodeid_in, off_t offset_in, struct fuse_file_info *fi_in,
                        fuse_ino_t nodeid_out, off_t offset_out, struct fuse_file_info *fi_out, size_t length,
                        int flags)
{
    struct handle *in = handle_of(fi_in), *out = handle_of(fi_out);
    struct copying copying = {.inodes = {inode_of(req, nodeid_in), inode_of(req, nodeid_out)},
                              .fds = {in->fd, out->fd},
                              .offsets = {offset_in, offset_out},
                              .length = length < COPY_MOST ? length : COPY_MOST,
                              .flags = (unsigned)flags};
    struct durable *durable = inode_durable(copying.inodes[1]);
    struct changed *changed;

    /* O_APPEND can be taken back (fcntl), but not from the daemon's descriptor. */
    if (out->flags & O_APPEND || (!out->passed && tears_pages(out->fd, offset_out, length))) {
        fuse_reply_err(req, EXDEV); /* the kernel reads and writes instead */
        return;
    }
    changed = changed_new(req, copying.inodes[1], true);
    if (!changed)
        return;
    copying.overrule = out->passed ? NULL : &changed->overrule;
    creds_begin_writes(req, out->fd, creds_lose_set_ids(req));
    unsigned begun = durable_begin(durable, out->fd);
    changed->copied = copy(&copying);
    durable_wrote(durable, begun, offset_out, copying.offsets[1] - offset_out, DURABLE_STORED);
    creds_end_writes(req);
    changed->rc = changed->copied < 0 ? (int)changed->copied : 0;
    changed_end(changed);
}
