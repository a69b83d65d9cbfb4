/* SPDX-License-Identifier: Apache-2.0 */
/* A device of another node, the home's half: home_node.c does what every driver does, and home_node_scan.c
 * what a driver that scans does. */
#ifndef GAIAFS_GPU_HOME_NODE_H
#define GAIAFS_GPU_HOME_NODE_H

#include "gpu/device.h"
#include "io/call.h"
#include "io/node.h"

struct node_frames {
    struct gaia_frames base;
    struct call_session *session;
};

struct gaia_frames_map {
    struct node_frames *frames;
    uint32_t client;
    uint64_t address;
};

static inline struct node_frames *node_frames_of(struct gaia_frames *frames)
{
    return (struct node_frames *)frames;
}

/* Have the agent do something to the frames: 0 or a negative errno. */
int node_ask(const struct node_frames *frames, enum node_class class, enum node_op op,
             struct node_request *request);
/* The same for n pages; the answer, so many bytes, comes through a slot. */
int node_ask_for(struct node_frames *frames, enum node_op op, uint64_t page, uint64_t n, void *out,
                 size_t bytes);

/* See gpu/device.h. */
int node_modified(struct gaia_frames *base, uint64_t page, uint64_t count, uint64_t *bits_out);
int node_granted(struct gaia_frames *base, uint64_t page, uint64_t count, const struct gaia_digest *digests);
int node_recall(struct gaia_frames *base, uint64_t page, uint64_t count, struct gaia_digest *digests_out);
int node_gather(struct gaia_frames *base, const uint64_t *pages, size_t count, void *bytes_out);
int node_patch(struct gaia_frames *base, const uint64_t *pages, size_t count, const void *const *old,
               const void *fresh);

#endif
