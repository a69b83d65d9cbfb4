/* SPDX-License-Identifier: Apache-2.0 */
/* How this node meets another member: a session of which that is the home. */
#ifndef GAIAFS_CACHE_MEET_H
#define GAIAFS_CACHE_MEET_H

#include "cache/nodes.h"

/* The session with a home, connected if need be. A reference is the caller's. -EHOSTUNREACH or another errno:
 * there is none. */
int nodes_get_home(struct nodes *nodes, unsigned member, struct call_session **session_out);

/* The same for the file that a home has just told us of: that may be before it has answered our HELLO, which
 * it does when we have answered it. */
int nodes_get_teller(struct nodes *nodes, unsigned member, struct call_session **session_out);

/* The session that there is, or NULL. A reference is the caller's. */
struct call_session *nodes_home_session(struct nodes *nodes, unsigned member);

/* Meet a member that has just met us: what it tracks we must know before it hears that we know it. 0 also
 * when it does not answer, or can't be met now; -EPROTONOSUPPORT: it has another list, or another version;
 * -EACCES: it does not list us. */
int nodes_meet(struct nodes *nodes, unsigned member);
/* It is listed, and another. */
bool nodes_wants(struct nodes *nodes, unsigned member, struct member *member_out);

/* Of nodes_home.error. It is at something that ends by itself. -EBUSY: an earlier session is not over.
 * -ESHUTDOWN: it is being unmounted, and is the home of its files until it has gone. */
bool meet_parts(int error);
/* It lives, and can't be met now: it must not be done without. */
bool meet_lives(int error);
/* It has met this node. nodes->lock is held. */
bool nodes_has_met(const struct nodes *nodes, unsigned member);

#endif
