/* SPDX-License-Identifier: Apache-2.0 */
/* This node's end of the calls: its transport, the thread that polls it, links that come and go. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "io/call_internal.h"

#define WATCH_MS 1000u /* so often it is looked for calls that are late */
#define WATCH_NS (WATCH_MS * UINT64_C(1000000))
#define BUSY_MS 50u             /* another thread polls: it connects */
#define PAUSE_NS (3 * WATCH_NS) /* more than WATCH_MS and what comes meanwhile take */

/* ---- callbacks of the transport; none of them waits ---- */

static int arrived(void *context, struct gaia_link *link, const char *peer)
{
    struct calls *calls = context;
    struct call_session *session;
    int error = call_session_new(calls, link, false, &session);

    (void)peer;
    if (error)
        return error;
    gaia_link_set_user(link, session);
    error = calls->config.arrived(calls->config.context, session);
    if (!error) {
        call_session_settle(session, true);
        return 0;
    }
    gaia_link_set_user(link, NULL);
    call_end(session, error);
    pthread_mutex_lock(&session->lock);
    session->link = NULL; /* the transport closes it */
    pthread_mutex_unlock(&session->lock);
    call_session_settle(session, false);
    call_session_put(session);
    return error;
}

/* A link that this end connects may be told of before call_connect() has made a session of it; its peer says
 * nothing but that it has ended before it has heard this end's BEGIN, which is sent later. */
static void message(void *context, struct gaia_link *link, const void *bytes, size_t length)
{
    struct call_session *session = gaia_link_user(link);
    int error = session ? call_received(session, bytes, length) : 0;

    (void)context;
    if (error)
        call_end(session, error);
}

static void exposed(void *context, struct gaia_link *link, uint32_t region, uint64_t length)
{
    struct call_session *session = gaia_link_user(link);
    bool good = false;

    (void)context;
    if (!session)
        return;
    pthread_mutex_lock(&session->lock);
    if (!session->exposed && length == CALL_MEMORY) {
        good = session->exposed = true;
        session->region = region;
        pthread_cond_broadcast(&session->changed);
    }
    pthread_mutex_unlock(&session->lock);
    if (!good)
        call_end(session, -EPROTO);
}

static void closed(void *context, struct gaia_link *link, int error)
{
    struct call_session *session = gaia_link_user(link);

    (void)context;
    if (session)
        call_end(session, error ? error : -ESHUTDOWN);
}

/* ---- the thread that polls ---- */

/* Those that live, with references. blocked: only those that wait for the carrier. */
static unsigned find_sessions(struct calls *calls, bool blocked, struct call_session *found[CALL_PEERS_MAX])
{
    struct call_session *session;
    unsigned count = 0;

    pthread_mutex_lock(&calls->lock);
    LIST_FOREACH (session, &calls->sessions, entry)
        if ((session->blocked || session->starved || !blocked) && !session->error && count < CALL_PEERS_MAX) {
            call_session_get(session);
            found[count++] = session;
        }
    pthread_mutex_unlock(&calls->lock);
    return count;
}

/* Credits that have come back call nobody: so it is looked after each poll. Whether somebody still waits. */
static bool flush_blocked(struct calls *calls)
{
    struct call_session *found[CALL_PEERS_MAX];
    unsigned count = find_sessions(calls, true, found);
    bool blocked = false;

    for (unsigned i = 0; i < count; i++) {
        if (found[i]->starved)
            call_ring_again(found[i]);
        call_flush(found[i]);
        blocked |= found[i]->blocked || found[i]->starved;
        call_session_put(found[i]);
    }
    return blocked;
}

/* A second has gone by. */
static void watch(struct calls *calls)
{
    struct call_session *found[CALL_PEERS_MAX];
    unsigned count = find_sessions(calls, false, found);

    for (unsigned i = 0; i < count; i++) {
        call_watch(found[i]);
        call_session_put(found[i]);
    }
}

static bool stopped(void *context)
{
    return ((struct calls *)context)->stop;
}

static void *poll_calls(void *argument)
{
    struct calls *calls = argument;
    uint64_t watched_ns = clock_now_ns();
    bool still = false;

    while (!calls->stop) {
        uint64_t since_ms = (clock_now_ns() - watched_ns) / 1000000;
        unsigned left_ms = since_ms < WATCH_MS ? WATCH_MS - (unsigned)since_ms : 0;
        unsigned timeout_ms = flush_blocked(calls) && left_ms > CALL_AGAIN_MS ? CALL_AGAIN_MS : left_ms;

        if (gaia_transport_poll(calls->transport, timeout_ms) == -EBUSY)
            gaia_transport_wait(calls->transport, stopped, calls,
                                timeout_ms < BUSY_MS ? timeout_ms : BUSY_MS);
        uint64_t now = clock_now_ns();
        if (now - watched_ns < WATCH_NS)
            continue;
        /* After a longer pause it was this process that stood still, and others maybe with it: that is no
         * time in which they have not answered. Not twice in a row, for where each look is late. */
        still = now - watched_ns > PAUSE_NS && !still;
        if (!still)
            watch(calls);
        watched_ns = now;
    }
    return NULL;
}

