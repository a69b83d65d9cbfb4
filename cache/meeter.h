/* SPDX-License-Identifier: Apache-2.0 */
/* Meets all members, and tries those again that did not answer. */
#ifndef GAIAFS_CACHE_MEETER_H
#define GAIAFS_CACHE_MEETER_H

#include "cache/nodes.h"

#define MEET_AGAIN_MS 5000u /* at most, or peer_timeout, if that is shorter: so often those are tried */

/* Meet all that are listed and not met yet; and try again and again in a thread from then on, as a node that
 * did not answer may do so later. -EAGAIN: no thread; or what nodes_meet() says; why_out. */
int nodes_meet_all(struct nodes *nodes, char why_out[CALL_WHY]);
/* Those that are listed and not met, or not any more, all at once, as one that does not answer takes
 * peer_timeout; returns when all are met or are known not to be to be met now. No lock is held. */
void nodes_meet_missed(struct nodes *nodes);
/* When nodes->stop is set and calls are at their end: the thread is over. */
void nodes_meet_no_more(struct nodes *nodes);

#endif
