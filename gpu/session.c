/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/memory_file.h"
#include "base/shared_page.h"
#include "base/thread.h"
#include "gpu/soft.h"
#include "gpu/trust.h"
#include "io/reach.h"

/* Guards sessions, their references, and what one is that is being connected. No daemon is waited for while
 * it is held: a fork takes it. */
static pthread_mutex_t sessions_lock = LOCK_INITIALIZER(LOCK_SESSIONS);
static pthread_cond_t settled = PTHREAD_COND_INITIALIZER; /* of that lock: one is connected, or is not */
static LIST_HEAD(, gaia_session) sessions = LIST_HEAD_INITIALIZER(sessions);
static struct gaia_session *idle; /* of these; NULL, or the one that nobody has a reference of */
static unsigned users;            /* gaia_session_keep() */

static void session_free(struct gaia_session *session)
{
    pthread_mutex_destroy(&session->lock);
    free(session);
}

/* Nothing but the end of the connection wakes this thread. What it waits for stays open as long: if that has
 * been closed by the program before this thread has come here, nothing of it is there any more, and what has
 * got the number must not be waited for. */
static void *watch(void *argument)
{
    struct gaia_session *session = argument;
    struct pollfd wait = {.fd = session->socket, .events = POLLRDHUP};

    while (!gaia_session_is_lost(session) && poll(&wait, 1, -1) < 0)
        ; /* EINTR: every signal is blocked, but a debugger may come */
    if (!session->ending) {
        session->dead = true;
        gaia_mapping_session_died(session);
    }
    if (atomic_exchange(&session->left, true))
        session_free(session);
    return NULL;
}

/* Who is one too many is told so, and its connection closed, which may be before it has said a word: then
 * what it was told comes after the error of that, as long as it asks. */
static int hear(struct gaia_session *session, struct gaia_message *message_out)
{
    int error = descriptors_receive(&session->reply, session->socket, message_out);

    return error == -ENOTCONN ? descriptors_receive(&session->reply, session->socket, message_out) : error;
}

static int say_hello(struct gaia_session *session, bool traps, struct gaia_message *reply_out)
{
    struct gaia_message message = {.op = GAIA_OP_HELLO,
                                   .flags = GAIA_HELLO_MAPS | (traps ? GAIA_HELLO_TRAPS : 0)};

    int error = gaia_message_send(session->socket, &message, &session->faults, session->faults >= 0);
    if (error == -EPIPE || error == -ECONNRESET)
        shutdown(session->socket, SHUT_WR); /* so that it ends, whatever has happened */
    if (!error || error == -EPIPE || error == -ECONNRESET)
        error = hear(session, reply_out);
    return error;
}

static int hello(struct gaia_session *session, bool traps)
{
    struct gaia_message message;

    int error = say_hello(session, traps, &message);
    /* The daemon had no room for our descriptor, which is lost then, and has made some. */
    if (!error && message.error == -EMFILE)
        error = say_hello(session, traps, &message);
    if (error)
        return error;
    if (!message.error) {
        pthread_mutex_lock(&sessions_lock); /* a child of a fork unmaps it */
        session->alive = shared_page_look(session->reply.fds[0]);
        error = session->alive ? 0 : -errno;
        pthread_mutex_unlock(&sessions_lock);
    }
    descriptors_end(&session->reply, session->gone);
    return message.error ? message.error : error;
}

/* What a fork has to know of is opened under the list's lock; nothing here waits for anybody. */
static int open_descriptors(struct gaia_session *session, bool *traps_out)
{
    pthread_mutex_lock(&sessions_lock);
    int error = gaia_soft_open_faults(&session->faults, traps_out);
    if (error == -EPERM || error == -ENOSYS) { /* what takes no faults can be mapped all the same */
        session->faults = error;
        error = 0;
    }
    if (!error) {
        session->socket_mark = descriptor_mark(session->socket);
        session->faults_mark = descriptor_mark(session->faults);
        session->gone = above_standard(memory_file("gaia:gone", 0));
        error = session->gone < 0 ? -errno : 0;
        session->gone_mark = descriptor_mark(session->gone);
    }
    pthread_mutex_unlock(&sessions_lock);
    return error;
}

/* The list's lock is not held: the daemon may take its time. */
static int session_connect(struct gaia_session *session, int fd, const struct gaia_ioctl_token *token)
{
    struct reach_note note = {.lock = &sessions_lock, .socket = &session->socket};
    bool traps = false;

    int socket = reach_daemon(fd, token, &note);
    int error = socket < 0 ? socket : trust_check(socket, fd);
    if (!error)
        error = open_descriptors(session, &traps);
    if (!error)
        error = hello(session, traps);
    return error ? error : thread_start(&session->watcher, watch, session);
}

