/* SPDX-License-Identifier: Apache-2.0 */
/* The client server: libgaia's processes and gaiactl talk to the daemon here, over a SOCK_SEQPACKET UNIX
 * socket in the abstract namespace. Its name, and the token that lets a process map a file, come by an ioctl
 * on an open file of the mount (docs/design.md, section 10). */
#ifndef GAIAFS_FS_SERVER_H
#define GAIAFS_FS_SERVER_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>

struct fs;
struct inode;
struct handle;
struct server;

/* Start listening and serving. Clients see the daemon alive as long as the calling thread lives, which also
 * stops the server. 0 or a negative errno. */
int server_start(struct fs *fs, struct server **server_out);
/* Ends every client (their calls give ENOTCONN), waits for the threads, frees. NULL is allowed. false: some
 * wait for what a client does, and have not ended after some seconds: they are left (fs/left.h), and nothing
 * is freed. */
bool server_stop(struct server *server);

/* Answer FUSE_IOCTL (always replies to req). handle is NULL on a directory. [FUSE] */
void server_ioctl(struct server *server, fuse_req_t req, struct inode *inode, struct handle *handle,
                  unsigned cmd, const void *in, size_t in_size, size_t out_size);
/* A handle is about to be freed. */
void server_forget(struct server *server, struct handle *handle);

#endif
