/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads. The beater notes again and again that this node runs (note_beat()); a beat that is late is a
 * stall, and counts in nodes->stalls. After each stall the asker asks all nodes that there are sessions with,
 * meets the others anew (ask_all()), and has kernels drop what may be from before (cache/behind.h). Then
 * nodes->settled has caught up with nodes->stalls, and this node is sure again. Until then whoever is about
 * to change a file's bytes waits (nodes_be_sure()). */
#include "cache/sure.h"

#include <unistd.h>

#include "base/clock.h"
#include "cache/behind.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "cache/meeter.h"
#include "cache/odds.h"

#define SESSIONS_MAX (3 * MEMBERS_MAX)
#define PAUSE_US 5000u
#define BEATS 8u /* in beat_ms */

/* What others had asked and said before they gave this node up may be here, and not looked at; and they do
 * not hear of it that they have been given up wrongly. So each is asked, and what it had told before is done.
 */
struct asked_one {
    struct call_session *session; /* a reference */
    struct nodes_asking asking;
};

/* Of a clock that goes on while the machine sleeps. */
static uint64_t now_ns(void)
{
    return clock_read_ns(CLOCK_BOOTTIME);
}

static uint64_t most_ns(const struct nodes *nodes)
{
    return (uint64_t)nodes->beat_ms * 500000; /* half of it */
}

/* It is seen that this node runs. If it has not for long, that is said before anybody is taken to be sure
 * again. nodes->lock is held. */
static void note_beat(struct nodes *nodes)
{
    uint64_t heard = clock_read_ns(CLOCK_REALTIME); /* first: it may stand still between the two */
    uint64_t now = now_ns();

    if (now - nodes->beat_ns >= most_ns(nodes)) {
        if (nodes->stalls == nodes->settled)
            nodes->still_ns = nodes->heard_ns;
        nodes->stalls++;
        pthread_cond_broadcast(&nodes->stopped);
    }
    nodes->beat_ns = now;
    nodes->heard_ns = heard;
}

/* Not left to the beater: it may stand still before that has heard of it. */
void sure_heed(struct nodes *nodes, unsigned member, const struct call_session *session)
{
    unsigned shortest_ms = nodes->timeout_ms;

    nodes->homes[member].timeout_ms = call_session_timeout_ms(session);
    for (unsigned i = 0; i < nodes->numbers; i++) {
        unsigned its_ms = nodes->homes[i].listed ? nodes->homes[i].timeout_ms : 0;
        if (its_ms && its_ms < shortest_ms)
            shortest_ms = its_ms;
    }
    if (nodes->beat_ns) /* by the one before */
        note_beat(nodes);
    nodes->beat_ms = shortest_ms;
    pthread_cond_broadcast(&nodes->stopped); /* it is time to beat faster, perhaps */
}

/* There was a stall that nobody has noticed yet. */
static bool is_late(const struct nodes *nodes)
{
    uint64_t most = most_ns(nodes); /* first: where it becomes less there is a beat just before */
    uint64_t beat_ns = nodes->beat_ns;

    return beat_ns && now_ns() - beat_ns >= most;
}

bool nodes_are_sure(const struct nodes *nodes)
{
    return !nodes->beat_ns || (nodes->stalls == nodes->settled && !is_late(nodes));
}

bool nodes_must_wait(const struct nodes *nodes)
{
    return !nodes_are_sure(nodes) || nodes_odds_may_end(nodes);
}

uint64_t nodes_stalls(const struct nodes *nodes)
{
    return nodes->stalls + is_late(nodes);
}

uint64_t nodes_still_since(struct nodes *nodes)
{
    uint64_t clocks_ns = (uint64_t)nodes->timeout_ms * 1000000; /* they agree to less */

    pthread_mutex_lock(&nodes->lock);
    uint64_t still_ns = nodes->still_ns;
    pthread_mutex_unlock(&nodes->lock);
    return still_ns < clocks_ns ? 0 : still_ns - clocks_ns;
}

/* A node that asks the others is done within this time, whether they answer or not, with greet()'s tries. */
unsigned nodes_sure_ms(const struct nodes *nodes)
{
    return 7 * nodes->timeout_ms + 10000;
}

static void note_released(struct leaf *leaf, void *context)
{
    *(bool *)context |= leaf->released != 0;
}

