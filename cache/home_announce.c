/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "cache/fit.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "cache/odds.h"

#define AGENTS_MAX (MEMBERS_MAX * 2) /* a member's next session begins when its last one is closed */
#define TOLD_AT_ONCE 8u              /* files, to one agent: of the CALL_WIDTH calls that may be under way */

static struct node_request follow_request(const struct cache_file *file)
{
    return (struct node_request){.name = file->name, .value = file->generation};
}

/* ---- one file, all agents ---- */

/* 1: it is this thread's to announce it, as nobody has, and nobody does. 0, or -ESTALE: another node has
 * become its home meanwhile, and would give it up for one that has given it up. -EIO: one may have that this
 * node does not know. The file's lock is taken. */
static int begin_announcing(struct cache_file *file, const struct node_name *name)
{
    struct nodes *nodes = file->cache->nodes;
    int begun = 0;

    pthread_mutex_lock(&file->lock);
    while (file->announced == ANNOUNCING)
        pthread_cond_wait(&file->changed, &file->lock);
    if (file->given_up) {
        begun = -ESTALE;
    } else if (file->announced != ANNOUNCED && nodes_at_odds(nodes)) {
        begun = -EIO;
    } else if (file->announced != ANNOUNCED) {
        file->name = *name;
        file->generation = nodes_generation(nodes);
        file->taken_over = nodes_first_home_of(nodes, name) != nodes->self;
        file->announced = ANNOUNCING;
        begun = 1;
    }
    pthread_mutex_unlock(&file->lock);
    return begun;
}

/* The sessions with all agents, with references, and how often an agent has entered by now. An agent that
 * comes later stands before the others in the list, which keeps its order, as call_ask() wants it. */
static unsigned find_agents(struct nodes *nodes, struct call_session *sessions[AGENTS_MAX],
                            uint64_t *entered_out)
{
    struct home_session *agent;
    unsigned count = 0;

    pthread_mutex_lock(&nodes->lock);
    LIST_FOREACH (agent, &nodes->agents, link)
        if (count < AGENTS_MAX) {
            sessions[count] = agent->session;
            call_session_get(sessions[count++]);
        }
    *entered_out = nodes->entered;
    pthread_mutex_unlock(&nodes->lock);
    return count;
}

/* All at once, as upon FOLLOW each has its kernel write back and drop what it holds. The error of one that
 * lives and can't do it; all_out: every one did. */
static int tell_agents(struct nodes *nodes, enum node_op op, const struct node_request *request,
                       uint64_t *entered_out, bool *all_out)
{
    struct call_session *sessions[AGENTS_MAX];
    struct nodes_asking asking[AGENTS_MAX];
    unsigned count = find_agents(nodes, sessions, entered_out);
    int error = 0;

    *all_out = true;
    for (unsigned i = 0; i < count; i++)
        nodes_begin(sessions[i], NODE_CALLS, op, request, &asking[i]);
    for (unsigned i = 0; i < count; i++) {
        int one = nodes_end(&asking[i], NULL);
        /* One that has died: its kernel's pages are its own. One that takes itself for the home tells us. */
        if (one < 0 && one != -EBUSY && !call_session_error(sessions[i]) && !error)
            error = one;
        *all_out = *all_out && one >= 0;
        call_session_put(sessions[i]);
    }
    return error;
}

int home_announce(struct cache_file *file, const struct node_name *name)
{
    uint64_t entered;
    bool all;

    int error = begin_announcing(file, name);
    if (error <= 0)
        return error;
    const struct node_request request = follow_request(file);
    error = tell_agents(file->cache->nodes, NODE_FOLLOW, &request, &entered, &all);
    /* What this node's programs have in its kernel's cache nobody has counted; and who was told first may
     * have read what programs of the others wrote to the data directory until they were told. */
    pthread_mutex_lock(&file->lock);
    heal_window_open(file, 0, UINT64_MAX);
    pthread_mutex_unlock(&file->lock);
    home_invalidate(file, 0, 0);
    pthread_mutex_lock(&file->lock);
    heal_window_close(file);
    file_check_behind(file); /* what the others' kernels have written back now */
    file->looked = file->behind;
    /* One that is taken over is served to those who have it open: whoever can't be told asks by itself. */
    error = file->taken_over ? 0 : error;
    file->announced = error ? NOT_ANNOUNCED : ANNOUNCED; /* said again for the next map */
    file->announced_to = all ? entered : 0;
    pthread_cond_broadcast(&file->changed);
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
    kernels_settle(file); /* twins that were given meanwhile */
    return error;
}

