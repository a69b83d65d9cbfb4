/* SPDX-License-Identifier: Apache-2.0 */
/* This node parts from the others: cache_leave(). What was released is handed over before the sessions end.
 */
#include <errno.h>
#include <limits.h>

#include "cache/collect.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "cache/meet.h"
#include "cache/patience.h"

/* A node that leaves waits for a minute for a home that says nothing: what is lost with the home can't be
 * recovered, and the home may just be waiting for its disk. */
static int leave(struct nodes *nodes, struct call_session *session)
{
    const struct patience patience = {.silent = 12, .turns = UINT_MAX};

    return patience_call(nodes, session, NODE_LEAVE, &(struct node_request){0}, patience);
}

static bool is_home_of(const struct cache_file *file)
{
    return !file->far && !file->given_up;
}

/* What other nodes' kernels hold of the file comes here. */
static int recall(struct cache_file *file, void *context)
{
    (void)context;
    int error = is_home_of(file) ? home_invalidate(file, 0, 0) : 0;
    return error == -ENOENT ? 0 : error;
}

/* All of it goes to storage, as a program that syncs at the next home can't reach this machine's memory;
 * those who have the file open are told of what can't go there. */
static int hand_over(struct cache_file *file, void *context)
{
    (void)context;
    if (!is_home_of(file))
        return 0;
    pthread_mutex_lock(&file->lock);
    int error = collect_all(file);
    pthread_mutex_unlock(&file->lock);
    int stored = durable_store(file->durable, file->fd);
    error = error ? error : stored ? stored : durable_is_lost(file->durable) ? -EIO : 0;
    home_tell_handed(file, error);
    return error;
}

/* What this node is home of goes to its next homes by way of storage. In this order: what was acknowledged
 * before `leaving` was said is collected; what is acknowledged before `settles` was said is synced; what is
 * acknowledged later was synced before it was (cache/home_open.c). Last comes what nobody has open any more:
 * to unmount a disk syncs it, too. */
static int hand_all_over(struct cache *cache)
{
    struct nodes *nodes = cache->nodes;

    nodes->leaving = true;
    int flushed = cache_flush_all(cache);
    int recalled = cache_each_file(cache, recall, NULL);
    nodes->settles = true;
    int handed = cache_each_file(cache, hand_over, NULL);
    cache->host.sync(cache->host.context);
    return flushed ? flushed : recalled ? recalled : handed;
}

void cache_ending(struct cache *cache)
{
    if (cache->nodes)
        cache->nodes->ending = true;
}

int cache_leave(struct cache *cache)
{
    struct nodes *nodes = cache->nodes;
    int error = nodes ? hand_all_over(cache) : 0;

    for (unsigned i = 0; nodes && i < MEMBERS_MAX; i++) {
        struct call_session *session = nodes_home_session(nodes, i);
        if (!session)
            continue;
        int one = leave(nodes, session);
        /* Else it has ended before, and collected; or it died. */
        if (one == -ETIMEDOUT || !call_session_error(session))
            error = error ? error : one;
        call_session_put(session);
    }
    return error;
}
