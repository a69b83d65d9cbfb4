/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the daemon lives, for a client that does not want to ask it.
 *
 * The daemon's main thread holds a robust mutex in a page that clients see. A thread that dies, by whatever
 * signal, lets go of it in the kernel (exit_robust_list(), Documentation/locking/robust-futex-ABI.rst) before
 * it lets go of its descriptors, so before the mount's connection can end. Hence: a client that has flushed
 * dirty pages and then finds the mutex held knows that the kernel still had somebody to send them to. No
 * socket and no pidfd can tell this; they change after the connection has ended. */
#ifndef GAIAFS_BASE_ALIVE_H
#define GAIAFS_BASE_ALIVE_H

#include <stdbool.h>

struct alive; /* lies in a shared page */

/* From now on clients see this thread alive; it must be the thread that ends last, or first, but not one that
 * comes and goes. fd_out: see shared_page_make(). 0; an errno of that; -ENOTSUP (this C library keeps the
 * owner of a mutex elsewhere). */
int alive_begin(struct alive **alive_out, int *fd_out);

/* In order, by the same thread: from now on clients see nobody. Closes fd. */
void alive_end(struct alive *alive, int fd);

/* Any thread of any process; one load. What was done before the call was done while the owner lived.
 * False can't become true again. */
bool alive_seen(const struct alive *alive);

#endif
