/* SPDX-License-Identifier: Apache-2.0 */
/* For several nodes: which node's kernel holds which pages of a tracked file, so that what a CPU of one node
 * writes reaches the CPUs of the others, and no write-back undoes it.
 *
 * For devices all kernels together are like one (rule 6: a release has every kernel drop its pages,
 * leaf->kernel says whether any may hold one). Among each other they are not, and a kernel's write-back of a
 * page carries all of its bytes. So before the home copy of a page is changed for one kernel, each other
 * kernel that may hold the page gets a *twin* of it: what the page was when the kernel got it. From then on
 * that kernel's write-backs are merged: only what differs from the twin is its own. At the same time a thread
 * has the kernel drop the page, after which the twin is not needed any more. Only a flush (close(), fsync())
 * waits for that: a WRITE must not wait for another kernel, whose READ may hold the page that a WRITE there
 * waits for.
 *
 * So programs of other nodes see what a program has written when its close() or fsync() has returned, and
 * mostly a moment after the write(); no byte that was written is lost to a neighbour in its page. If two
 * programs write the same byte meanwhile, one of the two wins, the same for all.
 *
 * Before Linux 6.16 a kernel may have dropped a page before its write-back of that page comes. Then the twin
 * stays: until the kernel asks for the page again, for which it waits until the write-back is done, or for a
 * minute, or until there are many newer twins of the file. For that reason, and on such kernels only, this is
 * needed without nodes, too: a collect changes pages that a release has had the kernel drop, and they get a
 * twin then. (A collect for a READ of the only kernel needs none.)
 */
#ifndef GAIAFS_CACHE_KERNELS_H
#define GAIAFS_CACHE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "cache/table.h"

struct cache;
struct cache_file;
struct kernel_leaf;
struct kernel_node;
TAILQ_HEAD(kernel_leaves, kernel_leaf);

/* Of a file; under its lock. All zero: nothing was given to anybody yet. */
struct kernels {
    struct table leaves; /* by node and number */
    LIST_HEAD(, kernel_leaf) all;
    struct kernel_node *nodes; /* by node; NULL: nothing was given to any */
    uint64_t old;              /* pages with a twin that are to be dropped */
    uint64_t late; /* pages that were dropped, with a twin for a write-back that may be on its way yet */
    struct kernel_leaves lates; /* leaves with such pages; in front the one whose newest such page is the
                                   oldest */
    uint64_t failures;          /* write-backs that could not be stored */
    int failure;                /* why, the last one */
    bool failed;                /* a kernel did not drop what it was told to, in this round */
    uint64_t clean;             /* the last round in which all did */
    bool resized;               /* others' kernels don't know the size */
    uint64_t stale;    /* bit 0 and 1 + m: kernels that are to drop all, as the file was changed unseen */
    uint64_t refused;  /* those whose write-backs are not taken until they have dropped all */
    bool queued;       /* with the dropper, or by whoever works on it now, when that is done */
    bool running;      /* a thread of the dropper works on it */
    uint64_t rounds;   /* of the dropper: begun, */
    uint64_t finished; /* and finished */
};

#define KERNELS_NOBODY UINT32_MAX /* of nodes: the change is no kernel's */

/* All: the file's lock is held. In a cache without nodes, or with kernels that don't write back late, these
 * do less or nothing. node: 0, or 1 + the member's number (CACHE_IO_NODE). */

/* Whether what a node's kernel writes back may come after it has dropped the page. */
bool kernels_write_back_late(const struct cache_file *file, unsigned node);

/* A READ gives pages to a node's kernel. -ENOMEM. */
int kernels_given(struct cache_file *file, unsigned node, off_t offset, size_t length);
/* Whether bytes that were given to a node have been changed since: then its twins are older than these. */
bool kernels_overtaken(struct cache_file *file, unsigned node, off_t offset, size_t length);
/* The bytes are about to be changed for a node: other nodes that hold them get twins. -ENOMEM, or why the
 * home copy can't be read. */
int kernels_change(struct cache_file *file, unsigned node, off_t offset, uint64_t length);
/* Before pages of a leaf are dropped for a release: room for what kernels_released() has to note. -ENOMEM. */
int kernels_reserve(struct cache_file *file, uint64_t leaf);
/* All have dropped these pages for a release, and some have held them. */
void kernels_released(struct cache_file *file, uint64_t leaf, uint64_t pages);
/* These pages, which no kernel holds, are about to be collected. -ENOMEM, or why the home copy can't be read.
 */
int kernels_collect(struct cache_file *file, uint64_t leaf, uint64_t pages);
/* Forget late pages that are late no more, or that are too many. */
void kernels_tidy(struct cache_file *file);
/* A node's plain WRITE was applied, or a READ is answered while the file is being announced: its kernel has
 * these bytes, too. Until all nodes know that the file is tracked here, a node that does not know writes past
 * the home: meanwhile these bytes are twins at once. */
void kernels_wrote(struct cache_file *file, unsigned node, const void *bytes, size_t length, off_t offset);
/* The bytes of a node's write-back, at most of one page, as they are to be written: bytes, or those merged in
 * room, which has as much. 0, or why the home copy can't be read. */
int kernels_merge(struct cache_file *file, unsigned node, const uint8_t *bytes, off_t offset, size_t length,
                  uint8_t *room, const uint8_t **merged_out);
/* So many of these bytes were written: they are the twin now, if there is one. Not earlier: only the kernel
 * has what could not be written, and its next write-back brings it. */
void kernels_wrote_back(struct cache_file *file, unsigned node, const uint8_t *bytes, size_t length,
                        off_t offset);
/* A write-back of a node's could not be stored, or not all of it. */
void kernels_failed(struct cache_file *file, unsigned node, int error);
/* How many such failures there were, without those of a node: its programs learn of these by themselves. */
uint64_t kernels_failures(const struct cache_file *file, unsigned except);
/* Whether the node's kernel was ever given any page: else nobody has stored to the file through it. Whether
 * it holds one now does not count: a write-back of what it has dropped may still be on its way (before Linux
 * 6.16), or a write() that has made its page anew and has not come here. */
bool kernels_held_any(const struct cache_file *file, unsigned node);
/* The file was changed unseen: these kernels may hold pages from before the change, anywhere, and must drop
 * them all. refuse: their write-backs of those pages would undo the change, so they are discarded. */
void kernels_stale(struct cache_file *file, uint64_t kernels, bool refuse);
/* Whether a node's write-backs are not taken; */
bool kernels_refused(const struct cache_file *file, unsigned node);
/* and it was not: kernels_failed() was called then. */
bool kernels_refuse(struct cache_file *file, unsigned node);
/* The size has changed. */
void kernels_resized(struct cache_file *file);
/* Whether a kernel may have something older than the home copy: a page, or the size. */
bool kernels_behind(const struct cache_file *file);
/* The file is closed. */
void kernels_free(struct cache_file *file);

#endif
