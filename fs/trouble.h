/* SPDX-License-Identifier: Apache-2.0 */
/* Troubles below the mount about which an administrator can do something are reported to the log, and not
 * only to the caller. */
#ifndef GAIAFS_FS_TROUBLE_H
#define GAIAFS_FS_TROUBLE_H

#include <sys/socket.h>

#include "fs/inode.h"

/* doing: "reading", "opening a file in". rc: 0 or more, or a negative errno; most errors are the caller's own
 * affair, and nothing is logged. Of each other kind at most one line in half a minute. Returns rc. No lock is
 * held. */
ssize_t trouble(struct inode *inode, const char *doing, ssize_t rc);

/* A write-back of the kernel's has failed: for want of room that is no affair of a caller, who may have gone.
 * As above. No lock is held. */
void trouble_of_stores(struct inode *inode, int error);

/* This node was the home of the inode's file, and has given it up to the node that has taken it over. lost:
 * programs had released something that is gone with it. At most one line in half a minute, but a hundred for
 * files that have lost something. No lock is held. */
void trouble_of_a_home(struct inode *inode, bool lost);

/* The mount ends: how many lines were not logged, if any. */
void trouble_end(struct fs *fs);

/* Something on a device has ended with EIO: logs what its driver says, if anything, and if it has not said
 * that before. No lock is held. */
void trouble_of_devices(struct fs *fs);

/* A client has sent what is no message, or wants a device that can't be had, and why says something: at most
 * ten lines of each kind in half a minute, as anybody can do so as often as he likes. No lock is held. */
void trouble_of_a_message(const struct ucred *client);
void trouble_of_a_device(const struct ucred *client, const char *device, const char *why);

/* What a client has asked of a GPU has ended with this error: of memory and descriptors that are short, as
 * above, at most one line in half a minute. No lock is held. */
void trouble_of_room(struct fs *fs, int error);

/* A client has acquired or unmapped something, or gone: whether a GPU's memory was found out of reach, once
 * for each and each path. No lock is held. */
void trouble_of_reach(struct fs *fs);

/* A client has unmapped something, or gone: whether one had filled a device's memory, once. No lock
 * is held. */
void trouble_of_frames(struct fs *fs);

#endif
