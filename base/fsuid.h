/* SPDX-License-Identifier: Apache-2.0 */
/* As whom a thread works on files. A filesystem asks the thread that writes whose quota limits hold, and
 * whether the blocks that it keeps for root may be taken: by its fsuid (credentials(7)) and CAP_SYS_RESOURCE
 * (capabilities(7)). So a daemon that is root says for whom it writes.
 *
 * All is the calling thread's alone (raw system calls: the C library's change all threads). But a thread
 * inherits what its maker is at that moment: between fsuid_set() and its end no thread is made. */
#ifndef GAIAFS_BASE_FSUID_H
#define GAIAFS_BASE_FSUID_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fsuid {
    uid_t uid;       /* (uid_t)-1: the daemon itself, or nobody in particular */
    bool privileged; /* with root's rights over files all the same: to make names in any folder, and so that
                        writes leave set-id bits alone */
};

#define FSUID_SELF ((struct fsuid){(uid_t)-1, true})

/* Once, before there are threads. Until then, and in a process that is not root, no thread changes. */
void fsuid_init(void);

/* From now on the calling thread acts for `who`. Some two microseconds. 0; a negative errno: it lacks
 * capabilities that it should have (a sandbox forbids capset()). */
int fsuid_set(struct fsuid who);

/* For whom the thread writes to files from now on, until it is told something else: costs nothing. */
void fsuid_write_for(struct fsuid who);

/* Around a write to fd: the thread acts for whom it writes for; if that is nobody in particular, for the
 * owner of the file. */
void fsuid_begin_write(int fd);
/* ... for the owner in any case: what is written has come from others, or from several. */
void fsuid_begin_write_of_owner(int fd);
void fsuid_end_write(void); /* errno stays */

/* From now on what has no writer in particular is written as the daemon itself. For who uses RDMA: the kernel
 * lets no thread whose credentials have changed since, be they the same again, write to a descriptor of such
 * a device (ib_safe_file_access()). Any thread. */
void fsuid_spare_threads(void);

/* The calling thread has all capabilities that the process began with, but those of the mask, and but what
 * it lacks for whom it acts. 0 or a negative errno (a sandbox forbids capset()). */
int fsuid_drop_capabilities(uint64_t mask);

/* Whether the process began with that one in effect. */
bool fsuid_is_capable(unsigned capability);

#endif
