/* SPDX-License-Identifier: Apache-2.0 */
/* READs of a tracked file that are under way: handled, and not yet answered. What they bring to the kernel
 * may be older than the present home copy. */
#ifndef GAIAFS_CACHE_READS_H
#define GAIAFS_CACHE_READS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#define READS_ANSWERED 64u
#define READS_WAIT_MS 5000u

struct cache_file;
struct cache_read;
struct leaf;

/* One whose answer is in the kernel, but whose reader may not have unlocked the page yet. */
struct answered_read {
    uint64_t number;
    uint64_t first, last; /* pages; first > last: none */
    unsigned node;
    uint64_t time; /* ns, CLOCK_MONOTONIC */
};

/* Under the file's lock. */
struct reads {
    LIST_HEAD(, cache_read) under_way;
    uint64_t number;  /* of the last that began */
    unsigned waiting; /* threads in reads_wait() */
    struct answered_read answered[READS_ANSWERED];
    unsigned next; /* in answered */
};

void reads_init(struct reads *reads);
/* A node's READ takes what the home copy has from now on. The lock is held. */
void reads_begin(struct cache_file *file, struct cache_read *read, unsigned node, off_t offset,
                 size_t length);
/* Its answer is in the kernel. No lock is held. */
void reads_end(struct cache_file *file, struct cache_read *read);
/* The kernel has dropped these pages of a leaf, by an invalidation that began after READ `number`. The lock
 * is held. */
void reads_dropped(struct cache_file *file, const struct leaf *leaf, uint64_t pages, uint64_t number);
/* Whether a node's kernel may be about to fill a page with what a READ up to `number` has brought: the READ
 * is not answered, or was in the last recent_ns, and the page has not been dropped since. The lock is
 * held. */
bool reads_may_fill(const struct cache_file *file, unsigned node, uint64_t page, uint64_t number,
                    uint64_t recent_ns);
/* Wait until a node's READs of a page up to `number` are answered: these wait only for storage and for the
 * way to the node, whose WRITE waits for them here. The node may die meanwhile; nobody is told of that before
 * that WRITE has ended. Returns whether one was answered in the last recent_ns and the page has not been
 * dropped since, or -ETIMEDOUT after READS_WAIT_MS. The lock is held on entry and exit, not in between. */
int reads_wait(struct cache_file *file, unsigned node, uint64_t page, uint64_t number, uint64_t recent_ns);

#endif
