/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that wait for other nodes' kernels, or for this one's: not in the threads that serve FUSE, which
 * the write-backs need that such a kernel waits for. */
#ifndef GAIAFS_FS_LATER_H
#define GAIAFS_FS_LATER_H

#include "fs/fs.h"

/* Run fn(argument) in a thread of its own; here, if there is none to be had. */
void later(struct fs *fs, void (*fn)(void *argument), void *argument);
/* The same, but where there is no thread it is not run: false. */
bool later_perhaps(struct fs *fs, void (*fn)(void *argument), void *argument);
/* The same for what has the kernel drop pages, and may wait for WRITEs and READs of them: so many may that
 * none of the threads that serve FUSE was left to answer one. Run here if that is wished and few of them are
 * at such work, else in a thread of its own, of which there are some. */
bool later_drop(struct fs *fs, void (*fn)(void *argument), void *argument, bool here);
/* Until all of them have ended. */
void later_end(struct fs *fs);

#endif
