/* SPDX-License-Identifier: Apache-2.0 */
/* A tracked file: the backing file's descriptors, its size, its index and its replicas. */
#ifndef GAIAFS_CACHE_FILE_H
#define GAIAFS_CACHE_FILE_H

#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>

#include "base/lock.h"
#include "cache/cache.h"
#include "cache/claim.h"
#include "cache/heal.h"
#include "cache/hosted.h"
#include "cache/index.h"
#include "cache/kernels.h"
#include "cache/reads.h"
#include "cache/writers.h"
#include "io/engine.h"

struct agent_file;
struct home_open;
struct replica;

enum file_announced { NOT_ANNOUNCED, ANNOUNCING, ANNOUNCED };

struct cache_file {
    struct cache *cache;
    void *context;          /* the host's */
    struct agent_file *far; /* its home is elsewhere (cache/agent.h): of what follows there are only durable,
                               the lock, pinned and uses */
    int fd;                 /* the backing file, read-write where it can be had */
    uint64_t number;        /* of its inode; constant. For who looks at what is done to it (cache/trace.h) */
    enum hosted hosted;     /* hosted_of(); constant */
    atomic_bool writable;
    struct gaia_io_file *io;
    struct durable *durable;     /* the host's */
    LIST_ENTRY(cache_file) link; /* cache->files, under cache->lock */
    struct claim claim;

    /* Guards all below, and the home copy: whoever changes bytes of the backing file holds it. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a page stopped being busy, releasing or invalidating */
    struct index index;
    SLIST_HEAD(, replica) replicas; /* by ascending replica number */
    uint32_t entries;               /* of a version vector: the CPU and each replica */
    struct heal_window window;
    struct reads reads;
    off_t size;
    atomic_bool unfit;    /* some frames are longer or shorter than it (cache/fit.h) */
    atomic_bool misfit;   /* some device could not do that */
    bool tail_cleared;    /* file_grows() was called, file_resized() not yet */
    uint64_t truncations; /* counts changes that a fill under way must not survive */
    uint64_t halves;      /* counts pages of which a part was collected */
    /* Of the backing file after our last change: another value means that somebody else wrote. */
    struct timespec ctime;
    uint64_t behind;  /* changes behind the mount that were found: the kernel may hold older pages */
    uint64_t dropped; /* how many there were when the kernel was last made to drop its pages; */
    uint64_t looked;  /* and when all nodes' were (cache/behind.h) */
    bool suspect;     /* one was found while this node was not sure */
    bool passed, written, direct;  /* how CPUs have it open: cache_file_pass(); */
    bool elsewhere;                /* and may have it open, by another mount */
    uint64_t pass_number;          /* of that news */
    bool discarded;                /* nobody can reach it but its clients: with its last use it is emptied */
    enum file_announced announced; /* to agents, and by what name */
    uint64_t announced_to;         /* those up to this one: home_session.entered */
    uint64_t generation;           /* as they know it: see nodes_generation() */
    bool taken_over;               /* from a home that comes before this node, and was taken to be dead */
    atomic_bool given_up;          /* another node is its home: all that is done to it here fails */
    bool lost_stores;              /* as it was: of this node's devices */
    atomic_bool discards;          /* write-backs: what the kernel holds is from under another home */
    struct node_name name;
    LIST_HEAD(, home_open) opens; /* of agents */
    struct kernels kernels;       /* and what their kernels hold */
    struct writers writers;       /* of this node */
    bool pinned;                  /* the host was told, or is about to be */
    _Atomic unsigned uses;        /* client maps and operations under way: see file_use() */
    atomic_bool recent;           /* mapped since cache_file_shed() has looked at it */
    atomic_bool let_go;           /* not mapped since cache_file_shed() has let go of it */
};

