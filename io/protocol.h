/* SPDX-License-Identifier: Apache-2.0 */
/* What libgaia and gaiactl say to the daemon: each request and each reply is one message of a fixed size,
 * over a SOCK_SEQPACKET socket, with descriptors beside it; and the state that a replica shares with its
 * clients. */
#ifndef GAIAFS_IO_PROTOCOL_H
#define GAIAFS_IO_PROTOCOL_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>

#define GAIA_PROTOCOL_VERSION 4

/* The ioctl on an open file (or, for the socket's name only, a directory) of the mount. */
struct gaia_ioctl_token {
    uint32_t version;  /* out: GAIA_PROTOCOL_VERSION */
    uint32_t network;  /* out: reach_network() of the daemon; 0: not known */
    char socket[64];   /* out: name in the abstract namespace, without the leading NUL, NUL-terminated */
    uint8_t token[16]; /* out: for GAIA_OP_MAP, once, by this process; zero for a directory */
};
#define GAIA_IOCTL_TOKEN _IOR('G', 1, struct gaia_ioctl_token)

/* For a program in another network namespace than the daemon's, where anybody may have taken the daemon's
 * name: the daemon listens for the program there (fs/listener.h), for some seconds, and tells the name. The
 * daemon's first message to a program that connects is a HELLO with the secret in place of a token: without
 * it, the listener was no longer the daemon. On the same files as the other ioctl. EPERM (it can't enter that
 * namespace), ESRCH (it does not see the program), EUSERS (there are as many clients, or its network
 * namespace has, as there may be), ENOMEM and the like. */
struct gaia_ioctl_meet {
    uint32_t version;   /* out: GAIA_PROTOCOL_VERSION */
    uint32_t reserved;  /* out: 0 */
    char socket[64];    /* out: as above */
    uint8_t secret[16]; /* out */
};
#define GAIA_IOCTL_MEET _IOR('G', 2, struct gaia_ioctl_meet)

/* The names, abstract ones, at which daemons listen for processes that use devices (fs/programs.h), by
 * number; each has one of them, while there are any left. Nothing is sent there. */
#define GAIA_PROGRAMS_SOCKET "gaiafs-programs-%u"
#define GAIA_PROGRAMS_SOCKETS 64u

enum gaia_op {
    GAIA_OP_HELLO = 1, /* flags: GAIA_HELLO_*; with a descriptor for faults, if there is one: this client will
                          map -> a descriptor: the page of base/alive.h. A client that is one too many gets
                          the answer EUSERS, whatever it asks, and the end of the connection */
    GAIA_OP_MAP, /* token, device, offset, bytes, prot, flags; value[0], value[1]: the UUID of a GPU -> map;
                    descriptors: frames, shared state; value[0]: bytes of a chunk (then there is no
                    descriptor of frames), or 0. ECONNABORTED: the connection is about to end, as it had no
                    map and others need its place: by a new one */
    GAIA_OP_ATTACH,  /* map, address: the frames are mapped there and registered for faults. -ESTALE: the
                        file's home has gone since MAP; to be mapped anew */
    GAIA_OP_UNMAP,   /* map */
    GAIA_OP_ACQUIRE, /* map, offset, bytes -> value[0]: changes; value[1]: how many touches were refused since
                        the map was made: when that number has grown, what is not there must be refreshed */
    GAIA_OP_RELEASE, /* map, offset, bytes */
    GAIA_OP_SYNC,    /* map, offset, bytes */
    GAIA_OP_ADVISE,  /* map, offset, bytes, flags: GAIA_ADV_* */
    GAIA_OP_STAT, /* device, value[0], value[1] as for MAP -> value[]: the fields of struct gaia_stat in order
                   */
    GAIA_OP_DUMP, /* -> a descriptor: the statistics as JSON */
    GAIA_OP_CHUNK, /* map, flags: GAIA_CHUNK_*, value[0]: the number of a chunk, of the file -> a
                      descriptor of its memory; value[0]: bytes of its digests, with a descriptor of theirs,
                      or 0 */
    GAIA_OP_LAST = GAIA_OP_CHUNK,
};

/* The client's kernel can map pages write protected (UFFDIO_CONTINUE_MODE_WP). */
#define GAIA_HELLO_TRAPS 1u
/* The client will map, with or without a descriptor for faults. */
#define GAIA_HELLO_MAPS 2u

/* Also asks for the memory with the digests of the bytes that the chunk's pages were granted with, a struct
 * gaia_digest for each page, zero where nothing was granted: so the client looks for stores by itself. Where
 * the daemon has none to give, the client goes without. */
#define GAIA_CHUNK_DIGESTS 1u

struct gaia_message {
    uint32_t length;  /* of the whole message: sizeof(struct gaia_message) */
    uint16_t version; /* GAIA_PROTOCOL_VERSION */
    uint16_t op;      /* enum gaia_op; a reply repeats it */
    int32_t error;    /* reply: 0 or a negative errno; request: 0 */
    uint32_t map;
    uint64_t address; /* client addresses, bytes */
    uint64_t offset;  /* of the file, bytes */
    uint64_t bytes;
    uint32_t prot;
    uint32_t flags;
    char device[32]; /* NUL-terminated */
    uint8_t token[16];
    uint64_t value[20];
};
static_assert(sizeof(struct gaia_message) == 256, "messages have one size");

/* A page of memory for each replica (a file on a device), read only for clients: it lets acquire and release
 * return without a message when there is nothing to do. */
#define GAIA_CUTS_KEPT 256u

struct gaia_shared_state {
    _Atomic uint64_t stored;     /* pages that a release would have to look at, and releases under way */
    _Atomic uint64_t changes;    /* counts whatever may have put a page of the replica out of date */
    _Atomic uint64_t checked_ns; /* CLOCK_MONOTONIC when the backing file was last looked at */
    _Atomic uint64_t timeout_ns; /* how old that may be */
    /* Counts releases of stores to it, by any client: for those who have bytes of it elsewhere. */
    _Atomic uint64_t releases;
    _Atomic uint64_t unfound; /* of a device that scans: what a release has to see to though no page's digest
                                 tells of it. Releases under way, kernels that have not been told, pages of
                                 which nobody knows what they were granted with, a file that was given up */
    _Atomic uint64_t crossed; /* counts pages that the kernel has written back while the replica had stores to
                                 them that were not released: CPUs store to them through mappings */
    _Atomic uint64_t cuts;    /* counts how often the file has become shorter: for who has bytes elsewhere */
    _Atomic uint64_t cut_most;                 /* the shortest that it became, if it ever did */
    _Atomic uint64_t cut_ends[GAIA_CUTS_KEPT]; /* and with each of the last cuts, by its number */
};
static_assert(sizeof(struct gaia_shared_state) <= 4096, "it is a page");

#endif
