/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a file's way to storage. It is the daemon's errseq_t: each error is told once to every
 * descriptor that was open. And it is what Linux lacks, a memory of the bytes that a failed fsync has lost.
 *
 * After a failed write-back a filesystem calls its pages clean: the next fsync has nothing to do, and says 0.
 * Here fsync goes on failing, for every descriptor, old or new, until the lost bytes were written again or
 * cut off (and that was synced), or the mount ends. The kernel does not say which bytes a failed sync has
 * lost: they are taken to be all that was written since the last good one.
 */
#ifndef GAIAFS_CACHE_DURABLE_H
#define GAIAFS_CACHE_DURABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/lock.h"
#include "cache/overrule.h"
#include "cache/ranges.h"

struct durable {
    pthread_mutex_t lock; /* guards the rest; a leaf: nothing is called with it held */
    /* Every sync goes through this one open file description, else the kernel would tell an error of the
     * backing file to each of the daemon's descriptors at a time of its own. -1: not opened yet. */
    int fd;
    unsigned users;             /* open descriptors and maps */
    _Atomic unsigned failures;  /* syncs that failed: bytes may be lost */
    unsigned errors;            /* how often there was something to tell to each descriptor */
    unsigned write_back_errors; /* and what the kernel tells by itself to all but maps */
    unsigned told;              /* of errors: what somebody was told already */
    unsigned each;              /* of errors: those before are such as each node tells its own programs */
    int error;                  /* the last one */
    bool blind;                 /* bytes may be written at any time and nobody tells: by passthrough */
    /* Since the start of the last good sync: what programs have written; and where somebody has, of pages
     * that were written with what devices have stored to them, and of a file that is blind. */
    struct ranges written, merged;
    struct ranges lost;
    /* Of these bytes, those that the backing file may lack: what a program has written, and a sync could not
     * bring to storage, may have left the host's memory since; what the kernel could not write back never was
     * there. Its own pages have them. And of those, the ones that the kernel has read anew since, so that
     * perhaps nobody has them any more. */
    struct ranges unwritten, gone;
    _Atomic bool any_unwritten; /* there was some once */
    /* Changes that another node makes: counted before it is asked and when it has answered; and the count
     * when that node was asked for the last good sync. */
    _Atomic uint64_t asked, asked_synced;
    /* Syncs, one at a time: of two that wait for the same bytes the kernel tells only one that they failed,
     * as both come through one description. */
    pthread_cond_t synced;
    uint64_t begun, done; /* how many */
    bool data_only;       /* the last one, */
    int result;           /* and what the kernel said */
    LIST_HEAD(, overrule) overruled;
};

/* What one open descriptor, or one map, was told. Guarded by the file's durable.lock. */
struct durable_seen {
    bool map;
    unsigned errors, write_back_errors;
};

void durable_init(struct durable *durable);
void durable_destroy(struct durable *durable);

/* A descriptor or a map comes, and goes. As with errseq_t, a new one is told what nobody was told yet. */
void durable_open(struct durable *durable, bool map, struct durable_seen *seen_out);
/* The same of another node: as a map, and it is told nothing of what was noted there, too. */
void durable_open_elsewhere(struct durable *durable, struct durable_seen *seen_out);
void durable_close(struct durable *durable);

/* Around each change of bytes of the backing file: durable_begin() before it, durable_wrote() with what it
 * returned after it. fd: any descriptor of the backing file. */
unsigned durable_begin(struct durable *durable, int fd);
enum durable_source {
    DURABLE_STORED,       /* a program has written these bytes: none of them is lost any more */
    DURABLE_WRITTEN_BACK, /* the kernel has pages of its own written: with all that it still has */
    DURABLE_MERGED,       /* the backing file's own bytes, and some that a device has stored */
    DURABLE_SOMEWHERE     /* some of these bytes: what is lost stays so */
};
void durable_wrote(struct durable *durable, unsigned begun, off_t offset, off_t length,
                   enum durable_source source);
/* The same for an append of length bytes, which its kernel took to go to offset: it need not know the end, as
 * others move it, too. */
void durable_appended(struct durable *durable, unsigned begun, int fd, off_t offset, off_t length);
/* The kernel asks for pages, so it no longer has them: what it could not write back of them is gone. Once
 * they are read, and before it has them: a sync that fails meanwhile may have lost what was there before. */
void durable_read(struct durable *durable, off_t offset, off_t length);
/* A change has failed, and some of its bytes may have been changed nevertheless: a write through an O_SYNC
 * descriptor fails when its bytes are in memory but can't be brought to storage. */
void durable_tried(struct durable *durable, off_t offset, off_t length);
/* The file has been opened for writing: from now on the kernel may write any byte of it without being seen
 * (blind), or nobody can any more. A failed sync of a blind file may have lost all of it. */
void durable_blind(struct durable *durable, int fd, bool blind);
/* The file was cut at size. */
void durable_cut(struct durable *durable, off_t size);
/* Bytes that the kernel wrote back could not be written, and the kernel has called their pages clean: they
 * are lost until they come again. */
void durable_lose(struct durable *durable, off_t offset, off_t length, int error);
/* Released bytes could not be collected for a sync. They are not lost, but the sync has failed. */
void durable_fail(struct durable *durable, int error);
/* The file's home elsewhere has lost something, or could not sync. Each node that has the file open notes
 * that for its own programs: the one that is the home next does not tell the others, too, who were told. */
void durable_fail_elsewhere(struct durable *durable, int error);

/* fsync or fdatasync. fd: any descriptor of the backing file. 0 or a negative errno: of this sync, of an
 * earlier one that *seen was not told of, or of bytes that are lost. */
int durable_sync(struct durable *durable, int fd, bool data_only, struct durable_seen *seen);

/* What it says to one who has nothing that is to be brought to storage here: another node has. */
int durable_told(struct durable *durable, struct durable_seen *seen);

/* A sync for no descriptor, so nobody is told anything: 0 or the error of this sync. It is no error if the
 * file can't be synced, or if nobody has it open. */
int durable_store(struct durable *durable, int fd);

/* Another node is asked for a change, or has answered. */
void durable_ask(struct durable *durable);
/* All that was asked for when durable_asked() returned this number is on storage there, or was reported to be
 * lost. */
uint64_t durable_asked(struct durable *durable);
void durable_asked_synced(struct durable *durable, uint64_t asked);
/* Whether anything was asked for that is not. */
bool durable_is_asked(struct durable *durable);

/* Whether bytes are lost, which must be remembered. */
bool durable_is_lost(struct durable *durable);
/* Whether one of these bytes is lost. */
bool durable_is_lost_in(struct durable *durable, off_t offset, off_t length);
/* Whether anything was written since the last good sync. */
bool durable_is_written(struct durable *durable);

#endif
