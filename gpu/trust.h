/* SPDX-License-Identifier: Apache-2.0 */
/* To whom a program gives its userfaultfd. Its holder can write to all of the program's memory (UFFDIO_COPY),
 * so it is given only to root, or to a user's daemon by a program with no more rights than that user, who
 * could trace (ptrace(2)) it anyway. */
#ifndef GAIAFS_GPU_TRUST_H
#define GAIAFS_GPU_TRUST_H

/* Who listens at the other end of a connected socket; fd: a file of the mount that has named it. 0, -EPERM,
 * or a negative errno. */
int trust_check(int socket, int fd);

#endif
