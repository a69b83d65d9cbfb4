/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/home_bytes.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/fsuid.h"
#include "base/read.h"
#include "cache/internal.h"
#include "cache/odds.h"
#include "consistency/digest.h"
#include "consistency/merge.h"

int home_read(struct cache_file *file, uint8_t *bytes, size_t length, off_t offset)
{
    ssize_t n = read_whole(file->fd, bytes, length, offset);

    if (n < 0)
        return (int)n;
    /* Cut behind the mount: the rest reads as zeros, and is written as part of the file again. */
    memset(bytes + n, 0, length - (size_t)n);
    return 0;
}

int home_read_pages(struct cache_file *file, uint64_t page, size_t count, uint8_t *bytes)
{
    off_t offset = (off_t)(page * GAIA_PAGE_SIZE);
    size_t length = count * GAIA_PAGE_SIZE, n = file->size > offset ? length : 0;

    if (n && (uint64_t)(file->size - offset) < n)
        n = (size_t)(file->size - offset);
    memset(bytes + n, 0, length - n);
    return n ? home_read(file, bytes, n, offset) : 0;
}

int home_write(struct cache_file *file, const uint8_t *bytes, size_t length, off_t offset,
               enum durable_source source, size_t *done_out)
{
    unsigned begun = durable_begin(file->durable, file->fd);
    size_t done = 0;
    bool at_odds = file->cache->nodes && nodes_at_odds(file->cache->nodes);
    int error = file->given_up || at_odds ? -EIO : 0;

    while (done < length && !error) {
        fsuid_begin_write_of_owner(file->fd);
        ssize_t n = pwrite(file->fd, bytes + done, length - done, offset + (off_t)done);
        fsuid_end_write();
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            error = n ? -errno : -EIO;
    }
    durable_wrote(file->durable, begun, offset, (off_t)done, source);
    *done_out = done;
    return error;
}

/* Only bytes that are in the host's memory: reading storage to save a copy from it would be no gain. */
static bool read_hosted(const struct cache_file *file, uint8_t *bytes, size_t length, off_t offset)
{
    return (file->hosted == HOSTED_CACHED || hosted_all(file->fd, file->hosted, offset, length)) &&
           hosted_read(file->fd, file->hosted, bytes, length, offset) >= 0;
}

bool home_equals_copy(struct cache_file *file, struct leaf_copy *copy, unsigned page,
                      const struct gaia_digest *theirs)
{
    uint8_t home[GAIA_PAGE_SIZE], device[GAIA_PAGE_SIZE];
    uint64_t number = (copy->leaf->number << LEAF_SHIFT) + page;
    size_t n = file_page_bytes(file->size, number);

    if (!read_hosted(file, home, n, (off_t)(number * GAIA_PAGE_SIZE)))
        return false;
    if (theirs) {
        memset(home + n, 0, GAIA_PAGE_SIZE - n);
        return gaia_digest_equal(gaia_digest_of(home, GAIA_PAGE_SIZE), *theirs);
    }
    return !replica_fetch(copy->replica, number, device) && !gaia_differs(home, device, n);
}

#define SAME_PAGES 8u /* that are read and fetched at once, to where they are compared */
_Static_assert(SAME_PAGES <= GAIA_FETCH_MAX, "a run can be fetched");

/* Of a run of pages those that are the same, if all can be had at once. */
static bool run_equals_copy(struct cache_file *file, struct leaf_copy *copy, unsigned first, unsigned count,
                            page_mask *same_out)
{
    uint8_t home[SAME_PAGES * GAIA_PAGE_SIZE], device[SAME_PAGES * GAIA_PAGE_SIZE];
    uint64_t number = (copy->leaf->number << LEAF_SHIFT) + first;
    off_t offset = (off_t)(number * GAIA_PAGE_SIZE);
    size_t length = count * GAIA_PAGE_SIZE;
    void *places[SAME_PAGES];

    if (offset >= file->size)
        return false;
    if (file->size - offset < (off_t)length)
        length = (size_t)(file->size - offset);
    for (unsigned i = 0; i < count; i++)
        places[i] = device + i * GAIA_PAGE_SIZE;
    if (!read_hosted(file, home, length, offset) || replica_fetch_run(copy->replica, number, count, places))
        return false;
    *same_out = 0;
    for (unsigned i = 0; i < count; i++)
        if (!gaia_differs(home + i * GAIA_PAGE_SIZE, device + i * GAIA_PAGE_SIZE,
                          file_page_bytes(file->size, number + i)))
            *same_out |= UINT64_C(1) << (first + i);
    return true;
}

page_mask home_equals_pages(struct cache_file *file, struct leaf_copy *copy, page_mask pages)
{
    page_mask same = 0;

    while (pages) {
        unsigned length, first = page_mask_run(&pages, &length);
        for (unsigned count; length; first += count, length -= count) {
            page_mask some;
            count = length < SAME_PAGES ? length : SAME_PAGES;
            if (run_equals_copy(file, copy, first, count, &some)) {
                same |= some;
                continue;
            }
            for (unsigned page = first; page < first + count; page++)
                if (home_equals_copy(file, copy, page, NULL))
                    same |= UINT64_C(1) << page;
        }
    }
    return same;
}
