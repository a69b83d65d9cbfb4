/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/later.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/lock.h"
#include "fs/follow.h"

#define END_MS 10000u

struct work {
    struct fs *fs;
    void (*fn)(void *argument);
    void *argument;
};

static void *run(void *argument)
{
    struct work work = *(struct work *)argument;

    free(argument);
    work.fn(work.argument);
    atomic_fetch_sub(&work.fs->later, 1); /* the last that is known of fs */
    return NULL;
}

bool later_perhaps(struct fs *fs, void (*fn)(void *argument), void *argument)
{
    struct work *work = malloc(sizeof *work);
    pthread_t thread;

    if (!work)
        return false;
    *work = (struct work){fs, fn, argument};
    atomic_fetch_add(&fs->later, 1);
    if (!follow_create(&thread, run, work)) {
        pthread_detach(thread);
        return true;
    }
    atomic_fetch_sub(&fs->later, 1);
    free(work);
    return false;
}

void later(struct fs *fs, void (*fn)(void *argument), void *argument)
{
    if (!later_perhaps(fs, fn, argument))
        fn(argument);
}

#define DROPS_MOST 2u
#define DROPPERS_MOST 64u /* threads for it */

struct page_drop {
    STAILQ_ENTRY(page_drop) link;
    struct fs *fs;
    void (*fn)(void *argument);
    void *argument;
};

/* One that waits, or the end of a dropper. */
static struct page_drop *next_drop(struct fs *fs)
{
    pthread_mutex_lock(&fs->drops_lock);
    struct page_drop *drop = STAILQ_FIRST(&fs->drops_waiting);
    if (drop)
        STAILQ_REMOVE_HEAD(&fs->drops_waiting, link);
    else
        fs->droppers--;
    pthread_mutex_unlock(&fs->drops_lock);
    return drop;
}

static void run_drops(void *argument)
{
    struct page_drop *drop = argument;
    struct fs *fs = drop->fs;

    do {
        drop->fn(drop->argument);
        free(drop);
    } while ((drop = next_drop(fs)));
}

static bool drop_elsewhere(struct fs *fs, void (*fn)(void *argument), void *argument, bool waits)
{
    struct page_drop *drop = malloc(sizeof *drop);

    if (!drop)
        return false;
    *drop = (struct page_drop){.fs = fs, .fn = fn, .argument = argument};
    pthread_mutex_lock(&fs->drops_lock);
    bool runs = fs->droppers < DROPPERS_MOST && later_perhaps(fs, run_drops, drop);
    fs->droppers += runs;
    waits &= !runs && fs->droppers;
    if (waits)
        STAILQ_INSERT_TAIL(&fs->drops_waiting, drop, link);
    pthread_mutex_unlock(&fs->drops_lock);
    if (!runs && !waits)
        free(drop);
    return runs || waits;
}

static bool drop_here(struct fs *fs, void (*fn)(void *argument), void *argument)
{
    bool may = atomic_fetch_add(&fs->drops, 1) < DROPS_MOST;

    if (may)
        fn(argument);
    atomic_fetch_sub(&fs->drops, 1);
    return may;
}

bool later_drop(struct fs *fs, void (*fn)(void *argument), void *argument, bool here)
{
    return (here && drop_here(fs, fn, argument)) || drop_elsewhere(fs, fn, argument, true);
}

bool later_drop_perhaps(struct fs *fs, void (*fn)(void *argument), void *argument, bool here)
{
    return (here && drop_here(fs, fn, argument)) || drop_elsewhere(fs, fn, argument, false);
}

/* Not on a condition: it is asked a few times, at the end of the mount. */
bool later_end(struct fs *fs)
{
    struct timespec until = lock_wait_until(END_MS);

    while (atomic_load(&fs->later) && !lock_is_past(&until))
        usleep(1000);
    return !atomic_load(&fs->later);
}
