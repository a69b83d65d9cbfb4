/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's half of several nodes: files whose home is another node. The home is asked for all that
 * programs here do to these files (struct cache_file with `far`), their maps are maps at the home (struct
 * cache_map with `far`), and the agent does for the home what this is to do to frames of this node's devices,
 * to its clients and to its kernel.
 *
 * All functions return 0 or more, or a negative errno; -EIO: the home can't be asked. No lock is held. */
#ifndef GAIAFS_CACHE_AGENT_H
#define GAIAFS_CACHE_AGENT_H

#include <sys/queue.h>

#include "cache/client.h"
#include "cache/map.h"
#include "cache/nodes.h"

struct agent_file {
    struct table_entry by_number; /* first */
    LIST_ENTRY(agent_file) link;  /* nodes->files */
    struct cache_file *file;
    unsigned member;              /* the home */
    struct call_session *session; /* a reference */
    uint32_t number;
    unsigned users;    /* requests of the home under way; under nodes->lock, as is the next */
    unsigned dropping; /* calls under way that may have the home drop pages: DROPPING_MAX */
    /* The home leaves, and what it has acknowledged is on storage, or was said to be lost. */
    _Atomic bool handed;
    /* What the home has said last, unasked or in answer to a change that a program of this node has made:
     * what it says with fewer truncations is older. Under nodes->lock. */
    off_t size;
    uint64_t truncations;
    struct timespec cut_known; /* until then the data directory's filesystem may not know of the last one */
    bool said;                 /* anything: what it says next with more truncations is a cut since then */
    bool cut; /* by a program of this node: its kernel knows more than what was said before */
};

struct agent_frames {
    LIST_ENTRY(agent_frames) link; /* nodes->frames */
    struct call_session *session;  /* whose they are; a reference */
    uint32_t number;
    struct gaia_frames *frames;
    bool read_only; /* of a device that scans: no client can store to them */
    /* What clients get as the shared state of a map: it always says "ask", and knows of cuts. */
    struct gaia_shared_state *state;
    int state_fd;
    unsigned references; /* the list's, maps', and requests' under way; under nodes->lock */
};

struct agent_map {
    struct agent_file *file; /* the map's use of the cache_file keeps it */
    struct agent_frames *frames;
    unsigned device;
    uint32_t id; /* at the home */
};

/* Have the home of a name track its file; when this returns, the home has told everybody, this node too. */
int agent_track(struct nodes *nodes, const struct node_name *name);

int agent_file_open(struct cache *cache, const struct node_name *name, struct cache_file *file);
void agent_file_close(struct cache_file *file);

/* As cache_file_*(). */
ssize_t agent_read(struct cache_file *file, void *buffer, size_t length, off_t offset, unsigned flags,
                   struct cache_read *read_out);
void agent_read_end(struct cache_file *file, const struct cache_read *read);
ssize_t agent_write(struct cache_file *file, const void *buffer, size_t length, off_t offset, unsigned flags);
int agent_truncate(struct cache_file *file, off_t size);
int agent_fallocate(struct cache_file *file, int mode, off_t offset, off_t length);
off_t agent_seek(struct cache_file *file, off_t offset, int whence);
int agent_sync(struct cache_file *file, bool data_only);
int agent_flush(struct cache_file *file);
off_t agent_size(struct cache_file *file, bool *cut_out);
void agent_tell_size(struct cache_file *file);
void agent_opened(struct cache_file *file);
int agent_writers(struct cache_file *file, bool any, uint64_t number, bool wait);

/* In agent_map.c, as cache_map_*(). */
int agent_map_open(struct cache_map *map, const struct cache_map_request *request, int *frames_fd_out,
                   int *state_fd_out);
int agent_map_attach(struct cache_map *map, uint64_t address, struct gaia_frames_map **frames_out);
/* The last reference: nobody uses the map. */
void agent_map_end(struct cache_map *map);
/* op: NODE_ACQUIRE, NODE_RELEASE, NODE_MAP_SYNC or NODE_ADVISE. changes_out, poisonings_out: of the first. */
int agent_map_do(struct cache_map *map, enum node_op op, uint64_t offset, uint64_t bytes, unsigned advice,
                 uint64_t *changes_out, uint64_t *poisonings_out);
void agent_fault(struct cache_map *map, const struct gaia_fault *fault);
/* Memory of a GPU of this node is needed: the next home elsewhere that can do so gives up so many frames of
 * files that nobody maps there. next: the member's number, 0 at first. Returns whether there is such a
 * home. */
bool agent_room(struct nodes *nodes, unsigned device, uint64_t pages, unsigned *next);
/* A client that may have maps of far files has ended. */
void agent_client_gone(struct cache *cache, struct cache_client *client);

/* Serve a request of a home. along: the page's bytes that came with it, or NULL. */
int agent_serve(struct nodes *nodes, struct call_session *session, enum node_op op,
                const struct node_request *request, const uint8_t *along);
/* In agent_frames.c: those of NODE_FRAMES and NODE_CLIENTS. */
int agent_frames_serve(struct nodes *nodes, struct call_session *session, enum node_op op,
                       const struct node_request *request, const uint8_t *along);
struct agent_frames *agent_frames_get(struct nodes *nodes, const struct call_session *session,
                                      uint32_t number);
void agent_frames_put(struct nodes *nodes, struct agent_frames *frames);
/* A home's session has ended: its frames go, */
void agent_frames_end(struct nodes *nodes, const struct call_session *session);
/* and other homes are found for its files. */
void agent_move_files(struct nodes *nodes, const struct call_session *session);

#endif
