/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/programs.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fs/listener.h"

#define WAIT_MS 20u

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
        if (!kill(programs->list[i], 0) || errno != ESRCH)
            programs->list[kept++] = programs->list[i];
    if (kept < count)
        programs->oldest = 0;
    programs->count = kept;
}

/* The lock is held. */
static void add(struct programs *programs, pid_t process)
{
    unsigned count, i;

    look(programs);
    count = programs->count;
    for (i = 0; i < count && programs->list[i] != process; i++)
        ;
    if (i == PROGRAMS_MAX) {
        i = programs->oldest;
        programs->oldest = (i + 1) % PROGRAMS_MAX;
    } else if (i == count) {
        programs->count = count + 1;
    }
    programs->list[i] = process;
}

void programs_add(struct programs *programs, pid_t process)
{
    if (process <= 0)
        return;
    pthread_mutex_lock(&programs->lock);
    add(programs, process);
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
        add(programs, peer.pid);
    pthread_mutex_unlock(&programs->lock);
    return error ? error : fd;
}

static bool is_waiting(const struct programs *programs)
{
    struct pollfd wait = {.fd = programs->listener, .events = POLLIN};

    return programs->listener >= 0 && poll(&wait, 1, 0) > 0 && wait.revents & POLLIN;
}

bool programs_have(struct programs *programs, pid_t thread)
{
    struct timespec pause = {.tv_nsec = 1000000}, until = lock_wait_until(WAIT_MS);
    bool have = false;

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
    /* The signal 0 only asks whether the process has such a thread. */
    for (unsigned i = 0; i < programs->count && !have; i++)
        have = !syscall(SYS_tgkill, programs->list[i], thread, 0) || errno != ESRCH;
    pthread_mutex_unlock(&programs->lock);
    return have;
}
