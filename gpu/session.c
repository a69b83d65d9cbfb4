/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/session.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/shared_page.h"
#include "gpu/soft.h"
#include "io/reach.h"

static pthread_mutex_t sessions_lock =
    LOCK_INITIALIZER(LOCK_SESSIONS); /* guards sessions and their references */
static LIST_HEAD(, gaia_session) sessions = LIST_HEAD_INITIALIZER(sessions);

/* Nothing but the end of the connection, or of the session, wakes this thread. */
static void *watch(void *argument)
{
    struct gaia_session *session = argument;
    struct pollfd wait[2] = {{.fd = session->socket, .events = POLLRDHUP},
                             {.fd = session->stop, .events = POLLIN}};

    for (;;) {
        if (poll(wait, 2, -1) < 0)
            continue; /* EINTR: every signal is blocked, but a debugger may come */
        if (wait[1].revents)
            return NULL;
        if (wait[0].revents) {
            session->dead = true;
            gaia_mapping_session_died(session);
            wait[0].fd = -1;
        }
    }
}

static int say_hello(struct gaia_session *session, bool traps, struct gaia_message *reply_out,
                     int fds_out[GAIA_MESSAGE_FDS])
{
    struct gaia_message message = {.op = GAIA_OP_HELLO,
                                   .flags = GAIA_HELLO_MAPS | (traps ? GAIA_HELLO_TRAPS : 0)};

    int error = gaia_message_send(session->socket, &message, &session->faults, session->faults >= 0);
    return error ? error : gaia_message_receive(session->socket, reply_out, fds_out);
}

static int hello(struct gaia_session *session, bool traps)
{
    struct gaia_message message;
    int fds[GAIA_MESSAGE_FDS];

    int error = say_hello(session, traps, &message, fds);
    /* The daemon had no room for our descriptor, which is lost then, and has made some. */
    if (!error && message.error == -EMFILE)
        error = say_hello(session, traps, &message, fds);
    if (error)
        return error;
    if (!message.error) {
        session->alive = shared_page_look(fds[0]);
        error = session->alive ? 0 : -errno;
    }
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return message.error ? message.error : error;
}

static int start_watcher(struct gaia_session *session)
{
    sigset_t all, old;

    /* The program's signal handlers are for the program's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = -pthread_create(&session->watcher, NULL, watch, session);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

static int session_open(int fd, const struct gaia_ioctl_token *token, struct gaia_session **session_out)
{
    struct gaia_session *session = calloc(1, sizeof *session);
    bool traps = false;

    if (!session)
        return -ENOMEM;
    memcpy(session->name, token->socket, strnlen(token->socket, sizeof session->name - 1));
    session->references = 1;
    lock_init(&session->lock, LOCK_SESSION);
    int error = session->socket = reach_daemon(fd, token);
    if (error < 0)
        goto out_free;
    error = gaia_soft_open_faults(&session->faults, &traps);
    if (error == -EPERM || error == -ENOSYS) /* what takes no faults can be mapped all the same */
        session->faults = error;
    else if (error)
        goto out_socket;
    error = hello(session, traps);
    if (error)
        goto out_faults;
    session->stop = eventfd(0, EFD_CLOEXEC);
    error = session->stop < 0 ? -errno : start_watcher(session);
    if (!error) {
        *session_out = session;
        return 0;
    }
    if (session->stop >= 0)
        close(session->stop);
    munmap(session->alive, SHARED_PAGE_SIZE);
out_faults:
    if (session->faults >= 0)
        close(session->faults);
out_socket:
    close(session->socket);
out_free:
    pthread_mutex_destroy(&session->lock);
    free(session);
    return error;
}

int gaia_session_get(int fd, const struct gaia_ioctl_token *token, struct gaia_session **session_out)
{
    struct gaia_session *session;
    int error = 0;

    pthread_mutex_lock(&sessions_lock);
    LIST_FOREACH (session, &sessions, link)
        if (!session->dead && !strncmp(session->name, token->socket, sizeof session->name))
            break;
    if (session) {
        session->references++;
    } else {
        error = session_open(fd, token, &session);
        if (!error)
            LIST_INSERT_HEAD(&sessions, session, link);
    }
    pthread_mutex_unlock(&sessions_lock);
    if (error == -EPIPE || error == -ECONNRESET || error == -ECONNREFUSED)
        error = -ENOTCONN;
    if (!error)
        *session_out = session;
    return error;
}

void gaia_session_put(struct gaia_session *session)
{
    uint64_t one = 1;

    pthread_mutex_lock(&sessions_lock);
    unsigned left = --session->references;
    if (!left)
        LIST_REMOVE(session, link);
    pthread_mutex_unlock(&sessions_lock);
    if (left)
        return;
    while (write(session->stop, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(session->watcher, NULL);
    close(session->stop);
    close(session->socket);
    if (session->faults >= 0)
        close(session->faults);
    munmap(session->alive, SHARED_PAGE_SIZE);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

bool gaia_session_alive(const struct gaia_session *session)
{
    return !session->dead && alive_seen(session->alive);
}

int gaia_session_call(struct gaia_session *session, struct gaia_message *message, int *fds_out)
{
    int fds[GAIA_MESSAGE_FDS] = {-1, -1};
    uint16_t op = message->op;

    pthread_mutex_lock(&session->lock);
    int error = session->dead ? -ENOTCONN : gaia_message_send(session->socket, message, NULL, 0);
    if (!error)
        error = gaia_message_receive(session->socket, message, fds);
    pthread_mutex_unlock(&session->lock);
    if (!error && message->op != op)
        error = -EPROTO;
    if (error == -ENOTCONN || error == -EPIPE)
        session->dead = true; /* for who looks before the thread that watches has */
    /* The reply is there, and only its descriptors are lost. */
    bool lost = error == -EMFILE && message->op == op && !message->error;
    error = lost ? error : error ? -ENOTCONN : message->error;
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++) {
        if (fds_out && !error)
            fds_out[i] = fds[i];
        else if (fds[i] >= 0)
            close(fds[i]);
    }
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
    while ((session = LIST_FIRST(&sessions))) {
        LIST_REMOVE(session, link);
        close(session->stop);
        close(session->socket);
        if (session->faults >= 0)
            close(session->faults);
        munmap(session->alive, SHARED_PAGE_SIZE);
    }
}
