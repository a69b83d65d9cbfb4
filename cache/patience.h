/* SPDX-License-Identifier: Apache-2.0 */
/* What other nodes are asked that takes as long as a kernel or a disk does there: nobody knows how long that
 * is, but the end of a mount does not wait for ever for who lives and never answers. */
#ifndef GAIAFS_CACHE_PATIENCE_H
#define GAIAFS_CACHE_PATIENCE_H

#include "cache/nodes.h"

#define PATIENCE_MS 5000u

/* From when the mount is ending, in turns of PATIENCE_MS: how many in a row may go by in which the other says
 * nothing and nothing is done for it, and how many in all. Before that: how many in a row; 0: any number. */
struct patience {
    unsigned silent, turns, before;
};

/* One request: what the other's serve() returned, or what call_start() says. Who is given up has its session
 * aborted: -EIO, and given_up_out, which may be NULL, says that it was so. Waits; no lock is held. */
int patience_ask(struct nodes *nodes, struct call_session *session, enum node_class class, enum node_op op,
                 const struct node_request *request, struct patience patience, bool *given_up_out);
/* The same in two steps, so that several can be asked at once. Both in one thread; after a patience_begin()
 * patience_end() follows, before the session's reference or the asking goes. */
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
/* The same of NODE_CALLS, where nothing comes back but an errno. -ETIMEDOUT: it was given up. */
int patience_call(struct nodes *nodes, struct call_session *session, enum node_op op,
                  const struct node_request *request, struct patience patience);

#endif
