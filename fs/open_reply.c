/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/open_reply.h"

#include <linux/fuse.h>
#include <string.h>

/* Of Linux 6.9. Debian 12's linux/fuse.h ends with 6.1. */
#define INIT_PASSTHROUGH (1u << (37 - 32)) /* FUSE_PASSTHROUGH, in flags2 */
#define OPEN_PASSTHROUGH (1u << 7)         /* FOPEN_PASSTHROUGH */

/* fuse_open_out, whose last field was padding once. */
struct opened {
    uint64_t fh;
    uint32_t flags;
    int32_t backing;
};
_Static_assert(sizeof(struct opened) == sizeof(struct fuse_open_out), "the kernel's struct fuse_open_out");

struct created {
    struct fuse_entry_out entry;
    struct opened opened;
};
_Static_assert(sizeof(struct created) == sizeof(struct fuse_entry_out) + sizeof(struct fuse_open_out),
               "no padding");

/* How many filesystems may be stacked, the mount included: the data directory's may not be a stack itself.
 * The field (max_stack_depth) follows flags2. */
#define STACK_DEPTH 1u
#define STACK_DEPTH_AT (offsetof(struct fuse_init_out, flags2) + sizeof(uint32_t))

bool open_reply_is_offered(const void *init, size_t size)
{
    const struct fuse_in_header *in = init;
    const struct fuse_init_in *offer = (const void *)(in + 1);

    return size >= sizeof(*in) + offsetof(struct fuse_init_in, flags2) + sizeof(offer->flags2) &&
           in->opcode == FUSE_INIT && offer->flags & FUSE_INIT_EXT && offer->flags2 & INIT_PASSTHROUGH;
}

bool open_reply_take_offer(void *answer, size_t size)
{
    struct fuse_out_header *out = answer;
    struct fuse_init_out *init = (void *)(out + 1);
    const uint32_t depth = STACK_DEPTH;

    if (size < sizeof(*out) + STACK_DEPTH_AT + sizeof(depth) || out->error)
        return false;
    if (!(init->flags & FUSE_INIT_EXT))
        init->flags2 = 0;
    init->flags |= FUSE_INIT_EXT;
    init->flags2 |= INIT_PASSTHROUGH;
    memcpy((char *)init + STACK_DEPTH_AT, &depth, sizeof(depth));
    return true;
}

/* The flags are those that the kernel allows with FOPEN_PASSTHROUGH; it has no pages to keep. */
static struct opened passed(const struct handle *handle, const struct fuse_file_info *fi)
{
    struct opened opened = {.fh = fi->fh, .flags = OPEN_PASSTHROUGH, .backing = handle->backing};

    if (fi->direct_io)
        opened.flags |= FOPEN_DIRECT_IO;
    if (fi->noflush)
        opened.flags |= FOPEN_NOFLUSH;
    return opened;
}

int open_reply(fuse_req_t req, const struct fuse_file_info *fi)
{
    const struct handle *handle = handle_of(fi);

    if (!handle->passed)
        return fuse_reply_open(req, fi);
    struct opened opened = passed(handle, fi);
    return fuse_reply_buf(req, (const char *)&opened, sizeof(opened));
}

static void split_seconds(double seconds, uint64_t *whole_out, uint32_t *nanoseconds_out)
{
    *whole_out = (uint64_t)seconds;
    *nanoseconds_out = (uint32_t)((seconds - (double)*whole_out) * 1e9);
}

static struct fuse_attr attributes(const struct stat *st)
{
    return (struct fuse_attr){
        .ino = st->st_ino,
        .size = (uint64_t)st->st_size,
        .blocks = (uint64_t)st->st_blocks,
        .atime = (uint64_t)st->st_atim.tv_sec,
        .mtime = (uint64_t)st->st_mtim.tv_sec,
        .ctime = (uint64_t)st->st_ctim.tv_sec,
        .atimensec = (uint32_t)st->st_atim.tv_nsec,
        .mtimensec = (uint32_t)st->st_mtim.tv_nsec,
        .ctimensec = (uint32_t)st->st_ctim.tv_nsec,
        .mode = st->st_mode,
        .nlink = (uint32_t)st->st_nlink,
        .uid = st->st_uid,
        .gid = st->st_gid,
        .blksize = (uint32_t)st->st_blksize,
    };
}

int open_reply_create(fuse_req_t req, const struct fuse_entry_param *entry, const struct fuse_file_info *fi)
{
    const struct handle *handle = handle_of(fi);
    struct created created = {0};

    if (!handle->passed)
        return fuse_reply_create(req, entry, fi);
    created.entry.nodeid = entry->ino;
    created.entry.generation = entry->generation;
    split_seconds(entry->entry_timeout, &created.entry.entry_valid, &created.entry.entry_valid_nsec);
    split_seconds(entry->attr_timeout, &created.entry.attr_valid, &created.entry.attr_valid_nsec);
    created.entry.attr = attributes(&entry->attr);
    created.opened = passed(handle, fi);
    return fuse_reply_buf(req, (const char *)&created, sizeof(created));
}
