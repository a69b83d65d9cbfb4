/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that wait for other nodes' kernels, or for this one's. The threads that serve FUSE must not wait
 * so, as the write-backs for which such a kernel waits need these threads. */
#ifndef GAIAFS_FS_LATER_H
#define GAIAFS_FS_LATER_H

#include "fs/fs.h"

/* Run fn(argument) in a thread of its own; here, if no thread can be had. */
void later(struct fs *fs, void (*fn)(void *argument), void *argument);
/* The same, but where there is no thread it is not run: false. */
bool later_perhaps(struct fs *fs, void (*fn)(void *argument), void *argument);
/* The same for functions that have the kernel drop pages, and may wait for WRITEs and READs of these: too
 * many of them would leave no thread that serves FUSE to answer one. Run here if that is wished and few of
 * those threads do such work, else in a thread of its own, of which there are some; else when one of these
 * has ended what it does. */
bool later_drop(struct fs *fs, void (*fn)(void *argument), void *argument, bool here);
/* The same, for what need not wait for them: then it is not run. */
bool later_drop_perhaps(struct fs *fs, void (*fn)(void *argument), void *argument, bool here);
/* Waits until all of them have ended. false: some have not after many seconds, as they wait for a client
 * (what is let go of a file by fs/shed.h does): they are left (fs/left.h). */
bool later_end(struct fs *fs);

#endif
