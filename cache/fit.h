/* SPDX-License-Identifier: Apache-2.0 */
/* Frames as long as the file (rule 8), and with nothing in them that nobody has placed.
 *
 * What clients have put there: who may store to a soft device's frames has a descriptor of their memory, and
 * fallocate(), write() or a mapping that nobody serves fill what is absent, or what is past the end of the
 * file: memory that no capacity counts, and that would stay for as long as the file is known. When its last
 * client has gone it is freed; while somebody maps the file it is left alone: who does it can do it again at
 * once. Frames on other nodes are not looked at: there it is not known what was placed.
 *
 * That memory is a memfd. What changes its length, or frees a part of it, waits for the lock of its inode,
 * and that a client has inside of a write() to it: for as long as the pages take to come that it writes from,
 * which may be pages of this very file, or never come. So no lock is held over such a call, and threads make
 * them that nobody has to wait for, at most one for each of a file's replicas. Who changes the size under the
 * file's lock only takes note of it here; before he says that it has changed he waits until the frames fit,
 * but for a moment only. Until they do, nothing is placed where they may be cut off yet. */
#ifndef GAIAFS_CACHE_FIT_H
#define GAIAFS_CACHE_FIT_H

#include "cache/replica.h"

struct cache;

/* The file's size has changed. The lock is held. */
void fit_later(struct replica *replica);
/* The frames may be longer than it. The lock is held. */
void fit_again(struct replica *replica);

/* Below this page frames can be placed. The lock is held. */
uint64_t fit_pages(const struct replica *replica);

/* Have all frames of the file fit: waits until they do, 2 s at most, and less where that was in vain, or
 * where others wait in this cache, so that enough threads are left to serve FUSE. Also for what others have
 * changed. No lock is held; the file can't go away. */
void fit_frames(struct cache_file *file);
/* The same for who is to touch them next, and is no handler of FUSE: 30 s, as to free many GiB takes its
 * time, and a touch inside the file is SIGBUS where they are shorter. */
void fit_frames_for_device(struct cache_file *file);
/* Nobody waits. The lock is held, and may be let go meanwhile; the file is in use. */
void fit_begin(struct cache_file *file);

/* The same of one replica, before something is placed there; what is being freed is waited for, too. No lock
 * is held; the file is in use. */
void fit_to_place(struct replica *replica);

/* Free what nobody has placed. It is counted in cache->surplus when this returns, but for what can't be
 * looked at yet; that it is free is not waited for. No lock is held; the file is in use. */
void fit_sweep(struct replica *replica);

/* Free pages that somebody has busy and does not want any more, and call done() then, which may wait for
 * clients: in a thread of those. What cuts them or comes after a cut is seen to before. Nobody waits, unless
 * there is no such thread. No lock is held; the file is in use until done() is called. */
struct fit_drop {
    uint64_t first, count;
    void (*done)(struct fit_drop *drop);
    STAILQ_ENTRY(fit_drop) link; /* replica->drops */
};
void fit_drop(struct replica *replica, struct fit_drop *drop);

/* Wait some seconds for those threads, and begin none from now on. Whether all have ended: else what they use
 * must stay until the process ends. */
bool fit_end(struct cache *cache);

#endif
