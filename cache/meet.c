/* SPDX-License-Identifier: Apache-2.0 */
/* How this node meets the other members: sessions of which they are the homes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/kernel.h"
#include "cache/home.h"
#include "cache/internal.h"
#include "cache/nodes.h"
#include "cache/patience.h"
#include "cache/sure.h"

#define UNHEARD (-ETIME) /* it lives, and does not answer HELLO: its disk hangs, say */

static int greet(struct nodes *nodes, struct call_session *session)
{
    const struct patience patience = {
        .silent = 1, .turns = 12, .before = nodes_sure_ms(nodes) / PATIENCE_MS + 1};
    const char *name = nodes->homes[nodes->self].member.name;
    struct node_request hello = {.offset = NODE_VERSION,
                                 .flags = kernel_writes_back_late() ? NODE_LATE_KERNEL : 0,
                                 .name.length = (uint32_t)strlen(name)};
    int error;

    pthread_mutex_lock(&nodes->lock);
    hello.value = nodes->members->epoch;
    pthread_mutex_unlock(&nodes->lock);

    memcpy(hello.name.bytes, name, strlen(name));
    /* It may not be done yet with what we had there in an earlier session. */
    for (unsigned tries = 0;; tries++) {
        error = patience_call(nodes, session, NODE_HELLO, &hello, patience);
        if (error == -ETIMEDOUT)
            return UNHEARD;
        if (error != -EBUSY || tries == 50)
            return error;
        usleep(100000);
    }
}

/* It is at something that ends by itself. -EBUSY: an earlier session is not over. -ESHUTDOWN: it is being
 * unmounted, and is the home of its files until it has gone. */
static bool parts(int error)
{
    return error == -EBUSY || error == -ESHUTDOWN;
}

/* It lives, and can't be met now: it must not be done without. */
static bool lives(int error)
{
    return call_is_short(error) || parts(error) || error == UNHEARD;
}

/* It has met this node. nodes->lock is held. */
static bool has_met(const struct nodes *nodes, unsigned member)
{
    const struct home_session *agent;

    LIST_FOREACH (agent, &nodes->agents, link)
        if (agent->member == member)
            return true;
    return false;
}

#define WARNING (CALL_WHY + MEMBER_NAME_MAX + 40)

/* For people, the first time in a row: whoever likes may have the address of a node that does not run; and
 * that one which lives can't be met is no end of a session, of which others hear. nodes->lock is held.
 * text_out: "" where there is nothing to say. */
static void word_warning(const struct nodes_home *home, int before, char text_out[WARNING])
{
    bool strange = home->error == -EPERM;

    text_out[0] = '\0';
    if (home->error != before && (strange || lives(home->error)))
        snprintf(text_out, WARNING, "node %s %s: %s", home->member.name,
                 strange ? "is taken to be down" : "could not be met", home->why);
}

/* Connect, and say HELLO; why_out: what went wrong. session_out: a reference, with an error, too, or NULL. */
static int try_home(struct nodes *nodes, struct nodes_home *home, struct call_session **session_out,
                    char why_out[CALL_WHY])
{
    *session_out = NULL;
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
    error = greet(nodes, *session_out);
    int ended = call_session_error(*session_out);
    error = error && lives(ended) ? ended : error;
    snprintf(why_out, CALL_WHY, "it answers: %s",
             error == -ESHUTDOWN ? "it is being unmounted"
             : error == UNHEARD  ? "nothing but that it lives"
                                 : strerror(-error));
    return error;
}

