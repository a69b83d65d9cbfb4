/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/overrule.h"

#include "cache/durable.h"

void overrule_begin(struct overrule *overrule, struct durable *durable, off_t start, off_t end)
{
    pthread_mutex_lock(&durable->lock);
    if (!overrule_has_begun(overrule)) {
        overrule->start = start;
        LIST_INSERT_HEAD(&durable->overruled, overrule, link);
    }
    overrule->end = end;
    pthread_mutex_unlock(&durable->lock);
}

void overrule_end(struct overrule *overrule, struct durable *durable)
{
    pthread_mutex_lock(&durable->lock);
    LIST_REMOVE(overrule, link);
    pthread_mutex_unlock(&durable->lock);
}

size_t overrule_next(struct durable *durable, off_t offset, size_t length, size_t *skipped_out)
{
    off_t end = offset + (off_t)length, at = offset, stop = end;
    struct overrule *overrule;
    bool moved;

    pthread_mutex_lock(&durable->lock);
    do { /* they may overlap, in any order */
        moved = false;
        LIST_FOREACH (overrule, &durable->overruled, link)
            if (overrule->start <= at && at < overrule->end) {
                at = overrule->end < end ? overrule->end : end;
                moved = true;
            }
    } while (moved && at < end);
    LIST_FOREACH (overrule, &durable->overruled, link)
        if (overrule->start > at && overrule->start < stop)
            stop = overrule->start;
    pthread_mutex_unlock(&durable->lock);
    *skipped_out = (size_t)(at - offset);
    return (size_t)(stop - at);
}
