/* SPDX-License-Identifier: Apache-2.0 */
/* How a transport learns what has happened, and reports it: callbacks, and the one thread at a time that
 * polls. */
#include "io/transport_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"

#define MS 1000000u /* in nanoseconds */
/* Callbacks of one poll: a flood of messages does not keep the clock from being looked at. */
#define ROUND_MAX 4096
#define EVENTS_MAX 32 /* of epoll, at a time, */
/* and so often in a row at most: all queues, and who comes */
#define HEAR_MAX (QUEUES_MAX / EVENTS_MAX + 2)
#define HEAR_NS MS /* epoll is asked so often at least, however much comes otherwise */

/* ---- callbacks ---- */

static void call_event(struct gaia_link *link, const struct link_event *event)
{
    const struct gaia_transport_calls *calls = &link->transport->config.calls;
    void *context = link->transport->config.context;
    int error;

    switch (event->kind) {
    case EVENT_ARRIVED:
        error = calls->arrived ? calls->arrived(context, link, link->peer) : -ECONNREFUSED;
        if (error)
            gaia_link_refuse(link, error);
        break;
    case EVENT_MESSAGE:
        if (calls->message)
            calls->message(context, link, event->bytes, event->length);
        break;
    case EVENT_EXPOSED:
        if (calls->exposed)
            calls->exposed(context, link, event->region, event->length);
        break;
    }
}

/* One callback. The lock is held, and let go meanwhile; the link may be gone afterwards. */
static void deliver_one(struct gaia_transport *transport, struct gaia_link *link)
{
    struct gaia_transfer *transfer = link->done;
    struct link_event *event = transfer ? NULL : STAILQ_FIRST(&link->events);
    bool end = !transfer && !event && link->end_unsaid;
    void (*closed)(void *, struct gaia_link *, int) = transport->config.calls.closed;
    int error = link->error;

    if (transfer) {
        link->done = transfer->next;
        if (!link->done)
            link->done_last = &link->done;
    } else if (event) {
        STAILQ_REMOVE_HEAD(&link->events, entry);
    } else {
        link->end_unsaid = false;
    }
    link_make_ready(link);
    if (end)
        transport_say(error, "%s", link->why);
    transport->delivering = link;
    pthread_mutex_unlock(&transport->lock);
    if (transfer)
        transfer->done(transfer, transfer->error);
    else if (event)
        call_event(link, event);
    else if (end && closed)
        closed(transport->config.context, link, error == -ESHUTDOWN ? 0 : error);
    free(event);
    pthread_mutex_lock(&transport->lock);
    transport->delivering = NULL;
    transport->rounds++;
    if (transport->waiters)
        pthread_cond_broadcast(&transport->changed);
}

static int deliver(struct gaia_transport *transport)
{
    int count = 0;

    while (!TAILQ_EMPTY(&transport->ready) && count < ROUND_MAX) {
        deliver_one(transport, TAILQ_FIRST(&transport->ready));
        count++;
    }
    return count;
}

/* ---- polling ---- */

/* gaia_transport_wake() was called: epoll has said so. */
static void note_wake(struct gaia_transport *transport)
{
    eventfd_t ignored;

    eventfd_read(transport->wake, &ignored);
    transport->woken = true;
}

/* Take what epoll tells of, and sleep up to timeout_ms until it does. Whether there may be more. The lock is
 * held, and let go where this sleeps. */
static bool hear_some(struct gaia_transport *transport, unsigned timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];

    if (timeout_ms)
        pthread_mutex_unlock(&transport->lock);
    int count = epoll_wait(transport->epoll, events, EVENTS_MAX, (int)timeout_ms); /* failed: as for none */
    if (timeout_ms)
        pthread_mutex_lock(&transport->lock);
    if (count > 0)
        transport->carrier->glance(
            transport); /* what a peer has said before its end, of which epoll may tell */
    for (int i = 0; i < count; i++) {
        if (events[i].data.u64 == QUEUE_WAKE)
            note_wake(transport);
        else
            transport->carrier->heard(transport, events[i].data.u64);
    }
    return count == EVENTS_MAX;
}

/* All peers have their turn, on each of their queues, before the clock is looked at. */
static void hear(struct gaia_transport *transport, unsigned timeout_ms)
{
    for (unsigned i = 0; i < HEAR_MAX && hear_some(transport, i ? 0 : timeout_ms); i++)
        ;
    transport->carrier->glance(transport);
    transport->heard_ns = clock_now_ns();
}

uint64_t transport_clock_ns(void)
{
    return clock_now_ns() + transport_test.ahead_ns;
}

static uint64_t time_at(const struct gaia_transport *transport, uint64_t clock)
{
    uint64_t since = clock - transport->looked_ns;
    uint64_t most = (uint64_t)transport->config.timeout_ms * MS / 4; /* keepalives are no further apart */

    return transport->time_ns + (since < most ? since : most);
}

uint64_t transport_time(const struct gaia_transport *transport)
{
    return time_at(transport, transport_clock_ns());
}

/* Ends what is late, sends keepalives; lets go of links of peers that never finished connecting, which nobody
 * else knows of. Often enough for the link whose peer has the least patience.
 *
 * A peer is late if it had not spoken by the time that is read first: this process may stand still once more
 * after that, and what peers have said meanwhile is here. */