/* The lock is held. */
static bool has_released(const struct cache_file *file)
{
    bool any = false;

    index_each(&file->index, note_released, &any);
    return any;
}

bool nodes_need_not_wait(struct cache_file *file, unsigned change)
{
    if (!nodes_must_wait(file->cache->nodes) || file->given_up)
        return true;
    if (change == KERNELS_NOBODY)
        return false;
    pthread_mutex_lock(&file->lock);
    bool need_not = change == SURE_COLLECTS ? !has_released(file) : kernels_refused(file, change);
    pthread_mutex_unlock(&file->lock);
    return need_not;
}

static bool has_ended(const struct call_session *session)
{
    return session && call_session_error(session);
}

bool nodes_be_sure(struct cache_file *file, unsigned change, const struct call_session *session)
{
    unsigned turns = nodes_sure_ms(file->cache->nodes) * 1000 / PAUSE_US;

    while (!nodes_need_not_wait(file, change) && !has_ended(session) && turns--)
        usleep(PAUSE_US);
    return !has_ended(session);
}

bool nodes_be_sure_of_all(struct nodes *nodes, const struct call_session *session)
{
    unsigned turns = nodes_sure_ms(nodes) * 1000 / PAUSE_US;

    while (nodes_must_wait(nodes) && !has_ended(session) && turns--)
        usleep(PAUSE_US);
    return !has_ended(session);
}

/* Of either direction, homes' first. */
static unsigned find_sessions(struct nodes *nodes, struct asked_one found[SESSIONS_MAX], unsigned *homes_out)
{
    const struct home_session *agent;
    unsigned count = 0;

    pthread_mutex_lock(&nodes->lock);
    for (unsigned i = 0; i < nodes->numbers; i++)
        if (nodes->homes[i].session)
            found[count++].session = nodes->homes[i].session;
    *homes_out = count;
    LIST_FOREACH (agent, &nodes->agents, link)
        if (count < SESSIONS_MAX)
            found[count++].session = agent->session;
    for (unsigned i = 0; i < count; i++)
        call_session_get(found[i].session);
    pthread_mutex_unlock(&nodes->lock);
    return count;
}

/* What each said before its answer is done: FOLLOW, above all. Or its session has ended. All at once: many
 * that go on asking must not take longer than a change of a file waits. */
static void await_said(const struct nodes *nodes, const struct asked_one *one, unsigned count)
{
    unsigned turns = nodes->timeout_ms * 1000 / PAUSE_US;
    bool done[SESSIONS_MAX] = {false}, any = true;

    while (any && turns--) {
        any = false;
        for (unsigned i = 0; i < count; i++) {
            done[i] |= call_session_error(one[i].session) || !call_session_is_asked(one[i].session);
            any |= !done[i];
        }
        if (any)
            usleep(PAUSE_US);
    }
}

/* That lost() has begun with those that have ended. */
static void await_lost(struct nodes *nodes)
{
    unsigned turns = nodes->timeout_ms * 1000 / PAUSE_US;
    bool any = true;

    while (any && turns--) {
        any = false;
        pthread_mutex_lock(&nodes->lock);
        for (unsigned i = 0; i < nodes->numbers; i++)
            any |= nodes->homes[i].session && call_session_error(nodes->homes[i].session);
        any &= !nodes->stop;
        pthread_mutex_unlock(&nodes->lock);
        if (any)
            usleep(PAUSE_US);
    }
}

static void ask_all(struct nodes *nodes)
{
    struct asked_one one[SESSIONS_MAX];
    unsigned homes, count = find_sessions(nodes, one, &homes);

    for (unsigned i = 0; i < count; i++)
        nodes_begin(one[i].session, NODE_PINGS, NODE_PING, &(struct node_request){0}, &one[i].asking);
    for (unsigned i = 0; i < count; i++)
        nodes_end(&one[i].asking, NULL);
    await_said(nodes, one, homes);
    for (unsigned i = 0; i < count; i++)
        call_session_put(one[i].session);
    await_lost(nodes);
    nodes_meet_missed(nodes);
}

