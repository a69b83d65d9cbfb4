/* SPDX-License-Identifier: Apache-2.0 */
/* Going to a program that can't come to us: it is in another network namespace, and has invited us
 * (GAIA_IOCTL_INVITE). */
#ifndef GAIAFS_FS_VISIT_H
#define GAIAFS_FS_VISIT_H

#include <sys/types.h>

#include "io/protocol.h"

/* Connect to the program that a thread is of, by the name that it told, in that thread's network namespace;
 * and tell it the secret. Only if it is that program that listens: nobody makes this daemon speak to anyone
 * else. Nothing in it waits for the program. thread: as FUSE tells it; 0: none that is seen here. A
 * descriptor, close-on-exec, or a negative errno: see GAIA_IOCTL_INVITE. Any thread. */
int visit_client(pid_t thread, const struct gaia_ioctl_invite *invitation);

#endif
