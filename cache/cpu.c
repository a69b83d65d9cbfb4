/* SPDX-License-Identifier: Apache-2.0 */
/* What CPUs do to a tracked file: the FUSE handlers' half of the rules (docs/design.md, section 5, rules 3,
 * 4, 6 and 8). Nothing here waits for a client; and only these wait for a kernel: a write of what may be
 * stale in it (some seconds, cache/heal.h), and, with several nodes, a flush or a sync (30 s,
 * cache/kernels.h). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fsuid.h"
#include "base/read.h"
#include "cache/agent.h"
#include "cache/collect.h"
#include "cache/cpu.h"
#include "cache/fit.h"
#include "cache/internal.h"
#include "cache/passed.h"
#include "cache/scan.h"
#include "io/protocol.h"

struct each_leaf {
    struct cache_file *file;
    uint64_t first, count; /* pages */
    unsigned flags;
    leaf_fn *fn;
    int error;
};

static void one_leaf(struct leaf *leaf, void *context)
{
    struct each_leaf *each = context;
    page_mask pages = page_range_mask(leaf->number, each->first, each->count);

    if (pages && !each->error)
        each->error = each->fn(each->file, leaf, pages, each->flags);
}

int cpu_each_leaf(struct cache_file *file, off_t offset, uint64_t length, unsigned flags, leaf_fn *fn)
{
    /* Past the end of the file nobody holds anything, however long the range is. */
    if (!length || !file->index.leaves.count || offset >= file->size)
        return 0;
    if (length > (uint64_t)(file->size - offset))
        length = (uint64_t)(file->size - offset);
    uint64_t first = (uint64_t)offset >> GAIA_PAGE_SHIFT;
    uint64_t last = ((uint64_t)offset + length - 1) >> GAIA_PAGE_SHIFT;
    struct each_leaf each = {
        .file = file, .first = first, .count = last - first + 1, .flags = flags, .fn = fn};

    /* Nor is a hole looked at leaf by leaf, which may be of any length. */
    if ((last >> LEAF_SHIFT) - (first >> LEAF_SHIFT) >= file->index.leaves.count) {
        index_each(&file->index, one_leaf, &each);
        return each.error;
    }
    for (uint64_t number = first >> LEAF_SHIFT; number <= last >> LEAF_SHIFT && !each.error; number++) {
        struct leaf *leaf = index_find(&file->index, number);
        if (leaf)
            one_leaf(leaf, &each);
    }
    return each.error;
}

int cpu_lock(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    if (!file->given_up)
        return 0;
    pthread_mutex_unlock(&file->lock);
    return -EIO;
}

static void mark_touched(struct leaf *leaf, page_mask pages)
{
    struct leaf_copy *copy;

    if (!(leaf->released & pages))
        return;
    SLIST_FOREACH (copy, &leaf->copies, link)
        copy->touched |= copy->releasing & pages;
}

/* The kernel asks for pages that it does not hold, so pending and releasing bytes may go into the home copy
 * now. A read that may be direct proves nothing of what the kernel holds: it collects what is pending (which
 * the kernel never holds), and a page being released is invalidated once more; but for one that surely is
 * direct, which leaves the kernel as it is. */
static int before_read(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags)
{
    int error =
        collect_pages(file, leaf, pages, flags & CACHE_IO_DIRECT ? COLLECT_PENDING : COLLECT_RELEASING);

    if (flags & CACHE_IO_UNCACHED)
        return error;
    if (flags & CACHE_IO_DIRECT)
        mark_touched(leaf, pages);
    leaf->kernel |= pages;
    heal_refilled(leaf, pages);
    return error;
}

/* A device's copy that has the home's bytes: of use when the host's memory has not. Lock held. */
static struct leaf_copy *find_peer(struct leaf *leaf, page_mask bit)
{
    struct leaf_copy *copy;

    if (leaf->cpu_modified & bit)
        return NULL;
    SLIST_FOREACH (copy, &leaf->copies, link) {
        /* Where nothing tells of stores, nobody knows what a copy has. */
        if (copy->replica->scans || !(copy->present & ~copy->busy & ~copy->twin & bit))
            continue;
        unsigned page = (unsigned)__builtin_ctzll(bit);
        if (!leaf_has_versions(leaf, page))
            return copy;
        struct gaia_page_versions versions = leaf_page_versions(leaf, page);
        if (!gaia_rule_stale(&versions, copy->replica->entry, leaf_copy_page_vector(copy, page)))
            return copy;
    }
    return NULL;
}

