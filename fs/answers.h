/* SPDX-License-Identifier: Apache-2.0 */
/* Answers after which a file is as long for the kernel as they say, whatever it has been told of since they
 * were made: those to SETATTR, to LINK, and to OPEN with O_TRUNC. (An answer to GETATTR or LOOKUP that
 * something has overtaken does nothing to the size.) What lies past the end then, stored to or not, the
 * kernel drops.
 *
 * So who tells the kernel that another node has made a file longer (fs/grow.h) waits for those that may not
 * know it yet: until they are sent, and have been taken by who waits for them. When that is nobody says;
 * he is awake, and takes it before he does anything else. */
#ifndef GAIAFS_FS_ANSWERS_H
#define GAIAFS_FS_ANSWERS_H

#include <stdint.h>

/* From when an answer is sent until it counts as taken. */
#define ANSWER_TAKEN_MS 20u

struct answer;

/* Before the size is asked for that such an answer will have, or the file is cut. NULL: memory is short, and
 * nobody waits for it.
 */
struct answer *answer_begin(uint64_t nodeid);
/* It is sent, or will not be. answer may be NULL. */
void answer_sent(struct answer *answer);

/* Wait for all answers about the inode that have begun: as long as said above, and for one that is not sent a
 * second. No lock is held. */
void answers_wait(uint64_t nodeid);

/* The end of the mount: nobody answers any more. */
void answers_free(void);

#endif
