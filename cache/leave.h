/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that part: this one leaves the others (cache_leave()), or the list of members one of them. What was
 * released is handed over before the sessions end. */
#ifndef GAIAFS_CACHE_LEAVE_H
#define GAIAFS_CACHE_LEAVE_H

struct nodes;

/* End the sessions with a member that is not listed any more; what they keep ends with them. Waits for the
 * member as long as cache/patience.h has it; no lock is held. */
void leave_member(struct nodes *nodes, unsigned member);

#endif
