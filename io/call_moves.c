/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that move between the slots of a session, or from there to memory of the caller's.
 *
 * Reads go through a batch reader (io/pull.h), on the link's queues but the first: those that come while one
 * is being posted go with one doorbell. Writes go one after the other by the queue that messages go by, as no
 * message may overtake the bytes that it speaks of. So nobody waits for the end of a write: who hears of it
 * hears of it by a message that was sent later. */
#include <errno.h>
#include <semaphore.h>

#include "base/clock.h"
#include "io/call_internal.h"

/* A read that is under way. */
struct move {
    struct call_session *session;
    struct gaia_pull_read read;
    uint64_t since_ns;
    bool tried; /* it was posted, or that failed */
    int error;  /* once it is done */
    sem_t done; /* not a condition of the session's lock: who wakes up would want that, and have to wait for
                   it */
};

/* Counts what is moved when it is asked for, not when it is posted: its end may be counted before the thread
 * that posts is back. */
static void count_begun(struct call_totals *totals)
{
    unsigned now = ++totals->outstanding, most = totals->outstanding_max;

    while (now > most && !atomic_compare_exchange_weak(&totals->outstanding_max, &most, now))
        ;
}

static void count_ended(struct call_totals *totals, bool is_write, uint32_t length, uint64_t since_ns,
                        int error)
{
    totals->outstanding--;
    if (error) {
        totals->failed++;
        return;
    }
    histogram_add(&totals->latency, clock_now_ns() - since_ns);
    *(is_write ? &totals->bytes_written : &totals->bytes_read) += length;
    (*(is_write ? &totals->writes : &totals->reads))++;
}

/* Use the session: transport and memory stay until leave(). */
static int enter(struct call_session *session)
{
    int error = 0;

    pthread_mutex_lock(&session->lock);
    if (session->error)
        error = -EIO;
    else
        session->inside++;
    pthread_mutex_unlock(&session->lock);
    return error;
}

/* The lock is held. */
static void leave_locked(struct call_session *session)
{
    session->inside--;
    if (session->error)
        pthread_cond_broadcast(&session->changed); /* the keeper */
}

static void leave(struct call_session *session)
{
    pthread_mutex_lock(&session->lock);
    leave_locked(session);
    pthread_mutex_unlock(&session->lock);
}

static int enter_slot(struct call_session *session, unsigned slot, size_t offset, size_t length)
{
    if (!session->connected || slot >= CALL_SLOTS_BOTH || offset > CALL_SLOT_BYTES ||
        length > CALL_SLOT_BYTES - offset)
        return -EINVAL;
    return enter(session);
}

/* Use the link, too: it stays until hang_up(). Only between enter() and leave(). The lock is held. */
static int take_link(struct call_session *session)
{
    if (session->error)
        return -EIO;
    session->posting++;
    return 0;
}

static void hang_up(struct call_session *session)
{
    session->posting--;
    if (session->error)
        pthread_cond_broadcast(&session->changed); /* the keeper */
}

/* ---- writes ---- */

/* In the thread that polls, or that closes the link; the session stays until this returns, as the link is
 * closed after it. */
static void write_done(struct gaia_transfer *transfer, int error)
{
    struct call_write *write =
        (struct call_write *)((char *)transfer - offsetof(struct call_write, transfer));
    struct call_session *session = write->session;

    count_ended(&session->calls->totals, true, transfer->length, write->since_ns, error);
    pthread_mutex_lock(&session->lock);
    write->under_way = false;
    session->moving--;
    session->moving_bytes -= transfer->length;
    pthread_cond_broadcast(&session->moved);
    leave_locked(session);
    pthread_mutex_unlock(&session->lock);
}

static bool fits(const struct call_session *session, size_t length)
{
    return session->moving < CALL_WRITES && session->moving_bytes + length <= CALL_MOVING_MAX;
}

/* The link is used. The lock is held, and let go meanwhile. 0, or what gaia_link_post() says. */
static int post(struct call_session *session, struct gaia_transfer *transfer)
{
    int posted = -EAGAIN;

    while (posted == -EAGAIN && !session->error) {
        pthread_mutex_unlock(&session->lock);
        posted = gaia_link_post(session->link, CALL_QUEUE_MESSAGES, &transfer, 1);
        struct timespec until = lock_wait_until(CALL_AGAIN_MS);
        pthread_mutex_lock(&session->lock);
        if (posted == -EAGAIN && !session->error)
            pthread_cond_timedwait(&session->moved, &session->lock, &until);
    }
    return posted == 1 ? 0 : posted;
}

/* Post it, when it is its turn, and the one before of this slot has ended: a peer may have asked for it
 * again. 0: write_done() is called, or has been. The lock is held, and let go meanwhile. */
static int post_in_turn(struct call_session *session, unsigned slot, const struct gaia_transfer *transfer)
{
    struct call_write *write = &session->writes[slot];
    uint64_t ticket = session->tickets++;

    while (!session->error &&
           (session->turn != ticket || write->under_way || !fits(session, transfer->length)))
        pthread_cond_wait(&session->moved, &session->lock);
    if (take_link(session))
        return -EIO; /* and all that come after it, too: so the turn is not passed on */
    *write = (struct call_write){
        .transfer = *transfer, .session = session, .since_ns = clock_now_ns(), .under_way = true};
    write->transfer.region = session->region;
    session->moving++;
    session->moving_bytes += transfer->length;
    count_begun(&session->calls->totals);
    int error = post(session, &write->transfer);
    if (error) {
        write->under_way = false;
        session->moving--;
        session->moving_bytes -= transfer->length;
        count_ended(&session->calls->totals, true, 0, 0, error);
    }
    hang_up(session);
    session->turn++;
    pthread_cond_broadcast(&session->moved);
    return error;
}

