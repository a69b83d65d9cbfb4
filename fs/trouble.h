/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong below the mount and an administrator can do something about is told to the log, besides the
 * caller. */
#ifndef GAIAFS_FS_TROUBLE_H
#define GAIAFS_FS_TROUBLE_H

#include "fs/inode.h"

/* doing: "reading", "opening a file in". rc: 0 or more, or a negative errno; most errors are the caller's own
 * affair, and nothing is logged. Of each other kind at most one line in half a minute. Returns rc. No lock is
 * held. */
ssize_t trouble(struct inode *inode, const char *doing, ssize_t rc);

/* This node was the home of the inode's file, and has given it up to who has taken it over. lost: programs
 * had released something that is gone with it. In half a minute at most one line, but of those that have lost
 * something a hundred. No lock is held. */
void trouble_of_a_home(struct inode *inode, bool lost);

/* The mount ends: how many lines were not logged, if any. */
void trouble_end(struct fs *fs);

/* Something of a device's has ended with EIO: what its driver says, if it does, and has not said that of it
 * before. No lock is held. */
void trouble_of_devices(struct fs *fs);

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