/* Takes over `connecting`. */
static int connect_home(struct nodes *nodes, unsigned member)
{
    struct nodes_home *home = &nodes->homes[member];
    struct call_session *session;
    char why[CALL_WHY], warning[WARNING];
    int error = try_home(nodes, home, &session, why);

    pthread_mutex_lock(&nodes->lock);
    int before = home->error;
    home->greeting = NULL;
    home->connecting = false;
    if (!error && (call_session_error(session) || home->session))
        error = -EIO;
    if (!error)
        home->session = session;
    home->down = !home->session;
    home->error = error;
    memcpy(home->why, why, sizeof why);
    if (error) /* what it has told meanwhile */
        followed_remove_member(&nodes->followed, member);
    if (error && (lives(error) || has_met(nodes, member))) { /* it does not hear what this node tracks */
        nodes->hurries = true;
        pthread_cond_broadcast(&nodes->stopped);
    }
    word_warning(home, before, warning);
    pthread_cond_broadcast(&nodes->changed);
    pthread_mutex_unlock(&nodes->lock);
    if (*warning && nodes->cache->host.warn)
        nodes->cache->host.warn(nodes->cache->host.context, warning);
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

/* wait: for somebody else who is connecting. */
static int get_home(struct nodes *nodes, unsigned member, bool wait, struct call_session **session_out)
{
    struct nodes_home *home = &nodes->homes[member];
    int error = 0;

    pthread_mutex_lock(&nodes->lock);
    while (home->connecting && wait)
        pthread_cond_wait(&nodes->changed, &nodes->lock);
    struct call_session *session = home->session;
    bool connects = !session && !home->connecting && !nodes->stop && home->listed;
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

/* That a peer can't be had is no want of memory or descriptors of who asks, which would be made room for. */
int nodes_get_home(struct nodes *nodes, unsigned member, struct call_session **session_out)
{
    int error = get_home(nodes, member, true, session_out);

    return lives(error) ? -EHOSTUNREACH : error;
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

int nodes_meet(struct nodes *nodes, unsigned member)
{
    struct call_session *session;
    int error = get_home(nodes, member, false, &session);

    if (!error)
        call_session_put(session);
    return error == -EPROTONOSUPPORT || error == -EACCES ? error : 0;
}

bool nodes_wants(struct nodes *nodes, unsigned member, struct member *member_out)
{
    pthread_mutex_lock(&nodes->lock);
    bool wanted = member < nodes->numbers && member != nodes->self && nodes->homes[member].listed;
    *member_out = nodes->homes[member].member;
    pthread_mutex_unlock(&nodes->lock);
    return wanted;
}

/* ---- again and again ---- */

#define MEET_AGAIN_MS 5000u
#define HURRY_MS 250u
#define PARTING_MS 60000u /* cache/leave.c waits so long for who says nothing */

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

/* What those that have been met say of who lives: nodes_living(). Who can't be reached may live all the same.
 */
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

/* nodes->lock is held. */
static bool is_said_to_live(const struct nodes *nodes, uint64_t living, unsigned member)
{
    const struct members *members = nodes->members;

    for (unsigned i = 0; i < members->count; i++)
        if (!strcmp(members->list[i].name, nodes->homes[member].member.name))
            return living >> i & 1;
    return false;
}

/* Why this node can't serve yet: a member that lives has not been met, or has not met this node. 0: there is
 * none; one that is down is met when it comes. living: what others say. nodes->lock is held. */
static int unmet(const struct nodes *nodes, uint64_t living, char why_out[CALL_WHY])
{
    for (unsigned i = 0; i < nodes->numbers; i++) {
        const struct nodes_home *home = &nodes->homes[i];
        bool ours = is_ours(home), said = is_said_to_live(nodes, living, i);
        if (i == nodes->self || !home->listed || (ours && has_met(nodes, i)))
            continue;
        if (!ours && !home->connecting && !home->session && !lives(home->error) && !said)
            continue;
        if (!ours && (lives(home->error) || said))
            snprintf(why_out, CALL_WHY, "node %s lives, and can't be met: %.*s", home->member.name,
                     CALL_WHY / 2, home->why);
        else
            snprintf(why_out, CALL_WHY,
                     "node %s lives, and has not met this one in %u ms: its log may say why",
                     home->member.name, 2 * nodes->timeout_ms);
        return !ours && lives(home->error) ? home->error : -ETIMEDOUT;
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
            struct timespec next = lock_wait_until(HURRY_MS);
            pthread_cond_timedwait(&nodes->changed, &nodes->lock, &next);
        }
        pthread_mutex_unlock(&nodes->lock);
        if (parts(error)) /* others may hear of its end later, and have yet to meet this node */
            until = lock_wait_until(patience_ms);
    } while (error && !lock_is_past(parts(error) ? &parted : &until) && !host->stops(host->context));
    if (!error)
        why_out[0] = '\0';
    return error;
}

void nodes_meet_no_more(struct nodes *nodes)
{
    if (nodes->meets)
        pthread_join(nodes->meeter, NULL);
    nodes->meets = false;
    nodes_beat_no_more(nodes);
}
