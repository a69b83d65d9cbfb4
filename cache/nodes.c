/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/nodes.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/kernel.h"
#include "cache/agent.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "cache/living.h"
#include "cache/meet.h"
#include "cache/meeter.h"
#include "cache/odds.h"
#include "cache/patience.h"
#include "cache/sure.h"

#define PARTS_MS 50u

/* ---- requests ---- */

void nodes_begin(struct call_session *session, enum node_class class, enum node_op op,
                 const struct node_request *request, struct nodes_asking *asking)
{
    asking->reply = (struct node_reply){0};
    asking->class = class;
    asking->op = op;
    call_ask(session, class, op, request, sizeof *request, &asking->reply, sizeof asking->reply,
             &asking->asked);
}

int nodes_end(struct nodes_asking *asking, struct node_reply *reply_out)
{
    enum node_op op = asking->op;
    size_t length = 0;

    int result = node_result(call_hear(&asking->asked, &length, node_class_ms(asking->class)));
    /* How many bytes: more is checked by who asks. Nothing else is a number. */
    bool counts = op == NODE_READ || op == NODE_WRITE || op == NODE_PEEK;
    bool whole = length == sizeof asking->reply;
    if (result >= 0 && (!whole || (result > 0 && !counts)))
        result = -EIO;
    if (reply_out)
        *reply_out = whole ? asking->reply : (struct node_reply){0};
    return result;
}

int nodes_ask(struct call_session *session, enum node_class class, enum node_op op,
              const struct node_request *request, struct node_reply *reply_out)
{
    struct nodes_asking asking;

    nodes_begin(session, class, op, request, &asking);
    return nodes_end(&asking, reply_out);
}

static int serve(void *context, struct call_session *session, unsigned op, const void *bytes, size_t length,
                 void *reply_bytes, size_t *reply_length)
{
    struct nodes *nodes = context;
    struct node_request request;
    struct node_reply reply = {0};
    const uint8_t *along = NULL;

    if (op == NODE_PLACE && length == sizeof(struct node_page_request)) {
        along = ((const struct node_page_request *)bytes)->bytes;
        length = sizeof request;
    }
    if (length != sizeof request || !op || op > NODE_OP_LAST)
        return -EPROTO;
    memcpy(&request, bytes, sizeof request);
    if (request.name.length > NODE_NAME_MAX)
        return -EPROTO;
    nodes->served[op]++;
    int result = call_session_connected(session)
                     ? agent_serve(nodes, session, op, &request, along)
                     : home_serve(call_session_user(session), op, &request, &reply);
    memcpy(reply_bytes, &reply, sizeof reply);
    *reply_length = sizeof reply;
    return result;
}

/* ---- sessions ---- */

static int arrived(void *context, struct call_session *session)
{
    return home_session_begin(context, session);
}

/* A home has gone. What it has asked for and is still done may wait for this: a kernel's page that is to be
 * dropped is locked until the READ of it that has failed is answered by the next home. */
static void lost(void *context, struct call_session *session, int error)
{
    struct nodes *nodes = context;
    unsigned member = MEMBERS_MAX;

    (void)error;
    if (!call_session_connected(session))
        return;
    agent_frames_end(nodes, session);
    pthread_mutex_lock(&nodes->lock);
    for (unsigned i = 0; i < nodes->numbers; i++)
        if (nodes->homes[i].session == session) {
            nodes->homes[i].session = NULL;
            member = i;
        }
    if (member != MEMBERS_MAX) {
        followed_remove_member(&nodes->followed, member);
        nodes->went_ns = clock_now_ns();
    }
    bool stop = nodes->stop;
    pthread_mutex_unlock(&nodes->lock);
    /* If it lives on it says anew what it tracks; else others are homes of its files. (Not met: its HELLO
     * failed, but it may have told of files before.) */
    if (member != MEMBERS_MAX && !stop)
        nodes_meet(nodes, member);
    if (!stop)
        agent_move_files(nodes, session);
    if (member != MEMBERS_MAX)
        call_session_put(session);
}

