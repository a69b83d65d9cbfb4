/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are put into a device's stream, where they run when it gets there. */
#ifndef GAIAFS_GPU_STREAM_H
#define GAIAFS_GPU_STREAM_H

#include <stdatomic.h>

#include "gpu/piece.h"

struct CUstream_st;

/* What calls that were put into a device's streams say. They may outlast the device: who closes one that is
 * broken does not wait for them. */
struct stream_calls {
    _Atomic unsigned references; /* the device's, and one for each call */
    _Atomic unsigned count;      /* calls that have not ended */
    _Atomic int error;           /* the first; 0: none */
};

/* Of a new device, with its reference. NULL: no memory. */
struct stream_calls *stream_calls_open(void);
void stream_calls_put(struct stream_calls *calls);

/* Have fn called for every piece of the range, in the order of the stream; errors go to device->calls.
 * On a device without streams: at once (stream: NULL). -EINVAL, -ENOMEM, -EOPNOTSUPP (what is mapped on
 * demand), or what the driver says. From any thread. */
int stream_put(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream,
               int (*fn)(struct gaia_piece *piece));

/* Whether this thread runs a call that was put into a stream: it has that stream's order, and must not call
 * the driver. */
bool stream_is_here(void);

#endif
