/* SPDX-License-Identifier: Apache-2.0 */
/* Send and receive one message with up to GAIA_MESSAGE_FDS descriptors over a SOCK_SEQPACKET socket. */
#ifndef GAIAFS_IO_MESSAGE_H
#define GAIAFS_IO_MESSAGE_H

#include <stdbool.h>
#include <sys/socket.h>

#include "io/protocol.h"

#define GAIA_MESSAGE_FDS 2

/* Fills length and version in. 0, -EPIPE or -ECONNRESET (the peer is gone), or another negative errno. Never
 * raises SIGPIPE. */
int gaia_message_send(int socket, struct gaia_message *message, const int *fds, unsigned fd_count);

/* Waits for a message; descriptors come close-on-exec, missing ones are -1. Surplus descriptors are closed.
 * 0; -EMFILE (there is a message, which is kept, but this process has no room for its descriptors: all of
 * them are gone); -ENOTCONN (the peer is gone); -EPROTO (not a message of this version; nothing is kept); or
 * a negative errno. */
int gaia_message_receive(int socket, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS]);
/* The same without waiting; -EAGAIN: no message is there. */
int gaia_message_receive_now(int socket, struct gaia_message *message_out, int fds_out[GAIA_MESSAGE_FDS]);

/* Of what recvmsg() has received: keep the first descriptors, and close the rest, as a peer may send what it
 * likes. How many came; *lost_out: one of the first could not be kept. */
size_t gaia_message_take_fds(struct msghdr *header, int *fds_out, unsigned most, bool *lost_out);

#endif