/* ---- begin and end ---- */

static void free_calls(struct calls *calls)
{
    gaia_transport_close(calls->transport);
    pthread_cond_destroy(&calls->changed);
    pthread_mutex_destroy(&calls->lock);
    free(calls);
}

/* A read has a slot, of which there are so many: a deeper queue would be of no use, and take room from other
 * sessions. */
static void plan(struct calls *calls)
{
    struct gaia_pull_options options = {
        .queues = calls->config.queues, .depth = calls->config.depth, .most = CALL_SLOTS_BOTH};
    struct gaia_transport_limits limits;

    gaia_transport_limits(calls->transport, &limits);
    limits.queues--; /* CALL_QUEUE_MESSAGES */
    if (options.depth > CALL_SLOTS_BOTH)
        options.depth = CALL_SLOTS_BOTH;
    struct gaia_link_options reads = gaia_pull_plan(&limits, &options, CALL_PAGE);
    calls->depth = reads.depth;
    calls->shape = (struct gaia_link_options){.queues = reads.queues + 1, .depth = CALL_WRITES};
}
_Static_assert(CALL_SLOTS_BOTH <= CALL_WRITES, "all queues of a link are as deep as the deepest");

int calls_open(const struct calls_config *config, struct calls **calls_out, char why_out[CALL_WHY])
{
    struct gaia_transport_config transport = {
        .carrier = config->carrier,
        .address = config->address,
        .listen = true,
        .timeout_ms = config->timeout_ms,
        .path = GAIA_PATH_CALLS,
        .calls = {arrived, message, exposed, closed},
    };
    struct calls *calls = calloc(1, sizeof *calls);

    why_out[0] = '\0';
    if (!calls)
        return -ENOMEM;
    calls->config = *config;
    calls->config.address = NULL;
    LIST_INIT(&calls->sessions);
    lock_init(&calls->lock, LOCK_CALLS);
    lock_condition_init(&calls->changed);
    transport.context = calls;
    int error = gaia_transport_open(&transport, &calls->transport);
    if (error) {
        snprintf(why_out, CALL_WHY, "%s", gaia_transport_why());
    } else {
        plan(calls);
        error = -pthread_create(&calls->poller, NULL, poll_calls, calls);
        if (error)
            snprintf(why_out, CALL_WHY, "no thread that polls: %s", strerror(-error));
    }
    if (error)
        free_calls(calls);
    else
        *calls_out = calls;
    return error;
}