/* Whether a device has the page that holds offset. Lock held. */
static struct leaf_copy *peer_at(struct cache_file *file, off_t offset)
{
    uint64_t page = (uint64_t)offset >> GAIA_PAGE_SHIFT;
    struct leaf *leaf = index_find(&file->index, page >> LEAF_SHIFT);

    return leaf ? find_peer(leaf, page_bit(page)) : NULL;
}

/* Bytes at offset from a device's copy that has them: what is left of a page, or whole pages for as long as
 * the copy has them. How many, or a negative errno. Lock held. */
static ssize_t read_peer(struct cache_file *file, struct leaf_copy *copy, uint8_t *buffer, size_t length,
                         off_t offset)
{
    uint64_t page = (uint64_t)offset >> GAIA_PAGE_SHIFT;
    size_t from = (size_t)offset & (GAIA_PAGE_SIZE - 1);
    void *places[GAIA_FETCH_MAX];
    uint8_t bytes[GAIA_PAGE_SIZE];
    unsigned count = 0;

    while (!from && count < GAIA_FETCH_MAX && (count + 1) * GAIA_PAGE_SIZE <= length &&
           (!count || peer_at(file, offset + (off_t)(count * GAIA_PAGE_SIZE)) == copy)) {
        places[count] = buffer + count * GAIA_PAGE_SIZE;
        count++;
    }
    bool part = !count;
    if (part)
        places[count++] = bytes;
    int error = replica_fetch_run(copy->replica, page, count, places);
    if (error)
        return error;
    replica_count(copy->replica, peer_reads, count);
    replica_count(copy->replica, pages_out, count);
    if (!part)
        return (ssize_t)count * (ssize_t)GAIA_PAGE_SIZE;
    length = GAIA_PAGE_SIZE - from < length ? GAIA_PAGE_SIZE - from : length;
    memcpy(buffer, bytes + from, length);
    return (ssize_t)length;
}

/* Peer caching: copy the bytes of [offset, offset + length) that lie in front and that devices have, and say
 * how many. When there are none, *gap_out says how many are to be read elsewhere before it is worth asking
 * again. */
static size_t read_peers(struct cache_file *file, uint8_t *buffer, size_t length, off_t offset,
                         size_t *gap_out)
{
    size_t done = 0, gap = 0;
    struct leaf_copy *copy;

    pthread_mutex_lock(&file->lock);
    if (!file_unchanged(file)) { /* by whom no copy knows of: another mount, or somebody behind ours */
        pthread_mutex_unlock(&file->lock);
        *gap_out = length;
        return 0;
    }
    if (offset >= file->size)
        length = 0;
    else if (length > (uint64_t)(file->size - offset))
        length = (size_t)(file->size - offset);
    while (done < length && (copy = peer_at(file, offset + (off_t)done))) {
        ssize_t n = read_peer(file, copy, buffer + done, length - done, offset + (off_t)done);
        if (n < 0) { /* what can't be fetched is read elsewhere: the home has the same bytes */
            gap = length;
            break;
        }
        done += (size_t)n;
    }
    while (!done && gap < length && !peer_at(file, offset + (off_t)gap))
        gap += GAIA_PAGE_SIZE - ((size_t)(offset + (off_t)gap) & (GAIA_PAGE_SIZE - 1));
    pthread_mutex_unlock(&file->lock);
    *gap_out = gap;
    return done;
}

/* What is not in the host's memory may be on a device: run by run from the devices that have it, the rest
 * from storage. */
static ssize_t read_anywhere(struct cache_file *file, int fd, uint8_t *buffer, size_t length, off_t offset)
{
    size_t done = 0, gap;

    while (done < length) {
        size_t peers = read_peers(file, buffer + done, length - done, offset + (off_t)done, &gap);
        done += peers;
        if (peers)
            continue;
        size_t want = gap && gap < length - done ? gap : length - done;
        ssize_t n = read_whole(fd, buffer + done, want, offset + (off_t)done);
        if (n < 0)
            return n;
        done += (size_t)n;
        if ((size_t)n < want) /* the end of the file */
            break;
    }
    return (ssize_t)done;
}

#define READS_MAX 4u

