/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/patience.h"

#include <errno.h>

static void asking_done(struct call_answer *answer, int result)
{
    struct patience_asking *asking = (struct patience_asking *)answer;
    struct nodes *nodes = asking->nodes;

    pthread_mutex_lock(&nodes->lock);
    asking->result = result;
    asking->told = true;
    pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock); /* asking is gone after this */
}

/* Whether it was told before the turn is over. nodes->lock is held, and let go meanwhile. */
static bool wait_told(const struct patience_asking *asking)
{
    struct timespec until = lock_wait_until(PATIENCE_MS);
    int late = 0;

    while (!asking->told && !late)
        late = pthread_cond_timedwait(&asking->nodes->changed, &asking->nodes->lock, &until);
    return asking->told;
}

/* Whether the other does something, which we may wait for: it says something, or we do what it has asked for.
 */
static bool has_come_on(const struct call_session *session, uint64_t *received)
{
    uint64_t before = *received;

    *received = call_session_received(session);
    return *received != before || call_session_is_asked(session);
}

/* As long as it takes, or as the caller says; when the mount is ending, within limits. Whether it was told.
 * nodes->lock is held, and let go meanwhile. */
static bool wait_patiently(const struct patience_asking *asking, const struct call_session *session,
                           struct patience patience)
{
    uint64_t received = call_session_received(session);
    unsigned silent = 0, turns = 0, before = 0;

    while (silent < patience.silent && turns < patience.turns &&
           (!patience.before || before < patience.before)) {
        bool ending = asking->nodes->ending;
        if (wait_told(asking))
            return true;
        bool comes_on = has_come_on(session, &received);
        silent = comes_on || !ending ? 0 : silent + 1;
        before = comes_on || ending ? 0 : before + 1;
        turns += ending;
    }
    return false;
}

void patience_begin(struct nodes *nodes, struct call_session *session, enum node_class class, enum node_op op,
                    const struct node_request *request, struct patience_asking *asking)
{
    *asking = (struct patience_asking){.answer.done = asking_done, .nodes = nodes, .session = session};
    int error = call_start(session, class, op, request, sizeof *request, &asking->answer, 0);

    if (error) /* nobody will tell it */
        *asking = (struct patience_asking){.nodes = nodes, .session = session, .told = true, .result = error};
}

int patience_end(struct patience_asking *asking, struct patience patience, bool *given_up_out)
{
    struct nodes *nodes = asking->nodes;

    pthread_mutex_lock(&nodes->lock);
    bool given_up = !wait_patiently(asking, asking->session, patience);
    if (given_up) {
        pthread_mutex_unlock(&nodes->lock);
        call_session_abort(asking->session); /* which tells it */
        pthread_mutex_lock(&nodes->lock);
        while (!asking->told)
            pthread_cond_wait(&nodes->changed, &nodes->lock);
    }
    pthread_mutex_unlock(&nodes->lock);
    if (given_up_out)
        *given_up_out = given_up;
    return asking->result;
}

int patience_call(struct nodes *nodes, struct call_session *session, enum node_op op,
                  const struct node_request *request, struct patience patience)
{
    struct patience_asking asking;
    bool given_up;

    patience_begin(nodes, session, NODE_CALLS, op, request, &asking);
    int result = patience_end(&asking, patience, &given_up);
    return given_up ? -ETIMEDOUT : result > 0 ? -EIO : node_result(result);
}
