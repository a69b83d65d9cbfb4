/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/home.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/behind.h"
#include "cache/client.h"
#include "cache/home_device.h"
#include "cache/home_open.h"
#include "cache/internal.h"
#include "cache/living.h"
#include "cache/meet.h"
#include "cache/odds.h"
#include "cache/sure.h"

/* A client of an agent's. */
struct home_client {
    LIST_ENTRY(home_client) link;
    uint32_t number;
    struct cache_client *cache;
    unsigned references; /* the list's and operations' */
};

/* ---- its clients' maps ---- */

/* The session's lock is held. */
static struct home_client *find_client(const struct home_session *agent, uint32_t number)
{
    struct home_client *client;

    LIST_FOREACH (client, &agent->clients, link)
        if (client->number == number)
            return client;
    return NULL;
}

static struct home_client *client_get(struct home_session *agent, uint32_t number)
{
    struct home_client *client;

    pthread_mutex_lock(&agent->lock);
    client = find_client(agent, number);
    if (client)
        client->references++;
    pthread_mutex_unlock(&agent->lock);
    return client;
}

static void client_put(struct home_session *agent, struct home_client *client)
{
    pthread_mutex_lock(&agent->lock);
    bool last = --client->references == 0;
    pthread_mutex_unlock(&agent->lock);
    if (!last)
        return;
    cache_client_close(client->cache);
    free(client);
}

/* The client of a number, made when there is none. */
static int client_make(struct home_session *agent, uint32_t number, struct home_client **client_out)
{
    struct home_client *client = client_get(agent, number), *other;

    *client_out = client;
    if (client)
        return 0;
    client = calloc(1, sizeof *client);
    if (!client)
        return -ENOMEM;
    int error = cache_client_open_far(agent->nodes->cache, agent->member + 1, number, &client->cache);
    if (error) {
        free(client);
        return error;
    }
    client->number = number;
    client->references = 2;
    pthread_mutex_lock(&agent->lock);
    other = find_client(agent, number);
    if (other)
        other->references++;
    else
        LIST_INSERT_HEAD(&agent->clients, client, link);
    pthread_mutex_unlock(&agent->lock);
    if (other) {
        cache_client_close(client->cache);
        free(client);
        client = other;
    }
    *client_out = client;
    return 0;
}

static int client_gone(struct home_session *agent, uint32_t number)
{
    struct home_client *client;

    pthread_mutex_lock(&agent->lock);
    client = find_client(agent, number);
    if (client)
        LIST_REMOVE(client, link);
    pthread_mutex_unlock(&agent->lock);
    if (!client)
        return -ENOENT;
    client_put(agent, client);
    return 0;
}

static int map_open(struct home_session *agent, struct home_client *client, struct home_open *open,
                    const struct node_request *request, struct node_reply *reply)
{
    struct cache_map_request wish = {.file = open->file,
                                     .first = (uint64_t)request->offset / GAIA_PAGE_SIZE,
                                     .count = request->length / GAIA_PAGE_SIZE,
                                     .writable = request->flags & NODE_MAP_WRITABLE,
                                     .resident = request->flags & NODE_MAP_RESIDENT};
    int frames_fd, state_fd = -1;
    uint64_t frames;
    uint32_t id;

    if (request->offset < 0 || request->offset % GAIA_PAGE_SIZE || request->length % GAIA_PAGE_SIZE ||
        !request->length || request->length > INT64_MAX - GAIA_PAGE_SIZE ||
        request->offset > INT64_MAX - GAIA_PAGE_SIZE - (int64_t)request->length)
        return -EINVAL;
    int error = home_device_get(agent, request->device, request->value, &wish.device);
    if (!error)
        error = cache_map_open(client->cache, &wish, &id, &frames_fd, &state_fd, &frames);
    if (error)
        return error;
    reply->value[0] = id;
    reply->value[1] = frames;
    return 0;
}

static int do_map(struct home_session *agent, const struct node_request *request, struct node_reply *reply)
{
    struct home_open *open = home_open_get(agent, request->file);
    struct home_client *client;

    if (!open)
        return -EBADF;
    int error = client_make(agent, request->client, &client);
    if (!error) {
        error = map_open(agent, client, open, request, reply);
        client_put(agent, client);
    }
    error = home_open_said(open, error);
    home_open_put(open);
    return error;
}

static int do_client(struct cache_client *client, enum node_op op, const struct node_request *request,
                     struct node_reply *reply)
{
    uint64_t offset = (uint64_t)request->offset, changes, poisonings = 0;
    int error;

