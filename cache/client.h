/* SPDX-License-Identifier: Apache-2.0 */
/* A client process of the cache (a libgaia), its maps of files on devices, and what it may ask for.
 *
 * All functions but the opening ones may be called from any thread; none may be called from a FUSE handler.
 */
#ifndef GAIAFS_CACHE_CLIENT_H
#define GAIAFS_CACHE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cache/cache.h"

struct cache_client;
struct cache_map;

/* faults: the client's descriptor for faults (userfaultfd); taken over, closed with the client, also on
 * failure. can_trap: its kernel can map pages write protected. Starts the thread that serves its faults.
 * -EINVAL (not such a descriptor), -ENOMEM, -EMFILE, -EAGAIN. */
int cache_client_open(struct cache *cache, int faults, bool can_trap, struct cache_client **client_out);
/* Unmaps everything; what was released stays, and so do the copies on the devices. */
void cache_client_close(struct cache_client *client);

/* Parse "soft:N". 0, -EINVAL (malformed), -ENODEV. */
int cache_device_parse(const struct cache *cache, const char *name, unsigned *device_out);

struct cache_map_request {
    struct cache_file *file; /* its inode is held by the caller until this returns */
    unsigned device;
    uint64_t first, count; /* pages; count may reach past the end of the file */
    bool writable;
    bool resident; /* GAIA_RESIDENT */
};
/* Prepare a map: the client gets descriptors of the frames and of the shared state (the caller closes them),
 * maps the frames, and says where by cache_map_attach(). -EACCES (writable, but the data directory is not),
 * -ENOMEM (resident, and more than the device has), -EMFILE (too many maps), -ENODEV. */
int cache_map_open(struct cache_client *client, const struct cache_map_request *request, uint32_t *id_out,
                   int *frames_fd_out, int *state_fd_out);
int cache_map_attach(struct cache_client *client, uint32_t id, uint64_t address);
/* -ENOENT: no such map. */
int cache_map_close(struct cache_client *client, uint32_t id);

/* offset and bytes are of the file and must lie in the map: else -EINVAL. bytes is rounded up to pages. */
int cache_map_acquire(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                      uint64_t *changes_out, bool *poisoned_out);
int cache_map_release(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes);
/* Released bytes of the range reach storage. */
int cache_map_sync(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes);
/* advice: GAIA_ADV_* of gaia.h. */
int cache_map_advise(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                     unsigned advice);

#endif
