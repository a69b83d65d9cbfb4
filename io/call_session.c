/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a session. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "io/call_internal.h"

bool call_is_short(int error)
{
    return error == gaia_own_error(error);
}

/* ---- the keeper ---- */

/* What must be over before the link may go: nobody is in a call of the transport on it. The lock is held. */
static bool link_is_used(const struct call_session *session)
{
    return session->sending || session->posting;
}

static void close_link(struct call_session *session)
{
    pthread_mutex_lock(&session->lock);
    while (!session->settled || !session->error || link_is_used(session))
        pthread_cond_wait(&session->changed, &session->lock);
    struct gaia_link *link = session->link;
    session->link = NULL;
    pthread_mutex_unlock(&session->lock);
    /* Transfers end; from here on nothing of the peer's reaches the memory. */
    if (!session->connected && call_is_short(session->error))
        gaia_link_refuse(link, session->error);
    else
        gaia_link_close(link);
    if (session->pull)
        gaia_pull_end(session->pull, -ECANCELED);
    pthread_mutex_lock(&session->lock);
    while (session->inside)
        pthread_cond_wait(&session->changed, &session->lock);
    struct gaia_memory *registered = session->registered;
    struct gaia_pull *pull = session->pull;
    session->registered = NULL;
    session->pull = NULL;
    pthread_mutex_unlock(&session->lock);
    gaia_pull_close(pull);
    gaia_memory_release(registered);
}

static void *keep(void *argument)
{
    struct call_session *session = argument;
    struct calls *calls = session->calls;

    close_link(session);
    for (unsigned i = 0; i < CALL_CLASSES; i++)
        call_class_answer(&session->classes[i]);
    pthread_mutex_lock(&session->lock);
    bool tell = session->known; /* as it will stay */
    pthread_mutex_unlock(&session->lock);
    if (tell && calls->config.lost)
        calls->config.lost(calls->config.context, session, session->error);
    for (unsigned i = 0; i < CALL_CLASSES; i++)
        call_class_join(&session->classes[i]);
    if (tell)
        calls->config.ended(calls->config.context, session, session->error);
    call_slots_over(session);
    pthread_mutex_lock(&calls->lock);
    LIST_REMOVE(session, entry);
    pthread_mutex_unlock(&calls->lock);
    call_session_put(session);
    pthread_mutex_lock(&calls->lock);
    calls->keepers--;
    pthread_cond_broadcast(&calls->changed);
    pthread_mutex_unlock(&calls->lock); /* the last that is known of calls */
    return NULL;
}

/* ---- begin ---- */

static void free_session(struct call_session *session)
{
    for (unsigned i = 0; i < CALL_CLASSES; i++)
        call_class_destroy(&session->classes[i]);
    call_messages_free(&session->messages);
    munmap(session->memory, CALL_MEMORY);
    pthread_cond_destroy(&session->moved);
    pthread_cond_destroy(&session->slot_free);
    pthread_cond_destroy(&session->changed);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

/* Shared: a child's copy would leave a device with pages that are this process's no more. */
static struct call_session *alloc_session(struct calls *calls, struct gaia_link *link, bool connected)
{
    struct call_session *session = calloc(1, sizeof *session);

    if (!session)
        return NULL;
    session->memory = mmap(NULL, CALL_MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (session->memory == MAP_FAILED) {
        free(session);
        return NULL;
    }
    session->calls = calls;
    session->link = link;
    session->connected = connected;
    session->timeout_ms = gaia_link_timeout_ms(link);
    session->references = 2;
    STAILQ_INIT(&session->messages);
    lock_init(&session->lock, LOCK_CALL_SESSION);
    lock_condition_init(&session->changed);
    lock_condition_init(&session->slot_free);
    lock_condition_init(&session->moved);
    for (unsigned i = 0; i < CALL_CLASSES; i++)
        call_class_init(session, i);
    return session;
}

/* With the lock of calls held: calls_close() waits for who is in the list. */
static int start_keeper(struct calls *calls, struct call_session *session)
{
    pthread_t keeper;

    if (calls->closing)
        return -ESHUTDOWN;
    int error = -pthread_create(&keeper, NULL, keep, session);
    if (error)
        return error;
    pthread_detach(keeper);
    LIST_INSERT_HEAD(&calls->sessions, session, entry);
    calls->keepers++;
    return 0;
}

int call_session_new(struct calls *calls, struct gaia_link *link, bool connected,
                     struct call_session **session_out)
{
    struct call_session *session = alloc_session(calls, link, connected);

    if (!session)
        return -ENOMEM;
    pthread_mutex_lock(&calls->lock);
    int error = start_keeper(calls, session);
    pthread_mutex_unlock(&calls->lock);
    if (error)
        free_session(session);
    else
        *session_out = session;
    return error;
}

int call_session_settle(struct call_session *session, bool known)
{
    pthread_mutex_lock(&session->lock);
    /* Of one that has ended before call_connect() returned nobody hears but by that; who took one in
     * arrived() has it, whatever became of it meanwhile. */
    int error = session->connected ? session->error : 0;
    session->settled = true;
    session->known = known && !error;
    pthread_cond_broadcast(&session->changed);
    pthread_mutex_unlock(&session->lock);
    return error;
}

/* ---- end ---- */

void call_end(struct call_session *session, int error)
{
    pthread_mutex_lock(&session->lock);
    if (!session->error) {
        session->error = error;
        for (unsigned i = 0; i < CALL_CLASSES; i++)
            call_class_wake(&session->classes[i]);
        pthread_cond_broadcast(&session->changed);
        pthread_cond_broadcast(&session->slot_free);
        pthread_cond_broadcast(&session->moved);
    }
    pthread_mutex_unlock(&session->lock);
}

void call_session_abort(struct call_session *session)
{
    call_end(session, -ECANCELED);
}

void call_session_get(struct call_session *session)
{
    atomic_fetch_add(&session->references, 1);
}

void call_session_put(struct call_session *session)
{
    unsigned before = atomic_fetch_sub(&session->references, 1);

    assert(before);
    if (before == 1)
        free_session(session);
}

int call_session_error(const struct call_session *session)
{
    return session->error;
}

unsigned call_session_timeout_ms(const struct call_session *session)
{
    return session->timeout_ms;
}

uint64_t call_session_received(const struct call_session *session)
{
    return session->received;
}

bool call_session_is_asked(const struct call_session *session)
{
    return session->asked;
}

unsigned call_session_calling(struct call_session *session, unsigned class)
{
    pthread_mutex_lock(&session->lock);
    unsigned calling = session->classes[class].calling;
    pthread_mutex_unlock(&session->lock);
    return calling;
}

bool call_session_connected(const struct call_session *session)
{
    return session->connected;
}

void call_session_set_user(struct call_session *session, void *user)
{
    session->user = user;
}

void *call_session_user(const struct call_session *session)
{
    return session->user;
}
