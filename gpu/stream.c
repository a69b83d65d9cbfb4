/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/stream.h"

#include <errno.h>
#include <stdlib.h>

#include "gpu/driver.h"

static __thread bool in_stream; /* this thread runs a call that was put into a stream: it has its order */

bool stream_is_here(void)
{
    return in_stream;
}

struct stream_calls *stream_calls_open(void)
{
    struct stream_calls *calls = calloc(1, sizeof *calls);

    if (calls)
        calls->references = 1;
    return calls;
}

void stream_calls_put(struct stream_calls *calls)
{
    if (atomic_fetch_sub(&calls->references, 1) == 1)
        free(calls);
}

static void calls_begin(struct stream_calls *calls)
{
    atomic_fetch_add(&calls->references, 1);
    atomic_fetch_add(&calls->count, 1);
}

static void calls_end(struct stream_calls *calls)
{
    atomic_fetch_sub(&calls->count, 1);
    stream_calls_put(calls);
}

struct stream_call {
    struct gaia_device *device; /* what mappings are looked for by: it may be gone */
    struct stream_calls *calls; /* a reference */
    void *addr;
    size_t length;
    int (*fn)(struct gaia_piece *piece);
};

/* On a thread of the driver's, which must not call it: what is done here are messages to the daemon. */
static void run_in_stream(void *context)
{
    struct stream_call *call = context;
    int none = 0;

    in_stream = true;
    int error = piece_each(call->addr, call->length, call->device, false, call->fn);
    in_stream = false;
    if (error)
        atomic_compare_exchange_strong(&call->calls->error, &none, error);
    calls_end(call->calls);
    free(call);
}

/* What is mapped on demand is collected by kernels, which a call in a stream can't launch. */
static int check_enqueue(struct gaia_piece *piece)
{
    return piece->mapping->driver == &gaia_demand_driver ? -EOPNOTSUPP : 0;
}

int stream_put(void *addr, size_t length, struct gaia_device *device, struct CUstream_st *stream,
               int (*fn)(struct gaia_piece *piece))
{
    int error = piece_each(addr, length, device, false, check_enqueue);

    if (error)
        return error;
    if (!device->driver->enqueue)
        return stream ? -EINVAL : piece_each(addr, length, device, false, fn);
    struct stream_call *call = malloc(sizeof *call);
    if (!call)
        return -ENOMEM;
    *call = (struct stream_call){
        .device = device, .calls = device->calls, .addr = addr, .length = length, .fn = fn};
    calls_begin(call->calls);
    error = device->driver->enqueue(device, stream, run_in_stream, call);
    if (error) {
        calls_end(call->calls);
        free(call);
    }
    return error;
}
