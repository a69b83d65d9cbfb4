/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/tail.h"

#include <errno.h>
#include <string.h>

#include "cache/internal.h"
#include "cache/passed.h"
#include "cache/scan.h"

/* Whether a copy's page is left as it is. Growth in passthrough, or by another mount, is seen late: bytes
 * that differ from a twin, whose tail is zeros, may have been stored after the growth; and so may bytes that
 * differ in a page that was cleared before the growth. (On a device that scans every page has a twin then,
 * and what is stored past the end before an acquire is lost: gaia.h.) */
static bool keeps_tail(const struct leaf_copy *copy, uint64_t page, enum tail when)
{
    bool scans = copy->replica->scans;

    if (!(copy->present & page_bit(page)))
        return true;
    switch (when) {
    case TAIL_CUT:
        return false;
    case TAIL_GROWS:
        return scans;
    case TAIL_GROWN:
        return passed_is_unheard(copy->replica->file) && !scans && copy->twin & page_bit(page);
    case TAIL_GROWN_REST:
        return !scans;
    }
    return false;
}

/* Of a device that scans. */
static void keep_twin(struct leaf_copy *copy, uint64_t page, enum tail when)
{
    unsigned number = (unsigned)(page & (LEAF_PAGES - 1));
    bool passed = copy->replica->file->passed;

    if (when == TAIL_CUT && !passed)
        scan_keep_what_was_granted(copy, number);
    else if (when == TAIL_GROWN && !passed) /* nobody has come through the mount */
        scan_keep_twin_behind(copy, number);
    else if (when >= TAIL_GROWN)
        scan_keep_twin_of_tail(copy, page_bit(page));
}

static int clear(struct replica *replica, uint64_t page, size_t from)
{
    return replica->frames->ops->clear(replica->frames, page, from);
}

/* Of a page that can't be wiped, and another one comes to be. A device that scans gets it again at the next
 * acquire. (Of the others only the page with the file's end can be such: their files do not grow over it.) */
static void lose(struct replica *replica)
{
    page_mask bit = page_bit(replica->unwiped.page);
    struct leaf_copy *copy = replica_find_copy(replica, replica->unwiped.page >> LEAF_SHIFT);

    replica->unwiped.from = 0;
    if (!copy || !replica->scans)
        return;
    if (copy->pending & bit)
        durable_fail(replica->file->durable, -EIO);
    cache_device_uncharge(replica->device, replica_forget(copy, bit));
    replica_changed(replica);
    replica_settle(copy);
}

static void not_cleared(struct replica *replica, uint64_t page, size_t from)
{
    if (replica->unwiped.from && replica->unwiped.page != page && tail_wipe(replica))
        lose(replica);
    replica->unwiped = (struct unwiped){page, from};
    replica_changed(replica); /* an acquire must come */
}

int tail_clear(struct cache_file *file, off_t end, enum tail when)
{
    uint64_t page = (uint64_t)end / GAIA_PAGE_SIZE;
    struct leaf *leaf = index_find(&file->index, page >> LEAF_SHIFT);
    struct leaf_copy *copy;
    int error = 0;

    if (!leaf || !(end % (off_t)GAIA_PAGE_SIZE))
        return 0;
    SLIST_FOREACH (copy, &leaf->copies, link) {
        struct replica *replica = copy->replica;
        size_t from = (size_t)end % GAIA_PAGE_SIZE;
        if (replica->scans && !replica->read_only)
            keep_twin(copy, page, when);
        if (keeps_tail(copy, page, when))
            continue;
        if (copy->twin & page_bit(page))
            memset(frame_bytes(&file->cache->twins, *leaf_copy_twin(copy, page & (LEAF_PAGES - 1))) + from, 0,
                   GAIA_PAGE_SIZE - from);
        bool before = replica->unwiped.from && replica->unwiped.page == page;
        if (before && replica->unwiped.from < from)
            from = replica->unwiped.from;
        int one = clear(replica, page, from);
        if (one && !gaia_node_frames_gone(replica->frames)) {
            not_cleared(replica, page, from);
            error = error ? error : one;
        } else if (before) {
            replica->unwiped.from = 0;
        }
    }
    file_cpu_modified(leaf, page_bit(page));
    return error;
}

void tail_keep_twins(struct cache_file *file, off_t end)
{
    uint64_t page = (uint64_t)end / GAIA_PAGE_SIZE;
    struct leaf *leaf = index_find(&file->index, page >> LEAF_SHIFT);
    struct leaf_copy *copy;

    if (!leaf || !(end % (off_t)GAIA_PAGE_SIZE))
        return;
    SLIST_FOREACH (copy, &leaf->copies, link)
        if (copy->replica->scans && !copy->replica->read_only)
            scan_keep_twin_of_end(copy, (unsigned)(page & (LEAF_PAGES - 1)));
}

void tail_left(const struct leaf_copy *copy, page_mask pages)
{
    struct unwiped *unwiped = &copy->replica->unwiped;

    if (unwiped->page >> LEAF_SHIFT == copy->leaf->number && pages & page_bit(unwiped->page))
        unwiped->from = 0;
}

int tail_wipe(struct replica *replica)
{
    struct unwiped *unwiped = &replica->unwiped;
    const struct leaf_copy *copy =
        unwiped->from ? replica_find_copy(replica, unwiped->page >> LEAF_SHIFT) : NULL;
    int error = 0;

    if (copy && copy->present & page_bit(unwiped->page) && !gaia_node_frames_gone(replica->frames))
        error = clear(replica, unwiped->page, unwiped->from);
    if (!error)
        unwiped->from = 0;
    return error;
}
