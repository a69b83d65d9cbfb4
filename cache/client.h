/* SPDX-License-Identifier: Apache-2.0 */
/* A client process of the cache (a libgaia), its maps of files on devices, and what it may ask for.
 *
 * All functions but the opening ones may be called from any thread; none may be called from a FUSE handler.
 */
#ifndef GAIAFS_CACHE_CLIENT_H
#define GAIAFS_CACHE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cache/cache.h"
#include "gpu/device.h"

struct cache_client;
struct cache_map;

/* process: its descriptor for faults (userfaultfd) stays the caller's, and must be there as long as the
 * client is (to close it may wait for the process's mmap lock); -1: it has none, and can map only on devices
 * that need none. can_trap: its kernel can map pages write protected. Starts the thread that serves the
 * client's faults. -EINVAL (not such a descriptor), -ENOMEM, -EMFILE, -EAGAIN. */
int cache_client_open(struct cache *cache, const struct gaia_process *process, bool can_trap,
                      struct cache_client **client_out);
/* A client of an agent's, by its number there: its faults come by cache_client_fault(). node: 1 + the
 * member's number. Cannot fail otherwise than with -ENOMEM, -EMFILE. */
int cache_client_open_far(struct cache *cache, unsigned node, uint32_t number,
                          struct cache_client **client_out);
/* Serve one fault of such a client. -ENOENT: nothing is mapped there. */
int cache_client_fault(struct cache_client *client, const struct gaia_fault *fault);
/* Unmaps everything; what was released stays, and so do the copies on the devices. */
void cache_client_close(struct cache_client *client);

/* Parse "soft:N" or "cuda:N". uuid: of the GPU, which need not have the same number here; open: a device that
 * nobody has used yet is opened. why_out: a sentence that says why there is no such device, or "". No lock is
 * held. 0, -EINVAL (malformed), -ENODEV, -ENOMEM, -EIO. */
int cache_device_parse(struct cache *cache, const char *name, const uint8_t uuid[16], bool open,
                       unsigned *device_out, char why_out[GAIA_CUDA_WHY]);

struct cache_map_request {
    struct cache_file *file; /* its inode is held by the caller until this returns */
    unsigned device;
    uint64_t first, count; /* pages; count may reach past the end of the file */
    bool writable;
    bool resident; /* GAIA_RESIDENT */
};
/* For cache/agent.h: the client's number as homes know it; its process; and its map of a far file at that
 * address, with a reference, if the map's frames are these. */
struct agent_frames;
struct nodes;
uint32_t cache_client_number(const struct cache_client *client);
const struct gaia_process *cache_client_process(const struct cache_client *client);
struct cache_map *cache_client_find_far(struct nodes *nodes, uint32_t client, uint64_t address,
                                        const struct agent_frames *frames);
/* Prepare a map: the client gets descriptors of the frames and of the shared state (the caller closes them),
 * maps the frames, and says where by cache_map_attach(). Of a client of an agent's there are no descriptors,
 * and *chunk_pages_out is the number of the frames there. Where frames come in chunks, *frames_fd_out is -1,
 * *chunk_pages_out how large one is (else 0), and cache_map_chunk() gives a descriptor of each. -EACCES
 * (writable, but the data directory is not), -ENOMEM (resident, and more than the device has), -EMFILE (too
 * many maps), -EPERM (a client without a descriptor for faults, on a device that needs one), -ENODEV, -EBUSY
 * (another mount has it on its devices), -EINPROGRESS (a home that went may have it: to be tried again), or
 * what else claim_take() says. */
int cache_map_open(struct cache_client *client, const struct cache_map_request *request, uint32_t *id_out,
                   int *frames_fd_out, int *state_fd_out, uint64_t *chunk_pages_out);
/* chunk: page / chunk_pages, of the map's pages. *digests_fd_out: the digests of its pages, for a client that
 * searches, *digests_bytes_out of them; -1 and 0: it is to ask. -EINVAL, -ENOMEM (the device has no memory
 * left), -EIO. */
int cache_map_chunk(struct cache_client *client, uint32_t id, uint64_t chunk, bool searches, int *fd_out,
                    int *digests_fd_out, uint64_t *digests_bytes_out);
int cache_map_attach(struct cache_client *client, uint32_t id, uint64_t address);
/* The same of a client of an agent's, which tells whether its kernel can trap stores. */
int cache_map_attach_far(struct cache_client *client, uint32_t id, uint64_t address, bool can_trap);
/* -ENOENT: no such map. */
int cache_map_close(struct cache_client *client, uint32_t id);

/* offset and bytes are of the file and must lie in the map: else -EINVAL. bytes is rounded up to pages. 1,
 * for an agent's client: the acquire is complete when the agent has had the file FLUSHed. *poisonings_out:
 * how many touches of the map could not be served; for an agent's client: since its last acquire that did not
 * fail. */
int cache_map_acquire(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                      uint64_t *changes_out, uint64_t *poisonings_out);
int cache_map_release(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes);
/* Released bytes of the range reach storage. */
int cache_map_sync(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes);
/* advice: GAIA_ADV_* of gaia.h. */
int cache_map_advise(struct cache_client *client, uint32_t id, uint64_t offset, uint64_t bytes,
                     unsigned advice);

#endif
