/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of several leaves are sent together, as each patch is waited for and a leaf has little to send. Where
 * there are many, threads of their own read and send some batches at a time. */
#include "cache/refresh.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "cache/collect.h"
#include "cache/home_bytes.h"
#include "cache/passed.h"
#include "cache/scan.h"
#include "cache/tail.h"

#define REFRESH_PAGES 256u /* 1 MiB, of a batch */
#define BATCHES 8u         /* under way */
#define HELD_BATCHES 16u   /* the lock is held until they are there: some ms */

/* One page of a batch. */
struct refresh_page {
    struct leaf_copy *copy;
    unsigned page;   /* of the leaf */
    uint8_t *device; /* where what the device has is, if that is to be the twin; else NULL */
};

/* A leaf's pages, also those that need no bytes: V follows for all of them. */
struct refresh_leaf {
    struct leaf_copy *copy;
    page_mask pages;
};

/* The lock is held from the first page that is added to the commit, so nothing of it changes meanwhile. */
struct batch {
    struct replica *replica;
    size_t count, leaves; /* pages whose bytes are sent */
    size_t looked;        /* pages of the leaves, whose bytes may have been read */
    int error;            /* of reading, */
    int patch_error;      /* or of the patch */
    bool sent;            /* it is its thread's, from `work` to `done` */
    bool apart, stop;     /* there is a thread; and it is to end */
    pthread_t thread;
    sem_t work, done;
    uint64_t number[REFRESH_PAGES];
    const void *old[REFRESH_PAGES];
    struct refresh_page page[REFRESH_PAGES];
    struct refresh_leaf leaf[REFRESH_PAGES];
    uint8_t fresh[REFRESH_PAGES * GAIA_PAGE_SIZE];
    uint8_t device[REFRESH_PAGES * GAIA_PAGE_SIZE]; /* seldom used: then it is no memory */
};

struct refresh {
    struct replica *replica;
    bool apart;       /* threads are worth it */
    unsigned filling; /* the batch that pages are added to; those after it, in a ring, are the oldest */
    unsigned held;    /* batches since the lock was let go */
    struct batch batches[BATCHES];
};

/* --- what pages become, and what they were --- */

/* The twin of a page is the home copy, if it has none of its own: then nothing is to be changed. But for one
 * that was changed behind the mount: there the device has what it was, and what GPU kernels have stored since
 * the release at the beginning of the acquire goes with it. */
static int add_page(struct replica *replica, struct batch *b, struct leaf_copy *copy, unsigned page)
{
    struct refresh_page *p = &b->page[b->count];
    uint64_t number = (copy->leaf->number << LEAF_SHIFT) + page;
    int error = 0;

    *p = (struct refresh_page){.copy = copy, .page = page};
    if (copy->twin >> page & 1) {
        b->old[b->count] = frame_bytes(&replica->file->cache->twins, *leaf_copy_twin(copy, page));
    } else if (copy->blind >> page & 1) {
        b->old[b->count] = p->device = b->device + b->count * GAIA_PAGE_SIZE;
        error = replica_fetch(replica, number, p->device);
    } else {
        return 0;
    }
    b->number[b->count++] = number;
    return error;
}

static int add_leaf(struct replica *replica, struct batch *b, struct leaf_copy *copy, page_mask pages)
{
    size_t first = b->count;

    int error = tail_wipe(replica); /* an acquire lets go of the lock, and the file may have been cut */
    if (!error)
        error = collect_pages(replica->file, copy->leaf, pages, COLLECT_PENDING);
    scan_look_again(copy, pages);
    for (page_mask left = pages; left && !error; left &= left - 1)
        error = add_page(replica, b, copy, (unsigned)__builtin_ctzll(left));
    if (error) {
        b->count = first;
        return error;
    }
    b->leaf[b->leaves++] = (struct refresh_leaf){copy, pages};
    b->looked += (size_t)__builtin_popcountll(pages);
    return 0;
}

/* --- the device has them --- */

