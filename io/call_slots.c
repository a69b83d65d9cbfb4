/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a session: which are taken, and by whom. */
#include <assert.h>
#include <errno.h>
#include <sys/mman.h>

#include "io/call_internal.h"

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

/* Whoever has asked by it keeps a session that has ended, maybe for long: what is in its slots nobody looks
 * at any more, and it takes no memory from now on. The address stays. The lock is held. */
static void let_go(struct call_session *session)
{
    if (session->over && !session->slots)
        madvise(session->memory, CALL_MEMORY, MADV_REMOVE);
}

void call_slots_over(struct call_session *session)
{
    pthread_mutex_lock(&session->lock);
    session->over = true;
    let_go(session);
    pthread_mutex_unlock(&session->lock);
}

void call_slot_free(struct call_session *session, unsigned slot)
{
    unsigned number = slot - first_slot(session);

    assert(number < CALL_SLOTS);
    assert(session->slots & UINT32_C(1) << number);
    session->slots &= ~(UINT32_C(1) << number);
    let_go(session);
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
