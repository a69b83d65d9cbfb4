/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the calls share: call.c (this node's end, the thread that polls), call_session.c (the
 * life of a session), call_message.c (requests and replies), call_slots.c (which are taken),
 * call_moves.c (bytes).
 *
 * A session's life: it is made with its link; *settled* once somebody knows it (arrived() has taken it,
 * call_connect() returns it) or nobody ever will; *ended* once it has an error, which it keeps. Each session
 * has a thread of its own, the keeper, which sleeps until it is both. Then the keeper closes the link, after
 * which nothing writes to the session's memory; waits for threads that move bytes; calls lost(); waits for
 * threads that serve; and calls ended(). Then the slots' memory goes, as soon as nobody has one.
 *
 * Locks: calls.lock and call_session.lock, both leaves. None is held over a call of the transport. Meanwhile
 * call_session.sending and .posting keep the link alive, and .inside the transport: the keeper waits for
 * them. */
#ifndef GAIAFS_IO_CALL_INTERNAL_H
#define GAIAFS_IO_CALL_INTERNAL_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "io/call.h"
#include "io/histogram.h"
#include "io/pull.h"

#define CALL_PEERS_MAX GAIA_TRANSPORT_LINKS_MAX
#define CALL_SLOTS_BOTH (2 * CALL_SLOTS)
#define CALL_MEMORY (CALL_SLOTS_BOTH * CALL_SLOT_BYTES)
#define CALL_QUEUE_MESSAGES 0u /* of a link: and what is written; the others are for reads */
/* Bytes that are being written: half of the local carrier's stage. */
#define CALL_MOVING_MAX ((size_t)2 << 20)
#define CALL_PAGE 4096u /* bytes of a read for which the number of reads in flight is planned (io/pull.h) */
#define CALL_WRITES 32u /* at a time */
#define CALL_SERVED_MAX (CALL_WIDTH / 2)
/* A caller's wait is cut into these; a time for which this side stood still, maybe with the peer, costs only
 * one of them. */
#define CALL_TURNS 4u
#define CALL_AGAIN_MS 5u                        /* until what the carrier did not take is tried again */
#define CALL_BEGIN UINT64_C(0x31306c6c61636167) /* "gacall01": the number of a BEGIN */

enum call_kind {
    CALL_KIND_BEGIN = 1, /* first, from the end that connected: it listens now */
    CALL_KIND_REQUEST,
    CALL_KIND_POST,   /* a request without a reply */
    CALL_KIND_REPLY,  /* to a REQUEST */
    CALL_KIND_SERVED, /* POSTs of the class that were: their numbers, CALL_SERVED_MAX at most; its own: 0 */
};

/* Before each message. Little-endian, as all of the transport. */
struct call_head {
    uint32_t length; /* of all */
    uint8_t kind, class;
    uint16_t op;     /* 0 but of requests */
    uint64_t number; /* of a request, and of its reply */
    int32_t result;  /* of a reply */
    uint32_t zero;
};
_Static_assert(sizeof(struct call_head) == 24, "the head as it goes over the wire");
_Static_assert(sizeof(struct call_head) + CALL_BYTES_MAX <= GAIA_LINK_MESSAGE_MAX,
               "a message is one message");

/* To be sent; or a request that has come. */
struct call_message {
    STAILQ_ENTRY(call_message) entry;
    struct call_head head;
    uint8_t payload[];
};
STAILQ_HEAD(call_messages, call_message);
STAILQ_HEAD(call_answers, call_answer);

/* A call of this end's that is under way. */
struct call_pending {
    enum { PENDING_FREE, PENDING_ASKED, PENDING_ANSWERED } state;
    bool post;
    struct call_answer *answer; /* of a call_start(); else nobody is told, or somebody waits */
    unsigned watches;           /* then: call_watch()es until the peer is given up; 0: never */
    uint64_t number;
    void *reply;
    size_t room, length;
    int result;
    pthread_cond_t answered;
};

struct call_class {
    struct call_session *session; /* constant, as is the next */
    unsigned number;
    /* The peer's. */
    struct call_messages requests; /* nobody serves them yet */
    struct call_answers answers;   /* to calls of this end's that nobody waits for: as urgent */
    unsigned queued;               /* so many of both */
    unsigned under_way;            /* and those that somebody serves */
    unsigned served_count;         /* POSTs that were served, and the peer has not heard it: */
    uint64_t served[CALL_SERVED_MAX];
    unsigned idle, threads;
    pthread_t thread[CALL_WIDTH];
    pthread_cond_t work;
    /* This end's. */
    unsigned calling;
    struct call_pending pending[CALL_WIDTH];
    pthread_cond_t room;
};

/* Bytes of a slot that are being written to the peer's. */
struct call_write {
    struct gaia_transfer transfer;
    struct call_session *session;
    uint64_t since_ns;
    bool under_way; /* the session is used until it has ended (inside), and the slot has no second one */
};

