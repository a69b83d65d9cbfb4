/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a process that can't end its threads.
 *
 * What a client does to the memory of its frames, or to its own, holds up who drops, places or traps pages
 * there for as long as it likes (cache/fit.h, gpu/device.h), in calls that no signal ends. The mount ends all
 * the same: when such a thread was waited for in vain for some seconds it is left where it is, and everything
 * that it may use stays as it is. All else is done, and then the process ends at once. The kernel ends each
 * of its threads as soon as that comes back; until then a zombie is left, and the threads that wait. */
#ifndef GAIAFS_FS_LEFT_H
#define GAIAFS_FS_LEFT_H

struct fs;

/* Ends the process. No file of the data directory is open in it any more then. */
_Noreturn void left_end(struct fs *fs, int status);

#endif
