/* SPDX-License-Identifier: Apache-2.0 */
/* Threads. Those of another process are named by the numbers that they have for themselves: in the innermost
 * PID namespace that they are in, as userfaultfd tells it (UFFD_FEATURE_THREAD_ID). A container's thread 7 is
 * not this one's. */
#ifndef GAIAFS_BASE_THREAD_H
#define GAIAFS_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

/* A thread of this process that gets no signals: they are for those of the program, or for the daemon's own.
 * 0, -EAGAIN. */
int thread_start(pthread_t *thread_out, void *(*body)(void *argument), void *argument);

/* Whether a process, by its number here, is in another PID namespace than this one: then its threads call
 * themselves otherwise than they are called here. True also when this can't be found out. Looks at /proc. */
bool thread_is_apart(pid_t process);

/* Whether a thread is one of a process, both by their numbers here. Looks at /proc. */
bool thread_is_of(pid_t process, pid_t thread);

/* Send a signal to a thread of a process, a number of this process's own namespace. apart: thread_is_apart():
 * then /proc is searched for the thread with that number. user: whose process it was when its number was
 * told. By now that may be another's number, or the process another user's (a set-id program): a thread that
 * this user could not signal gets none, unless the user is root. Takes no lock of a process's memory. 0;
 * -ESRCH (it has no such thread, or not any more); -EPERM, or what opening /proc says. Any thread. */
int thread_signal(pid_t process, bool apart, uid_t user, pid_t thread, int signal);

#endif
