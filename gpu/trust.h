/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a program gives its userfaultfd to. Who has that can write to all of the program's memory
 * (UFFDIO_COPY), so it is given to root, and else to a user's daemon only by a program that is nothing but
 * that user's: what he could trace (ptrace(2)) anyway. */
#ifndef GAIAFS_GPU_TRUST_H
#define GAIAFS_GPU_TRUST_H

/* Who listens at the other end of a connected socket; fd: a file of the mount that has named it. 0, -EPERM,
 * or a negative errno. */
int trust_check(int socket, int fd);

#endif
