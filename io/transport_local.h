/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the local carrier share: transport_local.c (queues and what goes through them) and
 * transport_local_accept.c (who connects). Nothing else includes this. The transport's lock is held. */
#ifndef GAIAFS_IO_TRANSPORT_LOCAL_H
#define GAIAFS_IO_TRANSPORT_LOCAL_H

#include "io/transport_stage.h"

#define HALF_MAX 32u
#define QUEUE_HALF (UINT64_MAX - 1000) /* ids of half-open connections: from here up */
#define DATAGRAMS_MAX 64               /* of one queue, until others have their turn */

struct local_queue {
    int fd;
    unsigned char *stage;
    struct stage_ring ring; /* connected side */
    /* Accepted side. */
    unsigned done_due; /* to be told, when the socket takes it */
    bool blocked;      /* epoll is to say when */
};

/* A connection that has not said HELLO. */
struct half {
    int fd;            /* -1: free */
    uint64_t since_ns; /* transport_time() */
};

struct local {
    int listening;
    int kept;               /* an open file, to be closed so that a peer can be refused; -1: there is none */
    uint64_t deaf_until_ns; /* nobody is let in before this, for want of memory, say; 0: everybody is */
    struct half halves[HALF_MAX];
};

/* 0; the descriptor is the queue's then. -ENOMEM, or what queue_enter() says. */
int local_new_queue(struct link_queue *queue, int fd);

/* Anybody may take a name in the abstract namespace that is free: so either end takes only root, and this
 * program's own user, for a node. 0, and the peer's name for the log; -EPERM, or another errno. */
int local_check_peer(int fd, char *name_out, size_t size);

/* Before anything else. */
void local_listen_not_yet(struct local *local);
/* At the transport's address. 0, or a negative errno. */
int local_listen(struct gaia_transport *transport);
void local_listen_no_more(struct local *local);

/* Somebody has connected; somebody who had connected may have said HELLO; some time has gone by. */
void local_accept_all(struct gaia_transport *transport);
void local_read_half(struct gaia_transport *transport, struct half *half);
void local_glance(struct gaia_transport *transport);
void local_tick(struct gaia_transport *transport, uint64_t now_ns);

#endif
