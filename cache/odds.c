/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/odds.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cache/internal.h"
#include "cache/meet.h"
#include "cache/meeter.h"

#define GREETING_MS 250u

bool nodes_at_odds(const struct nodes *nodes)
{
    return nodes->odds_ns;
}

bool nodes_odds_may_end(const struct nodes *nodes)
{
    uint64_t odds_ns = nodes->odds_ns;

    return odds_ns && clock_now_ns() - odds_ns < cache_move_ms(nodes->cache) * UINT64_C(1000000);
}

static int ping(struct nodes *nodes, struct call_session *session, uint64_t which, struct node_reply *reply)
{
    size_t length = sizeof *reply;
    int error = call(session, NODE_PINGS, NODE_PING, &(struct node_request){.value = which},
                     sizeof(struct node_request), reply, &length, nodes->timeout_ms);

    return error || length != sizeof *reply ? -EIO : 0;
}

/* Since this node has read the list that it is on: else it may be the home of files here that this node has
 * not been told of. nodes->lock is held. */
static bool is_tried(const struct nodes_home *home)
{
    return home->session || !home->untried;
}

/* This node lists it, and has tried to meet it. */
static bool knows(struct nodes *nodes, uint64_t hash)
{
    bool any = false;

    pthread_mutex_lock(&nodes->lock);
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        any |= home->listed && (i == nodes->self || is_tried(home)) && member_hash(home->member.name) == hash;
    }
    pthread_mutex_unlock(&nodes->lock);
    return any;
}

/* Whether the lists are the same, and there is none on it that knows() is not true of. */
static bool knows_all(struct nodes *nodes, uint64_t epoch)
{
    bool all = true;

    pthread_mutex_lock(&nodes->lock);
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        all &= !home->listed || i == nodes->self || is_tried(home);
    }
    all &= nodes->members->epoch == epoch;
    pthread_mutex_unlock(&nodes->lock);
    return all;
}

int odds_ask(struct nodes *nodes, struct call_session *session)
{
    struct node_reply reply;
    uint64_t count = 1;

    if (ping(nodes, session, 0, &reply))
        return -EIO;
    bool all = knows_all(nodes, reply.value[1]);
    for (uint64_t i = 1; !all && i <= count && i <= MEMBERS_MAX; i++) {
        if (ping(nodes, session, i, &reply))
            return -EIO;
        count = reply.value[1];
        if (reply.value[0] && !knows(nodes, reply.value[0]))
            return 1;
    }
    return 0;
}

bool odds_says(int error)
{
    return error == -EREMCHG || error == -ENOLINK || error == -ENONET;
}

void odds_note(struct nodes_home *home, int error, bool more)
{
    if (!error || error == -ENOLINK)
        home->refuses = false;
    else if (error == -EREMCHG)
        home->refuses = true;
    if (!error || more)
        home->knows_more = more;
    home->first &= error != 0;
    if (odds_says(error) ? error == -ENONET : meet_lives(error))
        return;
    if (error && !odds_says(error) && home->untried)
        home->refuses = home->knows_more = false;
    home->untried = false;
}

/* With whom. nodes->lock is held. */
static const struct nodes_home *find_odds(const struct nodes *nodes)
{
    for (unsigned i = 0; nodes->serves && i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        bool odd = home->refuses || home->knows_more || (nodes->odds_ns && !is_tried(home));
        if (i != nodes->self && (home->first || (home->listed && odd)))
            return home;
    }
    return NULL;
}

static const char *why_odd(const struct nodes_home *home)
{
    if (home->first && home->listed)
        return "lives, and is not where the list of members here says that it is";
    if (home->first)
        return "was here before this one, and is not on the list of members here";
    return home->refuses
               ? "has a list of members that lacks this one"
               : "has met a node that the list of members here lacks (a new list is read at SIGHUP)";
}

void odds_judge(struct nodes *nodes, char text_out[ODDS_TEXT])
{
    const struct nodes_home *home = find_odds(nodes);
    bool before = nodes->odds_ns;

    text_out[0] = '\0';
    if (home && !before) {
        snprintf(text_out, ODDS_TEXT,
                 "node %s %s: until they agree this node changes no file, and programs get EIO",
                 home->member.name, why_odd(home));
        nodes->odds_ns = clock_now_ns();
    } else if (!home && before) {
        snprintf(text_out, ODDS_TEXT, "this node is not at odds with others any more about the members");
        nodes->odds_ns = 0;
    }
    if (home) { /* the meeter looks again soon */
        nodes->hurries = true;
        pthread_cond_broadcast(&nodes->stopped);
    }
}

static void judge_and_say(struct nodes *nodes)
{
    const struct cache_host *host = &nodes->cache->host;
    char text[ODDS_TEXT];

    pthread_mutex_lock(&nodes->lock);
    odds_judge(nodes, text);
    pthread_mutex_unlock(&nodes->lock);
    if (*text && host->warn)
        host->warn(host->context, text);
}

/* ---- who comes ---- */

/* This node was mounted so lately that a node which ran then may come for the first time only now. It goes
 * round its members every MEET_AGAIN_MS, and waits for those that are silent. nodes->lock is held. */
