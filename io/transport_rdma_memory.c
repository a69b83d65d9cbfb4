/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA carrier: memory, registered to be read into, exposed to a peer, and a link's own buffers. */
#include "io/transport_rdma.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Bytes of an entry of a queue that a device's library has in locked memory, at most: mlx5 has 320 of a
 * request with what is sent inline, and the queue is a power of two. */
#define LOCKED_SEND 512u
#define LOCKED_RECEIVE 64u
#define LOCKED_PAGE 4096u

static int cannot_register(int error, size_t length)
{
    struct rlimit limit;

    if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit))
        return transport_say(error ? -error : -EIO, "registering %zu bytes: %s", length, strerror(error));
    if (limit.rlim_cur == RLIM_INFINITY)
        return transport_say(-ENOMEM, "registering %zu bytes: no memory (RLIMIT_MEMLOCK is unlimited)",
                             length);
    return transport_say(-ENOMEM, "registering %zu bytes: RLIMIT_MEMLOCK allows %llu bytes in all", length,
                         (unsigned long long)limit.rlim_cur);
}

static struct ibv_mr *register_span(struct ibv_pd *pd, const struct gaia_span *span, int access)
{
    if (span->dmabuf < 0)
        return ibv_reg_mr(pd, span->address, span->length, access);
    return ibv_reg_dmabuf_mr(pd, (uintptr_t)span->address, span->length, (uintptr_t)span->address,
                             span->dmabuf, access);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + LOCKED_PAGE - 1) / LOCKED_PAGE * LOCKED_PAGE;
}

/* The buffers of messages, and for each queue its entries and a page of doorbells: as rdma_queue_make() has
 * them. */
size_t rdma_link_memory(const struct gaia_link_options *options)
{
    size_t bytes = RDMA_BUFFERS_BYTES;

    for (unsigned i = 0; i < options->queues; i++) {
        uint32_t sends = rdma_ring(options->depth + (i ? 0 : RDMA_BUFFERS));
        uint32_t receives = rdma_ring(i ? 1 : RDMA_BUFFERS);

        bytes += whole_pages(sends * LOCKED_SEND) + whole_pages(receives * LOCKED_RECEIVE) + LOCKED_PAGE;
    }
    return bytes;
}

int rdma_sink_access(enum ibv_transport_type type)
{
    return IBV_ACCESS_LOCAL_WRITE | (type == IBV_TRANSPORT_IWARP ? IBV_ACCESS_REMOTE_WRITE : 0);
}

int rdma_remember(struct gaia_memory *memory)
{
    struct rdma *rdma = memory->transport->own;

    if (!rdma->verbs)
        return transport_say(-ENODEV, "the device %s has gone", memory->transport->limits.device);
    int access = rdma_sink_access(rdma->verbs->device->transport_type);
    memory->own = register_span(rdma->pd, &memory->span, access);
    return memory->own ? 0 : cannot_register(errno, memory->span.length);
}

void rdma_forget(struct gaia_memory *memory)
{
    ibv_dereg_mr(memory->own);
}

int rdma_expose(struct gaia_link *link, const struct gaia_span *span, struct link_region *region)
{
    struct rdma_link *own = link->own;
    struct ibv_mr *mr;
    int access = IBV_ACCESS_REMOTE_READ;

    if (region->writable)
        access |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    mr = register_span(own->pd, span, access);
    if (!mr)
        return cannot_register(errno, span->length);
    region->own = mr;
    region->address = (uintptr_t)span->address;
    region->key = mr->rkey;
    return 0;
}

void rdma_conceal(struct gaia_link *link, struct link_region *region)
{
    (void)link;
    if (region->own)
        ibv_dereg_mr(region->own);
    region->own = NULL;
}

int rdma_link_make(struct gaia_link *link)
{
    struct rdma *rdma = link->transport->own;
    struct rdma_link *own = link->own;
    const size_t length = RDMA_BUFFERS_BYTES;
    void *buffers;

    if (own)
        return 0;
    own = calloc(1, sizeof *own);
    if (!own)
        return transport_say(-ENOMEM, "no memory for a link");
    link->own = own; /* rdma_cut() cleans up */
    own->pd = link->connected_here ? rdma->pd : ibv_alloc_pd(rdma->verbs);
    if (!own->pd)
        return transport_say(-errno, "ibv_alloc_pd: %s", strerror(errno));
    if (posix_memalign(&buffers, 4096, length))
        return transport_say(-ENOMEM, "no memory for buffers");
    memset(buffers, 0, length);
    own->buffers = buffers;
    own->buffers_mr =
        register_span(own->pd, &(struct gaia_span){buffers, length, -1}, IBV_ACCESS_LOCAL_WRITE);
    if (!own->buffers_mr)
        return cannot_register(errno, length);
    own->buffers_lkey = own->buffers_mr->lkey;
    return 0;
}
