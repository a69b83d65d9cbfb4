/* SPDX-License-Identifier: Apache-2.0 */
/* The transport: messages to peers, and reads and writes of frames that a peer has exposed, without its help
 * where the carrier can. Two carriers, one interface: GAIA_CARRIER_LOCAL (UNIX sockets and shared memory) and
 * GAIA_CARRIER_RDMA (rdma-core: RC queue pairs, one shared completion queue).
 *
 * A *transport* is one end: an address, and the peers that are connected to it. A *link* is a session with
 * one peer: queues, keys, messages. Data moves one way: the side that connected reads and writes what the
 * side that accepted has exposed; messages go both ways. Two nodes that read from each other have two links.
 *
 * Keys. What is exposed is exposed to one link. On RDMA each accepted link has a protection domain of its own
 * and registers what it exposes there: the NIC refuses a key that comes through a queue pair of another
 * domain, whoever has learnt it, and deregistering makes the key invalid. What a connected side registers as
 * the memory that it reads into has no remote rights at all, so that one registration serves all its links.
 * (With iWARP, which can't read otherwise, those that it has connected to may write there.)
 * On the local carrier the exposing side copies, after it has checked the key in the table of that very link,
 * through a buffer that only the two ends share; nobody ever gets a descriptor of frames.
 *
 * Time. A peer that says nothing for timeout_ms, and a transfer that takes longer, end their link with -EIO.
 * Each time this side stands still, at most a quarter of timeout_ms of that time counts. Links are ended, and
 * everything else is done, in gaia_transport_poll() and gaia_transport_wait(): some thread must be in one of
 * them most of the time.
 *
 * Thread safety: all functions may be called from any thread, and from callbacks unless stated otherwise.
 * Callbacks run in the thread that polls, one at a time, with no lock held. The caller must not use a link
 * after gaia_link_close(), nor a transport after gaia_transport_close(). A transport is of no use to a child
 * after fork(2).
 *
 * Errors are negative errno values; gaia_transport_why() has the sentence for people.
 */
#ifndef GAIAFS_IO_TRANSPORT_H
#define GAIAFS_IO_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/standing.h"

struct gaia_transport;
struct gaia_link;

#define GAIA_LINK_QUEUES_MAX 16u
#define GAIA_LINK_DEPTH_MAX 1024u
#define GAIA_LINK_REGIONS_MAX 4096u
#define GAIA_LINK_MESSAGE_MAX 4592u                /* bytes of one message */
#define GAIA_LINK_TRANSFER_MAX ((uint32_t)2 << 20) /* bytes of one read or write */
#define GAIA_LINK_CREDITS 32u                      /* messages sent that the peer has not taken yet */
#define GAIA_TRANSPORT_LINKS_MAX 256u              /* those being connected included */

enum gaia_carrier {
    GAIA_CARRIER_LOCAL,
    GAIA_CARRIER_RDMA,
};

/* Called by whoever polls. A callback may use any link, and may close it. */
struct gaia_transport_calls {
    /* A peer has connected. To return 0 takes the link: it is the caller's until gaia_link_close(). A
     * negative errno refuses it: the link is gone. peer: who it is, for a log line (valid during the call).
     * If arrived is NULL, everybody is refused.
     */
    int (*arrived)(void *context, struct gaia_link *link, const char *peer);
    /* bytes are valid during the call. NULL: messages are dropped. */
    void (*message)(void *context, struct gaia_link *link, const void *bytes, size_t length);
    /* The peer has exposed a region of length bytes, which stays until the link ends. May be NULL. */
    void (*exposed)(void *context, struct gaia_link *link, uint32_t region, uint64_t length);
    /* The link has ended, and all its transfers with it: 0, the peer has closed it; or a negative errno:
     * -EIO, the peer has died or does not answer, or a transfer failed; -EPROTO, it has sent what makes no
     * sense; or why its arrived() has refused (gaia_transport_why() says more during the call). The link
     * stays the caller's. Not called for a link that the caller closes. May be NULL. */
    void (*closed)(void *context, struct gaia_link *link, int error);
};

