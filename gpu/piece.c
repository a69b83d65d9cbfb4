/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/piece.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/kernel.h"
#include "gpu/driver.h"
#include "gpu/gaia.h"
#include "gpu/session.h"
#include "gpu/stream.h"

#define PAGE 4096u

static bool writeback_lags; /* a kernel before 6.16: see wait_for_write_backs() */

void piece_begin(void)
{
    writeback_lags = kernel_writes_back_late();
}

int piece_kernel_error(void)
{
    return errno == ECONNABORTED ? -ENOTCONN : -errno;
}

int piece_check_range(const void *addr, size_t *length)
{
    if ((uintptr_t)addr % PAGE || !*length || *length > SIZE_MAX - PAGE)
        return -EINVAL;
    *length = (*length + PAGE - 1) / PAGE * PAGE;
    return (uintptr_t)addr > UINTPTR_MAX - *length ? -EINVAL : 0;
}

int piece_each(void *addr, size_t length, struct gaia_device *device, bool any_device,
               int (*fn)(struct gaia_piece *piece))
{
    struct gaia_piece *pieces;
    size_t count;

    if (!any_device && !device)
        return -EINVAL;
    int error = piece_check_range(addr, &length);
    if (!error)
        error = gaia_mapping_find(addr, length, device, &pieces, &count);
    if (error)
        return error;
    for (size_t i = 0; i < count && !error; i++)
        error = fn(&pieces[i]);
    gaia_pieces_free(pieces, count);
    return error;
}

/* What it says of write-backs: that there is no daemon any more, or what the data directory has said, which
 * may be any word but that one (fs/request.c). */
static int write_back_error(void)
{
    int error = piece_kernel_error();

    switch (error) {
    case -EDQUOT:
    case -ENOMEM:
    case -ENOSPC:
    case -ENOTCONN:
        return error;
    default:
        return -EIO;
    }
}

/* Before 6.16 the kernel writes its dirty pages back through copies, and what made it do so may return while
 * one is on its way. A copy has all bytes of its page: it must not arrive after a collect that no read asked
 * for. Closing a descriptor waits for all of the file: one that no child of a fork keeps. */
static int wait_for_write_backs(const struct gaia_piece *piece)
{
    const struct gaia_mapping *mapping = piece->mapping;

    if (!writeback_lags)
        return 0;
    struct descriptors *copy = calloc(1, sizeof *copy);
    int error = -ENOMEM;
    if (copy) {
        descriptors_begin(copy);
        error = descriptors_copy(copy, mapping->fd);
    }
    if (!error)
        descriptors_end(copy, mapping->session->gone);
    else if (!fdatasync(mapping->fd)) /* that waits for them, too */
        error = 0;
    else
        error = write_back_error();
    free(copy);
    return error;
}

/* CPU stores through mappings of any process reach the daemon: the kernel writes its dirty pages. Once there
 * is no daemon it throws them away, and sync_file_range() says nothing of it: that the daemon lived when it
 * returned is for the caller to see, from an answer or from gaia_session_alive(). */
static int flush_cpu(const struct gaia_piece *piece)
{
    if (sync_file_range(piece->mapping->fd, (off_t)piece->offset, (off_t)piece->length,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER))
        return write_back_error();
    return wait_for_write_backs(piece);
}

/* Whether a store may have been made to the piece that is not released. The device has done what it was given
 * to do before. Of one of whose stores nothing tells, `stored` has all pages: then we look for them, and the
 * daemon is asked if there are any. Asked, it would look at the same digests, and do nothing more for a page
 * that is what it was granted with, but for what `unfound` counts. Which is looked at twice. Before: a page
 * of which nobody knows what it was granted with may be granted anew while we search, and its digest was
 * looked at before. After: what was stored is perhaps being released, and collected already, so that its page
 * is not found; but others are still being told of it, and the call must not return before they have been. */
static bool may_be_stored(const struct gaia_piece *piece)
{
    struct gaia_mapping *mapping = piece->mapping;
    struct gaia_shared_state *state = mapping->state;

    if (!atomic_load(&state->stored))
        return false;
    if (!mapping->driver->is_untouched || stream_is_here() || atomic_load(&state->unfound))
        return true;
    uint64_t offset = (uint64_t)((uint8_t *)piece->address - (uint8_t *)mapping->address);
    return !mapping->driver->is_untouched(mapping, offset, piece->length) || atomic_load(&state->unfound);
}

/* Whether there is nothing to do: nothing can have put a page of the mapping out of date since the last
 * acquire of the whole mapping, and no store to the piece waits to be released. */
static bool unchanged(const struct gaia_piece *piece)
{
    struct gaia_mapping *mapping = piece->mapping;
    struct gaia_shared_state *state = mapping->state;
    uint64_t seen = atomic_load(&mapping->changes_seen);

    if (!seen || atomic_load(&state->changes) != seen)
        return false;
    if (mapping->driver->forget && atomic_load(&state->releases) != atomic_load(&mapping->releases_seen))
        return false;
    /* Last, as it may take a search. */
    return clock_now_ns() - atomic_load(&state->checked_ns) < atomic_load(&state->timeout_ns) &&
           !may_be_stored(piece);
}

/* What kernels have stored above the device's copy is given to it. A touch of that which was refused once is
 * so until it is tried again, as an acquire does; but that comes after this. So it is tried at once, and
 * where that is of no use, with the next call. */
static int collect(struct gaia_mapping *mapping)
{
    const struct gaia_driver *driver = mapping->driver;
    bool has_failed = atomic_load(&mapping->collect_failed);

    if (has_failed)
        gaia_mapping_refresh(mapping);
    int error = driver->collect(mapping);
    if (error == -EIO && !has_failed && !mapping->session->dead) {
        gaia_mapping_refresh(mapping);
        error = driver->collect(mapping);
    }
    atomic_store(&mapping->collect_failed, error != 0);
    return error;
}

