/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that stays where it is, a GPU's, and its registrations: a NIC that writes into it needs one, which
 * costs more than a read does, and keeps it for as long as the memory is there. (The soft device's frames
 * come and go page by page, and are registered for each read.)
 *
 * Each transport registers all of it once, when it is first wanted: by a dma-buf, where the carrier takes
 * them, else by its address, which RDMA takes of memory that the CPU can reach (a coherent GPU) or that a
 * module of the GPU's answers for (nvidia-peermem). The local carrier has the kernel copy to the address.
 * Where none of it works, that is kept in mind, and nobody tries again.
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

struct gaia_standing {
    void *address; /* in this process, if only the device can use it there */
    size_t length; /* bytes */
    /* A dma-buf of all of it: a descriptor, the caller's, or a negative errno. May be NULL. */
    int (*share)(struct gaia_standing *standing);

    /* This file's own. */
    _Atomic bool unreachable;
    LIST_HEAD(, gaia_memory) registered; /* one for each transport */
};

/* Its registration with a transport, which is not being closed; valid until gaia_standing_end(), or the end
 * of the transport; never released by who asks. Transfers count offsets from `address`, and are to be
 * `cuttable` (see gaia_transfer): a carrier may find out at the first one that it can't reach the memory. 0;
 * -EOPNOTSUPP: it can't be reached, now or ever; -ENOMEM: not now. */
int gaia_standing_register(struct gaia_standing *standing, struct gaia_transport *transport,
                           struct gaia_memory **memory_out);
/* A transfer of it has ended with -EFAULT: nobody tries again. */
void gaia_standing_missed(struct gaia_standing *standing);
/* Whether it is worth asking. */
bool gaia_standing_is_reachable(const struct gaia_standing *standing);
/* The memory is about to go, and no transfer of it is under way. */
void gaia_standing_end(struct gaia_standing *standing);

/* io/transport.c: the transport is about to go. */
void gaia_standing_forget(struct gaia_transport *transport);

#endif
