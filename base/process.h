/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is. Its number is not enough: a child may come to have that of its parent, when the
 * parent has gone, or as both are the first of a PID namespace. */
#ifndef GAIAFS_BASE_PROCESS_H
#define GAIAFS_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Not 0, and for a child of fork() another than for all that it descends from. (Of one that was made by a
 * system call, behind the C library's back, as long as its number is another.) Any thread. */
uint64_t process_here(void);

/* Whether what is kept here is this process's: the first's that asks, and of a child of fork(), whose
 * handlers have let go of its parent's, its own. Else (a child of clone(), vfork() or _Fork()) it is the
 * parent's: locks may be held for ever, and what is said to a daemon is said in the parent's name. Any
 * thread. */
bool process_holds_state(void);

#endif
