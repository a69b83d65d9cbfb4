/* SPDX-License-Identifier: Apache-2.0 */
/* A home that stands still for as long as others wait for it (a stopped process, a machine that sleeps or
 * swaps) is not the home any more when it goes on, and does not know that yet: the writes that wait in its
 * kernel and its sockets would undo what the next home has on storage. So a thread beats. Before a change of
 * a file's bytes it is checked whether that thread has run lately; if not, the change waits until the others
 * were asked. A change that was checked just before the node stood still is made nevertheless: only the
 * storage could tell. */
#ifndef GAIAFS_CACHE_SURE_H
#define GAIAFS_CACHE_SURE_H

#include "cache/nodes.h"

struct cache_file;
struct call_session;

/* There is a session with a member, which may have another peer_timeout than this node, and takes this one to
 * be dead after the shorter of the two. So the shortest timeout of all listed members decides whether this
 * node has stood still for long. To be called before either end relies on the session. nodes->lock is
 * held. */
void sure_heed(struct nodes *nodes, unsigned member, const struct call_session *session);
/* Whether this node has not stood still for so long that another may be the home of its files by now. If it
 * has, it is not sure until the others have said that they have not given it up, or, when met anew, what they
 * track. Any thread; takes no lock. */
bool nodes_are_sure(const struct nodes *nodes);
/* It is not, or it is at odds with others (cache/odds.h), which may end soon: whoever would change something
 * waits, as below. */
bool nodes_must_wait(const struct nodes *nodes);
/* How often this node has stood still, also if nobody has noticed the last time yet. So a session with a
 * member that had not given this node up before the n-th time has begun at less than n. nodes->lock is held;
 * without it the number may be one too high for a moment. */
uint64_t nodes_stalls(const struct nodes *nodes);
/* When this node was last sure, before it stood still: changes before then were not made by nodes that went
 * on alone. By CLOCK_REALTIME, in nanoseconds, as files' times are, minus the difference that clocks may
 * have. */
uint64_t nodes_still_since(struct nodes *nodes);
/* How long it takes at most until this node is sure again, or waiting longer is of no use. */
unsigned nodes_sure_ms(const struct nodes *nodes);
/* Wait for that, before the bytes of a file of this home are changed, unless the file is given up meanwhile;
 * not for longer than nodes_sure_ms(). change: the node whose kernel writes back (0: this one), or
 * KERNELS_NOBODY, or SURE_COLLECTS: what devices have released is brought to the data directory, where there
 * is any. That is a change, too, and an older one than what others may have written since. A write-back that
 * would not be taken does not wait, as this node is sure when such pages are dropped (cache/behind.h).
 * session: of the agent that asks, or NULL; false: it has ended, so that what it has asked for is not to be
 * done any more, and must not keep the agent from coming again. No lock is held. */
#define SURE_COLLECTS (UINT32_MAX - 1)
bool nodes_be_sure(struct cache_file *file, unsigned change, const struct call_session *session);
/* Whether there is nothing to wait for. Takes the file's lock. */
bool nodes_need_not_wait(struct cache_file *file, unsigned change);
/* Likewise, for what concerns no file in particular. */
bool nodes_be_sure_of_all(struct nodes *nodes, const struct call_session *session);

/* For nodes_meet_all() and nodes_meet_no_more(). -EAGAIN. */
int nodes_beat(struct nodes *nodes);
void nodes_beat_no_more(struct nodes *nodes);

#endif
