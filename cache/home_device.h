/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of agents, as the home has them: a cache_device for each, which is never removed, but becomes
 * another one's when its node has gone and there is no other place; its frames exist as long as the agent's
 * session lives. */
#ifndef GAIAFS_CACHE_HOME_DEVICE_H
#define GAIAFS_CACHE_HOME_DEVICE_H

#include <stdint.h>

#include "gpu/device.h"

struct cache;
struct cache_device;
struct home_session;
struct replica;

/* The number here of an agent's device, made if it is new; pages: what it has for files of this home from now
 * on. -ENODEV (there are GAIA_NODE_MAX of nodes that live, or of the other kind), -EBUSY (the one of before
 * is being cleared away), -EINVAL, -ENOMEM. */
int home_device_get(struct home_session *agent, uint32_t device, uint64_t pages, unsigned *number_out);

/* Give up frames of the agent's device that hold files which nobody maps there, until there are so many. No
 * lock is held. Returns how many pages were given up; 0: the agent has no such device here. */
uint64_t home_device_room(struct home_session *agent, uint32_t device, uint64_t pages);

/* What the agent's devices hold is collected, and they are emptied. No lock is held. The first error or 0. */
int home_device_empty(struct home_session *agent);

/* The agent's session has ended, and its clients here: its devices' copies are gone, what was released of
 * them and not collected too. No lock is held. */
void home_device_lost(struct home_session *agent);

/* What of a file a replica has is lost. No lock is held. */
void home_device_lose(struct replica *replica);

/* New frames on a device of an agent; read_only: see gaia_node_frames_open(). The file's lock is held. -EIO:
 * there is no session now. */
int home_device_frames(struct cache *cache, const struct cache_device *device, uint64_t pages, bool read_only,
                       struct gaia_frames **frames_out);

/* A replica whose frames were lost gets new ones. The file's lock is held. 0, -EIO, -EBUSY (what was lost is
 * being cleared away), or what home_device_frames() says. */
int home_device_renew(struct replica *replica, uint64_t pages);

#endif
