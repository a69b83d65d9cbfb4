/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that use devices. For a file that is passed through (fs/passthrough.h) an acquire has to
 * compare all that a device has of it, as the daemon does not see what CPUs write; so a file that such a
 * process is the first to open had better not be passed through. Only speed depends on what is kept here.
 *
 * A process says so by connecting to one of a few sockets whose names everybody knows (gpu/announce.h). It
 * sends nothing and waits for nothing, so that no mount can hold it up. The kernel says who it is; and if it
 * has connected before it opens a file, this is known when the daemon handles that open.
 */
#ifndef GAIAFS_FS_PROGRAMS_H
#define GAIAFS_FS_PROGRAMS_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "base/lock.h"

#define PROGRAMS_MAX 256u
#define PROGRAMS_OF_USER_MAX 64u /* but root: so that nobody pushes others' out */
#define PROGRAMS_OTHERS 128u

struct programs {
    int listener;         /* -1: none; set before anybody asks, and never closed */
    pthread_mutex_t lock; /* guards the rest; a leaf */
    unsigned count;       /* of list */
    struct {
        pid_t process;
        uid_t uid;
        uint64_t number; /* of those added: the lowest is the oldest */
    } list[PROGRAMS_MAX];
    uint64_t added; /* counts what came into the list */
    time_t looked;  /* when it was looked last which of them are alive, */
    time_t hurried; /* and when the accepting thread was waited for in vain */
    /* Threads that were found to belong to no process of the list, for this second and as long as none is
     * added: so that not every open pays for a long list. By their numbers' remainders. */
    struct {
        pid_t thread;
        uint64_t added;
        time_t second;
    } others[PROGRAMS_OTHERS];
};

void programs_init(struct programs *programs);
/* The listener is left to the end of the process: in its queue may lie what can't be closed (fs/client.h). */
void programs_end(struct programs *programs);

/* Makes the listener. 0, or a negative errno: -EADDRINUSE (there are as many already as are looked for). */
int programs_listen(struct programs *programs);
/* Takes one that has connected. Its socket, which is the caller's to close, where that may take for ever; or
 * a negative errno, of accept(). */
int programs_accept(struct programs *programs);

/* The process uses devices; process is its number here; 0, for one that this daemon can't see, does nothing.
 * One too many takes the place of the oldest, or of its user's oldest if that user has too many. Any
 * thread. */
void programs_add(struct programs *programs, pid_t process, uid_t uid);

/* Whether a thread is one of such a process. Waits for the accepting thread, 100 ms at most, and if that was
 * in vain not again in the same second. A process that has the number of an ended one, or that a listed one
 * has become by exec(), may be taken for that one until it ends itself. Any thread; a system call, and once a
 * second for each thread less than a microsecond for each process of the list. */
bool programs_have(struct programs *programs, pid_t thread);

#endif
