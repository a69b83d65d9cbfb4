/* SPDX-License-Identifier: Apache-2.0 */
/* What the five files of the RDMA carrier share. transport_rdma.c itself has queues, work requests and their
 * completions. */
#ifndef GAIAFS_IO_TRANSPORT_RDMA_H
#define GAIAFS_IO_TRANSPORT_RDMA_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "io/transport_internal.h"

/* Buffers for messages, each way: those that cost credits, and keepalives and a BYE besides. */
#define RDMA_BUFFERS (GAIA_LINK_CREDITS + 16)
/* Of the one completion queue: both ends of links with all other nodes, each with as many queues as nodes'
 * calls can have (io/call.c), and some strangers; or of a link with the most queues and depth. */
#define RDMA_CQ_ENTRIES 32767u
#define RDMA_BUFFERS_BYTES ((size_t)RDMA_BUFFERS * 2 * GAIA_WIRE_MAX + 1) /* and for what must not come */
#define RDMA_INLINE 256u /* bytes of a message that are sent without a buffer, where the device can */

struct rdma {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id; /* bound to the address; listens */
    struct sockaddr_storage address;
    struct ibv_context *verbs; /* librdmacm's */
    struct ibv_pd *pd;         /* of memory, and of what this side connects */
    struct ibv_comp_channel *completions;
    struct ibv_cq *cq;
    /* The device has gone: nothing comes from it any more, and once nobody uses it nothing of it is left, so
     * what is above is NULL. */
    bool dead;
    unsigned troubles; /* that it has seen: rdma_is_in_trouble() */
    uint64_t again_ns; /* not looked for again before this transport_time() */
    unsigned cq_room;  /* entries that no queue has been promised */
    LIST_HEAD(, rdma_parting) parting;
    unsigned reads_out, reads_in; /* of a queue at a time, as the reading end and as the end that is read
                                     from */
};

/* link->own */
struct rdma_link {
    struct ibv_pd *pd;      /* accepted side: the session's own */
    unsigned char *buffers; /* RDMA_BUFFERS to receive into, and as many to send from */
    struct ibv_mr *buffers_mr;
    uint32_t buffers_lkey;
    uint32_t sent, sent_done; /* messages; they wrap */
    unsigned next_buffer;     /* to send from: they are taken in turn, and are free again in that order. Not
                               * sent % RDMA_BUFFERS, which jumps where sent wraps */
};

enum rdma_kind { RDMA_MESSAGE, RDMA_WRITE, RDMA_READ };

/* A work request that was posted. */
struct rdma_sent {
    enum rdma_kind kind;
    bool ended; /* and one before it has not */
};

/* queue->own */
struct rdma_queue {
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    bool asking;             /* an iWARP connection was asked for, and there is no answer: see rdma_part() */
    unsigned room, receives; /* entries of the send queue, of the receive queue */
    unsigned inline_max;
    uint32_t posted, done;  /* work requests */
    unsigned ring;          /* room, rounded up to a power of two, as that divides what numbers wrap at */
    struct rdma_sent *sent; /* each, by its number modulo ring */
    struct ibv_send_wr *requests;
    struct ibv_sge *pieces;
    enum ibv_wc_status broken; /* with what its queue pair was flushed; IBV_WC_SUCCESS: it was not */
};

/* The entries of a ring with room for so many. */
static inline uint32_t rdma_ring(uint32_t least)
{
    uint32_t n = 1;

    while (n < least)
        n *= 2;
    return n;
}

/* What was put into a completion queue's entry: which queue, and which work request of it. */
#define RDMA_RECEIVE ((uint32_t)1 << 31)
#define RDMA_NUMBER (RDMA_RECEIVE - 1)

/* "HOST:PORT", "[HOST]:PORT". */
int rdma_parse(const char *text, struct sockaddr_storage *address_out);

/* transport_rdma_cm.c */
int rdma_bind(struct gaia_transport *transport, struct rdma *rdma);
int rdma_begin(struct gaia_link *link, unsigned number, const char *peer);
void rdma_take_cm_events(struct gaia_transport *transport);
/* Why a connection was rejected: 0, the peer says so itself, in the bytes that came along; -ECONNREFUSED,
 * nobody listens there; or -EAGAIN: somebody may, and it is to be tried again. */
int rdma_rejection(int reason, const void *bytes, size_t length);
/* Why a connection that was asked for has failed at this end: by rdma_connect(), or after it. With InfiniBand
 * and RoCE that is gaia_own_error(): a peer that does not answer, or refuses, has an event of its own.
 * iWARP's is one of TCP: some drivers connect at once (siw), or tell in this way of a machine that does not
 * answer (cxgb4, qedr), so what the peer or the way there lacks is among it. */
int rdma_connection_error(const struct ibv_context *verbs, int error);

/* transport_rdma_memory.c: what memory that is read into is registered with. iWARP brings what was read as a
 * write of the peer's, and its NICs refuse that where no peer may write. */
int rdma_sink_access(enum ibv_transport_type type);
/* The link's buffers and protection domain, if it has none yet. */
int rdma_link_make(struct gaia_link *link);
/* Of the carrier (struct carrier). */
size_t rdma_link_memory(const struct gaia_link_options *options);
int rdma_remember(struct gaia_memory *memory);
void rdma_forget(struct gaia_memory *memory);
int rdma_expose(struct gaia_link *link, const struct gaia_span *span, struct link_region *region);
void rdma_conceal(struct gaia_link *link, struct link_region *region);

/* transport_rdma_device.c: it has gone: all links end, and there are no others. */
void rdma_die(struct gaia_transport *transport);
/* The device has told something of itself, or of a completion queue. */
void rdma_take_trouble(struct gaia_transport *transport);
/* Another transport of this process was told what may be meant for this one. */
bool rdma_is_in_trouble(const struct rdma *rdma);
/* Of the carrier. */
int rdma_open(struct gaia_transport *transport);
void rdma_close(struct gaia_transport *transport);
void rdma_tick(struct gaia_transport *transport, uint64_t now_ns);

/* transport_rdma_parting.c: let go of a connection and its queue pair, which may wait. */
void rdma_end_connection(struct rdma_cm_id *id);
/* The same by a thread, whatever it waits for. The room is free again afterwards. False: there is none. */
bool rdma_part(struct rdma *rdma, struct rdma_cm_id *id, unsigned room);
/* Those that are done are forgotten. wait: all, when they are done. */
void rdma_look_at_parting(struct rdma *rdma, bool wait);

/* transport_rdma.c: the entries of a queue's send queue, and of its receive queue. */
void rdma_queue_room(const struct gaia_link *link, unsigned number, unsigned *sends_out,
                     unsigned *receives_out);
/* Make a queue's queue pair; id is bound to a device. Let go of all that it has. */
int rdma_queue_make(struct link_queue *queue, struct rdma_cm_id *id);
void rdma_queue_free(struct link_queue *queue);
/* The link ends if it is open and one of its queue pairs has failed. */
void rdma_end_broken(struct gaia_link *link);
void rdma_poll_cq(struct gaia_transport *transport);
/* The same until nothing is left of what was there. */
void rdma_drain_cq(struct gaia_transport *transport);

#endif
