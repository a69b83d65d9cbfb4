/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/ranges.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct range *items(struct ranges *ranges)
{
    return ranges->many ? ranges->many : ranges->few;
}

static _Atomic size_t allocated;
static size_t allocated_most = SIZE_MAX;

void ranges_bound(size_t most)
{
    allocated_most = most;
}

size_t ranges_allocated(void)
{
    return atomic_load(&allocated);
}

static bool charge(size_t bytes)
{
    if (atomic_fetch_add(&allocated, bytes) + bytes <= allocated_most)
        return true;
    atomic_fetch_sub(&allocated, bytes);
    return false;
}

/* Room for one more. False: there is none. */
static bool grow(struct ranges *ranges)
{
    unsigned room = ranges->many ? ranges->room : RANGES_FEW;

    if (ranges->count < room)
        return true;
    struct range *many;
    size_t more = (room * 2 - (ranges->many ? room : 0)) * sizeof *many;
    if (room * 2 > RANGES_MAX || !charge(more))
        return false;
    many = realloc(ranges->many, room * 2 * sizeof *many);
    if (!many) {
        atomic_fetch_sub(&allocated, more);
        return false;
    }
    if (!ranges->many)
        memcpy(many, ranges->few, sizeof ranges->few);
    ranges->many = many;
    ranges->room = room * 2;
    return true;
}

/* The first range that ends at `at` or after it. */
static unsigned find(struct ranges *ranges, int64_t at)
{
    unsigned low = 0, high = ranges->count;

    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (items(ranges)[middle].end < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts [start, end) where `count` ranges from `first` on were. There is room. */
static void replace(struct ranges *ranges, unsigned first, unsigned count, const struct range *with,
                    unsigned n)
{
    struct range *at = items(ranges) + first;

    memmove(at + n, at + count, (ranges->count - first - count) * sizeof *at);
    memcpy(at, with, n * sizeof *at);
    ranges->count += n - count;
}

void ranges_add(struct ranges *ranges, int64_t start, int64_t end)
{
    unsigned first, last;

    if (start >= end)
        return;
    first = last = find(ranges, start);
    while (last < ranges->count && items(ranges)[last].start <= end)
        last++;
    if (first == last && !grow(ranges)) {
        /* Too many: the nearer neighbour becomes as long as it takes. */
        if (first == ranges->count ||
            (first && start - items(ranges)[first - 1].end < items(ranges)[first].start - end))
            first--;
        else
            last++;
    }
    struct range all = {start, end};
    if (first < last) {
        struct range *at = items(ranges);
        all.start = at[first].start < start ? at[first].start : start;
        all.end = at[last - 1].end > end ? at[last - 1].end : end;
    }
    replace(ranges, first, last - first, &all, 1);
}

void ranges_add_all(struct ranges *ranges, const struct ranges *from)
{
    const struct range *at = from->many ? from->many : from->few;

    for (unsigned i = 0; i < from->count; i++)
        ranges_add(ranges, at[i].start, at[i].end);
}

void ranges_add_part(struct ranges *ranges, const struct ranges *from, int64_t start, int64_t end)
{
    const struct range *at = from->many ? from->many : from->few;

    for (unsigned i = 0; i < from->count && at[i].start < end; i++)
        ranges_add(ranges, at[i].start > start ? at[i].start : start, at[i].end < end ? at[i].end : end);
}

void ranges_remove(struct ranges *ranges, int64_t start, int64_t end)
{
    if (start >= end) /* nothing, and it would make two ranges of one that is around it */
        return;
    for (unsigned i = find(ranges, start); i < ranges->count && items(ranges)[i].start < end;) {
        struct range was = items(ranges)[i], left[2];
        unsigned n = 0;
        if (was.start < start)
            left[n++] = (struct range){was.start, start};
        if (was.end > end)
            left[n++] = (struct range){end, was.end};
        if (n == 2 && !grow(ranges))
            return;
        replace(ranges, i, 1, left, n);
        i += n;
    }
}

void ranges_clear(struct ranges *ranges)
{
    if (ranges->many)
        atomic_fetch_sub(&allocated, ranges->room * sizeof *ranges->many);
    free(ranges->many);
    *ranges = (struct ranges){.count = 0};
}

bool ranges_touch(struct ranges *ranges, int64_t start, int64_t end)
{
    unsigned at = start < end ? find(ranges, start + 1) : ranges->count;

    return at < ranges->count && items(ranges)[at].start < end;
}
