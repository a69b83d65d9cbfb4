/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/meeter.h"

#include <stdio.h>
#include <string.h>

#include "cache/home.h"
#include "cache/meet.h"
#include "cache/odds.h"
#include "cache/sure.h"

#define HURRY_MS 250u

/* False: nodes->stop is set. */
static bool await_turn(struct nodes *nodes)
{
    struct timespec until =
        lock_wait_until(nodes->timeout_ms < MEET_AGAIN_MS ? nodes->timeout_ms : MEET_AGAIN_MS);
    int late = 0;

    pthread_mutex_lock(&nodes->lock);
    while (!nodes->stop && !nodes->hurries && !late)
        late = pthread_cond_timedwait(&nodes->stopped, &nodes->lock, &until);
    bool stop = nodes->stop, hurries = nodes->hurries;
    nodes->hurries = false;
    pthread_mutex_unlock(&nodes->lock);
    return hurries ? nodes_wait(nodes, HURRY_MS) : !stop;
}

struct meeting {
    struct nodes *nodes;
    unsigned number;
    struct member member;
    bool waits;         /* for somebody else who is connecting, and then connects if that was in vain */
    bool wanted, alone; /* it is to be met; by a thread of its own */
    pthread_t thread;
    int error;
};

static void *meet(void *argument)
{
    struct meeting *meeting = argument;

    if (meeting->waits)
        nodes_meet_from_now(meeting->nodes, meeting->number);
    else
        meeting->error = nodes_meet(meeting->nodes, meeting->number);
    return NULL;
}

/* It is listed, and there is no session with it. */
static bool is_missed(struct nodes *nodes, unsigned number, struct member *member_out)
{
    struct call_session *session = nodes_home_session(nodes, number);

    if (session)
        call_session_put(session);
    return !session && nodes_wants(nodes, number, member_out);
}

/* Those that are missed, all at once. This thread meets the last of them, and those that got no thread. */
static void meet_each(struct nodes *nodes, struct meeting one[MEMBERS_MAX], bool waits)
{
    unsigned last = MEMBERS_MAX;

    for (unsigned i = 0; i < MEMBERS_MAX; i++) {
        one[i] = (struct meeting){.nodes = nodes, .number = i, .waits = waits};
        one[i].wanted = is_missed(nodes, i, &one[i].member);
        last = one[i].wanted ? i : last;
    }
    for (unsigned i = 0; i < MEMBERS_MAX; i++)
        one[i].alone = one[i].wanted && i != last && !pthread_create(&one[i].thread, NULL, meet, &one[i]);
    for (unsigned i = 0; i < MEMBERS_MAX; i++)
        if (one[i].wanted && !one[i].alone)
            meet(&one[i]);
    for (unsigned i = 0; i < MEMBERS_MAX; i++)
        if (one[i].alone)
            pthread_join(one[i].thread, NULL);
}

void nodes_meet_missed(struct nodes *nodes)
{
    struct meeting one[MEMBERS_MAX];

    meet_each(nodes, one, true);
}

/* A member that does not answer when it is to be met is not asked again because of what programs do: others
 * are homes of its files. It may have been still, or busy with the end of an earlier session, when it was
 * tried, and so may this node. A member that lives, as it has met this node or has said why it can't be met,
 * is tried again soon. */
static void *meet_again(void *argument)
{
    struct nodes *nodes = argument;
    struct meeting one[MEMBERS_MAX];

    while (await_turn(nodes)) {
        if (!nodes->leaving) /* by its list who is mounted anew may know of this node no more */
            meet_each(nodes, one, false);
        odds_look(nodes, false);
    }
    return NULL;
}

static int start_threads(struct nodes *nodes)
{
    int error = -pthread_create(&nodes->meeter, NULL, meet_again, nodes);

    nodes->meets = !error;
    if (!error)
        error = home_tell_begin(nodes);
    return error ? error : nodes_beat(nodes);
}

int nodes_meet_all(struct nodes *nodes, char why_out[CALL_WHY])
{
    struct meeting one[MEMBERS_MAX];

    meet_each(nodes, one, false);
    for (unsigned i = 0; i < MEMBERS_MAX; i++)
        if (one[i].error) {
            snprintf(why_out, CALL_WHY, "node %s %s", one[i].member.name, meet_differs(one[i].error));
            return one[i].error;
        }
    int error = nodes->meets ? 0 : start_threads(nodes);
    if (error)
        snprintf(why_out, CALL_WHY, "no thread that meets other nodes: %s", strerror(-error));
    return error;
}

void nodes_meet_no_more(struct nodes *nodes)
{
    if (nodes->meets)
        pthread_join(nodes->meeter, NULL);
    nodes->meets = false;
    nodes_beat_no_more(nodes);
    home_tell_end(nodes);
}
