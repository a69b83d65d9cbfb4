/* SPDX-License-Identifier: Apache-2.0 */
/* How a program reaches the daemon of a mount (libgaia, gaiactl), by the abstract name of a socket. Such a
 * name belongs to a network namespace; in another one than the daemon's anybody could have taken it. There
 * the daemon is asked to listen (GAIA_IOCTL_MEET). */
#ifndef GAIAFS_IO_REACH_H
#define GAIAFS_IO_REACH_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/lock.h"
#include "io/protocol.h"

/* For a program that forks: where the socket's number stands (-1: there is none) while the socket is open,
 * and the lock that guards it, which is held only while a socket is made. */
struct reach_note {
    pthread_mutex_t *lock;
    int *socket;
};

/* The address of an abstract name, which ends with a NUL; *length_out: of the address. 0, or -EINVAL (none,
 * or too long). */
int reach_address(const char *name, struct sockaddr_un *address_out, socklen_t *length_out);

/* In which network namespace a socket is: a number made of SO_NETNS_COOKIE (Linux 5.14), 0 where the kernel
 * does not say. */
uint32_t reach_network(int socket);

/* A socket of the daemon that has answered GAIA_IOCTL_TOKEN; fd: the descriptor that it was asked with. Waits
 * for the daemon; where the daemon must be met (GAIA_IOCTL_MEET), for ten seconds at most, plus the answers
 * to a few ioctls. note: if NULL, nobody is told of sockets before one is returned. Any thread. A descriptor,
 * close-on-exec, or a negative errno: -ECONNREFUSED and -ENOTCONN (it has ended), -ENETUNREACH (this is
 * another network namespace, and it can't listen here), -EUSERS (the daemon must be met, and has too many
 * clients), -EMFILE, -ENOMEM, -EINVAL. */
int reach_daemon(int fd, const struct gaia_ioctl_token *token, const struct reach_note *note);

#endif
