/* SPDX-License-Identifier: Apache-2.0 */
/* A cache without a mount: a file in a temporary folder, a model of the kernel's page cache above it, and a
 * client of the soft device in this very process. What the sanitizers see of the daemon they see here,
 * threads and all. */
#ifndef GAIAFS_TESTS_CACHE_FIXTURE_H
#define GAIAFS_TESTS_CACHE_FIXTURE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"
#include "cache/client.h"
#include "cache/stat.h"
#include "gpu/device.h"

#define FIXTURE_PAGES 512u

/* One page as the kernel holds it. */
struct kernel_page {
    pthread_mutex_t lock; /* the folio's lock: held over requests to the daemon; guards dirty */
    pthread_mutex_t
        data; /* guards the rest, so that peek() may look without the folio's lock; taken inside it */
    int cached;
    int locked; /* in the cache and not up to date: being read, or a WRITE's that is not answered */
    uint8_t bytes[4096];
    int dirty; /* an int of its own: neighbouring bools may be loaded as one */
};

struct fixture {
    char path[64];
    int fd;
    struct cache *cache;
    struct cache_file *file;
    struct durable durable;
    struct cache_client *client;
    pthread_mutex_t inode; /* the inode's lock: one write() at a time */
    struct kernel_page kernel[FIXTURE_PAGES];
    _Atomic unsigned pins, invalidations, writebacks;
    bool can_trap;
    _Atomic int invalidate_error;            /* not 0: the kernel drops nothing, and says this */
    void (*_Atomic once_invalidating)(void); /* called once, before anything is dropped */
    void (*_Atomic once_invalidated)(
        void); /* called once, when pages have been dropped and nobody knows yet */
    /* In place of the frames' own, once; plain_frames has those. */
    int (*_Atomic drop)(struct gaia_frames *frames, uint64_t page, uint64_t count);
    int (*_Atomic place)(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes);
    int (*_Atomic protect)(struct gaia_frames *frames, uint64_t page, uint64_t count);
    int (*_Atomic fetch)(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out);
    int (*_Atomic attach)(struct gaia_frames *frames, const struct gaia_process *process, uint64_t address,
                          uint64_t first, uint64_t count, bool writable, bool can_trap,
                          struct gaia_frames_map **map_out);
    int (*_Atomic expose)(struct gaia_frames_map *map, uint64_t page, uint64_t count, bool trap_stores);
    uint64_t (*_Atomic place_exposed)(struct gaia_frames_map *map, uint64_t page, uint64_t count,
                                      const void *bytes);
    /* Each time, for what several threads come to: one that is set again by itself is missed by who comes
     * between the two. */
    uint64_t (*_Atomic each_place_exposed)(struct gaia_frames_map *map, uint64_t page, uint64_t count,
                                           const void *bytes);
    int (*_Atomic each_resize)(struct gaia_frames *frames, uint64_t pages);
    int (*_Atomic each_clear)(struct gaia_frames *frames, uint64_t page, size_t from);
    int (*_Atomic poison)(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint32_t thread);
    /* Of none of theirs: without it they have no such call. */
    int (*_Atomic place_later)(struct gaia_frames *frames, struct gaia_frames_map *map, uint64_t page,
                               uint64_t count, const void *bytes, bool exposes, struct gaia_placing *placing);
    bool shows_locked; /* peek() shows pages that are not up to date, unlike Linux 6.18 */
};

extern const struct gaia_frames_ops *plain_frames;
/* For drop, and for place: -ENOMEM. */
int fixture_refuse_to_drop(struct gaia_frames *frames, uint64_t page, uint64_t count);
int fixture_refuse_to_place(struct gaia_frames *frames, uint64_t page, uint64_t count, const void *bytes);
/* For fetch: -EIO. */
int fixture_fail_to_fetch(struct gaia_frames *frames, uint64_t page, unsigned count, void *const *pages_out);

struct device_map {
    uint32_t id;
    uint8_t *bytes;
};

extern bool fixture_shared; /* of the next fixture_start(): -o shared */
/* capacity: bytes of each device. Fails the test when something can't be had; false: no userfaultfd here,
 * skip. */
bool fixture_start(struct fixture *f, uint64_t capacity);
void fixture_stop(struct fixture *f);

/* What a CPU program does, as the kernel would do it. */
void kernel_read(struct fixture *f, unsigned page, uint8_t bytes_out[4096]);
void kernel_write(struct fixture *f, unsigned page, unsigned offset, const uint8_t *bytes, unsigned length);
void kernel_store(struct fixture *f, unsigned page, unsigned offset,
                  uint8_t byte);      /* through a shared mapping */
void kernel_flush(struct fixture *f); /* sync_file_range() */
uint8_t kernel_byte(struct fixture *f, unsigned page, unsigned offset);
/* What the data directory's file has there. */
uint8_t home_byte(const struct fixture *f, off_t offset);

/* Map the whole file on soft:device, as libgaia would. */
struct device_map device_map(struct fixture *f, unsigned device);
int device_acquire(struct fixture *f, const struct device_map *map);
int device_release(struct fixture *f, const struct device_map *map);
void device_unmap(struct fixture *f, const struct device_map *map);
struct cache_device_stat device_stat(struct fixture *f, unsigned device);

#endif
