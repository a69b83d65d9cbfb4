/* SPDX-License-Identifier: Apache-2.0 */
/* Calls between nodes: a request and its reply as messages of the transport, bytes beside them by one-sided
 * reads and writes. Built on io/transport.h, over either carrier.
 *
 * A *session* is one link. Both ends may call; but bytes are moved by the end that connected, out of and into
 * the *slots*: pieces of memory of the end that accepted, which it exposes to this session and to no other.
 * The connected end has memory of its own for each slot, and moves bytes between the two.
 *
 * A call never waits behind another one at the peer: each *class* of calls has CALL_WIDTH threads at either
 * end, made when they are needed, and as many calls may be under way; a caller with one more waits here. The
 * caller says which class an operation belongs to: the operations of a class must not wait for an operation
 * of the same class, or of one that waits for this class.
 *
 * Thread safety: all functions may be called from any thread that holds no lock of this layer; from arrived()
 * only call_slot() and call_session_error(). Errors are negative errno values.
 */
#ifndef GAIAFS_IO_CALL_H
#define GAIAFS_IO_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "io/transport.h"

struct calls;        /* this node's end: an address, a thread that polls */
struct call_session; /* with one peer */

#define CALL_CLASSES 13u
#define CALL_WIDTH 16u
#define CALL_BYTES_MAX 4352u                 /* of a request or a reply */
#define CALL_SLOTS 16u                       /* that each end may use */
#define CALL_SLOTS_KEPT 4u                   /* of those: see call_slot_get_long() */
#define CALL_SLOT_BYTES ((size_t)256 * 1024) /* of one slot */
#define CALL_WHY 200u                        /* bytes of a sentence for people */

struct calls_config {
    enum gaia_carrier carrier;
    const char *address; /* of transport.h; this end listens there */
    unsigned timeout_ms; /* of transport.h: when a silent peer is dead */
    unsigned queues; /* of a session's reads, and how many are under way on each; 0: as Little's law has */
    unsigned depth;  /* it, and a device needs (io/pull.h) */
    void *context;   /* of what follows */
    /* A peer has connected. 0 takes the session (which is the caller's, with one reference, until
     * call_session_put()); a negative errno refuses it. Must not wait. */
    int (*arrived)(void *context, struct call_session *session);
    /* Serve a request, in a thread of its class. Returns what call() gives the peer: 0 or more, or a negative
     * errno. reply has room for CALL_BYTES_MAX bytes; *reply_length is 0, and set to how many of them go
     * back. request has length bytes, which nobody has checked. */
    int (*serve)(void *context, struct call_session *session, unsigned op, const void *request, size_t length,
                 void *reply, size_t *reply_length);
    /* The session has ended: it calls nobody any more, and done() of what was begun with call_start() has
     * been called, or is being called. Requests of the session may still be served, and may wait for what is
     * done here. Called in a thread of its own, with no lock held; may wait. Once for each session; may be
     * NULL. */
    void (*lost)(void *context, struct call_session *session, int error);
    /* After lost(): nobody serves a request of the session any more. */
    void (*ended)(void *context, struct call_session *session, int error);
};

/* 0, or what gaia_transport_open() says, -ENOMEM, -EAGAIN; why_out: a sentence, or "". */
int calls_open(const struct calls_config *config, struct calls **calls_out, char why_out[CALL_WHY]);
/* Whether the memory of so many sessions, and of their links, could be registered now: -ENOMEM mostly is
 * RLIMIT_MEMLOCK, and why_out says so. Without this the first sign would be a session that can't be made,
 * maybe only later. */
int calls_try_memory(struct calls *calls, unsigned sessions, char why_out[CALL_WHY]);
/* Ends all sessions, waits for their serve() and ended() to return, and for threads that are connecting;
 * call_connect() gives -ESHUTDOWN from then on. Sessions that somebody has a reference to stay valid: calls
 * by them give -EIO. */
