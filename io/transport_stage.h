/* SPDX-License-Identifier: Apache-2.0 */
/* What the local carrier (transport_local.c) is made of: datagrams, and the stage, a piece of memory that the
 * two ends of a queue share. */
#ifndef GAIAFS_IO_TRANSPORT_STAGE_H
#define GAIAFS_IO_TRANSPORT_STAGE_H

#include <sys/un.h>

#include "io/transport_internal.h"

#define STAGE_LENGTH ((uint32_t)4 << 20) /* two transfers of the longest kind */

/* A name in the abstract namespace. 0, -EINVAL. */
int local_address(const char *name, struct sockaddr_un *address_out, socklen_t *length_out);
/* A socket of the kind that the carrier uses. 0, or a negative errno. */
int local_socket(int *fd_out);

/* One datagram, with a descriptor when fd_to_send is one. 0; -EAGAIN; or another errno. That the peer is gone
 * is found by reading: what it sent last is still there. */
int datagram_send(int fd, const void *bytes, size_t length, int fd_to_send);
/* One datagram: its bytes (GAIA_WIRE_MAX + 1 when it was longer); 0: the peer is gone; -EAGAIN: none; or
 * another errno. *fd_out: a descriptor that came along, or -1; -EMFILE: there was no place for it. */
ssize_t datagram_receive(int fd, unsigned char bytes[GAIA_WIRE_MAX + 1], int *fd_out);

/* A new stage and its descriptor; the peer's, from its descriptor (-EPROTO: it is not sealed). The mapping is
 * STAGE_LENGTH bytes. 0, or a negative errno. */
int stage_new(int *fd_out, unsigned char **stage_out);
int stage_from(int fd, unsigned char **stage_out);

/* The part of a stage that is in use: [begin, end) or, wrapped, [begin, STAGE_LENGTH) and [0, end). Places
 * are given back in the order in which they were taken. */
struct stage_ring {
    uint32_t begin, end;
};
/* A place for length bytes; empty: nothing is in use. False: no room. */
bool stage_take(struct stage_ring *ring, bool empty, uint32_t length, uint32_t *place_out);
void stage_give_back(struct stage_ring *ring, uint32_t place, uint32_t length);

#endif