struct call_session {
    struct calls *calls; /* constant; gone once the keeper is */
    bool connected;      /* constant */
    unsigned timeout_ms; /* constant: the shorter of both ends' */
    uint8_t *memory;     /* constant: of all slots; exposed, or what bytes move to and from */
    _Atomic unsigned references;
    _Atomic(void *) user;
    _Atomic int error;         /* set once, with the lock held */
    _Atomic uint64_t received; /* messages */
    _Atomic unsigned asked;    /* requests that are under way, of all classes */
    _Atomic bool blocked;      /* messages wait for the carrier: the thread that polls tries them again */
    LIST_ENTRY(call_session) entry; /* of calls.sessions; guarded by calls.lock, as is the next */
    bool told;                      /* by calls_close() */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct gaia_link *link;         /* NULL: closed, or somebody else's */
    struct gaia_memory *registered; /* the memory, where this end connected */
    bool settled, known;
    bool begun; /* messages may be sent */
    bool exposed;
    uint32_t region; /* then */

    struct call_messages messages; /* to be sent */
    bool sending;                  /* somebody does, and goes on while there are any */
    uint64_t numbers;              /* of calls so far */
    struct call_class classes[CALL_CLASSES];

    uint32_t slots;          /* bit i: the i-th of this end's half is taken */
    bool over;               /* it has ended, and nobody serves: what is in slots that are free can go */
    _Atomic uint32_t served; /* bit i: a request is served that names slot i, of the peer's half */
    pthread_cond_t slot_free;
    unsigned inside;        /* threads that use the transport for slots */
    unsigned posting;       /* threads that use the link */
    struct gaia_pull *pull; /* reads, where this end connected; stays while somebody is inside */
    _Atomic bool starved;   /* of the pull: the thread that polls rings again */
    struct call_write writes[CALL_SLOTS_BOTH];
    uint64_t tickets, turn; /* writes are posted in the order in which they came */
    unsigned moving;        /* writes posted */
    size_t moving_bytes;    /* of theirs */
    pthread_cond_t moved;   /* one has ended, or was posted */
};

/* What has moved between slots, for all sessions of this end, also those that have ended. Atomic, as each
 * session counts with its own lock held, or none. */
struct call_totals {
    _Atomic unsigned outstanding, outstanding_max;
    _Atomic uint64_t reads, writes, failed, bytes_read, bytes_written;
    struct histogram latency;
};

struct calls {
    struct calls_config config; /* constant, as are the next four; the address is gone */
    struct gaia_transport *transport;
    struct gaia_link_options shape; /* of links: one queue more than for reads */
    unsigned depth;                 /* of reads */
    pthread_t poller;
    _Atomic bool stop;
    struct call_totals totals;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    LIST_HEAD(, call_session) sessions;
    unsigned keepers;    /* that still run */
    unsigned connecting; /* threads in call_connect() */
    bool closing;
};

/* ---- call_session.c ---- */

/* With two references: the caller's and the keeper's. The link stays the caller's when there is an error
 * (-ESHUTDOWN, -ENOMEM, -EAGAIN). */
int call_session_new(struct calls *calls, struct gaia_link *link, bool connected,
                     struct call_session **session_out);
/* known: somebody has the session, and will be told when it ends. Returns the session's error; with an error,
 * nobody knows it. */
int call_session_settle(struct call_session *session, bool known);
/* End the session with an error, if it has not ended. */
void call_end(struct call_session *session, int error);

/* ---- call_message.c ---- */

/* A message has come. 0, or why the session must end. In the thread that polls. */
int call_received(struct call_session *session, const void *bytes, size_t length);
/* The end that connected says that it listens. 0, -ENOMEM. */
int call_say_begin(struct call_session *session);
/* Send the messages that wait, as far as the carrier takes them. */
void call_flush(struct call_session *session);
/* A second has gone by: end the session if the peer has not answered a call_start() in time. In the thread
 * that polls. */
void call_watch(struct call_session *session);
void call_class_init(struct call_session *session, unsigned number);
void call_class_destroy(struct call_class *class);
/* It has ended (the lock is held): whoever waits for something of it wakes up. */
void call_class_wake(struct call_class *class);
/* The session has ended, and its link is closed: call done() for what was begun with call_start() and not
 * told yet. Before the class is joined: threads that serve may wait for done(). */
void call_class_answer(struct call_class *class);
/* Then: wait until nobody serves. */
void call_class_join(struct call_class *class);
void call_messages_free(struct call_messages *messages);

/* ---- call_moves.c ---- */

/* Reads that the carrier had no room for are posted, if it has. */
void call_ring_again(struct call_session *session);

/* ---- call_slots.c ---- */

/* call_slot_put() with the lock held. */
void call_slot_free(struct call_session *session, unsigned slot);
/* The session has ended, nobody serves, and nothing of the carrier's reaches its memory. */
void call_slots_over(struct call_session *session);

#endif