static void ended(void *context, struct call_session *session, int error)
{
    (void)error;
    if (call_session_connected(session))
        agent_frames_end(context, session); /* those that were still being opened */
    else
        home_session_end(call_session_user(session));
}

/* ---- names ---- */

unsigned nodes_number_of(const struct nodes *nodes, const char *name, size_t length)
{
    for (unsigned i = 0; i < nodes->numbers; i++)
        if (nodes->homes[i].listed && strlen(nodes->homes[i].member.name) == length &&
            !memcmp(nodes->homes[i].member.name, name, length))
            return i;
    return MEMBERS_MAX;
}

unsigned nodes_count(struct nodes *nodes)
{
    pthread_mutex_lock(&nodes->lock);
    unsigned count = nodes->members->count;
    pthread_mutex_unlock(&nodes->lock);
    return count;
}

/* By hashing; down: whether members that are down count. The lock is held. */
static unsigned hashed_home(const struct nodes *nodes, const struct node_name *name, bool down)
{
    const struct members *members = nodes->members;
    uint32_t alive = 0;

    for (unsigned i = 0; i < members->count; i++) {
        unsigned number = nodes_number_of(nodes, members->list[i].name, strlen(members->list[i].name));
        if (i == members->self || down || !nodes->homes[number].down)
            alive |= UINT32_C(1) << i;
    }
    const struct member *home =
        &members->list[members_home(members, alive, name, offsetof(struct node_name, bytes) + name->length)];
    return nodes_number_of(nodes, home->name, strlen(home->name));
}

unsigned nodes_first_home_of(struct nodes *nodes, const struct node_name *name)
{
    pthread_mutex_lock(&nodes->lock);
    unsigned member = hashed_home(nodes, name, true);
    pthread_mutex_unlock(&nodes->lock);
    return member;
}

unsigned nodes_home_of(struct nodes *nodes, const struct node_name *name)
{
    pthread_mutex_lock(&nodes->lock);
    const struct followed *followed = followed_find(&nodes->followed, name);
    unsigned member = followed ? followed->member : hashed_home(nodes, name, false);
    pthread_mutex_unlock(&nodes->lock);
    return member;
}

bool nodes_follows(struct nodes *nodes, const struct node_name *name, uint64_t *told_out)
{
    pthread_mutex_lock(&nodes->lock);
    const struct followed *followed = followed_find(&nodes->followed, name);
    if (followed)
        *told_out = followed->told;
    pthread_mutex_unlock(&nodes->lock);
    return followed;
}

void nodes_unfollow(struct nodes *nodes, const struct node_name *name, uint64_t told)
{
    pthread_mutex_lock(&nodes->lock);
    followed_remove(&nodes->followed, name, told);
    pthread_mutex_unlock(&nodes->lock);
}

void nodes_say_home(struct nodes *nodes, const struct node_name *name, struct node_reply *reply_out)
{
    pthread_mutex_lock(&nodes->lock);
    const struct followed *followed = followed_find(&nodes->followed, name);
    if (followed) {
        reply_out->value[0] = member_hash(nodes->homes[followed->member].member.name);
        reply_out->value[1] = followed->generation;
    }
    pthread_mutex_unlock(&nodes->lock);
}

/* MEMBERS_MAX: this node has no session with it as a home, so nobody would say when it goes. The lock is
 * held. */
static unsigned met_of_hash(const struct nodes *nodes, uint64_t hash)
{
    for (unsigned i = 0; i < nodes->numbers; i++)
        if (nodes->homes[i].listed && nodes->homes[i].session &&
            member_hash(nodes->homes[i].member.name) == hash)
            return i;
    return MEMBERS_MAX;
}

/* By itself it has said so since, or as late as who is heard of now. The lock is held. */
static bool is_told(const struct nodes *nodes, const struct node_name *name, unsigned member,
                    uint64_t generation)
{
    const struct followed *followed = followed_find(&nodes->followed, name);

    return followed && (followed->member == member || followed->generation >= generation);
}

