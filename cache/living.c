/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/living.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cache/home.h"
#include "cache/internal.h"
#include "cache/meet.h"
#include "cache/meeter.h"

#define LOOK_AGAIN_MS 250u
#define PARTING_MS 60000u /* cache/leave.c waits so long for who says nothing */

/* There is a session with it as a home. nodes->lock is held. */
static bool is_ours(const struct nodes_home *home)
{
    return home->session && !call_session_error(home->session);
}

uint64_t nodes_living(struct nodes *nodes, uint64_t *epoch_out)
{
    const struct home_session *agent;
    uint64_t living = 0;

    pthread_mutex_lock(&nodes->lock);
    const struct members *members = nodes->members;
    for (unsigned i = 0; i < members->count; i++) {
        unsigned number = nodes_number_of(nodes, members->list[i].name, strlen(members->list[i].name));
        bool lives = is_ours(&nodes->homes[number]);
        LIST_FOREACH (agent, &nodes->agents, link)
            lives |= agent->member == number && !call_session_error(agent->session);
        living |= (uint64_t)lives << i;
    }
    *epoch_out = members->epoch;
    pthread_mutex_unlock(&nodes->lock);
    return living;
}

uint64_t nodes_living_one(struct nodes *nodes, uint64_t which, uint64_t *count_out)
{
    uint64_t epoch, living = nodes_living(nodes, &epoch);

    pthread_mutex_lock(&nodes->lock);
    const struct members *members = nodes->members;
    const char *name =
        which <= members->count && living >> (which - 1) & 1 ? members->list[which - 1].name : "";
    uint64_t hash = *name && members->epoch == epoch ? member_hash(name) : 0;
    *count_out = members->count;
    pthread_mutex_unlock(&nodes->lock);
    return hash;
}

/* Which members live, as those say that have been met: nodes_living(). A member that can't be reached may
 * live all the same. */
static uint64_t ask_who_lives(struct nodes *nodes)
{
    uint64_t living = 0, epoch;

    nodes_living(nodes, &epoch);
    for (unsigned i = 0; i < MEMBERS_MAX; i++) {
        struct call_session *session = nodes_home_session(nodes, i);
        struct node_reply reply;
        size_t length = sizeof reply;
        if (!session)
            continue;
        int error = call(session, NODE_PINGS, NODE_PING, &(struct node_request){0},
                         sizeof(struct node_request), &reply, &length, nodes->timeout_ms);
        if (!error && length == sizeof reply && reply.value[1] == epoch)
            living |= reply.value[0];
        call_session_put(session);
    }
    return living;
}

static bool has_it_where_it_is(const struct members *fresh, const struct member *member)
{
    for (unsigned i = 0; i < fresh->count; i++)
        if (!strcmp(fresh->list[i].name, member->name))
            return fresh->list[i].carrier == member->carrier &&
                   !strcmp(fresh->list[i].address, member->address);
    return false;
}

unsigned nodes_left_out(const struct nodes *nodes, const struct members *fresh)
{
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        const struct home_session *agent;
        bool lives = i == nodes->self || is_ours(home);
        LIST_FOREACH (agent, &nodes->agents, link)
            lives |= agent->member == i && !call_session_error(agent->session);
        if (lives && home->listed && !has_it_where_it_is(fresh, &home->member))
            return i;
    }
    return MEMBERS_MAX;
}

/* nodes->lock is held. */
static bool is_said_to_live(const struct nodes *nodes, uint64_t living, unsigned member)
{
    const struct members *members = nodes->members;

    for (unsigned i = 0; i < members->count; i++)
        if (!strcmp(members->list[i].name, nodes->homes[member].member.name))
            return living >> i & 1;
    return false;
}

/* It lives, or nothing is known of it, as this node's own device has gone: without one it could not be
 * mounted either. */
static bool can_not_be_met(int error)
{
    return meet_lives(error) || error == -ENODEV;
}

/* Why this node can't serve yet: a member that lives has not been met, or has not met this node. 0: there is
 * none; one that is down is met when it comes. living: what others say. nodes->lock is held. */
static int unmet(const struct nodes *nodes, uint64_t living, char why_out[CALL_WHY])
{
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        bool ours = is_ours(home), said = is_said_to_live(nodes, living, i);
        if (i == nodes->self || !home->listed || (ours && nodes_has_met(nodes, i)))
            continue;
        if (!ours && meet_refused(home->error)) { /* it has come to say so since nodes_meet_all() */
            snprintf(why_out, CALL_WHY, "node %s %s", home->member.name, meet_differs(home->error));
            return home->error;
        }
        if (!ours && !home->connecting && !home->session && !can_not_be_met(home->error) && !said)
            continue;
        if (!ours && (can_not_be_met(home->error) || said))
            snprintf(why_out, CALL_WHY, "node %s %s, and can't be met: %.*s", home->member.name,
                     home->error == -ENODEV && !said ? "may live" : "lives", CALL_WHY / 2, home->why);
        else
            snprintf(why_out, CALL_WHY,
                     "node %s lives, and has not met this one in %u ms: its log may say why",
                     home->member.name, 2 * nodes->timeout_ms);
        return !ours && can_not_be_met(home->error) ? home->error : -ETIMEDOUT;
    }
    return 0;
}

int nodes_meet_before_all(struct nodes *nodes, char why_out[CALL_WHY])
{
    const struct cache_host *host = &nodes->cache->host;
    int error = nodes_meet_all(nodes, why_out);
    unsigned patience_ms = 2 * nodes->timeout_ms;
    struct timespec until = lock_wait_until(patience_ms);
    struct timespec parted = lock_wait_until(patience_ms < PARTING_MS ? PARTING_MS : patience_ms);

    if (error)
        return error;
    do {
        uint64_t living = ask_who_lives(nodes);
        pthread_mutex_lock(&nodes->lock);
        error = unmet(nodes, living, why_out);
        if (error) {
            struct timespec next = lock_wait_until(LOOK_AGAIN_MS);
            pthread_cond_timedwait(&nodes->changed, &nodes->lock, &next);
        }
        pthread_mutex_unlock(&nodes->lock);
        if (meet_parts(error)) /* others may hear of its end later, and have yet to meet this node */
            until = lock_wait_until(patience_ms);
    } while (error && !lock_is_past(meet_parts(error) ? &parted : &until) && !host->stops(host->context));
    if (!error)
        why_out[0] = '\0';
    return error;
}
