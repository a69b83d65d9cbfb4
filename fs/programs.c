/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/programs.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/listener.h"

#define WAIT_MS 100u /* a busy machine may keep who accepts from its processor for as long */

void programs_init(struct programs *programs)
{
    programs->listener = -1;
    lock_init(&programs->lock, LOCK_PROGRAMS);
}

void programs_end(struct programs *programs)
{
    pthread_mutex_destroy(&programs->lock);
}

int programs_listen(struct programs *programs)
{
    int fd = listener_open_for_programs();

    if (fd < 0)
        return fd;
    programs->listener = fd;
    return 0;
}

/* Those that have ended go. The lock is held. */
static void look(struct programs *programs)
{
    unsigned kept = 0, count = programs->count;

    for (unsigned i = 0; i < count; i++)
        if (!kill(programs->list[i].process, 0) || errno != ESRCH)
            programs->list[kept++] = programs->list[i];
    programs->count = kept;
}

/* Where there is room for one of the user's. The lock is held. */
static unsigned place_for(struct programs *programs, uid_t uid)
{
    unsigned own = 0, oldest = 0, oldest_own = 0;

    for (unsigned i = 0; i < programs->count; i++) {
        if (programs->list[i].number < programs->list[oldest].number)
            oldest = i;
        if (programs->list[i].uid != uid)
            continue;
        if (!own++ || programs->list[i].number < programs->list[oldest_own].number)
            oldest_own = i;
    }
    if (uid != 0 && own >= PROGRAMS_OF_USER_MAX)
        return oldest_own;
    return programs->count < PROGRAMS_MAX ? programs->count++ : oldest;
}

/* The lock is held. */
static void add(struct programs *programs, pid_t process, uid_t uid)
{
    for (unsigned i = 0; i < programs->count; i++) {
        if (programs->list[i].process == process) {
            programs->list[i].uid = uid;
            return;
        }
    }
    look(programs);
    unsigned place = place_for(programs, uid);
    programs->list[place].process = process;
    programs->list[place].uid = uid;
    programs->list[place].number = programs->added++;
}

void programs_add(struct programs *programs, pid_t process, uid_t uid)
{
    if (process <= 0)
        return;
    pthread_mutex_lock(&programs->lock);
    add(programs, process, uid);
    pthread_mutex_unlock(&programs->lock);
}

int programs_accept(struct programs *programs)
{
    struct ucred peer;
    socklen_t length = sizeof peer;

    /* With the lock held: who is not in the queue any more is in the list. */
    pthread_mutex_lock(&programs->lock);
    int fd = accept4(programs->listener, NULL, NULL, SOCK_CLOEXEC);
    int error = fd < 0 ? -errno : 0;
    if (!error && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) && peer.pid > 0)
        add(programs, peer.pid, listener_user(&peer));
    pthread_mutex_unlock(&programs->lock);
    return error ? error : fd;
}

static bool is_waiting(const struct programs *programs)
{
    struct pollfd wait = {.fd = programs->listener, .events = POLLIN};
    int n;

    if (programs->listener < 0)
        return false;
    while ((n = poll(&wait, 1, 0)) < 0 && errno == EINTR) /* also where it would not wait */
        ;
    return n > 0 && wait.revents & POLLIN;
}

/* The lock is held. */
static bool is_listed(struct programs *programs, pid_t thread, time_t second)
{
    unsigned slot = (unsigned)thread % PROGRAMS_OTHERS;
    bool have = false;

    if (programs->others[slot].thread == thread && programs->others[slot].added == programs->added &&
        programs->others[slot].second == second)
        return false;
    /* The signal 0 only asks whether the process has such a thread. */
    for (unsigned i = 0; i < programs->count && !have; i++)
        have = !syscall(SYS_tgkill, programs->list[i].process, thread, 0) || errno != ESRCH;
    if (!have) {
        programs->others[slot].thread = thread;
        programs->others[slot].added = programs->added;
        programs->others[slot].second = second;
    }
    return have;
}

bool programs_have(struct programs *programs, pid_t thread)
{
    struct timespec pause = {.tv_nsec = 1000000}, until = lock_wait_until(WAIT_MS);
    bool have;

    if (thread <= 0)
        return false;
    pthread_mutex_lock(&programs->lock);
    while (programs->hurried != until.tv_sec && is_waiting(programs)) {
        if (lock_is_past(&until))
            programs->hurried = until.tv_sec;
        pthread_mutex_unlock(&programs->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&programs->lock);
    }
    if (programs->looked != until.tv_sec)
        look(programs);
    programs->looked = until.tv_sec;
    have = is_listed(programs, thread, until.tv_sec);
    pthread_mutex_unlock(&programs->lock);
    return have;
}
