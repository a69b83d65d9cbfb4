/* SPDX-License-Identifier: Apache-2.0 */
/* A second process that ends the connection to the kernel when the daemon has been killed.
 *
 * The kernel ends it by itself when the last descriptor of /dev/fuse is closed. But a thread of the daemon
 * that has the kernel invalidate a dirty page waits for a WRITE, and not even SIGKILL ends that wait. As long
 * as this thread exists its descriptors stay open: neither the daemon nor what waits for it would ever end
 * (seen on 6.18). */
#ifndef GAIAFS_FS_GUARD_H
#define GAIAFS_FS_GUARD_H

#include <sys/types.h>

struct guard {
    pid_t pid;  /* 0: there is none */
    int tell;   /* by which alone it learns of the mount; -1 */
    int answer; /* its only way to say that it can end the connection; -1 */
};

/* To be called by the daemon's main thread, for whose end the guard waits, before there are other threads.
 * Without a guard the mount works nevertheless: what goes wrong is logged. */
void guard_start(struct guard *guard);
/* The connection is that of the mount with this device number. Returns when the guard is ready. */
void guard_watch(struct guard *guard, dev_t device);
void guard_stop(struct guard *guard);

#endif
