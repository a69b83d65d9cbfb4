/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's operations that go through libgaia. */
#include "worker_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Devices are GPUs: those of the stand-in of tests/cuda, whose memory threads can touch. Mappings that only
 * read would be copies of their own there, which the checker does not know of. */
bool on_gpus(void)
{
    const char *wish = getenv("GAIA_HISTORY_GPU");

    return wish && *wish == '1';
}

static void device_map(struct worker *w, struct slot *slot)
{
    unsigned file = (unsigned)below(w, w->run->control->files);
    uint64_t pages = (file_of(w, file)->most + PAGE - 1) / PAGE;
    bool whole = chance(w, 60), random_part = chance(w, 30);

    *slot = (struct slot){.device = (unsigned)below(w, w->run->control->devices),
                          .file = file,
                          .first = whole ? 0 : below(w, pages),
                          .writable = chance(w, 75) || on_gpus(),
                          .resident = chance(w, 10)};
    slot->pages = whole ? pages : 1 + below(w, pages - slot->first);
    slot->length = slot->pages * PAGE - (random_part ? below(w, PAGE) : 0);
    struct entry *entry = begin_other(w, 'M', slot->device, file);
    slot->address =
        gaia_mmap(w->devices[slot->device], slot->length, PROT_READ | (slot->writable ? PROT_WRITE : 0),
                  slot->resident ? GAIA_RESIDENT : GAIA_SHARED, w->files[file], (off_t)(slot->first * PAGE));
    int error = errno;
    end(w, entry, slot->address == MAP_FAILED ? -error : 0, 0);
    if (slot->address == MAP_FAILED) {
        slot->address = NULL;
        errno = error;
        expect(entry, slot->resident && error == ENOMEM, "gaia_mmap");
        return;
    }
    slot->left = (unsigned)slot->pages;
    memset(slot->mapped, 1, slot->pages);
}

/* A slot with a mapping, made if there is none. */
static struct slot *random_slot(struct worker *w, bool writable)
{
    for (unsigned tries = 0; tries < 8; tries++) {
        struct slot *slot = &w->slots[below(w, SLOTS)];
        if (!slot->address && tries >= 4)
            device_map(w, slot);
        if (slot->address && (slot->writable || !writable))
            return slot;
    }
    return NULL;
}

/* Some pages of a slot that are all mapped: [*first, *first + *count) of the slot. */
static void random_pages(struct worker *w, const struct slot *slot, uint64_t *first, uint64_t *count)
{
    uint64_t page = below(w, slot->pages), stop;

    while (!slot->mapped[page])
        page = (page + 1) % slot->pages;
    for (stop = page; stop < slot->pages && slot->mapped[stop]; stop++)
        ;
    for (; page > 0 && slot->mapped[page - 1]; page--)
        ;
    *first = page;
    *count = stop - page;
}

static struct range slot_range(struct worker *w, const struct slot *slot, int agent)
{
    uint64_t first, count;

    random_pages(w, slot, &first, &count);
    return random_range(w, slot->file, slot->first + first, count, agent);
}

static uint8_t *slot_address(const struct slot *slot, uint64_t offset)
{
    return slot->address + (offset - slot->first * PAGE);
}

void do_device_load(struct worker *w)
{
    struct slot *slot = random_slot(w, false);

    if (!slot)
        return;
    struct range at = slot_range(w, slot, -1);
    load_range(w, OP_DEVICE_LOAD, slot->device, slot_address(slot, at.offset), at);
}

void do_device_store(struct worker *w)
{
    struct slot *slot = random_slot(w, true);

    if (!slot)
        return;
    struct range at = slot_range(w, slot, (int)slot->device + 1);
    store_range(w, OP_DEVICE_STORE, slot->device, slot_address(slot, at.offset), at);
}

/* What an acquire or release covers: a run of pages, mostly all of it. */
static struct range sync_range(struct worker *w, const struct slot *slot)
{
    uint64_t first, count;

