/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a session, and the bytes that move between them. */
#include <assert.h>
#include <errno.h>
#include <semaphore.h>

#include "base/clock.h"
#include "io/call_internal.h"

/* ---- which are taken ---- */

/* The end that connected has the first half. */
static unsigned first_slot(const struct call_session *session)
{
    return session->connected ? 0 : CALL_SLOTS;
}

/* So that more than `kept` were free. */
static int get(struct call_session *session, unsigned kept)
{
    int slot = -EIO;

    pthread_mutex_lock(&session->lock);
    while (!session->error && CALL_SLOTS - (unsigned)__builtin_popcount(session->slots) <= kept)
        pthread_cond_wait(&session->slot_free, &session->lock);
    if (!session->error) {
        unsigned free = (unsigned)__builtin_ctz(~session->slots);

        session->slots |= UINT32_C(1) << free;
        slot = (int)(first_slot(session) + free);
    }
    pthread_mutex_unlock(&session->lock);
    return slot;
}

int call_slot_get(struct call_session *session)
{
    return get(session, 0);
}

int call_slot_get_long(struct call_session *session)
{
    return get(session, CALL_SLOTS_KEPT);
}

void call_slot_free(struct call_session *session, unsigned slot)
{
    unsigned number = slot - first_slot(session);

    assert(number < CALL_SLOTS);
    assert(session->slots & UINT32_C(1) << number);
    session->slots &= ~(UINT32_C(1) << number);
    pthread_cond_broadcast(&session->slot_free); /* one of them may have to wait for more */
}

void call_slot_put(struct call_session *session, unsigned slot)
{
    pthread_mutex_lock(&session->lock);
    call_slot_free(session, slot);
    pthread_mutex_unlock(&session->lock);
}

void *call_slot(struct call_session *session, unsigned slot)
{
    return slot < CALL_SLOTS_BOTH ? session->memory + slot * CALL_SLOT_BYTES : NULL;
}

_Static_assert(CALL_SLOTS_BOTH <= 32, "a bit for each");

void *call_slot_serve(struct call_session *session, unsigned slot)
{
    if (slot >= CALL_SLOTS_BOTH || slot / CALL_SLOTS == first_slot(session) / CALL_SLOTS)
        return NULL;
    uint32_t bit = UINT32_C(1) << slot;
    return atomic_fetch_or(&session->served, bit) & bit ? NULL : call_slot(session, slot);
}

void call_slot_served(struct call_session *session, unsigned slot)
{
    uint32_t bit = UINT32_C(1) << slot, served = atomic_fetch_and(&session->served, ~bit);

    assert(served & bit);
}

/* ---- bytes ---- */

struct move {
    struct gaia_transfer transfer; /* first */
    struct call_session *session;
    uint64_t since_ns;
    bool posted;
    int error;  /* once it is done */
    sem_t done; /* not a condition of the session's lock: who wakes up would want that, and have to wait for
                   it */
};

/* As it is posted, not when it is: its end may be counted before who posts is back. */
static void count_begun(struct call_totals *totals)
{
    unsigned now = ++totals->outstanding, most = totals->outstanding_max;

    while (now > most && !atomic_compare_exchange_weak(&totals->outstanding_max, &most, now))
        ;
}

static void count_ended(struct call_totals *totals, const struct move *move, int error)
{
    const struct gaia_transfer *transfer = &move->transfer;

    if (error) {
        totals->failed++;
        return;
    }
    histogram_add(&totals->latency, clock_now_ns() - move->since_ns);
    *(transfer->write ? &totals->bytes_written : &totals->bytes_read) += transfer->length;
    (*(transfer->write ? &totals->writes : &totals->reads))++;
}

/* In the thread that polls, or that closes the link. */
static void move_done(struct gaia_transfer *transfer, int error)
{
    struct move *move = (struct move *)transfer;
    struct call_session *session = move->session;

    pthread_mutex_lock(&session->lock);
    session->moving--;
    session->moving_bytes -= transfer->length;
    pthread_cond_broadcast(&session->moved);
    pthread_mutex_unlock(&session->lock);
    session->calls->totals.outstanding--;
    count_ended(&session->calls->totals, move, error);
    move->error = error;
    sem_post(&move->done); /* who waits goes away with move after this */
}

static bool fits(const struct call_session *session, size_t length)
{
    return session->moving < CALL_MOVES && session->moving_bytes + length <= CALL_MOVING_MAX;
}

/* A message must not overtake the bytes that it speaks of: what is written goes by the queue that messages
 * go by. */
static unsigned queue_of(const struct call_session *session, const struct gaia_transfer *transfer)
{
    return transfer->write ? 0 : session->calls->shape.queues - 1;
}

/* Post it, when it is its turn. 0: move_done() is called, or has been. The lock is held, and let go
 * meanwhile. */