/* The home's bytes are the twins. */
static void commit(struct cache_file *file, const struct batch *b)
{
    for (size_t i = 0; i < b->count; i++) {
        const struct refresh_page *p = &b->page[i];
        page_mask bit = UINT64_C(1) << p->page;
        if (passed_is_unheard(file) && p->copy->twin & bit)
            memcpy(frame_bytes(&file->cache->twins, *leaf_copy_twin(p->copy, p->page)),
                   b->fresh + i * GAIA_PAGE_SIZE, GAIA_PAGE_SIZE);
        else
            replica_drop_twins(p->copy, bit);
        p->copy->blind &= ~bit;
    }
}

#define FETCH_TRIES 3

/* Of a page nobody knows what it has become. Compared with either of what it may be, it would be released as
 * if a GPU kernel had stored there what somebody else has overwritten since. The next acquire brings it anew.
 * (What was stored to it since the release at the beginning of this one goes with it.) */
static void lose_page(const struct refresh_page *p)
{
    struct replica *replica = p->copy->replica;

    cache_device_uncharge(replica->device, replica_forget(p->copy, UINT64_C(1) << p->page));
    replica_changed(replica);
}

/* A patch has failed, after it may have changed some of the pages. From now on what they have become counts
 * as what they were granted with, byte by byte: else it would be taken for a GPU kernel's store, or not be
 * patched again when the home has what was there before. A GPU, or its node, may have no memory to tell what
 * that is. */
static void keep_patched(struct replica *replica, struct batch *b)
{
    struct frame_pool *pool = &replica->file->cache->twins;
    uint8_t now[GAIA_PAGE_SIZE];

    for (size_t i = 0; i < b->count; i++) {
        const struct refresh_page *p = &b->page[i];
        uint8_t *old = p->device ? p->device : frame_bytes(pool, *leaf_copy_twin(p->copy, p->page));
        const uint8_t *fresh = b->fresh + i * GAIA_PAGE_SIZE;
        unsigned tries = 0;
        int error;
        do
            error = replica_fetch(replica, b->number[i], now);
        while (error && ++tries < FETCH_TRIES);
        for (size_t at = 0; at < GAIA_PAGE_SIZE && !error; at++)
            if (now[at] == fresh[at])
                old[at] = fresh[at];
        if (error)
            lose_page(p);
        else if (p->device && !scan_take_twin_of(p->copy, p->page, old))
            p->copy->blind &= ~(UINT64_C(1) << p->page);
    }
    for (size_t i = 0; i < b->leaves; i++)
        replica_settle(b->leaf[i].copy);
}

/* What has become of a batch, which is empty then. What could not be read is as it was. */
static int conclude(struct batch *b)
{
    struct replica *replica = b->replica;
    int error = b->error ? b->error : b->patch_error;

    if (!error)
        commit(replica->file, b);
    else if (!b->error)
        keep_patched(replica, b);
    for (size_t i = 0; i < b->leaves && !error; i++)
        error = replica_grant(b->leaf[i].copy, b->leaf[i].pages);
    if (!error) {
        replica_count(replica, drops, b->count);
        replica_count(replica, pages_in, b->count);
    }
    b->count = b->leaves = b->looked = 0;
    return error;
}

/* --- a batch under way; who sends it has the lock, and waits --- */

/* The home's bytes of its pages: side by side in one read. */
static int read_fresh(struct batch *b)
{
    int error = 0;

    for (size_t i = 0, n; i < b->count && !error; i += n) {
        n = 1;
        while (i + n < b->count && b->number[i + n] == b->number[i] + n)
            n++;
        error = home_read_pages(b->replica->file, b->number[i], n, b->fresh + i * GAIA_PAGE_SIZE);
    }
    return error;
}

static void carry_out(struct batch *b)
{
    struct gaia_frames *frames = b->replica->frames;

    b->error = read_fresh(b);
    b->patch_error = 0;
    if (!b->error && b->count)
        b->patch_error = frames->ops->patch(frames, b->number, b->count, b->old, b->fresh);
}

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore)) /* a signal */
        ;
}

static void *carry_out_apart(void *argument)
{
    struct batch *b = argument;

    for (;;) {
        await(&b->work);
        if (b->stop)
            return NULL;
        carry_out(b);
        sem_post(&b->done);
    }
}

