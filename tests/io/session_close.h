/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a session that a test has, before its calls are closed. */
#ifndef GAIAFS_TESTS_IO_SESSION_CLOSE_H
#define GAIAFS_TESTS_IO_SESSION_CLOSE_H

#include <errno.h>

#include "io/call_internal.h"

static inline bool session_is_kept(struct calls *calls, const struct call_session *session)
{
    const struct call_session *kept;

    LIST_FOREACH (kept, &calls->sessions, entry)
        if (kept == session)
            return true;
    return false;
}

/* As call_session_abort(), but of one that has not ended yet nobody here is told; and waits until nobody
 * serves a request of it. */
static inline void session_close(struct call_session *session)
{
    struct calls *calls = session->calls;

    pthread_mutex_lock(&session->lock);
    session->known &= session->error != 0;
    pthread_mutex_unlock(&session->lock);
    call_end(session, -ECANCELED);
    pthread_mutex_lock(&calls->lock);
    while (session_is_kept(calls, session))
        pthread_cond_wait(&calls->changed, &calls->lock);
    pthread_mutex_unlock(&calls->lock);
}

#endif
