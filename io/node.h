/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes say to each other, over io/call.h: an *agent* (the end that connected) to the *home* of a file,
 * and the home to its agents. One request and one reply of a fixed size; bytes go through the session's
 * slots. The classes are such that an operation never waits for one of its own class, nor of a class that
 * waits for its own:
 *
 *   NODE_CALLS waits for all others, and for NODE_CALLS of the other direction in one case (a home answers
 *   TRACK and HELLO when all agents have answered FOLLOW, which calls nobody but NODE_IO and NODE_PINGS;
 *   HANDED and UNFOLLOW wait for nobody);
 *   NODE_SYNCS waits for storage, and for NODE_KERNEL of all nodes, for 30 s: maps and releases of other
 *   files do not wait behind that;
 *   NODE_ACQUIRES waits for all that NODE_CALLS waits for but those, and for NODE_FLUSHES of nodes that may
 *   stand still: nor do they wait behind that;
 *   NODE_FAULTS waits for NODE_FRAMES, NODE_CLIENTS and, to make room, NODE_KERNEL and NODE_HOLDS; some
 *   NODE_CALLS wait for a kernel or for each other, and a touch must not wait behind those;
 *   NODE_IO waits for NODE_FRAMES, and a WRITE for NODE_HEALS, for a bounded time; where its node has stood
 *   still, operations that change bytes also wait for NODE_PINGS and NODE_CALLS, no longer than others wait
 *   for a node, unless the asking node has met it since (cache/home_open.c); there all that may collect waits
 *   likewise, of whatever class (cache/home.c): the NODE_CALLS that it waits for, HELLO and FOLLOW, do not;
 *   NODE_KERNEL waits for the kernel of the agent, which waits for NODE_IO;
 *   NODE_FLUSHES is like NODE_KERNEL, for acquires, which programs of that node can hold up for longer:
 *   releases must not wait behind those;
 *   NODE_CLIENTS waits for the mmap lock of a client, which may wait for NODE_IO;
 *   NODE_HEALS waits for NODE_FRAMES, and a PEEK for the kernel of the agent, for a bounded time;
 *   NODE_SCANS is like NODE_FRAMES and NODE_HOLDS, for frames on a device that scans, and waits for a GPU
 *   that others use;
 *   NODE_HOLDS waits for the lock of a soft device's memory, which a client may have for as long as it likes
 *   (cache/fit.h). So whoever waits for NODE_HOLDS waits for that file's clients, as on one node; all others
 *   do not, and no session ends because of it, unless many files are held so (gpu/home_node.c);
 *   NODE_FRAMES and NODE_PINGS wait for nobody.
 */
#ifndef GAIAFS_IO_NODE_H
#define GAIAFS_IO_NODE_H

#include <assert.h>
#include <errno.h>
#include <stdint.h>

#define NODE_VERSION 19u

/* The answer to what is asked of a file that the home has given up: another node is its home now. */
#define NODE_GAVE_UP (-EREMOTE)

enum node_class {
    NODE_FRAMES,
    NODE_HOLDS,
    NODE_SCANS,
    NODE_CLIENTS,
    NODE_KERNEL,
    NODE_FLUSHES,
    NODE_HEALS,
    NODE_IO,
    NODE_FAULTS,
    NODE_SYNCS,
    NODE_ACQUIRES,
    NODE_CALLS,
    NODE_PINGS,
};

/* How long a peer that lives needs to answer at most, in ms: after that it is given up. 0: as long as it
 * takes. */
static inline unsigned node_class_ms(enum node_class class)
{
    return class == NODE_FRAMES || class == NODE_HEALS ? 20000 : class == NODE_SCANS ? 120000 : 0;
}

/* Offsets and lengths are in bytes of the file, those of frames in pages. A field that an operation does not
 * name is 0, and not looked at. file, frames, client: numbers, of this session. */
