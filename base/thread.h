/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of other processes, by their numbers. What userfaultfd tells (UFFD_FEATURE_THREAD_ID) is the number
 * that a thread has for itself, in the innermost PID namespace that it is in: a container's thread 7 is not
 * this namespace's. */
#ifndef GAIAFS_BASE_THREAD_H
#define GAIAFS_BASE_THREAD_H

#include <sys/types.h>

/* Send a signal to a thread, named by its own number, of the process `process`, a number of this process's
 * own namespace. Looks at /proc, takes no lock of a process's memory. 0; -ESRCH (it has no such thread, or
 * not any more); -EPERM, or what opening /proc says. Any thread. */
int thread_signal(pid_t process, pid_t thread, int signal);

/* The process that a thread of this one's namespace belongs to; 0: there is no such thread (any more). */
pid_t thread_process(pid_t thread);

#endif
