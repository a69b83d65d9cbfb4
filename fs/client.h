/* SPDX-License-Identifier: Apache-2.0 */
/* One client of the server: what it asks for, by messages (io/protocol.h). */
#ifndef GAIAFS_FS_CLIENT_H
#define GAIAFS_FS_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct cache_client;
struct fs;
struct token_table;

/* A client may send descriptors of anything, and whoever closes the last copy of one may have to wait without
 * limit (a socket that lingers, a file of a FUSE filesystem that does not answer). The same is true of a
 * descriptor that lies unread in the queue of a socket that is closed. No lock is held meanwhile, and only
 * the client's own thread does this, which is "outside" then: the end of the mount does not wait for it; it
 * may be abandoned, and touches nothing any more when it comes back. */
enum client_state { CLIENT_INSIDE, CLIENT_OUTSIDE, CLIENT_ABANDONED };

struct client {
    struct fs *fs;
    struct token_table *tokens;
    int alive_fd; /* of base/alive.h */
    int socket;
    struct ucred peer;
    uid_t user;                 /* as whose it counts: fs/listener.h */
    bool far;                   /* in another network namespace: its root is not root here */
    uint64_t network;           /* then: which one */
    struct cache_client *cache; /* NULL: it has not said hello with a descriptor for faults */
    int faults; /* that descriptor; -1: none. If it is the last copy, close() waits for its process's mmap
                   lock */
    int lives;  /* then: struct gaia_process; negative: none */
    _Atomic enum client_state state;
    /* Open, and being opened; CLIENT_LET_GO: none, and none can be any more. */
    _Atomic int maps;
    /* clock_now_ns() when the last was closed, or could not be opened; 0: it has asked for none. */
    _Atomic uint64_t idle_since;
};

#define CLIENT_LET_GO (-1)

void client_go_outside(struct client *client);
/* Whether the thread may go on: else it must end without touching anything. */
bool client_come_back(struct client *client);

/* Make sure that a client has no map any more, and will have none, so that nothing is lost when the caller
 * ends its connection: a program keeps a connection that it may not need again (gpu/session.h), and connects
 * anew. False: the client has a map, or has asked for none yet and may be about to. Any thread. */
bool client_let_go(struct client *client);

/* Serve a request. 0; a negative errno: the connection has ended, -EPROTO: by what was no message;
 * -ECANCELED: as client_come_back(). The client's own thread; it is inside. */
int client_serve(struct client *client);

#endif