void calls_end(struct calls *calls);
/* Does calls_end(), if it was not called, and frees. NULL is allowed. */
void calls_close(struct calls *calls);

/* For `gaiactl stat`: the transfers that this end has posted (so of sessions that it connected), also in
 * sessions that have ended. Counters that are read while transfers are under way need not be of one
 * moment. */
struct calls_stat {
    const char *path; /* "local", "rdma" */
    char device[64];
    unsigned queues, depth;                /* of a session's reads; one queue more is for writes */
    unsigned outstanding, outstanding_max; /* asked for, and not ended: some may wait for a place */
    uint64_t reads, writes;                /* that went well, as what follows but failed */
    uint64_t bytes_read, bytes_written;
    uint64_t failed; /* those that could not be posted, too */
    /* From the request to its end, with the wait for its turn. */
    uint64_t latency_p50_ns, latency_p90_ns, latency_p99_ns, latency_p999_ns, latency_max_ns;
};
/* Takes no lock; not after calls_close(). */
void calls_stat(const struct calls *calls, struct calls_stat *stat_out);

/* Connect to the calls of another node; waits up to the timeout. As gaia_link_connect(); besides, the slots
 * are there when it returns (-ETIMEDOUT, -EPROTO when the peer has not exposed them). The error with which
 * the peer's arrived() has refused is returned, too; -ESHUTDOWN: calls_close() has begun.
 * gaia_transport_why() says more about why there is no link. One reference is the caller's. */
int call_connect(struct calls *calls, const char *peer, struct call_session **session_out);
/* Whether by this error a session can't be made, or has ended, though both ends live: one of them has no
 * memory, descriptors, threads or room for it now. */
bool call_is_short(int error);
void call_session_get(struct call_session *session);
void call_session_put(struct call_session *session);
/* End the session: calls under way give -EIO, at both ends, and ended() will be called. Does not wait: from
 * serve(), too. The reference stays the caller's. */
void call_session_abort(struct call_session *session);
/* 0 while it lives, else why it ended. */
int call_session_error(const struct call_session *session);
/* The shorter of both ends' time limits, in ms: an end that says nothing for so long may be taken to be
 * dead. */
unsigned call_session_timeout_ms(const struct call_session *session);
/* How many requests and replies have come by the session. */
uint64_t call_session_received(const struct call_session *session);
/* Whether the peer has asked for something that is not answered yet. */
bool call_session_is_asked(const struct call_session *session);
/* How many calls of a class this end has under way. */
unsigned call_session_calling(struct call_session *session, unsigned class);
/* This end connected. */
bool call_session_connected(const struct call_session *session);
/* The caller's own pointer; atomic. */
void call_session_set_user(struct call_session *session, void *user);
void *call_session_user(const struct call_session *session);

/* Call the peer and wait for what its serve() returns: that, or -EIO when the session has ended or ends
 * meanwhile; also -EINVAL (class, op over 65535, length over CALL_BYTES_MAX) and -ENOMEM, and nothing was
 * sent to the peer. reply, with room for *reply_length bytes, may be NULL: what comes is dropped;
 * *reply_length: how many there were (a longer reply than there is room for: -EPROTO, and none is there).
 * timeout_ms: a peer that has not answered so long after it was asked is given up, and the session with it
 * (0: waits as long as the session lives). If this process stood still meanwhile, for more than a quarter of
 * that and 100 ms, the wait begins anew: answers may be there and not seen yet, or the peer has stood still,
 * too. (Not after sixteen such quarters, on a machine where each of them is so late.) */
int call(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length,
         void *reply, size_t *reply_length, unsigned timeout_ms);
/* The same in two steps, so that one thread can have several calls under way, by several sessions. All who do
 * so take the sessions in the same order, as a thread that waits here for one place keeps those that it has.
 * reply, with its room, stays the caller's until call_hear(), which follows every call_ask(), in the same
 * thread, and returns what call() does; timeout_ms begins with call_hear(). */
