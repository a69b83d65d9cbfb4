/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the transport share: transport.c (public calls), transport_poll.c (callbacks, polling,
 * time), transport_link.c (the state machine of a link, the same for every carrier), transport_local.c and
 * transport_rdma*.c (the carriers). Nothing else includes this but the batch reader (pull.c) and tests.
 *
 * A link's life: CONNECTING (its queues come up one after another) -> OPEN -> ENDED. When it ends, the
 * carrier first cuts all its queues: from then on nothing of the peer's reaches memory. Only then are
 * transfers told that they have failed, since their frames may be given to others at once.
 *
 * Locks: gaia_transport.lock guards all that is here. It is a leaf: no callback runs with it held. It is held
 * over calls of verbs and of sockets, none of which waits for a peer, except for the BYE of a close
 * (BYE_WAIT_MS).
 */
#ifndef GAIAFS_IO_TRANSPORT_INTERNAL_H
#define GAIAFS_IO_TRANSPORT_INTERNAL_H

#include <stdatomic.h>
#include <stdio.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "base/lock.h"
#include "io/transport.h"
#include "io/transport_wire.h"

#define WHY_MAX 200u
#define BYE_WAIT_MS 100u
#define QUEUES_MAX (GAIA_TRANSPORT_LINKS_MAX * GAIA_LINK_QUEUES_MAX)

enum link_state {
    LINK_CONNECTING,
    LINK_OPEN,
    LINK_ENDED,
};

/* A queue of a link. own: the carrier's. */
struct link_queue {
    struct gaia_link *link;
    unsigned number;
    uint32_t id; /* queue_enter() */
    bool up;
    unsigned busy; /* transfers under way: this list, oldest first */
    struct gaia_transfer *first, **last;
    void *own;
};

/* Accepted side: what is exposed. Connected side: what the peer has exposed. */
struct link_region {
    bool open; /* else there is none of this number */
    bool writable;
    uint64_t address, length, key;
    void *own; /* accepted side, the carrier's */
};

struct link_event {
    STAILQ_ENTRY(link_event) entry;
    enum { EVENT_ARRIVED, EVENT_MESSAGE, EVENT_EXPOSED } kind;
    uint32_t region;
    uint64_t length;
    unsigned char bytes[];
};

struct gaia_link {
    struct gaia_transport *transport;
    LIST_ENTRY(gaia_link) entry;    /* transport.links */
    TAILQ_ENTRY(gaia_link) waiting; /* transport.ready, when ready */
    bool ready;
    bool connected_here; /* else accepted */
    bool owned;          /* the caller has it */
    bool held;           /* gaia_link_connect() waits with it */
    bool end_unsaid;     /* closed() is due */
    enum link_state state;
    int error; /* ENDED: as closed() has it */
    char why[WHY_MAX];
    char peer[128]; /* connected side: its address */
    _Atomic(void *) user;

    unsigned char token[16];
    struct gaia_link_options options;
    struct link_queue queues[GAIA_LINK_QUEUES_MAX];
    unsigned up; /* queues that are */

    uint64_t grew_ns; /* of transport_time(), as is the next: it was made, or a queue has come up */
    uint64_t heard_ns;
    uint64_t said_ns;    /* of transport_clock_ns(): the peer's time may go on while this side stands still */
    unsigned timeout_ms; /* the shorter of both ends' */
    unsigned interval_ms; /* of keepalives */
    unsigned credits;     /* messages that the peer still takes */
    unsigned owed;        /* taken here and not told yet */

    struct link_region *regions;
    unsigned region_count; /* of the array */
    uint32_t next_region;  /* accepted side: the number of the next */
    STAILQ_HEAD(, link_event) events;
    struct gaia_transfer *done, **done_last;
    void *own; /* the carrier's */
};

struct gaia_memory {
    LIST_ENTRY(gaia_memory) entry;
    struct gaia_transport *transport;
    struct gaia_span span;
    unsigned busy;
    _Atomic bool proven; /* io/standing.c's: bytes were seen to arrive */
    void *own;
};