static void close_ours(int fd, const struct descriptor_mark *mark)
{
    if (descriptor_is_ours(fd, mark))
        close(fd);
}

static void session_close(const struct gaia_session *session)
{
    close_ours(session->socket, &session->socket_mark);
    close_ours(session->faults, &session->faults_mark);
    close_ours(session->gone, &session->gone_mark);
    close_ours(session->blocked, &session->blocked_mark);
    if (session->alive)
        munmap(session->alive, SHARED_PAGE_SIZE);
}

/* The daemon takes a token from the user only who has asked for it: from a program that has become another
 * since, by a session of that user. Lock held. */
static struct gaia_session *find(const struct gaia_ioctl_token *token)
{
    struct gaia_session *session;
    uid_t user = geteuid();

    LIST_FOREACH (session, &sessions, link)
        if (!session->dead && !session->refused && session->user == user &&
            !strncmp(session->name, token->socket, sizeof session->name))
            break;
    return session;
}

/* One that is being connected, in the list. NULL: no memory. Lock held. */
static struct gaia_session *begin(const struct gaia_ioctl_token *token)
{
    struct gaia_session *session = calloc(1, sizeof *session);

    if (!session)
        return NULL;
    memcpy(session->name, token->socket, strnlen(token->socket, sizeof session->name - 1));
    session->references = 1;
    session->connecting = true;
    session->user = geteuid();
    session->socket = session->faults = session->gone = session->blocked = -1;
    descriptors_begin(&session->reply);
    lock_init(&session->lock, LOCK_SESSION);
    LIST_INSERT_HEAD(&sessions, session, link);
    return session;
}

/* Take it off the list, and close what is open of it, in one hold of the lock: a fork's child closes what is
 * in the list, neither more, which may be another's by then, nor less, which the child would keep. Lock held.
 */
static void leave(struct gaia_session *session)
{
    LIST_REMOVE(session, link);
    session_close(session);
}

/* Connected, or not: those who wait for it go on. */
static void settle(struct gaia_session *session, int error)
{
    pthread_mutex_lock(&sessions_lock);
    session->error = error;
    session->connecting = false;
    if (error)
        leave(session);
    pthread_cond_broadcast(&settled);
    pthread_mutex_unlock(&sessions_lock);
}

/* Whether it was the last. Nobody finds the session then. */
static bool drop_reference(struct gaia_session *session)
{
    pthread_mutex_lock(&sessions_lock);
    bool last = !--session->references;
    if (last)
        session->dead = true;
    pthread_mutex_unlock(&sessions_lock);
    return last;
}

/* What says something to who wants to map. */
static int connect_error(int error)
{
    switch (error) {
    case 0:
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
    case -EAGAIN: /* no thread */
    case -EUSERS:
    case -ENETUNREACH:
    case -ENOTCONN:
    case -EPERM:
        return error;
    case -EPIPE:
    case -ECONNRESET:
    case -ECONNREFUSED:
        return -ENOTCONN;
    case -ENOBUFS:
        return -ENOMEM;
    default: /* what is no message, or nothing that a daemon of ours says */
        return -EIO;
    }
}

int gaia_session_get(int fd, const struct gaia_ioctl_token *token, struct gaia_session **session_out)
{
    pthread_mutex_lock(&sessions_lock);
    struct gaia_session *session = find(token);
    bool ours = !session;
    if (session && session == idle)
        idle = NULL;
    if (session)
        session->references++;
    else
        session = begin(token);
    while (session && !ours && session->connecting)
        pthread_cond_wait(&settled, &sessions_lock);
    pthread_mutex_unlock(&sessions_lock);
    if (!session)
        return -ENOMEM;
    if (ours) {
        int error = session_connect(session, fd, token);
        settle(session, error);
    }
    int error = session->error;
    if (!error)
        *session_out = session;
    else if (drop_reference(session))
        session_free(session);
    return connect_error(error);
}

/* Nobody finds the session any more. If the program has closed the socket, the watcher waits for one that has
 * no descriptor, and the daemon sees it open. Nothing here could wake it: it goes when the daemon ends, or
 * the program. */
static void session_end(struct gaia_session *session)
{
    bool lost = gaia_session_is_lost(session);

    session->ending = true;
    if (lost) {
        pthread_detach(session->watcher);
    } else {
        shutdown(session->socket, SHUT_RDWR);
        pthread_join(session->watcher, NULL);
    }
    pthread_mutex_lock(&sessions_lock);
    leave(session);
    pthread_mutex_unlock(&sessions_lock);
    if (!lost || atomic_exchange(&session->left, true))
        session_free(session);
}

