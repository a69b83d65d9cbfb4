/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs to which not this process posts but a GPU, which then needs neither the daemon nor a thread of
 * the CPU to read from a peer. Made with mlx5's direct verbs (<infiniband/mlx5dv.h>), which hand out what
 * verbs hide: where the queues lie, and how to ring. gpu/request.h says what is in them, and what the GPU
 * does.
 *
 * No such NIC was at hand. This code compiles where the header is, and its use of direct verbs is tested
 * against a stand-in for them (tests/io/test_direct.c); on hardware it has not run.
 *
 * The queues lie in memory of the caller, through the allocators of a parent domain. libmlx5 fills in their
 * first contents, and the kernel pins them: so this process must be able to write to that memory, and the
 * kernel to pin it. This is so for pinned host memory, and for a GPU's memory that is part of the process's
 * address space (coherent, or mapped, with nvidia-peermem). For a GPU's memory that is known only by a
 * dma-buf, the queues would have to be made by commands of DEVX (mlx5dv_devx_umem_reg_ex and on), which is
 * not written.
 *
 * Thread safety: none; a queue is its caller's. Errors are negative errno values, and `why` has the sentence
 * for people. */
#ifndef GAIAFS_IO_DIRECT_H
#define GAIAFS_IO_DIRECT_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#define GAIA_DIRECT_WHY_SIZE 160
#define GAIA_DIRECT_DEPTH_MIN 2u
#define GAIA_DIRECT_DEPTH_MAX 32768u

/* Whether there is a NIC for this: 0, and its name; else -ENOSYS (built without the header), -ENOENT (no
 * libmlx5 or libibverbs), -ENODEV (no RDMA device, or none of mlx5). Any thread. */
int gaia_direct_probe(char device_out[64], char why_out[GAIA_DIRECT_WHY_SIZE]);

struct gaia_direct;

struct gaia_direct_options {
    struct ibv_pd *pd; /* of what is read into, of an mlx5 device; outlives the queue */
    uint32_t depth;    /* reads at a time: a power of two */
    void *memory;      /* see above; whole pages; the queue's until it is closed */
    size_t size;       /* of it: gaia_direct_size(depth) or more */
};

/* Bytes of memory for the queues of a depth; 0: no such depth. */
size_t gaia_direct_size(uint32_t depth);

/* A queue pair that is not connected. 0; or -ENOSYS, -ENOENT (as above), -EINVAL (options), -EOPNOTSUPP
 * (direct verbs made it differently from what gpu/request.h says), or an errno of theirs. */
int gaia_direct_open(const struct gaia_direct_options *options, struct gaia_direct **direct_out,
                     char why_out[GAIA_DIRECT_WHY_SIZE]);

/* What the GPU needs to know: struct gaia_request_queue, with the addresses of this process. */
struct gaia_direct_queue {
    uint32_t qpn;
    uint32_t depth;
    uint32_t wqes_count;
    void *wqes; /* these three in the caller's memory */
    void *cqes;
    uint32_t *record;
    void *doorbell; /* in a page of the NIC: 8 bytes, to be mapped for the GPU */
};
void gaia_direct_queue(const struct gaia_direct *direct, struct gaia_direct_queue *queue_out);

/* The other end: an RC queue pair that allows remote reads, and that was told this one's number. */
struct gaia_direct_peer {
    uint32_t qpn;
    uint32_t receive_psn, send_psn; /* 24 bits */
    union ibv_gid gid;
    uint16_t lid; /* 0: by gid, as RoCE has it */
    uint8_t port; /* this side's, from 1 on */
    uint8_t gid_index;
    uint8_t reads; /* at a time, as both ends allow */
    enum ibv_mtu mtu;
};

/* 0, or an errno of the verbs', negative. From then on the queue may be posted to. */
int gaia_direct_connect(struct gaia_direct *direct, const struct gaia_direct_peer *peer,
                        char why_out[GAIA_DIRECT_WHY_SIZE]);

/* Nothing is written afterwards, neither to the queues nor by a read. NULL is allowed. */
void gaia_direct_close(struct gaia_direct *direct);

#endif