bool nodes_hear_home(struct nodes *nodes, const struct node_name *name, uint64_t told,
                     const struct node_reply *reply)
{
    uint64_t hash = reply->value[0], generation = reply->value[1], added;

    pthread_mutex_lock(&nodes->lock);
    bool named = hash && generation && generation <= INT64_MAX &&
                 hash != member_hash(nodes->homes[nodes->self].member.name);
    unsigned member = named ? met_of_hash(nodes, hash) : MEMBERS_MAX;
    bool unmet = named && member == MEMBERS_MAX;
    if (!unmet)
        followed_remove(&nodes->followed, name, told);
    if (member != MEMBERS_MAX && !is_told(nodes, name, member, generation) &&
        !followed_add(&nodes->followed, member, name, generation, &added) && nodes->generation < generation)
        nodes->generation = generation;
    const struct followed *followed = followed_find(&nodes->followed, name);
    bool elsewhere = followed && followed->told != told;
    pthread_mutex_unlock(&nodes->lock);
    return elsewhere;
}

/* cache_move_ms() */
static unsigned move_ms(const struct nodes *nodes)
{
    return 4 * nodes->timeout_ms;
}

bool nodes_home_went(const struct nodes *nodes)
{
    uint64_t went_ns = nodes->went_ns;

    return went_ns && clock_now_ns() - went_ns < move_ms(nodes) * UINT64_C(1000000);
}

uint64_t nodes_generation(struct nodes *nodes)
{
    uint64_t now_ns = clock_read_ns(CLOCK_REALTIME);

    pthread_mutex_lock(&nodes->lock);
    uint64_t generation = nodes->generation < now_ns ? now_ns : nodes->generation + 1;
    nodes->generation = generation;
    pthread_mutex_unlock(&nodes->lock);
    return generation;
}

uint32_t nodes_number(struct nodes *nodes)
{
    pthread_mutex_lock(&nodes->lock);
    uint32_t number = ++nodes->next_number;
    if (!number)
        number = ++nodes->next_number;
    pthread_mutex_unlock(&nodes->lock);
    return number;
}

bool nodes_wait(struct nodes *nodes, unsigned ms)
{
    struct timespec until = lock_wait_until(ms);
    int late = 0;

    pthread_mutex_lock(&nodes->lock);
    while (!nodes->stop && !late)
        late = pthread_cond_timedwait(&nodes->stopped, &nodes->lock, &until);
    bool stop = nodes->stop;
    pthread_mutex_unlock(&nodes->lock);
    return !stop;
}

/* ---- start and end ---- */

/* The list's members get numbers, those that they had before if they had one. The lock is held, or nobody
 * else is there. -ENOSPC: too many in the course of time. */
static int enter_members(struct nodes *nodes, const struct members *members)
{
    unsigned known = 0, old;

    for (unsigned i = 0; i < members->count; i++)
        for (old = 0; old < nodes->numbers; old++)
            known += !strcmp(nodes->homes[old].member.name, members->list[i].name);
    if (nodes->numbers + members->count - known > MEMBERS_MAX)
        return -ENOSPC;
    for (old = 0; old < nodes->numbers; old++) {
        struct nodes_home *home = &nodes->homes[old];
        home->refuses &= home->listed;
        home->knows_more &= home->listed;
        home->untried |= home->refuses || home->knows_more || !home->listed;
        home->listed = false;
    }
    for (unsigned i = 0; i < members->count; i++) {
        for (old = 0; old < nodes->numbers; old++)
            if (!strcmp(nodes->homes[old].member.name, members->list[i].name))
                break;
        if (old == nodes->numbers)
            nodes->homes[nodes->numbers++].untried = true;
        nodes->homes[old].member = members->list[i];
        nodes->homes[old].listed = true;
    }
    nodes->members = members;
    return 0;
}

/* Those that are still to come: one of each direction with each other member. 0, or why their memory can't be
 * had; why_out. */
