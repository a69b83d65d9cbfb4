/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to other nodes that take as long as a kernel or a disk there: nobody knows how long that is, but
 * the end of a mount must not wait for ever for a node that lives and never answers. */
#ifndef GAIAFS_CACHE_PATIENCE_H
#define GAIAFS_CACHE_PATIENCE_H

#include "cache/nodes.h"

#define PATIENCE_MS 5000u

/* Once the mount is ending, in turns of PATIENCE_MS: how many in a row may pass in which the other node says
 * nothing and nothing is done for it, and how many in all. Before that: how many in a row; 0: any number. */
struct patience {
    unsigned silent, turns, before;
};

/* One request, in two steps, so that several can be asked at once. patience_end() waits, with no lock held,
 * and returns what the other's serve() returned, or what call_start() says. If the other is given up, its
 * session is aborted: -EIO, and given_up_out, which may be NULL, says so. Both in one thread; after a
 * patience_begin() patience_end() follows, before the session's reference or the asking goes. */
struct patience_asking {
    struct call_answer answer; /* first */
    struct nodes *nodes;
    struct call_session *session;
    bool told; /* under nodes->lock, as is the next */
    int result;
};
void patience_begin(struct nodes *nodes, struct call_session *session, enum node_class class, enum node_op op,
                    const struct node_request *request, struct patience_asking *asking);
int patience_end(struct patience_asking *asking, struct patience patience, bool *given_up_out);
/* Both steps, for NODE_CALLS, where only an errno comes back. -ETIMEDOUT: the other was given up. */
int patience_call(struct nodes *nodes, struct call_session *session, enum node_op op,
                  const struct node_request *request, struct patience patience);

#endif
