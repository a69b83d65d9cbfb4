/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of another process, named by the number that it has for itself: in the innermost PID namespace
 * that it is in, as userfaultfd tells it (UFFD_FEATURE_THREAD_ID). A container's thread 7 is not this one's.
 */
#ifndef GAIAFS_BASE_THREAD_H
#define GAIAFS_BASE_THREAD_H

#include <sys/types.h>

/* Send a signal to a thread of the process `process`, a number of this process's own namespace. Looks at
 * /proc, takes no lock of a process's memory. 0; -ESRCH (it has no such thread, or not any more); -EPERM, or
 * what opening /proc says. Any thread. */
int thread_signal(pid_t process, pid_t thread, int signal);

#endif