/* Its session as an agent, begun before the n-th stall; NULL. nodes->lock is held. */
static const struct home_session *agent_of(const struct nodes *nodes, unsigned member, uint64_t stall)
{
    const struct home_session *agent;

    LIST_FOREACH (agent, &nodes->agents, link)
        if (agent->member == member && agent->since < stall && !call_session_error(agent->session))
            return agent;
    return NULL;
}

/* Whether a member may have taken this node to be dead in the n-th stall: if not, both sessions with it are
 * those from before. A member that is down may have come and gone meanwhile. */
static bool was_left_alone(struct nodes *nodes, uint64_t stall)
{
    bool alone = false;

    pthread_mutex_lock(&nodes->lock);
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        bool ours = home->session && home->since < stall && !call_session_error(home->session);
        alone |= home->listed && i != nodes->self && !(ours && agent_of(nodes, i, stall));
    }
    pthread_mutex_unlock(&nodes->lock);
    return alone;
}

/* Waits until each member that has been met knows what is tracked here: from then on it changes nothing of
 * that without asking. */
static void await_told(struct nodes *nodes)
{
    unsigned turns = 2 * nodes->timeout_ms * 1000 / PAUSE_US;
    bool any = true;

    while (any && turns--) {
        any = false;
        pthread_mutex_lock(&nodes->lock);
        for (unsigned i = 0; i < nodes->numbers; i++) {
            const struct home_session *agent = agent_of(nodes, i, UINT64_MAX);
            any |= nodes->homes[i].session && !(agent && agent->told);
        }
        any &= !nodes->stop;
        pthread_mutex_unlock(&nodes->lock);
        if (any)
            usleep(PAUSE_US);
    }
}

/* False: the mount ends. */
static bool await_beat(struct nodes *nodes)
{
    int late = 0;

    pthread_mutex_lock(&nodes->lock);
    unsigned beat_ms = nodes->beat_ms;
    struct timespec until = lock_wait_until(beat_ms / BEATS);
    while (!nodes->stop && !late && nodes->beat_ms == beat_ms)
        late = pthread_cond_timedwait(&nodes->stopped, &nodes->lock, &until);
    bool stop = nodes->stop;
    pthread_mutex_unlock(&nodes->lock);
    return !stop;
}

/* This thread runs, so the node does. */
static void *beat(void *argument)
{
    struct nodes *nodes = argument;

    pthread_mutex_lock(&nodes->lock);
    nodes->heard_ns = clock_read_ns(CLOCK_REALTIME);
    nodes->beat_ns = now_ns();
    pthread_mutex_unlock(&nodes->lock);
    while (await_beat(nodes)) {
        pthread_mutex_lock(&nodes->lock);
        note_beat(nodes);
        pthread_mutex_unlock(&nodes->lock);
    }
    pthread_mutex_lock(&nodes->lock);
    nodes->beat_ns = 0; /* the mount ends */
    pthread_mutex_unlock(&nodes->lock);
    return NULL;
}

/* Not the one that beats, as that one must not wait for others: a member that is down takes its time. */
static void *ask_after_stalls(void *argument)
{
    struct nodes *nodes = argument;

    for (;;) {
        pthread_mutex_lock(&nodes->lock);
        while (!nodes->stop && nodes->stalls == nodes->settled)
            pthread_cond_wait(&nodes->stopped, &nodes->lock);
        bool stop = nodes->stop;
        pthread_mutex_unlock(&nodes->lock);
        if (stop)
            return NULL;
        uint64_t stalls = nodes->stalls;
        ask_all(nodes);
        bool alone = was_left_alone(nodes, stalls);
        if (alone)
            await_told(nodes);
        behind_settle(nodes, stalls, alone); /* before anybody's write-back goes on */
        nodes->settled = stalls;             /* if it has stood still meanwhile they are asked again */
    }
}

int nodes_beat(struct nodes *nodes)
{
    int error = -pthread_create(&nodes->asker, NULL, ask_after_stalls, nodes);

    nodes->asks = !error;
    if (!error)
        error = -pthread_create(&nodes->beater, NULL, beat, nodes);
    nodes->beats = !error;
    return error;
}

void nodes_beat_no_more(struct nodes *nodes)
{
    if (nodes->beats)
        pthread_join(nodes->beater, NULL);
    if (nodes->asks)
        pthread_join(nodes->asker, NULL);
    nodes->beats = nodes->asks = false;
}