static int post(struct call_session *session, struct move *move)
{
    struct gaia_transfer *transfer = &move->transfer;
    uint64_t ticket = session->tickets++;
    int posted = -EAGAIN;

    while (!session->error && (session->turn != ticket || !fits(session, transfer->length)))
        pthread_cond_wait(&session->moved, &session->lock);
    if (session->error)
        return -EIO; /* and all that come after it, too: so the turn is not passed on */
    transfer->region = session->region;
    session->posting = true;
    session->moving++;
    session->moving_bytes += transfer->length;
    count_begun(&session->calls->totals);
    while (posted == -EAGAIN && !session->error) {
        pthread_mutex_unlock(&session->lock);
        posted = gaia_link_post(session->link, queue_of(session, transfer), &transfer, 1);
        struct timespec until = lock_wait_until(CALL_AGAIN_MS);
        pthread_mutex_lock(&session->lock);
        if (posted == -EAGAIN && !session->error)
            pthread_cond_timedwait(&session->moved, &session->lock, &until);
    }
    if (posted != 1) {
        session->moving--;
        session->moving_bytes -= transfer->length;
        session->calls->totals.outstanding--;
    }
    session->posting = false;
    session->turn++;
    pthread_cond_broadcast(&session->moved);
    if (session->error)
        pthread_cond_broadcast(&session->changed); /* the keeper */
    return posted == 1 ? 0 : posted;
}

/* The link has ended, and closed() is about to say why: who is told -EIO finds a session that has ended. */
static void await_end(struct call_session *session)
{
    struct timespec until = lock_wait_until(session->calls->config.timeout_ms);

    pthread_mutex_lock(&session->lock);
    while (!session->error && pthread_cond_timedwait(&session->changed, &session->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&session->lock);
}

/* Move the bytes, and wait for the end. The session is used meanwhile (enter()). */
static int carry_out(struct call_session *session, struct move *move)
{
    sem_init(&move->done, 0, 0);
    move->session = session;
    move->since_ns = clock_now_ns();
    move->transfer.done = move_done;
    pthread_mutex_lock(&session->lock);
    int refused = post(session, move);
    pthread_mutex_unlock(&session->lock);
    move->posted = !refused;
    if (refused)
        count_ended(&session->calls->totals, move, refused);
    while (move->posted && sem_wait(&move->done)) /* a signal; the link's time limit ends it */
        ;
    sem_destroy(&move->done);
    if (refused &&
        refused != -EIO) /* not exposed as it should be; else the link has ended, and closed() says why */
        call_end(session, -EPROTO, false);
    int error = refused ? refused : move->error;
    if (!error || (!refused && error == -EFAULT))
        return error;
    await_end(session);
    return -EIO;
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

static void leave(struct call_session *session)
{
    pthread_mutex_lock(&session->lock);
    session->inside--;
    if (session->error)
        pthread_cond_broadcast(&session->changed); /* the keeper */
    pthread_mutex_unlock(&session->lock);
}

static int enter_slot(struct call_session *session, unsigned slot, size_t offset, size_t length)
{
    if (!session->connected || slot >= CALL_SLOTS_BOTH || offset > CALL_SLOT_BYTES ||
        length > CALL_SLOT_BYTES - offset)
        return -EINVAL;
    return enter(session);
}

static int move_slot(struct call_session *session, unsigned slot, size_t offset, size_t length, bool write)
{
    uint64_t at = slot * CALL_SLOT_BYTES + offset;
    int error = enter_slot(session, slot, offset, length);

    if (error)
        return error;
    struct move move = {.transfer = {.memory = session->registered,
                                     .memory_offset = at,
                                     .offset = at,
                                     .length = (uint32_t)length,
                                     .write = write}};
    error = length ? carry_out(session, &move) : 0;
    leave(session);
    return error;
}

int call_slot_read(struct call_session *session, unsigned slot, size_t offset, size_t length)
{
    return move_slot(session, slot, offset, length, false);
}

int call_slot_write(struct call_session *session, unsigned slot, size_t offset, size_t length)
{
    return move_slot(session, slot, offset, length, true);
}

/* Registered for this read alone, and let go of before it is told. */
static int read_into(struct call_session *session, uint64_t at, size_t length, void *memory, bool cuttable)
{
    struct gaia_span span = {memory, length, -1};
    struct move move = {.transfer = {.offset = at, .length = (uint32_t)length, .cuttable = cuttable}};
    int error = gaia_memory_register(session->calls->transport, &span, &move.transfer.memory);

    if (error)
        return cuttable && error == -EFAULT ? -EFAULT : -ENOMEM;
    error = carry_out(session, &move);
    gaia_memory_release(move.transfer.memory);
    return error;
}

/* The same, of memory that is registered for good. */
static int read_into_standing(struct call_session *session, uint64_t at, size_t length, const void *memory,
                              struct gaia_standing *standing)
{
    struct move move = {
        .transfer = {.memory_offset = (uint64_t)((uintptr_t)memory - (uintptr_t)standing->address),
                     .offset = at,
                     .length = (uint32_t)length,
                     .cuttable = true}};
    int error = gaia_standing_register(standing, session->calls->transport, &move.transfer.memory);

    if (error)
        return error;
    error = carry_out(session, &move);
    if (move.posted)
        gaia_standing_ended(standing, GAIA_PATH_CALLS, move.transfer.memory, move.error);
    return error;
}

int call_slot_read_into(struct call_session *session, unsigned slot, size_t offset, size_t length,
                        void *memory, struct gaia_standing *standing, bool cuttable)
{
    uint64_t at = slot * CALL_SLOT_BYTES + offset;
    int error = enter_slot(session, slot, offset, length);

    if (error)
        return error;
    if (length)
        error = standing ? read_into_standing(session, at, length, memory, standing)
                         : read_into(session, at, length, memory, cuttable);
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
