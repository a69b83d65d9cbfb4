/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that stays where it is, a GPU's, and its registrations: a NIC that writes into it needs one, which
 * costs more than a read, and is kept for as long as the memory is there. (The soft device's frames come and
 * go page by page, and are filled from a bounce buffer or a slot.)
 *
 * Each transport registers all of it once, when it is first wanted: by a dma-buf, where the carrier takes
 * them, else by its address, which RDMA takes where a module of the GPU's answers for it (nvidia-peermem).
 * The local carrier has the kernel copy to the address.
 *
 * Whether any of this works is known only after a try: registering may be refused, a transfer may end its
 * link, or, worst, end well and have gone nowhere (a bridge or an IOMMU between the two has dropped it). So
 * the first bytes by each registration are checked (cache/window.h): another transport may be another NIC. A
 * failure is kept with the GPU, for each path that bytes come by (enum gaia_path), and nobody tries that path
 * again, unless the refusal is only for now.
 *
 * Thread safety: all functions may be called from any thread. */
#ifndef GAIAFS_IO_STANDING_H
#define GAIAFS_IO_STANDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

struct gaia_memory;
struct gaia_transport;

/* A transport serves one of them; the path outlives it. */
enum gaia_path { GAIA_PATH_CALLS, GAIA_PATH_FAULTS, GAIA_PATHS };

enum gaia_reach {
    GAIA_REACH_UNKNOWN,
    GAIA_REACH_PROVEN, /* bytes have been seen to arrive */
    GAIA_REACH_NONE,   /* it was refused, or has failed */
};

/* What is known of a GPU's memory, by path. Zeros at first. */
struct gaia_reaches {
    _Atomic(enum gaia_reach) of[GAIA_PATHS];
    _Atomic bool refused[GAIA_PATHS]; /* for now, when it was last asked for */
};

struct gaia_standing {
    void *address; /* in this process, if only the device can use it there */
    size_t length; /* bytes */
    /* A dma-buf of all of the memory: a descriptor, the caller's, or a negative errno: -EOPNOTSUPP if there
     * will never be one. May be NULL. */
    int (*share)(struct gaia_standing *standing);
    struct gaia_reaches *reaches; /* of its GPU */

    /* This file's own. */
    LIST_HEAD(, standing_registration) registered; /* one for each transport that was asked */
    unsigned ends[GAIA_PATHS];                     /* transfers that failed before any was seen to arrive */
    bool gone[GAIA_PATHS];                         /* it can't be reached by that path */
};

/* The memory's registration with a transport, which is not being closed; valid until gaia_standing_end(), or
 * the end of the transport; the caller never releases it. Transfers count offsets from `address`, and are to
 * be `cuttable` (see gaia_transfer): a carrier may find out at the first one that it can't reach the memory.
 * 0; -EOPNOTSUPP: it can't be reached; -ENOMEM: not now (mostly for want of memory that may be locked, or of
 * the GPU's window on the bus; tried again after a second). */
int gaia_standing_register(struct gaia_standing *standing, struct gaia_transport *transport,
                           struct gaia_memory **memory_out);
/* A transfer by this registration that had begun has ended with error. -EFAULT: the memory can't be reached
 * any more. If nothing was ever seen to arrive in the GPU's memory, any failure is taken to mean that, except
 * -ECANCELED (this side is closing); if nothing was seen to arrive in this piece of memory, a second failure
 * is. */
void gaia_standing_ended(struct gaia_standing *standing, enum gaia_path path,
                         const struct gaia_memory *registration, int error);
/* Whether bytes were seen to arrive by the registration; and: they were. NULL: no. */
bool gaia_standing_is_proven(const struct gaia_memory *registration);
void gaia_standing_prove(struct gaia_standing *standing, enum gaia_path path,
                         struct gaia_memory *registration);
/* What is known of the memory's GPU; and: bytes do not arrive, which is for good. */
enum gaia_reach gaia_standing_reach(const struct gaia_standing *standing, enum gaia_path path);
void gaia_standing_give_up(struct gaia_standing *standing, enum gaia_path path);
/* The memory is about to go, and no transfer of it is under way. */
void gaia_standing_end(struct gaia_standing *standing);

/* io/transport.c: the transport is about to go. */
void gaia_standing_forget(struct gaia_transport *transport);

#endif