/* The idle one, or that one in its place: which of them is to be ended, or NULL. Lock held. */
static struct gaia_session *set_idle(struct gaia_session *session)
{
    struct gaia_session *ended = idle;

    idle = session;
    if (ended)
        ended->dead = true;
    return ended;
}

void gaia_session_put(struct gaia_session *session)
{
    pthread_mutex_lock(&sessions_lock);
    bool last = !--session->references;
    /* Whether userfaultfd can be had may be another thing the next time. */
    bool kept = last && users && !session->dead && !session->refused && session->faults >= 0;
    if (last && !kept)
        session->dead = true;
    struct gaia_session *ended = kept ? set_idle(session) : last ? session : NULL;
    pthread_mutex_unlock(&sessions_lock);
    if (ended)
        session_end(ended);
}

void gaia_session_answered(struct gaia_session *session, int error)
{
    pthread_mutex_lock(&sessions_lock);
    session->served |= !error;
    session->refused = !session->served && (session->refused || error == -EACCES);
    pthread_mutex_unlock(&sessions_lock);
}

void gaia_session_keep(void)
{
    pthread_mutex_lock(&sessions_lock);
    users++;
    pthread_mutex_unlock(&sessions_lock);
}

void gaia_session_unkeep(void)
{
    pthread_mutex_lock(&sessions_lock);
    struct gaia_session *ended = --users ? NULL : set_idle(NULL);
    pthread_mutex_unlock(&sessions_lock);
    if (ended)
        session_end(ended);
}

bool gaia_session_is_lost(struct gaia_session *session)
{
    bool lost = !descriptor_is_ours(session->socket, &session->socket_mark);

    if (lost)
        session->dead = true;
    return lost;
}

int gaia_session_gone(const struct gaia_session *session)
{
    return descriptor_is_ours(session->gone, &session->gone_mark) ? session->gone : -1;
}

int gaia_session_faults(const struct gaia_session *session)
{
    return descriptor_is_ours(session->faults, &session->faults_mark) ? session->faults : -1;
}

bool gaia_session_alive(const struct gaia_session *session)
{
    return !session->dead && alive_seen(session->alive);
}

/* The reply, and what comes with one that has nothing to bring is closed. */
static int receive_reply(const struct gaia_session *session, struct gaia_message *message,
                         struct descriptors *own_out)
{
    int fds[GAIA_MESSAGE_FDS];

    if (own_out)
        return descriptors_receive(own_out, session->socket, message);
    int error = gaia_message_receive(session->socket, message, fds);
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return error;
}

int gaia_session_call(struct gaia_session *session, struct gaia_message *message, struct descriptors *own_out)
{
    uint16_t op = message->op;

    if (op != GAIA_OP_ACQUIRE && op != GAIA_OP_RELEASE) /* of which there may be very many */
        gaia_session_is_lost(session);
    pthread_mutex_lock(&session->lock);
    int error = session->dead ? -ENOTCONN : gaia_message_send(session->socket, message, NULL, 0);
    if (!error)
        error = receive_reply(session, message, own_out);
    pthread_mutex_unlock(&session->lock);
    if (!error && message->op != op)
        error = -EPROTO;
    if (error == -ENOTCONN || error == -EPIPE || error == -ECONNRESET)
        session->dead = true; /* for who looks before the thread that watches has */
    if (error == -EBADF || error == -ENOTSOCK)
        session->dead = true; /* the program has closed it: gaia_session_is_lost() */
    /* The reply is there, and only its descriptors are lost. */
    bool lost = error == -EMFILE && message->op == op && !message->error;
    error = lost ? error : error ? -ENOTCONN : message->error;
    if (own_out && error)
        descriptors_end(own_out, session->gone);
    return error;
}

void gaia_session_before_fork(void)
{
    pthread_mutex_lock(&sessions_lock);
}

void gaia_session_after_fork(bool child)
{
    struct gaia_session *session;

    if (!child) {
        pthread_mutex_unlock(&sessions_lock);
        return;
    }
    /* The child's copies of the descriptors go; the parent's session is untouched. Its memory is not freed:
     * another thread of the parent may have been using it at the fork. */
    lock_init(&sessions_lock, LOCK_SESSIONS);
    settled = (pthread_cond_t)PTHREAD_COND_INITIALIZER; /* nobody waits here */
    idle = NULL;
    users = 0; /* its copies of devices are none */
    while ((session = LIST_FIRST(&sessions))) {
        LIST_REMOVE(session, link);
        session_close(session);
    }
}