    switch (op) {
    case NODE_ATTACH:
        return cache_map_attach_far(client, request->map, request->address, request->flags & NODE_TRAPS);
    case NODE_UNMAP:
        return cache_map_close(client, request->map);
    case NODE_FAULT:
        return cache_client_fault(client,
                                  &(struct gaia_fault){.address = request->address,
                                                       .write = request->flags & NODE_FAULT_WRITE,
                                                       .protection = request->flags & NODE_FAULT_PROTECTION,
                                                       .thread = request->thread});
    case NODE_ACQUIRE:
        error = cache_map_acquire(client, request->map, offset, request->length, &changes, &poisonings);
        reply->value[0] = (poisonings ? NODE_ACQUIRE_POISONED : 0) | (error > 0 ? NODE_ACQUIRE_FLUSH : 0);
        reply->value[1] = error < 0 ? 0 : changes;
        return error < 0 ? error : 0;
    case NODE_RELEASE:
        return cache_map_release(client, request->map, offset, request->length);
    case NODE_MAP_SYNC:
        return cache_map_sync(client, request->map, offset, request->length);
    default: /* NODE_ADVISE */
        return cache_map_advise(client, request->map, offset, request->length, request->flags);
    }
}

static int serve_client(struct home_session *agent, enum node_op op, const struct node_request *request,
                        struct node_reply *reply)
{
    struct home_client *client = client_get(agent, request->client);

    if (!client)
        return -ENOENT;
    int result = do_client(client->cache, op, request, reply);
    /* Looked at after it: who leaves says so before it collects for the last time. */
    if (!result && (op == NODE_RELEASE || op == NODE_ACQUIRE) && (agent->nodes->leaving || agent->parting))
        result = -EIO;
    client_put(agent, client);
    return result;
}

/* ---- files ---- */

static int do_track(struct home_session *agent, const struct node_request *request, struct node_reply *reply)
{
    struct cache *cache = agent->nodes->cache;
    struct cache_file *file;

    int error = cache->host.track(cache->host.context, &request->name, &file); /* in use, and announced */
    if (!error)
        file_unuse(file);
    else if (error == -ESTALE)
        nodes_say_home(agent->nodes, &request->name, reply);
    return error;
}

/* Nodes read a new list one after the other. Two that lose each other meanwhile meet again, as long as both
 * are on both lists: each would take the other for dead, and its files over, while both write to the data
 * directory. So does one that was mounted anew with the new list while this one stood still. One that is just
 * being mounted must have the list. */
static bool has_list(const struct nodes *nodes, unsigned member, const struct node_request *hello)
{
    return hello->value == nodes->members->epoch ||
           (hello->flags & (NODE_MET | NODE_SERVES) && member != MEMBERS_MAX && nodes->homes[member].listed);
}

/* Who serves, and is refused, is at odds with this node from then on (cache/odds.h): unless this one is no
 * judge of that. nodes->lock is held. */
static int refusal(const struct nodes *nodes, const struct node_request *hello)
{
    if (hello->offset != NODE_VERSION || !(hello->flags & NODE_SERVES))
        return -EPROTONOSUPPORT;
    if (!meet_has_directory(nodes, hello)) /* no judge, either: it is no node of the same cache */
        return -EMEDIUMTYPE;
    if (!nodes_at_odds(nodes))
        return nodes->serves && nodes_are_sure(nodes) ? -EREMCHG : -ENONET;
    /* That it was taken off the list is so, whatever this node does not know. */
    return odds_was_listed(nodes, &hello->name) ? -ENONET : -ENOLINK;
}

