/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/behind.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/fit.h"
#include "cache/home.h"
#include "cache/home_open.h"
#include "cache/internal.h"
#include "cache/sure.h"

#define AGAIN_MS 100u
#define TRIES 50u
#define PAUSE_MS 5u

/* For whom it is looked. */
struct looking {
    struct nodes *nodes;
    const struct home_session *entered; /* this one; NULL: for nobody, */
    uint64_t stall;                     /* and only kernels of sessions from before it count */
    bool alone;
    uint64_t still_ns; /* alone: nodes_still_since() */
    size_t refused;    /* files whose write-backs are lost */
    /* Files of which pages are being dropped, in use: NULL: nobody waits for it. */
    struct cache_file **dropping;
    size_t count;
};

/* Whether this node stood still once more. Then members that it has met since the last time may have stood
 * still with it: all is looked at once more, and what is found now is suspect still. */
static bool stands_still_again(const struct looking *looking)
{
    pthread_mutex_lock(&looking->nodes->lock);
    bool again = nodes_stalls(looking->nodes) != looking->stall;
    pthread_mutex_unlock(&looking->nodes->lock);
    return again;
}

/* Kernels that may hold pages from before: a node that is told that a file is tracked drops what it has of
 * the file. The file's lock is held. */
static uint64_t old_kernels(const struct looking *looking, const struct cache_file *file)
{
    const struct home_open *open;
    uint64_t kernels = 1;

    LIST_FOREACH (open, &file->opens, file_link)
        if (open->session != looking->entered && open->session->since < looking->stall)
            kernels |= UINT64_C(2) << open->session->member;
    return kernels;
}

/* Not only before this node stood still, as by a chmod() that nobody has told the home of: others knew then
 * whose the file is. */
static bool is_since(const struct cache_file *file, uint64_t ns)
{
    return clock_ns(&file->ctime) >= ns;
}

/* Also when the change itself was found before: by an acquire, or by the OPENED of a node that has just been
 * told that the file is tracked. The file's lock is held. */
static bool look(struct looking *looking, struct cache_file *file)
{
    int error = file_check_behind(file);

    if (looking->alone && stands_still_again(looking))
        return false;
    if (!error && file->looked == file->behind && !file->suspect)
        return false;
    if (error)
        file->behind++; /* nobody knows */
    bool refuse = looking->alone && (error || (file->suspect && is_since(file, looking->still_ns)));
    kernels_stale(file, old_kernels(looking, file), refuse);
    looking->refused += refuse;
    file->looked = file->behind;
    file->suspect &= !looking->alone;
    fit_begin(file);
    return true;
}

/* Of those that can be waited for: none that a kernel holds locked for a write() which waits until this node
 * is sure. */
static void await_dropped(struct looking *looking)
{
    unsigned turns = looking->nodes->timeout_ms / PAUSE_MS;

    for (size_t i = 0; i < looking->count; i++) {
        struct cache_file *file = looking->dropping[i];
        bool behind = true;
        while (behind) {
            pthread_mutex_lock(&file->lock);
            behind = kernels_behind(file);
            pthread_mutex_unlock(&file->lock);
            if (behind && (!turns || !nodes_wait(looking->nodes, PAUSE_MS)))
                break;
            turns -= behind;
        }
        file_unuse(file);
    }
    free(looking->dropping);
}

/* In use. By its name: what nobody has mapped and no agent has open may be closed meanwhile, and then no
 * kernel has anything of it. */
static int find_file(struct nodes *nodes, const struct node_name *name, struct cache_file **file_out)
{
    const struct cache_host *host = &nodes->cache->host;
    int error;

    for (unsigned tries = 0;; tries++) {
        error = host->find(host->context, name, file_out);
        bool again = error == -ENOMEM || error == -EMFILE || error == -ENFILE;
        if (!again || tries == TRIES || !nodes_wait(nodes, AGAIN_MS))
            return error;
    }
}

static void look_at_all(struct looking *looking)
{
    struct nodes *nodes = looking->nodes;
    struct cache_file *file;
    struct node_request *list;
    size_t count;

    while (home_list_tracked(nodes->cache, UINT64_MAX, &list, &count))
        if (!nodes_wait(nodes, AGAIN_MS))
            return;
    if (looking->alone)
        looking->dropping = calloc(count + 1, sizeof *looking->dropping);
    for (size_t i = 0; i < count && nodes_wait(nodes, 0); i++) {
        if (find_file(nodes, &list[i].name, &file))
            continue;
        pthread_mutex_lock(&file->lock);
        bool drops = !file->given_up && look(looking, file);
        pthread_mutex_unlock(&file->lock);
        kernels_settle(file);
        if (drops && looking->dropping)
            looking->dropping[looking->count++] = file;
        else
            file_unuse(file);
    }
    free(list);
    await_dropped(looking);
}

void behind_look_for(const struct home_session *agent)
{
    struct looking looking = {.nodes = agent->nodes, .entered = agent, .stall = UINT64_MAX};

    if (nodes_are_sure(agent->nodes))
        look_at_all(&looking);
}

static void warn(const struct nodes *nodes, size_t files)
{
    const struct cache_host *host = &nodes->cache->host;
    char text[240];

    snprintf(text, sizeof text,
             "this node was not heard for a while, and others changed %zu file%s of its own meanwhile: what "
             "programs had stored to %s through mappings and not synced is lost",
             files, files == 1 ? "" : "s", files == 1 ? "it" : "them");
    if (host->warn)
        host->warn(host->context, text);
}

static void forget_suspicions(const struct looking *looking)
{
    struct cache *cache = looking->nodes->cache;
    struct cache_file *file;

    pthread_mutex_lock(&cache->lock);
    LIST_FOREACH (file, &cache->files, link) {
        pthread_mutex_lock(&file->lock);
        file->suspect &= stands_still_again(looking);
        pthread_mutex_unlock(&file->lock);
    }
    pthread_mutex_unlock(&cache->lock);
}

void behind_settle(struct nodes *nodes, uint64_t stall, bool alone)
{
    struct looking looking = {.nodes = nodes, .stall = stall, .alone = alone};

    if (alone) {
        looking.still_ns = nodes_still_since(nodes);
        look_at_all(&looking);
    }
    if (looking.refused)
        warn(nodes, looking.refused);
    forget_suspicions(&looking);
}