static int try_memory(struct nodes *nodes, struct calls *calls, char why_out[CALL_WHY])
{
    const struct home_session *agent;
    unsigned there = 0;

    why_out[0] = '\0';
    pthread_mutex_lock(&nodes->lock);
    unsigned all = 2 * (nodes->members->count - 1);
    for (unsigned i = 0; i < nodes->numbers; i++)
        there += nodes->homes[i].listed && nodes->homes[i].session;
    LIST_FOREACH (agent, &nodes->agents, link)
        there += nodes->homes[agent->member].listed;
    pthread_mutex_unlock(&nodes->lock);
    return all > there ? calls_try_memory(calls, all - there, why_out) : 0;
}

static uint64_t hash_of(const struct node_name *name)
{
    return name->length ? XXH3_64bits(name, offsetof(struct node_name, bytes) + name->length) : 0;
}

static struct nodes *new_nodes(struct cache *cache)
{
    const struct members *members = cache->config.members;
    const char *self = members->list[members->self].name;
    unsigned timeout_ms = cache->config.fault.timeout_ms;
    struct nodes *nodes = calloc(1, sizeof *nodes);

    if (!nodes)
        return NULL;
    nodes->cache = cache;
    nodes->late_kernels = kernel_writes_back_late();
    nodes->directory = hash_of(&cache->config.directory);
    nodes->timeout_ms = timeout_ms ? timeout_ms : FAULT_PATH_TIMEOUT_MS;
    nodes->beat_ms = nodes->timeout_ms;
    nodes->stop = true; /* who connects at once can't be connected to yet */
    enter_members(nodes, members);
    nodes->self = nodes_number_of(nodes, self, strlen(self));
    lock_init(&nodes->lock, LOCK_NODES);
    lock_condition_init(&nodes->changed);
    lock_condition_init(&nodes->stopped);
    lock_condition_init(&nodes->untracks);
    STAILQ_INIT(&nodes->untracked);
    return nodes;
}

static int listen_for_others(struct nodes *nodes, struct calls **calls_out, char why_out[CALL_WHY])
{
    const struct cache_config *of_cache = &nodes->cache->config;
    const struct member *self = &of_cache->members->list[of_cache->members->self];
    const struct calls_config config = {.carrier = self->carrier,
                                        .address = self->address,
                                        .timeout_ms = nodes->timeout_ms,
                                        .queues = of_cache->fault.queues,
                                        .depth = of_cache->fault.depth,
                                        .context = nodes,
                                        .arrived = arrived,
                                        .serve = serve,
                                        .lost = lost,
                                        .ended = ended};

    /* umount(8) comes back before the daemon of the mount has ended, and whoever mounts again at once meets
     * it. */
    for (unsigned tries = 0;; tries++) {
        nodes->begun_ns = clock_now_ns();
        int error = calls_open(&config, calls_out, why_out);
        if (error != -EADDRINUSE || tries == 50)
            return error;
        usleep(100000);
    }
}

int cache_join(struct cache *cache, char why_out[CACHE_WHY])
{
    struct nodes *nodes = new_nodes(cache);
    struct calls *calls = NULL;

    why_out[0] = '\0';
    if (!nodes)
        return -ENOMEM;
    cache->nodes = nodes;
    int error = listen_for_others(nodes, &calls, why_out);
    if (!error)
        error = try_memory(nodes, calls, why_out);
    if (error) {
        calls_close(calls);
        nodes_free(cache);
        return error;
    }
    pthread_mutex_lock(&nodes->lock);
    nodes->calls = calls;
    nodes->stop = false;
    pthread_mutex_unlock(&nodes->lock);
    error = nodes_meet_before_all(nodes, why_out); /* what was begun nodes_stop() and nodes_free() end */
    if (error)
        return error;
    odds_look(nodes, false); /* some were asked before all had been tried */
    pthread_mutex_lock(&nodes->lock);
    nodes->serves = true;
    pthread_mutex_unlock(&nodes->lock);
    odds_look(nodes, false);
    return 0;
}