/* One that was here before may not have been cleared away; if it lives on, this is an impostor. */
static int enter(struct home_session *agent, const struct node_request *request)
{
    struct nodes *nodes = agent->nodes;
    struct home_session *other;
    int error = 0;

    pthread_mutex_lock(&nodes->lock);
    unsigned member = nodes_number_of(nodes, (const char *)request->name.bytes, request->name.length);
    if (nodes->leaving)
        error = -ESHUTDOWN;
    else if (request->offset != NODE_VERSION || !has_list(nodes, member, request))
        error = refusal(nodes, request);
    else if (!(request->flags & NODE_SERVES) && !meet_has_directory(nodes, request))
        error = -EMEDIUMTYPE;
    else if (!meet_is_meant(nodes, request))
        error = -EPERM;
    else if (member == MEMBERS_MAX || member == nodes->self)
        error = -EACCES;
    else if (agent->member != MEMBERS_MAX) /* it has entered already, perhaps by another name */
        error = -EPROTO;
    LIST_FOREACH (other, &nodes->agents, link)
        if (!error && other->member == member)
            error = -EBUSY;
    if (!error) {
        agent->member = member;
        nodes->homes[member].down = false;
        if (request->flags & NODE_LATE_KERNEL)
            nodes->late_kernels |= UINT64_C(2) << member;
        else
            nodes->late_kernels &= ~(UINT64_C(2) << member);
        agent->entered = ++nodes->entered;
        agent->since = nodes_stalls(nodes);
        sure_heed(nodes, member, agent->session);
        LIST_INSERT_HEAD(&nodes->agents, agent, link);
        pthread_cond_broadcast(&nodes->changed); /* nodes_meet_before_all() */
    }
    pthread_mutex_unlock(&nodes->lock);
    return error;
}

/* Clocks must agree to less than peer_timeout (cache/sure.h, nodes_generation()). Its word was on its way for
 * a while, so that its clock is ahead is sure, and that it is behind the other finds when it is greeted. */
static void look_at_clock(const struct home_session *agent, const struct node_request *hello)
{
    const struct cache_host *host = &agent->nodes->cache->host;
    uint64_t now_ns = clock_read_ns(CLOCK_REALTIME);
    uint64_t most_ns = UINT64_C(1000000) * call_session_timeout_ms(agent->session);
    char text[NODE_NAME_MAX + 120];

    if (hello->address < now_ns || hello->address - now_ns < most_ns || !host->warn)
        return;
    snprintf(
        text, sizeof text,
        "the clock of node %.*s is %.1f s ahead of this node's: they must agree to less than peer_timeout",
        (int)hello->name.length, (const char *)hello->name.bytes, (double)(hello->address - now_ns) * 1e-9);
    host->warn(host->context, text);
}

/* Each was mounted when it could not meet the other: to refuse it now would be to take its files over. */
static void look_at_directory(const struct home_session *agent, const struct node_request *hello)
{
    const struct cache_host *host = &agent->nodes->cache->host;
    char text[NODE_NAME_MAX + 120];

    if (meet_has_directory(agent->nodes, hello) || !host->warn)
        return;
    snprintf(text, sizeof text,
             "node %.*s is mounted over another data directory than this one: unmount the one that is wrong",
             (int)hello->name.length, (const char *)hello->name.bytes);
    host->warn(host->context, text);
}

static int do_hello(struct home_session *agent, const struct node_request *request)
{
    int error = odds_with_who_comes(agent->nodes, request, agent->session);

    error = error ? error : enter(agent, request);
    if (error)
        return error;
    look_at_clock(agent, request);
    look_at_directory(agent, request);
    nodes_meet(agent->nodes, agent->member); /* it may track files, too */
    error = home_announce_all(agent);
    if (error)
        return error;
    behind_look_for(agent);
    pthread_mutex_lock(&agent->nodes->lock);
    agent->told = true;
    pthread_mutex_unlock(&agent->nodes->lock);
    return 0;
}

/* For the last time. */
static int empty(struct home_session *agent)
{
    agent->parting = true;
    return home_device_empty(agent);
}

/* Whether this node must be sure before: what begins to track a file, and what may bring to the data
 * directory what devices have released, of any file: where one needs room another one's pages go. (What
 * programs do to files: cache/home_open.c.) */
static bool needs_sure(enum node_op op)
{
    return op == NODE_TRACK || op == NODE_FAULT || op == NODE_ACQUIRE || op == NODE_RELEASE ||
           op == NODE_MAP_SYNC || op == NODE_ADVISE || op == NODE_LEAVE || op == NODE_ROOM;
}

/* What may write to the data directory: a READ, a SEEK or the end of a map collects. */
static bool may_change(enum node_op op)
{
    return needs_sure(op) || op == NODE_UNMAP || op == NODE_GONE || op == NODE_CLOSE || op == NODE_SYNC ||
           (op >= NODE_READ && op <= NODE_SEEK);
}

/* Those of NODE_IO: the others may wait for a kernel, or for a client, that waits for one of them. */
static enum nodes_change kind_of(enum node_op op)
{
    return op == NODE_CLOSE || op >= NODE_READ ? CHANGE_OF_IO : CHANGE_THAT_WAITS;
}

