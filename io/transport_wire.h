/* SPDX-License-Identifier: Apache-2.0 */
/* What two transports say to each other, on every carrier. Little-endian. Each message begins with its length
 * and version; whoever receives one checks both, the operation, and the exact size that belongs to it, before
 * anything else is looked at. Nothing that a peer says is used as an address or an index unchecked. */
#ifndef GAIAFS_IO_TRANSPORT_WIRE_H
#define GAIAFS_IO_TRANSPORT_WIRE_H

#include <assert.h>
#include <stdint.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are little-endian");

#define GAIA_WIRE_VERSION 1u
#define GAIA_WIRE_MAX 4608u /* bytes of a message with its head: a page and what is said of it have room */

enum gaia_wire_op {
    GAIA_WIRE_HELLO = 1,     /* both ways, once for each queue */
    GAIA_WIRE_REFUSED,       /* instead of a HELLO: error; version says what this side speaks */
    GAIA_WIRE_USER,          /* the caller's bytes */
    GAIA_WIRE_EXPOSE,        /* accepted side only */
    GAIA_WIRE_KEEPALIVE = 7, /* as every build of this version has it */
    GAIA_WIRE_BYE,
    GAIA_WIRE_TRANSFERS, /* the local carrier's work requests and their completions */
    GAIA_WIRE_DONE,
};

struct gaia_wire_head {
    uint32_t length; /* of the whole message */
    uint16_t version;
    uint8_t op;      /* enum gaia_wire_op */
    uint8_t credits; /* messages taken since the last that this side has sent */
};

/* Fits into the private data of an RDMA connection request: 56 bytes. */
struct gaia_wire_hello {
    struct gaia_wire_head head;
    uint8_t token[16];   /* of the session: zeros in the first request, which begins it */
    uint32_t queue;      /* this one, from 0 on */
    uint32_t queues;     /* of the session */
    uint32_t depth;      /* transfers of a queue at a time */
    uint32_t timeout_ms; /* the sender's */
    int32_t error;       /* REFUSED: why, a negative errno of Linux; else 0 */
    uint32_t reserved[3];
};
static_assert(sizeof(struct gaia_wire_hello) == 56, "the private data of a connection request");

struct gaia_wire_expose {
    struct gaia_wire_head head;
    uint32_t region;
    uint32_t writable; /* 0 or 1 */
    uint64_t address;  /* what the carrier calls the region's first byte */
    uint64_t length;
    uint64_t key;
};

/* KEEPALIVE: 0. BYE: 0, or a positive errno. */
struct gaia_wire_short {
    struct gaia_wire_head head;
    uint32_t value;
    uint32_t reserved;
};

/* The local carrier: count of these follow a head. */
struct gaia_wire_transfer {
    uint64_t key;
    uint64_t address;
    uint32_t length;
    uint32_t stage; /* where in the shared buffer */
    uint32_t write; /* 0 or 1 */
    uint32_t reserved;
};
struct gaia_wire_done {
    struct gaia_wire_head head;
    uint32_t count; /* completed, in the order of their requests */
    int32_t error;  /* of the last of them: 0 or a negative errno */
};

#endif