enum node_op {
    /* To the home. NODE_CALLS: */
    NODE_HELLO = 1, /* value: epoch of the members; name: the agent's own; offset: NODE_VERSION;
                       flags: NODE_LATE_KERNEL, NODE_MET, NODE_SERVES; address: its clock, CLOCK_REALTIME in
                       ns; length: XXH3-64 of its data directory's name, 0: not said; client: the
                       lower half of member_hash() of whom it is for, likewise. Answered when the agent
                       has been told (FOLLOW) of every file that this home tracks.
                       -EPROTONOSUPPORT: their versions differ, or their lists, and the agent is just being
                       mounted; -EPERM: HELLO is for another node; -EMEDIUMTYPE: their data directories
                       differ, and it is just being mounted, or not listed; else -EREMCHG: the home's list
                       lacks it; -ENOLINK: likewise, and the home is at odds with others, or with the agent,
                       as it can't meet it; -ENONET: likewise, and it can't tell who was left behind, or the
                       agent was, whatever others say of the home */
    NODE_TRACK,     /* name: begin to track the file; answered when all agents follow. -ESTALE: this is no
                       home of it -> value[0]: member_hash() of the one that it follows, or 0; value[1]: the
                       generation */
    NODE_MAP,       /* file, client, device, offset, length, flags: NODE_MAP_*, value: pages that the device
                       has for this home -> value[0]: map, value[1]: frames. -EINPROGRESS: to be asked again,
                       as the home before may not have let go of the file yet */
    NODE_ATTACH,    /* client, map, address, flags: NODE_TRAPS */
    NODE_UNMAP,     /* client, map */
    NODE_GONE,      /* client: it has ended */
    NODE_FAULT,     /* of NODE_FAULTS: client, address, flags: NODE_FAULT_*, thread; nobody waits for the
                       answer */
    NODE_ACQUIRE,   /* of NODE_ACQUIRES: client, map, offset, length -> value[0]: NODE_ACQUIRE_*; value[1]:
                       another number than last time if anything has changed since */
    NODE_RELEASE,   /* client, map, offset, length */
    NODE_MAP_SYNC,  /* client, map, offset, length */
    NODE_ADVISE,    /* client, map, offset, length, flags: GAIA_ADV_* */
    NODE_SYNC,      /* of NODE_SYNCS: file, flags: 1: data only */
    NODE_FLUSH,     /* of NODE_SYNCS: file: others' kernels drop what they hold that is older than the file's
                       bytes */
    NODE_LEAVE,     /* the agent's devices are emptied: what they hold is collected */
    NODE_ROOM,      /* device, length: so many of its pages are needed for something else -> value[0]: how
                       many were given up, of files that nobody maps there */
    /* NODE_IO: */
    NODE_OPEN,     /* name; file: the number that it shall have -> value[0]: 1 as if HANDED had been said, and
                      twice what TRUNCATE answers; value[1]: its size. -ESTALE: it is not tracked here, and
                      as to TRACK */
    NODE_CLOSE,    /* file */
    NODE_OPENED,   /* file: a program opens it, and the agent's kernel drops its pages; the home looks whether
                      the file changed behind the mounts */
    NODE_WRITERS,  /* file, flags: 1: programs of the agent have it open for writing, and their stores through
                      mappings come when they are asked for (WRITE_BACK); 0: none has any more. value: of two
                      such messages the one with the higher number is newer */
    NODE_READ,     /* file, offset, length, slot, flags: CACHE_IO_*, value: a number for READ_END -> bytes */
    NODE_WRITE,    /* file, offset, length, slot, flags: CACHE_IO_* -> bytes, and as TRUNCATE */
    NODE_TRUNCATE, /* file, length -> value[0]: how often it was cut by now, value[1]: its size */
    NODE_FALLOCATE, /* file, offset, length, flags: mode -> as TRUNCATE */
    NODE_SEEK,      /* file, offset, flags: whence -> value[0]: offset */
    /* NODE_HEALS: */
    NODE_READ_END, /* file, value: the agent's kernel has the READ's answer */

