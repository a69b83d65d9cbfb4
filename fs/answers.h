/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that set the kernel's size of a file, whatever the kernel has been told since they were made: those
 * to SETATTR, to LINK, and to OPEN with O_TRUNC. (An answer to GETATTR or LOOKUP that something has overtaken
 * does not change the size.) The kernel then drops what lies past the end, stored to or not.
 *
 * So a thread that tells the kernel that another node has made a file longer (fs/grow.h) waits for answers
 * that may not know this yet: until they are sent, and the program that waits for each has taken it. Nobody
 * reports when that is; the program is awake, and takes the answer before it does anything else. */
#ifndef GAIAFS_FS_ANSWERS_H
#define GAIAFS_FS_ANSWERS_H

#include <stdint.h>

/* From when an answer is sent until it counts as taken. */
#define ANSWER_TAKEN_MS 20u

struct answer;

/* To be called before the size is asked for that such an answer will have, or the file is cut. NULL: memory
 * is short, and nobody waits for this answer.
 */
struct answer *answer_begin(uint64_t nodeid);
/* It is sent, or will not be. answer may be NULL. */
void answer_sent(struct answer *answer);

/* Wait for all answers about the inode that have begun: as long as stated above, and at most a second for one
 * that is not sent. No lock is held. */
void answers_wait(uint64_t nodeid);

/* The end of the mount: nobody answers any more. */
void answers_free(void);

#endif