/* Of several nodes: what others change while a READ reads is in what it has read, or is not; the twin that
 * the reader has got for it is older. What the reader would store beside it would be merged by that twin, and
 * undo a later change. So it is read again, under new twins; at last under the lock. */
static ssize_t read_again(struct cache_file *file, int fd, void *buffer, size_t length, off_t offset,
                          unsigned node, ssize_t got)
{
    int error = 0;

    for (unsigned reads = 1; got >= 0 && !error; reads++) {
        pthread_mutex_lock(&file->lock);
        bool again = kernels_overtaken(file, node, offset, length);
        if (again)
            error = kernels_given(file, node, offset, length);
        if (again && !error && reads == READS_MAX)
            got = read_whole(fd, buffer, length, offset);
        if (file->announced == ANNOUNCING && !error && got > 0 && (!again || reads == READS_MAX))
            kernels_wrote(file, node, buffer, (size_t)got, offset);
        pthread_mutex_unlock(&file->lock);
        if (!again || reads == READS_MAX)
            break;
        if (!error)
            got = read_whole(fd, buffer, length, offset);
    }
    kernels_settle(file); /* a READ may have collected what others hold */
    return error ? error : got;
}

ssize_t cache_file_read(struct cache_file *file, int fd, void *buffer, size_t length, off_t offset,
                        unsigned flags, struct cache_read *read_out)
{
    if (file->far) {
        ssize_t read = agent_read(file, buffer, length, offset, flags, read_out);
        if (!(flags & CACHE_IO_UNCACHED)) /* of what this node's kernel could not write back */
            durable_read(file->durable, offset, (off_t)length);
        return read;
    }
    pthread_mutex_lock(&file->lock);
    reads_begin(file, read_out, flags >> 8, offset, length);
    heal_reread(file, offset, length, flags);
    int error = file->given_up ? -EIO : cpu_each_leaf(file, offset, length, flags, before_read);
    if (!error && !(flags & CACHE_IO_UNCACHED))
        error = kernels_given(file, flags >> 8, offset, length);
    bool resident = file->index.leaves.count && !file->passed; /* else what devices have may be older */
    pthread_mutex_unlock(&file->lock);
    if (error)
        return error;
    ssize_t got = resident && !hosted_all(fd, file->hosted, offset, length)
                      ? read_anywhere(file, fd, buffer, length, offset)
                      : read_whole(fd, buffer, length, offset);
    if (file->cache->nodes && !(flags & CACHE_IO_UNCACHED))
        got = read_again(file, fd, buffer, length, offset, flags >> 8, got);
    if (!(flags & CACHE_IO_UNCACHED))
        durable_read(file->durable, offset, (off_t)length);
    return got;
}

void cache_file_read_end(struct cache_file *file, struct cache_read *read)
{
    if (file->far) {
        agent_read_end(file, read);
        return;
    }
    reads_end(file, read);
}

void cache_file_behind(struct cache_file *file)
{
    if (file->far)
        return;
    pthread_mutex_lock(&file->lock);
    file->behind++;
    pthread_mutex_unlock(&file->lock);
}

void cache_file_drop_begin(struct cache_file *file)
{
    pthread_mutex_lock(&file->lock);
    heal_window_open_node(file, 0, 0, UINT64_MAX);
    pthread_mutex_unlock(&file->lock);
}

void cache_file_drop_end(struct cache_file *file, uint64_t opened)
{
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    if (opened > file->dropped)
        file->dropped = opened;
    pthread_mutex_unlock(&file->lock);
}

int cache_file_flush(struct cache_file *file)
{
    return file->far ? agent_flush(file) : kernels_flush(file);
}

off_t cache_file_said_size(struct cache_file *file, bool *cut_out)
{
    return file->far ? agent_size(file, cut_out) : -1;
}

void cache_file_tell_size(struct cache_file *file)
{
    if (file->far)
        agent_tell_size(file);
}

uint64_t cache_file_opened(struct cache_file *file)
{
    if (file->far) {
        agent_opened(file);
        return 1;
    }
    pthread_mutex_lock(&file->lock);
    /* What an acquire or a map has found is no news to its times, but to the kernel. */
    if (file_check_behind(file))
        file->behind++; /* nobody knows */
    uint64_t behind = file->behind != file->dropped ? file->behind : 0;
    if (behind) /* the kernel is about to drop its pages: a WRITE may be on its way */
        heal_window_reopen(file, 0);
    bool emptied = !file->index.leaves.count && file->pinned;
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
    if (emptied)
        file_unpin_if_empty(file);
    return behind;
}

