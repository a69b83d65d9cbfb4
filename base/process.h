/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is. Its number is not enough: a child may come to have that of its parent, when the
 * parent has gone, or as both are the first of a PID namespace. */
#ifndef GAIAFS_BASE_PROCESS_H
#define GAIAFS_BASE_PROCESS_H

#include <stdint.h>

/* Not 0, and for a child of fork() another than for all that it descends from. (Of one that was made by a
 * system call, behind the C library's back, as long as its number is another.) Any thread. */
uint64_t process_here(void);

#endif
