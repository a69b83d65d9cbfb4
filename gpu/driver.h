/* SPDX-License-Identifier: Apache-2.0 */
/* A device as libgaia sees it, and the client's half of its driver: what only the process that maps can do.
 * All calls but map() may come from any thread, map() from the one that maps. */
#ifndef GAIAFS_GPU_DRIVER_H
#define GAIAFS_GPU_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "gpu/cuda_device.h"
#include "gpu/cuda_search.h"
#include "io/message.h"

struct gaia_device;
struct gaia_mapping;
struct stream_calls;

struct gaia_driver {
    /* Map the frames: reply is the daemon's to MAP, frames its descriptor of them, or -1. Sets
     * mapping->address. 0 or a negative errno. */
    int (*map)(struct gaia_mapping *mapping, const struct gaia_message *reply, int frames);
    /* Unmap for good; touches that wait for the daemon end. What the program has put in place of blocked
     * parts stays. */
    void (*unmap)(struct gaia_mapping *mapping);
    /* Nobody uses this part of the mapping any more; its addresses stay taken. 0, or -ENOMEM: all is as it
     * was. */
    int (*block)(struct gaia_mapping *mapping, void *address, size_t length);
    /* Likewise, where there is no memory to block it: for what is an extent as a whole. NULL: block() never
     * fails for want of it. */
    int (*bar)(struct gaia_mapping *mapping, void *address, size_t length);
    /* The daemon is gone: touches of a part fail from now on, where the device can make them fail. */
    void (*kill)(struct gaia_mapping *mapping, void *address, size_t length);
    /* Touches of a part that were refused are tried again. NULL: none are. */
    void (*refresh)(struct gaia_mapping *mapping, void *address, size_t length);
    /* What kernels have stored, and nobody sees yet, becomes stores that the daemon knows of: before an
     * acquire, a release, a sync, and the end. Kernels have ended. NULL: there are no such stores. 0, -EIO,
     * or what settle() says. */
    int (*collect)(struct gaia_mapping *mapping);
    /* After an acquire that found changes: kernels see nothing of a part any more but what is brought anew.
     * NULL: nothing need be done for that here. 0 or -EIO. */
    int (*forget)(struct gaia_mapping *mapping, uint64_t offset, uint64_t length);
    /* Wait for all that the program has given the device to do. NULL: nothing is asynchronous. 0, -EBUSY (a
     * stream is being captured: it has not waited), or -EIO. */
    int (*settle)(const struct gaia_device *device);
    /* Wait for what calls that have returned may have left on its way to the device, as long as nobody's
     * capture is disturbed. Before unmap(). NULL: they leave nothing. */
    void (*drain)(const struct gaia_device *device);
    /* Whether nothing was stored to a part that the daemon would find: for a device that does not report
     * stores, once the kernels that store have ended. False: the daemon must be asked. NULL: mapping->state
     * tells of stores. */
    bool (*is_untouched)(struct gaia_mapping *mapping, uint64_t offset, uint64_t length);
    /* Have fn(context) called when the stream gets there, and the stream wait for it. NULL: no streams. */
    int (*enqueue)(const struct gaia_device *device, void *stream, void (*fn)(void *context), void *context);
    /* Whether the device still works. After a kernel that went wrong it calls nothing in a stream any more.
     * NULL: it always works. 0 or -EIO. */
    int (*check)(const struct gaia_device *device);
    bool soft;   /* the frames are those of a soft device */
    bool places; /* pages are there when gaia_mmap() returns: no touch would bring them */
};

struct gaia_device {
    LIST_ENTRY(gaia_device) link; /* of those that are open here; under the lock of mapping.c's table */
    _Atomic unsigned references;  /* the one that has opened it, its mappings, and calls: these may outlast a
                                     close */
    bool closed;                  /* under that lock: it is not in the list any more */
    char name[32];
    uint64_t owner; /* the process that opened it: process_here() */
    const struct gaia_driver *driver;
    struct cuda_device cuda;    /* of cuda */
    struct cuda_module module;  /* of cuda */
    struct cuda_search search;  /* of cuda */
    struct stream_calls *calls; /* that are in its streams */
};

/* In gaia.c. The last reference closes it. */
void gaia_device_put(struct gaia_device *device);

extern const struct gaia_driver gaia_soft_driver, gaia_cuda_driver;
/* For a mapping on cuda with GAIA_DEMAND. */
extern const struct gaia_driver gaia_demand_driver;

#endif