int calls_try_memory(struct calls *calls, unsigned sessions, char why_out[CALL_WHY])
{
    size_t link = gaia_link_memory(calls->transport, &calls->shape);
    struct gaia_span span = {.length = sessions * (CALL_MEMORY + link), .dmabuf = -1};
    struct gaia_memory *memory;

    why_out[0] = '\0';
    span.address = mmap(NULL, span.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (span.address == MAP_FAILED) {
        int error = -errno;
        snprintf(why_out, CALL_WHY, "memory of %u sessions: %s", sessions, strerror(-error));
        return error;
    }
    int error = gaia_memory_register(calls->transport, &span, &memory);
    if (error)
        snprintf(why_out, CALL_WHY, "memory of %u sessions: %s", sessions, gaia_transport_why());
    else
        gaia_memory_release(memory);
    munmap(span.address, span.length);
    return error;
}

void calls_stat(const struct calls *calls, struct calls_stat *stat_out)
{
    const struct call_totals *totals = &calls->totals;
    struct gaia_transport_limits limits;

    gaia_transport_limits(calls->transport, &limits);
    *stat_out = (struct calls_stat){
        .path = calls->config.carrier == GAIA_CARRIER_RDMA ? "rdma" : "local",
        .queues = calls->shape.queues - 1,
        .depth = calls->depth,
        .outstanding = totals->outstanding,
        .outstanding_max = totals->outstanding_max,
        .reads = totals->reads,
        .writes = totals->writes,
        .bytes_read = totals->bytes_read,
        .bytes_written = totals->bytes_written,
        .failed = totals->failed,
        .latency_p50_ns = histogram_at(&totals->latency, 500),
        .latency_p90_ns = histogram_at(&totals->latency, 900),
        .latency_p99_ns = histogram_at(&totals->latency, 990),
        .latency_p999_ns = histogram_at(&totals->latency, 999),
        .latency_max_ns = totals->latency.most,
    };
    memcpy(stat_out->device, limits.device, sizeof stat_out->device);
}

/* A session that was not told yet; NULL: all were. */
static struct call_session *next_untold(struct calls *calls)
{
    struct call_session *session;

    pthread_mutex_lock(&calls->lock);
    LIST_FOREACH (session, &calls->sessions, entry)
        if (!session->told)
            break;
    if (session) {
        session->told = true;
        call_session_get(session);
    }
    pthread_mutex_unlock(&calls->lock);
    return session;
}

void calls_end(struct calls *calls)
{
    struct call_session *session;

    pthread_mutex_lock(&calls->lock);
    calls->closing = true; /* no session is made any more */
    pthread_mutex_unlock(&calls->lock);
    gaia_transport_leave(calls->transport);
    while ((session = next_untold(calls))) {
        call_end(session, -ECANCELED);
        call_session_put(session);
    }
    pthread_mutex_lock(&calls->lock);
    while (calls->keepers || calls->connecting)
        pthread_cond_wait(&calls->changed, &calls->lock);
    pthread_mutex_unlock(&calls->lock);
    if (calls->stop)
        return;
    calls->stop = true;
    gaia_transport_wake(calls->transport);
    pthread_join(calls->poller, NULL);
}

void calls_close(struct calls *calls)
{
    if (!calls)
        return;
    calls_end(calls);
    free_calls(calls);
}

/* ---- connecting ---- */

/* Until the peer has exposed the slots. */
static int await_slots(struct call_session *session)
{
    pthread_mutex_lock(&session->lock);
    for (unsigned turn = 0; turn < CALL_TURNS && !session->exposed && !session->error; turn++) {
        struct timespec until = lock_wait_until(session->calls->config.timeout_ms / CALL_TURNS);
        int late = 0;

        while (!session->exposed && !session->error && !late)
            late = pthread_cond_timedwait(&session->changed, &session->lock, &until);
    }
    int error = session->error ? session->error : session->exposed ? 0 : -ETIMEDOUT;
    pthread_mutex_unlock(&session->lock);
    return error;
}

static int greet(struct calls *calls, struct gaia_link *link, struct call_session *session)
{
    struct gaia_span span = {session->memory, CALL_MEMORY, -1};
    struct gaia_memory *registered = NULL;
    struct gaia_pull *pull = NULL;
    int error;

    gaia_link_set_user(link, session);
    error = gaia_memory_register(calls->transport, &span, &registered);
    if (error)
        error = gaia_own_error(error);
    else
        error = gaia_pull_open(calls->transport, link, CALL_QUEUE_MESSAGES + 1, calls->depth,
                               &session->starved, &pull);
    pthread_mutex_lock(&session->lock);
    session->registered = registered; /* the keeper lets go of both */
    session->pull = pull;
    pthread_mutex_unlock(&session->lock);
    if (!error && (error = gaia_link_error(link))) /* it ended before it had a user */
        error = error == -ESHUTDOWN ? -ECONNREFUSED : error;
    if (!error)
        error = call_say_begin(session);
    return error ? error : await_slots(session);
}

static int connect_to(struct calls *calls, const char *peer, struct call_session **session_out)
{
    struct call_session *session;
    struct gaia_link *link;
    int error = gaia_link_connect(calls->transport, peer, &calls->shape, &link);

    if (error)
        return error;
    error = call_session_new(calls, link, true, &session);
    if (error) {
        gaia_link_close(link);
        return error;
    }
    error = greet(calls, link, session);
    if (error)
        call_end(session, error);
    int ended = call_session_settle(session, !error);
    if (!error && !ended) {
        *session_out = session;
        return 0;
    }
    call_session_put(session);
    error = error ? error : ended;
    return error == -ESHUTDOWN ? -ECONNREFUSED : error;
}

int call_connect(struct calls *calls, const char *peer, struct call_session **session_out)
{
    int error = -ESHUTDOWN;

    pthread_mutex_lock(&calls->lock);
    if (!calls->closing) {
        calls->connecting++;
        error = 0;
    }
    pthread_mutex_unlock(&calls->lock);
    if (error)
        return error;
    error = connect_to(calls, peer, session_out);
    pthread_mutex_lock(&calls->lock);
    calls->connecting--;
    pthread_cond_broadcast(&calls->changed);
    pthread_mutex_unlock(&calls->lock);
    return error;
}
