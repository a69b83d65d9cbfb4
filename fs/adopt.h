/* SPDX-License-Identifier: Apache-2.0 */
/* A client that can't connect to the server's name, since that is of another network namespace (a
 * container's), makes a pair of sockets and has the daemon take one of them out of its process. */
#ifndef GAIAFS_FS_ADOPT_H
#define GAIAFS_FS_ADOPT_H

#include <sys/types.h>

/* One end of a SOCK_SEQPACKET pair that the process of `thread` has made: its descriptor there. What is taken
 * and is no such thing is closed, which may wait for this very mount: not in a thread that serves FUSE. A
 * descriptor; -EINVAL (no such socket), -ESRCH (no such thread), -EPERM (the daemon may not: pidfd_getfd(2)
 * wants CAP_SYS_PTRACE for another user's process), -EBADF, -EMFILE, -ENOSYS (before Linux 5.6). */
int adopt_socket(pid_t thread, int descriptor);

#endif
