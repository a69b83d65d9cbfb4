/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: which pages go when a device is full, and how. A policy orders the leaf copies of a device (up to
 * 256 KiB of a file each); from the first one go those units that no fault has busy. */
#ifndef GAIAFS_CACHE_EVICT_H
#define GAIAFS_CACHE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

struct cache_device;
struct leaf_copy;
struct replica;

/* All functions are called with the device's lock held; the copy is on device->order. */
struct evict_policy {
    const char *name;
    /* Pages were placed. */
    void (*placed)(struct cache_device *device, struct leaf_copy *copy);
    /* A fault has touched pages. Nobody sees touches of pages that are mapped. */
    void (*touched)(struct cache_device *device, struct leaf_copy *copy);
    /* The copy to take pages from: put at the end of the order, so that the next call takes another. The
     * order is not empty. */
    struct leaf_copy *(*victim)(struct cache_device *device);
};

/* "lra": least recently allocated, by the latest page placed (GAIA, as NVIDIA's driver); "fifo": by the first
 * (DREAM, section 3.3); "clock": fifo with a second chance for copies that a fault has touched since they
 * were last passed over. NULL: no such policy. */
const struct evict_policy *evict_policy_find(const char *name);

/* Pages of the copy were placed, for a touch or ahead of one. The file's lock is held. */
void evict_placed(struct cache_device *device, struct leaf_copy *copy, bool touched);
/* A fault has touched pages that were resident. The file's lock is held. */
void evict_touched(struct cache_device *device, struct leaf_copy *copy);
/* The copy is empty. The file's lock is held. */
void evict_forget(struct cache_device *device, struct leaf_copy *copy);

/* A client's map of the replica begins, before its first page is placed; and ends, when nothing of the client
 * touches it any more. What is mapped stays on a device that scans. No lock is held. */
void evict_mapped(struct replica *replica);
bool evict_unmapped(struct replica *replica); /* it was the last one */

/* A client (cache_client.id) is about to be given the frames. No lock is held. */
#define EVICT_MANY UINT64_MAX
void evict_shared(struct replica *replica, uint64_t client);

/* Charge the device with pages, evicting as need be. Waits while all frames are in use by faults under way.
 * client: for whom (cache_client.id), 0: for nobody in particular. Frames that only this client was ever
 * given are emptied in this thread: if the client holds them up, that is its own affair. 0; -ENOMEM (more
 * than the device has at all, or, where it scans, more than is not mapped); or the error that kept pages from
 * being evicted. No lock is held. */
int evict_and_charge(struct cache_device *device, uint64_t pages, uint64_t client);

/* Let go of about so many pages of one copy: whole units. If one of them can't be written that keeps those
 * that go with it, so then each page is tried by itself. How many went; *error_out: of those that did not.
 * The file is in use. May wait for clients of the replica. */
uint64_t evict_from(struct replica *replica, uint64_t leaf_number, uint64_t pages, int *error_out);

/* What kept its pages from going when they were tried last, if anything did: for who does not wait for the
 * next try, which may take the disk as long to fail. Its file is in use, or the device's lock held. */
void evict_was_refused(const struct replica *replica, int *error_out);

/* Let about so many pages go, as far as they can go now. Returns how many did. No lock is held. */
uint64_t evict_some_of(struct cache_device *device, uint64_t pages);

#endif
