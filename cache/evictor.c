/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/evictor.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "cache/evict.h"
#include "cache/internal.h"

#define PATIENCE_MS 100u
#define RESTLESS_MS 10u /* while others are waited for in vain */
#define END_MS 5000u

/* Freed by whoever is last: the thread that has taken it from the queue, or the one that waits for it. */
struct eviction {
    TAILQ_ENTRY(eviction) link;
    struct replica *replica; /* whose file is in use, until that thread has done with it */
    uint64_t leaf, pages;
    uint64_t total; /* both written by that thread, and read when it is done */
    int error;
    /* Under the evictor's lock: */
    pthread_cond_t over;
    bool begun, done;
    bool alone; /* there is no thread for it, and none can begin */
    bool left;  /* nobody waits for it */
};

static void free_eviction(struct eviction *eviction)
{
    pthread_cond_destroy(&eviction->over);
    free(eviction);
}

/* The lock is held, and let go meanwhile. */
static void carry_out(struct evictor *evictor, struct eviction *eviction)
{
    struct replica *replica = eviction->replica;

    eviction->begun = true;
    pthread_mutex_unlock(&evictor->lock);
    eviction->total = evict_from(replica, eviction->leaf, eviction->pages, &eviction->error);
    atomic_store(&replica->refused, eviction->total ? 0 : eviction->error);
    pthread_mutex_lock(&evictor->lock);
    eviction->done = true;
    if (eviction->left) {
        evictor->late--;
        atomic_fetch_sub(&replica->late, 1);
        free_eviction(eviction);
    } else {
        pthread_cond_signal(&eviction->over);
    }
    pthread_mutex_unlock(&evictor->lock);
    file_unuse(replica->file);
    pthread_mutex_lock(&evictor->lock);
}

static void *work(void *argument)
{
    struct evictor *evictor = argument;
    struct eviction *eviction;

    pthread_setname_np(pthread_self(), "gaiafs-evict"); /* for ps; a failure means nothing */
    pthread_mutex_lock(&evictor->lock);
    for (;;) {
        if ((eviction = TAILQ_FIRST(&evictor->queue))) {
            TAILQ_REMOVE(&evictor->queue, eviction, link);
            evictor->length--;
            carry_out(evictor, eviction);
        } else if (evictor->stop) {
            break;
        } else {
            evictor->idle++;
            pthread_cond_wait(&evictor->queued, &evictor->lock);
            evictor->idle--;
        }
    }
    pthread_mutex_unlock(&evictor->lock);
    evictor->threads--; /* evictor_end() may return, and the cache be freed */
    return NULL;
}

/* Whether some thread takes it at once, or there is at least one. Lock held. */
static bool have_thread(struct evictor *evictor)
{
    pthread_t thread;

    if (evictor->idle >= evictor->length || evictor->threads == EVICTOR_THREADS_MAX)
        return true;
    evictor->threads++;
    if (!thread_start(&thread, work, evictor)) {
        pthread_detach(thread);
        return true;
    }
    return --evictor->threads > 0;
}

/* The one that waits for it goes on. Lock held. */
static bool leave(struct evictor *evictor, struct eviction *eviction, int *error_out)
{
    if (!eviction->begun) {
        TAILQ_REMOVE(&evictor->queue, eviction, link);
        evictor->length--;
        return false;
    }
    eviction->left = true;
    evict_was_refused(eviction->replica, error_out);
    evictor->late++;
    atomic_fetch_add(&eviction->replica->late, 1); /* its file is in use as long as that thread has it */
    return true;
}

/* Whether a thread has it, or has done with it. Lock held, let go while waiting. */
static bool hand_over(struct evictor *evictor, struct eviction *eviction, int *error_out)
{
    if (evictor->stop)
        return false;
    TAILQ_INSERT_TAIL(&evictor->queue, eviction, link);
    evictor->length++;
    eviction->alone = !have_thread(evictor);
    if (eviction->alone)
        return leave(evictor, eviction, error_out);
    pthread_cond_signal(&evictor->queued);
    struct timespec until = lock_wait_until(evictor->late ? RESTLESS_MS : PATIENCE_MS);
    while (!eviction->done)
        if (pthread_cond_timedwait(&eviction->over, &evictor->lock, &until) && !eviction->done)
            return leave(evictor, eviction, error_out);
    return true;
}

uint64_t evictor_take(struct replica *replica, uint64_t leaf_number, uint64_t pages, int *error_out)
{
    struct evictor *evictor = &replica->file->cache->evictor;
    struct eviction *eviction = calloc(1, sizeof *eviction);
    uint64_t total = 0;

    if (!eviction) {
        total = evict_from(replica, leaf_number, pages, error_out);
        file_unuse(replica->file);
        return total;
    }
    *eviction = (struct eviction){.replica = replica, .leaf = leaf_number, .pages = pages};
    lock_condition_init(&eviction->over);
    pthread_mutex_lock(&evictor->lock);
    bool taken = hand_over(evictor, eviction, error_out), left = eviction->left;
    pthread_mutex_unlock(&evictor->lock);
    if (left) /* whatever it does now, it frees it */
        return 0;
    if (taken) {
        total = eviction->total;
        if (eviction->error)
            *error_out = eviction->error;
    } else {
        if (eviction->alone) /* as nobody is known to hold anything, that is better than to make no room */
            total = evict_from(replica, leaf_number, pages, error_out);
        file_unuse(replica->file);
    }
    free_eviction(eviction);
    return total;
}

void evictor_init(struct evictor *evictor)
{
    lock_init(&evictor->lock, LOCK_EVICTOR);
    pthread_cond_init(&evictor->queued, NULL);
    TAILQ_INIT(&evictor->queue);
}

bool evictor_end(struct evictor *evictor)
{
    struct timespec until = lock_wait_until(END_MS);

    pthread_mutex_lock(&evictor->lock);
    evictor->stop = true;
    pthread_cond_broadcast(&evictor->queued);
    pthread_mutex_unlock(&evictor->lock);
    while (evictor->threads && !lock_is_past(&until))
        usleep(1000);
    return !evictor->threads;
}
