/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/patience.h"

#include <errno.h>

struct telling {
    struct call_answer answer; /* first */
    struct nodes *nodes;
    bool told; /* under nodes->lock, as is the next */
    int result;
};

static void telling_done(struct call_answer *answer, int result)
{
    struct telling *telling = (struct telling *)answer;
    struct nodes *nodes = telling->nodes;

    pthread_mutex_lock(&nodes->lock);
    telling->result = result;
    telling->told = true;
    pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock); /* telling is gone after this */
}

/* Whether it was told before the turn is over. nodes->lock is held, and let go meanwhile. */
static bool wait_told(const struct telling *telling)
{
    struct timespec until = lock_wait_until(PATIENCE_MS);
    int late = 0;

    while (!telling->told && !late)
        late = pthread_cond_timedwait(&telling->nodes->changed, &telling->nodes->lock, &until);
    return telling->told;
}

/* Whether the other does something, which we may wait for: it says something, or we do what it has asked for.
 */
static bool has_come_on(const struct call_session *session, uint64_t *received)
{
    uint64_t before = *received;

    *received = call_session_received(session);
    return *received != before || call_session_is_asked(session);
}

/* As long as it takes; when the mount is ending, within limits. Whether it was told. nodes->lock is held, and
 * let go meanwhile. */
static bool wait_patiently(const struct telling *telling, const struct call_session *session,
                           struct patience patience)
{
    uint64_t received = call_session_received(session);
    unsigned silent = 0, turns = 0;

    while (silent < patience.silent && turns < patience.turns) {
        bool ending = telling->nodes->ending;
        if (wait_told(telling))
            return true;
        silent = has_come_on(session, &received) || !ending ? 0 : silent + 1;
        turns += ending;
    }
    return false;
}

int patience_ask(struct nodes *nodes, struct call_session *session, enum node_class class, enum node_op op,
                 const struct node_request *request, struct patience patience, bool *given_up_out)
{
    struct telling telling = {.answer.done = telling_done, .nodes = nodes};
    int error = call_start(session, class, op, request, sizeof *request, &telling.answer, 0);
    bool given_up = false;

    if (!error) {
        pthread_mutex_lock(&nodes->lock);
        given_up = !wait_patiently(&telling, session, patience);
        if (given_up) {
            pthread_mutex_unlock(&nodes->lock);
            call_session_abort(session); /* which tells it */
            pthread_mutex_lock(&nodes->lock);
            while (!telling.told)
                pthread_cond_wait(&nodes->changed, &nodes->lock);
        }
        pthread_mutex_unlock(&nodes->lock);
    }
    if (given_up_out)
        *given_up_out = given_up;
    return error ? error : telling.result;
}

int patience_call(struct nodes *nodes, struct call_session *session, enum node_op op,
                  const struct node_request *request, struct patience patience)
{
    bool given_up;
    int result = patience_ask(nodes, session, NODE_CALLS, op, request, patience, &given_up);

    return given_up ? -ETIMEDOUT : result > 0 ? -EIO : node_result(result);
}
