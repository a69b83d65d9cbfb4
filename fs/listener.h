/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets in the abstract namespace under which clients find the daemon. Such a name belongs to a network
 * namespace: a program in another one is listened for there. */
#ifndef GAIAFS_FS_LISTENER_H
#define GAIAFS_FS_LISTENER_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define LISTENER_NAME 64

/* Listen under a name that nobody can guess. A descriptor, close-on-exec, or a negative errno. Any thread. */
int listener_open(char name_out[LISTENER_NAME]);

/* Listen under the first of the names for programs that use devices (io/protocol.h) that nobody has, without
 * waiting. Besides: -EADDRINUSE. */
int listener_open_for_programs(void);

/* Listen under a name that nobody can guess, in the network namespace of a thread, as FUSE tells its number;
 * 0: one that is not seen here. What is accepted there is taken without waiting (O_NONBLOCK). Besides: -ESRCH
 * (there is no such thread), -EPERM (CAP_SYS_ADMIN and CAP_SYS_PTRACE in its namespaces are needed). Any
 * thread; a short-lived one does it. */
int listener_open_for(pid_t thread, char name_out[LISTENER_NAME]);

/* Which network namespace a thread is in: a number that no other one has meanwhile, 0 if it is not known. */
uint64_t listener_network(pid_t thread);

/* As whose the process counts that has connected, where nobody may have too much: its user's. Of one in a
 * user namespace of its own that is whoever has made this namespace, as he can be any of the users there
 * (subuid(5)); root makes them for others, whose users are told apart. LISTENER_NO_USER: of a process that
 * has ended since. One that can't be seen here, as it is in another container, or /proc hides it, counts as
 * its user's: else one user of these could keep all others out. Looks at /proc. */
#define LISTENER_NO_USER ((uid_t)-1)
uid_t listener_user(const struct ucred *peer);

#endif