/* Counts those of the pages that devices have stored to, too. Their release had better have the kernel write
 * all of them back first: it does that in large pieces, but page by page where it has to drop them. Lock
 * held. */
static void note_crossed(struct leaf *leaf, page_mask pages)
{
    struct leaf_copy *copy;

    SLIST_FOREACH (copy, &leaf->copies, link)
        if (pages & copy_stored(copy))
            atomic_fetch_add(&copy->replica->state->crossed,
                             (unsigned)__builtin_popcountll(pages & copy_stored(copy)));
}

/* The kernel has the pages, and what it has is about to be newer than what devices have. */
static void note_change(struct leaf *leaf, page_mask pages)
{
    leaf->kernel |= pages;
    file_cpu_modified(leaf, pages);
}

static int before_write(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags)
{
    if (!(flags & CACHE_IO_WRITEBACK)) {
#ifndef GAIAFS_BREAK_WRITE_NO_COLLECT
        int error = collect_pages(file, leaf, pages, COLLECT_PENDING);
        if (error)
            return error;
#else
        (void)file;
#endif
        mark_touched(leaf, pages);
    } else {
        note_crossed(leaf, pages);
    }
    int kept = scan_keep_twins(leaf, pages);
    if (kept)
        return kept;
#ifdef GAIAFS_BREAK_WRITEBACK_COLLECTS
    if (flags & CACHE_IO_WRITEBACK)
        collect_pages(file, leaf, pages, COLLECT_RELEASING);
#endif
    note_change(leaf, pages);
    return 0;
}

/* Of pages that are replaced whole. What devices have released of one that can't be read stays with them. */
static int before_replacing(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags)
{
    int error = collect_pages(file, leaf, pages, COLLECT_PENDING);

    (void)flags;
    if (error && error != -EIO)
        return error;
    mark_touched(leaf, pages);
    error = scan_keep_twins(leaf, pages);
    if (!error)
        note_change(leaf, pages);
    return error;
}

/* The pages that lie in the range whole: false, if there are none. */
static bool whole_pages(off_t offset, uint64_t length, off_t *start_out, off_t *end_out)
{
    const uint64_t mask = ~(uint64_t)(GAIA_PAGE_SIZE - 1);

    *start_out = (off_t)(((uint64_t)offset + ~mask) & mask);
    *end_out = (off_t)(((uint64_t)offset + length) & mask);
    return *start_out < *end_out;
}

int cpu_before_change(struct cache_file *file, off_t offset, uint64_t length, unsigned flags,
                      bool *unread_out)
{
    int error = cpu_each_leaf(file, offset, length, flags, before_write);
    off_t start, end;

    *unread_out = false;
    if (error != -EIO || flags & CACHE_IO_WRITEBACK || !whole_pages(offset, length, &start, &end))
        return error;
    *unread_out = true;
    error = cpu_each_leaf(file, offset, (uint64_t)(start - offset), flags, before_write);
    if (!error)
        error = cpu_each_leaf(file, end, (uint64_t)offset + length - (uint64_t)end, flags, before_write);
    return error ? error : cpu_each_leaf(file, start, (uint64_t)(end - start), flags, before_replacing);
}

static int collect_replaced(struct cache_file *file, struct leaf *leaf, page_mask pages, unsigned flags)
{
    (void)flags;
    return collect_pages(file, leaf, pages, COLLECT_REPLACED);
}

int cpu_replaced(struct cache_file *file, off_t offset, uint64_t length)
{
    off_t start, end;

    if (!whole_pages(offset, length, &start, &end))
        return 0;
    return cpu_each_leaf(file, start, (uint64_t)(end - start), 0, collect_replaced);
}

void cpu_look_at_size(struct cache_file *file, bool unchanged)
{
    struct stat st;

    if (fstat(file->fd, &st)) {
        file->tail_cleared = false;
        return;
    }
    file_resized(file, st.st_size);
    if (unchanged && !claim_is_shared(file)) /* file_stamp() */
        file->ctime = st.st_ctim;
}

