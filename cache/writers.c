/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/writers.h"

#include "cache/agent.h"
#include "cache/home.h"
#include "cache/internal.h"

bool writers_elsewhere(const struct cache_file *file)
{
    const struct home_open *open;

    LIST_FOREACH (open, &file->opens, file_link)
        if (open->writers.any)
            return true;
    return false;
}

void writers_changed(struct cache_file *file)
{
    struct replica *replica;

    SLIST_FOREACH (replica, &file->replicas, link)
        replica_set_timeout(replica);
}

void writers_told(struct cache_file *file, struct writers *writers, bool any, uint64_t number)
{
    if (number < writers->number)
        return;
    *writers = (struct writers){any, number};
    writers_changed(file);
}

int cache_file_writers(struct cache_file *file, bool any, uint64_t number, bool wait)
{
    if (file->far)
        return agent_writers(file, any, number, wait);
    pthread_mutex_lock(&file->lock);
    writers_told(file, &file->writers, any, number);
    pthread_mutex_unlock(&file->lock);
    return 0;
}