    /* To an agent. NODE_CALLS: */
    NODE_FOLLOW,   /* name, value: generation, 1 to INT64_MAX: this home tracks the file. -EBUSY: so does the
                      agent, or another home that it follows, and of a higher one */
    NODE_UNFOLLOW, /* name, value: generation: this home tracks the file no longer, unless it has said FOLLOW
                      with a higher one */
    NODE_HANDED,   /* file: the home leaves; it has brought to storage what it had of the file, and will do so
                      with what it acknowledges from now on. flags: NODE_HANDED_LOST: it could not */
    /* NODE_KERNEL: */
    NODE_INVALIDATE, /* file, offset, length: drop the kernel's pages. offset -1: attributes only; then length
                        is the size that the file has, and value counts its truncations (both 0: not said) */
    NODE_WRITE_BACK, /* of NODE_FLUSHES: file, offset, length: when this is answered, what programs have
                        stored there through mappings has come by WRITEs. -EAGAIN: that can't be asked for;
                        INVALIDATE of the range does the same, and more */
    /* NODE_HEALS: */
    NODE_PEEK, /* file, offset, length (at most a page), slot -> bytes */
    /* NODE_FRAMES; offset and length in pages: */
    NODE_FRAMES_OPEN,  /* frames: the number that they shall have; device, length; flags:
                          NODE_FRAMES_READ_ONLY, of a device that scans (gpu/device.h) */
    NODE_FRAMES_CLOSE, /* frames */
    NODE_RESIZE,       /* of NODE_HOLDS: frames, length */
    NODE_PLACE,        /* frames, offset, length, slot; flags: NODE_PLACE_EXPOSES, client, address: and then
                          as EXPOSE with stores trapped, and of its class. One page may come along (struct
                          node_page_request): no slot is looked at then */
    NODE_FETCH,        /* frames, offset, length, slot */
    NODE_DIGESTS,      /* frames, offset, length, slot: of the bytes that FETCH would bring */
    NODE_DROP,         /* of NODE_HOLDS: frames, offset, length */
    NODE_CLEAR,        /* frames, offset, value: from which byte of the page */
    NODE_CUT,          /* frames, value: the file has become shorter, and ends at this byte */
    /* Likewise, of devices that scan: */
    NODE_MODIFIED, /* frames, offset, length, slot: a bit for each page */
    NODE_GRANTED,  /* frames, offset, length, slot: a digest for each page; flags: NODE_NOT_KNOWN: none */
    NODE_RECALL,   /* frames, offset, length, slot */
    NODE_GATHER,   /* frames, length: how many pages; slot: their numbers, and from NODE_LIST_BYTES on the
                      bytes */
    NODE_PATCH,    /* frames, length, slot: likewise, what they were, and behind all that what they become */
    /* NODE_CLIENTS; likewise: */
    NODE_PROTECT,   /* frames, offset, length */
    NODE_WAKE,      /* frames, offset, length */
    NODE_EXPOSE,    /* frames, client, address, offset, length, flags: 1: stores are trapped */
    NODE_UNPROTECT, /* frames, client, address, offset, length */
    NODE_POISON,    /* frames, client, address, offset, length, thread */
    NODE_REFUSE,    /* frames, client, address, offset, thread */
    /* To either, of NODE_PINGS: */
    NODE_PING, /* answered at once: a node that answers has not given up the asking one, and will not for a
                  while -> of a home, value[0]: bit i: it has a session with the i-th of its members;
                  value[1]: their epoch. value: n, from 1 on -> value[0]: XXH3-64 of the name of the n-th of
                  them, if there is a session, else 0; value[1]: how many they are */
    NODE_OP_LAST = NODE_PING,
};

#define NODE_DEVICE_PAGES_MIN 64u /* that a device has for a home */
#define NODE_LATE_KERNEL 1u       /* base/kernel.h: it writes back late */
#define NODE_MET 2u               /* it has met this node since it was mounted, when their lists agreed */
#define NODE_SERVES 4u            /* its mount serves: it was let in by all that lived when it came */
#define NODE_ACQUIRE_POISONED 1u  /* pages whose touch has failed must be refreshed */
#define NODE_ACQUIRE_FLUSH 2u     /* kernels have something older: it has returned when a FLUSH has */
#define NODE_MAP_WRITABLE 1u
#define NODE_MAP_RESIDENT 2u
#define NODE_TRAPS 1u
#define NODE_HANDED_LOST 1u
#define NODE_PLACE_EXPOSES 1u
#define NODE_FRAMES_READ_ONLY 1u
#define NODE_NOT_KNOWN 1u
#define NODE_LIST_BYTES 4096u
#define NODE_FAULT_WRITE 1u
#define NODE_FAULT_PROTECTION 2u

/* How nodes name a file: by its handle on the data directory's filesystem, the same on all of them. */
#define NODE_NAME_MAX 128u
struct node_name {
    int32_t type;
    uint32_t length; /* 1 to NODE_NAME_MAX */
    uint8_t bytes[NODE_NAME_MAX];
};

struct node_request {
    uint32_t file, frames, client, map, device, flags, slot, thread;
    int64_t offset;
    uint64_t length, address, value;
    struct node_name name;
};
static_assert(sizeof(struct node_request) == 64 + sizeof(struct node_name), "no padding");

/* PLACE of one page, and its bytes. */
#define NODE_PAGE_BYTES 4096u
struct node_page_request {
    struct node_request request;
    uint8_t bytes[NODE_PAGE_BYTES];
};

struct node_reply {
    uint64_t value[2];
};

/* The result of a call, for the caller on this node: a peer can answer anything. A number that is no errno,
 * or that would mean something else to its receiver, becomes EIO: after ENOSYS a kernel never asks again, for
 * any file; with a number of 512 or more FUSE's requests are not answered at all; by EPROTO a program is
 * taken for one that talks nonsense. */
static inline int node_result(int result)
{
    return result < -EHWPOISON || result == -ENOSYS || result == -EPROTO ? -EIO : result;
}

#endif