static inline uint64_t file_pages(off_t size)
{
    return ((uint64_t)size + GAIA_PAGE_SIZE - 1) / GAIA_PAGE_SIZE;
}
/* Bytes of the page that lie before the end of the file. */
static inline size_t file_page_bytes(off_t size, uint64_t page)
{
    off_t start = (off_t)(page * GAIA_PAGE_SIZE);
    return start >= size ? 0 : size - start < (off_t)GAIA_PAGE_SIZE ? (size_t)(size - start) : GAIA_PAGE_SIZE;
}

/* A file with uses, or with anything in its index, is pinned at the host: it can't go away.
 *
 * file_use() is for callers that have another reason why the file can't go away at this moment: a lookup, a
 * handle, a copy of the file on a device's list. file_unuse() tells the host when the last reason is gone;
 * the file must not be touched afterwards. No lock is held for either. */
void file_use(struct cache_file *file);
void file_unuse(struct cache_file *file);

/* The index may have become empty outside of any use: let the file go then. No lock is held. */
void file_unpin_if_empty(struct cache_file *file);

/* A file that could not be opened for writing when it was tracked (it was immutable, being executed, or not
 * the daemon's to write) may be another one by now. Its descriptor keeps its number, as others use it
 * meanwhile. No lock is held; the file is in use. -EACCES: nothing has changed. */
int file_make_writable(struct cache_file *file);
/* The same for whom another descriptor will do: it is the caller's to close. It moves no claim, and so waits
 * for nobody's kernel. */
int file_open_to_write(const struct cache_file *file);

/* The file's replica on a device, made if there is none; read_only: the one that clients can't write to, on a
 * device that has such. The lock is held. 0 or a negative errno. */
int file_get_replica(struct cache_file *file, unsigned device, bool read_only, struct replica **replica_out);

/* The first replica, or the one after another, for callers that do not hold the lock from one to the next.
 * Replicas are only ever added, at their place in the list. */
struct replica *file_next_replica(struct cache_file *file, struct replica *replica);

/* The lock is held since then. If that is long, it is let go for a moment: handlers of FUSE may wait for it,
 * and whoever takes it again at once has it before they are awake. So what is known of the index, but for
 * busy pages, has to be looked up anew. */
void file_let_others_in(struct cache_file *file, uint64_t *since_ns);

/* A CPU changed pages of a leaf: rule 4. The lock is held. */
void file_cpu_modified(struct leaf *leaf, page_mask pages);
/* Pages of a leaf have newer released bytes than the copies of all replicas but `except`, which may be NULL.
 * The lock is held. */
void file_suspect_others(struct leaf *leaf, const struct replica *except, page_mask pages);

/* Rules 4 and 5: the CPU's release of pages marked modified. The lock is held. 0 or -ENOMEM. */
int file_cpu_release(struct cache_file *file, struct leaf *leaf, page_mask pages);

/* The size changed to `size` under the lock, by a truncation or by a write past the end: twins and marks
 * follow (rule 8), and frames by fit_frames(), which is due when the lock is let go. */
void file_resized(struct cache_file *file, off_t size);
/* The holder of the lock is about to make the file as long as that, and calls file_resized() afterwards,
 * without letting go of the lock. What lies behind the old end becomes zeros here: whoever sees the new size
 * may store there at once. After an error, which means that this can't be done, the file must stay as it
 * is. */
int file_grows(struct cache_file *file, off_t size);
/* The same before it makes the file as short as that: the home copy still has all its bytes. */
void file_shrinks(struct cache_file *file, off_t size);

/* Around a change of our own to the backing file: file_stamp() notes the times that our change left, unless
 * somebody else had changed the file before (then file_unchanged() was false): that change must still be
 * found. The lock is held. */
bool file_unchanged(struct cache_file *file);
void file_stamp(struct cache_file *file, bool unchanged_before);
/* Somebody may have changed the backing file behind the mount: if so, every resident page counts as written
 * by a CPU, and fit_frames() is due. The lock is held. 0 or a negative errno. */
int file_check_behind(struct cache_file *file);
/* Every resident page counts as written by a CPU. The lock is held. */
void file_all_modified(struct cache_file *file);

#endif