static void look_at_the_clock(struct gaia_transport *transport)
{
    uint64_t clock = transport_clock_ns(), now = time_at(transport, clock);
    unsigned pause_ms = transport->config.timeout_ms / 16;
    struct gaia_link *link, *next;

    if (clock < transport->tick_ns)
        return;
    transport->looked_ns = clock;
    transport->time_ns = now;
    hear(transport, 0);
    if (transport->carrier->tick)
        transport->carrier->tick(transport, now);
    for (link = LIST_FIRST(&transport->links); link; link = next) {
        next = LIST_NEXT(link, entry);
        link_tick(link, now);
        if (link->state == LINK_ENDED && !link->owned && !link->held)
            link_free(link);
        else if (link->state != LINK_ENDED && link->interval_ms / 4 < pause_ms) /* it may be open by then */
            pause_ms = link->interval_ms / 4;
    }
    transport->tick_ns = clock + (uint64_t)pause_ms * MS;
}

static bool has_come(const struct gaia_transport *transport)
{
    return !TAILQ_EMPTY(&transport->ready) || transport->woken;
}

/* Nothing has come: look for it for a while, then see to it that epoll tells of it. How long it may be slept
 * for. The lock is held, and let go meanwhile. */
static unsigned idle(struct gaia_transport *transport, unsigned timeout_ms)
{
    uint64_t now = clock_now_ns(), until = now + (uint64_t)transport->config.spin_us * 1000;

    while (now < until && !has_come(transport)) {
        pthread_mutex_unlock(&transport->lock);
        pthread_mutex_lock(&transport->lock);
        transport->carrier->glance(transport);
        now = clock_now_ns();
    }
    if (has_come(transport) || transport->carrier->arm(transport))
        return 0;
    transport->carrier->glance(transport); /* what came before it was armed */
    if (has_come(transport))
        return 0;
    now = transport_clock_ns();
    uint64_t tick_ms = transport->tick_ns > now ? (transport->tick_ns - now) / MS + 1 : 0;
    return timeout_ms > tick_ms ? (unsigned)tick_ms : timeout_ms;
}

/* gaia_transport_poll(), by the one thread that does. A thread that waits for an answer waits for each system
 * call here, too: so epoll is asked when there is nothing else to do, and otherwise now and then, which is
 * when the clock is looked at. The lock is held, and let go meanwhile. */
static int poll_once(struct gaia_transport *transport, unsigned timeout_ms)
{
    transport->carrier->glance(transport);
    int count = deliver(transport);
    if (count && clock_now_ns() - transport->heard_ns < HEAR_NS)
        return count;
    if (timeout_ms)
        timeout_ms = count || transport->woken ? 0 : idle(transport, timeout_ms);
    hear(transport, timeout_ms);
    look_at_the_clock(transport);
    return count + deliver(transport);
}

int gaia_transport_poll(struct gaia_transport *transport, unsigned timeout_ms)
{
    lock_none("gaia_transport_poll");
    pthread_mutex_lock(&transport->lock);
    if (transport->polling) {
        pthread_mutex_unlock(&transport->lock);
        return -EBUSY;
    }
    transport->polling = true;
    transport->woken = false;
    transport->poller = pthread_self();
    int count = poll_once(transport, timeout_ms);
    transport->polling = false;
    transport->rounds++; /* the thread may poll again before who waits has seen that it did not */
    if (transport->waiters)
        pthread_cond_broadcast(&transport->changed);
    pthread_mutex_unlock(&transport->lock);
    return count;
}

/* Another thread polls: until it has called back, or stops, or a while has passed. */
static void wait_for_poller(struct gaia_transport *transport, uint64_t rounds, unsigned timeout_ms)
{
    struct timespec until = lock_wait_until(timeout_ms);

    pthread_mutex_lock(&transport->lock);
    transport->waiters++;
    while (transport->polling && transport->rounds == rounds)
        if (pthread_cond_timedwait(&transport->changed, &transport->lock, &until))
            break;
    transport->waiters--;
    pthread_mutex_unlock(&transport->lock);
}

bool gaia_transport_wait(struct gaia_transport *transport, bool (*until)(void *context), void *context,
                         unsigned timeout_ms)
{
    uint64_t end = clock_now_ns() + (uint64_t)timeout_ms * MS;

    for (;;) {
        pthread_mutex_lock(&transport->lock);
        uint64_t rounds = transport->rounds;
        pthread_mutex_unlock(&transport->lock);
        if (until(context))
            return true;
        uint64_t now = clock_now_ns();
        if (now >= end)
            return false;
        unsigned left_ms = (unsigned)((end - now) / MS) + 1;
        if (gaia_transport_poll(transport, left_ms) == -EBUSY)
            wait_for_poller(transport, rounds, left_ms);
    }
}

void gaia_transport_leave(struct gaia_transport *transport)
{
    pthread_mutex_lock(&transport->lock);
    transport->leaving = true;
    transport->tick_ns = 0; /* the next look at the clock is now */
    pthread_mutex_unlock(&transport->lock);
    gaia_transport_wake(transport);
}

void gaia_transport_wake(struct gaia_transport *transport)
{
    eventfd_write(transport->wake, 1);
}