void nodes_stop(struct cache *cache)
{
    struct nodes *nodes = cache->nodes;

    if (!nodes || !nodes->calls)
        return;
    /* First: as long as it beats, what waits until this node is sure goes on waiting. */
    home_changes_end(nodes);
    pthread_mutex_lock(&nodes->lock);
    nodes->stop = true;
    pthread_cond_broadcast(&nodes->stopped);
    pthread_cond_broadcast(&nodes->untracks);
    pthread_mutex_unlock(&nodes->lock);
    calls_end(nodes->calls);
    nodes_meet_no_more(nodes);
    calls_close(nodes->calls);
    nodes->calls = NULL;
    for (unsigned i = 0; i < nodes->numbers; i++) {
        if (nodes->homes[i].session)
            call_session_put(nodes->homes[i].session);
        nodes->homes[i].session = NULL;
    }
}

void nodes_free(struct cache *cache)
{
    struct nodes *nodes = cache->nodes;

    if (!nodes)
        return;
    followed_clear(&nodes->followed);
    table_free(&nodes->files_by_number);
    pthread_cond_destroy(&nodes->changed);
    pthread_cond_destroy(&nodes->stopped);
    pthread_cond_destroy(&nodes->untracks);
    pthread_mutex_destroy(&nodes->lock);
    free(nodes);
    cache->nodes = NULL;
}

/* ---- statistics ---- */

bool nodes_stat(struct cache *cache, struct nodes_stat *stat_out)
{
    struct nodes *nodes = cache->nodes;
    const struct home_session *agent;

    *stat_out = (struct nodes_stat){0};
    if (!nodes)
        return false;
    pthread_mutex_lock(&nodes->lock);
    stat_out->self = nodes->self;
    stat_out->count = nodes->numbers;
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        memcpy(stat_out->node[i].name, home->member.name, MEMBER_NAME_MAX);
        stat_out->node[i].listed = home->listed;
        stat_out->node[i].down = home->down;
        stat_out->node[i].home = home->session;
    }
    LIST_FOREACH (agent, &nodes->agents, link)
        stat_out->node[agent->member].agent = true;
    stat_out->far_files = nodes->files_by_number.count;
    stat_out->followed = nodes->followed.count;
    if (nodes->calls && !nodes->stop) /* nodes_stop() closes them, when it has had the lock */
        calls_stat(nodes->calls, &stat_out->transfers);
    pthread_mutex_unlock(&nodes->lock);
    for (unsigned i = 0; i <= NODE_OP_LAST; i++)
        stat_out->served[i] = nodes->served[i];
    stat_out->placed = nodes->placed;
    stat_out->placed_by_copy = nodes->placed_by_copy;
    return true;
}

const char *nodes_op_name(enum node_op op)
{
    static const char *const names[] = {
        [NODE_HELLO] = "hello",
        [NODE_TRACK] = "track",
        [NODE_MAP] = "map",
        [NODE_ATTACH] = "attach",
        [NODE_UNMAP] = "unmap",
        [NODE_GONE] = "gone",
        [NODE_FAULT] = "fault",
        [NODE_ACQUIRE] = "acquire",
        [NODE_RELEASE] = "release",
        [NODE_MAP_SYNC] = "map_sync",
        [NODE_ADVISE] = "advise",
        [NODE_SYNC] = "sync",
        [NODE_FLUSH] = "flush",
        [NODE_LEAVE] = "leave",
        [NODE_ROOM] = "room",
        [NODE_OPEN] = "open",
        [NODE_CLOSE] = "close",
        [NODE_OPENED] = "opened",
        [NODE_WRITERS] = "writers",
        [NODE_READ] = "read",
        [NODE_READ_END] = "read_end",
        [NODE_WRITE] = "write",
        [NODE_TRUNCATE] = "truncate",
        [NODE_FALLOCATE] = "fallocate",
        [NODE_SEEK] = "seek",
        [NODE_FOLLOW] = "follow",
        [NODE_UNFOLLOW] = "unfollow",
        [NODE_HANDED] = "handed",
        [NODE_INVALIDATE] = "invalidate",
        [NODE_WRITE_BACK] = "write_back",
        [NODE_PEEK] = "peek",
        [NODE_FRAMES_OPEN] = "frames_open",
        [NODE_FRAMES_CLOSE] = "frames_close",
        [NODE_RESIZE] = "resize",
        [NODE_PLACE] = "place",
        [NODE_FETCH] = "fetch",
        [NODE_DIGESTS] = "digests",
        [NODE_DROP] = "drop",
        [NODE_CLEAR] = "clear",
        [NODE_CUT] = "cut",
        [NODE_MODIFIED] = "modified",
        [NODE_GRANTED] = "granted",
        [NODE_RECALL] = "recall",
        [NODE_GATHER] = "gather",
        [NODE_PATCH] = "patch",
        [NODE_PROTECT] = "protect",
        [NODE_WAKE] = "wake",
        [NODE_EXPOSE] = "expose",
        [NODE_UNPROTECT] = "unprotect",
        [NODE_POISON] = "poison",
        [NODE_REFUSE] = "refuse",
        [NODE_PING] = "ping",
    };

    return op <= NODE_OP_LAST ? names[op] : NULL;
}