/* append: behind what others have appended in the data directory since offset was the end. */
static int write_all(int fd, const void *buffer, size_t length, off_t offset, bool append, size_t *done)
{
    while (*done < length) {
        struct iovec rest = {.iov_base = (uint8_t *)(uintptr_t)buffer + *done, .iov_len = length - *done};
        fsuid_begin_write(fd);
        ssize_t n = append ? pwritev2(fd, &rest, 1, offset + (off_t)*done, RWF_APPEND)
                           : pwrite(fd, rest.iov_base, rest.iov_len, offset + (off_t)*done);
        fsuid_end_write();
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? -errno : -EIO;
        *done += (size_t)n;
    }
    return 0;
}

/* Under the bytes of WRITEs that are being healed. */
static int write_healed(struct cache_file *file, int fd, const uint8_t *buffer, size_t length, off_t offset,
                        unsigned node, size_t *done)
{
    uint8_t healed[GAIA_PAGE_SIZE], merged[GAIA_PAGE_SIZE];
    int error = 0;

    if (LIST_EMPTY(&file->window.heals) && !file->kernels.old && !file->kernels.late)
        return write_all(fd, buffer, length, offset, false, done);
    while (!error && *done < length) {
        off_t at = offset + (off_t)*done;
        size_t room = GAIA_PAGE_SIZE - (size_t)at % GAIA_PAGE_SIZE, part = 0;
        size_t n = length - *done < room ? length - *done : room;
        const uint8_t *bytes = heal_merge(file, node, buffer + *done, at, n, healed), *put = bytes;
        error = kernels_merge(file, node, bytes, at, n, merged, &put);
        if (!error)
            error = write_all(fd, put, n, at, false, &part);
        kernels_wrote_back(file, node, bytes, part, at);
        heal_written_back(file, node, put, part, at);
        *done += part;
    }
    return error;
}

static int write_back(struct cache_file *file, int fd, const uint8_t *buffer, size_t length, off_t offset,
                      unsigned node, size_t *done)
{
    int error = 0;

    heal_tidy(file);
    kernels_tidy(file);
    if (node) /* another's kernel is told by itself what was changed (cache/kernels.h) */
        return write_healed(file, fd, buffer, length, offset, node, done);
    while (!error && *done < length) {
        size_t skipped, part = 0,
                        n = overrule_next(file->durable, offset + (off_t)*done, length - *done, &skipped);
        *done += skipped;
        if (n > 0)
            error = write_healed(file, fd, buffer + *done, n, offset + (off_t)*done, node, &part);
        *done += part;
    }
    return error;
}

/* A kernel writes back what lies before the end of the file as it knows it: another node, or mount, may have
 * cut the file since. What is behind the end now is no part of it (rule 8), and must not make it longer
 * again. Lock held. */
static size_t part_of_file(struct cache_file *file, size_t length, off_t offset)
{
    struct stat st;

    if (!(file->cache->nodes || claim_is_shared(file)) || offset + (off_t)length <= file->size ||
        fstat(file->fd, &st) || offset + (off_t)length <= st.st_size)
        return length;
    return offset < st.st_size ? (size_t)(st.st_size - offset) : 0;
}

/* A WRITE under way. */
struct cpu_write {
    int fd;
    const void *buffer;
    size_t length;
    off_t offset; /* where the bytes belong, */
    off_t wished; /* and where their kernel has them: elsewhere than an append goes */
    unsigned flags;
    size_t done; /* bytes that were written, also where there was an error */
    struct heal *heal, *misplaced;
};

/* The change itself, and what the rules ask for around it: first what devices have released is collected, and
 * whoever needs the old bytes as a twin gets them; afterwards heals and twins of kernels take the new ones.
 * Lock held. Without it heal_finish() is due for w->heal and w->misplaced, if they are not NULL. */
