/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes whose lists of members differ for good: one stood still, or was cut off, while the others read a new
 * list. Two nodes that have not met would be homes of the same files, each on its own. So a node is *at odds*
 * with the others where it has been left behind: one that serves refuses it, as it is on that one's list no
 * longer; or one that it has met says that a node lives which its own list lacks, or which it has not tried
 * to meet since it has read the list, so that it does not know yet what that is the home of. Until then it
 * changes no file, tracks none anew, and refuses who comes in words (-ENOLINK) by which that one knows that
 * it is not the one left behind.
 *
 * A node that is mounted with a list that is wrong is refused by the first other one that it meets. Where the
 * list is such that it meets none, it is met: a node that runs has it on its list, and comes. Then it is the
 * one that is mounted last which is at odds, and not the one that runs (odds_with_who_comes()). */
#ifndef GAIAFS_CACHE_ODDS_H
#define GAIAFS_CACHE_ODDS_H

#include "cache/nodes.h"

/* Any thread; takes no lock. */
bool nodes_at_odds(const struct nodes *nodes);
/* It is for so short a time yet that it may end by itself, as when both are about to meet a third: what would
 * fail waits. */
bool nodes_odds_may_end(const struct nodes *nodes);

/* Whether a home that has been met says that a node lives which this node's list lacks, or which it has not
 * tried to meet yet; -EIO: it says nothing. No lock is held. */
int odds_ask(struct nodes *nodes, struct call_session *session);
/* Whether that is a home's answer to HELLO that has to do with it. */
bool odds_says(int error);
/* A home has been tried, with that result; more: odds_ask(). What a home has said holds until it says
 * something else, also when it has gone: the others whom it told of, or who refuse us as it does, are there
 * as before. Only with another list it is taken to be down, and to know nothing. nodes->lock is held. */
void odds_note(struct nodes_home *home, int error, bool more);
/* Something of that has changed: a home was met or is refused, or there is another list. text_out: "" where
 * there is nothing to say to people. nodes->lock is held. */
#define ODDS_TEXT (MEMBER_NAME_MAX + 240)
void odds_judge(struct nodes *nodes, char text_out[ODDS_TEXT]);
/* Before a node is let in, or is refused, that has said HELLO by a session. One that serves, and has another
 * list, was here first if this node has just been mounted, has met nobody, and never had that one on its
 * list; unless that is a node of another data directory, which a wrong address has led here. If it is on the
 * list here, and can't be met (any more) where that says that it is, this node can't hear what it tracks.
 * Then this node is at odds until it has met that one, also when it is dead: mounted anew, with the right
 * list, it is not. 0; -ENOLINK: the latter; -EBUSY: that is not known yet. No lock is held. */
int odds_with_who_comes(struct nodes *nodes, const struct node_request *hello, struct call_session *session);
/* A list that was read here since has taken it off. nodes->lock is held. */
bool odds_was_listed(const struct nodes *nodes, const struct node_name *name);
/* Ask all homes, or those only that had said that such a node lives; then judge. No lock is held. */
void odds_look(struct nodes *nodes, bool all);

#endif
