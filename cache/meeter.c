/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/meeter.h"

#include <stdio.h>
#include <string.h>

#include "cache/meet.h"
#include "cache/sure.h"

#define MEET_AGAIN_MS 5000u
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

/* Who does not answer when it is to be met is not asked because of what programs do: others are homes of its
 * files. It may have been still, or busy with the end of an earlier session, when it was tried, and so may
 * this node. One that lives, as it has met this node or has said why it can't be met, is tried again soon. */
static void *meet_again(void *argument)
{
    struct nodes *nodes = argument;
    struct member member;

    while (await_turn(nodes))
        for (unsigned i = 0; i < MEMBERS_MAX; i++)
            if (nodes_wants(nodes, i, &member))
                nodes_meet(nodes, i);
    return NULL;
}

static int start_threads(struct nodes *nodes)
{
    int error = -pthread_create(&nodes->meeter, NULL, meet_again, nodes);

    nodes->meets = !error;
    return error ? error : nodes_beat(nodes);
}

int nodes_meet_all(struct nodes *nodes, char why_out[CALL_WHY])
{
    struct member member;

    for (unsigned i = 0; i < MEMBERS_MAX; i++) {
        int error = nodes_wants(nodes, i, &member) ? nodes_meet(nodes, i) : 0;
        if (error) {
            snprintf(why_out, CALL_WHY, "node %s has another list of members, or another version of gaiafs",
                     member.name);
            return error;
        }
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
}