/* All with the lock held. */
struct carrier {
    int (*open)(struct gaia_transport *transport);
    void (*close)(struct gaia_transport *transport); /* no link and no memory is left */
    /* Begin to connect a queue; link_hello() says what to send. Ends in link_queue_up() or link_end(). */
    int (*connect)(struct gaia_link *link, unsigned queue, const char *peer);
    /* A whole message with its head, on queue 0. 0, -EAGAIN, or another errno. */
    int (*send)(struct gaia_link *link, const void *bytes, size_t length);
    /* Wait until what was sent is with the peer, BYE_WAIT_MS at most. */
    void (*flush)(struct gaia_link *link);
    /* Post transfers that were checked. How many (they go to the queue's list by queue_push()), or an errno.
     */
    int (*post)(struct link_queue *queue, struct gaia_transfer *const *transfers, unsigned count);
    size_t (*link_memory)(const struct gaia_link_options *options); /* NULL: nothing is locked */
    int (*remember)(struct gaia_memory *memory);
    void (*forget)(struct gaia_memory *memory);
    /* Sets address, key and own of a region of this side. */
    int (*expose)(struct gaia_link *link, const struct gaia_span *span, struct link_region *region);
    void (*conceal)(struct gaia_link *link, struct link_region *region);
    /* End all queues, at once. Afterwards nothing of the peer's reaches memory; regions and own are let go.
     */
    void (*cut)(struct gaia_link *link);
    /* Take what has come, without waiting: queue_completed(), link_received() and so on. heard(): what epoll
     * has reported of this id; glance(): what can be seen without asking the kernel, after heard() and
     * whenever there is time. */
    void (*heard)(struct gaia_transport *transport, uint64_t id);
    void (*glance)(struct gaia_transport *transport);
    /* Now and then, after all that has come was taken, at this transport_time(): end peers that are late and
     * have no link yet; look for a device that has gone. */
    void (*tick)(struct gaia_transport *transport, uint64_t now_ns);
    /* Make epoll tell what comes from now on. */
    int (*arm)(struct gaia_transport *transport);
    /* Push a queue into error (tests). */
    int (*break_queue)(struct link_queue *queue);
};

extern const struct carrier carrier_local, carrier_rdma;

struct gaia_transport {
    struct gaia_transport_config config; /* constant */
    const struct carrier *carrier;
    struct gaia_transport_limits limits;
    char address[128];
    int epoll, wake; /* wake is in epoll as QUEUE_WAKE */
    void *own;       /* the carrier's */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool polling;
    bool woken;       /* since this poll began, or a link that somebody waits for is up: it is not to sleep */
    bool leaving;     /* peers that have not connected yet are not waited for any more */
    unsigned waiters; /* on changed */
    uint64_t rounds;  /* of callbacks, and of polls */
    pthread_t poller;
    struct gaia_link *delivering; /* whose callback the poller is in */
    uint64_t tick_ns;             /* when to look at the clock again */
    uint64_t looked_ns, time_ns;  /* the last look at it, and what transport_time() was then */
    uint64_t heard_ns;            /* when epoll was asked last */
    unsigned link_count;
    LIST_HEAD(, gaia_link) links;
    TAILQ_HEAD(, gaia_link) ready;
    LIST_HEAD(, gaia_memory) memories;
    unsigned registering; /* memory that is being registered, or let go of, with no lock held */
    LIST_HEAD(, standing_registration) standing; /* io/standing.c's, with its lock */
    struct link_queue *queues[QUEUES_MAX];       /* by the low bits of their ids */
    uint32_t generation;
};

/* ids of what epoll tells about, beside queues' */
#define QUEUE_WAKE UINT64_MAX
#define QUEUE_LISTEN (UINT64_MAX - 1)
#define QUEUE_EVENTS (UINT64_MAX - 2)
#define QUEUE_TROUBLE (UINT64_MAX - 3)

/* CLOCK_MONOTONIC, and not a clock that goes on while the machine sleeps: sleep must not count as a peer's
 * silence. */
uint64_t transport_clock_ns(void);
/* The time by which peers are judged. It goes on as transport_clock_ns() does while this side looks at what
 * has come, and for a quarter of the timeout beyond the last look: time for which this side stood still, or
 * had no processor, does not count as a peer's silence, as the peer may have stood still, too. A side that
 * always looks so seldom still finds a dead peer, at the fifth look. The lock is held. */
