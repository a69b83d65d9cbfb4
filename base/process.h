/* SPDX-License-Identifier: Apache-2.0 */
/* Which process this is. Its number is not enough: a child may come to have that of its parent, when the
 * parent has gone, or as both are the first of a PID namespace. */
#ifndef GAIAFS_BASE_PROCESS_H
#define GAIAFS_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Not 0, and for a child of fork() different from those of all its ancestors. (Of one that was made by a
 * system call, behind the C library's back, as long as its number is another.) Any thread. */
uint64_t process_here(void);

/* Whether the state kept here is this process's own. It is for the first process that asks, and for a child
 * of fork(), whose handlers have let go of the parent's state. Else (a child of clone(), vfork() or _Fork())
 * it is the parent's: locks may be held for ever, and what is sent to a daemon is sent in the parent's name.
 * Any thread. */
bool process_holds_state(void);

#endif