/* ---- for fs/ ---- */

/* A node that has just been unmounted may take a moment to be gone. -EBUSY: it lives. */
static int try_members(struct nodes *nodes, const struct members *members, char why_out[CACHE_WHY])
{
    pthread_mutex_lock(&nodes->lock);
    unsigned lives = nodes_left_out(nodes, members);
    if (lives != MEMBERS_MAX)
        snprintf(why_out, CACHE_WHY, "node %s is still mounted, at %s: unmount it first",
                 nodes->homes[lives].member.name, nodes->homes[lives].member.address);
    int error = lives != MEMBERS_MAX ? -EBUSY : enter_members(nodes, members);
    pthread_mutex_unlock(&nodes->lock);
    return error;
}

int cache_set_members(struct cache *cache, const struct members *members, char why_out[CACHE_WHY])
{
    struct nodes *nodes = cache->nodes;
    struct timespec until = lock_wait_until(2 * nodes->timeout_ms);
    int error;

    why_out[0] = '\0';
    while ((error = try_members(nodes, members, why_out)) == -EBUSY && !lock_is_past(&until) &&
           !nodes->ending && nodes_wait(nodes, PARTS_MS))
        ;
    if (error)
        return error;
    why_out[0] = '\0';
    try_memory(nodes, nodes->calls, why_out); /* said, as the others have the list, too */
    nodes_meet_all(nodes, why_out);
    odds_look(nodes, true);
    return 0;
}

bool cache_is_home(const struct cache *cache, const struct node_name *name)
{
    return !cache->nodes || nodes_home_of(cache->nodes, name) == cache->nodes->self;
}

unsigned cache_move_ms(const struct cache *cache)
{
    return cache->nodes ? move_ms(cache->nodes) : 0;
}

bool cache_follows(const struct cache *cache, const struct node_name *name)
{
    uint64_t told;

    return cache->nodes && nodes_follows(cache->nodes, name, &told);
}

int cache_track_far(struct cache *cache, const struct node_name *name)
{
    return agent_track(cache->nodes, name);
}

bool cache_home_moves(const struct cache *cache, const struct node_name *name, int error)
{
    unsigned member = nodes_home_of(cache->nodes, name);

    if (error == -ESTALE) /* since it was asked another one, or this node, may have become its home */
        return member == cache->nodes->self || cache_follows(cache, name) ||
               member != nodes_first_home_of(cache->nodes, name);
    struct call_session *session = nodes_home_session(cache->nodes, member);
    bool lives = session && !call_session_error(session);
    if (session)
        call_session_put(session);
    return !lives;
}

int cache_file_announce(struct cache_file *file, const struct node_name *name)
{
    return file->cache->nodes ? home_announce(file, name) : 0;
}

unsigned cache_sure_ms(const struct cache *cache)
{
    return cache->nodes ? nodes_sure_ms(cache->nodes) : 0;
}