/* ---- reads ---- */

/* In the thread that polls, or that closes the link; of one that could not be posted, in the thread that
 * rings. */
static void read_done(struct gaia_pull_read *read, int error)
{
    struct move *move = (struct move *)((char *)read - offsetof(struct move, read));

    count_ended(&move->session->calls->totals, false, read->length, move->since_ns, error);
    move->tried = read->tried;
    move->error = error;
    sem_post(&move->done); /* who waits goes away with move after this */
}

/* Post the move, if there is one, and what waits. Its end is told always, but when this is an error. */
static int ring(struct call_session *session, struct move *move)
{
    pthread_mutex_lock(&session->lock);
    int error = take_link(session);
    if (move)
        move->read.region = session->region;
    pthread_mutex_unlock(&session->lock);
    if (error)
        return error;
    if (move)
        gaia_pull_add(session->pull, &move->read);
    gaia_pull_ring(session->pull);
    pthread_mutex_lock(&session->lock);
    hang_up(session);
    pthread_mutex_unlock(&session->lock);
    return 0;
}

static int begin_read(struct call_session *session, struct move *move)
{
    move->read.done = read_done;
    return ring(session, move);
}

void call_ring_again(struct call_session *session)
{
    (void)ring(session, NULL); /* it has ended, and what waits with it */
}

/* ---- either ---- */

/* The link has ended, and closed() is about to say why: a caller that is told -EIO must find a session that
 * has ended. */
static void await_end(struct call_session *session)
{
    struct timespec until = lock_wait_until(session->calls->config.timeout_ms);

    pthread_mutex_lock(&session->lock);
    while (!session->error && pthread_cond_timedwait(&session->changed, &session->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&session->lock);
}

/* What a caller is told of an error of the transport. */
static int ended_with(struct call_session *session, int error)
{
    if (error != -EIO && error != -ECANCELED && error != -ESHUTDOWN)
        call_end(session, -EPROTO); /* not exposed as it should be; else closed() says why it ended */
    await_end(session);
    return -EIO;
}

/* Read the bytes, and wait for the end. The session is used meanwhile (enter()). 0; -EFAULT, of what is
 * cuttable; else -EIO, and the session has ended. */
static int carry_out(struct call_session *session, struct move *move)
{
    struct call_totals *totals = &session->calls->totals;

    sem_init(&move->done, 0, 0);
    move->session = session;
    move->since_ns = clock_now_ns();
    count_begun(totals);
    int error = begin_read(session, move);
    if (error) {
        count_ended(totals, false, 0, 0, error);
    } else {
        while (sem_wait(&move->done)) /* a signal; the link's time limit ends it */
            ;
        error = move->error;
    }
    sem_destroy(&move->done);
    return !error || error == -EFAULT ? error : ended_with(session, error);
}

int call_slot_read(struct call_session *session, unsigned slot, size_t offset, size_t length)
{
    uint64_t at = slot * CALL_SLOT_BYTES + offset;
    int error = enter_slot(session, slot, offset, length);

    if (error)
        return error;
    struct move move = {
        .read = {
            .memory = session->registered, .memory_offset = at, .offset = at, .length = (uint32_t)length}};
    error = length ? carry_out(session, &move) : 0;
    leave(session);
    return error;
}

int call_slot_write(struct call_session *session, unsigned slot, size_t offset, size_t length)
{
    uint64_t at = slot * CALL_SLOT_BYTES + offset;
    int error = enter_slot(session, slot, offset, length);

    if (error)
        return error;
    const struct gaia_transfer transfer = {.memory = session->registered,
                                           .memory_offset = at,
                                           .offset = at,
                                           .length = (uint32_t)length,
                                           .write = true,
                                           .done = write_done};
    if (length) {
        pthread_mutex_lock(&session->lock);
        error = post_in_turn(session, slot, &transfer);
        pthread_mutex_unlock(&session->lock);
    }
    if (!error && length)
        return 0; /* write_done() leaves */
    if (error)
        error = ended_with(session, error);
    leave(session);
    return error;
}

/* It is registered at the first time. */
static int read_into(struct call_session *session, uint64_t at, size_t length, const void *memory,
                     struct gaia_standing *standing)
{
    struct move move = {
        .read = {.memory_offset = (uint64_t)((uintptr_t)memory - (uintptr_t)standing->address),
                 .offset = at,
                 .length = (uint32_t)length,
                 .cuttable = true}};
    int error = gaia_standing_register(standing, session->calls->transport, &move.read.memory);

    if (error)
        return error;
    error = carry_out(session, &move);
    if (move.tried)
        gaia_standing_ended(standing, GAIA_PATH_CALLS, move.read.memory, move.error);
    return error;
}

int call_slot_read_into(struct call_session *session, unsigned slot, size_t offset, size_t length,
                        void *memory, struct gaia_standing *standing)
{
    uint64_t at = slot * CALL_SLOT_BYTES + offset;
    int error = enter_slot(session, slot, offset, length);

    if (error)
        return error;
    if (length)
        error = read_into(session, at, length, memory, standing);
    leave(session);
    return error;
}

int call_slot_register(struct call_session *session, struct gaia_standing *standing,
                       struct gaia_memory **memory_out)
{
    int error = enter(session);

    if (error)
        return error;
    error = gaia_standing_register(standing, session->calls->transport, memory_out);
    leave(session);
    return error;
}
