/* SPDX-License-Identifier: Apache-2.0 */
/* What worker.c and worker_device.c share. */
#ifndef GAIAFS_TESTS_WORKER_INTERNAL_H
#define GAIAFS_TESTS_WORKER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "gaia.h"
#include "worker.h"

#define SLOTS 6u
#define PAGES_MAX 512u
#define TRANSFER_MAX (16u * PAGE)
#define BLOCK 256u /* owned by one agent, where agents don't race */
#define CPU_AGENT 0u

struct slot { /* a mapping through a device */
    uint8_t *address;
    uint64_t first, pages; /* of the file */
    size_t length;
    unsigned device, file, left;
    bool writable, resident, mapped[PAGES_MAX];
};

struct worker {
    struct run *run;
    uint32_t index, incarnation, node;
    uint64_t random;
    unsigned race; /* in 100 writes, how many go anywhere */
    unsigned hot;  /* pages of each file where most happens */
    unsigned weights[64];
    int files[FILES_MAX], appends;
    uint8_t *maps[FILES_MAX];
    struct gaia_device *devices[DEVICES_MAX];
    struct slot slots[SLOTS];
    uint8_t *buffer;
};

struct range {
    unsigned file;
    uint64_t offset, length;
};

/* worker.c: chance, the log, touching mappings, where */
uint64_t below(struct worker *w, uint64_t limit);
bool chance(struct worker *w, unsigned percent);
struct entry *begin(struct worker *w, enum operation operation, unsigned device, struct range at);
void end(struct worker *w, struct entry *entry, int64_t result, unsigned flags);
void expect(const struct entry *entry, bool good, const char *what);
const struct history_file *file_of(struct worker *w, unsigned file);
struct range random_range(struct worker *w, unsigned file, uint64_t first, uint64_t pages, int agent);
void load_range(struct worker *w, enum operation operation, unsigned device, uint8_t *from, struct range at);
void store_range(struct worker *w, enum operation operation, unsigned device, uint8_t *to, struct range at);
struct entry *begin_other(struct worker *w, char letter, unsigned device, unsigned file);

/* worker_device.c */
bool on_gpus(void);
void do_device_load(struct worker *w);
void do_device_store(struct worker *w);
void acquire_range(struct worker *w, const struct slot *slot, struct range at);
void do_acquire(struct worker *w);
void do_release(struct worker *w);
void do_advise(struct worker *w);
void do_device_sync(struct worker *w);
void do_device_map(struct worker *w);
void do_device_unmap(struct worker *w);
void do_device_reopen(struct worker *w);

#endif
