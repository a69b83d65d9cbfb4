/* SPDX-License-Identifier: Apache-2.0 */
/* How this node meets another member: it makes a session in which that member is the home. */
#ifndef GAIAFS_CACHE_MEET_H
#define GAIAFS_CACHE_MEET_H

#include "cache/nodes.h"

/* The session with a home, connected if need be. A reference is the caller's. -EHOSTUNREACH or another errno:
 * there is none. */
int nodes_get_home(struct nodes *nodes, unsigned member, struct call_session **session_out);

/* The same for the file that a home has just told us of: maybe before it has answered our HELLO, which it
 * answers only after we have answered this. */
int nodes_get_teller(struct nodes *nodes, unsigned member, struct call_session **session_out);

/* The session that there is, or NULL. A reference is the caller's. */
struct call_session *nodes_home_session(struct nodes *nodes, unsigned member);

/* A member has refused this node, which is just being mounted: -EPROTONOSUPPORT or -EMEDIUMTYPE; the latter
 * also if it serves, and that one does not list it. And why, for people. */
bool meet_refused(int error);
const char *meet_differs(int error);
/* Meet a member that has just met us: we must know what it tracks before it is told that we know. 0 also when
 * it does not answer, or can't be met now; -EPROTONOSUPPORT: it has another list, or another version;
 * -EMEDIUMTYPE: another data directory;
 * -EREMCHG or -EACCES: it does not list us. */
int nodes_meet(struct nodes *nodes, unsigned member);
/* The same, also when somebody else is connecting: what was begun before this call, and was in vain, says
 * nothing of now. */
void nodes_meet_from_now(struct nodes *nodes, unsigned member);
/* The member is listed, and is not this node. */
bool nodes_wants(struct nodes *nodes, unsigned member, struct member *member_out);

/* For nodes_home.error: the member can't be met because of something that ends by itself. -EBUSY: an earlier
 * session is not over. -ESHUTDOWN: it is being unmounted, and is the home of its files until it has gone. */
bool meet_parts(int error);
/* The member lives, and can't be met now: this node must not go on without it. */
bool meet_lives(int error);
/* This node is the one that was looked for where it listens, as far as HELLO says that. Another one has had
 * the address before, by an old list. */
bool meet_is_meant(const struct nodes *nodes, const struct node_request *hello);
/* Files have the same names at both: each is found where the other says. */
bool meet_has_directory(const struct nodes *nodes, const struct node_request *hello);
/* It has met this node. nodes->lock is held. */
bool nodes_has_met(const struct nodes *nodes, unsigned member);

#endif
