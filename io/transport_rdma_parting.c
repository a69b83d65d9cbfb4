/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA carrier: connections that are given up before their peer has answered. Of iWARP's Linux lets
 * nobody go before the device has given up, too (siw after 10 s): to disconnect, and to destroy the queue
 * pair and the id, waits for that. All links of a transport would wait with it, so a thread does it. */
#include "io/transport_rdma.h"

#include <stdlib.h>

#include "base/thread.h"

struct rdma_parting {
    LIST_ENTRY(rdma_parting) entry;
    struct rdma_cm_id *id;
    unsigned room; /* entries of the completion queue that it has until it is gone */
    pthread_t thread;
    _Atomic bool done;
};

void rdma_end_connection(struct rdma_cm_id *id)
{
    if (id->qp) {
        rdma_disconnect(id); /* tells the peer; it fails when there is no connection */
        rdma_destroy_qp(id); /* from here on nothing reaches memory */
    }
    rdma_destroy_id(id);
}

static void *part(void *argument)
{
    struct rdma_parting *parting = argument;

    rdma_end_connection(parting->id);
    parting->done = true;
    return NULL;
}

bool rdma_part(struct rdma *rdma, struct rdma_cm_id *id, unsigned room)
{
    struct rdma_parting *parting = calloc(1, sizeof *parting);

    if (!parting)
        return false;
    parting->id = id;
    parting->room = room;
    if (thread_start(&parting->thread, part, parting)) {
        free(parting);
        return false;
    }
    LIST_INSERT_HEAD(&rdma->parting, parting, entry);
    return true;
}

void rdma_look_at_parting(struct rdma *rdma, bool wait)
{
    struct rdma_parting *next;

    for (struct rdma_parting *parting = LIST_FIRST(&rdma->parting); parting; parting = next) {
        next = LIST_NEXT(parting, entry);
        if (!wait && !parting->done)
            continue;
        pthread_join(parting->thread, NULL);
        LIST_REMOVE(parting, entry);
        rdma->cq_room += parting->room;
        free(parting);
    }
}
