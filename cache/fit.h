/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps frames as long as the file (rule 8), and free of what nobody has placed.
 *
 * Clients can put such bytes there: a client that may store to a soft device's frames has a descriptor of
 * their memory, and fallocate(), write() or a mapping that nobody serves fill what is absent, or what is past
 * the end of the file. No capacity counts that memory, and it would stay for as long as the file is known. It
 * is freed when the file's last client has gone. While somebody maps the file it is left alone, as that
 * client could fill it again at once. Frames on other nodes are not looked at: there it is not known what was
 * placed.
 *
 * That memory is a memfd. A call that changes its length, or frees a part of it, waits for the lock of its
 * inode, which a client holds during a write() to it: until the pages come that it writes from, which may be
 * pages of this very file, or never come. So no lock is held over such a call, and the calls are made by
 * threads that nobody has to wait for, at most one for each of a file's replicas. A thread that changes the
 * size under the file's lock only notes that here; before it reports the change it waits until the frames
 * fit, but only for a moment. Until they fit, nothing is placed where they may still be cut off. */
#ifndef GAIAFS_CACHE_FIT_H
#define GAIAFS_CACHE_FIT_H

#include "cache/replica.h"

struct cache;

/* The file's size has changed. The lock is held. */
void fit_later(struct replica *replica);
/* The frames may be longer than the file. The lock is held. */
void fit_again(struct replica *replica);

/* Below this page frames can be placed. The lock is held. */
uint64_t fit_pages(const struct replica *replica);

/* Have all frames of the file fit: waits until they do, 2 s at most, and less where such a wait was in vain.
 * Also for what others have changed. No lock is held; the file can't go away. */
void fit_frames(struct cache_file *file);
/* The same for a caller that will touch the frames next, and is no handler of FUSE: 30 s, as freeing many GiB
 * takes time, and a touch inside the file is SIGBUS where the frames are shorter. */
void fit_frames_for_device(struct cache_file *file);
/* Begin this without waiting. The lock is held, and may be let go meanwhile; the file is in use. */
void fit_begin(struct cache_file *file);

/* The same of one replica, before something is placed there; what is being freed is waited for, too. No lock
 * is held; the file is in use. */
void fit_to_place(struct replica *replica);

/* Free what nobody has placed. It is counted in cache->surplus when this returns, except what can't be looked
 * at yet. Does not wait until it is free. No lock is held; the file is in use. */
void fit_sweep(struct replica *replica);

/* Free pages that somebody has made busy and does not need any more, then call done(), which may wait for
 * clients: in a thread of those above. Cuts of the frames, and what comes after a cut, are done first. The
 * caller does not wait, unless there is no such thread. No lock is held; the file is in use until done() is
 * called. */
struct fit_drop {
    uint64_t first, count;
    void (*done)(struct fit_drop *drop);
    STAILQ_ENTRY(fit_drop) link; /* replica->drops */
};
void fit_drop(struct replica *replica, struct fit_drop *drop);

/* Wait some seconds for those threads, and begin none from now on. What a thread uses that is not done by
 * then must stay until the process ends. */
void fit_end(struct cache *cache);

#endif