struct call_asked {
    struct call_session *session; /* the caller has a reference */
    struct call_pending *pending; /* NULL: it was not asked, */
    int error;                    /* for this */
    unsigned class;
    bool replies; /* somebody wants what comes back */
};
void call_ask(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length,
              void *reply, size_t room, struct call_asked *asked_out);
int call_hear(struct call_asked *asked, size_t *reply_length_out, unsigned timeout_ms);
/* call() without waiting for the end: the result of serve() does not come back. Still waits while CALL_WIDTH
 * calls of the class are under way, or were until a moment ago. 0, or -EIO, -EINVAL, -ENOMEM. */
int call_post(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length);

/* How call_start() tells the result, some time later. The caller's memory, which must stay until done() is
 * called. */
struct call_answer {
    /* result: what the peer's serve() returned, or -EIO. Called once, in a thread of the class, or in another
     * when the session has ended; no lock is held. May call and wait, but not for another answer. */
    void (*done)(struct call_answer *answer, int result);
    bool has_slot; /* the request named one: it is put when the reply comes, not when done() gets its turn */
    unsigned slot;
    STAILQ_ENTRY(call_answer) entry; /* the rest is call_message.c's */
    int result;
};
/* The same as call_post(), and answer->done() is called with the result: always if this returns 0 (before the
 * session's ended() is called), else never. The caller keeps a reference to the session until then.
 * timeout_ms: as for call(), up to two seconds late; so no call waits longer than that for calls that are
 * under way. However long this process stands still, maybe with the peer, at most one second of that time
 * counts. */
int call_start(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length,
               struct call_answer *answer, unsigned timeout_ms);

/* Takes a slot of this end's half, and returns its number, to be told to the peer: 0 to 2 * CALL_SLOTS - 1.
 * Waits for a free one. Or -EIO (the session has ended). */
int call_slot_get(struct call_session *session);
/* The same, for calls that may keep it long: CALL_SLOTS_KEPT slots are always left to the others. */
int call_slot_get_long(struct call_session *session);
void call_slot_put(struct call_session *session, unsigned slot);
/* This end's memory of a slot, of either half; NULL: no such slot (the number may come from a peer). Valid as
 * long as a reference to the session is held; once that has ended, the bytes stay as long as the slot is
 * taken or served. A connected peer may write to an accepted end's at any time. */
void *call_slot(struct call_session *session, unsigned slot);
/* The same, for serving a request that names a slot, until call_slot_served(): meanwhile this request has the
 * slot to itself. NULL: it is not of the peer's half, or another request that is being served has it, which
 * happens only if the peer breaks this protocol. Any thread; does not wait. */
void *call_slot_serve(struct call_session *session, unsigned slot);
void call_slot_served(struct call_session *session, unsigned slot);

/* Only where this end connected (else -EINVAL). Move bytes of a slot, between the peer's memory of it and
 * this end's; or from the peer's straight to memory of the caller's, a part of a gaia_standing (-EFAULT: that
 * memory has gone; the session stays as it is). A write is not waited for: what was written is there before
 * the peer hears of a call or an answer that is made afterwards, else the session ends. Until it has heard of
 * it, what is in the slot must stay as it is. 0, -EINVAL (past the slot), -ENOMEM (not registered for now),
 * -EOPNOTSUPP (the standing memory can't be reached), -EIO (the session has ended). */
int call_slot_read(struct call_session *session, unsigned slot, size_t offset, size_t length);
int call_slot_write(struct call_session *session, unsigned slot, size_t offset, size_t length);
int call_slot_read_into(struct call_session *session, unsigned slot, size_t offset, size_t length,
                        void *memory, struct gaia_standing *standing);
/* Register standing memory with the session's transport, which call_slot_read_into() does at its first use.
 * 0, or what gaia_standing_register() says, -EIO (the session has ended). */
int call_slot_register(struct call_session *session, struct gaia_standing *standing,
                       struct gaia_memory **memory_out);

#endif
