/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/meet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/kernel.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "cache/odds.h"
#include "cache/patience.h"
#include "cache/sure.h"

#define UNHEARD (-ETIME) /* it lives, and does not answer HELLO: its disk hangs, say */

/* Names, as HELLO says whom it is for. */
static uint32_t short_hash(const char *name)
{
    return (uint32_t)member_hash(name);
}

bool meet_is_meant(const struct nodes *nodes, const struct node_request *hello)
{
    return !hello->client || hello->client == short_hash(nodes->homes[nodes->self].member.name);
}

bool meet_has_directory(const struct nodes *nodes, const struct node_request *hello)
{
    return !hello->length || !nodes->directory || hello->length == nodes->directory;
}

static int greet(struct nodes *nodes, const struct nodes_home *home, struct call_session *session)
{
    const struct patience patience = {
        .silent = 1, .turns = 12, .before = nodes_sure_ms(nodes) / PATIENCE_MS + 1};
    const char *name = nodes->homes[nodes->self].member.name;
    struct node_request hello = {.offset = NODE_VERSION,
                                 .flags = kernel_writes_back_late() ? NODE_LATE_KERNEL : 0,
                                 .length = nodes->directory,
                                 .name.length = (uint32_t)strlen(name)};
    int error;

    pthread_mutex_lock(&nodes->lock);
    hello.value = nodes->members->epoch;
    hello.client = short_hash(home->member.name);
    hello.flags |= home->met ? NODE_MET : 0;
    hello.flags |= nodes->serves ? NODE_SERVES : 0;
    pthread_mutex_unlock(&nodes->lock);

    memcpy(hello.name.bytes, name, strlen(name));
    /* It may not be done yet with what we had there in an earlier session. */
    for (unsigned tries = 0;; tries++) {
        hello.address = clock_read_ns(CLOCK_REALTIME);
        error = patience_call(nodes, session, NODE_HELLO, &hello, patience);
        if (error == -ETIMEDOUT)
            return UNHEARD;
        if (error != -EBUSY || tries == 50)
            return error;
        usleep(100000);
    }
}

bool meet_refused(int error)
{
    return error == -EPROTONOSUPPORT || error == -EMEDIUMTYPE;
}

bool meet_parts(int error)
{
    return error == -EBUSY || error == -ESHUTDOWN;
}

bool meet_lives(int error)
{
    return call_is_short(error) || meet_parts(error) || error == UNHEARD;
}

bool nodes_has_met(const struct nodes *nodes, unsigned member)
{
    const struct home_session *agent;

    LIST_FOREACH (agent, &nodes->agents, link)
        if (agent->member == member)
            return true;
    return false;
}

#define WARNING (CALL_WHY + MEMBER_NAME_MAX + 40)

/* What does not mean that nobody runs there, as a refused connection does: a stranger has its address, or a
 * node with another list, or one that is at odds with others, or something that answers what no node says;
 * this node's own device has gone, or is none that leads there; or nothing comes from there, nor from its
 * machine. */
static bool is_doubtful(int error)
{
    return error && error != -ECONNREFUSED && !meet_lives(error);
}

/* For people, the first time in a row: whoever likes may have the address of a node that does not run; and
 * that one which lives can't be met is no end of a session, of which others hear. But as this node ends, what
 * it had begun ends with it. nodes->lock is held. text_out: "" where there is nothing to say. */
static void word_warning(const struct nodes *nodes, const struct nodes_home *home, int before,
                         char text_out[WARNING])
{
    bool doubtful = is_doubtful(home->error);

    text_out[0] = '\0';
    if (nodes->stop)
        return;
    if (doubtful ? !is_doubtful(before) : home->error != before && meet_lives(home->error))
        snprintf(text_out, WARNING, "node %s %s: %s", home->member.name,
                 doubtful ? "is taken to be down" : "could not be met", home->why);
}

const char *meet_differs(int error)
{
    return error == -EMEDIUMTYPE ? "is mounted over another data directory"
                                 : "has another list of members, or another version of gaiafs";
}

/* Connect, and say HELLO; why_out: what went wrong. session_out: a reference, with an error, too, or NULL.
 * more_out: odds_ask(). */
static int try_home(struct nodes *nodes, struct nodes_home *home, struct call_session **session_out,
                    bool *more_out, char why_out[CALL_WHY])
{
    *session_out = NULL;
    *more_out = false;
    pthread_mutex_lock(&nodes->lock);
    struct member there = home->member;
    pthread_mutex_unlock(&nodes->lock);
    int error = call_connect(nodes->calls, there.address, session_out);
    if (error) {
        snprintf(why_out, CALL_WHY, "%s", gaia_transport_why());
        return error;
    }
    pthread_mutex_lock(&nodes->lock);
    home->greeting = *session_out;
    pthread_mutex_unlock(&nodes->lock);
    error = greet(nodes, home, *session_out);
    if (!error)
        *more_out = odds_ask(nodes, *session_out) > 0;
    int ended = call_session_error(*session_out);
    error = error && meet_lives(ended) ? ended : error;
    snprintf(why_out, CALL_WHY, "it answers: %s%s", meet_refused(error) ? "it " : "",
             error == -ESHUTDOWN   ? "it is being unmounted"
             : meet_refused(error) ? meet_differs(error)
             : error == -EPERM     ? "it is another node"
             : error == -EREMCHG   ? "its list of members lacks this node"
             : error == -ENOLINK   ? "its list of members is not that of others"
             : error == -ENONET    ? "its list of members lacks this node, or is an old one"
             : error == UNHEARD    ? "nothing but that it lives"
                                   : strerror(-error));
    return error;
}