/* False: this node's sessions are about to be closed, this one has been, and the answer goes nowhere. The
 * agent asks the next home. */
static bool begin_change(struct home_session *agent, enum nodes_change kind)
{
    struct nodes *nodes = agent->nodes;

    pthread_mutex_lock(&nodes->lock);
    bool may = kind >= nodes->closes;
    nodes->changing[kind] += may;
    pthread_mutex_unlock(&nodes->lock);
    while (!may && !call_session_error(agent->session))
        usleep(1000);
    return may;
}

static void end_change(struct nodes *nodes, enum nodes_change kind)
{
    pthread_mutex_lock(&nodes->lock);
    if (!--nodes->changing[kind] && nodes->closes)
        pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock);
}

void home_changes_end(struct nodes *nodes)
{
    struct timespec until = lock_wait_until(nodes->timeout_ms);
    int late = 0;

    pthread_mutex_lock(&nodes->lock);
    for (unsigned kind = 0; kind < CHANGE_KINDS; kind++) {
        nodes->closes = kind + 1;
        while (nodes->changing[kind] && !late)
            late = pthread_cond_timedwait(&nodes->changed, &nodes->lock, &until);
    }
    pthread_mutex_unlock(&nodes->lock);
}

static int serve(struct home_session *agent, enum node_op op, const struct node_request *request,
                 struct node_reply *reply)
{
    if (needs_sure(op) && !nodes_be_sure_of_all(agent->nodes, agent->session))
        return -EIO;
    if (op == NODE_TRACK)
        return do_track(agent, request, reply);
    if (op == NODE_MAP)
        return do_map(agent, request, reply);
    if (op == NODE_LEAVE)
        return empty(agent);
    if (op == NODE_ROOM) {
        reply->value[0] = home_device_room(agent, request->device, request->length);
        return 0;
    }
    if (op == NODE_GONE)
        return client_gone(agent, request->client);
    if (op == NODE_OPEN)
        return home_open_make(agent, request, reply);
    if (op == NODE_CLOSE)
        return home_open_close(agent, request->file);
    if (op <= NODE_ADVISE)
        return serve_client(agent, op, request, reply);
    if (op <= NODE_READ_END)
        return home_open_serve(agent, op, request, reply);
    return -EPROTO;
}

int home_serve(struct home_session *agent, enum node_op op, const struct node_request *request,
               struct node_reply *reply)
{
    struct nodes *nodes = agent->nodes;

    pthread_mutex_lock(&nodes->lock);
    bool known = agent->member != MEMBERS_MAX;
    pthread_mutex_unlock(&nodes->lock);
    if (op == NODE_HELLO)
        return known ? -EPROTO : do_hello(agent, request);
    if (!known)
        return -EACCES;
    if (op == NODE_PING) {
        reply->value[0] = request->value ? nodes_living_one(nodes, request->value, &reply->value[1])
                                         : nodes_living(nodes, &reply->value[1]);
        return 0;
    }
    if (!may_change(op))
        return serve(agent, op, request, reply);
    enum nodes_change kind = kind_of(op);
    if (!begin_change(agent, kind))
        return -EIO;
    int result = serve(agent, op, request, reply);
    end_change(nodes, kind);
    return result;
}

/* ---- sessions ---- */

int home_session_begin(struct nodes *nodes, struct call_session *session)
{
    struct home_session *agent = calloc(1, sizeof *agent);

    if (!agent)
        return -ENOMEM;
    agent->nodes = nodes;
    agent->session = session;
    agent->member = MEMBERS_MAX;
    lock_init(&agent->lock, LOCK_HOME_SESSION);
    LIST_INIT(&agent->opens);
    LIST_INIT(&agent->clients);
    call_session_set_user(session, agent);
    return 0;
}

void home_session_end(struct home_session *agent)
{
    struct home_client *client;
    struct home_open *open;

    while ((client = LIST_FIRST(&agent->clients)))
        client_gone(agent, client->number);
    home_device_lost(agent);
    while ((open = LIST_FIRST(&agent->opens)))
        home_open_close(agent, open->number);
    pthread_mutex_lock(&agent->nodes->lock); /* last: the same member may come again then */
    if (agent->member != MEMBERS_MAX)
        LIST_REMOVE(agent, link);
    pthread_mutex_unlock(&agent->nodes->lock);
    call_session_put(agent->session);
    table_free(&agent->opens_by_number);
    pthread_mutex_destroy(&agent->lock);
    free(agent);
}
