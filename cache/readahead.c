/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/readahead.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#define SEQUENTIAL_MIN 128u /* pages: 512 KiB */

void readahead_init(struct readahead *readahead, uint64_t unit)
{
    memset(readahead, 0, sizeof *readahead);
    lock_init(&readahead->lock, LOCK_READAHEAD);
    readahead->unit = unit;
    for (unsigned i = 0; i < READAHEAD_STREAMS; i++)
        readahead->streams[i].next = UINT64_MAX;
}

void readahead_free(struct readahead *readahead)
{
    pthread_mutex_destroy(&readahead->lock);
}

void readahead_set_mode(struct readahead *readahead, enum readahead_mode mode)
{
    pthread_mutex_lock(&readahead->lock);
    readahead->mode = mode;
    pthread_mutex_unlock(&readahead->lock);
}

/* The stream that this unit goes on with, or else the one that was followed the longest ago. */
static struct readahead_stream *find_stream(struct readahead *readahead, uint64_t unit, int *found)
{
    struct readahead_stream *oldest = &readahead->streams[0];

    for (unsigned i = 0; i < READAHEAD_STREAMS; i++) {
        struct readahead_stream *stream = &readahead->streams[i];
        /* A unit of slack: the threads of a group do not touch their pages in order. */
        if (stream->next != UINT64_MAX && unit >= stream->next && unit <= stream->next + readahead->unit) {
            *found = 1;
            return stream;
        }
        if (stream->used < oldest->used)
            oldest = stream;
    }
    *found = 0;
    return oldest;
}

/* Whether the unit is part of a window that was given out already, and is perhaps being placed now. */
static bool in_window(const struct readahead *readahead, uint64_t unit)
{
    for (unsigned i = 0; i < READAHEAD_STREAMS; i++) {
        const struct readahead_stream *stream = &readahead->streams[i];
        if (stream->next != UINT64_MAX && unit < stream->next && stream->next - unit <= stream->window)
            return true;
    }
    return false;
}

/* Cut a window to what the device may take and to the end of the file; it goes on holding the page. */
static struct readahead_window cut_window(struct readahead_window window, uint64_t page, uint64_t limit,
                                          uint64_t most)
{
    if (window.count > most)
        window.count = most;
    if (window.first + window.count <= page)
        window = (struct readahead_window){.first = page, .count = 1};
    if (window.count > limit - window.first)
        window.count = limit - window.first;
    return window;
}

struct readahead_window readahead_next(struct readahead *readahead, uint64_t page, uint64_t limit,
                                       uint64_t most)
{
    struct readahead_window window = {.first = page, .count = 1};

    assert(page < limit && most);
    pthread_mutex_lock(&readahead->lock);
    if (readahead->mode != READAHEAD_RANDOM) {
        uint64_t unit = page & ~(readahead->unit - 1), pages;
        int found;
        struct readahead_stream *stream = find_stream(readahead, unit, &found);
        if (!found &&
            in_window(readahead, unit)) { /* the touch is faster than the readahead: it is not a new stream */
            pthread_mutex_unlock(&readahead->lock);
            window = (struct readahead_window){.first = unit, .count = readahead->unit};
            return cut_window(window, page, limit, most);
        }
        uint64_t least = readahead->unit;
        if (readahead->mode == READAHEAD_SEQUENTIAL && least < SEQUENTIAL_MIN)
            least = SEQUENTIAL_MIN;
        pages = found ? stream->window * 2 : least;
        if (pages > READAHEAD_MAX)
            pages = READAHEAD_MAX;
        if (pages > most)
            pages = most & ~(readahead->unit - 1) ? most & ~(readahead->unit - 1) : most;
        if (unit + pages <= page) /* a device smaller than a unit */
            unit = page;
        *stream =
            (struct readahead_stream){.next = unit + pages, .window = pages, .used = ++readahead->faults};
        window = (struct readahead_window){.first = unit, .count = pages};
    }
    pthread_mutex_unlock(&readahead->lock);
    return cut_window(window, page, limit, most);
}