static int apply_write(struct cache_file *file, struct cpu_write *w)
{
    bool writes_back = w->flags & CACHE_IO_WRITEBACK;
    bool plain = !(w->flags & (CACHE_IO_WRITEBACK | CACHE_IO_DIRECT));
    unsigned node = w->flags >> 8;
    bool unread = false;
    int error = 0;

    if (plain)
        heal_written(file, node, w->wished, w->length);
#ifndef GAIAFS_BREAK_NO_HEAL
    if (!writes_back)
        error = heal_start(file, w->buffer, w->length, w->offset, w->flags, &w->heal);
#endif
    if (!error && w->offset != w->wished)
        error = heal_misplaced(file, w->buffer, w->length, w->wished, w->flags, &w->misplaced);
    if (!error)
        error = cpu_before_change(file, w->offset, w->length, w->flags, &unread);
    if (!error)
        error = kernels_change(file, node, w->offset, w->length);
    if (!error)
        error = file_grows(file, w->offset + (off_t)w->length);
    if (!error)
        error = writes_back
                    ? write_back(file, w->fd, w->buffer, w->length, w->offset, node, &w->done)
                    : write_all(w->fd, w->buffer, w->length, w->offset, w->flags & CACHE_IO_APPEND, &w->done);
    if (!writes_back)
        heal_applied(file, w->heal, w->buffer, w->done, w->offset);
    int kept = unread ? cpu_replaced(file, w->offset, w->done) : 0;
    if (plain)
        kernels_wrote(file, node, w->buffer, w->done, w->offset);
    if (kept) /* what devices have released before may come over it yet */
        w->done = 0;
    return kept ? kept : error;
}

ssize_t cache_file_write(struct cache_file *file, int fd, const void *buffer, size_t length, off_t offset,
                         unsigned flags)
{
    bool writes_back = flags & CACHE_IO_WRITEBACK;

    /* Discarded is what this node's kernel holds; others know of theirs themselves. */
    if (file->given_up || (file->discards && writes_back && !(flags >> 8)))
        return -EIO;
    if (file->far)
        return agent_write(file, buffer, length, offset, flags);
    struct cpu_write w = {
        .fd = fd, .buffer = buffer, .length = length, .offset = offset, .wished = offset, .flags = flags};
    struct cache *cache = file->cache;
    struct stat st;

    int error = cpu_lock(file);
    if (error)
        return error;
    if (writes_back && kernels_refuse(file, flags >> 8)) {
        pthread_mutex_unlock(&file->lock);
        return -EIO;
    }
    int end_fd = file->writable ? file->fd : fd; /* who has it locked must be able to write */
    bool holds_end = writes_back && claim_is_shared(file) && claim_hold_end(end_fd, &file->claim.end_missed);
    bool unchanged = file_unchanged(file);
    passed_look_at_size(file);
    if (flags & CACHE_IO_APPEND && !writes_back && !fstat(fd, &st))
        w.offset = st.st_size;
    if (writes_back)
        w.length = part_of_file(file, length, offset);
    error = apply_write(file, &w);
    cpu_look_at_size(file, unchanged);
    if (holds_end)
        claim_let_end_go(end_fd);
    if (writes_back && w.done < w.length)
        kernels_failed(file, flags >> 8, error ? error : -EIO);
    bool emptied = !file->index.leaves.count && file->pinned;
    pthread_mutex_unlock(&file->lock);
    if (w.heal)
        heal_finish(cache, w.heal);
    if (w.misplaced)
        heal_finish(cache, w.misplaced);
    fit_frames(file);
    kernels_settle(file);
    if (emptied)
        file_unpin_if_empty(file);
    if (!error && w.done == w.length) /* what of a write-back is behind the end of the file is done, too */
        return (ssize_t)length;
    return w.done ? (ssize_t)w.done : error;
}

int cache_file_sync(struct cache_file *file, int fd, bool data_only, struct durable_seen *seen)
{
    uint64_t asked = durable_asked(file->durable);
    int error, synced;

    if (file->given_up)
        return -EIO;
    if (file->far) {
        error = agent_sync(file, data_only);
        if (error && cache_file_is_lost(file)) /* the same question to its next home tells what came of it */
            return error;
    } else {
        pthread_mutex_lock(&file->lock);
        error = collect_all(file);
        bool given_up = file->given_up; /* what was to be collected may have been dropped before */
        pthread_mutex_unlock(&file->lock);
        if (given_up)
            return -EIO;
    }
    if (error && file->far)
        durable_fail_elsewhere(file->durable, error);
    else if (error)
        durable_fail(file->durable, error);
    /* Also after a failed collect: what could be written shall be durable. */
    synced = fd >= 0 ? durable_sync(file->durable, fd, data_only, seen) : durable_told(file->durable, seen);
    if (!error && (file->far || !synced))
        durable_asked_synced(file->durable, asked);
    int flushed = file->far ? 0 : kernels_flush(file);
    return error ? error : synced ? synced : flushed;
}