    random_pages(w, slot, &first, &count);
    uint64_t length = count * PAGE;
    if ((first + count) * PAGE > slot->length)
        length = slot->length - first * PAGE;
    struct range at = {slot->file, (slot->first + first) * PAGE, length};
    if (chance(w, 60))
        return at;
    uint64_t skip = below(w, count);
    at.offset += skip * PAGE;
    at.length = 1 + below(w, length - skip * PAGE);
    return at;
}

void acquire_range(struct worker *w, const struct slot *slot, struct range at)
{
    struct entry *entry = begin(w, OP_ACQUIRE, slot->device, at);
    int status = gaia_macquire(slot_address(slot, at.offset), at.length, w->devices[slot->device]);
    int error = errno;

    end(w, entry, status ? -error : 0, 0);
    errno = error;
    expect(entry, !status || (error == ENOMEM && slot->resident), "gaia_macquire");
}

void do_acquire(struct worker *w)
{
    struct slot *slot = random_slot(w, false);

    if (slot)
        acquire_range(w, slot, sync_range(w, slot));
}

void do_release(struct worker *w)
{
    struct slot *slot = random_slot(w, true);

    if (!slot)
        return;
    struct range at = sync_range(w, slot);
    struct entry *entry = begin(w, OP_RELEASE, slot->device, at);
    int status = gaia_mrelease(slot_address(slot, at.offset), at.length, w->devices[slot->device]);
    end(w, entry, status ? -errno : 0, 0);
    expect(entry, !status, "gaia_mrelease");
}

void do_advise(struct worker *w)
{
    struct slot *slot = random_slot(w, false);
    int advice = (int)below(w, 5);

    if (!slot)
        return;
    struct range at = sync_range(w, slot);
    struct entry *entry = begin_other(w, 'a', slot->device, at.file);
    int status = gaia_madvise(slot_address(slot, at.offset), at.length, advice), error = errno;
    end(w, entry, status ? -error : 0, 0);
    errno = error;
    expect(entry, !status || error == ENOMEM, "gaia_madvise");
}

void do_device_sync(struct worker *w)
{
    struct slot *slot = random_slot(w, false);

    if (!slot)
        return;
    struct range at = sync_range(w, slot);
    struct entry *entry = begin_other(w, 'S', slot->device, at.file);
    int status = gaia_msync(slot_address(slot, at.offset), at.length, chance(w, 70) ? MS_SYNC : MS_ASYNC);
    end(w, entry, status, 0);
    expect(entry, !status, "gaia_msync");
}

void do_device_map(struct worker *w)
{
    struct slot *slot = &w->slots[below(w, SLOTS)];

    if (!slot->address)
        device_map(w, slot);
}

void do_device_unmap(struct worker *w)
{
    struct slot *slot = random_slot(w, false);
    uint64_t first = 0, count;

    if (!slot)
        return;
    count = slot->pages;
    if (chance(w, 50)) {
        first = below(w, slot->pages);
        count = 1 + below(w, slot->pages - first);
    }
    struct entry *entry = begin_other(w, 'U', slot->device, slot->file);
    int status = gaia_munmap(slot->address + first * PAGE, count * PAGE);
    end(w, entry, status, 0);
    expect(entry, !status, "gaia_munmap");
    for (uint64_t page = first; page < first + count; page++) {
        slot->left -= slot->mapped[page];
        slot->mapped[page] = false;
    }
    if (!slot->left)
        slot->address = NULL;
}

void do_device_reopen(struct worker *w)
{
    unsigned device = (unsigned)below(w, w->run->control->devices);
    char name[16];
    struct entry *entry = begin_other(w, 'D', device, 0);

    gaia_device_close(w->devices[device]);
    for (unsigned i = 0; i < SLOTS; i++)
        if (w->slots[i].device == device)
            w->slots[i].address = NULL;
    snprintf(name, sizeof name, "%s:%u", on_gpus() ? "cuda" : "soft", device);
    if (gaia_device_open(name, &w->devices[device]))
        die(name);
    end(w, entry, 0, 0);
}