static bool is_new(const struct nodes *nodes)
{
    uint64_t new_ns = (MEET_AGAIN_MS + 2 * nodes->timeout_ms) * UINT64_C(1000000);

    for (unsigned i = 0; i < nodes->numbers; i++)
        if (nodes->homes[i].met || nodes->homes[i].first)
            return false;
    return clock_now_ns() - nodes->begun_ns < new_ns;
}

/* Of this name, listed or not; NULL. nodes->lock is held. */
static const struct nodes_home *find(const struct nodes *nodes, const struct node_name *name)
{
    for (unsigned i = 0; i < nodes->numbers; i++)
        if (strlen(nodes->homes[i].member.name) == name->length &&
            !memcmp(nodes->homes[i].member.name, name->bytes, name->length))
            return &nodes->homes[i];
    return NULL;
}

bool odds_was_listed(const struct nodes *nodes, const struct node_name *name)
{
    const struct nodes_home *home = find(nodes, name);

    return home && !home->first;
}

/* Not on the list. If it has been, it is who was left behind. nodes->lock is held. */
static void note_stranger(struct nodes *nodes, const struct node_name *name)
{
    struct nodes_home *home = &nodes->homes[nodes->numbers];

    if (find(nodes, name) || nodes->numbers == MEMBERS_MAX ||
        !member_is_name((const char *)name->bytes, name->length) || !is_new(nodes))
        return;
    memcpy(home->member.name, name->bytes, name->length);
    home->first = true;
    nodes->numbers++;
}

/* It is being greeted, and for so long that nobody else has its address: another node would have said at once
 * that it is not the one (meet_is_meant()). nodes->lock is held, and let go meanwhile. */
static bool is_greeted(struct nodes *nodes, const struct nodes_home *home)
{
    const struct call_session *greeting = home->greeting;
    struct timespec until = lock_wait_until(GREETING_MS);
    int late = 0;

    while (greeting && home->greeting == greeting && !late)
        late = pthread_cond_timedwait(&nodes->changed, &nodes->lock, &until);
    return greeting && home->greeting == greeting;
}

/* A member that serves with another list, and lives. By a session or a `greeting` it is where the list says.
 * nodes->lock is held, and let go meanwhile. */
static int look_at_member(struct nodes *nodes, struct nodes_home *home)
{
    if (is_greeted(nodes, home))
        return 0;
    if (home->session) /* or its end is about to be noticed: it may be one of an earlier mount of the member
                        */
        return call_session_error(home->session) ? -EBUSY : 0;
    if (home->connecting || nodes->stop)
        return -EBUSY;
    if (!home->error || meet_lives(home->error) || odds_says(home->error))
        return 0;
    home->first = true;
    return -ENOLINK;
}

static bool answers(struct call_session *session)
{
    return !nodes_ask(session, NODE_PINGS, NODE_PING, &(struct node_request){0}, NULL);
}

/* Whether it is where the list says: look_at_member(). No lock is held. */
static int look_for(struct nodes *nodes, unsigned member, struct call_session *come_by)
{
    nodes_meet(nodes, member);
    struct call_session *session = nodes_home_session(nodes, member);
    if (session) {
        answers(session); /* it has an error then, if nobody is there any more */
        call_session_put(session);
    }
    if (!answers(come_by)) /* it has just died, or stands still */
        return 0;
    pthread_mutex_lock(&nodes->lock);
    int error = look_at_member(nodes, &nodes->homes[member]);
    pthread_mutex_unlock(&nodes->lock);
    return error;
}

int odds_with_who_comes(struct nodes *nodes, const struct node_request *hello, struct call_session *session)
{
    int error = 0;

    pthread_mutex_lock(&nodes->lock);
    unsigned member = nodes_number_of(nodes, (const char *)hello->name.bytes, hello->name.length);
    bool strange = hello->offset == NODE_VERSION && hello->flags & NODE_SERVES &&
                   hello->value != nodes->members->epoch && member != nodes->self && !nodes->leaving;
    bool listed = member != MEMBERS_MAX;
    if (strange && !listed && meet_has_directory(nodes, hello))
        note_stranger(nodes, &hello->name);
    bool known = strange && listed && nodes->homes[member].first; /* the meeter goes on trying */
    pthread_mutex_unlock(&nodes->lock);
    if (known)
        return -ENOLINK;
    if (strange && listed)
        error = look_for(nodes, member, session);
    if (strange)
        judge_and_say(nodes);
    return error;
}

void odds_look(struct nodes *nodes, bool all)
{
    for (unsigned i = 0; i < MEMBERS_MAX; i++) {
        struct call_session *session = nodes_home_session(nodes, i);
        pthread_mutex_lock(&nodes->lock);
        bool asks = session && (all || nodes->homes[i].knows_more);
        pthread_mutex_unlock(&nodes->lock);
        int more = asks ? odds_ask(nodes, session) : -EIO;
        pthread_mutex_lock(&nodes->lock);
        if (more >= 0 && nodes->homes[i].session == session)
            odds_note(&nodes->homes[i], 0, more);
        pthread_mutex_unlock(&nodes->lock);
        if (session)
            call_session_put(session);
    }
    judge_and_say(nodes);
}
