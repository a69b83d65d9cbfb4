/* SPDX-License-Identifier: Apache-2.0 */
/* A second process that ends the connection to the kernel when the daemon has been killed.
 *
 * The kernel ends it by itself when the last descriptor of /dev/fuse is closed. But a thread of the daemon
 * that has the kernel invalidate a dirty page waits for a WRITE, not even SIGKILL ends that wait, and as long
 * as there is this thread its descriptors stay open: the daemon would never end, and who waits for it,
 * neither (seen on 6.18). */
#ifndef GAIAFS_FS_GUARD_H
#define GAIAFS_FS_GUARD_H

#include <sys/types.h>

struct guard {
    pid_t pid;  /* 0: there is none */
    int tell;   /* its only way to hear of the mount; -1 */
    int answer; /* its only way to say that it can end the connection; -1 */
};

/* From the daemon's main thread, whose end is looked out for; before there are others. Without a guard the
 * mount works all the same: what goes wrong is logged. */
void guard_start(struct guard *guard);
/* The connection is that of the mount with this device number. Returns when the guard is ready. */
void guard_watch(struct guard *guard, dev_t device);
void guard_stop(struct guard *guard);

#endif
