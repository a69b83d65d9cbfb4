/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/listener.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/protocol.h"
#include "io/reach.h"

#define BACKLOG 64
#ifndef SO_PASSRIGHTS /* newer than the headers of Debian 12 */
#define SO_PASSRIGHTS 83
#endif

static int listen_at(const char *name, int flags)
{
    struct sockaddr_un address;
    socklen_t length;

    int error = reach_address(name, &address, &length);
    assert(!error);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        return -errno;
    if (!bind(fd, (struct sockaddr *)&address, length) && !listen(fd, BACKLOG))
        return fd;
    error = -errno;
    close(fd);
    return error;
}

static int listen_under_a_name(int flags, char name_out[LISTENER_NAME])
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EIO;
    snprintf(name_out, LISTENER_NAME, "gaiafs-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    return listen_at(name_out, flags);
}

int listener_open(char name_out[LISTENER_NAME])
{
    return listen_under_a_name(0, name_out);
}

int listener_open_for_programs(void)
{
    char name[LISTENER_NAME];
    int fd = -EADDRINUSE;

    for (unsigned i = 0; i < GAIA_PROGRAMS_SOCKETS && fd == -EADDRINUSE; i++) {
        snprintf(name, sizeof name, GAIA_PROGRAMS_SOCKET, i);
        fd = listen_at(name, SOCK_NONBLOCK);
    }
    /* Who connects can send no descriptor, where the kernel knows how to refuse them (Linux 6.16): to close
     * one may take for ever (fs/client.h). */
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int));
    return fd;
}

/* Who is counted for a user namespace right below ours, or further down. root: nobody in particular. */
static uid_t owner_of(int space, const struct stat *ours)
{
    uid_t owner = 0;
    struct stat st;
    int parent;

    while ((parent = ioctl(space, NS_GET_PARENT)) >= 0) {
        bool is_ours = !fstat(parent, &st) && st.st_ino == ours->st_ino;
        if (is_ours && ioctl(space, NS_GET_OWNER_UID, &owner))
            owner = 0;
        close(is_ours ? parent : space);
        if (is_ours)
            break;
        space = parent;
    }
    close(space);
    return owner;
}

/* It was one of our PID namespace, and /proc, which does not show it, does not hide it from us (hidepid=). */
static bool has_ended(pid_t pid)
{
    return pid > 0 && kill(pid, 0) && errno == ESRCH;
}

uid_t listener_user(const struct ucred *peer)
{
    struct stat ours, theirs;
    char path[40];

    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)peer->pid);
    if (stat("/proc/self/ns/user", &ours))
        return peer->uid;
    if (stat(path, &theirs))
        return has_ended(peer->pid) ? LISTENER_NO_USER : peer->uid;
    int space = theirs.st_ino == ours.st_ino ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    uid_t owner = space < 0 ? 0 : owner_of(space, &ours);
    return owner ? owner : peer->uid;
}

struct errand {
    int network; /* a descriptor of the namespace */
    char *name_out;
    int result;
};

/* A thread of its own, which ends: one that could not go back would serve others from there. */
static void *go(void *argument)
{
    struct errand *errand = argument;

    errand->result =
        setns(errand->network, CLONE_NEWNET) ? -errno : listen_under_a_name(SOCK_NONBLOCK, errand->name_out);
    return NULL;
}

uint64_t listener_network(pid_t thread)
{
    char path[40];
    struct stat st;

    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)thread);
    return stat(path, &st) ? 0 : st.st_ino;
}

int listener_open_for(pid_t thread, char name_out[LISTENER_NAME])
{
    struct errand errand = {.name_out = name_out};
    pthread_t goer;
    char path[40];

    if (thread <= 0)
        return -ESRCH;
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)thread);
    errand.network = open(path, O_RDONLY | O_CLOEXEC);
    if (errand.network < 0)
        return errno == ENOENT ? -ESRCH : errno == EACCES ? -EPERM : -errno;
    int error = -pthread_create(&goer, NULL, go, &errand);
    if (!error)
        error = -pthread_join(goer, NULL);
    close(errand.network);
    return error ? error : errand.result;
}
