/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/reads.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "cache/internal.h"

void reads_init(struct reads *reads)
{
    *reads = (struct reads){0};
    LIST_INIT(&reads->under_way);
    for (unsigned i = 0; i < READS_ANSWERED; i++)
        reads->answered[i].first = 1;
}

void reads_begin(struct cache_file *file, struct cache_read *read, unsigned node, off_t offset, size_t length)
{
    read->node = node;
    read->first = (uint64_t)offset / GAIA_PAGE_SIZE;
    read->last = length ? ((uint64_t)offset + length - 1) / GAIA_PAGE_SIZE : read->first;
    read->number = ++file->reads.number;
    read->dropped = false;
    LIST_INSERT_HEAD(&file->reads.under_way, read, link);
}

void reads_end(struct cache_file *file, struct cache_read *read)
{
    struct reads *reads = &file->reads;
    uint64_t now = clock_now_ns();

    pthread_mutex_lock(&file->lock);
    LIST_REMOVE(read, link);
    if (!read->dropped)
        reads->answered[reads->next++ % READS_ANSWERED] = (struct answered_read){.number = read->number,
                                                                                 .first = read->first,
                                                                                 .last = read->last,
                                                                                 .node = read->node,
                                                                                 .time = now};
    if (reads->waiting)
        pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
}

void reads_dropped(struct cache_file *file, const struct leaf *leaf, page_mask pages, uint64_t number)
{
    struct cache_read *read;

    LIST_FOREACH (read, &file->reads.under_way, link) /* answered, but reads_end() not reached yet */
        if (read->number <= number &&
            pages & page_range_mask(leaf->number, read->first, read->last - read->first + 1))
            read->dropped = true;
    for (unsigned i = 0; i < READS_ANSWERED; i++) {
        struct answered_read *answered = &file->reads.answered[i];
        if (answered->first <= answered->last && answered->number <= number &&
            pages & page_range_mask(leaf->number, answered->first, answered->last - answered->first + 1))
            *answered = (struct answered_read){.first = 1}; /* all of its pages were unlocked by then */
    }
}

static bool any_under_way(const struct reads *reads, unsigned node, uint64_t page, uint64_t number)
{
    const struct cache_read *read;

    LIST_FOREACH (read, &reads->under_way, link)
        if (read->node == node && read->number <= number && read->first <= page && read->last >= page)
            return true;
    return false;
}

static bool was_recent(const struct reads *reads, unsigned node, uint64_t page, uint64_t number,
                       uint64_t recent_ns)
{
    uint64_t since = clock_now_ns() - recent_ns;

    for (unsigned i = 0; i < READS_ANSWERED; i++) {
        const struct answered_read *answered = &reads->answered[i];
        if (answered->node == node && answered->number <= number && answered->first <= page &&
            answered->last >= page && answered->time >= since)
            return true;
    }
    return false;
}

bool reads_may_fill(const struct cache_file *file, unsigned node, uint64_t page, uint64_t number,
                    uint64_t recent_ns)
{
    return any_under_way(&file->reads, node, page, number) ||
           was_recent(&file->reads, node, page, number, recent_ns);
}

int reads_wait(struct cache_file *file, unsigned node, uint64_t page, uint64_t number, uint64_t recent_ns)
{
    struct reads *reads = &file->reads;
    struct timespec until = lock_wait_until(READS_WAIT_MS);
    bool late = false;

    reads->waiting++;
    while (!late && any_under_way(reads, node, page, number))
        late = pthread_cond_timedwait(&file->changed, &file->lock, &until) == ETIMEDOUT;
    reads->waiting--;
    if (late && any_under_way(reads, node, page, number))
        return -ETIMEDOUT;
    return was_recent(reads, node, page, number, recent_ns);
}