/* What the device was given to do before this call has been done, and what it has stored is known. */
static int wait_for_device(struct gaia_mapping *mapping)
{
    const struct gaia_driver *driver = mapping->driver;
    int error = driver->settle && !stream_is_here() ? driver->settle(mapping->device) : 0;

    return !error && driver->collect ? collect(mapping) : error;
}

/* After an acquire that the daemon has done: what kernels have of the piece that is above the device's copy.
 */
static int forget(struct gaia_piece *piece, uint64_t changes)
{
    struct gaia_mapping *mapping = piece->mapping;

    if (!mapping->driver->forget)
        return 0;
    /* Taken before, so that a release from now on is found next time. */
    uint64_t releases = atomic_load(&mapping->state->releases);
    if (changes == atomic_load(&mapping->changes_seen) && releases == atomic_load(&mapping->releases_seen))
        return 0;
    int error = mapping->driver->forget(
        mapping, (uint64_t)((uint8_t *)piece->address - (uint8_t *)mapping->address), piece->length);
    if (!error && piece->length == mapping->length)
        atomic_store(&mapping->releases_seen, releases);
    return error;
}

int piece_acquire_settled(struct gaia_piece *piece)
{
    struct gaia_mapping *mapping = piece->mapping;

    int error = mapping->session->dead ? -ENOTCONN : flush_cpu(piece);
    if (error)
        return error;
    if (unchanged(piece))
        return gaia_session_alive(mapping->session) ? 0 : -ENOTCONN;
    struct gaia_message message = {
        .op = GAIA_OP_ACQUIRE, .map = mapping->map, .offset = piece->offset, .bytes = piece->length};
    error = gaia_session_call(mapping->session, &message, NULL);
    if (error)
        return error;
    /* Each of two acquires that hear of it: neither is over before the touch is served again. */
    if (message.value[1] != atomic_load(&mapping->refreshed) && mapping->driver->refresh) {
        gaia_mapping_refresh(mapping);
        atomic_store(&mapping->refreshed, message.value[1]);
    }
    error = forget(piece, message.value[0]);
    if (error)
        return error;
    if (piece->length == mapping->length)
        atomic_store(&mapping->changes_seen, message.value[0]);
    return 0;
}

int piece_acquire(struct gaia_piece *piece)
{
    int error = piece->mapping->session->dead ? -ENOTCONN : wait_for_device(piece->mapping);

    return error ? error : piece_acquire_settled(piece);
}

/* Pages that CPUs have stored to, and the device, are dropped by the kernel when they are released, which
 * writes each back by a request of its own first (27 us of 4 KiB). Asked for, it writes up to a MiB by one: 6
 * to 11 ms for 16 MiB instead of 110. Asked where it was of use last time, as the range may be long and have
 * other pages that somebody stores to all the time. What comes of it is for who asks: a failed write-back is
 * told by fsync() as any other. */
#define CROSSED_MIN 8u
#define CROSSED_PART 64u /* of the range's pages: fewer are not worth what else may be dirty in it */
static void write_back_crossed(const struct gaia_piece *piece)
{
    struct gaia_mapping *mapping = piece->mapping;
    uint64_t crossed = atomic_load(&mapping->state->crossed);

    uint64_t since = crossed - atomic_exchange(&mapping->crossed_seen, crossed);
    /* Before 6.16 one would have to wait for the whole file: see wait_for_write_backs(). */
    if (writeback_lags || since < CROSSED_MIN || since < piece->length / PAGE / CROSSED_PART)
        return;
    sync_file_range(mapping->fd, (off_t)piece->offset, (off_t)piece->length, SYNC_FILE_RANGE_WRITE);
}

int piece_release(struct gaia_piece *piece)
{
    struct gaia_mapping *mapping = piece->mapping;
    struct gaia_message message = {
        .op = GAIA_OP_RELEASE, .map = mapping->map, .offset = piece->offset, .bytes = piece->length};

    if (mapping->session->dead)
        return -ENOTCONN;
    if (!mapping->writable)
        return 0;
    int error = wait_for_device(mapping);
    if (error)
        return error;
    if (!atomic_load(&mapping->state->stored)) /* no store has been made that is not released */
        return 0;
    if (!may_be_stored(piece)) /* of a dead daemon's state that would not be known */
        return gaia_session_alive(mapping->session) ? 0 : -ENOTCONN;
    write_back_crossed(piece);
    return gaia_session_call(mapping->session, &message, NULL);
}

int piece_sync(struct gaia_piece *piece)
{
    struct gaia_message message = {
        .op = GAIA_OP_SYNC, .map = piece->mapping->map, .offset = piece->offset, .bytes = piece->length};

    int error = wait_for_write_backs(piece);
    return error ? error : gaia_session_call(piece->mapping->session, &message, NULL);
}

int piece_advise(struct gaia_piece *piece, int advice)
{
    struct gaia_message message = {.op = GAIA_OP_ADVISE,
                                   .map = piece->mapping->map,
                                   .offset = piece->offset,
                                   .bytes = piece->length,
                                   .flags = (uint32_t)advice};
    int error = 0;

    if (advice == GAIA_ADV_DONTNEED) { /* stores are released first: those of kernels, too */
        error = piece->mapping->session->dead ? -ENOTCONN : wait_for_device(piece->mapping);
        error = error ? error : wait_for_write_backs(piece);
    }
    return error ? error : gaia_session_call(piece->mapping->session, &message, NULL);
}
