/* SPDX-License-Identifier: Apache-2.0 */
/* The home's half of several nodes: agents' requests, done to files that are tracked here. An agent's devices
 * are devices of this cache, whose frames are at the agent (gpu/home_node.c); reads and writes of its
 * programs count as CPUs', like those of this node; and its kernel holds pages, which are dropped wherever
 * this node's kernel would drop them. */
#ifndef GAIAFS_CACHE_HOME_H
#define GAIAFS_CACHE_HOME_H

#include <sys/queue.h>

#include "base/lock.h"
#include "cache/nodes.h"
#include "cache/reads.h"
#include "cache/writers.h"
#include "cache/cache.h"

struct cache_file;
struct home_session;

/* A file that an agent has open here. */
struct home_open {
    struct table_entry by_number;    /* first */
    LIST_ENTRY(home_open) link;      /* session->opens, under session->lock */
    LIST_ENTRY(home_open) file_link; /* file->opens, under the file's lock */
    struct home_session *session;
    uint32_t number;         /* the agent's */
    struct cache_file *file; /* in use */
    atomic_int fd;           /* its own, to write by, where the file's can't; or -1 */
    struct durable_seen seen;
    struct writers writers;       /* of the agent; under the file's lock */
    LIST_HEAD(, home_read) reads; /* under session->lock */
    unsigned references;          /* the list's and operations'; under session->lock */
};

/* A session with an agent: what it has here. */
struct home_session {
    LIST_ENTRY(home_session) link; /* nodes->agents */
    struct nodes *nodes;
    struct call_session *session;
    unsigned member;
    pthread_mutex_t lock; /* guards what follows */
    LIST_HEAD(, home_open) opens;
    struct table opens_by_number;
    LIST_HEAD(, home_client) clients;
    uint64_t entered;     /* by nodes->entered */
    uint64_t since;       /* the same by nodes_stalls(); constant from then on */
    bool told;            /* of all that is tracked here; under nodes->lock */
    _Atomic bool parting; /* no release is acknowledged any more: its devices are emptied, and it goes */
};

/* A peer has connected. -ENOMEM. */
int home_session_begin(struct nodes *nodes, struct call_session *session);
/* The peer has gone, and no request of it is being served: bytes of its devices that were not collected are
 * lost. */
void home_session_end(struct home_session *agent);
/* What agents have begun to change comes to an end, for peer_timeout at most, and nothing else begins: the
 * sessions are about to be closed, and from then on the files have other homes, whose changes a later one
 * here would undo. Reads and writes begin as long as something else is under way: it may wait for a kernel
 * that waits for one of them. */
void home_changes_end(struct nodes *nodes);
/* Serve a request of an agent. */
int home_serve(struct home_session *agent, enum node_op op, const struct node_request *request,
               struct node_reply *reply);

/* All agents know that the file is tracked here, when it returns 0; only once. Else the file must not be
 * mapped: the result is the error of an agent that lives and can't follow (-EMFILE, -ENOMEM). name: as they
 * know it. No lock is held. */
int home_announce(struct cache_file *file, const struct node_name *name);
/* Tell an agent that has entered of all files that are tracked here, except those that were announced to it
 * since it has entered. 0, or why it can't follow. No lock is held. */
int home_announce_all(struct home_session *agent);
/* The file is about to be closed: agents are told so some time later (UNFOLLOW), by a thread of its own, as
 * one that stands still takes its time. Without memory, or without nodes, they are not: they find out when
 * they open it. */
void home_untrack(const struct cache_file *file);
/* That thread: -EAGAIN; and when nodes->stop is set and calls are at their end, it is over. */
int home_tell_begin(struct nodes *nodes);
void home_tell_end(struct nodes *nodes);

/* List all files that are tracked here and that agents know of, also those that hold nothing now: those, too,
 * are announced only once. Files that were announced to all agents up to `entered` are left out; UINT64_MAX
 * lists all. As FOLLOWs, which the caller frees. -ENOMEM. */
int home_list_tracked(struct cache *cache, uint64_t entered, struct node_request **list_out,
                      size_t *count_out);

/* Bit 0, and bit 1 + m for each member m that has the file open. The file's lock is held. */
uint64_t home_kernels(const struct cache_file *file);

/* Have all kernels drop pages, this node's and those of agents that have the file open:
 * cache_host.invalidate() of each. This node's result. No lock is held. */
int home_invalidate(struct cache_file *file, off_t offset, off_t length);
/* The same of one node's kernel (0: this one's). -EIO: the node has gone. */
int home_invalidate_node(struct cache_file *file, unsigned node, off_t offset, off_t length);
/* Have the kernels of the nodes whose programs may store to the file through mappings write such stores back,
 * except one node's (0: this one's): cache_host.write_back() of each. 0, or why one that lives can't. No lock
 * is held. */
int home_write_back(struct cache_file *file, unsigned except, off_t offset, off_t length);
/* The file's size, and how often it was cut by now. Takes the file's lock. */
off_t home_size(struct cache_file *file, uint64_t *truncations_out);
/* Make all kernels know the file's size: they drop its attributes, and take the file to be as long as it is
 * now, unless it is cut meanwhile. 0 or a negative errno of one that lives. No lock is held.
 */
int home_tell_size(struct cache_file *file);
/* cache_host.peek() of the kernel of a node (0: this one). No lock is held. */
ssize_t home_peek(struct cache_file *file, unsigned node, off_t offset, size_t length, void *bytes_out);
/* The agents that have the file open are told that what was acknowledged is on storage, or lost, and that
 * this home leaves. No lock is held. */
void home_tell_handed(struct cache_file *file, bool lost);

#endif
