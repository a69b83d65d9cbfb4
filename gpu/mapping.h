/* SPDX-License-Identifier: Apache-2.0 */
/* The process's mappings of files on devices, found by address. A mapping consists of extents: one at first,
 * more when parts of it are unmapped. */
#ifndef GAIAFS_GPU_MAPPING_H
#define GAIAFS_GPU_MAPPING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "gpu/descriptors.h"

struct demand_map;
struct gaia_device;
struct gaia_driver;
struct gaia_session;
struct gaia_shared_state;

struct gaia_mapping {
    struct gaia_device *device; /* a reference, once it is mapped */
    const struct gaia_driver *driver;
    struct demand_map *demand; /* of demand */
    bool small_units;
    struct gaia_session *session;
    struct gaia_shared_state *state; /* read only */
    uint32_t map;                    /* its name at the daemon */
    int fd;                          /* our own descriptor of the file, for sync_file_range(): of file */
    struct descriptors file;
    struct descriptors reply, chunk;                /* that the daemon has sent, while it is being mapped */
    uint64_t reserved, reserved_bytes, chunk_bytes; /* cuda: all chunks of which the mapping has a part */
    uint64_t digests, digests_bytes; /* their digests, each chunk's so many bytes behind the last one's; 0:
                                        none */
    bool writable;
    void *address;
    size_t length; /* whole pages */
    size_t bytes;  /* as asked for: what a view of it has, whatever is unmapped later */
    off_t offset;
    /* Under the table's lock, as are the next ones: of those that are being collected for the last time.
     * Before that: of those that one call has unmapped. */
    LIST_ENTRY(gaia_mapping) link;
    LIST_ENTRY(gaia_mapping) leave; /* of those that are in the table no more */
    unsigned extents;               /* in the table */
    bool shown;                     /* a part that was unmapped could not be, or was not, blocked */
    unsigned references;            /* extents and calls under way */
    unsigned cut; /* 0: none of its addresses was blocked yet; else a number of 15 bits, which few have */
    /* state->changes as of the last acquire of the whole mapping; 0: none yet. */
    _Atomic uint64_t changes_seen;
    _Atomic uint64_t releases_seen; /* state->releases, likewise; of demand */
    _Atomic bool collect_failed;    /* driver->collect() of late; of demand */
    _Atomic uint64_t crossed_seen;  /* state->crossed as of the last release */
    _Atomic uint64_t refreshed;     /* GAIA_OP_ACQUIRE's poisonings, as of the last refresh that is over */
};

/* A piece of a mapping that lies in a range. */
struct gaia_piece {
    struct gaia_mapping *mapping; /* a reference */
    uint64_t offset;              /* of the file, bytes */
    uint64_t length;              /* bytes, whole pages */
    void *address;
};

/* The devices that this process has open: a device that was closed is not looked into. hold: takes another
 * reference; false: it is none of these devices. remove: false likewise; else everything of it is
 * unmapped. */
void gaia_mapping_add_device(struct gaia_device *device);
bool gaia_mapping_hold_device(struct gaia_device *device);
bool gaia_mapping_remove_device(struct gaia_device *device);

/* Enter a mapping as one extent; takes over the caller's reference. 0, -ENOMEM, -ENOTCONN (its session is
 * dead) or -EINVAL (its device is closed). */
int gaia_mapping_insert(struct gaia_mapping *mapping);
void gaia_mapping_put(struct gaia_mapping *mapping);

/* The pieces that make up [address, address + length), ascending, without a gap; device: all must be on this
 * one (NULL: any). -EINVAL (a gap, or another device), -ENOMEM. Free with gaia_pieces_free(). */
int gaia_mapping_find(void *address, size_t length, const struct gaia_device *device,
                      struct gaia_piece **pieces_out, size_t *count_out);
void gaia_pieces_free(struct gaia_piece *pieces, size_t count);

/* Touches of what is still mapped that were refused are tried again. */
void gaia_mapping_refresh(struct gaia_mapping *mapping);

/* Unmap what lies in the range. 0 or -ENOMEM. */
int gaia_mapping_remove(void *address, size_t length);
/* The mapping that begins there and that the program has not been told of. Needs no memory, so that nothing
 * of it stays in the daemon. */
void gaia_mapping_take_back(void *address);

/* Call fn once for each daemon from whose mount something is mapped through the device, with a session; a
 * reference is held. The first error, -ENOTCONN (nothing is mapped) or -ENOMEM. */
int gaia_mapping_each_daemon(const struct gaia_device *device,
                             int (*fn)(struct gaia_session *session, void *context), void *context);

/* mmap() of what no child of fork() gets: none comes in between. Not at addresses of a soft device's mapping,
 * of which the program may have given some away. 0 or a negative errno; -ENOMEM also where no more memory may
 * be locked, which Linux calls EAGAIN (mlockall()). */
int gaia_mapping_map(size_t length, int prot, int flags, int fd, off_t offset, void **address_out);

/* Around a fork: the table stands still. In the child nothing is mapped any more. */
void gaia_mapping_before_fork(void);
void gaia_mapping_after_fork(bool child);

#endif