struct gaia_transport_config {
    enum gaia_carrier carrier;
    /* RDMA: "HOST:PORT" of an address of this machine that an RDMA device has ("10.0.0.1:7471",
     * "[fd00::1]:7471"; port 0: connects only, whatever listen says). Local: a name in the abstract namespace
     * of sockets, up to 80 bytes. */
    const char *address;
    bool listen;         /* accept peers; else only connect */
    unsigned timeout_ms; /* 50 to 600000 */
    enum gaia_path path; /* what it serves: io/standing.h */
    unsigned spin_us;    /* RDMA: how long a poll looks before it sleeps; 0: not at all */
    struct gaia_transport_calls calls;
    void *context; /* of the calls */
};

/* Start. 0; or -EINVAL (config), -ENODEV (no RDMA device, or no kernel support), -EADDRNOTAVAIL (no device
 * has this address), -ENETDOWN (its port is not up), -EADDRINUSE, -ENOMEM, -EMFILE, -EACCES, or another errno
 * of the carrier's. */
int gaia_transport_open(const struct gaia_transport_config *config, struct gaia_transport **transport_out);

/* Closes links that are still open (their transfers end with -ECANCELED), lets go of memory that is still
 * registered, frees. Not from a callback, nor while another thread polls. NULL is allowed. */
void gaia_transport_close(struct gaia_transport *transport);

/* The last error of this thread, for people; never NULL, valid until the thread's next call. */
const char *gaia_transport_why(void);

/* Carry on: take what has come, tell peers that this side lives, end what is late; callbacks run. Waits up to
 * timeout_ms when there is nothing to do. Returns how many callbacks ran, or, at once, -EBUSY (another thread
 * polls). Not from a callback. */
int gaia_transport_poll(struct gaia_transport *transport, unsigned timeout_ms);

/* Poll, or sleep while another thread does, until until(context) is true or timeout_ms have passed. until is
 * called with no lock held, and again after each round of callbacks. Returns whether it became true. Not from
 * a callback. */
bool gaia_transport_wait(struct gaia_transport *transport, bool (*until)(void *context), void *context,
                         unsigned timeout_ms);

/* This side is about to end: links that are not up yet are given up (-ECANCELED), now and from now on. */
void gaia_transport_leave(struct gaia_transport *transport);

/* Make a thread that polls or waits come back now. */
void gaia_transport_wake(struct gaia_transport *transport);

/* What the carrier can do: constant. */
struct gaia_transport_limits {
    unsigned reads_per_queue;  /* reads of one queue that the carrier has on their way at a time */
    unsigned queues;           /* of a link */
    uint64_t bytes_per_second; /* of the wire, as the device says; 0: it does not */
    bool dmabuf;               /* memory of other devices can be registered */
    char device[64];           /* "local", or the RDMA device's name */
};
void gaia_transport_limits(const struct gaia_transport *transport, struct gaia_transport_limits *limits_out);

/* ---- memory ---- */

/* A piece of memory: of this process, or, with a dmabuf of 0 or more, of another device (address is the
 * offset in the buffer then, and the transport does not look at the bytes). */
struct gaia_span {
    void *address;
    size_t length; /* bytes, 1 to 2^40 */
    int dmabuf;    /* descriptor; -1: none */
};

/* Memory that transfers of this side read into and write from. */
struct gaia_memory;

/* The span must stay mapped, with its pages, until gaia_memory_release(). 0; or -EINVAL, -ENOMEM (on RDMA
 * mostly RLIMIT_MEMLOCK: why says so), -EFAULT, -EOPNOTSUPP (a dmabuf, and the carrier takes none), -ENODEV
 * (the device has gone). */
int gaia_memory_register(struct gaia_transport *transport, const struct gaia_span *span,
                         struct gaia_memory **memory_out);

/* No transfer of it may be under way. NULL is allowed. */
void gaia_memory_release(struct gaia_memory *memory);

/* ---- links ---- */

struct gaia_link_options {
    unsigned queues; /* 1 to GAIA_LINK_QUEUES_MAX */
    unsigned depth;  /* transfers of a queue at a time, 1 to GAIA_LINK_DEPTH_MAX */
};

/* How much memory a link of these options locks besides what is registered and exposed, at most: at the end
 * that connects, or at the other. */
size_t gaia_link_memory(const struct gaia_transport *transport, const struct gaia_link_options *options);

/* What this end's own kernel or device has refused, and the peer nothing: there are errors of all kinds, and
 * none is a sign that the peer does not run, nor to the peer that this end does not. One of a lack
 * (-ENOMEM, -EMFILE, -ENFILE, -ENOBUFS, -ENOSPC) as it is; -EAGAIN for any other. */
int gaia_own_error(int error);