static void say(const struct nodes *nodes, const char *text)
{
    const struct cache_host *host = &nodes->cache->host;

    if (*text && host->warn)
        host->warn(host->context, text);
}

/* Takes over `connecting`. */
static int connect_home(struct nodes *nodes, unsigned member)
{
    struct nodes_home *home = &nodes->homes[member];
    struct call_session *session;
    char why[CALL_WHY], warning[WARNING], odds[ODDS_TEXT];
    bool more;
    int error = try_home(nodes, home, &session, &more, why);

    pthread_mutex_lock(&nodes->lock);
    int before = home->error;
    home->greeting = NULL;
    home->connecting = false;
    home->tried++;
    if (!error && (call_session_error(session) || home->session || !home->listed)) {
        error = -EIO;
        snprintf(why, sizeof why, "it was met, and is no more");
    }
    if (!error) {
        home->session = session;
        home->met = true;
        home->since = nodes_stalls(nodes);
        sure_heed(nodes, member, session);
    }
    home->down = !home->session;
    home->error = error;
    memcpy(home->why, why, sizeof why);
    if (error) /* what it has told meanwhile */
        followed_remove_member(&nodes->followed, member);
    if (error && (meet_lives(error) || odds_says(error) ||
                  nodes_has_met(nodes, member))) { /* it does not hear what this node tracks */
        nodes->hurries = true;
        pthread_cond_broadcast(&nodes->stopped);
    }
    odds_note(home, error, more);
    word_warning(nodes, home, before, warning);
    odds_judge(nodes, odds);
    pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock);
    say(nodes, warning);
    say(nodes, odds);
    if (error && session) {
        call_session_abort(session);
        call_session_put(session);
    }
    return error;
}

struct call_session *nodes_home_session(struct nodes *nodes, unsigned member)
{
    pthread_mutex_lock(&nodes->lock);
    struct call_session *session = nodes->homes[member].session;
    if (session)
        call_session_get(session);
    pthread_mutex_unlock(&nodes->lock);
    return session;
}

/* others: how many of those who are connecting are waited for, one after the other: none; who is at it now,
 * which is once for all who wait, as the last would wait as often as there are if each tried by himself then;
 * or one more, who began later than this. */
static int get_home(struct nodes *nodes, unsigned member, unsigned others, struct call_session **session_out)
{
    struct nodes_home *home = &nodes->homes[member];
    int error = 0;

    pthread_mutex_lock(&nodes->lock);
    uint64_t before = home->tried;
    while (home->connecting && home->tried - before < others)
        pthread_cond_wait(&nodes->changed, &nodes->lock);
    bool tries = !home->connecting && (home->tried == before || home->tried - before < others);
    struct call_session *session = home->session;
    bool connects = !session && tries && !nodes->stop && home->listed;
    if (connects)
        home->connecting = true;
    else if (!session)
        error = -EHOSTUNREACH;
    pthread_mutex_unlock(&nodes->lock);
    if (connects)
        error = connect_home(nodes, member);
    if (error)
        return error;
    *session_out = nodes_home_session(nodes, member);
    return *session_out ? 0 : -EIO;
}

/* That a peer can't be reached must not look like a lack of memory or descriptors in the caller, for which
 * room would be made. */
int nodes_get_home(struct nodes *nodes, unsigned member, struct call_session **session_out)
{
    int error = get_home(nodes, member, 1, session_out);

    return meet_lives(error) ? -EHOSTUNREACH : error;
}

int nodes_get_teller(struct nodes *nodes, unsigned member, struct call_session **session_out)
{
    pthread_mutex_lock(&nodes->lock);
    struct call_session *session = nodes->homes[member].greeting;
    if (session)
        call_session_get(session);
    pthread_mutex_unlock(&nodes->lock);
    if (!session)
        return nodes_get_home(nodes, member, session_out);
    *session_out = session;
    return 0;
}

static int meet(struct nodes *nodes, unsigned member, unsigned others)
{
    struct call_session *session;
    int error = get_home(nodes, member, others, &session);

    if (!error)
        call_session_put(session);
    return meet_refused(error) || error == -EREMCHG || error == -EACCES ? error : 0;
}

int nodes_meet(struct nodes *nodes, unsigned member)
{
    return meet(nodes, member, 0);
}

void nodes_meet_from_now(struct nodes *nodes, unsigned member)
{
    meet(nodes, member, 2);
}

bool nodes_wants(struct nodes *nodes, unsigned member, struct member *member_out)
{
    pthread_mutex_lock(&nodes->lock);
    bool wanted = member < nodes->numbers && member != nodes->self && nodes->homes[member].listed;
    *member_out = nodes->homes[member].member;
    pthread_mutex_unlock(&nodes->lock);
    return wanted;
}
