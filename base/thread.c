/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int thread_start(pthread_t *thread_out, void *(*body)(void *argument), void *argument)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = -pthread_create(thread_out, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#define LINE_MOST 512u /* of NSpid: a number for each of at most 32 namespaces */

/* How many numbers the line has that has one for each namespace (proc(5), NSpid), and the last of them; what
 * comes before it in the file can be long (Groups). 0: there is no such line. */
static unsigned read_numbers(int status, pid_t *last_out)
{
    char text[4096];
    size_t kept = 0;
    ssize_t n;

    while ((n = read(status, text + kept, sizeof text - 1 - kept)) > 0) {
        kept += (size_t)n;
        text[kept] = '\0';
        char *line = strstr(text, "\nNSpid:"), *end = line ? strchr(line + 1, '\n') : NULL;
        if (end) {
            unsigned count = 0;
            *end = '\0';
            for (char *number = strchr(line, '\t'); number; number = strchr(number + 1, '\t')) {
                *last_out = (pid_t)strtol(number, NULL, 10);
                count++;
            }
            return count;
        }
        if (kept > LINE_MOST) {
            memmove(text, text + kept - LINE_MOST, LINE_MOST);
            kept = LINE_MOST;
        }
    }
    return 0;
}

/* Whether a thread of /proc/PROCESS/task calls itself so. */
static bool is_called(DIR *tasks, const char *task, pid_t thread)
{
    char path[NAME_MAX + sizeof "/status"];
    pid_t number = 0;

    snprintf(path, sizeof path, "%s/status", task);
    int fd = openat(dirfd(tasks), path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    unsigned count = read_numbers(fd, &number);
    close(fd);
    return count && number == thread;
}

/* The number here of the thread that calls itself `thread`, or -ESRCH. */
static pid_t find_thread(DIR *tasks, pid_t thread)
{
    struct dirent *entry;

    while ((entry = readdir(tasks)))
        if (entry->d_name[0] != '.' && is_called(tasks, entry->d_name, thread))
            return (pid_t)strtol(entry->d_name, NULL, 10);
    return -ESRCH;
}

bool thread_is_apart(pid_t process)
{
    char path[40];
    pid_t last;

    snprintf(path, sizeof path, "/proc/%d/status", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    unsigned count = read_numbers(fd, &last);
    close(fd);
    return count != 1;
}

bool thread_is_of(pid_t process, pid_t thread)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/task/%d", (int)process, (int)thread);
    return !access(path, F_OK);
}

/* The number here of the thread that calls itself `thread`, or a negative errno. */
static pid_t look_up_thread(pid_t process, pid_t thread)
{
    char path[40];

    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    DIR *tasks = fdopendir(fd);
    if (!tasks) {
        int error = -errno;
        close(fd);
        return error;
    }
    pid_t found = find_thread(tasks, thread);
    closedir(tasks);
    return found;
}

/* As kill(2) asks of who sends: 0, -EPERM, or a negative errno. The line is one of the first, and nobody can
 * put one like it before it (the kernel escapes the process's name). */
static int check_user(pid_t process, pid_t thread, uid_t user)
{
    char path[64], text[1024];
    unsigned real, effective, saved;

    snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)process, (int)thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *line = strstr(text, "\nUid:");
    if (!line || sscanf(line, "\nUid: %u %u %u", &real, &effective, &saved) != 3)
        return -ESRCH; /* it ends */
    return real == user || saved == user ? 0 : -EPERM;
}

/* Not by taking on the user's rights for the call: who has them could signal, and so end, this process. */
int thread_signal(pid_t process, bool apart, uid_t user, pid_t thread, int signal)
{
    if (process <= 0 || thread <= 0) /* to tgkill() no numbers at all */
        return -ESRCH;
    if (apart)
        thread = look_up_thread(process, thread);
    if (thread < 0)
        return thread;
    int error = user ? check_user(process, thread, user) : 0;
    if (error)
        return error;
    return syscall(SYS_tgkill, process, thread, signal) ? -errno : 0;
}