/* Connect to a transport that listens at peer (written as config.address). Waits up to timeout_ms. 0; or
 * -EINVAL, -ECONNREFUSED (nobody listens there, or no carrier of this kind), -EAGAIN (RDMA: the kernel or
 * the device makes no connection now, there or here, and somebody may listen), -EPROTONOSUPPORT (the peer
 * speaks another version), -EPROTO, -ETIMEDOUT, -EHOSTUNREACH, -EXDEV (the way there goes through another
 * device), -ENODEV (the device has gone), -EPERM (local: the listener is neither root nor of this program's
 * user), -ENOBUFS (too many links, here or there), -ENOMEM, -EMFILE. A peer whose arrived() refuses ends the
 * link right afterwards, with the error that arrived() returned. Not from a callback. */
int gaia_link_connect(struct gaia_transport *transport, const char *peer,
                      const struct gaia_link_options *options, struct gaia_link **link_out);

/* End a link. Transfers that are under way end with -ECANCELED before this returns, in this thread; nothing
 * of the peer's reaches memory afterwards, and nothing that was exposed can be read. Waits for a callback of
 * this link that another thread is in. NULL is allowed. */
void gaia_link_close(struct gaia_link *link);

/* The same, and tells the peer why: its link ends with this error. So an end that lacks some resource is not
 * taken for one that has died. */
void gaia_link_refuse(struct gaia_link *link, int error);

/* 0 while the link is open, else why it ended: -ESHUTDOWN (the peer has closed it), or another errno. */
int gaia_link_error(const struct gaia_link *link);

/* The caller's own pointer. */
void gaia_link_set_user(struct gaia_link *link, void *user);
void *gaia_link_user(const struct gaia_link *link);

/* What was agreed with the peer. */
struct gaia_link_options gaia_link_options(const struct gaia_link *link);
/* The shorter of both ends' time limits, in ms: the link may have ended for an end that says nothing for so
 * long. */
unsigned gaia_link_timeout_ms(const struct gaia_link *link);

/* Send a message. It is copied. 0; or -EAGAIN (the peer has not taken GAIA_LINK_CREDITS messages yet: poll,
 * and send again), -EINVAL (length 0 or over GAIA_LINK_MESSAGE_MAX), -EIO (the link has ended). A message
 * that was sent need not be received. */
int gaia_link_send(struct gaia_link *link, const void *bytes, size_t length);

/* Expose a span to the peer of an accepted link. It must stay mapped, with its pages, until
 * gaia_link_close(). 0; or -EAGAIN as above, -EINVAL (span; or this side connected), -ENOBUFS
 * (GAIA_LINK_REGIONS_MAX), -ENOMEM, -EFAULT, -EOPNOTSUPP, -EIO. */
int gaia_link_expose(struct gaia_link *link, const struct gaia_span *span, bool writable,
                     uint32_t *region_out);

/* One read or write. It must stay until done was called, which happens once for each that was posted: 0, or
 * -ECANCELED (gaia_link_close()), or -EIO (anything else, and the link has ended), or, if `cuttable` is set,
 * -EFAULT (and the link goes on). After an error memory may hold any part of the bytes, and nothing is
 * written to it any more. */
struct gaia_transfer {
    struct gaia_memory *memory; /* here */
    uint64_t memory_offset;     /* in it, bytes */
    uint64_t offset;            /* in the region, bytes */
    uint32_t region;            /* of the peer's */
    uint32_t length;            /* 1 to GAIA_LINK_TRANSFER_MAX */
    bool write;
    bool cuttable; /* of a read: the memory may not be there (any more): a GPU's, or one that others cut */
    void (*done)(struct gaia_transfer *transfer, int error);

    /* The transport's own. */
    struct gaia_transfer *next;
    uint64_t posted_ns;
    uint32_t stage;
    int error;
};

/* Post transfers on a queue of a connected link, with one doorbell for all. Fills no more than the queue
 * takes: how many were posted, from the first on; or, when the first was not, -EAGAIN (the queue is full),
 * -EINVAL (a length past the region or the memory, or 0, or over the maximum; no such queue or region; an
 * accepted link), -EACCES (a write, and the region is not writable), -ESHUTDOWN (the link had ended), -EIO
 * (this has ended it). */
int gaia_link_post(struct gaia_link *link, unsigned queue, struct gaia_transfer *const *transfers,
                   unsigned count);

#endif
