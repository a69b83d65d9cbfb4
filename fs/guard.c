/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fs/log.h"

/* The file that ends the connection, in fusectl: where that is mounted, else on a mount of it that nobody
 * else sees. */
static int open_abort(dev_t device)
{
    char path[64];

    snprintf(path, sizeof path, "/sys/fs/fuse/connections/%u/abort", minor(device));
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    int context = (int)syscall(SYS_fsopen, "fusectl", FSOPEN_CLOEXEC);
    if (context < 0)
        return -1;
    int top = -1;
    if (!syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
        top = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0);
    close(context);
    if (top < 0)
        return -1;
    snprintf(path, sizeof path, "%u/abort", minor(device));
    fd = openat(top, path, O_WRONLY | O_CLOEXEC);
    close(top);
    return fd;
}

/* Whether the daemon's main thread has ended: the daemon is a zombie then, whatever its other threads do, or
 * has gone, and somebody else is the parent. What can't be read says nothing. */
static bool has_ended(pid_t daemon)
{
    char path[32], text[256];

    if (getppid() != daemon)
        return true;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)daemon);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && (!strncmp(name_end, ") Z", 3) || !strncmp(name_end, ") X", 3));
}

/* The signal comes when the daemon's main thread ends, whatever its other threads do. As they may be there
 * still, nothing else here, like getppid(), tells that end from a signal that somebody sends. At the daemon's
 * end the sender is the daemon. The signal is one that queues: one from somebody else that waits to be taken
 * must not swallow it. But where the daemon's user has used up the room for signals (RLIMIT_SIGPENDING), it
 * does not queue, nor say from whom it is. So any other signal makes this look whether the daemon has ended,
 * again and again: the signal comes a moment before the end can be seen. */
static void await_death(int signal_number, pid_t daemon)
{
    const struct timespec pause = {.tv_sec = 1};
    bool looks = false;
    siginfo_t info;
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, signal_number);
    do {
        bool came = sigtimedwait(&one, &info, looks ? &pause : NULL) == signal_number;
        if (came && info.si_code == SI_USER && info.si_pid == daemon)
            return;
        looks |= came;
    } while (!looks || !has_ended(daemon));
}

/* Every signal but that one is for the daemon to heed. No descriptor of the daemon's may be held here. */
static _Noreturn void watch(int hear, int answer, pid_t daemon)
{
    sigset_t all;
    dev_t device;
    int death = SIGRTMIN;

    prctl(PR_SET_NAME, "gaiafs-guard"); /* killall mount.gaiafs means the daemon, */
    setsid();                           /* and so do signals to the group that it was started in */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    /* The daemon's first descriptors are open, so neither of ours is 0 or 1. */
    if (dup2(hear, 0) < 0 || dup2(answer, 1) < 0 || syscall(SYS_close_range, 2u, ~0u, 0u))
        _exit(1);
    if (prctl(PR_SET_PDEATHSIG, death) || getppid() != daemon)
        _exit(1);
    if (read(0, &device, sizeof device) != (ssize_t)sizeof device)
        _exit(1);
    int fd = open_abort(device);
    if (fd < 0 || write(1, "1", 1) != 1)
        _exit(1);
    close(1);
    await_death(death, daemon);
    _exit(write(fd, "1", 1) != 1);
}

static void no_guard(const char *why)
{
    fs_log(LOG_WARNING, "no guard: %s: if this daemon is killed, programs may hang until umount -f", why);
}

void guard_start(struct guard *guard)
{
    int tell[2], answer[2];
    pid_t daemon = getpid();

    *guard = (struct guard){.tell = -1, .answer = -1};
    if (pipe2(tell, O_CLOEXEC)) {
        no_guard(strerror(errno));
        return;
    }
    if (pipe2(answer, O_CLOEXEC)) {
        no_guard(strerror(errno));
        close(tell[0]);
        close(tell[1]);
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        watch(tell[0], answer[1], daemon);
    close(tell[0]);
    close(answer[1]);
    if (pid < 0) {
        no_guard(strerror(errno));
        close(tell[1]);
        close(answer[0]);
        return;
    }
    *guard = (struct guard){.pid = pid, .tell = tell[1], .answer = answer[0]};
}

void guard_watch(struct guard *guard, dev_t device)
{
    ssize_t n;
    char byte;

    if (!guard->pid)
        return;
    if (write(guard->tell, &device, sizeof device) == (ssize_t)sizeof device) {
        do
            n = read(guard->answer, &byte, 1);
        while (n < 0 && errno == EINTR);
        if (n == 1)
            return;
    }
    no_guard("it can't reach the mount's connection; is fusectl mounted on /sys/fs/fuse/connections?");
}

void guard_stop(struct guard *guard)
{
    if (!guard->pid)
        return;
    kill(guard->pid, SIGKILL);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    close(guard->tell);
    close(guard->answer);
    *guard = (struct guard){.tell = -1, .answer = -1};
}