/* A thread for the batch, if there can be one: else it goes without. */
static void start_thread(struct batch *b)
{
    b->apart = !thread_start(&b->thread, carry_out_apart, b);
}

static void batch_begin(struct batch *b, struct replica *replica)
{
    b->replica = replica;
    b->count = b->leaves = b->looked = 0;
    b->sent = b->apart = b->stop = false;
    sem_init(&b->work, 0, 0);
    sem_init(&b->done, 0, 0);
}

static void batch_end(struct batch *b)
{
    if (b->apart) {
        b->stop = true;
        sem_post(&b->work);
        pthread_join(b->thread, NULL);
    }
    sem_destroy(&b->work);
    sem_destroy(&b->done);
}

static int batch_finish(struct batch *b)
{
    if (!b->sent)
        return 0;
    await(&b->done);
    b->sent = false;
    return conclude(b);
}

/* --- batch after batch --- */

/* Send what is there. The error is that of the batch whose place the next one takes. */
static int send(struct refresh *r)
{
    struct batch *b = &r->batches[r->filling];

    r->held++;
    if (r->apart && !b->apart)
        start_thread(b);
    if (!b->apart) {
        carry_out(b);
        return conclude(b);
    }
    b->sent = true;
    sem_post(&b->work);
    r->filling = (r->filling + 1) % BATCHES;
    return batch_finish(&r->batches[r->filling]);
}

/* All that was added is there: the lock may be let go. */
static int send_all(struct refresh *r)
{
    int error = r->batches[r->filling].leaves ? send(r) : 0;

    for (unsigned i = 0; i < BATCHES; i++) { /* from the oldest on */
        int one = batch_finish(&r->batches[(r->filling + i) % BATCHES]);
        error = error ? error : one;
    }
    r->held = 0;
    return error;
}

/* One leaf's pages into the batch. What was sent is waited for first if they are to be waited for, or others
 * wait for the lock. */
static int refresh_leaf(struct refresh *r, const struct copy_pages *entry)
{
    struct cache_file *file = r->replica->file;
    int error = 0;

    while (!error) {
        const struct batch *b = &r->batches[r->filling];
        struct leaf_copy *copy = replica_find_copy(r->replica, entry->leaf);
        page_mask here = copy ? copy->present & entry->pages : 0;
        if (!here)
            return 0;
        bool busy = here & (copy->busy | copy->releasing | copy->leaf->invalidating);
        bool full = b->looked + (size_t)__builtin_popcountll(here) > REFRESH_PAGES;
        if ((busy && (b->leaves || r->held)) || (full && r->held + 1 == HELD_BATCHES)) {
            error = send_all(r);
            pthread_mutex_unlock(&file->lock); /* handlers of FUSE may wait for it */
            pthread_mutex_lock(&file->lock);
        } else if (busy) {
            pthread_cond_wait(&file->changed, &file->lock);
        } else if (full) {
            error = send(r);
        } else {
            return add_leaf(r->replica, &r->batches[r->filling], copy, here);
        }
    }
    return error;
}

int refresh_pages(struct replica *replica, const struct copy_pages *list, size_t count)
{
    struct refresh *r = count ? malloc(sizeof *r) : NULL;
    size_t pages = 0;
    int error = 0;

    if (!r)
        return count ? -ENOMEM : 0;
    for (size_t i = 0; i < count; i++)
        pages += (size_t)__builtin_popcountll(list[i].pages);
    r->replica = replica;
    r->apart = pages > REFRESH_PAGES;
    r->filling = r->held = 0;
    for (unsigned i = 0; i < BATCHES; i++)
        batch_begin(&r->batches[i], replica);
    for (size_t i = 0; i < count && !error; i++)
        error = refresh_leaf(r, &list[i]);
    int last = send_all(r); /* also of those before one that failed */
    pthread_mutex_unlock(&replica->file->lock);
    for (unsigned i = 0; i < BATCHES; i++)
        batch_end(&r->batches[i]);
    pthread_mutex_lock(&replica->file->lock);
    free(r);
    return error ? error : last;
}
