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

bool later_drop(struct fs *fs, void (*fn)(void *argument), void *argument, bool here)
{
    bool may = here && atomic_fetch_add(&fs->drops, 1) < DROPS_MOST;

    if (may)
        fn(argument);
    if (here)
        atomic_fetch_sub(&fs->drops, 1);
    return may || (atomic_load(&fs->later) < DROPPERS_MOST && later_perhaps(fs, fn, argument));
}

/* Not on a condition: it is asked a few times, at the end of the mount. */
bool later_end(struct fs *fs)
{
    struct timespec until = lock_wait_until(END_MS);

    while (atomic_load(&fs->later) && !lock_is_past(&until))
        usleep(1000);
    return !atomic_load(&fs->later);
}
