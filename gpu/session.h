/* SPDX-License-Identifier: Apache-2.0 */
/* A process's session with one daemon: the socket, the userfaultfd whose faults the daemon serves, and a
 * thread that notices when the daemon is gone. */
#ifndef GAIAFS_GPU_SESSION_H
#define GAIAFS_GPU_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/alive.h"
#include "base/lock.h"
#include "gpu/descriptors.h"
#include "io/message.h"

struct gaia_session {
    LIST_ENTRY(gaia_session) link; /* under the list's lock in session.c */
    unsigned references;           /* likewise: mappings, and calls under way; none: it is the idle one */
    uid_t user;                    /* that connected; set before anybody finds it */
    bool connecting;               /* likewise: the thread that made it talks to the daemon, others wait */
    bool served, refused;          /* likewise: gaia_session_answered() */
    int error;                     /* likewise: what came of it; not 0: it is in no list, and all is closed */
    char name[64];
    int socket;  /* -1: there is none yet; until it is connected under the list's lock */
    int faults;  /* likewise; userfaultfd, or the negative errno with which there is none */
    int gone;    /* constant; soft's: memory that has none, for what is mapped when the daemon dies */
    int blocked; /* soft's, of the addresses that are blocked; -1: none were. Under the table's lock */
    struct descriptor_mark socket_mark, faults_mark, gone_mark, blocked_mark; /* each as its descriptor */
    _Atomic bool dead;   /* the daemon is gone: every call gives ENOTCONN */
    _Atomic bool ending; /* the watcher is told so, by the socket's end */
    _Atomic bool left;   /* by one of two, the watcher and who ends the session; the other one frees it */
    struct descriptors reply; /* to the first words; none later */
    struct alive *alive;      /* the daemon's, read only */
    pthread_mutex_t lock;     /* one request at a time */
    pthread_t watcher;
};

/* The session with the daemon of this socket, opened if need be: others that want it wait; a fork and
 * sessions with other daemons do not. 0 or a negative errno, those of reach_daemon() among them. fd, token: a
 * descriptor of its mount, and what the daemon has told of it. As long as nothing is mapped by a session the
 * daemon may end it: a caller that maps then must try another session. */
int gaia_session_get(int fd, const struct gaia_ioctl_token *token, struct gaia_session **session_out);
void gaia_session_put(struct gaia_session *session);

/* The daemon's answer to a first map by the session. The program may have changed its user back and forth
 * while it connected, so that the daemon takes it for another user than we do: if the first map is refused
 * because of its user, nobody else finds the session. */
void gaia_session_answered(struct gaia_session *session, int error);

/* Between these calls, which may be nested (one for each open device), the last session is kept when nobody
 * has a reference to it any more: so a program that maps one file after the other does not connect for each.
 * Only one is kept, however many mounts the program uses. The daemon may end it when others need its place
 * (fs/client.h). */
void gaia_session_keep(void);
void gaia_session_unkeep(void);

/* Send a request and wait for its reply, which takes the request's place. Descriptors of the reply go to
 * own_out, which has none yet, or is NULL when none are expected. Returns the reply's error; -EMFILE, with a
 * reply that has no error: what was asked for is done, but there is no room for its descriptors; or
 * -ENOTCONN. */
int gaia_session_call(struct gaia_session *session, struct gaia_message *message,
                      struct descriptors *own_out);

/* Whether the program has closed the session's socket, as close_range() does. Then it is dead, though the
 * daemon goes on serving touches: nobody has told it. Costs a system call: not for calls that are made all
 * the time. */
bool gaia_session_is_lost(struct gaia_session *session);
/* session->gone, session->faults; -1: the program has closed it, or there is none. As above. */
int gaia_session_gone(const struct gaia_session *session);
int gaia_session_faults(const struct gaia_session *session);

/* Whether the daemon lived until now: so the kernel had somebody to send to what it was handed before. Does
 * not ask the daemon. */
bool gaia_session_alive(const struct gaia_session *session);

/* Around a fork: the list stands still, and what is open of each session is known. The child forgets them
 * all, those too that are being opened. */
void gaia_session_before_fork(void);
void gaia_session_after_fork(bool child);

/* In mapping.c: the daemon of a session is gone. Called on the session's thread. */
void gaia_mapping_session_died(struct gaia_session *session);

#endif