uint64_t transport_time(const struct gaia_transport *transport);

/* Sets the sentence of gaia_transport_why(), which may be among the arguments; its value is error. */
#define transport_say(error, ...)                                            \
    ({                                                                       \
        int transport_error = (error);                                       \
        transport_keep(snprintf(transport_scratch(), WHY_MAX, __VA_ARGS__)); \
        transport_error;                                                     \
    })
char *transport_scratch(void);
void transport_keep(int length); /* as snprintf() says it: what is longer is cut */
int transport_watch(struct gaia_transport *transport, int fd, uint64_t id);

/* Enter a queue under a number that is not used again soon: so what the carrier still has of a queue that is
 * gone finds no other queue. -ENOBUFS. */
int queue_enter(struct gaia_transport *transport, struct link_queue *queue);
struct link_queue *queue_find(struct gaia_transport *transport, uint32_t id);
void queue_leave(struct gaia_transport *transport, struct link_queue *queue);

/* The state machine (transport_link.c). */
struct gaia_link *link_new(struct gaia_transport *transport, bool connected_here);
/* It has ended, nothing is left to be told. */
void link_free(struct gaia_link *link);
/* A place for the next region of this side; NULL: none. */
struct link_region *link_region_new(struct gaia_link *link);
/* What to say first on a queue that this side connects. */
void link_hello(const struct gaia_link *link, unsigned queue, struct gaia_wire_hello *hello_out);
/* An unknown peer's first message. 0: it is fine, *queue_out is to come up with *answer_out as the reply; or
 * a negative errno, *answer_out says why. */
int link_greeted(struct gaia_transport *transport, const char *peer, const void *bytes, size_t length,
                 struct link_queue **queue_out, struct gaia_wire_hello *answer_out);
/* The answer to a queue that may not come up. */
struct gaia_wire_hello link_refusal(int error);
/* The peer's reply to the first message of a queue of this side. 0, or the link has ended. */
int link_answered(struct link_queue *queue, const void *bytes, size_t length);
void link_queue_up(struct link_queue *queue);
/* A whole message has come on queue 0. The link may have ended afterwards. */
void link_received(struct gaia_link *link, const void *bytes, size_t length);
/* Send a message of the protocol's own, or the caller's. */
int link_say(struct gaia_link *link, enum gaia_wire_op op, const void *body, size_t length);
/* End the link, if it has not ended yet; the arguments after error say why, as for printf(). */
#define link_end(link, error, ...) link_end_so((link), transport_say(error, __VA_ARGS__))
void link_end_so(struct gaia_link *link, int error);
void link_tick(struct gaia_link *link, uint64_t now_ns);
/* Put the link into the list of those with something to deliver, or take it out. */
void link_make_ready(struct gaia_link *link);

void queue_push(struct link_queue *queue, struct gaia_transfer *transfer);
/* The oldest transfers have ended: all but the last well, the last with error. This does not mean that the
 * peer lives: a NIC answers for a program that has stopped. */
void queue_completed(struct link_queue *queue, unsigned count, int error);

/* NULL and zeros but in tests. */
struct transport_test {
    void (*_Atomic hello)(struct gaia_wire_hello *hello, size_t *length); /* changes what is sent */
    _Atomic bool unchecked; /* transfers go out as they are, with key, and at address */
    _Atomic uint64_t key, address;
    _Atomic bool deaf;         /* the local carrier answers no transfers */
    _Atomic uint64_t ahead_ns; /* the clock that is looked at is this much ahead */
};
extern struct transport_test transport_test;
void transport_test_hello(struct gaia_wire_hello *hello, size_t *length);
/* Send bytes as they are; push a queue into error. */
int transport_test_send(struct gaia_link *link, const void *bytes, size_t length);
int transport_test_break(struct gaia_link *link, unsigned queue);
/* What a region of either side is called on the wire. */
const struct link_region *transport_test_region(const struct gaia_link *link, uint32_t region);

#endif