/* ---- all files, one agent ---- */

int home_list_tracked(struct cache *cache, uint64_t entered, struct node_request **list_out,
                      size_t *count_out)
{
    struct cache_file *file;
    size_t most = 1, count = 0;

    pthread_mutex_lock(&cache->lock);
    LIST_FOREACH (file, &cache->files, link)
        most++;
    struct node_request *list = calloc(most, sizeof *list);
    LIST_FOREACH (file, &cache->files, link) {
        if (!list)
            break;
        pthread_mutex_lock(&file->lock);
        bool knows = file->announced == ANNOUNCED && file->announced_to >= entered;
        if (file->announced != NOT_ANNOUNCED && !knows && !file->given_up)
            list[count++] = follow_request(file);
        pthread_mutex_unlock(&file->lock);
    }
    pthread_mutex_unlock(&cache->lock);
    *list_out = list;
    *count_out = count;
    return list ? 0 : -ENOMEM;
}

/* The agent is not told of files that were announced to it since it came: each time its kernel drops a file's
 * pages once more, while programs use the file by now. That a file was closed meanwhile an agent finds out
 * when it opens it. */
int home_announce_all(struct home_session *agent)
{
    struct nodes_asking asking[TOLD_AT_ONCE];
    struct node_request *list;
    size_t count, begun = 0, ended = 0;
    int error = home_list_tracked(agent->nodes->cache, agent->entered, &list, &count);

    while (ended < begun || (begun < count && !error)) {
        if (begun < count && begun < ended + TOLD_AT_ONCE && !error) {
            nodes_begin(agent->session, NODE_CALLS, NODE_FOLLOW, &list[begun], &asking[begun % TOLD_AT_ONCE]);
            begun++;
            continue;
        }
        int one = nodes_end(&asking[ended++ % TOLD_AT_ONCE], NULL);
        if (one < 0 && one != -EBUSY && !error) /* then it has taken the file over, and will tell us so */
            error = one;
    }
    free(list);
    return error;
}

/* ---- files that are not tracked any more ---- */

struct untracked {
    STAILQ_ENTRY(untracked) link;
    struct node_request request;
};

void home_untrack(const struct cache_file *file)
{
    struct nodes *nodes = file->cache->nodes;

    if (!nodes || !file->generation) /* nobody has been told of it */
        return;
    struct untracked *untracked = malloc(sizeof *untracked);
    if (!untracked)
        return;
    untracked->request = follow_request(file);
    pthread_mutex_lock(&nodes->lock);
    bool tells = nodes->tells && !nodes->stop;
    if (tells) {
        STAILQ_INSERT_TAIL(&nodes->untracked, untracked, link);
        pthread_cond_signal(&nodes->untracks);
    }
    pthread_mutex_unlock(&nodes->lock);
    if (!tells) /* the sessions end: agents forget all that this node has said */
        free(untracked);
}

/* NULL: nodes->stop is set. */
static struct untracked *next_untracked(struct nodes *nodes)
{
    pthread_mutex_lock(&nodes->lock);
    while (!nodes->stop && STAILQ_EMPTY(&nodes->untracked))
        pthread_cond_wait(&nodes->untracks, &nodes->lock);
    struct untracked *untracked = nodes->stop ? NULL : STAILQ_FIRST(&nodes->untracked);
    if (untracked)
        STAILQ_REMOVE_HEAD(&nodes->untracked, link);
    pthread_mutex_unlock(&nodes->lock);
    return untracked;
}

static void *tell_untracked(void *argument)
{
    struct untracked *untracked;
    uint64_t entered;
    bool all;

    while ((untracked = next_untracked(argument))) {
        tell_agents(argument, NODE_UNFOLLOW, &untracked->request, &entered, &all);
        free(untracked);
    }
    return NULL;
}

int home_tell_begin(struct nodes *nodes)
{
    int error = -pthread_create(&nodes->teller, NULL, tell_untracked, nodes);

    pthread_mutex_lock(&nodes->lock);
    nodes->tells = !error;
    pthread_mutex_unlock(&nodes->lock);
    return error;
}

void home_tell_end(struct nodes *nodes)
{
    struct untracked *untracked;

    if (nodes->tells)
        pthread_join(nodes->teller, NULL);
    pthread_mutex_lock(&nodes->lock);
    nodes->tells = false;
    while ((untracked = STAILQ_FIRST(&nodes->untracked))) {
        STAILQ_REMOVE_HEAD(&nodes->untracked, link);
        free(untracked);
    }
    pthread_mutex_unlock(&nodes->lock);
}
