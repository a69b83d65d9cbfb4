/* SPDX-License-Identifier: Apache-2.0 */
/* A device of another node that scans, a GPU: it looks for what kernels stored by itself, and what is asked
 * for and what it finds go through slots of the session. */
#include <string.h>

#include "gpu/home_node.h"

#define BITS_MOST (CALL_SLOT_BYTES * 8)
#define DIGESTS_MOST (CALL_SLOT_BYTES / sizeof(struct gaia_digest))

/* Pages of which `copies` times the bytes go through a slot, behind their numbers. */
#define LISTED_MOST(copies) ((CALL_SLOT_BYTES - NODE_LIST_BYTES) / GAIA_PAGE_SIZE / (copies))
_Static_assert(LISTED_MOST(1) * sizeof(uint64_t) <= NODE_LIST_BYTES, "the list has room");

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int node_ask_for(struct node_frames *frames, enum node_op op, uint64_t page, uint64_t n, void *out,
                 size_t bytes)
{
    int slot = call_slot_get(frames->session);

    if (slot < 0)
        return slot;
    int error =
        node_ask(frames, NODE_FRAMES, op,
                 &(struct node_request){.offset = (int64_t)page, .length = n, .slot = (uint32_t)slot});
    if (!error)
        memcpy(out, call_slot(frames->session, (unsigned)slot), bytes);
    call_slot_put(frames->session, (unsigned)slot);
    return error;
}

int node_modified(struct gaia_frames *base, uint64_t page, uint64_t count, uint64_t *bits_out)
{
    int error = 0;

    for (uint64_t done = 0, n; done < count && !error; done += n) {
        n = smaller(count - done, BITS_MOST);
        error = node_ask_for(node_frames_of(base), NODE_MODIFIED, page + done, n, bits_out + done / 64,
                             (n + 63) / 64 * 8);
        if (!error && n % 64) /* an agent may say anything */
            bits_out[(done + n) / 64] &= (UINT64_C(1) << n % 64) - 1;
    }
    return error;
}

int node_granted(struct gaia_frames *base, uint64_t page, uint64_t count, const struct gaia_digest *digests)
{
    struct node_frames *frames = node_frames_of(base);
    int error = 0;

    for (uint64_t done = 0, n; done < count && !error; done += n) {
        n = smaller(count - done, DIGESTS_MOST);
        int slot = call_slot_get(frames->session);
        if (slot < 0)
            return slot;
        if (digests)
            memcpy(call_slot(frames->session, (unsigned)slot), digests + done, n * sizeof *digests);
        error = node_ask(frames, NODE_FRAMES, NODE_GRANTED,
                         &(struct node_request){.offset = (int64_t)(page + done),
                                                .length = n,
                                                .slot = (uint32_t)slot,
                                                .flags = digests ? 0 : NODE_NOT_KNOWN});
        call_slot_put(frames->session, (unsigned)slot);
        /* Who asks can't undo what it is about. A GPU that fails makes the digests unknown by itself; what
         * has not come there leaves them as they were, and stores would be missed. */
        if (error && error != -EIO)
            call_session_abort(frames->session);
    }
    return error;
}

int node_recall(struct gaia_frames *base, uint64_t page, uint64_t count, struct gaia_digest *digests_out)
{
    int error = 0;

    for (uint64_t done = 0, n; done < count && !error; done += n) {
        n = smaller(count - done, DIGESTS_MOST);
        error = node_ask_for(node_frames_of(base), NODE_RECALL, page + done, n, digests_out + done,
                             n * sizeof *digests_out);
    }
    return error;
}

int node_gather(struct gaia_frames *base, const uint64_t *pages, size_t count, void *bytes_out)
{
    struct node_frames *frames = node_frames_of(base);
    int error = 0;

    for (size_t done = 0, n; done < count && !error; done += n) {
        n = smaller(count - done, LISTED_MOST(1));
        int slot = call_slot_get(frames->session);
        if (slot < 0)
            return slot;
        uint8_t *memory = call_slot(frames->session, (unsigned)slot);
        memcpy(memory, pages + done, n * sizeof *pages);
        error = node_ask(frames, NODE_FRAMES, NODE_GATHER,
                         &(struct node_request){.length = n, .slot = (uint32_t)slot});
        if (!error)
            memcpy((uint8_t *)bytes_out + done * GAIA_PAGE_SIZE, memory + NODE_LIST_BYTES,
                   n * GAIA_PAGE_SIZE);
        call_slot_put(frames->session, (unsigned)slot);
    }
    return error;
}

int node_patch(struct gaia_frames *base, const uint64_t *pages, size_t count, const void *const *old,
               const void *fresh)
{
    struct node_frames *frames = node_frames_of(base);
    int error = 0;

    for (size_t done = 0, n; done < count && !error; done += n) {
        n = smaller(count - done, LISTED_MOST(2));
        size_t bytes = n * GAIA_PAGE_SIZE;
        int slot = call_slot_get(frames->session);
        if (slot < 0)
            return slot;
        uint8_t *memory = call_slot(frames->session, (unsigned)slot);
        memcpy(memory, pages + done, n * sizeof *pages);
        for (size_t i = 0; i < n; i++)
            memcpy(memory + NODE_LIST_BYTES + i * GAIA_PAGE_SIZE, old[done + i], GAIA_PAGE_SIZE);
        memcpy(memory + NODE_LIST_BYTES + bytes, (const uint8_t *)fresh + done * GAIA_PAGE_SIZE, bytes);
        error = node_ask(frames, NODE_FRAMES, NODE_PATCH,
                         &(struct node_request){.length = n, .slot = (uint32_t)slot});
        call_slot_put(frames->session, (unsigned)slot);
    }
    return error;
}
